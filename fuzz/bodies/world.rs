//! Coordinators and in-process masters in a network. The input decides what arrives when, and which
//! connection ends. One node may be hostile; `coordinator` says what it may do.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::proto::{
    Coordinator, Instant, Limits, Lock, LockToken, NodeSettings, Op, RestartGuard, Settings,
};
use redlatch::testing::master::{Flavor, Restart};
use redlatch::testing::net::Net;

use crate::checker::Checker;
use crate::choices::Choices;

pub const MILLI: u64 = 1_000_000;
const MAX_TTL: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Held {
    pub lock: Lock,
    pub key: usize,
    pub belief: usize,
    pub until: u64,
    /// Whether its loss was reported.
    pub lost: bool,
    /// The caller released the key by its token, so its loss may be reported, but need not be.
    pub given_up: bool,
}

/// The caller of a client.
#[derive(Debug, Default)]
pub struct Caller {
    pub ops: Vec<(Op, u64)>,
    /// For each acquire and adopt, its key.
    pub wants: BTreeMap<u64, usize>,
    pub held: Vec<Held>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hostility {
    /// All nodes are honest.
    None,
    /// The last node refuses what it has granted, or sends bytes that are no reply.
    Refuses,
    /// The last node may send any bytes.
    SaysAnything,
}

pub struct World {
    pub net: Net,
    /// The caller of each client.
    pub callers: Vec<Caller>,
    pub checker: Checker,
    pub hostility: Hostility,
    /// How many replies of the hostile node become errors.
    pub lies: usize,
    pub given: Vec<(usize, LockToken)>,
    pub serial: u64,
    /// By key: an operator may have taken a lock away, so that two holders prove nothing.
    pub meddled: [bool; 2],
}

impl World {
    pub fn new(choices: &mut Choices) -> World {
        let nodes = choices.one_of(&[3, 1, 2, 4, 5, 6]);
        let hostility = match choices.below(3) {
            0 => Hostility::None,
            // Two majorities of an even number of nodes share an honest node besides the hostile
            // one.
            1 if nodes % 2 == 0 => Hostility::SaysAnything,
            _ if nodes > 1 => Hostility::Refuses,
            _ => Hostility::None,
        };
        let now = choices.one_of(&[1_000_000 * MILLI, 0, u64::MAX - 40_000_000_000 * MILLI]);
        let flavor = choices.one_of(&[Flavor::Redis70, Flavor::Redis84, Flavor::Valkey90]);
        let mut net = Net::starting_at(Instant::from_nanos(now), nodes, 0);
        (0..nodes).for_each(|node| net.master_mut(node).set_flavor(flavor));
        let settings = settings(nodes, choices);
        let callers = (0..2 + choices.below(2)).map(|number| {
            net.add(client(&settings, number as u8, net.now()));
            Caller::default()
        });
        World {
            callers: callers.collect(),
            net,
            checker: Checker::new(true),
            hostility,
            lies: 0,
            given: Vec::new(),
            serial: 0,
            meddled: [false; 2],
        }
    }

    /// The time in nanoseconds.
    pub fn now(&self) -> u64 {
        self.net.now().as_nanos()
    }

    pub fn clients(&self) -> std::ops::Range<usize> {
        0..self.callers.len()
    }
}

/// Moves bytes, connections and time.
impl World {
    /// Delivers all that is in flight to every node and client, until nothing is.
    pub fn flow(&mut self) {
        self.write_and_connect(true);
        for client in self.clients() {
            self.bring_to_node(client, self.net.nodes() - 1, usize::MAX);
        }
        self.net.settle();
    }

    /// The clients write what they have to write, and close and open connections; they open some
    /// only if `opens`.
    pub fn write_and_connect(&mut self, opens: bool) {
        for client in self.clients() {
            self.net.write(client);
            for node in 0..self.net.nodes() {
                if opens {
                    self.net.open(client, node);
                    self.net.write(client);
                }
            }
        }
    }

    /// Delivers up to `most` bytes to the node, which executes the complete requests.
    pub fn bring_to_node(&mut self, client: usize, node: usize, most: usize) {
        if !self.is_hostile(node) || self.lies == 0 {
            return self.net.deliver_some_to_node(client, node, most);
        }
        // The requests are delivered one by one, so that each answer can become a lie.
        let bytes = self.net.unexecuted(client, node);
        for command in split(&bytes[..bytes.len().min(most)]) {
            let before = self.net.take_unread(client, node);
            self.net.deliver_some_to_node(client, node, command.len());
            let answer = self.net.take_unread(client, node);
            self.net.say(client, node, &before);
            let lies = self.lies > 0 && !answer.is_empty();
            self.lies -= usize::from(lies);
            let lie = b"-ERR the other end is gone\r\n";
            self.net.say(client, node, if lies { lie } else { &answer });
        }
    }

    /// Delivers what was written on a dead connection, partly or wholly, or drops it.
    pub fn release_an_orphan(&mut self, choices: &mut Choices) {
        if self.net.orphans() > 0 {
            let number = choices.below(self.net.orphans());
            self.net.deliver_orphan(number, choices.one_of(&[usize::MAX, 0, 60, 130]));
        }
    }

    pub fn restart(&mut self, node: usize, choices: &mut Choices) {
        self.net.restart(node, choices.one_of(&[Restart::WithData, Restart::Empty]));
    }

    /// Time passes, and some clients do not run meanwhile.
    pub fn pass(&mut self, by: u64, choices: &mut Choices) {
        self.net.advance(Duration::from_nanos(by * MILLI + u64::from(choices.byte())));
        let run = choices.byte();
        for client in self.clients() {
            if run & (1 << client) == 0 {
                self.net.expire(client);
            }
        }
    }

    pub fn is_hostile(&self, node: usize) -> bool {
        self.hostility != Hostility::None && node + 1 == self.net.nodes()
    }

    /// The last node does what no server would do.
    pub fn be_hostile(&mut self, client: usize, choices: &mut Choices) {
        let node = self.net.nodes() - 1;
        let anything = match self.hostility {
            Hostility::None => return,
            Hostility::Refuses => false,
            Hostility::SaysAnything => true,
        };
        match choices.below(4) {
            0 => self.lies += 1 + choices.below(8),
            // No reply begins like this, so the bytes after it are no reply either.
            1 => self.net.say(client, node, &[b"?", choices.bytes(20)].concat()),
            2 if anything => {
                let count = choices.below(40);
                self.net.say(client, node, choices.bytes(count));
            }
            _ if anything => {
                let reply = choices.one_of(&REPLIES);
                if choices.below(2) == 0 {
                    self.net.take_unread(client, node);
                }
                self.net.say(client, node, reply);
            }
            _ => {}
        }
    }
}

/// Replies that a hostile node may send.
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

fn client(settings: &Settings, number: u8, now: Instant) -> Coordinator {
    let core = Coordinator::new(settings.clone(), [number; 32], now);
    let mut core = core.expect("these settings work");
    core.report_lock_updates();
    core
}

/// Splits bytes into requests. The first and the last may be incomplete.
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
