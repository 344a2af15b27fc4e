//! The faults of nodes, connections and clients.

use super::agenda::Event;
use super::wire::Orphan;
use super::{Endpoint, Net};
use crate::proto::node_set::NodeId;
use crate::testing::master::Restart;

/// The error text of a connection that broke, as a system would report it.
const RESET: &str = "connection reset";

impl<E: Endpoint> Net<E> {
    /// Freezes a node: it executes and answers nothing from now on, but its connections stay, and
    /// new ones are opened. So it is if its process is stopped, or its disk hangs.
    pub fn freeze(&mut self, node: usize) {
        self.nodes[node].frozen = true;
    }

    /// Lets a frozen node go on, which executes what arrived meanwhile.
    pub fn thaw(&mut self, node: usize) {
        self.nodes[node].frozen = false;
        self.look_at_wires_of(node);
    }

    /// Whether a node is frozen.
    pub fn is_frozen(&self, node: usize) -> bool {
        self.nodes[node].frozen
    }

    /// Partitions a node: no packet reaches it or leaves it from now on, and neither side notices.
    pub fn partition(&mut self, node: usize) {
        self.nodes[node].partitioned = true;
    }

    /// Ends the partition of a node. What was sent meanwhile arrives.
    pub fn heal(&mut self, node: usize) {
        self.nodes[node].partitioned = false;
        self.look_at_wires_of(node);
    }

    /// Whether a node is cut off by a partition.
    pub fn is_partitioned(&self, node: usize) -> bool {
        self.nodes[node].partitioned
    }

    /// Puts in again the events of a node's connections that could not happen before.
    fn look_at_wires_of(&mut self, node: usize) {
        for client in 0..self.clients.len() {
            for event in [
                Event::Open { client, node },
                Event::ToNode { client, node },
                Event::ToClient { client, node },
            ] {
                self.agenda.put(self.now, event);
            }
        }
        for orphan in self.orphans.iter().filter(|orphan| orphan.node == node) {
            let at = orphan.to_node.latest().max(self.now);
            self.agenda.put(at, Event::Late { node, connection: orphan.connection });
        }
    }

    /// Ends the process of a node: its connections close, and new ones are refused.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].down = true;
        self.end_process(node, Restart::WithData);
    }

    /// Starts a node that was killed. `memory` says which keys it still has.
    pub fn start(&mut self, node: usize, memory: Restart) {
        self.nodes[node].down = false;
        self.end_process(node, memory);
    }

    /// Ends the process of a node, and starts a new one immediately.
    pub fn restart(&mut self, node: usize, memory: Restart) {
        self.end_process(node, memory);
    }

    fn end_process(&mut self, node: usize, memory: Restart) {
        let now = self.now;
        self.orphans.retain(|orphan| orphan.node != node);
        self.master_mut(node).restart(now, memory);
        self.collect(node);
    }

    /// Breaks a connection, which its client learns immediately. Bytes in flight to the client are
    /// lost. Bytes in flight to the node still arrive there at their time, unless
    /// [`deliver_orphan`](Net::deliver_orphan) decides otherwise. A connection that is being opened
    /// fails.
    pub fn cut(&mut self, client: usize, node: usize) {
        let wire = &self.clients[client].wires[node];
        if !wire.opening && wire.connection.is_none() {
            return;
        }
        self.close(client, node);
        let now = self.now;
        self.client_mut(client).handle_disconnected(NodeId::new(node), RESET, now);
        self.note_event(client);
    }

    /// How many connections there are that their clients have lost or closed, but that still have
    /// bytes in flight to a node.
    pub fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// Delivers at most this number of the bytes that such a connection has in flight. The rest is
    /// lost, and the node learns that the connection has ended.
    pub fn deliver_orphan(&mut self, number: usize, most: usize) {
        let Orphan { node, connection, mut to_node } = self.orphans.remove(number);
        let bytes = to_node.take(most);
        self.execute(node, connection, &bytes);
        self.nodes[node].master.disconnect(connection);
    }

    /// Stops the process of a client: it does nothing from now on. Its connections stay.
    pub fn stop(&mut self, client: usize) {
        self.clients[client].stopped = true;
    }

    /// Lets a stopped client go on. It reads what arrived meanwhile, and then handles its timers.
    pub fn resume(&mut self, client: usize) {
        self.clients[client].stopped = false;
        for node in 0..self.nodes.len() {
            self.agenda.put(self.now, Event::ToClient { client, node });
        }
        let it = &mut self.clients[client];
        if it.due.is_some_and(|due| due <= self.now) {
            self.agenda.put(self.now, Event::Timer { client, timer: it.timer });
        }
        self.mark_touched(client);
    }

    /// Whether a client is stopped.
    pub fn is_stopped(&self, client: usize) -> bool {
        self.clients[client].stopped
    }

    /// Ends the process of a client without any notice to the nodes, and puts another client with
    /// the same number in its place. Returns the old client.
    pub fn replace(&mut self, client: usize, endpoint: E) -> E {
        for node in 0..self.nodes.len() {
            self.close(client, node);
        }
        self.clients[client].stopped = false;
        std::mem::replace(self.client_mut(client), endpoint)
    }

    /// Closes the client's end of a connection.
    pub(super) fn close(&mut self, client: usize, node: usize) {
        let wire = std::mem::take(&mut self.clients[client].wires[node]);
        let Some(connection) = wire.connection.filter(|_| !wire.closed) else { return };
        self.nodes[node].owners.remove(&connection);
        if wire.to_node.is_empty() {
            self.nodes[node].master.disconnect(connection);
            return;
        }
        let at = wire.to_node.latest();
        self.orphans.push(Orphan { node, connection, to_node: wire.to_node });
        self.agenda.put(at, Event::Late { node, connection });
    }
}
