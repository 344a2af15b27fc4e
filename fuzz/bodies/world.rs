//! Coordinators, in-process masters, and the bytes between them: what arrives when, and which
//! connection ends, is up to the input. One node may be hostile; `coordinator` says what it may do.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use redlatch::proto::{
    Action, Coordinator, Instant, Limits, Lock, LockToken, NodeId, NodeSettings, Op, RestartGuard,
    Settings,
};
use redlatch::testing::master::{ConnectionId, Flavor, Master, Restart};

use crate::checker::Checker;
use crate::choices::Choices;

pub const MILLI: u64 = 1_000_000;
const A_DAY: u32 = 24 * 60 * 60;
const MAX_TTL: Duration = Duration::from_secs(2);

/// A connection, as the bytes that are on their way.
#[derive(Debug)]
pub struct Wire {
    pub connection: ConnectionId,
    pub to_node: VecDeque<u8>,
    pub to_client: VecDeque<u8>,
    /// The node has closed it: after these bytes there are no more.
    pub closed: bool,
}

#[derive(Debug)]
pub struct Held {
    pub lock: Lock,
    pub key: usize,
    pub belief: usize,
    pub until: u64,
    /// The loss was reported.
    pub lost: bool,
    /// The caller released the key by its token: the loss may be reported, and need not.
    pub given_up: bool,
}

#[derive(Debug)]
pub struct Client {
    pub core: Coordinator,
    pub wires: Vec<Option<Wire>>,
    /// Connections that the core wants, and that are not open yet.
    pub opening: Vec<bool>,
    pub ops: Vec<(Op, u64)>,
    /// The key of each acquire and adopt.
    pub wants: BTreeMap<u64, usize>,
    pub held: Vec<Held>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hostility {
    /// All nodes are honest.
    None,
    /// The last node refuses what it has granted, or sends what is no reply.
    Refuses,
    /// The last node sends anything.
    SaysAnything,
}

pub struct World {
    pub now: u64,
    pub masters: Vec<Master>,
    pub clients: Vec<Client>,
    pub checker: Checker,
    /// What dead connections still bring to a node.
    pub ghosts: Vec<(usize, ConnectionId, Vec<u8>)>,
    pub hostility: Hostility,
    /// How many replies of the hostile node become errors.
    pub lies: usize,
    pub given: Vec<(usize, LockToken)>,
    pub serial: u64,
    /// An operator may have taken a lock of this key away: its holders prove nothing.
    pub meddled: [bool; 2],
}

impl World {
    pub fn new(choices: &mut Choices) -> World {
        let nodes = choices.one_of(&[3, 1, 2, 4, 5, 6]);
        let hostility = match choices.below(3) {
            0 => Hostility::None,
            // Two majorities of an even number of nodes share an honest one besides the hostile.
            1 if nodes % 2 == 0 => Hostility::SaysAnything,
            _ if nodes > 1 => Hostility::Refuses,
            _ => Hostility::None,
        };
        let now = choices.one_of(&[1_000_000 * MILLI, 0, u64::MAX - 40_000_000_000 * MILLI]);
        let flavor = choices.one_of(&[Flavor::Redis70, Flavor::Redis84, Flavor::Valkey90]);
        let masters = (0..nodes).map(|number| master(number as u64, now, flavor)).collect();
        let settings = settings(nodes, choices);
        let clients = 0..2 + choices.below(2) as u8;
        let clients = clients.map(|number| client(&settings, number, now)).collect();
        World {
            now,
            masters,
            clients,
            checker: Checker::new(true),
            ghosts: Vec::new(),
            hostility,
            lies: 0,
            given: Vec::new(),
            serial: 0,
            meddled: [false; 2],
        }
    }

    pub fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }
}

/// Bytes, connections, time.
impl World {
    /// Every node and client gets all that is on its way, until nothing is.
    pub fn flow(&mut self) {
        loop {
            self.write_and_connect(true);
            let wires = self.clients.iter().flat_map(|it| &it.wires).flatten();
            if wires.map(|it| it.to_node.len() + it.to_client.len()).sum::<usize>() == 0 {
                return;
            }
            for client in 0..self.clients.len() {
                for node in 0..self.masters.len() {
                    self.bring_to_node(client, node, usize::MAX);
                }
            }
            for client in 0..self.clients.len() {
                for node in 0..self.masters.len() {
                    self.bring_to_client(client, node, usize::MAX);
                }
            }
        }
    }

