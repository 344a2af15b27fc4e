//! Clients and masters in one world. A run goes from event to event until it is over.

use std::collections::BTreeSet;

use redlatch::Stats;
use redlatch::proto::Coordinator;
use redlatch::proto::Instant;

use crate::agenda::{Agenda, Event, SECOND};
use crate::checker::Checker;
use crate::client::Client;
use crate::dice::Dice;
use crate::handing::{Handed, Offer};
use crate::ledger::Ledger;
use crate::network::{Network, Piece, Weather};
use crate::node::Node;
use crate::operator::Forced;
use crate::plan::{Memory, Plan, QUIET};
use crate::tally::Tally;
use crate::trace::Trace;
use crate::user::User;

/// More events than any run needs. A run with more does not come to an end.
const MOST_EVENTS: u64 = 400_000;

/// All parts of a run.
#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub dice: Dice,
    pub agenda: Agenda,
    pub network: Network,
    pub nodes: Vec<Node>,
    pub clients: Vec<Client>,
    pub keys: Vec<Vec<u8>>,
    pub checker: Checker,
    pub ledger: Ledger,
    pub tally: Tally,
    pub trace: Trace,
    /// No fault begins any more.
    pub healed: bool,
    /// Keys (node, key, token) that may stay until their ttl is over, without a fault of a client:
    /// the node did not carry out the CLIENT KILL for the connection on which they were set.
    pub excused: BTreeSet<(usize, Vec<u8>, Vec<u8>)>,
    /// Tokens of locks that were given away, so that no client has a pending release for them.
    pub given: BTreeSet<Vec<u8>>,
    /// The locks that may be adopted.
    pub offers: Vec<Offer>,
    /// All locks that were given away.
    pub handed: Vec<Handed>,
    /// Keys (client, key, until when) of which the client's record still says that it holds them,
    /// though they were released by their token: other users of this client wait for the end of the
    /// record.
    pub occupied: Vec<(usize, usize, u64)>,
    /// By key: since when it has been free while a user waits for it.
    pub free_since: Vec<Option<u64>>,
    /// Locks whose keys an operator deleted on all nodes, without their owners' knowledge.
    pub forced: Vec<Forced>,
    serial: u64,
}

impl World {
    /// The world of a seed. `memory` says what happens to the keys of killed nodes; `None`: the
    /// seed decides.
    pub fn new(seed: u64, memory: Option<Memory>, trace: Trace) -> World {
        let mut dice = Dice::new(seed);
        let plan = Plan::draw(memory, &mut dice);
        World::of(plan, dice, trace)
    }

    /// The world of a plan.
    pub fn of(plan: Plan, mut dice: Dice, trace: Trace) -> World {
        trace.note(0, || format!("{plan:?}"));
        let mut nodes: Vec<Node> = (0..plan.nodes).map(|_| Node::new(&mut dice)).collect();
        let clients = (0..plan.clients).map(|_| client(&plan, &mut dice)).collect();
        let weather =
            Weather { latency: plan.latency, late: plan.late, far: (plan.nodes - 1, plan.far) };
        let keys = (0..plan.keys).map(|key| format!("key {key}").into_bytes()).collect();
        let memory = plan.settings.max_ttl.as_nanos() as u64;
        let mut ledger = Ledger::new(plan.nodes, plan.keys, memory);
        for (number, node) in nodes.iter_mut().enumerate() {
            if plan.young > 0 && dice.chance(plan.young) {
                let uptime = dice.below(2 * memory / SECOND + 2);
                node.set_uptime(uptime as u32);
                ledger.set_uptime(number, uptime * SECOND);
            }
            if dice.chance(100) {
                node.delete_marker();
            }
        }
        World {
            dice,
            agenda: Agenda::default(),
            network: Network { wires: Vec::new(), weather },
            nodes,
            clients,
            keys,
            checker: Checker::new(plan.memory != Memory::Jumping),
            ledger,
            tally: Tally::default(),
            trace,
            healed: false,
            excused: BTreeSet::new(),
            given: BTreeSet::new(),
            offers: Vec::new(),
            handed: Vec::new(),
            forced: Vec::new(),
            occupied: Vec::new(),
            free_since: vec![None; plan.keys],
            serial: 0,
            plan,
        }
    }

