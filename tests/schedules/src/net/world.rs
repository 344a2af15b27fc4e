//! The masters, the bytes in flight, and what the poller has to report.

use std::collections::BTreeSet;
use std::mem;

use redlatch::proto::Instant;
use redlatch::testing::master::{ConnectionId, Master};
use shuttle::rand::Rng;
use shuttle::sync::{Condvar, Mutex, MutexGuard};

use super::clock;

/// What the poller reports.
#[derive(Debug, Default)]
pub struct Events {
    /// The nodes whose bytes arrived.
    pub readable: BTreeSet<usize>,
    /// The alarm of the engine rang.
    pub rung: bool,
    /// The waker was used.
    woken: bool,
}

/// Masters, the network to them, and a poller.
#[derive(Debug)]
pub struct World {
    wires: Mutex<Wires>,
    /// The poller has something to report.
    reports: Condvar,
    /// A node has something to answer, or the network may end.
    asked: Condvar,
    nodes: usize,
}

#[derive(Debug)]
struct Wires {
    nodes: Vec<Wire>,
    events: Events,
    ended: bool,
}

#[derive(Debug)]
struct Wire {
    master: Master,
    connection: ConnectionId,
    to_node: Vec<u8>,
    to_client: Vec<u8>,
}

impl World {
    /// This number of masters.
    pub fn new(nodes: usize) -> World {
        let wire = |seed| {
            let mut master = Master::new(seed as u64, now());
            let connection = master.connect();
            Wire { master, connection, to_node: Vec::new(), to_client: Vec::new() }
        };
        let nodes_made = (0..nodes).map(wire).collect();
        let wires = Wires { nodes: nodes_made, events: Events::default(), ended: false };
        let (reports, asked) = (Condvar::new(), Condvar::new());
        World { wires: Mutex::new(wires), reports, asked, nodes }
    }

    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Carries bytes and lets the masters answer, in any order. Ends when the engine is gone and
    /// all that it wrote was carried.
    pub fn run(&self) {
        let mut wires = self.wires();
        loop {
            let asked: Vec<usize> = wires.asked().collect();
            if asked.is_empty() {
                if wires.ended {
                    return;
                }
                wires = self.asked.wait(wires).expect("no task panics under it");
                continue;
            }
            let node = asked[shuttle::rand::thread_rng().gen_range(0..asked.len())];
            wires.answer(node);
            self.reports.notify_one();
            drop(wires);
            wires = self.wires();
        }
    }

    /// Lets every master answer; returns whether one was asked.
    pub fn answer(&self) -> bool {
        let mut wires = self.wires();
        let asked: Vec<usize> = wires.asked().collect();
        asked.iter().for_each(|node| wires.answer(*node));
        !asked.is_empty()
    }

    /// The bytes that the engine writes to a node.
    pub fn write(&self, node: usize, bytes: &[u8]) {
        self.wires().nodes[node].to_node.extend_from_slice(bytes);
        self.asked.notify_one();
    }

    /// The bytes that a node sent.
    pub fn read(&self, node: usize) -> Vec<u8> {
        mem::take(&mut self.wires().nodes[node].to_client)
    }

    /// The engine is gone.
    pub fn end(&self) {
        self.wires().ended = true;
        self.asked.notify_one();
    }

    /// Waits until there is something to report, and takes all of it: as on edge-triggered sockets
    /// it is reported once.
    pub fn poll(&self, at_once: bool) -> Events {
        let mut wires = self.wires();
        loop {
            let Events { readable, rung, woken } = &wires.events;
            if !readable.is_empty() || *rung || *woken || at_once {
                return mem::take(&mut wires.events);
            }
            wires = self.reports.wait(wires).expect("no task panics under it");
        }
    }

    pub fn wake(&self) {
        self.wires().events.woken = true;
        self.reports.notify_one();
    }

    pub fn ring(&self, ring: bool) {
        self.wires().events.rung = ring;
        if ring {
            self.reports.notify_one();
        }
    }

    /// How many keys the masters hold.
    pub fn keys(&self) -> usize {
        self.wires().nodes.iter().map(|wire| wire.master.keys(now(), 0).len()).sum()
    }

    fn wires(&self) -> MutexGuard<'_, Wires> {
        self.wires.lock().expect("no task panics under it")
    }
}

impl Wires {
    fn asked(&self) -> impl Iterator<Item = usize> {
        (0..self.nodes.len()).filter(|node| !self.nodes[*node].to_node.is_empty())
    }

    fn answer(&mut self, node: usize) {
        let Wire { master, connection, to_node, to_client } = &mut self.nodes[node];
        master.handle_bytes(now(), *connection, &mem::take(to_node));
        while let Some(output) = master.poll_output() {
            to_client.extend_from_slice(&output.bytes);
            self.events.readable.insert(node);
        }
    }
}

/// The time, for the masters.
fn now() -> Instant {
    Instant::from_nanos(clock::now().as_nanos())
}