    /// The clients write what they have to write, and close and open connections; these open only
    /// if `opens`.
    pub fn write_and_connect(&mut self, opens: bool) {
        let now = self.at();
        for client in 0..self.clients.len() {
            while let Some(action) = self.clients[client].core.poll_action() {
                match action {
                    Action::Connect(node) => {
                        self.clients[client].core.handle_connecting(node, now);
                        self.clients[client].opening[node.index()] = true;
                    }
                    Action::Disconnect(node) => {
                        self.clients[client].opening[node.index()] = false;
                        self.hang_up(client, node.index(), usize::MAX);
                    }
                }
            }
            for node in 0..self.masters.len() {
                let it = &mut self.clients[client];
                if opens && std::mem::take(&mut it.opening[node]) {
                    let (to_node, to_client) = (VecDeque::new(), VecDeque::new());
                    let connection = self.masters[node].connect();
                    let wire = Wire { connection, to_node, to_client, closed: false };
                    it.wires[node] = Some(wire);
                    it.core.handle_connected(NodeId::new(node), now);
                }
                let Some(wire) = &mut it.wires[node] else { continue };
                let output = it.core.output(NodeId::new(node));
                let count = output.len();
                wire.to_node.extend(output);
                it.core.handle_sent(NodeId::new(node), count, now);
            }
        }
    }

    /// So many bytes arrive at the node, which executes what is whole.
    pub fn bring_to_node(&mut self, client: usize, node: usize, most: usize) {
        let Some(wire) = &mut self.clients[client].wires[node] else { return };
        let count = wire.to_node.len().min(most);
        let bytes: Vec<u8> = wire.to_node.drain(..count).collect();
        let connection = wire.connection;
        if !self.is_hostile(node) || self.lies == 0 {
            self.execute(node, connection, &bytes);
            return;
        }
        // One request after the other, so that one answer after the other can be a lie.
        for command in split(&bytes) {
            self.execute(node, connection, command);
        }
    }

    pub fn execute(&mut self, node: usize, connection: ConnectionId, bytes: &[u8]) {
        let now = self.at();
        self.masters[node].handle_bytes(now, connection, bytes);
        self.deliver_answers(node);
    }

    pub fn deliver_answers(&mut self, node: usize) {
        while let Some(output) = self.masters[node].poll_output() {
            let wires = self.clients.iter_mut().filter_map(|it| it.wires[node].as_mut());
            let mut found = wires.filter(|wire| wire.connection == output.connection);
            let Some(wire) = found.next() else { continue };
            let is_last = node + 1 == self.masters.len();
            if is_last && self.lies > 0 && !output.bytes.is_empty() {
                self.lies -= 1;
                wire.to_client.extend(b"-ERR the other end is gone\r\n");
            } else {
                wire.to_client.extend(output.bytes);
            }
            wire.closed |= output.closes;
        }
    }

    /// So many bytes arrive at the client.
    pub fn bring_to_client(&mut self, client: usize, node: usize, most: usize) {
        let now = self.at();
        let it = &mut self.clients[client];
        let Some(wire) = &mut it.wires[node] else { return };
        let count = wire.to_client.len().min(most);
        let bytes: Vec<u8> = wire.to_client.drain(..count).collect();
        let ends = wire.closed && wire.to_client.is_empty();
        let id = NodeId::new(node);
        if it.core.node_state(id).is_connected() {
            it.core.handle_bytes(id, &bytes, now);
        }
        if ends {
            it.wires[node] = None;
            it.core.handle_disconnected(id, "closed by the node", now);
        }
    }

    /// The client has closed a connection. What it wrote may still arrive, later.
    pub fn hang_up(&mut self, client: usize, node: usize, arrives: usize) {
        let Some(wire) = self.clients[client].wires[node].take() else { return };
        let bytes: Vec<u8> = wire.to_node.into_iter().take(arrives).collect();
        self.ghosts.push((node, wire.connection, bytes));
    }

    pub fn cut(&mut self, client: usize, node: usize, choices: &mut Choices) {
        let now = self.at();
        let id = NodeId::new(node);
        if self.clients[client].wires[node].is_some() {
            let arrives = choices.one_of(&[usize::MAX, 0, 60, 130]);
            self.hang_up(client, node, arrives);
            self.clients[client].core.handle_disconnected(id, "reset", now);
        } else if std::mem::take(&mut self.clients[client].opening[node]) {
            self.clients[client].core.handle_disconnected(id, "refused", now);
        }
    }

    /// What was written on a dead connection arrives, or never does.
    pub fn release_a_ghost(&mut self, choices: &mut Choices) {
        let Some(number) = choices.place(&self.ghosts) else { return };
        let (node, connection, bytes) = self.ghosts.swap_remove(number);
        if choices.below(4) > 0 {
            self.execute(node, connection, &bytes);
        }
        self.masters[node].disconnect(connection);
    }

    pub fn restart(&mut self, node: usize, choices: &mut Choices) {
        let now = self.at();
        let memory = choices.one_of(&[Restart::WithData, Restart::Empty]);
        self.masters[node].restart(now, memory);
        self.deliver_answers(node);
    }

