//! What happens to the nodes, for whoever wants to log it. Nothing depends on its being read.

use std::collections::VecDeque;

use super::super::node::NodeId;
use super::super::quarantine::QuarantineReason;
use super::super::standing::NodeState;
use super::super::time::Instant;
use super::Cluster;

/// Something that happened to a node, or to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeEvent {
    /// It is now this to us.
    State {
        /// The node.
        node: NodeId,
        /// What it is now.
        standing: NodeState,
    },
    /// Its grants do not count for a while.
    Quarantined {
        /// The node.
        node: NodeId,
        /// Why.
        why: QuarantineReason,
        /// Until when.
        until: Instant,
    },
    /// Its clock went further than ours, beyond drift, since it was asked before.
    ClockJumped {
        /// The node.
        node: NodeId,
        /// By how many nanoseconds; negative where it went back or stood still.
        nanos: i64,
    },
    /// It could not be made ready several times in a row: its name may lead elsewhere by now. Told
    /// by the engine, never by the core.
    AddressStale {
        /// The node.
        node: NodeId,
    },
    /// Releases that it was owed, and that had to wait for it, were sent to it.
    PendingReleasesSent {
        /// The node.
        node: NodeId,
        /// How many releases.
        count: u64,
    },
    /// So many nodes are ready that a lock can be had.
    QuorumReady,
    /// So few nodes are ready that no lock can be had.
    QuorumGone,
    /// It was away, or refused releases, for so long that they were given up: their keys are gone
    /// by their ttl.
    PendingReleasesDropped {
        /// The node.
        node: NodeId,
        /// How many releases.
        count: u64,
    },
}

/// How many events are kept for a reader: beyond that the oldest are dropped. It is a log.
const KEPT: usize = 256;

/// The events that nobody has read yet.
#[derive(Debug, Default)]
pub(super) struct Events {
    queue: VecDeque<NodeEvent>,
}

impl Cluster {
    /// The next thing that happened to a node.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.events.queue.pop_front()
    }

    /// Lines an event up for the reader.
    pub fn tell(&mut self, event: NodeEvent) {
        if self.events.queue.len() == KEPT {
            self.events.queue.pop_front();
        }
        self.events.queue.push_back(event);
    }

    pub(super) fn set_standing(&mut self, node: NodeId, standing: NodeState) {
        if self.standing(node) == standing {
            return;
        }
        let was_quorum = self.is_quorum_ready();
        self.nodes[node.index()].standing = standing;
        self.tell(NodeEvent::State { node, standing });
        match (was_quorum, self.is_quorum_ready()) {
            (false, true) => self.tell(NodeEvent::QuorumReady),
            (true, false) => self.tell(NodeEvent::QuorumGone),
            _ => {}
        }
    }

    /// Whether the nodes whose grants count are a quorum.
    fn is_quorum_ready(&self) -> bool {
        let ready = self.nodes.iter().filter(|node| node.standing == NodeState::Ready);
        ready.count() >= self.quorum
    }
}
