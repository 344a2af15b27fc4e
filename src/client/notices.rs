//! Keeps the warnings and losses of a blocking client's locks until the caller polls them.

use std::collections::{BTreeMap, VecDeque};

use crate::proto::error::Error;
use crate::proto::locks::held::updates::{LockUpdate, LockUpdateKind};

/// How many updates are kept until the caller polls them. If there are more, the oldest is dropped.
const MOST_UNREPORTED: usize = 256;

/// How many losses are remembered for the guards of the locks. There is a limit because a guard
/// that was forgotten never removes its loss. If there are more, the oldest is dropped.
const REMEMBERED: usize = 1 << 14;

/// The losses by the numbers of the locks, and the updates that the caller has not polled yet. A
/// caller that only calls [`check`](crate::Guard::check) polls none, so their number is limited.
#[derive(Debug, Default)]
pub(super) struct Notices {
    lost: BTreeMap<u64, Error>,
    unreported: VecDeque<LockUpdate>,
    last: u64,
}

impl Notices {
    /// Returns a new number, for a lock that is requested.
    pub(super) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Drops the loss of that number, because its guard was dropped.
    pub(super) fn forget(&mut self, number: u64) {
        self.lost.remove(&number);
    }

    /// Records an update of a lock, and returns whether there is something to report. A later
    /// deadline is not reported, because guards read it from the engine.
    pub(super) fn take(&mut self, update: LockUpdate) -> bool {
        match &update.kind {
            LockUpdateKind::Extended { .. } => return false,
            LockUpdateKind::Expiring { .. } => {}
            LockUpdateKind::Lost(error) => {
                if self.lost.len() == REMEMBERED {
                    self.lost.pop_first();
                }
                self.lost.insert(update.data, error.clone());
            }
        }
        if self.unreported.len() == MOST_UNREPORTED {
            self.unreported.pop_front();
        }
        self.unreported.push_back(update);
        true
    }

    /// Why the lock of that number was lost, if it was.
    pub(super) fn loss(&self, number: u64) -> Option<Error> {
        self.lost.get(&number).cloned()
    }

    /// The next update that the caller has not polled yet.
    pub(super) fn poll(&mut self) -> Option<LockUpdate> {
        self.unreported.pop_front()
    }
}
