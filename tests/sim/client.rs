//! A client: a real coordinator, driven as the engine drives it. A turn is a row of steps, and time
//! may pass between any two of them, or stand still for the client alone: it was stopped.
//!
//! The order is what the engine keeps: read what came, hand out what ended, let the callers act;
//! when something is due, read and write once more before it is believed; then write.

use std::collections::BTreeMap;

use redlatch::proto::coordinator::{Action, Coordinator, Event as CoreEvent};
use redlatch::proto::standing::Standing;
use redlatch::{Error, Instant, NodeId, Outcome};

use crate::agenda::{Event, MICRO, MILLI};
use crate::fetching::Told;
use crate::network::Piece;
use crate::relic::Relic;
use crate::user::{Purpose, User};
use crate::world::World;

/// Where a client is in its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It sleeps.
    Idle,
    /// It reads what came.
    Read,
    /// It takes what ended, and its users act.
    Serve,
    /// Something is due: it reads once more.
    Look,
    /// And it writes: what is written only now cannot have been answered.
    Flush,
    /// It lets what is due happen.
    Expire,
    /// It opens, closes, and writes.
    Write,
}

/// A client and its users.
#[derive(Debug)]
pub struct Client {
    /// What is tested here.
    pub coordinator: Coordinator,
    /// Its connection to each node.
    pub wires: Vec<Option<usize>>,
    /// The latest of its connections to each node over which it may have paid what it owed there.
    pub paid_on: Vec<Option<usize>>,
    /// Who wants locks of it.
    pub users: Vec<User>,
    /// Handles whose owners have forgotten them, to be used when they are long over.
    pub relics: Vec<Relic>,
    /// Ends that were told and are not fetched yet.
    pub told: Vec<Told>,
    /// What its users wait for.
    pub asked: BTreeMap<u64, Purpose>,
    /// The answer to a question of the simulation's own.
    pub errand: Option<Result<Outcome, Error>>,
    /// Where it is in its turn.
    pub step: Step,
    /// It has ended.
    pub gone: bool,
    /// It does not run before this moment.
    pub stopped_until: u64,
    /// How long it was kept from running, in total.
    pub kept_waiting: u64,
    wake: u64,
    wake_at: u64,
}

impl Client {
    /// A client that begins to connect with its first turn.
    pub fn new(coordinator: Coordinator, nodes: usize, users: Vec<User>) -> Client {
        Client {
            coordinator,
            wires: vec![None; nodes],
            paid_on: vec![None; nodes],
            users,
            relics: Vec::new(),
            told: Vec::new(),
            asked: BTreeMap::new(),
            errand: None,
            step: Step::Idle,
            gone: false,
            stopped_until: 0,
            kept_waiting: 0,
            wake: 0,
            wake_at: u64::MAX,
        }
    }

    /// Another process takes its place, with another core.
    pub fn begin_anew(&mut self, coordinator: Coordinator) {
        self.coordinator = coordinator;
        self.paid_on.fill(None);
        self.relics.clear();
        self.told.clear();
        (self.errand, self.step, self.gone) = (None, Step::Idle, false);
        // Whatever it was about to do, nobody does.
        (self.wake, self.wake_at) = (self.wake + 1, u64::MAX);
    }

    /// Keeps it from running for a while.
    pub fn stop(&mut self, now: u64, by: u64) {
        let from = self.stopped_until.max(now);
        self.stopped_until = from.max(now + by);
        self.kept_waiting += self.stopped_until - from;
    }
}

/// A moment for the coordinator.
pub fn instant(now: u64) -> Instant {
    Instant::from_nanos(now)
}

