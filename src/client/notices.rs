//! What there is to tell of the locks that a blocking client keeps, until somebody asks.

use std::collections::{BTreeMap, VecDeque};

use crate::proto::error::Error;
use crate::proto::lock::LockToken;
use crate::proto::ops::Outcome;
use crate::proto::time::Instant;

/// How many are kept for whoever asks; the oldest go first.
const MOST: usize = 256;

/// What there is to tell of a lock that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockEvent {
    /// Its key.
    pub key: Vec<u8>,
    /// Its token.
    pub token: LockToken,
    /// What happened.
    pub what: LockEventKind,
}

/// What happened to a lock that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockEventKind {
    /// It was not renewed until now, and ends at this moment unless it still is.
    Expiring {
        /// The deadline, on the clock of [`clock::now`](crate::clock::now).
        deadline: Instant,
    },
    /// It is lost: told once.
    Lost(Error),
}

#[derive(Debug)]
struct Followed {
    key: Vec<u8>,
    token: LockToken,
    lost: Option<Error>,
}

/// The kept locks by their numbers, and what was not told yet.
#[derive(Debug, Default)]
pub(super) struct Notices {
    followed: BTreeMap<u64, Followed>,
    untold: VecDeque<LockEvent>,
    last: u64,
}

impl Notices {
    /// A number for a lock that is to be kept. Never 0: that stands for what nobody follows.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The lock of that number is kept from now on.
    pub(super) fn follow(&mut self, number: u64, key: &[u8], token: LockToken) {
        self.followed.insert(number, Followed { key: key.to_vec(), token, lost: None });
    }

    /// The guard of that number is gone.
    pub(super) fn forget(&mut self, number: u64) {
        self.followed.remove(&number);
    }

    /// Takes note of what a keeping came to; `false` where there is nothing to tell of it.
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

    /// The next that was not told yet.
    pub(super) fn poll(&mut self) -> Option<LockEvent> {
        self.untold.pop_front()
    }
}
