//! Nodes that are killed and start again: with their keys or without, as a copy of another node, or
//! promoted after they were a replica of another master.

use redlatch::proto::Instant;
use redlatch::testing::master::{Dump, Restart};

use crate::agenda::{Event, MILLI, SECOND};
use crate::faults::SEES_EVERY_PROMOTION;
use crate::network::Piece;
use crate::node::Node;
use crate::plan::Memory;
use crate::user::State;
use crate::world::World;

impl World {
    /// A node is killed, and starts again after a while.
    pub fn kill(&mut self, node: usize) {
        let until = self.agenda.now() + self.fault_length();
        self.kill_until(node, until);
    }

    /// A node is killed, and starts again at `until`.
    pub fn kill_until(&mut self, node: usize, until: u64) {
        self.trace.note(self.agenda.now(), || format!("FAULT kill node {node} until {until}"));
        let it = &mut self.nodes[node];
        if !it.down {
            it.killed_at = self.agenda.now();
        }
        it.down = true;
        it.down_until = it.down_until.max(until);
        // A stopped process that is killed ends at once, so it is not frozen any more.
        it.frozen_until = 0;
        self.agenda.put(it.down_until, Event::Start { node });
        self.drop_connections(node);
    }

    /// Ends a node's process: what it had not read is lost, and its peers learn of the end.
    fn drop_connections(&mut self, node: usize) {
        self.nodes[node].connections.clear();
        for wire in 0..self.network.wires.len() {
            let it = &mut self.network.wires[wire];
            if it.node != node || it.ended {
                continue;
            }
            it.ended = true;
            it.to_node.lose();
            it.backlog.clear();
            it.backlog_ends = false;
            if it.left || it.cut {
                continue;
            }
            it.cut = true;
            if self.dice.chance(300) {
                it.to_client.lose();
            }
            let at = self.agenda.now() + self.dice.below(MILLI);
            self.network.tell(wire, at, Piece::End("connection reset"), &mut self.agenda);
        }
    }

    /// A killed node starts again.
    pub fn start(&mut self, node: usize) {
        let now = self.agenda.now();
        let it = &mut self.nodes[node];
        if !it.down || now < it.down_until {
            return;
        }
        it.down = false;
        if let Some(dump) = it.restored.take() {
            return self.start_from(node, dump);
        }
        let (killed_at, keeps) = (it.killed_at, it.keeps_keys);
        let mut forgets = || if self.plan.directed { !keeps } else { self.dice.chance(500) };
        let empty = self.plan.memory != Memory::Kept && forgets();
        self.tally.restarts[usize::from(empty)] += 1;
        let promoted = std::mem::take(&mut self.nodes[node].replicates);
        let memory = if empty { Restart::Empty } else { Restart::WithData };
        let restart = |it: &mut Node, clock: Instant| {
            if promoted {
                it.master.promote(memory);
            } else {
                it.master.restart(clock, memory);
            }
            it.promoted = promoted || it.promoted && !empty;
        };
        if empty {
            self.forget_by(node, killed_at, restart);
        } else {
            let it = &mut self.nodes[node];
            restart(it, it.clock(now));
        }
        self.tally.promotions += u64::from(promoted);
        while self.nodes[node].master.poll_output().is_some() {}
        self.trace.note(now, || format!("node {node} is back: {memory:?}, promoted: {promoted}"));
    }

    /// Plans that a node starts again with the data of another one. Often a client that holds a
    /// lock cannot reach the node before that until its key there has expired.
    pub fn copy(&mut self, node: usize) -> bool {
        let from = self.dice.place(self.nodes.len());
        if from == node || self.nodes[node].down {
            return false;
        }
        let now = self.agenda.now();
        let client = self.dice.place(self.clients.len());
        let held = self.clients[client].users.iter().find_map(|user| match &user.state {
            State::Holding(held) => Some(self.checker.belief(held.belief).key),
            _ => None,
        });
        let (Some(key), Some(wire)) = (held, self.clients[client].wires[node]) else {
            self.copy_now(node, from);
            return true;
        };
        let by = self.nodes[node].left(now, &self.keys[key]) + self.dice.below(10 * MILLI);
        let by = by.min(300 * MILLI);
        self.trace.note(now, || format!("FAULT stall wire {wire} by {by} ns before a copy"));
        self.network.stall(wire, by + MILLI, &mut self.agenda);
        self.agenda.put(now + by, Event::Copy { node, from });
        true
    }

    /// Kills a running node, which starts again with the present data of another one. Often a third
    /// node falls silent, so that a majority needs this one.
    pub fn copy_now(&mut self, node: usize, from: usize) {
        if self.healed || self.nodes[node].down {
            return;
        }
        let longest = self.dice.weighted(&[(2, MILLI), (1, 20 * MILLI), (1, SECOND)]);
        let until = self.agenda.now() + self.dice.below(longest);
        self.copy_until(node, from, until);
        let third = self.dice.place(self.nodes.len());
        if third != node && third != from {
            self.freeze(third);
        }
    }

    /// Kills a node, which starts again at `until` with the present data of another one.
    pub fn copy_until(&mut self, node: usize, from: usize, until: u64) {
        self.trace.note(self.agenda.now(), || format!("FAULT node {node} is to copy node {from}"));
        self.nodes[node].restored = Some(self.nodes[from].master.dump());
        self.kill_until(node, until);
    }

    /// Starts a killed node with the data that another master saved. No client has a pending
    /// release for a key that comes back like this, so the key stays until its ttl is over.
    fn start_from(&mut self, node: usize, dump: Dump) {
        let now = self.agenda.now();
        let killed_at = self.nodes[node].killed_at;
        let before = self.nodes[node].texts(now);
        self.forget_by(node, killed_at, |it, clock| {
            it.master.restart_from(clock, dump);
            (it.promoted, it.copied) = (false, true);
        });
        while self.nodes[node].master.poll_output().is_some() {}
        let mut texts = self.nodes[node].texts(now);
        texts.retain(|text| !before.contains(text));
        self.excused.extend(texts.into_iter().map(|(key, text)| (node, key, text)));
        self.trace.note(now, || format!("node {node} is back, with the keys of another node"));
    }

    /// Makes a node a replica of another master for a while.
    pub fn demote(&mut self, node: usize) -> bool {
        let it = &mut self.nodes[node];
        if it.down || it.promoted && !SEES_EVERY_PROMOTION {
            return false;
        }
        it.replicates = true;
        self.kill(node);
        true
    }
}
