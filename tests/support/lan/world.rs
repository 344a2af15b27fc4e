//! The contenders in a network inside this process, and who holds which key.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use redlatch::proto::{Action, Instant, NodeId};
use redlatch::testing::net::{Endpoint, Net};

use super::bare::Bare;
use super::client::Client;
use super::dice::Dice;
use super::figures::Counts;
use super::kind::Kind;
use super::program::{Program, Progress};

pub const NODES: usize = 5;
pub const TTL: Duration = Duration::from_secs(10);
/// How long a message takes between a contender and a master: 0.1 ms on average.
const WAY: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(150));
/// How long a master executes one message.
const EXECUTES: Duration = Duration::from_micros(5);
/// How long the contenders have for their handshakes, before all of them ask for the first time.
const HANDSHAKES: Duration = Duration::from_millis(50);

/// The settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub kind: Kind,
    pub contenders: usize,
    /// How long a contender keeps the lock before it releases it and asks again.
    pub hold: Duration,
    pub length: Duration,
}

struct World {
    setting: Setting,
    net: Net<Contender>,
    /// When each contender that holds a lock will release it.
    ends: BinaryHeap<Reverse<(Instant, usize)>>,
    keys: Vec<Key>,
    /// The contender that got a lock last, and the moment of the last hand-over.
    last_holder: Option<usize>,
    last_hand_over: Instant,
    counts: Counts,
}

/// A key: its holder, and the moment of its last release.
#[derive(Debug, Clone, Default)]
struct Key {
    holder: Option<usize>,
    given_back: Instant,
}

struct Contender {
    program: Box<dyn Program>,
    /// How many commands it has sent.
    commands: u64,
    /// Draws the keys of its requests.
    dice: Dice,
    /// The keys of its present request, and since when it waits for them.
    keys: Vec<usize>,
    waits_since: Option<Instant>,
}

/// Lets the contenders run. The same setting and seed always come to the same counts.
pub fn run(setting: &Setting, seed: u64) -> Counts {
    let mut world = World::new(setting, seed);
    world.net.pass(HANDSHAKES);
    world.begin();
    world.pass(setting.length);
    world.end()
}

impl World {
    fn new(setting: &Setting, seed: u64) -> World {
        let mut dice = Dice::new(seed);
        let mut net = Net::new(NODES, dice.any());
        net.set_latency(WAY.0..=WAY.1);
        net.set_execution_time(EXECUTES);
        for number in 0..setting.contenders {
            let now = net.now();
            net.add(Contender::new(setting.kind, number, &mut dice, now));
        }
        World {
            setting: *setting,
            ends: BinaryHeap::new(),
            keys: vec![Key::default(); setting.kind.of],
            last_holder: None,
            last_hand_over: net.now(),
            counts: Counts::new(setting.contenders, setting.length),
            net,
        }
    }

    /// Begins the measured time: all contenders ask for a lock.
    fn begin(&mut self) {
        self.last_hand_over = self.net.now();
        for contender in 0..self.setting.contenders {
            self.net.client_mut(contender).commands = 0;
            self.ask(contender);
        }
    }

    fn end(mut self) -> Counts {
        let now = self.net.now();
        for contender in (0..self.setting.contenders).map(|number| self.net.get_client(number)) {
            self.counts.commands += contender.commands;
            self.counts.waits.extend(contender.waits_since.map(|since| between(since, now)));
        }
        self.counts
    }

    fn pass(&mut self, by: Duration) {
        let end = self.net.now().saturating_add(by);
        while self.net.now() < end {
            let next = self.ends.peek().map_or(end, |Reverse((at, _))| end.min(*at));
            if let Some(contender) = self.net.run(next) {
                self.look_at(contender);
            } else if self.ends.peek().is_some_and(|Reverse((at, _))| *at <= next) {
                let Some(Reverse((_, contender))) = self.ends.pop() else { return };
                self.release(contender);
            }
        }
    }

    /// Records what happened to a contender: it may have got its lock, or be done with its release.
    fn look_at(&mut self, contender: usize) {
        let now = self.net.now();
        let Progress { won, released } = self.net.client_mut(contender).program.progress(now);
        if won {
            self.note_win(contender);
        }
        if released {
            self.ask(contender);
        }
    }

    fn ask(&mut self, contender: usize) {
        let (now, Setting { kind, .. }) = (self.net.now(), self.setting);
        let contender = self.net.client_mut(contender);
        contender.waits_since = Some(now);
        let mut all: Vec<usize> = (0..kind.of).collect();
        if kind.keys < kind.of {
            contender.dice.shuffle(&mut all);
            all.truncate(kind.keys);
        }
        contender.program.ask(all.iter().map(|key| format!("key-{key}")).collect(), now);
        contender.keys = all;
    }

    /// Records that the contender has got its lock.
    fn note_win(&mut self, number: usize) {
        let now = self.net.now();
        let contender = self.net.client_mut(number);
        let since = contender.waits_since.take().expect("it asked");
        let mut given_back = Instant::default();
        for &key in &contender.keys {
            let key = &mut self.keys[key];
            assert_eq!(key.holder, None, "two hold one key");
            key.holder = Some(number);
            given_back = given_back.max(key.given_back);
        }
        let counts = &mut self.counts;
        counts.wins[number] += 1;
        counts.waits.push(between(since, now));
        if since < given_back {
            counts.gaps.push(between(given_back, now));
        }
        if self.last_holder != Some(number) {
            counts.hand_overs.push(between(self.last_hand_over, now));
            (self.last_holder, self.last_hand_over) = (Some(number), now);
        }
        self.ends.push(Reverse((now.saturating_add(self.setting.hold), number)));
    }

    fn release(&mut self, number: usize) {
        let now = self.net.now();
        let contender = self.net.client_mut(number);
        for &key in &contender.keys {
            let key = &mut self.keys[key];
            assert_eq!(key.holder.take(), Some(number));
            key.given_back = now;
        }
        contender.program.release(now);
    }
}

/// The time between two moments, in nanoseconds.
fn between(earlier: Instant, later: Instant) -> u64 {
    later.as_nanos() - earlier.as_nanos()
}

impl Contender {
    fn new(kind: Kind, number: usize, all: &mut Dice, now: Instant) -> Contender {
        // The dice are drawn first, so that a contender draws the same keys whatever its kind is.
        let dice = all.others();
        let mut own = all.others();
        let program: Box<dyn Program> = match kind.bare {
            true => Box::new(Bare::new(number, own)),
            false => Box::new(Client::new(kind, own.seed(), now)),
        };
        Contender { program, commands: 0, dice, keys: Vec::new(), waits_since: None }
    }
}

impl Endpoint for Contender {
    fn poll_action(&mut self) -> Option<Action> {
        self.program.poll_action()
    }

    fn handle_connected(&mut self, node: NodeId, now: Instant) {
        self.program.handle_connected(node, now);
    }

    fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        self.program.handle_disconnected(node, words, now);
    }

    fn output(&self, node: NodeId) -> &[u8] {
        self.program.output(node)
    }

    fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        let sent = &self.program.output(node)[..count];
        self.commands += 1 + sent.windows(2).filter(|part| part == b"\n*").count() as u64;
        self.program.handle_sent(node, count, now);
    }

    fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant) {
        self.program.handle_bytes(node, bytes, now);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.program.next_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.program.handle_timeout(now);
    }

    fn has_news(&self) -> bool {
        self.program.has_news()
    }
}
