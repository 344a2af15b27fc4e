//! The programs at the ends of the network.

use crate::proto::coordinator::{Action, Coordinator};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// A program that speaks with masters over a [`Net`](super::Net): bytes and moments go in, bytes
/// and moments come out. The [`Coordinator`] is one; its methods of the same names say more.
pub trait Endpoint {
    /// The next connection that it wants to be opened or closed.
    fn poll_action(&mut self) -> Option<Action>;

    /// The connection that it asked for is open.
    fn handle_connected(&mut self, node: NodeId, now: Instant);

    /// The connection is gone, or could not be opened.
    fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant);

    /// The network begins to open the connection that it asked for.
    fn handle_connecting(&mut self, _node: NodeId, _now: Instant) {}

    /// The bytes that it has to write to a node.
    fn output(&self, node: NodeId) -> &[u8];

    /// The first `count` bytes of its output were written.
    fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant);

    /// A node sent these bytes.
    fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant);

    /// When its next timer is due.
    fn next_timeout(&self) -> Option<Instant>;

    /// Lets happen what is due by now.
    fn handle_timeout(&mut self, now: Instant);

    /// Whether it has something for its caller, so that [`Net::run`](super::Net::run) returns.
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
        // It may have given the connection up, and have the action for that still in its queue.
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
        self.has_completions() || self.has_lock_updates()
    }
}
