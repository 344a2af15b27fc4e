//! The masters, the contenders, and what is on its way between them. Each message takes a while
//! that is drawn by seed, and each master executes one message after the other.
//!
//! The hazard is an order that depends on the machine: events of one moment happen in the order in
//! which they were put in, and nothing here is drawn but from the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use redlatch::proto::Instant;
use redlatch::testing::master::{ConnectionId, Master};

use super::bare::Bare;
use super::client::Client;
use super::dice::Dice;
use super::figures::Counts;
use super::kind::Kind;
use super::program::{Program, Progress};

pub const NODES: usize = 5;
pub const TTL: Duration = Duration::from_secs(10);
const A_DAY: u32 = 24 * 60 * 60;
/// One way between a contender and a master, in nanoseconds: 0.1 ms on average.
const WAY: (u64, u64) = (50_000, 150_000);
/// For how long a master executes a message, in nanoseconds.
const EXECUTES: u64 = 5_000;
/// The time that the contenders have for their handshakes, before all of them ask for the first
/// time.
const HANDSHAKES: Duration = Duration::from_millis(50);

/// A run.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub kind: Kind,
    pub contenders: usize,
    /// How long a contender keeps the lock before it releases it and asks again.
    pub hold: Duration,
    pub length: Duration,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    AtMaster {
        contender: usize,
        node: usize,
        bytes: Vec<u8>,
    },
    AtContender {
        contender: usize,
        node: usize,
        bytes: Vec<u8>,
    },
    /// A timer of the contender; an older one counts no more.
    Due {
        contender: usize,
        timer: u64,
    },
    HoldOver {
        contender: usize,
    },
}

struct World {
    setting: Setting,
    masters: Vec<Master>,
    busy_until: Vec<u64>,
    contenders: Vec<Contender>,
    /// Whose connection this is, by master.
    owners: Vec<HashMap<ConnectionId, usize>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_so_far: u64,
    now: u64,
    dice: Dice,
    keys: Vec<Key>,
    /// The contender that got a lock last, and the moment of the last hand-over.
    last_holder: Option<usize>,
    last_hand_over: u64,
    counts: Counts,
}

/// A key: its holder, and the moment of its last release.
#[derive(Debug, Clone, Default)]
struct Key {
    holder: Option<usize>,
    given_back: u64,
}

struct Contender {
    program: Box<dyn Program>,
    wires: Vec<Option<ConnectionId>>,
    /// When the last message on each wire arrives, there and back: none overtakes another.
    arrivals: Vec<(u64, u64)>,
    timer: u64,
    due: Option<Instant>,
    /// The keys of its requests are drawn by this.
    dice: Dice,
    /// The keys of its present request, and since when it waits for them.
    keys: Vec<usize>,
    waits_since: Option<u64>,
}

/// Lets the contenders run. The same setting and seed always come to the same counts.
pub fn run(setting: &Setting, seed: u64) -> Counts {
    let mut world = World::new(setting, seed);
    world.pass(HANDSHAKES);
    world.begin();
    world.pass(setting.length);
    world.end()
}

impl World {
    fn new(setting: &Setting, seed: u64) -> World {
        let begin = 1_000_000_000_000;
        let now = Instant::from_nanos(begin);
        let masters = (0..NODES as u64).map(|number| {
            let mut master = Master::new(number, now);
            master.set_uptime(now, A_DAY);
            master
        });
        let mut world = World {
            setting: *setting,
            masters: masters.collect(),
            busy_until: vec![0; NODES],
            contenders: Vec::new(),
            owners: vec![HashMap::new(); NODES],
            events: BinaryHeap::new(),
            events_so_far: 0,
            now: begin,
            dice: Dice::new(seed),
            keys: vec![Key::default(); setting.kind.of],
            last_holder: None,
            last_hand_over: begin,
            counts: Counts::new(setting.contenders, setting.length),
        };
        (0..setting.contenders).for_each(|number| world.add(number));
        world
    }

    fn add(&mut self, number: usize) {
        let Setting { kind, .. } = self.setting;
        // The dice are drawn first, so that a contender draws the same keys whatever its kind is.
        let dice = self.dice.others();
        let mut own = self.dice.others();
        let program: Box<dyn Program> = match kind.bare {
            true => Box::new(Bare::new(number, own)),
            false => Box::new(Client::new(kind, own.seed(), self.at())),
        };
        self.contenders.push(Contender {
            program,
            wires: vec![None; NODES],
            arrivals: vec![(0, 0); NODES],
            timer: 0,
            due: None,
            dice,
            keys: Vec::new(),
            waits_since: None,
        });
        self.go_on(number);
    }

    /// The measured time begins: all of them ask.
    fn begin(&mut self) {
        self.counts.commands = 0;
        self.last_hand_over = self.now;
        for contender in 0..self.contenders.len() {
            self.ask(contender);
            self.go_on(contender);
        }
    }

    fn end(mut self) -> Counts {
        let waiting = self.contenders.iter().filter_map(|contender| contender.waits_since);
        self.counts.waits.extend(waiting.map(|since| self.now - since));
        self.counts
    }

    fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn connect(&mut self, contender: usize, node: usize) {
        let wire = self.masters[node].connect();
        self.contenders[contender].wires[node] = Some(wire);
        self.owners[node].insert(wire, contender);
        let now = self.at();
        self.contenders[contender].program.on_connected(node, now);
    }

    fn put(&mut self, at: u64, event: Event) {
        self.events_so_far += 1;
        self.events.push(Reverse((at, self.events_so_far, event)));
    }

    fn pass(&mut self, by: Duration) {
        let end = self.now + by.as_nanos() as u64;
        while self.events.peek().is_some_and(|Reverse((at, _, _))| *at <= end) {
            let Some(Reverse((at, _, event))) = self.events.pop() else { break };
            self.now = at;
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        let now = self.at();
        match event {
            Event::AtMaster { contender, node, bytes } => {
                if let Some(wire) = self.contenders[contender].wires[node] {
                    self.masters[node].handle_bytes(now, wire, &bytes);
                    self.busy_until[node] = self.busy_until[node].max(self.now) + EXECUTES;
                    self.send_answers(node);
                }
            }
            Event::AtContender { contender, node, bytes } => {
                self.contenders[contender].program.hear(node, &bytes, now);
                self.go_on(contender);
            }
            Event::Due { contender, timer } => {
                let it = &mut self.contenders[contender];
                if it.timer == timer {
                    it.due = None;
                    it.program.on_timer(now);
                    self.go_on(contender);
                }
            }
            Event::HoldOver { contender } => self.release(contender),
        }
    }

    fn send_answers(&mut self, node: usize) {
        while let Some(output) = self.masters[node].poll_output() {
            assert!(!output.closes, "no connection ends");
            let contender = self.owners[node][&output.connection];
            let way = self.dice.between(WAY.0, WAY.1);
            let arrival = &mut self.contenders[contender].arrivals[node].1;
            *arrival = (self.busy_until[node] + way).max(*arrival);
            let at = *arrival;
            self.put(at, Event::AtContender { contender, node, bytes: output.bytes.to_vec() });
        }
    }

    /// Carries out what the contender wants by now.
    fn go_on(&mut self, contender: usize) {
        let now = self.at();
        loop {
            let progress = self.contenders[contender].program.progress(now);
            let Progress { connects, won, released } = &progress;
            connects.iter().for_each(|&node| self.connect(contender, node));
            if *won {
                self.note_win(contender);
            }
            if *released {
                self.ask(contender);
            }
            self.send(contender);
            self.set_timer(contender);
            if connects.is_empty() && !won && !released {
                return;
            }
        }
    }

    fn ask(&mut self, contender: usize) {
        let (now, Setting { kind, .. }) = (self.at(), self.setting);
        let contender = &mut self.contenders[contender];
        contender.waits_since = Some(self.now);
        let mut all: Vec<usize> = (0..kind.of).collect();
        if kind.keys < kind.of {
            contender.dice.shuffle(&mut all);
            all.truncate(kind.keys);
        }
        contender.program.ask(all.iter().map(|key| format!("key-{key}")).collect(), now);
        contender.keys = all;
    }

    /// The contender has the lock from now on.
    fn note_win(&mut self, contender: usize) {
        let since = self.contenders[contender].waits_since.take().expect("it asked");
        let mut given_back = 0;
        for &key in &self.contenders[contender].keys {
            let key = &mut self.keys[key];
            assert_eq!(key.holder, None, "two hold one key");
            key.holder = Some(contender);
            given_back = given_back.max(key.given_back);
        }
        let counts = &mut self.counts;
        counts.wins[contender] += 1;
        counts.waits.push(self.now - since);
        if since < given_back {
            counts.gaps.push(self.now - given_back);
        }
        if self.last_holder != Some(contender) {
            counts.hand_overs.push(self.now - self.last_hand_over);
            (self.last_holder, self.last_hand_over) = (Some(contender), self.now);
        }
        self.put(self.now + self.setting.hold.as_nanos() as u64, Event::HoldOver { contender });
    }

    fn release(&mut self, contender: usize) {
        for &key in &self.contenders[contender].keys {
            let key = &mut self.keys[key];
            assert_eq!(key.holder.take(), Some(contender));
            key.given_back = self.now;
        }
        let now = self.at();
        self.contenders[contender].program.release(now);
        self.go_on(contender);
    }

    fn send(&mut self, contender: usize) {
        for node in 0..NODES {
            let now = self.at();
            let bytes = self.contenders[contender].program.take_output(node, now);
            if bytes.is_empty() {
                continue;
            }
            let commands = 1 + bytes.windows(2).filter(|part| part == b"\n*").count();
            self.counts.commands += commands as u64;
            let way = self.dice.between(WAY.0, WAY.1);
            let arrival = &mut self.contenders[contender].arrivals[node].0;
            *arrival = (self.now + way).max(*arrival);
            let at = *arrival;
            self.put(at, Event::AtMaster { contender, node, bytes });
        }
    }

    fn set_timer(&mut self, contender: usize) {
        let it = &mut self.contenders[contender];
        let due = it.program.next_timeout();
        if due == it.due {
            return;
        }
        it.due = due;
        it.timer += 1;
        let timer = it.timer;
        if let Some(at) = due {
            self.put(at.as_nanos().max(self.now), Event::Due { contender, timer });
        }
    }
}
