//! Brings about the faults, and ends them. The plan says which faults a world has, and how often.
//! Nodes that are killed and start again are in `restarts`.

use redlatch::NodeId;
use redlatch::proto::NodeState;
use redlatch::testing::master::Trouble;

use crate::agenda::{Event, MILLI, SECOND};
use crate::world::{World, coordinator};

/// Whether the coordinators notice a flush of a node that happened before they connected, or of
/// which the push was lost.
pub const SEES_OLD_FLUSHES: bool = true;

/// Whether the coordinators notice that a node was promoted that had been promoted before.
pub const SEES_EVERY_PROMOTION: bool = true;

/// What can go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A connection is cut.
    Cut,
    /// Nothing arrives on a connection for a while.
    Stall,
    /// A node is stopped for a while.
    Freeze,
    /// A node is killed, and starts again a while later.
    Kill,
    /// A client is stopped for a while.
    Stop,
    /// A node refuses commands for a while.
    Trouble,
    /// An intermediary turns a node's answers into errors for a while, though the node did what was
    /// asked.
    Lie,
    /// A node forgets the scripts.
    ForgetScripts,
    /// A node refuses connections for a while, and its open ones are cut.
    Refuse,
    /// A node becomes a replica for a while, and then a master with the data of another node.
    Promote,
    /// A node is killed, and starts again with the data that another one had saved.
    Copy,
    /// The clock of a node jumps.
    Jump,
    /// A client is killed, or ends in order, and a new process takes its place.
    Crash,
    /// A node is flushed by an operator.
    Flush,
    /// A node is flushed before it reads what is in flight to it, and another node falls silent.
    FlushFirst,
    /// An operator deletes a key on one node, while a majority still holds it.
    Delete,
    /// An operator deletes a key on all nodes, and then only one node at a time is healthy.
    Force,
}

/// A server's answer to a command that its user may not call.
const REFUSED: &str = "-NOPERM this user may not do that\r\n";
/// Commands of the handshake that some servers refuse.
const GREETING: [&str; 3] = ["info", "hello", "client|tracking"];

impl Kind {
    /// The faults that may come together with all others.
    pub const USUAL: [Kind; 10] = [
        Kind::Cut,
        Kind::Stall,
        Kind::Freeze,
        Kind::Kill,
        Kind::Stop,
        Kind::Trouble,
        Kind::Lie,
        Kind::ForgetScripts,
        Kind::Refuse,
        Kind::Delete,
    ];
}

impl World {
    /// Schedules the next fault.
    pub fn plan_fault(&mut self) {
        if self.plan.fault_pause > 0 {
            let at = self.agenda.now() + self.dice.below(self.plan.fault_pause);
            self.agenda.put(at, Event::Fault);
        }
    }

    /// Brings about a fault, and schedules the next one.
    pub fn bring_about_next_fault(&mut self) {
        if self.healed {
            return;
        }
        self.tally.faults += 1;
        let node = self.dice.place(self.nodes.len());
        let kind = self.dice.weighted(&self.plan.faults);
        if self.bring_about(kind, node) {
            self.tally.count_fault(kind);
        }
        self.plan_fault();
    }

    /// Brings about this fault; returns whether there was anything that it could happen to.
    fn bring_about(&mut self, kind: Kind, node: usize) -> bool {
        match kind {
            Kind::Cut => return self.cut_one(),
            Kind::Stall => return self.stall_one(),
            Kind::Freeze => self.freeze(node),
            Kind::Kill => self.kill(node),
            Kind::Stop => self.stop_one(),
            Kind::Trouble => self.trouble(node),
            Kind::Lie => self.turn_answers_into_errors(node),
            Kind::ForgetScripts => self.forget_scripts(node),
            Kind::Refuse => self.refuse(node),
            Kind::Promote => return self.demote(node),
            Kind::Copy => return self.copy(node),
            Kind::Jump => self.jump(node),
            Kind::Crash => self.crash_one(),
            Kind::Flush => return self.flush(node),
            Kind::FlushFirst => return self.flush_first(node),
            Kind::Delete => return self.delete_one(node),
            Kind::Force => return self.force_one(),
        }
        true
    }

    /// How long a fault lasts: a moment, about a node timeout, or long.
    pub fn fault_length(&mut self) -> u64 {
        let timeout = self.plan.node_timeout();
        let longest =
            self.dice.weighted(&[(3, 5 * MILLI), (4, 2 * timeout), (2, 300 * MILLI), (1, SECOND)]);
        self.dice.below(longest)
    }

    /// A wire that neither end has closed.
    fn any_wire(&mut self) -> Option<usize> {
        let wires = &self.network.wires;
        let live: Vec<usize> =
            (0..wires.len()).filter(|&at| !wires[at].left && !wires[at].cut).collect();
        (!live.is_empty()).then(|| live[self.dice.place(live.len())])
    }

    fn cut_one(&mut self) -> bool {
        let Some(wire) = self.any_wire() else { return false };
        self.trace.note(self.agenda.now(), || format!("FAULT cut wire {wire}"));
        self.network.cut(wire, &mut self.agenda, &mut self.dice);
        true
    }

