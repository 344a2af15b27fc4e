//! Warnings and losses of the locks of a blocking client, until the caller polls them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::proto::error::Error;
use crate::proto::lock::LockToken;
use crate::proto::locks::updates::{LockUpdate, LockUpdateKind};
use crate::proto::time::Instant;

/// How many events are kept until the caller polls them; the oldest are dropped first.
const MOST: usize = 256;

/// How many losses are remembered for the guards of the locks. A guard that is forgotten never asks
/// for its own. The oldest are dropped first.
const REMEMBERED: usize = 1 << 14;

/// An event of a lock that a guard holds.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockEvent {
    /// Its key.
    pub key: Vec<u8>,
    /// Its token.
    pub token: LockToken,
    /// The event.
    pub what: LockEventKind,
}

/// What happened to a lock that a guard holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEventKind {
    /// The lock is renewed, but was not renewed yet. It ends at this moment unless a renewal
    /// succeeds.
    Expiring {
        /// The deadline, on the clock of [`clock::now`](crate::clock::now).
        deadline: Instant,
    },
    /// The lock is lost: reported once.
    Lost(Error),
}

/// One line, with the key as text.
impl fmt::Debug for LockEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockEvent { key, token, what } = self;
        let key = key.escape_ascii();
        write!(f, "LockEvent {{ key: \"{key}\", token: {token}, what: {what:?} }}")
    }
}

/// The losses by the numbers of the locks, and the events that were not reported yet.
#[derive(Debug, Default)]
pub(super) struct Notices {
    lost: BTreeMap<u64, Error>,
    unreported: VecDeque<LockEvent>,
    last: u64,
}

impl Notices {
    /// A number for a lock that is asked for.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The guard of that number was dropped.
    pub(super) fn forget(&mut self, number: u64) {
        self.lost.remove(&number);
    }

    /// Notes an update of a lock; returns `false` if there is nothing to report.
    pub(super) fn take(&mut self, update: LockUpdate) -> bool {
        let (key, what) = match update.kind {
            LockUpdateKind::Expiring { deadline, key } => {
                (key, LockEventKind::Expiring { deadline })
            }
            LockUpdateKind::Lost(error) => {
                if self.lost.len() == REMEMBERED {
                    self.lost.pop_first();
                }
                self.lost.insert(update.data, error.clone());
                let key = error.report().map(|report| report.key.clone());
                (key.unwrap_or_default(), LockEventKind::Lost(error))
            }
            LockUpdateKind::Extended { .. } => return false,
        };
        if self.unreported.len() == MOST {
            self.unreported.pop_front();
        }
        self.unreported.push_back(LockEvent { key: key.into(), token: update.token, what });
        true
    }

    /// Why the lock of that number was lost, if it was.
    pub(super) fn loss(&self, number: u64) -> Option<Error> {
        self.lost.get(&number).cloned()
    }

    /// The next event that was not reported yet.
    pub(super) fn poll(&mut self) -> Option<LockEvent> {
        self.unreported.pop_front()
    }
}
