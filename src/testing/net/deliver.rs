//! Carries out the actions of the clients, and delivers their bytes and the answers of the masters.

use super::agenda::Event;
use super::wire::Wire;
use super::{Endpoint, Net, News};
use crate::proto::coordinator::Action;
use crate::proto::node_set::NodeId;
use crate::testing::master::ConnectionId;

/// How many rounds of deliveries [`Net::settle`] may take. Without a limit, a client that asks
/// again and again would make the test hang.
const MOST_ROUNDS: usize = 1_000;

/// The error text of a connection that was refused or closed, as a system would report it.
const REFUSED: &str = "connection refused";
const CLOSED: &str = "closed by the node";

impl<E: Endpoint> Net<E> {
    /// Lets a client use its sockets: it begins to open connections, closes others, and writes.
    /// What it writes is in flight from now on.
    pub fn write(&mut self, client: usize) {
        if self.clients[client].stopped {
            return;
        }
        while let Some(action) = self.clients[client].endpoint.poll_action() {
            match action {
                Action::Connect(node) => self.begin_to_open(client, node),
                Action::Disconnect(node) => self.close(client, node.index()),
            }
        }
        for node in self.node_ids() {
            self.write_to(client, node);
        }
        self.set_timer(client);
        self.note_news(client);
    }

    fn note_news(&mut self, client: usize) {
        let it = &mut self.clients[client];
        it.news = match (it.endpoint.has_news(), it.news) {
            (false, _) => News::None,
            (true, News::None) => {
                self.news.push_back(client);
                News::Queued
            }
            (true, told) => told,
        };
    }

    /// Opens the connection that a client has begun to open, or refuses it if the node is down.
    pub fn open(&mut self, client: usize, node: usize) {
        let (now, id) = (self.now, NodeId::new(node));
        if !std::mem::take(&mut self.clients[client].wires[node].opening) {
            return;
        }
        if self.nodes[node].down {
            self.clients[client].endpoint.handle_disconnected(id, REFUSED, now);
        } else {
            let connection = self.nodes[node].master.connect();
            self.nodes[node].owners.insert(connection, client);
            self.clients[client].wires[node].connection = Some(connection);
            self.clients[client].endpoint.handle_connected(id, now);
            self.collect(node);
        }
        self.note_event(client);
    }

    /// Delivers all that a client has written to a node. The node executes it, also if it is
    /// frozen.
    pub fn deliver_to_node(&mut self, client: usize, node: usize) {
        self.write_to(client, NodeId::new(node));
        self.deliver_some_to_node(client, node, usize::MAX);
    }

    /// As [`deliver_to_node`](Net::deliver_to_node), but delivers at most this number of the bytes
    /// in flight.
    pub fn deliver_some_to_node(&mut self, client: usize, node: usize, most: usize) {
        let wire = &mut self.clients[client].wires[node];
        let bytes = wire.to_node.take(most);
        if let Some(connection) = wire.connection {
            self.execute(node, connection, &bytes);
        }
    }

    /// Delivers all that a node has sent to a client, also if the client is stopped.
    pub fn deliver_to_client(&mut self, client: usize, node: usize) {
        self.deliver_some_to_client(client, node, usize::MAX);
    }

    /// As [`deliver_to_client`](Net::deliver_to_client), but delivers at most this number of bytes.
    pub fn deliver_some_to_client(&mut self, client: usize, node: usize, most: usize) {
        self.collect(node);
        let bytes = self.clients[client].wires[node].to_client.take(most);
        self.hand_in(client, node, &bytes);
    }

    /// Lets a client handle the timers that are due now.
    pub fn expire(&mut self, client: usize) {
        let now = self.now;
        self.client_mut(client).handle_timeout(now);
        self.note_event(client);
    }

    /// Advances the clock to the next timer of a client, but by `most` at most, and lets the client
    /// handle its timers. Nothing else happens meanwhile.
    pub fn skip_to_timer(&mut self, client: usize, most: std::time::Duration) {
        let Some(due) = self.clients[client].endpoint.next_timeout() else { return };
        self.now = due.min(self.now.saturating_add(most)).max(self.now);
        self.expire(client);
    }

