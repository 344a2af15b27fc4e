//! On how many nodes each belief rests: the ledger is kept here, and beliefs are judged by it.

use redlatch::proto::Instant;

use crate::node::Node;
use crate::world::World;

/// The ttl that the nodes report is rounded down to whole milliseconds.
const ROUNDED: u64 = crate::agenda::MILLI;

impl World {
    /// A node is about to execute something: keys that ended by themselves are gone.
    pub fn note_what_is_absent(&mut self, number: usize) {
        let node = &self.nodes[number];
        let clock = node.clock(self.agenda.now());
        for (key, name) in self.keys.iter().enumerate() {
            if node.master.get(clock, 0, name).is_none() {
                self.ledger.clear_key(number, key);
            }
        }
    }

    /// A node has executed something.
    pub fn note_what_is_there(&mut self, number: usize) {
        let now = self.agenda.now();
        let node = &self.nodes[number];
        let clock = node.clock(now);
        for (key, name) in self.keys.iter().enumerate() {
            self.ledger.set_key(now, number, key, node.master.get(clock, 0, name));
        }
        self.look_whether_forced_came_back(number);
    }

    /// Lets a node forget all its keys; it may have those of another node then. It has executed
    /// nothing since `at`: a key that it has or grants after that may stand in the place of another
    /// client's as long as a lock of that moment may be believed in.
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

    /// Whether a node supports a token up to that moment.
    pub fn supports(&self, number: usize, key: usize, token: &[u8], until: u64) -> bool {
        let now = self.agenda.now();
        let (node, name) = (&self.nodes[number], &self.keys[key]);
        let there = node.holds(now, name, token)
            && self.ledger.is_certain(now, number, key, token)
            && now + node.left(now, name) + ROUNDED >= until;
        there || self.ledger.has_forgotten(number, key, token, until)
    }

    /// The nodes that support a token up to that moment.
    pub fn supporters(&self, key: usize, token: &[u8], until: u64) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&node| self.supports(node, key, token, until)).collect()
    }

    /// Looks whether a lock that a user believes in rests on a majority of the nodes. The promise
    /// depends on that, so this finds a fault before two users hold one lock.
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
            self.checker.violate(format!(
                "{who:?} believes in key {key} up to {until} ns, which rests on nodes {on:?} of \
                 {nodes}"
            ));
        }
    }
}
