//! What happens to the nodes, for a program that logs it. Nothing depends on whether the events are
//! read.

use std::collections::VecDeque;

use crate::proto::cluster::Cluster;
use crate::proto::cluster::restart_guard::QuarantineReason;
use crate::proto::cluster::state::NodeState;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// Something that happened to a node, or to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeEvent {
    /// The node's state changed.
    State {
        /// The node.
        node: NodeId,
        /// Its new state.
        state: NodeState,
    },
    /// The node is in quarantine: its grants do not count for a while.
    Quarantined {
        /// The node.
        node: NodeId,
        /// Why.
        why: QuarantineReason,
        /// Until when.
        until: Instant,
    },
    /// The node's clock moved further than ours since the last reading, by more than drift
    /// explains.
    ClockJumped {
        /// The node.
        node: NodeId,
        /// By how many nanoseconds; negative if it went back or stood still.
        nanos: i64,
    },
    /// The node could not be made ready several times in a row: its name may resolve to another
    /// address by now. The driver reports this, never the core.
    AddressStale {
        /// The node.
        node: NodeId,
    },
    /// Pending releases of the node, which had waited for it, were sent.
    PendingReleasesSent {
        /// The node.
        node: NodeId,
        /// How many releases.
        count: u64,
    },
    /// Enough nodes are ready again: a lock can be acquired.
    QuorumReady,
    /// Too few nodes are ready: no lock can be acquired.
    QuorumGone,
    /// The node was not connected, or refused releases, for so long that its pending releases were
    /// dropped: their keys have expired by their ttl.
    PendingReleasesDropped {
        /// The node.
        node: NodeId,
        /// How many releases.
        count: u64,
    },
}

/// How many events are kept for a reader. Beyond that the oldest are dropped: the events are only a
/// log.
const MAX_EVENTS: usize = 256;

/// The events that the caller has not read yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Events {
    queue: VecDeque<NodeEvent>,
}

impl Cluster {
    /// The next thing that happened to a node.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.events.queue.pop_front()
    }

    /// Queues an event for the reader.
    pub fn report_event(&mut self, event: NodeEvent) {
        if self.events.queue.len() == MAX_EVENTS {
            self.events.queue.pop_front();
        }
        self.events.queue.push_back(event);
    }

    pub(super) fn set_node_state(&mut self, node: NodeId, state: NodeState) {
        if self.node_state(node) == state {
            return;
        }
        let was_quorum = self.is_quorum_ready();
        self.nodes[node.index()].state = state;
        self.report_event(NodeEvent::State { node, state });
        match (was_quorum, self.is_quorum_ready()) {
            (false, true) => self.report_event(NodeEvent::QuorumReady),
            (true, false) => self.report_event(NodeEvent::QuorumGone),
            _ => {}
        }
    }

    /// Whether the nodes whose grants count are a quorum.
    fn is_quorum_ready(&self) -> bool {
        let ready = self.nodes.iter().filter(|node| node.state == NodeState::Ready);
        ready.count() >= self.quorum
    }
}
