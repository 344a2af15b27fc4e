//! Operators who delete the keys of held locks, without their owners' knowledge.
//!
//! A deletion on a minority of the nodes does no harm: the owner still has a majority, and heals
//! the key or never notices. A deletion on all nodes breaks the lock, and another client may have
//! it at once. Then the lock must not come back, and its owner must stop believing in it once
//! enough nodes have answered that it is gone. These answers may come one by one, so for a while
//! only one node at a time is healthy.

use std::collections::{BTreeMap, BTreeSet};

use redlatch::NodeId;
use redlatch::proto::sets::ACQUIRE;
use redlatch::testing::master::Trouble;

use crate::agenda::{Event, Turn};
use crate::user::{Held, State};
use crate::world::World;

/// A lock whose key an operator deleted on all nodes.
#[derive(Debug)]
pub struct Forced {
    client: usize,
    belief: usize,
    key: Vec<u8>,
    token: Vec<u8>,
    /// The nodes, and on which wires, that were since asked for the lock and will answer that it is
    /// gone.
    asked: BTreeMap<usize, usize>,
    /// The nodes whose answer the client has read.
    told: BTreeSet<usize>,
}

impl World {
    /// Draws a user that believes in a lock, whose client has no request in flight that could
    /// change what the nodes hold. Returns the client and the user.
    fn a_quiet_lock(&mut self) -> Option<(usize, usize)> {
        let client = self.dice.place(self.clients.len());
        let user = self.dice.place(self.plan.users);
        let it = &self.clients[client];
        let State::Holding(held) = &it.users[user].state else { return None };
        let quiet = (0..self.nodes.len()).all(|n| it.coordinator.unanswered(NodeId::new(n)) == 0);
        let belief = self.checker.belief(held.belief);
        let good = quiet && !it.gone && self.agenda.now() < belief.until && !belief.forced;
        good.then_some((client, user))
    }

    fn held_by(&self, client: usize, user: usize) -> Option<&Held> {
        match &self.clients[client].users[user].state {
            State::Holding(held) => Some(held),
            _ => None,
        }
    }

    /// An operator deletes a key on one node, if the owner still has a majority without it for as
    /// long as it believes in the lock.
    pub fn delete_one(&mut self, node: usize) -> bool {
        let now = self.agenda.now();
        let Some((client, user)) = self.a_quiet_lock() else { return false };
        let Some(held) = self.held_by(client, user) else { return false };
        let number = held.belief;
        let belief = self.checker.belief(number);
        let key = &self.keys[belief.key];
        // The node reports its ttl rounded down, so a healed key may seem to expire early.
        let good = |at: usize| {
            now + self.nodes[at].left(now, key) >= belief.until
                && self.supports(at, belief.key, &belief.token, belief.until)
        };
        let others = (0..self.nodes.len()).filter(|&at| at != node && good(at)).count();
        let it = &self.nodes[node];
        let reachable = !it.down && !it.is_frozen(now) && it.holds(now, key, &belief.token);
        if 2 * others > self.nodes.len() && reachable {
            let (key, token) = (key.clone(), belief.token.clone());
            self.delete_at(node, &key);
            // A node in trouble may have refused the deletion.
            if !self.nodes[node].holds(now, &key, &token) {
                self.checker.delete(number, false);
                self.tally.deleted += 1;
                return true;
            }
        }
        false
    }

    fn delete_at(&mut self, node: usize, key: &[u8]) {
        let now = self.agenda.now();
        let text = String::from_utf8_lossy(key);
        self.trace.note(now, || format!("FAULT \"{text}\" is deleted at node {node}"));
        let command = format!("DEL \"{text}\"\r\n");
        self.nodes[node].operate(now, command.as_bytes());
        self.deliver_answers(node);
    }