    /// Runs the world to its end.
    pub fn run(&mut self) {
        for client in 0..self.clients.len() {
            self.rouse(client);
        }
        self.plan_fault();
        if self.plan.is_untroubled() {
            self.agenda.put(0, Event::Watch);
        }
        self.run_until(self.plan.length);
        self.heal();
        self.run_until(self.agenda.now() + QUIET);
        self.check_lines();
        if !self.count_event() {
            return;
        }
        self.check_that_nothing_is_left();
        let sum = |count: &dyn Fn(&Stats) -> u64| -> u64 {
            self.clients.iter().map(|it| count(it.coordinator.stats())).sum()
        };
        self.tally.in_line = [
            sum(&|it| it.joined),
            sum(&|it| it.handed_over),
            sum(&|it| it.skipped),
            sum(&|it| it.claims),
            sum(&|it| it.splits),
        ];
        let written_back = self.clients.iter().map(|it| it.coordinator.stats().written_back);
        self.tally.written_back = written_back.sum();
        self.tally.healed = self.clients.iter().map(|it| it.coordinator.stats().healed).sum();
        self.let_everyone_take_every_key();
        if self.count_event() {
            self.end_all_clients();
        }
    }

    /// Runs the world up to `end`.
    pub fn run_until(&mut self, end: u64) {
        while self.count_event() {
            let Some(event) = self.agenda.next(end) else { return };
            self.happen(event);
        }
    }