impl World {
    /// Something came for a client: one that sleeps wakes.
    pub fn rouse(&mut self, client: usize) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        if it.step == Step::Idle && it.wake_at > now && !it.gone {
            self.wake_client(client, now);
        }
    }

    /// The client goes on at `at`, and not at the moment that was meant before.
    fn wake_client(&mut self, client: usize, at: u64) {
        let it = &mut self.clients[client];
        it.wake += 1;
        it.wake_at = at;
        self.agenda.put(at, Event::Client { client, wake: it.wake });
    }

    /// A client goes on with its turn, until it sleeps or the next step takes time.
    pub fn go_on(&mut self, client: usize, wake: u64) {
        let now = self.agenda.now();
        let it = &mut self.clients[client];
        if it.wake != wake || it.gone {
            return;
        }
        if now < it.stopped_until {
            let at = it.stopped_until;
            self.wake_client(client, at);
            return;
        }
        it.wake_at = u64::MAX;
        if it.step == Step::Idle {
            it.step = Step::Read;
        }
        while self.is_going_on() {
            let next = self.take_step(client);
            self.clients[client].step = next;
            if next == Step::Idle {
                let at = self.sleeps_until(client);
                if at < u64::MAX {
                    self.wake_client(client, at);
                }
                return;
            }
            if self.plan.pace > 0 && self.dice.chance(200) {
                let by = self.dice.below(self.plan.pace);
                self.clients[client].stop(now, by);
                self.wake_client(client, now + by);
                return;
            }
        }
    }

    fn take_step(&mut self, client: usize) -> Step {
        let now = self.agenda.now();
        match self.clients[client].step {
            Step::Idle | Step::Read => {
                self.read_all(client);
                Step::Serve
            }
            Step::Serve => {
                self.serve(client);
                let due = self.clients[client].coordinator.next_timeout();
                if due.is_some_and(|due| due <= instant(now)) { Step::Look } else { Step::Write }
            }
            Step::Look => {
                self.read_all(client);
                Step::Flush
            }
            Step::Flush => {
                self.do_actions(client);
                self.write_all(client);
                Step::Expire
            }
            Step::Expire => {
                self.clients[client].coordinator.handle_timeout(instant(now));
                self.look_at_beliefs(client);
                Step::Write
            }
            Step::Write => {
                self.do_actions(client);
                self.write_all(client);
                if self.has_more_to_do(client) { Step::Read } else { Step::Idle }
            }
        }
    }

    fn has_more_to_do(&self, client: usize) -> bool {
        let it = &self.clients[client];
        let came = |wire: &Option<usize>| {
            wire.is_some_and(|wire| !self.network.wires[wire].inbox.is_empty())
        };
        it.coordinator.has_completions()
            || it.wires.iter().any(came)
            || self.sleeps_until(client) <= self.agenda.now()
    }

    /// When a sleeping client has something to do, if nothing comes.
    fn sleeps_until(&self, client: usize) -> u64 {
        let it = &self.clients[client];
        let due = it.coordinator.next_timeout().map_or(u64::MAX, Instant::as_nanos);
        let users = it.users.iter().map(|user| user.at).min().unwrap_or(u64::MAX);
        let relics = it.relics.iter().map(|relic| relic.at).min().unwrap_or(u64::MAX);
        let full = it.wires.iter().enumerate().filter_map(|(node, wire)| {
            let wire = &self.network.wires[(*wire)?];
            let waits = wire.open && !it.coordinator.output(NodeId::new(node)).is_empty();
            waits.then_some(wire.full_until)
        });
        let told = it.told.iter().map(|told| told.at).min().unwrap_or(u64::MAX);
        due.min(users).min(relics).min(told).min(full.min().unwrap_or(u64::MAX))
    }

    fn read_all(&mut self, client: usize) {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        self.dice.shuffle(&mut order);
        for node in order {
            let wire = self.clients[client].wires[node];
            if let Some(wire) = wire.filter(|&wire| !self.network.wires[wire].inbox.is_empty()) {
                self.read(client, node, wire);
            }
        }
    }

    /// Reads a wire until it is drained. What arrived in several pieces is read as one.
    fn read(&mut self, client: usize, node: usize, wire: usize) {
        let now = self.agenda.now();
        let id = NodeId::new(node);
        let mut bytes = Vec::new();
        loop {
            let it = &mut self.network.wires[wire];
            let piece = it.inbox.pop_front();
            if let Some(Piece::Bytes(more)) = piece {
                bytes.extend(more);
                continue;
            }
            let reads = it.reads;
            let coordinator = &mut self.clients[client].coordinator;
            if !bytes.is_empty() {
                for portion in reads.portions(&bytes, &mut self.dice) {
                    // One that proto has broken off is closed with the next actions.
                    if coordinator.standing(id).is_connected() {
                        coordinator.handle_bytes(id, portion, instant(now));
                    }
                }
                bytes.clear();
            }
            match piece {
                Some(Piece::Opened) => {
                    it.open = true;
                    coordinator.handle_connected(id, instant(now));
                }
                Some(Piece::End(words)) => {
                    it.left = true;
                    coordinator.handle_disconnected(id, words, instant(now));
                    self.clients[client].wires[node] = None;
                    self.trace.note(now, || format!("client {client} lost node {node}: {words}"));
                    break;
                }
                Some(Piece::Bytes(_)) | None => break,
            }
        }
        self.look_at_standing(client, node);
        self.look_at_beliefs(client);
        self.look_at_forced(client, node, wire);
    }

    fn do_actions(&mut self, client: usize) {
        while let Some(action) = self.clients[client].coordinator.poll_action() {
            let now = self.agenda.now();
            self.trace.note(now, || format!("client {client}: {action:?}"));
            match action {
                Action::Connect(node) => self.open(client, node.index()),
                Action::Disconnect(node) => {
                    if let Some(wire) = self.clients[client].wires[node.index()].take() {
                        self.network.reset(wire, &mut self.agenda, &mut self.dice);
                    }
                }
            }
        }
    }

    /// Opens a connection. A stopped node's kernel opens it too; a dead one's refuses.
    fn open(&mut self, client: usize, node: usize) {
        let now = self.agenda.now();
        let wire = self.network.wire(client, node, &mut self.dice);
        self.clients[client].wires[node] = Some(wire);
        let it = &self.nodes[node];
        let refused = it.down || now < it.refuses_until;
        let slow = !self.healed && self.plan.fault_pause > 0 && self.dice.chance(20);
        let longest = if slow { 2_000 * MILLI } else { 2 * self.network.weather.latency.1 };
        let at = now + self.dice.below(longest);
        let piece = if refused { Piece::End("connection refused") } else { Piece::Opened };
        self.network.wires[wire].ended = refused;
        self.network.tell(wire, at, piece, &mut self.agenda);
    }

    /// One write for each node that has output. The kernel may take less.
    pub fn write_all(&mut self, client: usize) {
        let now = self.agenda.now();
        for node in 0..self.nodes.len() {
            let Some(wire) = self.clients[client].wires[node] else { continue };
            let it = &mut self.network.wires[wire];
            if !it.open || now < it.full_until {
                continue;
            }
            let output = self.clients[client].coordinator.output(NodeId::new(node)).to_vec();
            let mut count = output.len();
            if count == 0 {
                continue;
            }
            self.look_at_heals(client, wire, &output);
            let it = &mut self.network.wires[wire];
            if !self.healed && self.dice.chance(10) {
                count = self.dice.place(count + 1);
                it.full_until = now + 1 + self.dice.below(500 * MICRO);
            }
            // What is written behind a cut is lost; the client does not know yet.
            if !it.cut && !it.ended {
                self.network.send(wire, &output[..count], &mut self.agenda, &mut self.dice);
            }
            let coordinator = &mut self.clients[client].coordinator;
            coordinator.handle_sent(NodeId::new(node), count, instant(now));
        }
    }

    /// Takes note of what it tells of the nodes.
    pub fn look_at_events(&mut self, client: usize) {
        let now = self.agenda.now();
        while let Some(event) = self.clients[client].coordinator.poll_event() {
            self.trace.note(now, || format!("client {client}: {event:?}"));
            match event {
                CoreEvent::Distrusted { .. } => self.tally.distrusted += 1,
                CoreEvent::ClockJumped { node, .. } if self.nodes[node.index()].jumped => {
                    self.tally.jumps += 1;
                }
                CoreEvent::ClockJumped { .. } => {
                    self.checker.violate(format!("no clock jumped here: {event:?}"));
                }
                _ => {}
            }
        }
    }

    /// Takes note of what the coordinator makes of a node.
    fn look_at_standing(&mut self, client: usize, node: usize) {
        let it = &mut self.clients[client];
        let id = NodeId::new(node);
        let standing = it.coordinator.standing(id);
        if standing.is_usable() {
            it.paid_on[node] = it.wires[node];
        }
        self.tally.suspects += u64::from(standing == Standing::Suspect);
        self.tally.debts += u64::from(it.coordinator.debts(id) > 0);
    }
}
