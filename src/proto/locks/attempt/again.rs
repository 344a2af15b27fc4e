//! A client that asks for a key again before it has given it up: the release and the next `SET NX`
//! reach a node in one write, so the node grants that client the key again before a waiter in line
//! can ask for it.
//!
//! The hazard is a waiter that never gets a turn. So the client counts the locks that it got in
//! this way, and after some of them, or some time, hands the key over to the first in line.

use std::time::Duration;

use crate::proto::ids::RecordId;
use crate::proto::locks::Locks;
use crate::proto::time::Instant;

/// How many locks in a row are deleted when they are released, at most.
const MOST: u32 = 64;
/// For how long at most they are. Then the next one is handed over.
const LONGEST: Duration = Duration::from_millis(10);

/// How often the client has asked for a key before it had given it up, one time after the other,
/// and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Again {
    times: u32,
    since: Instant,
}

impl Again {
    /// The client asks once more; `before` is what was counted for the lock before.
    fn after(before: Option<Again>, now: Instant) -> Again {
        let first = Again { times: 0, since: now };
        let Again { times, since } = before.unwrap_or(first);
        Again { times: times + 1, since }
    }

    /// Whether others have waited for long enough.
    fn is_enough(self, now: Instant) -> bool {
        self.times >= MOST || now.saturating_since(self.since) >= LONGEST
    }
}

impl Locks {
    /// The client asks for a key; `id` is the record of its first attempt, of which nothing was
    /// sent yet. If no majority has acknowledged the release of the record `before`, whose place
    /// it takes, the lock may be one that is handed over.
    #[inline]
    pub(in crate::proto::locks) fn note_asked_again(
        &mut self,
        id: RecordId,
        before: Option<RecordId>,
        now: Instant,
    ) {
        if let Some(before) = before {
            self.count_again(id, before, now);
        }
    }

    #[cold]
    fn count_again(&mut self, id: RecordId, before: RecordId, now: Instant) {
        let (record, before) = (self.records.get(id), self.records.get(before));
        let unreleased = before.pending.release_pending().len();
        let hand_over = record.token.hands_over() || before.hands_over();
        if hand_over || before.key != record.key || unreleased <= self.cluster.spare_nodes() {
            return;
        }
        let again = Again::after(before.again(), now);
        let record = self.records.get_mut(id);
        if again.is_enough(now) {
            record.token.hand_over();
        } else {
            record.trouble_mut().again = Some(again);
        }
    }
}
