//! Messages in flight, and connections that are opened, cut and ended.

use redlatch::NodeId;
use redlatch::proto::Action;
use redlatch::testing::master::ConnectionId;

use crate::wire::{self, Orphan, Wire};
use crate::world::World;

/// `Err`: the violation, in words.
pub type Checked = Result<(), String>;

impl World {
    /// Takes out of a client what it wants: completions, actions, and bytes to send.
    pub fn settle(&mut self, client: usize) -> Checked {
        let now = self.now;
        loop {
            self.client_mut(client).take_completions(now)?;
            self.note_fence(client)?;
            let mut wrote = false;
            while let Some(action) = self.client_mut(client).core.poll_action() {
                wrote = true;
                match action {
                    Action::Connect(node) => self.wire_mut(client, node.index()).wanted = true,
                    Action::Disconnect(node) => self.close(client, node.index()),
                }
            }
            for node in self.node_ids() {
                let core = &self.clients[client].core;
                if core.output(node).is_empty() {
                    continue;
                }
                let bytes = core.output(node).to_vec();
                self.client_mut(client).core.handle_sent(node, bytes.len(), now);
                let wire = self.wire_mut(client, node.index());
                assert!(wire.id.is_some(), "a client writes only on a connection");
                wire.up.extend(wire::commands(&bytes));
                wrote = true;
            }
            if !wrote && !self.clients[client].core.has_completions() {
                return Ok(());
            }
        }
    }

    /// The client closes its end of the connection, or has lost it. What it wrote may still arrive.
    pub fn close(&mut self, client: usize, node: usize) {
        let Wire { id, up, ended, .. } = std::mem::take(self.wire_mut(client, node));
        let Some(id) = id else { return };
        if ended || up.is_empty() {
            self.master_mut(node).disconnect(id);
        } else {
            self.orphans.push(Orphan { client, node, id, up });
        }
    }

    /// Delivers the client's next command to the node.
    pub fn deliver_to_node(&mut self, client: usize, node: usize) {
        let wire = self.wire_mut(client, node);
        let id = wire.id.expect("commands are on their way");
        let message = wire.up.pop_front().expect("a command is on its way");
        self.execute(node, id, &message);
    }

    /// Delivers the next command of a connection that its client has lost.
    pub fn deliver_late(&mut self, orphan: usize) {
        let it = &mut self.orphans[orphan];
        let (node, id) = (it.node, it.id);
        let message = it.up.pop_front().expect("a command is on its way");
        self.execute(node, id, &message);
        if self.orphans.get(orphan).is_some_and(|it| it.id == id && it.up.is_empty()) {
            self.orphans.remove(orphan);
            self.master_mut(node).disconnect(id);
        }
    }

    /// A node executes a command, and sends its answer.
    pub fn execute(&mut self, node: usize, id: ConnectionId, message: &[u8]) {
        let now = self.now;
        self.master_mut(node).handle_bytes(now, id, message);
        self.send_output(node);
    }

    /// Puts all that a node sends on the wires.
    pub fn send_output(&mut self, node: usize) {
        while let Some(output) = self.master_mut(node).poll_output() {
            if output.closes {
                self.orphans.retain(|it| it.node != node || it.id != output.connection);
            }
            let count = self.nodes.len();
            let mut wires = self.wires.iter_mut().skip(node).step_by(count);
            let Some(wire) = wires.find(|wire| wire.id == Some(output.connection)) else {
                continue;
            };
            if !output.bytes.is_empty() {
                wire.down.push_back(output.bytes.into());
            }
            if output.closes {
                wire.ended = true;
                wire.up.clear();
            }
        }
    }

    /// Delivers the node's next bytes to the client, or the end of the connection.
    pub fn deliver_to_client(&mut self, client: usize, node: usize) -> Checked {
        let (now, id) = (self.now, NodeId::new(node));
        match self.wire_mut(client, node).down.pop_front() {
            Some(message) => self.client_mut(client).core.handle_bytes(id, &message, now),
            None => self.lose(client, node),
        }
        self.settle(client)
    }

    /// A connection breaks, and its client notices that.
    pub fn cut(&mut self, client: usize, node: usize) -> Checked {
        self.lose(client, node);
        self.settle(client)
    }

    fn lose(&mut self, client: usize, node: usize) {
        let now = self.now;
        self.close(client, node);
        self.client_mut(client).core.handle_disconnected(NodeId::new(node), "", now);
    }

    /// Opens the connection that a client wants, and carries out the handshake. What the client
    /// sends afterwards is in flight.
    pub fn connect(&mut self, client: usize, node: usize) -> Checked {
        let (now, place) = (self.now, NodeId::new(node));
        let id = self.master_mut(node).connect();
        *self.wire_mut(client, node) = Wire { id: Some(id), ..Wire::default() };
        self.client_mut(client).core.handle_connected(place, now);
        self.settle(client)?;
        while !self.clients[client].core.node_state(place).is_usable() {
            assert!(!self.wire(client, node).up.is_empty(), "a handshake goes on");
            self.deliver_to_node(client, node);
            while !self.wire(client, node).down.is_empty() {
                self.deliver_to_client(client, node)?;
            }
        }
        // TIME belongs to the handshake, unless another request comes before it.
        if self.wire(client, node).up.front().is_some_and(|first| wire::is_time(first)) {
            self.deliver_to_node(client, node);
            self.deliver_to_client(client, node)?;
        }
        Ok(())
    }
}
