//! A client: a real coordinator, in a loop around the engine's own turn. A turn is a row of steps,
//! and time may pass between any two of them, or stand still for the client alone: it was stopped.
//!
//! Around the turn the loop does what a caller's does: it reads what the poller reported, takes
//! what ended, and lets the users act. The order of the steps is not decided here but in
//! `proto::turn`, which the engine runs, too.

use std::collections::BTreeMap;

use redlatch::proto::NodeState;
use redlatch::proto::turn;
use redlatch::proto::{Action, Coordinator, NodeEvent};
use redlatch::{Error, NodeId, Outcome, proto::Instant};

use crate::agenda::{Event, MILLI};
use crate::fetching::Told;
use crate::network::Piece;
use crate::relic::Relic;
use crate::turning::Waiting;
use crate::user::{Purpose, User};
use crate::world::World;

/// The state of a client's loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The client sleeps.
    Idle,
    /// The client reads the bytes that came.
    Read,
    /// The client takes completions, and its users act.
    Serve,
    /// The client is in its turn, before this step.
    Turn(turn::Step),
}

/// A client and its users.
#[derive(Debug)]
pub struct Client {
    /// The coordinator under test.
    pub coordinator: Coordinator,
    /// The connection of the client to each node.
    pub wires: Vec<Option<usize>>,
    /// The latest of its connections to each node over which it may have sent its pending releases
    /// there.
    pub paid_on: Vec<Option<usize>>,
    /// The users that want locks of it.
    pub users: Vec<User>,
    /// Handles whose owners have forgotten them, to be used when they are long over.
    pub relics: Vec<Relic>,
    /// Ends that were reported and are not fetched yet.
    pub told: Vec<Told>,
    /// The requests that the client's users wait for.
    pub asked: BTreeMap<u64, Purpose>,
    /// The answer to a question of the simulation's own.
    pub errand: Option<Result<Outcome, Error>>,
    /// The state of its loop.
    pub step: Step,
    /// The nodes of which it left something unread, though the poller reported it.
    pub rest: Vec<bool>,
    /// The input that waited for the client when its turn began.
    pub waiting: Waiting,
    /// The client has ended.
    pub gone: bool,
    /// The client does not run before this moment.
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
            rest: vec![false; nodes],
            waiting: Waiting::nothing(nodes),
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
        self.rest.fill(false);
        self.relics.clear();
        self.told.clear();
        (self.errand, self.step, self.gone) = (None, Step::Idle, false);
        // What the client was about to do before is not done.
        (self.wake, self.wake_at) = (self.wake + 1, u64::MAX);
    }

    /// The client has no connection to the node any more. Returns the one that it had.
    fn forget_wire(&mut self, node: usize) -> Option<usize> {
        self.rest[node] = false;
        self.waiting.forget(node);
        self.wires[node].take()
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
        while self.count_event() {
            let next = self.take_step(client);
            self.clients[client].step = next;
            if next == Step::Idle {
                return self.fall_asleep(client);
            }
            let by = self.pauses();
            if by > 0 {
                self.clients[client].stop(now, by);
                self.wake_client(client, now + by);
                return;
            }
        }
    }

    /// How long a client pauses between two steps. A caller is rarely away for so long that every
    /// node seems to be silent, but when things go wrong that happens, too.
    fn pauses(&mut self) -> u64 {
        if self.plan.pace > 0 && self.dice.chance(200) {
            return self.dice.below(self.plan.pace);
        }
        let troubled = !self.healed && self.plan.fault_pause > 0;
        let away = troubled && self.dice.chance(1);
        if away { self.dice.below(3 * self.plan.node_timeout()) } else { 0 }
    }

    /// The caller reads nothing and writes nothing for a while, and then begins with a turn.
    pub fn keep_busy_before_its_turn(&mut self, client: usize, by: u64) {
        let now = self.agenda.now();
        self.clients[client].step = Step::Turn(turn::Step::FIRST);
        self.clients[client].stop(now, by);
        self.wake_client(client, now + by);
    }

    fn take_step(&mut self, client: usize) -> Step {
        match self.clients[client].step {
            Step::Idle | Step::Read => {
                self.read_reported(client);
                Step::Serve
            }
            Step::Serve => {
                self.serve(client);
                if self.dice.chance(200) {
                    // Some interfaces write a request at once.
                    turn::write_out(&mut self.drive(client));
                }
                Step::Turn(turn::Step::FIRST)
            }
            Step::Turn(step) => {
                if step == turn::Step::FIRST {
                    self.note_what_waits(client);
                }
                match step.take(&mut self.drive(client)) {
                    Some(next) => Step::Turn(next),
                    None if self.looks_for_more(client) => Step::Read,
                    None => Step::Idle,
                }
            }
        }
    }

    /// Looks whether the poller would report something, or there is no sleep at all. Input that was
    /// left unread is not reported again.
    fn looks_for_more(&mut self, client: usize) -> bool {
        let it = &self.clients[client];
        let came = it.wires.iter().zip(&it.rest).any(|(wire, rest)| {
            wire.is_some_and(|wire| !rest && !self.network.wires[wire].inbox.is_empty())
        });
        came || self.sleeps_until(client) <= self.agenda.now()
    }

    fn fall_asleep(&mut self, client: usize) {
        self.look_at_what_is_left(client);
        let at = self.sleeps_until(client);
        if at < u64::MAX {
            self.wake_client(client, at);
        }
    }

    /// Reads what the poller reported. Of some nodes it reads less than is there: the others are
    /// to have their turn, too.
    fn read_reported(&mut self, client: usize) {
        for node in self.any_order() {
            let most = if self.dice.chance(30) { 1 } else { usize::MAX };
            self.read(client, node, most);
        }
    }

    /// Reads every wire until it is drained.
    pub fn read_all(&mut self, client: usize) {
        for node in self.any_order() {
            self.read(client, node, usize::MAX);
        }
    }

    fn any_order(&mut self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        self.dice.shuffle(&mut order);
        order
    }

    /// Reads so many pieces that arrived on the wire to a node, as one piece if there are several.
    pub fn read(&mut self, client: usize, node: usize, most: usize) {
        let Some(wire) = self.clients[client].wires[node] else { return };
        if self.network.wires[wire].inbox.is_empty() {
            return;
        }
        let now = self.agenda.now();
        let mut bytes = Vec::new();
        for _ in 0..most {
            match self.network.wires[wire].inbox.pop_front() {
                Some(Piece::Bytes(more)) => bytes.extend(more),
                Some(Piece::Opened) => {
                    self.network.wires[wire].open = true;
                    let coordinator = &mut self.clients[client].coordinator;
                    coordinator.handle_connected(NodeId::new(node), instant(now));
                }
                Some(Piece::End(words)) => {
                    self.hand_in(client, node, wire, &std::mem::take(&mut bytes));
                    self.lose(client, node, wire, words);
                    break;
                }
                None => break,
            }
            self.clients[client].waiting.read_one(node);
        }
        self.hand_in(client, node, wire, &bytes);
        let has_it = self.clients[client].wires[node] == Some(wire);
        if has_it && !self.network.wires[wire].inbox.is_empty() {
            self.clients[client].rest[node] = true;
            self.tally.rests += 1;
        }
        self.look_at_standing(client, node);
        self.look_at_beliefs(client);
        self.look_at_forced(client, node, wire);
    }

    /// Gives the core what was read, in the portions that this wire's reader gets.
    fn hand_in(&mut self, client: usize, node: usize, wire: usize, bytes: &[u8]) {
        let (now, id) = (self.agenda.now(), NodeId::new(node));
        let coordinator = &mut self.clients[client].coordinator;
        for portion in self.network.wires[wire].reads.portions(bytes, &mut self.dice) {
            // If proto has broken the connection off, it is closed with the next actions.
            if coordinator.node_state(id).is_connected() {
                coordinator.handle_bytes(id, portion, instant(now));
            }
        }
    }

    /// A client finds that a connection is gone.
    pub fn lose(&mut self, client: usize, node: usize, wire: usize, words: &'static str) {
        let now = self.agenda.now();
        self.network.wires[wire].left = true;
        let it = &mut self.clients[client];
        it.coordinator.handle_disconnected(NodeId::new(node), words, instant(now));
        it.forget_wire(node);
        self.trace.note(now, || format!("client {client} lost node {node}: {words}"));
    }

    /// Opens or closes a connection.
    pub fn act_on_wire(&mut self, client: usize, action: Action) {
        let now = self.agenda.now();
        self.trace.note(now, || format!("client {client}: {action:?}"));
        match action {
            Action::Connect(node) => self.open(client, node.index()),
            Action::Disconnect(node) => {
                if let Some(wire) = self.clients[client].forget_wire(node.index()) {
                    self.network.reset(wire, &mut self.agenda, &mut self.dice);
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
        let coordinator = &mut self.clients[client].coordinator;
        coordinator.handle_connecting(NodeId::new(node), instant(now));
    }

    /// Takes note of what it reports of the nodes.
    pub fn look_at_events(&mut self, client: usize) {
        let now = self.agenda.now();
        while let Some(event) = self.clients[client].coordinator.poll_node_event() {
            self.trace.note(now, || format!("client {client}: {event:?}"));
            match event {
                NodeEvent::Quarantined { .. } => self.tally.distrusted += 1,
                NodeEvent::ClockJumped { node, .. } if self.nodes[node.index()].jumped => {
                    self.tally.jumps += 1;
                }
                NodeEvent::ClockJumped { .. } => {
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
        let state = it.coordinator.node_state(id);
        if state.is_usable() {
            it.paid_on[node] = it.wires[node];
        }
        self.tally.suspects += u64::from(state == NodeState::Suspect);
        self.tally.pending_releases += u64::from(it.coordinator.pending_releases(id) > 0);
    }
}
