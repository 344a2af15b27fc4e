//! A master and what can happen to it: its clock runs fast or slow, it is frozen, it is killed and
//! started again.
//!
//! A frozen node is a stopped process: the kernel still takes its connections and its bytes, and
//! the node executes them when it continues.

use std::collections::BTreeMap;

use redlatch::proto::Instant;
use redlatch::proto::NODE_MARKER;
use redlatch::testing::master::{ConnectionId, Dump, Flavor, Master};

use crate::dice::Dice;

/// How fast a clock may run, in millionths too fast. The drift that is taken off a ttl covers a
/// hundredth.
const RATES: [i64; 5] = [0, 0, 9_900, -9_900, 3_000];

/// The uptime of a master in seconds when the simulation begins: a day.
const A_DAY: u32 = 24 * 60 * 60;

/// A master, its clock, and the faults that it has.
#[derive(Debug)]
pub struct Node {
    /// The simulated server.
    pub master: Master,
    /// The wire of each of its connections.
    pub connections: BTreeMap<ConnectionId, usize>,
    /// The node is stopped before this moment.
    pub frozen_until: u64,
    /// The node's process does not run.
    pub down: bool,
    /// When it starts again.
    pub down_until: u64,
    /// The node refuses connections before this moment.
    pub refuses_until: u64,
    /// The node answers with errors before this moment.
    pub troubled_until: u64,
    /// An intermediary turns its answers into errors before this moment.
    pub lies_until: u64,
    /// The node has carried out every CLIENT KILL that a client sent.
    pub ends_connections: bool,
    /// The node loads its data, because it is another node's turn to be healthy.
    pub is_loading: bool,
    /// The data of another master with which the node starts again.
    pub restored: Option<Dump>,
    /// The node keeps its keys when it starts again. Only directed scenarios set this.
    pub keeps_keys: bool,
    /// The node is a replica for a while; the same process is a master again afterwards.
    pub replicates: bool,
    /// The node once started with the data of another master.
    pub copied: bool,
    /// The node was promoted, or remembers that it was.
    pub promoted: bool,
    /// The node's clock jumped.
    pub jumped: bool,
    /// When it was killed last.
    pub killed_at: u64,
    /// How much the node's clock gains, in millionths.
    rate: i64,
}

impl Node {
    /// A healthy master that has been up for a day.
    pub fn new(dice: &mut Dice) -> Node {
        let mut master = Master::new(dice.any(), Instant::default());
        master.set_uptime(Instant::default(), A_DAY);
        if dice.chance(500) {
            master.count_whole_milliseconds();
        }
        master.set_flavor(dice.one_of(&[Flavor::Redis70, Flavor::Redis84, Flavor::Valkey90]));
        Node {
            master,
            connections: BTreeMap::new(),
            frozen_until: 0,
            down: false,
            down_until: 0,
            refuses_until: 0,
            troubled_until: 0,
            lies_until: 0,
            ends_connections: true,
            is_loading: false,
            restored: None,
            keeps_keys: false,
            copied: false,
            replicates: false,
            promoted: false,
            jumped: false,
            killed_at: 0,
            rate: dice.one_of(&RATES),
        }
    }

    /// Sets how many seconds before the simulation the node was started.
    pub fn set_uptime(&mut self, seconds: u32) {
        self.master.set_uptime(Instant::default(), seconds);
    }

    /// Deletes the node marker, as if no client had met the node before.
    pub fn delete_marker(&mut self) {
        self.operate(0, format!("DEL {NODE_MARKER}\r\n").as_bytes());
        while self.master.poll_output().is_some() {}
    }

    /// The time on the node's own clock.
    pub fn clock(&self, now: u64) -> Instant {
        let gained = i128::from(now) * i128::from(self.rate) / 1_000_000;
        Instant::from_nanos((i128::from(now) + gained) as u64)
    }

    /// Whether the process is stopped.
    pub fn is_frozen(&self, now: u64) -> bool {
        now < self.frozen_until
    }

    /// An operator sends a command to the node.
    pub fn operate(&mut self, now: u64, command: &[u8]) {
        let operator = self.master.connect();
        self.master.handle_bytes(self.clock(now), operator, command);
        self.master.disconnect(operator);
    }

    /// How long the key still lives at least, in nanoseconds.
    pub fn left(&self, now: u64, key: &[u8]) -> u64 {
        let millis = self.master.pttl(self.clock(now), 0, key).max(0);
        let nanos = i128::from(millis) * i128::from(crate::agenda::MILLI);
        (nanos * 1_000_000 / i128::from(1_000_000 + self.rate)) as u64
    }

    /// All keys of the node with their values; those of lists and lines are empty.
    pub fn texts(&self, now: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let clock = self.clock(now);
        let text = |key: &[u8]| self.master.get(clock, 0, key).unwrap_or_default().to_vec();
        self.master.keys(clock, 0).into_iter().map(|key| (key.clone(), text(&key))).collect()
    }

    /// Whether the key has this token on the node.
    pub fn holds(&self, now: u64, key: &[u8], token: &[u8]) -> bool {
        self.master.get(self.clock(now), 0, key) == Some(token)
    }
}