    /// An operator deletes the key of a lock that a user believes in on all nodes, and then only
    /// one node at a time is healthy.
    pub fn force_one(&mut self) -> bool {
        let now = self.agenda.now();
        let Some((client, user)) = self.a_quiet_lock() else { return false };
        let Some(held) = self.held_by(client, user) else { return false };
        let number = held.belief;
        let belief = self.checker.belief(number);
        let (key, token) = (self.keys[belief.key].clone(), belief.token.clone());
        // A node that loads its data would refuse the command.
        let loads = self.nodes.iter().any(|node| node.is_loading);
        // A request on an earlier connection that is not executed yet may bring the key back.
        let pending = self.network.wires.iter().any(|wire| {
            wire.client == client && !(wire.to_node.is_empty() && wire.backlog.is_empty())
        });
        if loads || pending {
            return false;
        }
        let on: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| self.nodes[node].holds(now, &key, &token))
            .collect();
        for node in on {
            self.delete_at(node, &key);
        }
        self.checker.delete(number, true);
        self.tally.forced += 1;
        let (asked, told) = (BTreeMap::new(), BTreeSet::new());
        self.forced.push(Forced { client, belief: number, key, token, asked, told });
        let length = self.plan.node_timeout() + self.dice.below(self.plan.node_timeout());
        let left = self.dice.place(3 * self.nodes.len());
        let first = Turn { node: self.dice.place(self.nodes.len()), left, length };
        self.take_turn(first);
        true
    }

    /// The next node is the only healthy one.
    pub fn take_turn(&mut self, turn: Turn) {
        let now = self.agenda.now();
        let over = turn.left == 0 || self.healed;
        self.trace.note(now, || format!("FAULT only node {} is well: {}", turn.node, !over));
        for (number, node) in self.nodes.iter_mut().enumerate() {
            node.master.serve();
            node.is_loading = !over && number != turn.node;
            if node.is_loading {
                node.master.suffer(Trouble::Loading);
            }
        }
        if !over {
            let node = (turn.node + 1) % self.nodes.len();
            let next = Turn { node, left: turn.left - 1, ..turn };
            self.agenda.put(now + turn.length, Event::Turn(next));
        }
    }

    /// Called before a node executes a request. Notes the node if its answer will be that a lock is
    /// gone which an operator took away. A command in pieces does not count, because it may be
    /// another node's turn when its end arrives.
    pub fn note_absent(&mut self, wire: usize, bytes: &[u8]) {
        if self.forced.is_empty() {
            return;
        }
        let now = self.agenda.now();
        let it = &self.network.wires[wire];
        let node = &self.nodes[it.node];
        for forced in self.forced.iter_mut().filter(|forced| forced.client == it.client) {
            let has = |words: &[u8]| bytes.windows(words.len()).any(|part| part == words);
            let token = bytes.windows(forced.token.len()).position(|part| part == forced.token);
            // These three line ends follow the token, the length of the ttl, and the ttl.
            let whole = token.is_some_and(|at| {
                bytes[at..].windows(2).filter(|part| part == b"\r\n").count() >= 3
            });
            let gone = !node.is_loading && !node.holds(now, &forced.key, &forced.token);
            let acquires = has(b"\r\nNX\r\n") || has(ACQUIRE.sha1.as_bytes());
            if gone && whole && has(b"EVALSHA") && !acquires {
                forced.asked.insert(it.node, wire);
            }
        }
    }

    /// Called after a node executed a request: it may have handed the key over to a lock that was
    /// taken away, whose waiter was still in line.
    pub fn note_forced_that_came_back(&mut self, number: usize) {
        let (now, node) = (self.agenda.now(), &self.nodes[number]);
        for forced in &mut self.forced {
            if node.holds(now, &forced.key, &forced.token) {
                forced.told.remove(&number);
                forced.asked.remove(&number);
            }
        }
    }

    /// Called when a client has read an answer of a node. If too many nodes have answered that a
    /// lock is gone, the client must not believe in it.
    pub fn check_forced(&mut self, client: usize, node: usize, wire: usize) {
        let spare = (self.nodes.len() - 1) / 2;
        let it = &self.clients[client];
        let read = it.coordinator.unanswered(NodeId::new(node)) == 0;
        for forced in self.forced.iter_mut().filter(|forced| forced.client == client) {
            if !read || forced.asked.get(&node) != Some(&wire) {
                continue;
            }
            forced.told.insert(node);
            let holds = it.users.iter().any(|user| match &user.state {
                State::Holding(held) if held.belief == forced.belief => {
                    it.coordinator.deadline(&held.lock).is_some()
                }
                _ => false,
            });
            if holds && forced.told.len() > spare {
                let told = &forced.told;
                let words = format!(
                    "client {client} got the answer from nodes {told:?} that it lost a lock"
                );
                self.checker.report(format!("{words}, and believes in it"));
            }
        }
    }
}
