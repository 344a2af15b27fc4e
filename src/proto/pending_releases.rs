//! Which records are owed a release at one node, in the order of payment.
//!
//! This is an order, not the truth: the truth is `owed` in the record. An entry whose record is
//! gone, or whose node is owed nothing any more, is passed over when its turn comes.

use std::collections::VecDeque;
use std::time::Duration;

use super::time::Instant;
use super::timers::Timer;

/// How often `max_ttl` a node may be away before what it is owed is given up: every key of ours on
/// it is long gone, unless its clock stands still.
pub const GIVEN_UP_AFTER: u32 = 10;

/// How long after its loss a connection may still bring to the node what was written on it, where
/// nothing proves its end. Linux gives unacknowledged bytes up after 924.6 s (`tcp_retries2` is
/// 15), and a proxy on the way does so by its own clock, whatever our socket is set to.
pub const GONE_AFTER: Duration = Duration::from_secs(16 * 60);

/// The pauses between payments that a node refuses, and while it has no room.
pub const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A release that is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingRelease {
    /// The record.
    pub record: u32,
    /// Its generation: the record's place may be used again before the pending release's turn
    /// comes.
    pub generation: u64,
    /// It is not paid before this moment.
    pub not_before: Instant,
}

/// What is owed at one node.
#[derive(Debug, Default)]
pub struct PendingReleases {
    queue: VecDeque<PendingRelease>,
    /// What was asked on earlier connections and not answered.
    pub unproven: Vec<PendingRelease>,
    /// Starts the next payment.
    pub payment: Option<Timer>,
    /// Gives up what is owed, when the node was away too long.
    pub giving_up: Option<Timer>,
    /// How many payments in a row were refused.
    pub refused: u32,
}

impl PendingReleases {
    /// Lines a pending release up.
    pub fn push(&mut self, pending_release: PendingRelease) {
        self.queue.push_back(pending_release);
    }

    /// Takes out the one whose turn it is.
    pub fn pop(&mut self) -> Option<PendingRelease> {
        self.queue.pop_front()
    }

    /// How many are lined up.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing is lined up.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The pause before the next payment.
    pub fn pause(&self) -> Duration {
        (PAUSES.0 * (1 << self.refused.min(8))).min(PAUSES.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debts_are_paid_in_their_order_at_a_bounded_pace() {
        let mut pending_releases = PendingReleases::default();
        for record in 0..3 {
            pending_releases.push(PendingRelease {
                record,
                generation: 1,
                not_before: Instant::default(),
            });
        }
        assert_eq!(pending_releases.len(), 3);
        let order: Vec<u32> =
            std::iter::from_fn(|| pending_releases.pop()).map(|d| d.record).collect();
        assert_eq!(order, [0, 1, 2]);
        assert_eq!(pending_releases.pause(), PAUSES.0);
        pending_releases.refused = 1;
        assert_eq!(pending_releases.pause(), 2 * PAUSES.0);
        pending_releases.refused = u32::MAX;
        assert_eq!(pending_releases.pause(), PAUSES.1);
    }
}
