//! Gives back the memory that a burst of requests took, if an interval passes in which it was not
//! used.
//!
//! After each write to a node the client notes how many records and requests are open: nothing more
//! on the hot path. Only a client that has many of them open has a timer for this.

use crate::proto::locks::Locks;
use crate::proto::node_set::NodeId;
use crate::proto::surplus::{FEW, INTERVAL, shrink_queue};
use crate::proto::time::Instant;

/// When the present interval ends, and the most records or requests that were open in it.
#[derive(Debug, Clone, Default)]
pub(super) struct Tidying {
    pub(super) due: Option<Instant>,
    most_open: usize,
}

impl Locks {
    /// The first `count` bytes of the node's outbox were written to its socket.
    #[inline]
    pub fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        self.cluster.handle_sent(node, count, now);
        let open = self.records.len().max(self.ops.len());
        self.tidying.most_open = self.tidying.most_open.max(open);
        if open > FEW && self.tidying.due.is_none() {
            self.tidying.due = Some(now.saturating_add(INTERVAL));
        }
    }

    /// If the interval is over, gives back the memory that was not used in it, and begins another
    /// one if there is more to give back. Returns whether the interval was over.
    pub(super) fn tidy_if_due(&mut self, now: Instant) -> bool {
        if self.tidying.due.is_none_or(|due| now < due) {
            return false;
        }
        let open = self.records.len().max(self.ops.len());
        let most = std::mem::replace(&mut self.tidying.most_open, open);
        self.records.shrink(most);
        self.ops.shrink(most);
        self.timers.shrink(most);
        self.renewals.shrink(most);
        self.verdicts.shrink(most);
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
