//! Many contenders for one lock, on masters inside this process, in simulated time: each message
//! takes a while that is drawn by seed, and each master executes one message after the other.
//!
//! A contender is the core of a client, or a bare loop that sends `SET NX` and tries again 2.5 to
//! 5 ms after each denial. Nothing depends on the machine, so counts can be compared exactly.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use redlatch::proto::{Action, Coordinator, Instant, KeySet, NodeId, NodeSettings, Settings};
use redlatch::testing::master::{ConnectionId, Master};
use redlatch::{Lock, LockOptions, Outcome};

use super::bare::Bare;

pub const NODES: usize = 5;
pub const TTL: Duration = Duration::from_secs(10);
const FOR_EVER: Duration = Duration::from_secs(100_000);
const A_DAY: u32 = 24 * 60 * 60;
/// One way between a contender and a master, in nanoseconds.
const WAY: (u64, u64) = (50_000, 150_000);
/// For how long a master executes a message.
const EXECUTES: u64 = 5_000;
const PAUSE: (u64, u64) = (2_500_000, 5_000_000);

/// How the contenders take their lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The library: one key.
    Plain,
    /// The library: two keys.
    Set,
    /// The bare loop: one key.
    Bare,
    /// The bare loop: two keys, by a script that takes both or none.
    BareSet,
}

impl Way {
    fn is_bare(self) -> bool {
        matches!(self, Way::Bare | Way::BareSet)
    }
}

/// What the contenders did in the measured time.
#[derive(Debug, Clone)]
pub struct Counts {
    /// How often each of them had the lock.
    pub wins: Vec<u64>,
    /// How often another contender than the last one had it.
    pub hand_overs: u64,
    /// The commands that the contenders sent.
    pub commands: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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

/// The masters, the contenders, and what is on its way between them.
pub struct World {
    masters: Vec<Master>,
    busy_until: Vec<u64>,
    contenders: Vec<Contender>,
    /// Whose connection this is, by master.
    owners: Vec<HashMap<ConnectionId, usize>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    events_so_far: u64,
    now: u64,
    hold: u64,
    way: Way,
    seed: u64,
    holder: Option<usize>,
    last_holder: Option<usize>,
    counts: Counts,
}

struct Contender {
    program: Program,
    wires: Vec<Option<ConnectionId>>,
    /// When the last message on each wire arrives, there and back: none overtakes another.
    arrivals: Vec<(u64, u64)>,
    timer: u64,
}

enum Program {
    Core { core: Box<Coordinator>, lock: Option<Lock> },
    Bare(Bare),
}

impl Counts {
    pub fn acquisitions(&self) -> u64 {
        self.wins.iter().sum()
    }

    pub fn without(&self) -> usize {
        self.wins.iter().filter(|&&wins| wins == 0).count()
    }

    /// Jain's index in thousandths.
    pub fn jain(&self) -> u64 {
        let squares: u64 = self.wins.iter().map(|wins| wins * wins).sum();
        1000 * self.acquisitions().pow(2) / (self.wins.len() as u64 * squares).max(1)
    }
}

/// Lets so many contenders run for so long.
pub fn run(way: Way, contenders: usize, hold: Duration, length: Duration, seed: u64) -> Counts {
    let mut world = World::new(way, contenders, hold, seed);
    // The handshakes.
    world.pass(Duration::from_millis(50));
    (0..contenders).for_each(|contender| world.ask(contender));
    world.pass(length);
    world.counts
}

impl World {
    fn new(way: Way, contenders: usize, hold: Duration, seed: u64) -> World {
        let begin = 1_000_000_000_000;
        let now = Instant::from_nanos(begin);
        let masters = (0..NODES as u64).map(|number| {
            let mut master = Master::new(number, now);
            master.set_uptime(now, A_DAY);
            master
        });
        let mut world = World {
            masters: masters.collect(),
            busy_until: vec![0; NODES],
            contenders: Vec::new(),
            owners: vec![HashMap::new(); NODES],
            events: BinaryHeap::new(),
            events_so_far: 0,
            now: begin,
            hold: hold.as_nanos() as u64,
            way,
            seed: seed.wrapping_mul(2).wrapping_add(1),
            holder: None,
            last_holder: None,
            counts: Counts { wins: vec![0; contenders], hand_overs: 0, commands: 0 },
        };
        (0..contenders).for_each(|number| world.add(number, seed));
        world
    }

    fn add(&mut self, number: usize, seed: u64) {
        let program = match self.way {
            Way::Bare | Way::BareSet => Program::Bare(Bare::new(number, self.way == Way::BareSet)),
            Way::Plain | Way::Set => {
                let labels = (0..NODES).map(|node| NodeSettings::new(format!("n{node}")));
                let mut settings = Settings::new(labels.collect());
                settings.probe_interval = Duration::from_secs(1000);
                settings.restart_guard = redlatch::RestartGuard::Off;
                let mut seeds = [7; 32];
                seeds[..8].copy_from_slice(&(7 + number as u64).to_le_bytes());
                seeds[8..16].copy_from_slice(&seed.to_le_bytes());
                let core = Coordinator::new(settings, seeds, self.at()).expect("good settings");
                Program::Core { core: Box::new(core), lock: None }
            }
        };
        let wires = vec![None; NODES];
        let arrivals = vec![(0, 0); NODES];
        self.contenders.push(Contender { program, wires, arrivals, timer: 0 });
        if self.way.is_bare() {
            (0..NODES).for_each(|node| self.connect(number, node));
        }
        self.go_on(number);
    }

    fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn connect(&mut self, contender: usize, node: usize) {
        let wire = self.masters[node].connect();
        self.contenders[contender].wires[node] = Some(wire);
        self.owners[node].insert(wire, contender);
    }

