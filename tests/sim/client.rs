//! A client: a real coordinator, in a loop around the engine's own turn. A turn has several steps.
//! Between any two of them time may pass, or this client alone may be stopped.
//!
//! Around the turn the loop does what an interface does: it reads what the poller reported, takes
//! the completions, and lets the users act. `proto::turn` decides the order of the steps, as it
//! does for the engine.

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
    /// The client is in its turn, and takes this step next.
    Turn(turn::Step),
}

/// A client and its users.
#[derive(Debug)]
pub struct Client {
    /// The coordinator under test.
    pub coordinator: Coordinator,
    /// The connection of the client to each node.
    pub wires: Vec<Option<usize>>,
    /// For each node, the latest connection on which the node was usable, so that the client may
    /// have sent its pending releases on it.
    pub usable_on: Vec<Option<usize>>,
    /// Its users.
    pub users: Vec<User>,
    /// Handles that their owners have forgotten. They are used long after their locks are over.
    pub relics: Vec<Relic>,
    /// Completions that were reported and are not fetched yet.
    pub told: Vec<Told>,
    /// The requests that the client's users wait for.
    pub asked: BTreeMap<u64, Purpose>,
    /// The answer to a request of the simulation itself.
    pub make_own_request: Option<Result<Outcome, Error>>,
    /// The state of the loop.
    pub step: Step,
    /// By node: the poller reported input, and the client left some of it unread.
    pub left_unread: Vec<bool>,
    /// The input and output that waited when the turn began.
    pub waiting: Waiting,
    /// The client has ended.
    pub gone: bool,
    /// The client does not run before this moment.
    pub stopped_until: u64,
    /// For how long in total the client was kept from running.
    pub stopped_for: u64,
    wake: u64,
    wake_at: u64,
}

impl Client {
    /// A client that begins to connect with its first turn.
    pub fn new(coordinator: Coordinator, nodes: usize, users: Vec<User>) -> Client {
        Client {
            coordinator,
            wires: vec![None; nodes],
            usable_on: vec![None; nodes],
            users,
            relics: Vec::new(),
            told: Vec::new(),
            asked: BTreeMap::new(),
            make_own_request: None,
            step: Step::Idle,
            left_unread: vec![false; nodes],
            waiting: Waiting::nothing(nodes),
            gone: false,
            stopped_until: 0,
            stopped_for: 0,
            wake: 0,
            wake_at: u64::MAX,
        }
    }

    /// Another process takes this client's place, with a new coordinator.
    pub fn begin_anew(&mut self, coordinator: Coordinator) {
        self.coordinator = coordinator;
        self.usable_on.fill(None);
        self.left_unread.fill(false);
        self.relics.clear();
        self.told.clear();
        (self.make_own_request, self.step, self.gone) = (None, Step::Idle, false);
        // Wake-ups that were scheduled for the old process do not count.
        (self.wake, self.wake_at) = (self.wake + 1, u64::MAX);
    }

    /// Forgets the connection to the node, and returns it.
    fn forget_wire(&mut self, node: usize) -> Option<usize> {
        self.left_unread[node] = false;
        self.waiting.forget(node);
        self.wires[node].take()
    }

    /// Keeps the client from running for a while.
    pub fn stop(&mut self, now: u64, by: u64) {
        let from = self.stopped_until.max(now);
        self.stopped_until = from.max(now + by);
        self.stopped_for += self.stopped_until - from;
    }
}

/// A simulated time as an instant of the coordinator.
pub fn instant(now: u64) -> Instant {
    Instant::from_nanos(now)
}

impl World {
    /// Wakes a client that sleeps, because something came for it.
    pub fn rouse(&mut self, client: usize) {
        let now = self.agenda.now();
        let it = &self.clients[client];
        if it.step == Step::Idle && it.wake_at > now && !it.gone {
            self.wake_client(client, now);
        }
    }

    /// The client continues at `at`, and not at the moment that was scheduled before.
    fn wake_client(&mut self, client: usize, at: u64) {
        let it = &mut self.clients[client];
        it.wake += 1;
        it.wake_at = at;
        self.agenda.put(at, Event::Client { client, wake: it.wake });
    }

    /// The client takes its steps, until it sleeps or the next step takes time.
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