    fn stall_one(&mut self) -> bool {
        let Some(wire) = self.any_wire() else { return false };
        let by = self.fault_length();
        self.trace.note(self.agenda.now(), || format!("FAULT stall wire {wire} by {by} ns"));
        self.network.stall(wire, by, &mut self.agenda);
        true
    }

    /// A node is stopped for a while.
    pub fn freeze(&mut self, node: usize) {
        let until = self.agenda.now() + self.fault_length();
        self.trace.note(self.agenda.now(), || format!("FAULT freeze node {node} until {until}"));
        let it = &mut self.nodes[node];
        it.frozen_until = it.frozen_until.max(until);
        self.agenda.put(it.frozen_until, Event::Thaw { node });
    }

    /// Sets a node's clock forward or back, by less than the end of a run waits for.
    fn jump(&mut self, node: usize) {
        let length = self.dice.weighted(&[(1, 10), (1, 300), (1, 2_000)]);
        let length = self.dice.below(length) as i64;
        let by = if self.dice.chance(500) { length } else { -length };
        self.trace.note(self.agenda.now(), || format!("FAULT clock of node {node} jumps {by} ms"));
        let it = &mut self.nodes[node];
        it.jumped = true;
        it.master.step_wall_clock(by);
    }

    /// A frozen node continues. It executes what has arrived: each connection's bytes in their
    /// order, one connection after the other in a random order.
    pub fn thaw(&mut self, node: usize) {
        let now = self.agenda.now();
        if self.nodes[node].is_frozen(now) || self.nodes[node].down {
            return;
        }
        self.trace.note(now, || format!("node {node} goes on"));
        let wires = &self.network.wires;
        let waits = |at: &usize| {
            let it = &wires[*at];
            it.node == node && !it.ended && (!it.backlog.is_empty() || it.backlog_ends)
        };
        let mut waiting: Vec<usize> = (0..wires.len()).filter(waits).collect();
        self.dice.shuffle(&mut waiting);
        for wire in waiting {
            let bytes = std::mem::take(&mut self.network.wires[wire].backlog);
            self.execute(wire, &bytes);
            if self.network.wires[wire].backlog_ends {
                self.end_at_node(wire);
            }
        }
    }

    fn stop_one(&mut self) {
        let client = self.dice.place(self.clients.len());
        let (now, by) = (self.agenda.now(), self.fault_length());
        self.trace.note(now, || format!("FAULT stop client {client} for {by} ns"));
        self.clients[client].stop(now, by);
    }

    /// Ends a client's process. Its kernel still sends what was written, or drops it. The next
    /// process knows nothing of the old one.
    fn crash_one(&mut self) {
        let (client, now) = (self.dice.place(self.clients.len()), self.agenda.now());
        let in_order = self.dice.chance(300);
        self.trace.note(now, || format!("FAULT client {client} ends, in order: {in_order}"));
        self.tally.crashes += 1;
        let mut left = Vec::new();
        for serial in std::mem::take(&mut self.clients[client].asked).into_keys() {
            self.checker.cancel(serial);
        }
        for user in &mut self.clients[client].users {
            if let Some(held) = user.die(now + self.dice.below(self.plan.rest)) {
                self.checker.end(now, held.belief);
                if let Some(keep) = &held.keep {
                    self.checker.cancel(keep.serial);
                }
                left.push((user.key, held.lock.token()));
            }
        }
        self.checker.end_acts_of(now, client);
        self.end_client(client, in_order);
        let successor = coordinator(&self.plan, now, &mut self.dice);
        self.clients[client].begin_anew(successor);
        let pause = self.dice.below(50 * MILLI);
        self.clients[client].stop(now, pause);
        self.rouse(client);
        for (key, token) in left {
            self.offer(key, token);
        }
    }

    fn trouble(&mut self, node: usize) {
        let (now, by) = (self.agenda.now(), self.fault_length());
        let answers = |reply: &str| Trouble::Answers {
            commands: ["set", "eval", "evalsha"].map(String::from).into(),
            reply: reply.as_bytes().into(),
        };
        let refuses = |command: &str, reply: &str| Trouble::Answers {
            commands: vec![command.into()],
            reply: reply.as_bytes().into(),
        };
        let number = self.dice.below(12);
        self.tally.troubles[number as usize] += 1;
        // `tally` names the troubles in this order.
        let trouble = match number {
            0 => Trouble::Loading,
            1 => Trouble::Busy,
            2 => Trouble::Misconf,
            3 => Trouble::NoReplicas,
            4 => Trouble::OutOfMemory,
            5 => answers("-ERR a proxy that is unknown\r\n"),
            6 => answers("$3\r\nyes\r\n"),
            7 => refuses("client|kill", REFUSED),
            8 => refuses("info", REFUSED),
            9 => refuses("hello", "-ERR unknown command 'HELLO'\r\n"),
            10 => refuses("client|tracking", REFUSED),
            _ => Trouble::TurnsAway("ERR max number of clients reached".into()),
        };
        // A client that does not know which server the node is cannot send CLIENT KILL there.
        let refuses_kill = match &trouble {
            Trouble::Busy => true,
            Trouble::Answers { commands, .. } => {
                commands[0] == "client|kill" || commands[0] == "info"
            }
            _ => false,
        };
        let greets = match &trouble {
            Trouble::Answers { commands, .. } => GREETING.contains(&&commands[0][..]),
            _ => false,
        };
        self.trace.note(now, || format!("FAULT trouble at node {node} for {by} ns: {trouble:?}"));
        let it = &mut self.nodes[node];
        it.ends_connections = it.ends_connections && !refuses_kill;
        it.master.suffer(trouble);
        it.troubled_until = it.troubled_until.max(now + by);
        self.agenda.put(it.troubled_until, Event::Recover { node });
        if greets && self.dice.chance(500) {
            self.cut_all(node);
        }
    }

