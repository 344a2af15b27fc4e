//! Warnings and losses of the locks of a blocking client, until the caller polls them.

use std::collections::{BTreeMap, VecDeque};

use crate::proto::error::Error;
use crate::proto::locks::held::updates::{LockUpdate, LockUpdateKind};

/// How many updates are kept until the caller polls them; the oldest are dropped first.
const MOST: usize = 256;

/// How many losses are remembered for the guards of the locks. A guard that is forgotten never asks
/// for its own. The oldest are dropped first.
const REMEMBERED: usize = 1 << 14;

/// The losses by the numbers of the locks, and the updates that were not reported yet. Both are
/// bounded, because a caller that only calls [`check`](crate::Guard::check) polls no update.
#[derive(Debug, Default)]
pub(super) struct Notices {
    lost: BTreeMap<u64, Error>,
    unreported: VecDeque<LockUpdate>,
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

    /// Notes an update of a lock; returns `false` if there is nothing to report: guards read a
    /// later deadline from the engine.
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
        if self.unreported.len() == MOST {
            self.unreported.pop_front();
        }
        self.unreported.push_back(update);
        true
    }

    /// Why the lock of that number was lost, if it was.
    pub(super) fn loss(&self, number: u64) -> Option<Error> {
        self.lost.get(&number).cloned()
    }

    /// The next update that was not reported yet.
    pub(super) fn poll(&mut self) -> Option<LockUpdate> {
        self.unreported.pop_front()
    }
}
