//! Flushes: a node reports that every key of a database may be gone, so every auto-extended lock
//! and every waiter has to look.
//!
//! The hazard is the cost. A flush concerns every record, and a node may report one in each read.
//! So the locks are walked over at once for the first flush, and once for all those that follow it
//! closely.

use std::time::Duration;

use crate::proto::locks::{Due, Locks, WaitEvent};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::timers::Timer;

/// How soon after one walk over the locks the next one follows for the same node. A walk over
/// 50,000 locks takes some milliseconds, so a node that reports flushes all the time costs a small
/// part of a core. The loss of a lock that such a flush deleted is noticed this much later.
pub(super) const BETWEEN_WALKS: Duration = Duration::from_millis(50);

/// What is remembered of a node's flushes.
#[derive(Debug, Clone, Default)]
pub(super) struct Flushes {
    /// When the locks were last walked over because of one.
    pub(super) walked_at: Option<Instant>,
    /// Starts the walk for those that were reported since.
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

    /// Every key of a node may be gone: all auto-extended locks are doubted, and all waiters
    /// notified. The walk is made even if the node's connection was lost since the flush: the keys
    /// are gone all the same.
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
