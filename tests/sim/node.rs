//! A master with what can happen to it: a clock that runs fast or slow, freezing, being killed and
//! started again.
//!
//! A frozen node is a stopped process: the kernel still takes its connections and its bytes, and
//! they are executed when it goes on.

use std::collections::BTreeMap;

use redlatch::proto::Instant;
use redlatch::proto::NODE_MARKER;
use redlatch::testing::master::{ConnectionId, Dump, Flavor, Master};

use crate::dice::Dice;

/// What a clock may gain or lose, in millionths. The drift that is taken off a ttl covers a
/// hundredth.
const RATES: [i64; 5] = [0, 0, 9_900, -9_900, 3_000];

/// Long before the simulation: the age of a master that has been up for a day.
const A_DAY: u32 = 24 * 60 * 60;

/// A master and its surroundings.
#[derive(Debug)]
pub struct Node {
    /// The model of the server, which answers.
    pub master: Master,
    /// Which wire each of its connections is.
    pub connections: BTreeMap<ConnectionId, usize>,
    /// The node is stopped up to this moment.
    pub frozen_until: u64,
    /// The node does not run.
    pub down: bool,
    /// When it starts again.
    pub down_until: u64,
    /// Connections are refused up to this moment.
    pub refuses_until: u64,
    /// The node answers with errors up to this moment.
    pub troubled_until: u64,
    /// Something in between makes errors of its answers up to this moment.
    pub lies_until: u64,
    /// The node has ended at once every connection that a client asked it to end.
    pub kills: bool,
    /// The node is one of those that are in trouble while one node at a time may be.
    pub loads: bool,
    /// The node starts again with the data that another master saved.
    pub restored: Option<Dump>,
    /// In a directed run: it starts again with its keys.
    pub keeps_keys: bool,
    /// The node is a replica of another master for now, and is no new process when it is back.
    pub replicates: bool,
    /// The node started with the data that another master had saved.
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
            kills: true,
            loads: false,
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

    /// The node was started this many seconds before the simulation.
    pub fn set_uptime(&mut self, seconds: u32) {
        self.master.set_uptime(Instant::default(), seconds);
    }

    /// No client has met it before: it has no node marker yet.
    pub fn delete_marker(&mut self) {
        self.operate(0, format!("DEL {NODE_MARKER}\r\n").as_bytes());
        while self.master.poll_output().is_some() {}
    }

    /// The time on the node's own clock.
    pub fn clock(&self, now: u64) -> Instant {
        let gained = i128::from(now) * i128::from(self.rate) / 1_000_000;
        Instant::from_nanos((i128::from(now) + gained) as u64)
    }

    /// Whether it is stopped.
    pub fn is_frozen(&self, now: u64) -> bool {
        now < self.frozen_until
    }

    /// An operator on the spot says something.
    pub fn operate(&mut self, now: u64, command: &[u8]) {
        let operator = self.master.connect();
        self.master.handle_bytes(self.clock(now), operator, command);
        self.master.disconnect(operator);
    }

    /// How long the key still exists at least, in nanoseconds.
    pub fn left(&self, now: u64, key: &[u8]) -> u64 {
        let millis = self.master.pttl(self.clock(now), 0, key).max(0);
        let nanos = i128::from(millis) * i128::from(crate::agenda::MILLI);
        (nanos * 1_000_000 / i128::from(1_000_000 + self.rate)) as u64
    }

    /// All keys of the node with their texts; those of lists and lines are empty.
    pub fn texts(&self, now: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
        let clock = self.clock(now);
        let text = |key: &[u8]| self.master.get(clock, 0, key).unwrap_or_default().to_vec();
        self.master.keys(clock, 0).into_iter().map(|key| (key.clone(), text(&key))).collect()
    }

    /// Whether a key holds this token there.
    pub fn holds(&self, now: u64, key: &[u8], token: &[u8]) -> bool {
        self.master.get(self.clock(now), 0, key) == Some(token)
    }
}