    /// Counts an event, and returns whether the run goes on. It ends after the first violation,
    /// because the events before that are the most useful.
    pub fn count_event(&mut self) -> bool {
        self.tally.events += 1;
        if self.tally.events == MOST_EVENTS {
            self.checker.report("it goes round in circles".into());
        }
        self.tally.events < MOST_EVENTS && self.checker.violations().is_empty()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Client { client, wake } => self.go_on(client, wake),
            Event::ToNode { wire } => self.arrive_at_node(wire),
            Event::ToClient { wire } => self.arrive_at_client(wire),
            Event::Fault => self.bring_about_next_fault(),
            Event::Thaw { node } => self.thaw(node),
            Event::Start { node } => self.start(node),
            Event::Copy { node, from } => self.copy_now(node, from),
            Event::Recover { node } => self.recover(node),
            Event::Probe { belief } => self.probe(belief),
            Event::ProbeGiven { handed } => self.probe_given(handed),
            Event::Watch => self.watch_free_keys(),
            Event::Turn(turn) => self.take_turn(turn),
        }
    }

    /// A number that no request had before.
    pub fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn arrive_at_client(&mut self, wire: usize) {
        let it = &mut self.network.wires[wire];
        let mut came = false;
        while let Some(piece) = it.to_client.arrived(self.agenda.now()) {
            if !it.left {
                it.inbox.push_back(piece);
                came = true;
            }
        }
        if came {
            let client = it.client;
            self.rouse(client);
        }
    }

    fn arrive_at_node(&mut self, wire: usize) {
        let now = self.agenda.now();
        while let Some(piece) = self.network.wires[wire].to_node.arrived(now) {
            let it = &mut self.network.wires[wire];
            let frozen = self.nodes[it.node].is_frozen(now);
            match piece {
                _ if it.ended => {}
                Piece::Bytes(bytes) if frozen => it.backlog.extend(bytes),
                Piece::Bytes(bytes) => self.execute(wire, &bytes),
                _ if frozen => it.backlog_ends = true,
                _ => self.end_at_node(wire),
            }
        }
    }

    /// A node executes what came on a wire, and answers.
    pub fn execute(&mut self, wire: usize, bytes: &[u8]) {
        let now = self.agenda.now();
        let it = &mut self.network.wires[wire];
        let number = it.node;
        let node = &mut self.nodes[number];
        let clock = node.clock(now);
        let connection = *it.connection.get_or_insert_with(|| {
            let connection = node.master.connect();
            node.connections.insert(connection, wire);
            connection
        });
        let stale = it.left || it.cut;
        let client = it.client;
        self.trace.note(now, || {
            let text = words(bytes);
            format!("node {number} executes for client {client} on wire {wire}: {text}")
        });
        self.note_absent(wire, bytes);
        let before = if stale { self.tokens_at(number) } else { Vec::new() };
        self.note_what_is_absent(number);
        let node = &mut self.nodes[number];
        node.master.handle_bytes(clock, connection, bytes);
        self.note_what_is_there(number);
        if stale {
            self.note_stale_grants(wire, &before);
        }
        self.deliver_answers(number);
    }

    pub fn deliver_answers(&mut self, number: usize) {
        while let Some(output) = self.nodes[number].master.poll_output() {
            let Some(&wire) = self.nodes[number].connections.get(&output.connection) else {
                continue;
            };
            let it = &self.network.wires[wire];
            let reaches = !it.left && !it.cut;
            let lies = self.agenda.now() < self.nodes[number].lies_until;
            let bytes = if lies { error_in_place_of(output.bytes) } else { output.bytes };
            if reaches && !bytes.is_empty() {
                self.network.answer(wire, &bytes, &mut self.agenda, &mut self.dice);
            }
            if output.closes {
                self.nodes[number].connections.remove(&output.connection);
                self.network.wires[wire].ended = true;
            }
            if reaches && output.closes {
                self.network.close_by_node(wire, &mut self.agenda, &mut self.dice);
            }
        }
    }

    /// A node learns that a connection has ended.
    pub fn end_at_node(&mut self, wire: usize) {
        let it = &mut self.network.wires[wire];
        it.ended = true;
        if let Some(connection) = it.connection {
            let node = &mut self.nodes[it.node];
            node.connections.remove(&connection);
            node.master.disconnect(connection);
        }
    }

    fn tokens_at(&self, number: usize) -> Vec<Option<Vec<u8>>> {
        let node = &self.nodes[number];
        let clock = node.clock(self.agenda.now());
        self.keys.iter().map(|key| node.master.get(clock, 0, key).map(Vec::from)).collect()
    }

    /// Looks at keys that a node granted on a connection that its client has lost. The client has
    /// ended that connection or still has to send a release. If the node did not carry out the
    /// CLIENT KILL, no client is at fault for a grant after the releases.
    fn note_stale_grants(&mut self, wire: usize, before: &[Option<Vec<u8>>]) {
        let it = &self.network.wires[wire];
        let number = it.node;
        let paid = self.clients[it.client].usable_on[number].is_some_and(|newer| newer > wire);
        let after = self.tokens_at(number);
        for (key, (before, after)) in before.iter().zip(after).enumerate() {
            let Some(token) = after else { continue };
            if before.as_ref() == Some(&token) {
                continue;
            }
            self.tally.stale += 1;
            let now = self.agenda.now();
            self.trace.note(now, || format!("wire {wire}: stale grant of key {key}: {paid}"));
            self.tally.stale_after_newer += u64::from(paid);
            if paid && !self.nodes[number].ends_connections {
                self.excused.insert((number, self.keys[key].clone(), token));
            }
        }
    }
}

/// The coordinator of a client that starts now.
pub fn coordinator(plan: &Plan, now: u64, dice: &mut Dice) -> Coordinator {
    Coordinator::new(plan.settings.clone(), dice.seed(), Instant::from_nanos(now))
        .expect("the plan's settings can work")
}

fn client(plan: &Plan, dice: &mut Dice) -> Client {
    let coordinator = coordinator(plan, 0, dice);
    let users = (0..plan.users).map(|_| User::new(dice.below(plan.rest))).collect();
    Client::new(coordinator, plan.nodes, users)
}

/// What a lying intermediary makes of a positive answer.
fn error_in_place_of(bytes: Vec<u8>) -> Vec<u8> {
    match &bytes[..] {
        b"+OK\r\n" | b":1\r\n" => b"-ERR the other end is gone\r\n".to_vec(),
        _ => bytes,
    }
}

/// A request in as few words as possible, for the trace.
fn words(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let marks = |line: &&str| !line.starts_with(['*', '$']) && !line.is_empty();
    let short = |line: &str| line.chars().take(12).collect::<String>();
    text.split("\r\n").filter(marks).map(short).collect::<Vec<_>>().join(" ")
}
