//! Keeps the ledger, and judges by it on how many nodes each belief rests.

use redlatch::proto::Instant;

use crate::node::Node;
use crate::world::World;

/// Nodes round the ttl down to whole milliseconds.
const ROUNDED: u64 = crate::agenda::MILLI;

impl World {
    /// Called before a node executes something: notes which keys have expired.
    pub fn note_what_is_absent(&mut self, number: usize) {
        let node = &self.nodes[number];
        let clock = node.clock(self.agenda.now());
        for (key, name) in self.keys.iter().enumerate() {
            if node.master.get(clock, 0, name).is_none() {
                self.ledger.clear_key(number, key);
            }
        }
    }

    /// Called after a node executed something: notes the tokens at its keys.
    pub fn note_what_is_there(&mut self, number: usize) {
        let now = self.agenda.now();
        let node = &self.nodes[number];
        let clock = node.clock(now);
        for (key, name) in self.keys.iter().enumerate() {
            self.ledger.set_key(now, number, key, node.master.get(clock, 0, name));
        }
        self.note_forced_that_came_back(number);
    }

    /// Lets `cause` take all keys from a node, which may then have those of another node. The node
    /// executed nothing between `at` and now. A key that it has or grants later may stand in
    /// another key's place for as long as a lock of that moment may be believed in.
    pub fn forget_by(&mut self, number: usize, at: u64, cause: impl FnOnce(&mut Node, Instant)) {
        let now = self.agenda.now();
        self.note_what_is_absent(number);
        let node = &mut self.nodes[number];
        let clock = node.clock(now);
        let token = |node: &Node, name: &Vec<u8>| node.master.get(clock, 0, name).map(Vec::from);
        let before: Vec<_> =
            self.keys.iter().map(|name| (token(node, name), node.left(now, name))).collect();
        cause(node, clock);
        for (key, (name, (before, left))) in self.keys.iter().zip(before).enumerate() {
            if let Some(before) = before {
                let (expires, after) = (now + left + ROUNDED, token(node, name));
                self.ledger.forget(now, (number, key), &before, expires, after.as_deref());
            }
        }
        self.ledger.lose_memory(at, number);
        self.note_what_is_there(number);
    }

    /// Whether a node supports a token up to `until`: see `ledger`.
    pub fn supports(&self, number: usize, key: usize, token: &[u8], until: u64) -> bool {
        let now = self.agenda.now();
        let (node, name) = (&self.nodes[number], &self.keys[key]);
        let there = node.holds(now, name, token)
            && self.ledger.is_certain(now, number, key, token)
            && now + node.left(now, name) + ROUNDED >= until;
        there || self.ledger.has_forgotten(number, key, token, until)
    }

    /// The nodes that support a token up to `until`.
    pub fn supporters(&self, key: usize, token: &[u8], until: u64) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&node| self.supports(node, key, token, until)).collect()
    }

    /// Checks that a lock that a user believes in rests on a majority of the nodes. If it does not,
    /// two users may hold it later; this finds the fault before that.
    pub fn probe(&mut self, number: usize) {
        let now = self.agenda.now();
        let belief = self.checker.belief(number);
        if now >= belief.until || belief.forced || !self.plan.memory.excludes() {
            return;
        }
        let (who, until, nodes) = (belief.who, belief.until, self.nodes.len());
        let rests_on = |key| (key, self.supporters(key, &belief.token, until));
        let weak = belief.keys().map(rests_on).find(|(_, on)| 2 * on.len() <= nodes);
        if let Some((key, on)) = weak {
            self.checker.report(format!(
                "{who:?} believes in key {key} up to {until} ns, which rests on nodes {on:?} of \
                 {nodes}"
            ));
        }
    }
}
