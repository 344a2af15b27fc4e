//! Plain counters: the outcomes of the attempts; and for each node its grants, denials, errors by
//! cause, round trips, pending releases and connections. They only grow, except the count of the
//! locks that are held.
//!
//! Counting is an addition to a field that exists from the start: nothing is allocated. The reader
//! decides what to do with the numbers: each program has its own library for logs and metrics.

use std::time::Duration;

use crate::proto::durations::Durations;
use crate::proto::error::{Error, NodeError, NodeReply};
use crate::proto::node_set::NodeId;
use crate::proto::time::whole_micros;

/// How many classes of round trips there are: the last one has no upper bound.
pub const CLASSES: usize = 24;

/// How many round trips took how long, in classes that double.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundTrips {
    classes: [u64; CLASSES],
    micros: u64,
}

impl RoundTrips {
    /// Every class, shortest first: its upper bound, and how many round trips are in it. The first
    /// class ends at 1 µs, and each following one at twice the end of the one before. The last one
    /// has no upper bound.
    pub fn classes(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.classes.iter().enumerate().map(|(class, &count)| {
            let end = (class + 1 < CLASSES).then(|| Duration::from_micros(1 << class));
            (end, count)
        })
    }

    /// How many round trips were counted.
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The sum of all round trips, in whole microseconds.
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// Counts round trips that took equally long.
    #[inline]
    pub(crate) fn add(&mut self, took: Duration, count: u64) {
        self.add_micros(whole_micros(took), count);
    }

    /// As [`add`](RoundTrips::add).
    #[inline]
    pub(crate) fn add_micros(&mut self, micros: u64, count: u64) {
        self.micros = self.micros.saturating_add(micros.saturating_mul(count));
        // The class is the number of binary digits.
        let class = (u64::BITS - micros.leading_zeros()) as usize;
        self.classes[class.min(CLASSES - 1)] += count;
    }
}

/// The counters of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NodeStats {
    /// Keys that the node granted.
    pub grants: u64,
    /// Keys that the node denied, because another client holds them.
    pub denials: u64,
    /// How long the node's answers took, each from writing a question about a key.
    pub round_trips: RoundTrips,
    /// How often its connection became ready; all but the first are reconnects.
    pub connections: u64,
    /// How often a connection to it was lost, or could not be made ready.
    pub failures: u64,
    /// Flushes that the node reported. Of several within 50 ms, the first counts as one, and all
    /// others together as one more.
    pub flushes: u64,
    /// Releases that had to wait for the node, and were sent later.
    pub pending_releases_sent: u64,
    /// Releases that were given up because the node was not connected, or refused them, for too
    /// long.
    pub pending_releases_dropped: u64,
    errors: [u64; NodeError::ALL.len()],
}

impl NodeStats {
    /// Counts equal replies to questions about keys, without their round trips.
    #[inline]
    pub(crate) fn note_replies(&mut self, to_acquire: bool, reply: NodeReply, count: u64) {
        match reply {
            NodeReply::Granted if to_acquire => self.grants += count,
            NodeReply::Held if to_acquire => self.denials += count,
            // After this error the client sends the script's source, so the error is not reported.
            NodeReply::Failed(NodeError::NoScript) => {}
            NodeReply::Failed(cause) => self.errors[cause as usize] += count,
            _ => {}
        }
    }

    /// How often the node gave no vote that counts, for this cause.
    pub fn errors(&self, cause: NodeError) -> u64 {
        self.errors[cause as usize]
    }

    /// Every cause that occurred, and how often.
    pub fn all_errors(&self) -> impl Iterator<Item = (NodeError, u64)> + '_ {
        let all = NodeError::ALL.iter().map(|&cause| (cause, self.errors(cause)));
        all.filter(|(_, count)| *count > 0)
    }
}

