//! The end of a run: all faults are over and no user wants a lock. A key that is left now is a
//! leak, and each client has to be able to take every key.

use std::time::Duration;

use redlatch::proto::Coordinator;
use redlatch::proto::NODE_MARKER;
use redlatch::proto::NodeState;
use redlatch::proto::RestartGuard;
use redlatch::proto::line_key;
use redlatch::proto::turn;
use redlatch::{
    Error, Inspection, KeySummary, Lock, NodeError, NodeId, NodeReply, Outcome, ReleaseOutcome,
    Value, proto::Instant,
};

use crate::agenda::{MILLI, SECOND};
use crate::client::instant;
use crate::node::Node;
use crate::user::{Purpose, Wish};
use crate::world::World;

/// After this time the lines have expired that dead clients left.
const LINES: u64 = 11 * SECOND;

/// Within this time every client has a moment with room at all nodes, even if its probes fill them.
const ROOM: u64 = 10 * SECOND;

impl World {
    /// Checks that no request, pending release, queued waiter or wait is left, and no key on any
    /// node.
    pub fn check_that_nothing_is_left(&mut self) {
        self.checker.check_all_answered();
        for client in 0..self.clients.len() {
            self.wait_for_answers(client);
            let it = &self.clients[client].coordinator;
            let nodes: Vec<NodeId> = (0..self.nodes.len()).map(NodeId::new).collect();
            let sum = |count: &dyn Fn(NodeId) -> usize| -> usize {
                nodes.iter().map(|&node| count(node)).sum()
            };
            let counts = [
                ("open records", it.open_records()),
                ("open requests", it.open_ops()),
                ("kept locks", it.auto_extended_locks()),
                ("pending releases", sum(&|node| it.pending_releases(node))),
                ("nodes not ready", sum(&|node| usize::from(!it.node_state(node).is_usable()))),
            ];
            for (what, count) in counts {
                if count > 0 {
                    self.checker.report(format!("client {client} is left with {count} {what}"));
                }
            }
            self.check_timers(client);
        }
        self.check_that_no_key_is_left();
    }

    /// Checks that each client has only these timers: for each node that of the next probe, and for
    /// each node in quarantine that of its end. A probe also sets a timer for a silent node, which
    /// runs for a node timeout. So a moment without such a timer comes within as many node timeouts
    /// as there are nodes, unless probes are frequent: then these timers are allowed.
    fn check_timers(&mut self, client: usize) {
        let nodes = self.nodes.len();
        let often = self.plan.settings.probe_interval <= 10 * self.plan.settings.node_timeout;
        let looks = if often { nodes } else { 0 };
        let end = self.agenda.now() + (nodes as u64 + 1) * self.plan.node_timeout() + 5 * MILLI;
        self.wait_until(end, |world| {
            let it = &world.clients[client].coordinator;
            let quarantined = (0..nodes)
                .filter(|&n| matches!(it.node_state(NodeId::new(n)), NodeState::Quarantined(_)))
                .count();
            let (left, known) = (it.open_timers(), nodes + quarantined);
            let good = (known..=known + looks).contains(&left);
            (!good).then(|| format!("client {client} is left with {left} timers, not {known}"))
        });
    }

    /// Lets time pass until no complaint is left. The complaint that is left at `end` is a
    /// violation.
    fn wait_until(&mut self, end: u64, complaint: impl Fn(&World) -> Option<String>) {
        while let Some(words) = complaint(self) {
            if self.agenda.now() >= end {
                return self.checker.report(words);
            }
            self.run_until(self.agenda.now() + MILLI);
            if !self.count_event() {
                return;
            }
        }
    }

    /// Waits until each node has answered all requests for a moment: probes may follow at any time.
    fn wait_for_answers(&mut self, client: usize) {
        for node in 0..self.nodes.len() {
            self.wait_until(self.agenda.now() + 100 * MILLI, |world| {
                let owes = world.clients[client].coordinator.unanswered(NodeId::new(node)) > 0;
                owes.then(|| format!("node {node} owes client {client} an answer"))
            });
        }
    }