    /// Delivers everything, in the order of the clients and nodes, until nothing is in flight. No
    /// time passes, whatever the latency is. Nodes that are frozen or partitioned and clients that
    /// are stopped get nothing.
    ///
    /// # Panics
    /// If the clients and the masters go on without end.
    #[track_caller]
    pub fn settle(&mut self) {
        for _ in 0..MOST_ROUNDS {
            if !self.deliver_once() {
                return;
            }
        }
        panic!("after {MOST_ROUNDS} rounds of deliveries at one moment there is no end of it");
    }

    /// The bytes that a node has sent to a client, but the client has not read.
    pub fn unread(&self, client: usize, node: usize) -> Vec<u8> {
        self.clients[client].wires[node].to_client.bytes().collect()
    }

    /// Removes and returns the bytes in flight from a node to a client.
    pub fn take_unread(&mut self, client: usize, node: usize) -> Vec<u8> {
        self.collect(node);
        self.clients[client].wires[node].to_client.take(usize::MAX)
    }

    /// The bytes from a client that a node has not read: those in flight, and those that the client
    /// has not written yet.
    pub fn unexecuted(&self, client: usize, node: usize) -> Vec<u8> {
        let it = &self.clients[client];
        let output = it.endpoint.output(NodeId::new(node)).iter().copied();
        it.wires[node].to_node.bytes().chain(output).collect()
    }

    /// Whether there is a connection. The node may have closed it if the client does not know that
    /// yet.
    pub fn is_connected(&self, client: usize, node: usize) -> bool {
        self.clients[client].wires[node].connection.is_some()
    }

    /// Sends these bytes to a client as if the node had sent them.
    pub fn say(&mut self, client: usize, node: usize, bytes: &[u8]) {
        if self.is_connected(client, node) {
            self.send_to_client(client, node, bytes.to_vec());
        }
    }

    pub(super) fn write_touched(&mut self) {
        for node in 0..self.nodes.len() {
            self.collect(node);
        }
        for _ in 0..self.touched.len() {
            let Some(client) = self.touched.pop_front() else { return };
            self.clients[client].is_touched = false;
            self.write(client);
        }
    }

    fn deliver_once(&mut self) -> bool {
        let mut moved = false;
        for client in 0..self.clients.len() {
            self.write(client);
            for node in 0..self.nodes.len() {
                let wire = &self.clients[client].wires[node];
                if wire.opening && !self.nodes[node].partitioned {
                    moved = true;
                    self.open(client, node);
                    self.write(client);
                }
                let wire = &self.clients[client].wires[node];
                if !wire.to_node.is_empty() && self.nodes[node].executes() {
                    moved = true;
                    self.deliver_some_to_node(client, node, usize::MAX);
                }
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].stopped {
                continue;
            }
            for node in 0..self.nodes.len() {
                let wire = &self.clients[client].wires[node];
                let has_something = !wire.to_client.is_empty() || wire.closed;
                if has_something && !self.nodes[node].partitioned {
                    moved = true;
                    self.deliver_to_client(client, node);
                }
            }
        }
        moved
    }

    /// Lets a node execute what has arrived.
    pub(super) fn arrive_at_node(&mut self, client: usize, node: usize) {
        let wire = &mut self.clients[client].wires[node];
        let executes = self.nodes[node].executes();
        let Some(connection) = wire.connection.filter(|_| executes) else { return };
        let bytes = wire.to_node.take_arrived(self.now);
        self.execute(node, connection, &bytes);
    }

    /// Lets a client read what has arrived.
    pub(super) fn arrive_at_client(&mut self, client: usize, node: usize) {
        let it = &mut self.clients[client];
        if !it.stopped && !self.nodes[node].partitioned {
            let bytes = it.wires[node].to_client.take_arrived(self.now);
            self.hand_in(client, node, &bytes);
        }
    }