/// The counters of a client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Attempts that were won in time: locks that were handed out.
    pub won: u64,
    /// Locks that are held now: handed out, and not yet released, given away or lost.
    pub held: u64,
    /// Held locks that the caller released.
    pub released: u64,
    /// Extends that a caller asked for, and that were won.
    pub extended: u64,
    /// Attempts that were lost to another client.
    pub contended: u64,
    /// Attempts for which too few votes counted.
    pub no_quorum: u64,
    /// Attempts that were won too late.
    pub expired: u64,
    /// Renewals of auto-extended locks that were won.
    pub renewed: u64,
    /// Held locks that were lost: their deadline passed, or too many nodes had no key of theirs.
    pub lost: u64,
    /// Keys of held locks that a node had lost, and that the client set there again.
    pub healed: u64,
    /// Times that a request began to stand in line.
    pub joined: u64,
    /// Locks that were won in line.
    pub handed_over: u64,
    /// Waiters that stood in line before one that won, and could not be reached when the key was
    /// handed over.
    pub skipped: u64,
    /// Messages that were not taken for a hand-over: they made no sense, or had no mark of this
    /// client, or one that was used before. A node may send such a message after a connection was
    /// lost, and another program may send any.
    pub messages_ignored: u64,
    /// Claims: round trips before a lock is handed out, needed because its hand-over left it too
    /// little time.
    pub claims: u64,
    /// Times that no waiter in line got a majority, and a request gave up the nodes it had for
    /// another waiter.
    pub splits: u64,
    /// Attempts that got a fencing number.
    pub fenced: u64,
    /// Those of the `fenced` numbers that were written back in a second round trip.
    pub written_back: u64,
    /// Attempts that could not be won as the nodes are configured.
    pub misconfigured: u64,
    /// How long the requests for the locks that were handed out took, waits included.
    pub waits: Durations,
    /// How long the locks that are over were held.
    pub holds: Durations,
    /// The counters of each node, in the order of the list.
    pub nodes: Vec<NodeStats>,
}

impl Stats {
    pub(crate) fn of(nodes: usize) -> Stats {
        Stats { nodes: vec![NodeStats::default(); nodes], ..Stats::default() }
    }

    pub(crate) fn node(&mut self, node: NodeId) -> &mut NodeStats {
        &mut self.nodes[node.index()]
    }

    /// Counts the answer of a node to a question about a key.
    #[inline]
    pub(crate) fn answered(
        &mut self,
        node: NodeId,
        to_acquire: bool,
        reply: NodeReply,
        took: Duration,
    ) {
        let entry = self.node(node);
        entry.round_trips.add(took, 1);
        entry.note_replies(to_acquire, reply, 1);
    }

    /// Counts a node that gave no answer that counts.
    pub(crate) fn failed(&mut self, node: NodeId, cause: NodeError) {
        self.node(node).errors[cause as usize] += 1;
    }

    /// Counts a lock that is handed out; its request took `wait`.
    #[inline]
    pub(crate) fn handed_out(&mut self, wait: Duration) {
        self.won += 1;
        self.held += 1;
        self.waits.add(wait);
    }

    /// Counts the end of a lock that was held for `hold`.
    #[inline]
    pub(crate) fn note_hold(&mut self, hold: Duration) {
        self.held = self.held.saturating_sub(1);
        self.holds.add(hold);
    }

    pub(crate) fn note_lost_attempt(&mut self, error: &Error) {
        match error {
            Error::Contended(_) => self.contended += 1,
            Error::NoQuorum(_) => self.no_quorum += 1,
            Error::Expired(_) => self.expired += 1,
            _ => self.misconfigured += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_is_counted_in_the_class_that_ends_above_it() {
        let mut trips = RoundTrips::default();
        for micros in [0, 1, 2, 3, 1023, 1024, u64::MAX] {
            trips.add(Duration::from_micros(micros), 1);
        }
        let found: Vec<_> = trips.classes().filter(|(_, count)| *count > 0).collect();
        let below = |micros| Some(Duration::from_micros(micros));
        let expected =
            [(below(1), 1), (below(2), 1), (below(4), 2), (below(1024), 1), (below(2048), 1)];
        assert_eq!(found[..5], expected);
        assert_eq!((found[5], trips.count()), ((None, 1), 7));
        assert_eq!(trips.total(), Duration::from_micros(u64::MAX));
    }

    #[test]
    fn every_cause_has_a_place_of_its_own() {
        for (index, &cause) in NodeError::ALL.iter().enumerate() {
            assert_eq!(cause as usize, index);
        }
        let mut stats = Stats::of(2);
        let node = NodeId::new(1);
        stats.failed(node, NodeError::Silent);
        stats.answered(node, true, NodeReply::Failed(NodeError::Other), Duration::ZERO);
        stats.answered(node, false, NodeReply::Held, Duration::ZERO);
        stats.answered(node, true, NodeReply::Held, Duration::ZERO);
        let entry = stats.nodes[1];
        let errors: Vec<_> = entry.all_errors().collect();
        assert_eq!(errors, [(NodeError::Silent, 1), (NodeError::Other, 1)]);
        assert_eq!((entry.denials, entry.grants, entry.round_trips.count()), (1, 0, 3));
    }
}
