//! The interface of the clients of a simulated network.

use crate::proto::coordinator::{Action, Coordinator};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// A client of a [`Net`](super::Net): bytes and moments go in, bytes and moments come out. The
/// [`Coordinator`] is one. See its methods of the same names for details.
pub trait Endpoint {
    /// The next connection that has to be opened or closed.
    fn poll_action(&mut self) -> Option<Action>;

    /// Reports that the requested connection is open.
    fn handle_connected(&mut self, node: NodeId, now: Instant);

    /// Reports that the connection has ended, or could not be opened.
    fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant);

    /// Reports that the network begins to open the requested connection.
    fn handle_connecting(&mut self, _node: NodeId, _now: Instant) {}

    /// The bytes that have to be written to a node.
    fn output(&self, node: NodeId) -> &[u8];

    /// Reports that the first `count` bytes of the output were written.
    fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant);

    /// Passes in bytes that a node has sent.
    fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant);

    /// When the next timer is due.
    fn next_timeout(&self) -> Option<Instant>;

    /// Handles the timers that are due.
    fn handle_timeout(&mut self, now: Instant);

    /// Whether there is something for the caller, so that [`Net::run`](super::Net::run) returns.
    fn has_news(&self) -> bool;
}

impl Endpoint for Coordinator {
    fn poll_action(&mut self) -> Option<Action> {
        self.poll_action()
    }

    fn handle_connected(&mut self, node: NodeId, now: Instant) {
        self.handle_connected(node, now);
    }

    fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        self.handle_disconnected(node, words, now);
    }

    fn handle_connecting(&mut self, node: NodeId, now: Instant) {
        self.handle_connecting(node, now);
    }

    fn output(&self, node: NodeId) -> &[u8] {
        self.output(node)
    }

    fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        self.handle_sent(node, count, now);
    }

    fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant) {
        // The coordinator may have given up the connection, and still have the action in its queue.
        if self.node_state(node).is_connected() {
            self.handle_bytes(node, bytes, now);
        }
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.next_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }

    fn has_news(&self) -> bool {
        self.has_completions() || self.has_lock_updates() || self.has_standings()
    }
}
