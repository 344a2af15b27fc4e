//! Gives back what a burst took, once it was not in use for an interval.
//!
//! The hot path only takes note of how many records and requests are open, once for each write to a
//! node. A client that never has many of them has no timer for this.

use crate::proto::locks::Locks;
use crate::proto::node_set::NodeId;
use crate::proto::surplus::{FEW, INTERVAL, shrink_queue};
use crate::proto::time::Instant;

/// When the next interval ends, and what was in use in this one.
#[derive(Debug, Clone, Default)]
pub(super) struct Tidying {
    pub(super) due: Option<Instant>,
    most: usize,
}

impl Locks {
    /// The first `count` bytes of the node's output were written.
    #[inline]
    pub fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        self.cluster.handle_sent(node, count, now);
        let open = self.records.len().max(self.ops.len());
        self.tidying.most = self.tidying.most.max(open);
        if open > FEW && self.tidying.due.is_none() {
            self.tidying.due = Some(now.saturating_add(INTERVAL));
        }
    }

    /// Ends an interval that is over. Returns whether one was.
    pub(super) fn tidy_if_due(&mut self, now: Instant) -> bool {
        if self.tidying.due.is_none_or(|due| now < due) {
            return false;
        }
        let open = self.records.len().max(self.ops.len());
        let most = std::mem::replace(&mut self.tidying.most, open);
        self.records.shrink(most);
        self.ops.shrink(most);
        self.timers.shrink(most);
        self.renewals.shrink(most);
        shrink_queue(&mut self.verdicts, most);
        shrink_queue(&mut self.waits, most);
        self.updates.shrink(most);
        self.pending_releases.iter_mut().for_each(|queue| queue.shrink(most));
        self.cluster.shrink();
        let large = [self.records.capacity(), self.ops.capacity(), self.timers.capacity()];
        let go_on = most > FEW || large.into_iter().any(|capacity| capacity > FEW);
        self.tidying.due = go_on.then(|| now.saturating_add(INTERVAL));
        true
    }
}
