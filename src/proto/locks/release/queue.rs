//! Pending releases: each is sent at once if the node can be reached, else as the first thing on
//! its next connection.
//!
//! The queue is an order only: what is pending is decided by the record. An entry is skipped when
//! its turn comes if its record is gone, or if no release is pending for the node any more.
//!
//! An entry may wait for so long that the generation of its record comes again. Then a release of
//! another record that is over is sent a little early, which does no harm.

use std::collections::VecDeque;
use std::time::Duration;

use crate::proto::ids::RecordId;
use crate::proto::surplus::{shrink_list, shrink_queue};
use crate::proto::time::Instant;
use crate::proto::timers::Timer;

/// How many times `max_ttl` a node may be away before its pending releases are dropped: by then
/// every key of ours on it has expired, unless its clock stands still.
pub const GIVEN_UP_AFTER: u32 = 10;

/// The shortest and the longest pause before releases are sent again to a node that refused them or
/// has no room.
pub const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A pending release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingRelease {
    /// The record.
    pub record: RecordId,
    /// The release is not sent before this moment.
    pub not_before: Instant,
}

/// The pending releases of one node.
#[derive(Debug, Clone, Default)]
pub struct PendingReleases {
    queue: VecDeque<PendingRelease>,
    /// Releases for questions that were asked on earlier connections and not answered.
    pub unproven: Vec<PendingRelease>,
    /// Starts the next sending.
    pub next_send: Option<Timer>,
    /// Drops the pending releases when the node was away too long.
    pub drop_timer: Option<Timer>,
    /// How many releases in a row were refused.
    pub refused: u32,
}

impl PendingReleases {
    /// Queues a pending release.
    pub fn push(&mut self, pending_release: PendingRelease) {
        self.queue.push_back(pending_release);
    }

    /// Takes out the next pending release.
    pub fn pop(&mut self) -> Option<PendingRelease> {
        self.queue.pop_front()
    }

    /// Gives back the room that was not in use since `most` releases were queued.
    pub fn shrink(&mut self, most: usize) {
        shrink_queue(&mut self.queue, most);
        shrink_list(&mut self.unproven, most);
    }

    /// The releases that are queued, in their order.
    #[cfg(feature = "testing")]
    pub fn queued(&self) -> Vec<PendingRelease> {
        self.queue.iter().copied().collect()
    }

    /// How many releases are queued.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The pause before releases are sent again.
    pub fn pause(&self) -> Duration {
        (PAUSES.0 * (1 << self.refused.min(8))).min(PAUSES.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_sent_in_their_order_at_a_bounded_pace() {
        let mut pending_releases = PendingReleases::default();
        for record in 0..3 {
            let (record, not_before) = (RecordId::of(record), Instant::default());
            pending_releases.push(PendingRelease { record, not_before });
        }
        assert_eq!(pending_releases.len(), 3);
        let order: Vec<u32> =
            std::iter::from_fn(|| pending_releases.pop()).map(|d| d.record.index).collect();
        assert_eq!(order, [0, 1, 2]);
        assert_eq!(pending_releases.pause(), PAUSES.0);
        pending_releases.refused = 1;
        assert_eq!(pending_releases.pause(), 2 * PAUSES.0);
        pending_releases.refused = u32::MAX;
        assert_eq!(pending_releases.pause(), PAUSES.1);
    }

    #[test]
    fn pending_releases_give_back_the_room_of_a_burst() {
        let mut pending = PendingReleases::default();
        (pending.queue, pending.unproven) =
            (VecDeque::with_capacity(50_000), Vec::with_capacity(50_000));
        pending.shrink(1);
        assert!(pending.queue.capacity() < 5_000 && pending.unproven.capacity() < 5_000);
    }
}