    /// Waits until no node is full for this client. Some worlds have limits so small that probes
    /// fill them. A full node is not asked and counts as silent, but a lock on a bare majority is
    /// found only if every node is asked.
    fn wait_for_room(&mut self, client: usize) {
        self.wait_until(self.agenda.now() + ROOM, |world| {
            let is_full = world.is_some_node_full(client);
            is_full.then(|| format!("client {client} never has room at all nodes"))
        });
    }

    fn is_some_node_full(&self, client: usize) -> bool {
        let now = instant(self.agenda.now());
        let report = self.clients[client].coordinator.report_node_states(now);
        report.nodes.iter().any(|node| node.reply == NodeReply::Failed(NodeError::Full))
    }

    /// Checks that no line has a token of a client that runs, and waits until the lines of dead
    /// clients have expired.
    pub fn check_lines(&mut self) {
        // A copied node also has the lines of its original, so it is left out.
        let judged = |node: &Node| node.ends_connections && !node.copied;
        for (number, node) in self.nodes.iter().enumerate().filter(|(_, node)| judged(node)) {
            let clock = node.clock(self.agenda.now());
            for key in &self.keys {
                for member in node.master.line(clock, &line_key(key)) {
                    let channel = member.split(|&byte| byte == b' ').nth(2).unwrap_or_default();
                    let token = member.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
                    if node.master.has_listener(channel) && !self.given.contains(token) {
                        let text = member.escape_ascii();
                        self.checker.report(format!("node {number} has in line: {text}"));
                    }
                }
            }
        }
        self.run_until(self.agenda.now() + LINES);
    }

    fn check_that_no_key_is_left(&mut self) {
        for (number, node) in self.nodes.iter().enumerate() {
            let clock = node.clock(self.agenda.now());
            for key in node.master.keys(clock, 0) {
                // The counters of fencing numbers stay when the locks are gone.
                if key == NODE_MARKER.as_bytes() || key.starts_with(b"redlatch:fence:") {
                    continue;
                }
                let token = node.master.get(clock, 0, &key).unwrap_or_default().to_vec();
                let left = node.master.pttl(clock, 0, &key);
                let (key_text, token_text) = (key.escape_ascii(), token.escape_ascii());
                let words = format!(
                    "leaked: node {number} holds \"{key_text}\" for {left} ms more: {token_text}"
                );
                if !self.excused.contains(&(number, key, token.clone()))
                    && !self.given.contains(&token)
                {
                    self.checker.report(words);
                }
            }
        }
    }

    /// Lets each client in turn take and release each key.
    pub fn let_everyone_take_every_key(&mut self) {
        self.wait_for_the_excused();
        self.wait_for_trust();
        for client in 0..self.clients.len() {
            for key in 0..self.keys.len() {
                let Some(lock) = self.take(client, key) else { return };
                // A short lock could expire while the other client meddles with it.
                let long = self.long_ttl() > 1_000;
                let lock =
                    if key == 0 && long { self.act_on_the_key(client, lock) } else { Some(lock) };
                let Some(lock) = lock else { return };
                let now = self.agenda.now();
                let serial = self.next_serial();
                let it = &mut self.clients[client];
                let _ = it.coordinator.release(lock, serial, instant(now));
                it.asked.insert(serial, Purpose::Errand);
                self.checker.ask(serial, client, "release", now + SECOND, it.stopped_for);
                let answer = self.run_until_answered(client);
                if !matches!(answer, Some(Ok(Outcome::Released(ReleaseOutcome::Released)))) {
                    let words = format!("client {client} cannot release {key}: {answer:?}");
                    return self.checker.report(words);
                }
            }
        }
        // The world also has to read the answers that follow those of the majority.
        self.run_until(self.agenda.now() + SECOND);
        self.excused.clear();
        self.given.clear();
        self.check_that_nothing_is_left();
    }

