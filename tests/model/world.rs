//! The state of a run: clients, nodes, and what is in flight between them. A step makes a new
//! state, which shares with the old one all that did not change.

use std::sync::Arc;

use redlatch::NodeId;
use redlatch::proto::{Instant, LockToken};
use redlatch::testing::master::Master;

use crate::bounds::{Bounds, Fences, Plan};
use crate::client::Client;
use crate::fingerprint::WALL_CLOCK_MICROS;
use crate::names;
use crate::step::Step;
use crate::time::{MAX_TTL, RECONNECT, START};
use crate::wire::{self, Orphan, Wire};

/// A key of the lock that a node forgot.
#[derive(Debug, Clone)]
pub struct Forgotten {
    pub token: LockToken,
    /// When the key would have expired.
    pub until: Instant,
}

/// The state of a run.
#[derive(Debug, Clone)]
pub struct World {
    pub now: Instant,
    pub clients: Vec<Arc<Client>>,
    pub nodes: Vec<Arc<Master>>,
    /// The connection of each client to each node, ordered by client.
    pub wires: Vec<Wire>,
    pub orphans: Vec<Orphan>,
    /// What may still happen within the bounds.
    pub left: Bounds,
    /// The token of the lock that was given away.
    pub given: Option<LockToken>,
    /// The key that each node forgot, until it would have expired.
    pub forgot: Vec<Option<Forgotten>>,
    /// By node: `Some` if it came back as a copy, with the token of the key that came with it.
    pub copied: Vec<Option<Option<LockToken>>>,
    /// By node: the token of the key that a flush took away.
    pub flushed: Vec<Option<LockToken>>,
    /// Whether each node is stopped.
    pub frozen: Vec<bool>,
    /// The fencing numbers that were given, in the order of holds.
    pub fences: Vec<u64>,
    /// Whether two clients must never hold the lock. An operator that deletes keys makes that
    /// possible.
    pub is_exclusive: bool,
    /// Whether a counter may be started from a clock, so that states differ in time.
    pub has_lost_counters: bool,
}

impl World {
    /// The first state: all clients are connected to all nodes, and nothing was asked.
    pub fn new(plan: &Plan) -> World {
        assert!(plan.bounds.copies <= 1, "names tell one copy from its original, and not two");
        let now = START;
        let nodes = (0..plan.nodes).map(|node| Arc::new(old_master(node, now)));
        let client = |client| Arc::new(Client::new(client, plan, now));
        let clients = (0..plan.clients).map(client);
        let mut world = World {
            now,
            clients: clients.collect(),
            nodes: nodes.collect(),
            wires: vec![Wire::default(); plan.clients * plan.nodes],
            orphans: Vec::new(),
            left: plan.bounds,
            given: None,
            forgot: vec![None; plan.nodes],
            copied: vec![None; plan.nodes],
            flushed: vec![None; plan.nodes],
            frozen: vec![false; plan.nodes],
            fences: Vec::new(),
            is_exclusive: plan.bounds.deletes == 0,
            has_lost_counters: plan.loses_counters(),
        };
        for client in 0..plan.clients {
            world.settle(client).expect("nothing was asked yet");
            for node in 0..plan.nodes {
                world.connect(client, node).expect("nothing was asked yet");
            }
        }
        // The connections were open for so long that a client replaces a lost one without a
        // back-off.
        world.now = now.saturating_add(RECONNECT);
        for client in 0..plan.clients {
            world.take(Step::Turn { client: client as u8 }).expect("nothing was asked yet");
        }
        if let Some(fences) = plan.fences {
            world.start_counters(fences);
        }
        for &step in plan.prefix {
            world.take(step).expect("the first steps are harmless");
        }
        world
    }

    /// An operator sets the counters with which the run begins.
    fn start_counters(&mut self, fences: Fences) {
        let clock = (WALL_CLOCK_MICROS + self.now.as_nanos() / 1000) / 1000;
        let ahead = clock + MAX_TTL.as_millis() as u64 / 5;
        let start = if fences.from_clock { (ahead as f64 * 1048.576) as u64 } else { 0 };
        for (node, &count) in fences.counters.iter().enumerate().filter(|(_, count)| **count > 0) {
            let command = format!("SET redlatch:fence:{{k}} {}\r\n", start + count);
            self.operate(node, command.as_bytes());
        }
    }

    pub fn wire(&self, client: usize, node: usize) -> &Wire {
        &self.wires[client * self.nodes.len() + node]
    }

    pub fn wire_mut(&mut self, client: usize, node: usize) -> &mut Wire {
        let nodes = self.nodes.len();
        &mut self.wires[client * nodes + node]
    }

    pub fn client_mut(&mut self, client: usize) -> &mut Client {
        Arc::make_mut(&mut self.clients[client])
    }

    pub fn master_mut(&mut self, node: usize) -> &mut Master {
        Arc::make_mut(&mut self.nodes[node])
    }

    /// The state in words: what is in flight, and what each client and node has.
    pub fn describe(&self) -> String {
        let mut text = format!("{} ms, left: {:?}\n", self.now.as_nanos() / 1_000_000, self.left);
        for (index, client) in self.clients.iter().enumerate() {
            let until = client.believes_until;
            text +=
                &format!("client {index}: {:?}, until {until:?}\n{:?}\n", client.task, client.core);
        }
        for (index, wire) in self.wires.iter().enumerate() {
            let words = |queue: &std::collections::VecDeque<crate::wire::Message>| {
                queue
                    .iter()
                    .map(|message| crate::wire::words(message))
                    .collect::<Vec<_>>()
                    .join(" | ")
            };
            text += &format!("wire {index}: up {}, down {}\n", words(&wire.up), words(&wire.down));
        }
        for (index, master) in self.nodes.iter().enumerate() {
            let keys = master.keys(self.now, 0).len();
            text += &format!("node {index}: {keys} keys\n");
        }
        text
    }

    /// Describes a step, with the message that arrives.
    pub fn step_in_words(&self, step: Step) -> String {
        let up = |client: u8, node: u8| self.wire(client.into(), node.into()).up.front();
        let down = |client: u8, node: u8| self.wire(client.into(), node.into()).down.front();
        let message = match step {
            Step::ToNode { client, node } => up(client, node),
            Step::ToClient { client, node } => down(client, node),
            Step::Late { orphan } => self.orphans[orphan as usize].up.front(),
            _ => None,
        };
        let words = message.map_or(String::new(), |message| format!(": {}", wire::words(message)));
        let millis = self.now.saturating_since(START).as_millis();
        format!("{millis:>5} ms  {step}{words}")
    }

    /// Each node by its number.
    pub fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.nodes.len()).map(NodeId::new)
    }
}

/// A master that reports for ever that it has been up for an hour. So only its `run_id` and its
/// marker show a restart, which is the harder case.
fn old_master(node: usize, now: Instant) -> Master {
    let mut master = Master::new(names::master_seed(node), now);
    master.set_uptime(now, 3600);
    master.set_info("uptime_in_seconds", "3600");
    master
}