    /// Time passes; some clients do not run meanwhile.
    pub fn pass(&mut self, by: u64, choices: &mut Choices) {
        self.now = self.now.saturating_add(by * MILLI + u64::from(choices.byte()));
        let run = choices.byte();
        for client in 0..self.clients.len() {
            if run & (1 << client) == 0 {
                self.clients[client].core.handle_timeout(Instant::from_nanos(self.now));
            }
        }
    }

    pub fn skip_to_timeout(&mut self, client: usize) {
        let core = &mut self.clients[client].core;
        let Some(due) = core.next_timeout() else { return };
        // Far ahead is only the next look at the clocks of the nodes.
        self.now = due.as_nanos().min(self.now.saturating_add(3_000 * MILLI)).max(self.now);
        core.handle_timeout(Instant::from_nanos(self.now));
    }

    pub fn is_hostile(&self, node: usize) -> bool {
        self.hostility != Hostility::None && node + 1 == self.masters.len()
    }

    /// The last node does what a server would not do.
    pub fn be_hostile(&mut self, client: usize, choices: &mut Choices) {
        let node = self.masters.len() - 1;
        let anything = match self.hostility {
            Hostility::None => return,
            Hostility::Refuses => false,
            Hostility::SaysAnything => true,
        };
        let wire = self.clients[client].wires[node].as_mut();
        match (choices.below(4), wire) {
            (0, _) => self.lies += 1 + choices.below(8),
            // No reply begins like this, so whatever follows is none.
            (1, Some(wire)) => {
                wire.to_client.extend(b"?");
                wire.to_client.extend(choices.bytes(20));
            }
            (2, Some(wire)) if anything => {
                let count = choices.below(40);
                wire.to_client.extend(choices.bytes(count));
            }
            (_, Some(wire)) if anything => {
                let reply = choices.one_of(&REPLIES);
                if choices.below(2) == 0 {
                    wire.to_client.clear();
                }
                wire.to_client.extend(reply);
            }
            _ => {}
        }
    }
}

/// What a node might say.
const REPLIES: [&[u8]; 16] = [
    b"+OK\r\n",
    b"_\r\n",
    b":1\r\n",
    b":0\r\n",
    b":-1\r\n",
    b"-ERR no\r\n",
    b"-NOSCRIPT no\r\n",
    b"-READONLY no\r\n",
    b"$-1\r\n",
    b"*0\r\n",
    b">2\r\n$10\r\ninvalidate\r\n_\r\n",
    b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n",
    b"*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n",
    b"%1\r\n$2\r\nid\r\n:7\r\n",
    b"$0\r\n\r\n",
    b":9000\r\n",
];

fn master(seed: u64, now: u64, flavor: Flavor) -> Master {
    let now = Instant::from_nanos(now);
    let mut master = Master::new(seed, now);
    master.set_uptime(now, A_DAY);
    master.set_flavor(flavor);
    master
}

fn settings(nodes: usize, choices: &mut Choices) -> Settings {
    let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
    let mut settings = Settings::new(labels.collect());
    settings.max_ttl = MAX_TTL;
    settings.node_timeout = millis(50);
    settings.probe_interval = millis(choices.one_of(&[3_600_000, 5_000]));
    settings.restart_guard = RestartGuard::On;
    let kind = choices.byte();
    settings.attended = kind & 1 == 0;
    settings.key_prefix = if kind & 2 == 0 { "" } else { "p:" }.into();
    settings.owner = (kind & 4 != 0).then(|| "own:er".into());
    settings.limits = match kind & 24 {
        8 => Limits::default().records(6).asks(10).outbox(2_000),
        16 => Limits::default().records(12),
        _ => Limits::default().records(64),
    };
    settings
}

fn client(settings: &Settings, number: u8, now: u64) -> Client {
    let core = Coordinator::new(settings.clone(), [number; 32], Instant::from_nanos(now));
    let mut core = core.expect("these settings work");
    core.report_lock_updates();
    let nodes = settings.nodes.len();
    Client {
        core,
        wires: (0..nodes).map(|_| None).collect(),
        opening: vec![false; nodes],
        ops: Vec::new(),
        wants: BTreeMap::new(),
        held: Vec::new(),
    }
}

/// The requests in these bytes, which may begin and end anywhere.
fn split(bytes: &[u8]) -> Vec<&[u8]> {
    let starts = (1..bytes.len()).filter(|&at| bytes[at] == b'*' && bytes[at - 1] == b'\n');
    let mut from = 0;
    let mut parts = Vec::new();
    for end in starts.chain([bytes.len()]) {
        parts.push(&bytes[from..end]);
        from = end;
    }
    parts
}

pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
