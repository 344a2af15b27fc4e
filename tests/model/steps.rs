//! Which steps a state allows, and what each does.

use std::time::Duration;

use redlatch::proto::Instant;
use redlatch::testing::master::Restart;

use crate::client::{KEY, LINE, Task};
use crate::network::Checked;
use crate::search;
use crate::step::Step;
use crate::time::{HORIZON, MILLISECOND, TTL};
use crate::wire::Wire;
use crate::world::World;

impl World {
    /// The steps that this state allows. The first one belongs to the quiet future: messages arrive
    /// and connections are opened before time passes.
    pub fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let late = self.orphans.iter().enumerate().filter(|(_, it)| !self.frozen[it.node]);
        steps.extend(late.map(|(orphan, _)| Step::Late { orphan: orphan as u8 }));
        self.add_messages(&mut steps);
        let frozen = (0..self.nodes.len()).filter(|&node| self.frozen[node]);
        steps.extend(frozen.map(|node| Step::Thaw { node: node as u8 }));
        let due = self.clients.iter().enumerate().filter(|(_, it)| self.is_due(it));
        steps.extend(due.clone().map(|(client, _)| Step::Turn { client: client as u8 }));
        let is_due = due.count() > 0;
        let may_pass = self.left.delays > 0 || !self.is_busy();
        let may_pass = may_pass && (self.left.frozen_moments > 0 || !self.has_frozen());
        if may_pass && self.next_moment().is_some() {
            match is_due {
                false => steps.push(Step::Time),
                true if self.left.stalls > 0 => steps.push(Step::Stall),
                true => {}
            }
        }
        self.add_requests(&mut steps);
        self.add_faults(&mut steps);
        steps
    }

    fn is_due(&self, client: &crate::client::Client) -> bool {
        client.core.next_timeout().is_some_and(|at| at <= self.now)
    }

    /// Whether anything is in flight, except to a stopped node.
    fn is_busy(&self) -> bool {
        let nodes = self.nodes.len();
        let wires = self.wires.iter().enumerate();
        let mut goes_on = wires.map(|(index, wire)| (wire, !self.frozen[index % nodes]));
        let busy = |(wire, goes_on): (&Wire, bool)| {
            let to_node = !wire.up.is_empty() || wire.wanted;
            !wire.down.is_empty() || wire.ended || (to_node && goes_on)
        };
        self.orphans.iter().any(|it| !self.frozen[it.node]) || goes_on.any(busy)
    }

    fn has_frozen(&self) -> bool {
        self.frozen.contains(&true)
    }

    fn add_messages(&self, steps: &mut Vec<Step>) {
        let places =
            || (0..self.clients.len()).flat_map(|c| (0..self.nodes.len()).map(move |n| (c, n)));
        for (client, node) in places() {
            let wire = self.wire(client, node);
            let (client, node) = (client as u8, node as u8);
            if !wire.down.is_empty() || wire.ended {
                steps.push(Step::ToClient { client, node });
            }
            let goes_on = !self.frozen[node as usize];
            if !wire.up.is_empty() && goes_on {
                steps.push(Step::ToNode { client, node });
            }
            if wire.wanted && goes_on {
                steps.push(Step::Connect { client, node });
            }
        }
    }

    fn add_requests(&self, steps: &mut Vec<Step>) {
        for (index, it) in self.clients.iter().enumerate() {
            let client = index as u8;
            if it.is_idle(self.now) {
                if self.left.acquires[index] > 0 {
                    steps.push(Step::Acquire { client });
                }
                if self.left.adopts > 0 && self.given.is_some() {
                    steps.push(Step::Adopt { client });
                }
            }
            if self.left.cancels > 0 && matches!(it.task, Task::Asking(_)) {
                steps.push(Step::Cancel { client });
            }
            if it.lock().is_none() || !it.believes_it_holds(self.now) {
                continue;
            }
            if self.left.extends > 0 && matches!(it.task, Task::Holding(_, None)) {
                steps.push(Step::Extend { client });
            }
            if self.left.releases > 0 {
                steps.push(Step::Release { client });
            }
            if self.left.hand_offs > 0 {
                steps.push(Step::HandOff { client });
            }
        }
    }

    fn add_faults(&self, steps: &mut Vec<Step>) {
        let clients = self.clients.len() as u8;
        for node in 0..self.nodes.len() as u8 {
            let connected = |client: &u8| self.wire(*client as usize, node as usize).id.is_some();
            if self.left.cuts > 0 {
                let cuts = (0..clients).filter(connected);
                steps.extend(cuts.map(|client| Step::Cut { client, node }));
            }
            let goes_on = !self.frozen[node as usize];
            if self.left.freezes > 0 && goes_on {
                steps.push(Step::Freeze { node });
            }
            if self.left.restarts > 0 && goes_on {
                steps.extend([true, false].map(|empty| Step::Restart { node, empty }));
            }
            if self.left.copies > 0 {
                let others = (0..self.nodes.len() as u8).filter(|&from| from != node);
                steps.extend(others.map(|from| Step::Copy { node, from }));
            }
            if self.left.flushes > 0 {
                steps.push(Step::Flush { node });
            }
            if self.left.deletes > 0
                && self.nodes[usize::from(node)].get(self.now, 0, KEY).is_some()
            {
                steps.push(Step::Delete { node });
            }
            if self.left.forgotten_scripts > 0 {
                steps.push(Step::ForgetScripts { node });
            }
        }
    }

    /// The next moment at which a timer is due, a key expires, or a caller stops believing.
    pub fn next_moment(&self) -> Option<Instant> {
        let timers = self.clients.iter().filter_map(|client| client.core.next_timeout());
        let beliefs = self.clients.iter().filter_map(|client| client.believes_until);
        let keys = self.nodes.iter().flat_map(|master| [KEY, LINE].map(|key| (master, key)));
        let keys = keys.filter_map(|(master, key)| match master.pttl(self.now, 0, key) {
            left @ 0.. => Some(self.now.saturating_add(Duration::from_millis(left as u64))),
            _ => None,
        });
        let all = timers.chain(beliefs).chain(keys).filter(|&at| at > self.now);
        let next = all.min().filter(|&at| at.saturating_since(self.now) < HORIZON)?;
        // Time moves in whole milliseconds, so an event may come up to a millisecond late.
        Some(Instant::from_nanos(next.as_nanos().next_multiple_of(MILLISECOND)))
    }

    /// Takes a step. The error is a violation.
    pub fn take(&mut self, step: Step) -> Checked {
        let now = self.now;
        match step {
            Step::ToNode { client, node } => self.deliver_to_node(client.into(), node.into()),
            Step::ToClient { client, node } => {
                return self.deliver_to_client(client.into(), node.into());
            }
            Step::Late { orphan } => self.deliver_late(orphan.into()),
            Step::Connect { client, node } => return self.connect(client.into(), node.into()),
            Step::Turn { client } => {
                self.client_mut(client.into()).core.handle_timeout(now);
                return self.settle(client.into());
            }
            Step::Time | Step::Stall => {
                self.left.stalls -= u8::from(step == Step::Stall);
                self.left.delays -= u8::from(self.is_busy());
                self.left.frozen_moments -= u8::from(self.has_frozen());
                self.now = self.next_moment().expect("something is to come");
            }
            Step::Settle => return self.settle_all(),
            Step::Acquire { client }
            | Step::Cancel { client }
            | Step::Extend { client }
            | Step::Release { client }
            | Step::HandOff { client }
            | Step::Adopt { client } => {
                self.request(step, client.into());
                return self.settle(client.into());
            }
            Step::Cut { client, node } => {
                self.left.cuts -= 1;
                return self.cut(client.into(), node.into());
            }
            Step::Restart { node, empty } => self.restart(node.into(), empty),
            Step::Copy { node, from } => self.copy(node.into(), from.into()),
            Step::Freeze { node } => {
                self.left.freezes -= 1;
                self.frozen[usize::from(node)] = true;
            }
            Step::Thaw { node } => self.frozen[usize::from(node)] = false,
            Step::Flush { node } => {
                self.left.flushes -= 1;
                self.note_forgot(node.into());
                self.note_flushed(node.into());
                self.operate(node.into(), b"FLUSHALL\r\n");
            }
            Step::Delete { node } => {
                self.left.deletes -= 1;
                self.operate(node.into(), b"DEL k\r\n");
            }
            Step::ForgetScripts { node } => {
                self.left.forgotten_scripts -= 1;
                self.operate(node.into(), b"SCRIPT FLUSH\r\n");
            }
        }
        Ok(())
    }

    fn settle_all(&mut self) -> Checked {
        let arrives = |step: &Step| search::is_quiet(*step) && *step != Step::Time;
        while let Some(&step) = self.steps().first().filter(|step| arrives(step)) {
            self.take(step)?;
        }
        Ok(())
    }

    fn request(&mut self, step: Step, client: usize) {
        let now = self.now;
        let given = self.given.clone();
        let highest = self.fences.iter().max().copied();
        match step {
            Step::Acquire { .. } => self.left.acquires[client] -= 1,
            Step::Cancel { .. } => self.left.cancels -= 1,
            Step::Extend { .. } => self.left.extends -= 1,
            Step::Release { .. } => self.left.releases -= 1,
            Step::HandOff { .. } => self.left.hand_offs -= 1,
            _ => self.left.adopts -= 1,
        }
        let it = self.client_mut(client);
        match (step, &it.task) {
            (Step::Acquire { .. }, _) => {
                it.given_before = highest;
                it.acquire(now);
            }
            (Step::Adopt { .. }, _) => it.adopt(given.expect("a lock was given away"), now),
            (Step::Cancel { .. }, &Task::Asking(op)) => {
                it.core.cancel(op, now);
                it.task = Task::Idle;
            }
            (Step::Extend { .. }, Task::Holding(lock, None)) => {
                let lock = lock.alias();
                let op = it.core.extend(&lock, TTL, 0, now).expect("the lock is held");
                it.task = Task::Holding(lock, Some(op));
            }
            (Step::Release { .. }, _) => {
                let lock = it.remove_held_lock(now);
                it.task = Task::Releasing(it.core.release(lock, 0, now));
            }
            (Step::HandOff { .. }, _) => {
                let lock = it.remove_held_lock(now);
                self.given = it.core.into_token(lock, now);
            }
            (step, task) => unreachable!("{step} in {task:?}"),
        }
    }

    fn restart(&mut self, node: usize, empty: bool) {
        self.left.restarts -= 1;
        let now = self.now;
        if empty {
            self.note_forgot(node);
        }
        let memory = if empty { Restart::Empty } else { Restart::WithData };
        self.master_mut(node).restart(now, memory);
        self.send_output(node);
    }

    /// Starts a node again with another node's data. No client has a pending release for a key that
    /// came with it, so the key stays until its ttl is over.
    fn copy(&mut self, node: usize, from: usize) {
        self.left.copies -= 1;
        let (now, data) = (self.now, self.nodes[from].dump());
        self.note_forgot(node);
        self.master_mut(node).restart_from(now, data);
        self.send_output(node);
        self.flushed[node] = None;
        self.copied[node] = Some(self.holder_at(node).map(|(token, _)| token));
    }

    /// An operator sends a node a command, on a connection of its own.
    pub fn operate(&mut self, node: usize, command: &[u8]) {
        let (now, master) = (self.now, self.master_mut(node));
        let id = master.connect();
        master.handle_bytes(now, id, command);
        self.send_output(node);
        self.master_mut(node).disconnect(id);
    }
}