    /// A node that was in trouble serves commands again.
    pub fn recover(&mut self, node: usize) {
        let it = &mut self.nodes[node];
        if it.troubled_until <= self.agenda.now() {
            it.master.serve();
        }
    }

    fn turn_answers_into_errors(&mut self, node: usize) {
        let until = self.agenda.now() + self.fault_length();
        self.trace.note(self.agenda.now(), || format!("FAULT node {node} lies until {until}"));
        self.nodes[node].lies_until = until;
    }

    /// An operator flushes the scripts of a node, or of all nodes one after the other.
    pub fn forget_scripts(&mut self, node: usize) {
        let now = self.agenda.now();
        let all = self.dice.chance(500);
        self.trace.note(now, || format!("FAULT node {node} forgets the scripts; all: {all}"));
        for (number, it) in self.nodes.iter_mut().enumerate() {
            if all || number == node {
                it.operate(now, b"SCRIPT FLUSH\r\n");
            }
        }
    }

    /// An operator flushes a node. If clients could not notice that later, this happens only while
    /// every client is connected and gets the push.
    pub fn flush(&mut self, node: usize) -> bool {
        let now = self.agenda.now();
        let runs = !self.nodes[node].down && !self.nodes[node].is_frozen(now);
        let told = self.clients.iter().all(|client| {
            let wire = client.wires[node].map(|wire| &self.network.wires[wire]);
            let state = client.coordinator.node_state(NodeId::new(node));
            // A silent connection counts as connected, because the push arrives when the node
            // answers again.
            (state.is_usable() || state == NodeState::Suspect)
                && wire.is_some_and(|wire| !wire.cut && !wire.ended)
        });
        if runs && (told || SEES_OLD_FLUSHES) {
            self.trace.note(now, || format!("FAULT node {node} is flushed"));
            self.tally.flushes += 1;
            self.forget_by(node, now, |it, _| it.operate(now, b"FLUSHALL\r\n"));
            self.deliver_answers(node);
        }
        runs && (told || SEES_OLD_FLUSHES)
    }

    /// A node is flushed while requests are in flight to it, and executes them after the flush.
    /// Often another node falls silent, so that a majority needs this one.
    fn flush_first(&mut self, node: usize) -> bool {
        let wires = &self.network.wires;
        let busy = |at: &usize| !wires[*at].to_node.is_empty() && !wires[*at].left;
        let busy: Vec<usize> = (0..wires.len()).filter(busy).collect();
        let node = match busy.len() {
            0 => node,
            more => wires[busy[self.dice.place(more)]].node,
        };
        let flushed = self.flush(node);
        let other = self.dice.place(self.nodes.len());
        if other != node {
            self.freeze(other);
        }
        flushed
    }

    fn refuse(&mut self, node: usize) {
        let until = self.agenda.now() + self.fault_length();
        self.trace.note(self.agenda.now(), || format!("FAULT node {node} refuses until {until}"));
        self.nodes[node].refuses_until = until;
        self.cut_all(node);
    }

    fn cut_all(&mut self, node: usize) {
        for wire in 0..self.network.wires.len() {
            if self.network.wires[wire].node == node {
                self.network.cut(wire, &mut self.agenda, &mut self.dice);
            }
        }
    }

    /// Ends all faults; from now on no new one begins.
    pub fn heal(&mut self) {
        let now = self.agenda.now();
        self.trace.note(now, || "HEAL".into());
        self.healed = true;
        let weather = &mut self.network.weather;
        (weather.late.0, weather.far.1) = (0, 0);
        // The answers may have been so slow that none came in time, so the network gets faster.
        weather.latency.1 = weather.latency.1.min(self.plan.node_timeout() / 5);
        weather.latency.0 = weather.latency.0.min(weather.latency.1);
        self.network.hurry(now + SECOND, &mut self.agenda);
        for node in 0..self.nodes.len() {
            let it = &mut self.nodes[node];
            let (was_down, was_frozen) = (it.down, it.is_frozen(now));
            (it.down_until, it.frozen_until) = (now, now);
            (it.refuses_until, it.troubled_until, it.lies_until) = (now, now, now);
            it.master.serve();
            if was_down {
                self.start(node);
            } else if was_frozen {
                self.thaw(node);
            }
        }
        for client in 0..self.clients.len() {
            self.wind_down(client);
            self.rouse(client);
        }
    }
}
