//! Flushes: a node reports that every key of its database may be gone. So the client has to ask it
//! about every auto-extended or watched lock, and for every waiter.
//!
//! The hazard is the cost: a flush concerns every record, and a node may report one in each read.
//! So the client walks over the locks immediately after the first flush, and once more for all
//! flushes within `BETWEEN_WALKS` after that.

use std::time::Duration;

use crate::proto::locks::{Due, Locks, WaitEvent};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::timers::Timer;

/// The shortest time between two walks over the locks because of the same node. A walk over 50,000
/// locks takes some milliseconds, so a node that reports flushes all the time costs a small share
/// of a core. The loss of a lock is noticed later by this time at most.
pub(super) const BETWEEN_WALKS: Duration = Duration::from_millis(50);

/// When the locks were walked over because of a node's flushes.
#[derive(Debug, Clone, Default)]
pub(super) struct Flushes {
    /// When the last walk over the locks was.
    pub(super) walked_at: Option<Instant>,
    /// Starts the next walk, for the flushes that were reported since the last one.
    pub(super) next_walk: Option<Timer>,
}

impl Locks {
    /// A node reported that it was flushed.
    pub fn on_flush(&mut self, node: NodeId, now: Instant) {
        let flushes = &mut self.flushes[node.index()];
        let earliest = flushes.walked_at.map_or(now, |at| at.saturating_add(BETWEEN_WALKS));
        if now < earliest {
            let due = Due::Flushes { node };
            flushes.next_walk.get_or_insert_with(|| self.timers.set_at(earliest, due));
        } else {
            self.timers.clear_in(&mut flushes.next_walk);
            self.walk_over(node, now);
        }
    }

    /// Walks over the locks because every key of the node may be gone: doubts all auto-extended or
    /// watched locks, and notifies all waiters. Also if the connection was lost since the flush,
    /// because the keys are gone all the same.
    pub(super) fn walk_over(&mut self, node: NodeId, now: Instant) {
        self.flushes[node.index()] = Flushes { walked_at: Some(now), next_walk: None };
        self.cluster.stats_mut().node(node).flushes += 1;
        self.renewals.doubt_all(node, &self.records, now);
        for record in self.ops.waiting().map(|id| self.records.get(id)) {
            let Some(op) = self.ops.waiter_of(record) else { continue };
            self.waits.push_back(WaitEvent::Written { op, node });
        }
    }
}
