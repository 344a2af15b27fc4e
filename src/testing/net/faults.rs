//! What goes wrong.

use super::agenda::Event;
use super::wire::Orphan;
use super::{Endpoint, Net};
use crate::proto::node_set::NodeId;
use crate::testing::master::Restart;

/// Why a connection is over, in the words of a system.
const RESET: &str = "connection reset";

impl<E: Endpoint> Net<E> {
    /// A node executes and answers nothing from now on, but its connections stay, and new ones are
    /// opened: its process is stopped, its disk hangs, or its kernel has other things to do.
    pub fn freeze(&mut self, node: usize) {
        self.nodes[node].frozen = true;
    }

    /// A frozen node goes on: it executes what arrived meanwhile.
    pub fn thaw(&mut self, node: usize) {
        self.nodes[node].frozen = false;
        self.look_at_wires_of(node);
    }

    /// Whether a node is frozen.
    pub fn is_frozen(&self, node: usize) -> bool {
        self.nodes[node].frozen
    }

    /// No packet reaches a node or leaves it from now on, and neither side learns that.
    pub fn partition(&mut self, node: usize) {
        self.nodes[node].partitioned = true;
    }

    /// The partition is over: what was sent meanwhile arrives.
    pub fn heal(&mut self, node: usize) {
        self.nodes[node].partitioned = false;
        self.look_at_wires_of(node);
    }

    /// Whether a node is cut off by a partition.
    pub fn is_partitioned(&self, node: usize) -> bool {
        self.nodes[node].partitioned
    }

    /// What could not happen on the connections of a node happens now, or at its moment.
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

    /// The process of a node ends: its connections close, and new ones are refused.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].down = true;
        self.end_process(node, Restart::WithData);
    }

    /// A node that was killed runs again, with what it has kept.
    pub fn start(&mut self, node: usize, memory: Restart) {
        self.nodes[node].down = false;
        self.end_process(node, memory);
    }

    /// The process of a node ends, and another one takes its place at once.
    pub fn restart(&mut self, node: usize, memory: Restart) {
        self.end_process(node, memory);
    }

    fn end_process(&mut self, node: usize, memory: Restart) {
        let now = self.now;
        self.orphans.retain(|orphan| orphan.node != node);
        self.master_mut(node).restart(now, memory);
        self.collect(node);
    }

    /// A connection breaks, and its client learns that at once. What was on its way to the client
    /// is lost. What was on its way to the node still arrives there at its time, unless
    /// [`deliver_orphan`](Net::deliver_orphan) decides otherwise. A connection that was about to be
    /// opened is refused.
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

    /// How many connections that their clients have lost or closed still bring something to a node.
    pub fn orphans(&self) -> usize {
        self.orphans.len()
    }

    /// So many bytes at most of what is left of one of these connections arrive at the node now,
    /// the rest never does, and the node learns that the connection is over.
    pub fn deliver_orphan(&mut self, number: usize, most: usize) {
        let Orphan { node, connection, mut to_node } = self.orphans.remove(number);
        let bytes = to_node.take(most);
        self.execute(node, connection, &bytes);
        self.nodes[node].master.disconnect(connection);
    }

    /// The process of a client does nothing from now on: it is stopped. Its connections stay.
    pub fn stop(&mut self, client: usize) {
        self.clients[client].stopped = true;
    }

    /// A client that was stopped goes on: it reads what arrived meanwhile, and then its timers
    /// fire.
    pub fn resume(&mut self, client: usize) {
        self.clients[client].stopped = false;
        for node in 0..self.nodes.len() {
            self.agenda.put(self.now, Event::ToClient { client, node });
        }
        let it = &mut self.clients[client];
        if it.due.is_some_and(|due| due <= self.now) {
            self.agenda.put(self.now, Event::Timer { client, timer: it.timer });
        }
        self.touch(client);
    }

    /// Whether a client is stopped.
    pub fn is_stopped(&self, client: usize) -> bool {
        self.clients[client].stopped
    }

    /// The process of a client ends without a word, and another program takes its place and its
    /// number. Returns what was there.
    pub fn replace(&mut self, client: usize, endpoint: E) -> E {
        for node in 0..self.nodes.len() {
            self.close(client, node);
        }
        self.clients[client].stopped = false;
        std::mem::replace(self.client_mut(client), endpoint)
    }

    /// The client's end of a connection is closed.
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
