//! Warnings and losses of the locks that a blocking client keeps, until the caller polls them.

use std::collections::{BTreeMap, VecDeque};

use crate::proto::error::Error;
use crate::proto::lock::LockToken;
use crate::proto::locks::requests::Outcome;
use crate::proto::time::Instant;

/// How many events are kept until the caller polls them; the oldest are dropped first.
const MOST: usize = 256;

/// An event of a lock that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockEvent {
    /// Its key.
    pub key: Vec<u8>,
    /// Its token.
    pub token: LockToken,
    /// The event.
    pub what: LockEventKind,
}

/// What happened to a lock that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockEventKind {
    /// The lock was not renewed yet, and ends at this moment unless a renewal succeeds.
    Expiring {
        /// The deadline, on the clock of [`clock::now`](crate::clock::now).
        deadline: Instant,
    },
    /// The lock is lost: reported once.
    Lost(Error),
}

#[derive(Debug)]
struct Followed {
    key: Vec<u8>,
    token: LockToken,
    lost: Option<Error>,
}

/// The kept locks by their numbers, and the events that were not reported yet.
#[derive(Debug, Default)]
pub(super) struct Notices {
    followed: BTreeMap<u64, Followed>,
    untold: VecDeque<LockEvent>,
    last: u64,
}

impl Notices {
    /// A number for a lock that is to be kept. Never 0, which stands for a lock without notices.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The lock of that number is kept from now on.
    pub(super) fn follow(&mut self, number: u64, key: &[u8], token: LockToken) {
        self.followed.insert(number, Followed { key: key.to_vec(), token, lost: None });
    }

    /// The guard of that number was dropped.
    pub(super) fn forget(&mut self, number: u64) {
        self.followed.remove(&number);
    }

    /// Notes a completion of a kept lock; returns `false` if there is nothing to report.
    pub(super) fn take(&mut self, number: u64, result: Result<Outcome, Error>) -> bool {
        let Some(followed) = self.followed.get_mut(&number) else { return false };
        let what = match result {
            Ok(Outcome::Expiring { deadline }) => LockEventKind::Expiring { deadline },
            Ok(_) => return false,
            Err(error) => {
                followed.lost = Some(error.clone());
                LockEventKind::Lost(error)
            }
        };
        if self.untold.len() == MOST {
            self.untold.pop_front();
        }
        self.untold.push_back(LockEvent { key: followed.key.clone(), token: followed.token, what });
        true
    }

    /// Why the lock of that number was lost, if it was.
    pub(super) fn loss(&self, number: u64) -> Option<Error> {
        self.followed.get(&number)?.lost.clone()
    }

    /// The next event that was not reported yet.
    pub(super) fn poll(&mut self) -> Option<LockEvent> {
        self.untold.pop_front()
    }
}
