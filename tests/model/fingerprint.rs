//! The fingerprint of a state. The nodes are interchangeable, so each node has a hash with
//! everything that refers to it, and these hashes are sorted.

use redlatch::NodeId;
use redlatch::proto::LockToken;
use redlatch::proto::fingerprint::{Fingerprint, Names, hash_of, mix};
use redlatch::testing::master::ConnectionId;

use crate::bounds::Bounds;
use crate::client::{Client, Task};
use crate::names;
use crate::time::quarantine;
use crate::wire::{Message, message_word};
use crate::world::World;

/// The wall clock of a master at time zero, in Unix microseconds, as `testing::master` has it.
pub const WALL_CLOCK_MICROS: u64 = 1_700_000_000_000_000;

impl Names for World {
    fn text(&self, text: &[u8]) -> u64 {
        names::name(text, &|client| self.clients[client].drawn())
    }

    fn said(&self, text: &[u8]) -> u64 {
        names::said(text, &|client| self.clients[client].drawn())
    }

    fn connection(&self, node: NodeId, number: i64) -> u64 {
        let id = self.nodes[node.index()].connection_of(number);
        id.and_then(|id| self.label(node.index(), id)).map_or(0, |label| 1 + label)
    }

    fn time_matters(&self) -> bool {
        self.has_lost_counters
    }
}

impl World {
    pub fn fingerprint(&self) -> u64 {
        let time = self.has_lost_counters.then_some(self.now);
        let mut whole = hash_of(&(self.left_that_matters(), &self.fences, time));
        let mut nodes = vec![0; self.nodes.len()];
        for client in &self.clients {
            let mut part = Fingerprint::new(self.now, self);
            client.core.add_to(&mut part);
            part.add(client_word(client, &part));
            let (all, each) = part.parts();
            whole = mix(whole, all);
            nodes.iter_mut().zip(each).for_each(|(node, &word)| *node = mix(*node, word));
        }
        let given = self.given.as_ref().map_or(0, |token| 1 + self.text(token.digits()));
        whole = mix(whole, given);
        let mut part = Fingerprint::new(self.now, self);
        for (index, master) in self.nodes.iter().enumerate() {
            let node = NodeId::new(index);
            let label = |id: ConnectionId| self.label(index, id);
            master.add_to(node, quarantine(), &label, &mut part);
            let forgot = self.forgotten_at(index);
            let forgot =
                forgot.map_or(0, |it| mix(self.text(it.token.digits()), part.ahead(it.until)));
            part.add_at(node, forgot);
            part.add_at(node, self.flushed_word(index));
            part.add_at(node, u64::from(self.frozen[index]));
            part.add_at(node, self.copied_word(index));
            self.add_wires(index, &mut part);
        }
        let (_, each) = part.parts();
        nodes.iter_mut().zip(each).for_each(|(node, &word)| *node = mix(*node, word));
        nodes.sort_unstable();
        nodes.into_iter().fold(whole, mix)
    }

    /// The bounds that still make a difference. If no caller can have a request or a lock any more,
    /// those for its use make none, and if no node can be stopped any more, that for the length of
    /// stops makes none.
    fn left_that_matters(&self) -> Bounds {
        let mut left = self.left;
        if left.freezes == 0 && !self.frozen.contains(&true) {
            left.frozen_moments = 0;
        }
        let asks = |client: &Client| matches!(client.task, Task::Asking(_));
        let may_ask = left.acquires.iter().any(|&count| count > 0)
            || (left.adopts > 0 && (self.given.is_some() || left.hand_offs > 0))
            || self.clients.iter().any(|client| asks(client));
        if !may_ask {
            left.cancels = 0;
        }
        if !may_ask && self.clients.iter().all(|client| client.lock().is_none()) {
            (left.extends, left.releases, left.hand_offs, left.adopts) = (0, 0, 0, 0);
        }
        left
    }

    /// The key that a flush took from the node, and whether its holder has won an extend.
    fn flushed_word(&self, node: usize) -> u64 {
        let Some(token) = &self.flushed[node] else { return 0 };
        let client = names::client_of(token).expect("a client drew it");
        mix(1 + self.text(token.digits()), u64::from(self.clients[client].extended > 0))
    }

    /// Whether the node is a copy, because its marker may then be another node's; and whose key
    /// came with the copy.
    fn copied_word(&self, node: usize) -> u64 {
        let token = |it: &LockToken| self.text(it.digits());
        self.copied[node].as_ref().map_or(0, |key| 1 + key.as_ref().map_or(0, token))
    }

    /// The name of a connection of a node that is still in use.
    fn label(&self, node: usize, id: ConnectionId) -> Option<u64> {
        let clients = 0..self.clients.len();
        let wire = clients.clone().find(|&client| self.wire(client, node).id == Some(id));
        let orphan = || self.orphans.iter().position(|it| it.node == node && it.id == id);
        wire.map(|client| client as u64).or_else(|| orphan().map(|orphan| 100 + orphan as u64))
    }

    fn add_wires(&self, node: usize, part: &mut Fingerprint<'_>) {
        let id = NodeId::new(node);
        let now = WALL_CLOCK_MICROS + self.now.as_nanos() / 1000;
        let limit = if self.has_lost_counters { u64::MAX } else { quarantine().as_micros() as u64 };
        let kill = |number| self.connection(id, number);
        let word = |message: &Message| message_word(message, now, limit, self, &kill);
        for client in 0..self.clients.len() {
            let wire = self.wire(client, node);
            let flags = [wire.id.is_some(), wire.ended, wire.wanted];
            part.add_at(id, hash_of(&(flags, wire.up.len(), wire.down.len())));
            wire.up.iter().chain(&wire.down).for_each(|message| part.add_at(id, word(message)));
        }
        for orphan in self.orphans.iter().filter(|it| it.node == node) {
            part.add_at(id, mix(900 + orphan.client as u64, orphan.up.len() as u64));
            orphan.up.iter().for_each(|message| part.add_at(id, word(message)));
        }
    }
}

fn client_word(client: &Client, part: &Fingerprint<'_>) -> u64 {
    let task = match &client.task {
        Task::Idle => 1,
        Task::Asking(_) => 2,
        Task::Holding(lock, extend) => {
            // The handle of a lock that is over makes no difference to any future.
            let held = client.core.deadline(lock).is_some() || extend.is_some();
            if held || client.believes_it_holds(part.now()) {
                3 + u64::from(extend.is_some())
            } else {
                1
            }
        }
        Task::Releasing(_) => 5,
    };
    let before = client.given_before.filter(|_| matches!(client.task, Task::Asking(_)));
    let task = mix(task, before.unwrap_or_default());
    mix(task, client.believes_until.map_or(0, |until| part.ahead(until)))
}