    /// Waits until the excused locks have expired.
    fn wait_for_the_excused(&mut self) {
        let longest = self.nodes.iter().flat_map(|node| {
            let clock = node.clock(self.agenda.now());
            let keys = node.master.keys(clock, 0).into_iter();
            let locks = keys.filter(|key| !key.starts_with(b"redlatch:fence:"));
            locks.map(move |key| node.master.pttl(clock, 0, &key))
        });
        let longest = longest.max().unwrap_or(0).max(0) as u64;
        // The node's clock may be slow, so that a key lives longer than its ttl.
        let by = longest * MILLI + longest * MILLI / 50 + 2 * MILLI;
        self.run_until(self.agenda.now() + by);
    }

    /// Waits until all nodes are trusted again. A client that missed the loss of data learns of it
    /// by a probe, from the marker that another client wrote, and that marker may be written after
    /// its next probe. So a quarantine may begin or be prolonged up to the second probe from now,
    /// but not later.
    fn wait_for_trust(&mut self) {
        let settings = &self.plan.settings;
        let probe = settings.probe_interval.as_nanos() as u64;
        let whole = RestartGuard::quarantine(settings.max_ttl).as_nanos() as u64;
        let end = self.agenda.now() + 2 * probe + whole + SECOND;
        self.run_until(self.agenda.now() + probe + self.plan.node_timeout());
        while let Some((client, until)) = self.last_quarantine() {
            // A little longer than the quarantine, because the client's clock may be slow.
            let next = until.max(self.agenda.now()) + 20 * MILLI;
            if next > end {
                let words = format!("client {client} has a node in quarantine for too long");
                return self.checker.report(words);
            }
            self.run_until(next);
            if !self.count_event() {
                return;
            }
        }
    }

    /// The client whose quarantine of a node ends last, and when it ends.
    fn last_quarantine(&self) -> Option<(usize, u64)> {
        let nodes = || (0..self.nodes.len()).map(NodeId::new);
        let node_states = self.clients.iter().enumerate().flat_map(|(number, client)| {
            nodes().map(move |node| (number, client.coordinator.node_state(node)))
        });
        let ends = node_states.filter_map(|(client, state)| match state {
            NodeState::Quarantined(until) => Some((client, until.as_nanos())),
            _ => None,
        });
        ends.max_by_key(|&(_, until)| until)
    }

    fn take(&mut self, client: usize, key: usize) -> Option<Lock> {
        let wish = Wish::of(self.long_ttl());
        self.wait_for_room(client);
        let answer = match self.acquire(client, key, wish, 0, Purpose::Errand) {
            Ok(_) => self.run_until_answered(client),
            Err(error) => Some(Err(error)),
        };
        if let Some(Ok(Outcome::Acquired(lock))) = answer {
            return Some(lock);
        }
        self.checker.report(format!("client {client} cannot take key {key}: {answer:?}"));
        None
    }

    /// Another client extends the lock by its token, inspects its key and force-releases it. At
    /// last the first owner takes the lock again.
    fn act_on_the_key(&mut self, owner: usize, lock: Lock) -> Option<Lock> {
        let client = (owner + 1) % self.clients.len();
        let (ttl, token) = (Duration::from_millis(self.long_ttl()), lock.token());
        let extended = self.make_own_request(client, |core, key, serial, at| {
            core.extend_token(key, token.clone(), ttl, serial, at).map(|_| ())
        });
        if !matches!(extended, Some(Ok(Outcome::Extended { .. }))) {
            self.checker.report(format!("client {client} cannot extend by token: {extended:?}"));
            return None;
        }
        let seen = self.make_own_request(client, |core, key, serial, at| {
            core.inspect(key, serial, at).map(|_| ())
        });
        let whose = |seen: &Inspection| match seen.summary() {
            KeySummary::Held { value, .. } => value == Value::of(token.digits()),
            _ => false,
        };
        if !matches!(&seen, Some(Ok(Outcome::Inspected(seen))) if whose(seen)) {
            self.checker.report(format!("client {client} does not see {token}: {seen:?}"));
            return None;
        }
        let forced = self.make_own_request(client, |core, key, serial, at| {
            core.force_release(key, serial, at).map(|_| ())
        });
        if !matches!(forced, Some(Ok(Outcome::Released(ReleaseOutcome::Released)))) {
            self.checker.report(format!("client {client} cannot force a release: {forced:?}"));
            return None;
        }
        let now = self.agenda.now();
        self.clients[owner].coordinator.release_nowait(&lock, instant(now));
        self.take(owner, 0)
    }