    /// A number below `count`.
    fn draw(&mut self, count: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 16) % count
    }

    fn draw_between(&mut self, (least, most): (u64, u64)) -> u64 {
        least + self.draw(most - least)
    }

    fn put(&mut self, at: u64, event: Event) {
        self.events_so_far += 1;
        self.events.push(Reverse((at, self.events_so_far, event)));
    }

    fn pass(&mut self, by: Duration) {
        let end = self.now + by.as_nanos() as u64;
        while let Some(Reverse((at, _, _))) = self.events.peek() {
            if *at > end {
                break;
            }
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
                match &mut self.contenders[contender].program {
                    Program::Core { core, .. } => core.handle_bytes(NodeId::new(node), &bytes, now),
                    Program::Bare(bare) => bare.hear(node, &bytes),
                }
                self.go_on(contender);
            }
            Event::Due { contender, timer } if self.contenders[contender].timer == timer => {
                match &mut self.contenders[contender].program {
                    Program::Core { core, .. } => core.handle_timeout(now),
                    Program::Bare(bare) => bare.attempt(),
                }
                self.go_on(contender);
            }
            Event::Due { .. } => {}
            Event::HoldOver { contender } => self.release(contender),
        }
    }

    fn send_answers(&mut self, node: usize) {
        while let Some(output) = self.masters[node].poll_output() {
            assert!(!output.closes, "no connection ends");
            let contender = self.owners[node][&output.connection];
            let way = self.draw_between(WAY);
            let arrival = &mut self.contenders[contender].arrivals[node].1;
            *arrival = (self.busy_until[node] + way).max(*arrival);
            let at = *arrival;
            self.put(at, Event::AtContender { contender, node, bytes: output.bytes.to_vec() });
        }
    }

    fn ask(&mut self, contender: usize) {
        let now = self.at();
        match &mut self.contenders[contender].program {
            Program::Core { core, .. } if self.way == Way::Set => {
                let keys = KeySet::new(["a", "b"]).expect("two keys");
                core.acquire(&keys, LockOptions::new(TTL).wait(FOR_EVER), 1, now)
                    .expect("there is room");
            }
            Program::Core { core, .. } => {
                core.acquire(b"a", LockOptions::new(TTL).wait(FOR_EVER), 1, now)
                    .expect("there is room");
            }
            Program::Bare(bare) => bare.attempt(),
        }
        self.go_on(contender);
    }

    fn release(&mut self, contender: usize) {
        assert_eq!(self.holder.take(), Some(contender));
        let now = self.at();
        match &mut self.contenders[contender].program {
            Program::Core { core, lock } => {
                core.release(lock.take().expect("it has the lock"), 2, now);
            }
            Program::Bare(bare) => bare.release(),
        }
        self.go_on(contender);
    }

    /// Carries out what the contender wants by now.
    fn go_on(&mut self, contender: usize) {
        let now = self.at();
        loop {
            let (mut won, mut released, mut connects) = (false, false, Vec::new());
            let mut due = None;
            match &mut self.contenders[contender].program {
                Program::Core { core, lock } => {
                    while let Some(action) = core.poll_action() {
                        let Action::Connect(node) = action else { panic!("{action:?}") };
                        connects.push(node);
                    }
                    while let Some(done) = core.poll_completion(now) {
                        match done.result.expect("it waits for ever") {
                            Outcome::Acquired(held) => (won, *lock) = (true, Some(held)),
                            _ => released = true,
                        }
                    }
                    due = core.next_timeout().map(Instant::as_nanos);
                }
                Program::Bare(bare) => (won, released) = bare.judge(),
            }
            for &node in &connects {
                self.connect(contender, node.index());
                if let Program::Core { core, .. } = &mut self.contenders[contender].program {
                    core.handle_connected(node, now);
                }
            }
            if won {
                self.note_win(contender);
            }
            self.send(contender);
            if let Program::Bare(bare) = &mut self.contenders[contender].program {
                if bare.pauses() {
                    due = Some(self.now + self.draw_between(PAUSE));
                }
            }
            if let Some(at) = due {
                self.contenders[contender].timer += 1;
                let timer = self.contenders[contender].timer;
                self.put(at.max(self.now), Event::Due { contender, timer });
            }
            if released {
                return self.ask(contender);
            }
            if connects.is_empty() {
                return;
            }
        }
    }

    fn note_win(&mut self, contender: usize) {
        assert_eq!(self.holder, None, "two hold it");
        self.holder = Some(contender);
        self.counts.wins[contender] += 1;
        self.counts.hand_overs += u64::from(self.last_holder != Some(contender));
        self.last_holder = Some(contender);
        self.put(self.now + self.hold, Event::HoldOver { contender });
    }

    fn send(&mut self, contender: usize) {
        for node in 0..NODES {
            let now = self.at();
            let bytes = match &mut self.contenders[contender].program {
                Program::Core { core, .. } => {
                    let bytes = core.output(NodeId::new(node)).to_vec();
                    core.handle_sent(NodeId::new(node), bytes.len(), now);
                    bytes
                }
                Program::Bare(bare) => bare.take_output(node),
            };
            if bytes.is_empty() {
                continue;
            }
            let commands = bytes.windows(3).filter(|part| part.starts_with(b"\n*")).count() + 1;
            self.counts.commands += commands as u64;
            let way = self.draw_between(WAY);
            let arrival = &mut self.contenders[contender].arrivals[node].0;
            *arrival = (self.now + way).max(*arrival);
            let at = *arrival;
            self.put(at, Event::AtMaster { contender, node, bytes });
        }
    }
}