    /// Delivers what was in flight on a connection that its client has lost.
    pub(super) fn arrive_late(&mut self, node: usize, connection: ConnectionId) {
        if !self.nodes[node].executes() {
            return;
        }
        let is_it = |it: &super::Orphan| it.connection == connection && it.node == node;
        let Some(number) = self.orphans.iter().position(is_it) else { return };
        self.deliver_orphan(number, usize::MAX);
    }

    pub(super) fn execute(&mut self, node: usize, connection: ConnectionId, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let it = &mut self.nodes[node];
        it.busy_until = it.busy_until.max(self.now).saturating_add(self.execution);
        it.master.handle_bytes(self.now, connection, bytes);
        self.collect(node);
    }

    /// Puts the output of a node in flight.
    pub(super) fn collect(&mut self, node: usize) {
        self.collect_and_find(node, None);
    }

    /// As [`collect`](Net::collect), but returns the output for the connection of an operator.
    pub(super) fn collect_and_find(
        &mut self,
        node: usize,
        operator: Option<ConnectionId>,
    ) -> Vec<u8> {
        let mut found = Vec::new();
        while let Some(output) = self.nodes[node].master.poll_output() {
            if operator == Some(output.connection) {
                found.extend(output.bytes);
                continue;
            }
            let Some(&client) = self.nodes[node].owners.get(&output.connection) else { continue };
            self.send_to_client(client, node, output.bytes);
            if output.closes {
                self.nodes[node].owners.remove(&output.connection);
                self.note_closed(client, node);
            }
        }
        found
    }

    fn send_to_client(&mut self, client: usize, node: usize, bytes: Vec<u8>) {
        let leaves = self.nodes[node].busy_until.max(self.now);
        let at = leaves.saturating_add(self.draw_latency());
        let at = self.clients[client].wires[node].to_client.push(at, bytes);
        self.agenda.put(at, Event::ToClient { client, node });
    }

    /// Records that the node closed the connection. The client learns that after what was sent
    /// before.
    pub(super) fn note_closed(&mut self, client: usize, node: usize) {
        let wire = &mut self.clients[client].wires[node];
        wire.closed = true;
        let at = wire.to_client.latest().max(self.now);
        self.agenda.put(at, Event::ToClient { client, node });
    }

    fn begin_to_open(&mut self, client: usize, node: NodeId) {
        let it = &mut self.clients[client];
        it.endpoint.handle_connecting(node, self.now);
        it.wires[node.index()].opening = true;
        // To open a connection takes a round trip.
        let at = self.now.saturating_add(2 * *self.latency.start());
        self.agenda.put(at, Event::Open { client, node: node.index() });
    }

    fn write_to(&mut self, client: usize, node: NodeId) {
        let it = &mut self.clients[client];
        let output = it.endpoint.output(node);
        if output.is_empty() || it.wires[node.index()].connection.is_none() {
            return;
        }
        let bytes = output.to_vec();
        it.endpoint.handle_sent(node, bytes.len(), self.now);
        let at = self.now.saturating_add(self.draw_latency());
        let node = node.index();
        let wire = &mut self.clients[client].wires[node];
        if !wire.closed {
            let at = wire.to_node.push(at, bytes);
            self.agenda.put(at, Event::ToNode { client, node });
        }
    }

    fn hand_in(&mut self, client: usize, node: usize, bytes: &[u8]) {
        let (now, id) = (self.now, NodeId::new(node));
        let it = &mut self.clients[client];
        if !bytes.is_empty() {
            it.endpoint.handle_bytes(id, bytes, now);
            self.note_event(client);
        }
        let it = &mut self.clients[client];
        if it.wires[node].closed && it.wires[node].to_client.is_empty() {
            it.wires[node] = Wire::default();
            it.endpoint.handle_disconnected(id, CLOSED, now);
            self.note_event(client);
        }
    }

    fn set_timer(&mut self, client: usize) {
        let it = &mut self.clients[client];
        let due = it.endpoint.next_timeout();
        if due == it.due {
            return;
        }
        it.due = due;
        it.timer += 1;
        if let Some(at) = due {
            self.agenda.put(at.max(self.now), Event::Timer { client, timer: it.timer });
        }
    }
}