    /// How long a client pauses between two steps. When there are faults, a pause is sometimes so
    /// long that every node seems silent.
    fn pauses(&mut self) -> u64 {
        if self.plan.pace > 0 && self.dice.chance(200) {
            return self.dice.below(self.plan.pace);
        }
        let troubled = !self.healed && self.plan.fault_pause > 0;
        let away = troubled && self.dice.chance(1);
        if away { self.dice.below(3 * self.plan.node_timeout()) } else { 0 }
    }

    /// Stops the client for a while, after which it begins with a turn.
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
                    // Some interfaces write a request before the next turn.
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

    /// Whether the poller would return without a sleep: bytes came that it has not reported yet, or
    /// a timer is due. The poller does not report again what the client left unread.
    fn looks_for_more(&mut self, client: usize) -> bool {
        let it = &self.clients[client];
        let came = it.wires.iter().zip(&it.left_unread).any(|(wire, rest)| {
            wire.is_some_and(|wire| !rest && !self.network.wires[wire].inbox.is_empty())
        });
        came || self.sleeps_until(client) <= self.agenda.now()
    }

    fn fall_asleep(&mut self, client: usize) {
        self.check_before_sleep(client);
        let at = self.sleeps_until(client);
        if at < u64::MAX {
            self.wake_client(client, at);
        }
    }

    /// Reads what the poller reported. Of some nodes it reads only one piece, and leaves the rest
    /// to a later step.
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

    /// Reads up to `most` pieces that arrived from a node, joined into one.
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
                    self.pass_to_coordinator(client, node, wire, &std::mem::take(&mut bytes));
                    self.lose(client, node, wire, words);
                    break;
                }
                None => break,
            }
            self.clients[client].waiting.read_one(node);
        }
        self.pass_to_coordinator(client, node, wire, &bytes);
        let has_it = self.clients[client].wires[node] == Some(wire);
        if has_it && !self.network.wires[wire].inbox.is_empty() {
            self.clients[client].left_unread[node] = true;
            self.tally.rests += 1;
        }
        self.count_node_state(client, node);
        self.check_beliefs(client);
        self.check_forced(client, node, wire);
    }

    /// Passes what was read to the coordinator, in pieces as this wire's reader gets them.
    fn pass_to_coordinator(&mut self, client: usize, node: usize, wire: usize, bytes: &[u8]) {
        let (now, id) = (self.agenda.now(), NodeId::new(node));
        let coordinator = &mut self.clients[client].coordinator;
        for portion in self.network.wires[wire].reads.portions(bytes, &mut self.dice) {
            // If the coordinator has given up the connection, its next actions close it.
            if coordinator.node_state(id).is_connected() {
                coordinator.handle_bytes(id, portion, instant(now));
            }
        }
    }

    /// A client finds that a connection has ended.
    pub fn lose(&mut self, client: usize, node: usize, wire: usize, words: &'static str) {
        let now = self.agenda.now();
        self.network.wires[wire].left = true;
        let it = &mut self.clients[client];
        it.coordinator.handle_disconnected(NodeId::new(node), words, instant(now));
        it.forget_wire(node);
        self.trace.note(now, || format!("client {client} lost node {node}: {words}"));
    }

    /// Carries out an action: opens or closes a connection.
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

    /// Opens a connection. The kernel of a stopped node accepts it; that of a dead node refuses it.
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

    /// Counts the events that a client reports about nodes.
    pub fn count_events_of(&mut self, client: usize) {
        let now = self.agenda.now();
        while let Some(event) = self.clients[client].coordinator.poll_node_event() {
            self.trace.note(now, || format!("client {client}: {event:?}"));
            match event {
                NodeEvent::Quarantined { .. } => self.tally.distrusted += 1,
                NodeEvent::ClockJumped { node, .. } if self.nodes[node.index()].jumped => {
                    self.tally.jumps += 1;
                }
                NodeEvent::ClockJumped { .. } => {
                    self.checker.report(format!("no clock jumped here: {event:?}"));
                }
                _ => {}
            }
        }
    }

    /// Counts what the client's coordinator says of a node.
    fn count_node_state(&mut self, client: usize, node: usize) {
        let it = &mut self.clients[client];
        let id = NodeId::new(node);
        let state = it.coordinator.node_state(id);
        if state.is_usable() {
            it.usable_on[node] = it.wires[node];
        }
        self.tally.suspects += u64::from(state == NodeState::Suspect);
        self.tally.pending_releases += u64::from(it.coordinator.pending_releases(id) > 0);
    }
}