    /// Makes a request about the first key, and waits for the answer.
    fn make_own_request(
        &mut self,
        client: usize,
        ask: impl FnOnce(&mut Coordinator, &[u8], u64, Instant) -> Result<(), Error>,
    ) -> Option<Result<Outcome, Error>> {
        self.wait_for_room(client);
        let serial = self.next_serial();
        let (now, it) = (self.agenda.now(), &mut self.clients[client]);
        let asked = ask(&mut it.coordinator, &self.keys[0], serial, instant(now));
        it.asked.insert(serial, Purpose::Errand);
        self.checker.ask(serial, client, "errand", now + SECOND, it.stopped_for);
        match asked {
            Ok(()) => self.run_until_answered(client),
            Err(error) => {
                self.checker.cancel(serial);
                Some(Err(error))
            }
        }
    }

    fn long_ttl(&self) -> u64 {
        self.plan.settings.max_ttl.as_millis() as u64
    }

    /// Runs the world until the simulation's own request is answered.
    fn run_until_answered(&mut self, client: usize) -> Option<Result<Outcome, Error>> {
        self.rouse(client);
        let give_up = self.agenda.now() + SECOND;
        while self.clients[client].make_own_request.is_none() && self.agenda.now() < give_up {
            self.run_until(self.agenda.now() + MILLI);
            if !self.count_event() {
                break;
            }
        }
        self.clients[client].make_own_request.take()
    }

    /// Ends all clients while requests are in flight. Locks that were granted and not handed out
    /// have to go with them.
    pub fn end_all_clients(&mut self) {
        for client in 0..self.clients.len() {
            for _ in 0..self.dice.below(3) {
                let key = self.dice.place(self.keys.len());
                // A request that is refused for lack of room does not matter here.
                let mut wish = Wish::of(self.long_ttl());
                if self.dice.chance(300) {
                    wish.bounds = self.draw_keep(wish.ttl);
                }
                let _ = self.acquire(client, key, wish, SECOND, Purpose::Farewell);
            }
            self.rouse(client);
        }
        for client in 0..self.clients.len() {
            let by = self.dice.below(3 * self.plan.latency.1);
            self.run_until(self.agenda.now() + by);
            if self.dice.chance(300) {
                let node = self.dice.place(self.nodes.len());
                self.forget_scripts(node);
            }
            self.end_client(client, true);
        }
        self.run_until(self.agenda.now() + SECOND);
        self.check_that_no_key_is_left();
    }

    /// Ends a client. In order: it releases what it has, and all that it has written arrives.
    /// Otherwise its connections are reset.
    pub fn end_client(&mut self, client: usize, in_order: bool) {
        let now = self.agenda.now();
        self.trace.note(now, || format!("client {client} ends"));
        if in_order {
            self.clients[client].coordinator.close(instant(now));
            turn::write_out(&mut self.drive(client));
        }
        for node in 0..self.nodes.len() {
            let Some(wire) = self.clients[client].wires[node].take() else { continue };
            if in_order {
                self.network.finish(wire, &mut self.agenda, &mut self.dice);
            } else {
                self.network.reset(wire, &mut self.agenda, &mut self.dice);
            }
        }
        self.clients[client].gone = true;
    }
}
