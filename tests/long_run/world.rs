//! Two coordinators and three masters in simulated time. A batch of acquires and releases takes as
//! long as in a program that makes a thousand of them a second, so 10^8 take a day.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::proto::{AutoExtend, Completion, Coordinator, Instant, LockOptions, Settings};
use redlatch::proto::{Lock, LockToken, NodeEvent, NodeId, NodeSettings, Outcome, RestartGuard};
use redlatch::testing::master::Restart;
use redlatch::testing::net::Net;

use crate::dice::Dice;

const NODES: usize = 3;
const CLIENTS: usize = 2;
/// How many keys each client has in flight at the same time.
const BATCH: u64 = 32;
/// A key that both clients acquire, and in how many of a thousand acquires.
const SHARED: (&[u8], u64) = (b"shared", 15);
const HOUR: Duration = Duration::from_secs(3_600);
/// How long a batch of both clients takes: 64 acquires and releases, if 10^8 take a day.
const BATCH_TIME: Duration = Duration::from_millis(55);
const WAY: Duration = Duration::from_micros(100);
const TTL: Duration = Duration::from_millis(400);
const MAX_TTL: Duration = Duration::from_secs(1);
/// How many in a thousand batches begin with a fault.
const FAULTS: u64 = 150;
/// How many records can be opened before the 32-bit counters wrap.
const BEFORE_WRAP: u32 = 3_000;

/// Where a run starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// A machine that has been up for eleven days.
    Usual,
    /// Just before 2^32 records, requests and tasks, and in each record just before 2^32 rounds.
    BeforeWrap,
    /// The clock is at zero.
    ClockAtZero,
    /// The clock has three days left until its last moment.
    ClockNearEnd,
}

impl Start {
    pub const ALL: [Start; 4] =
        [Start::Usual, Start::BeforeWrap, Start::ClockAtZero, Start::ClockNearEnd];

    /// In nanoseconds.
    fn clock(self) -> u64 {
        const SECOND: u64 = 1_000_000_000;
        match self {
            Start::Usual | Start::BeforeWrap => 1_000_000 * SECOND,
            Start::ClockAtZero => 0,
            // A whole second, as in the other starts: nodes count their uptime in seconds.
            Start::ClockNearEnd => u64::MAX / SECOND * SECOND - 72 * 3_600 * SECOND,
        }
    }
}

/// What a client does with a lock that it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Plan {
    Release,
    ReleaseSilently,
    Extend,
    GiveAway,
    Keep,
    Forget,
}

const PLANS: [(u64, Plan); 6] = [
    (200, Plan::Release),
    (20, Plan::ReleaseSilently),
    (15, Plan::Extend),
    (3, Plan::GiveAway),
    (3, Plan::Keep),
    (2, Plan::Forget),
];

/// The caller of a client.
#[derive(Debug, Default)]
struct Caller {
    /// Locks by the number of their request. They are released when their extend has ended, or a
    /// while later.
    later: BTreeMap<u64, Lock>,
    serial: u64,
}

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    pairs: u64,
    refused: u64,
    extended: u64,
    given: u64,
    lost: u64,
    cuts: u64,
    freezes: u64,
    restarts: u64,
    flushes: u64,
    quarantines: u64,
}

pub struct World {
    began: Instant,
    dice: Dice,
    net: Net,
    frozen_until: [Instant; NODES],
    callers: [Caller; CLIENTS],
    /// The token of the shared key's holder, and until when that holder believes in its lock.
    holder: Option<(LockToken, Instant)>,
    tally: Tally,
}

impl World {
    pub fn new(start: Start) -> World {
        let began = Instant::from_nanos(start.clock());
        let mut net = Net::starting_at(began, NODES, 7);
        net.set_latency(WAY..=WAY);
        (0..CLIENTS).for_each(|number| {
            net.add(client(number as u8, start));
        });
        World {
            began,
            dice: Dice::new(7),
            net,
            frozen_until: [began; NODES],
            callers: Default::default(),
            holder: None,
            tally: Tally::default(),
        }
    }

    pub fn pairs(&self) -> u64 {
        self.tally.pairs
    }

    pub fn hours(&self) -> f64 {
        self.net.now().saturating_since(self.began).as_secs_f64() / HOUR.as_secs_f64()
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn open_timers(&self) -> usize {
        (0..CLIENTS).map(|client| self.net.get_client(client).open_timers()).sum()
    }

    /// Runs batches until `pairs` locks were acquired and released in total.
    pub fn run_until(&mut self, pairs: u64) {
        while self.tally.pairs < pairs {
            if self.dice.chance(FAULTS) {
                self.bring_about_fault();
            }
            for client in 0..CLIENTS {
                (0..BATCH).for_each(|slot| self.acquire(client, slot));
            }
            self.pass(BATCH_TIME / 2);
            self.release_later();
            self.pass(BATCH_TIME / 2);
        }
    }

    fn acquire(&mut self, client: usize, slot: u64) {
        let (now, it) = (self.net.now(), &mut self.callers[client]);
        let plan = self.dice.weighted(&PLANS);
        let shared = self.dice.chance(SHARED.1);
        let name = [b'0' + client as u8, b':', slot as u8 + b'0'];
        let (key, wait) = match shared {
            true => (SHARED.0, self.dice.one_of(&[Duration::ZERO, TTL, Duration::MAX])),
            false => (&name[..], Duration::ZERO),
        };
        let mut options = LockOptions::new(TTL).wait(wait);
        if plan == Plan::Keep {
            options = options.auto_extend(AutoExtend::at_most(2 * TTL));
        }
        it.serial += 1;
        let data = it.serial << 8 | u64::from(shared) << 7 | plan as u64;
        if self.net.client_mut(client).acquire(key, options, data, now).is_err() {
            self.tally.refused += 1;
        }
    }

    fn completed(&mut self, client: usize, done: Completion) {
        let (now, core) = (self.net.now(), self.net.client_mut(client));
        match done.result {
            Ok(Outcome::Acquired(lock)) => {
                let until = core.deadline(&lock).expect("it is handed out");
                if done.data & 128 > 0 {
                    let free = self.holder.as_ref().is_none_or(|holder| holder.1 <= now);
                    assert!(free, "two holders: {:?}", self.holder);
                    self.holder = Some((lock.token(), until));
                }
                self.use_lock(client, done.data, lock);
            }
            Ok(Outcome::Extended { .. }) => {
                self.tally.extended += 1;
                self.release(client, done.data);
            }
            Ok(Outcome::Released(_)) => self.tally.pairs += 1,
            Ok(_) => {}
            Err(_) => {
                self.tally.refused += 1;
                if let Some(lock) = self.callers[client].later.remove(&done.data) {
                    core.release_nowait(&lock, now);
                    self.leave(&lock.token());
                    self.tally.pairs += 1;
                }
            }
        }
    }

    /// Notes that the holder of the shared key does not hold it any more.
    fn leave(&mut self, token: &LockToken) {
        if self.holder.as_ref().is_some_and(|(held, _)| held == token) {
            self.holder = None;
        }
    }

    fn use_lock(&mut self, client: usize, data: u64, lock: Lock) {
        let (now, core) = (self.net.now(), self.net.client_mut(client));
        let plan = PLANS.iter().find(|(_, plan)| *plan as u64 == data & 127);
        match plan.expect("one of them").1 {
            Plan::Extend => {
                if core.extend(&lock, TTL, data, now).is_ok() {
                    if let Some((token, until)) = &mut self.holder {
                        // The extended lock may last until this moment at most.
                        *until =
                            if *token == lock.token() { now.saturating_add(TTL) } else { *until };
                    }
                    self.callers[client].later.insert(data, lock);
                } else {
                    core.release_nowait(&lock, now);
                    self.leave(&lock.token());
                }
            }
            Plan::Keep if data & 128 == 0 => {
                self.callers[client].later.insert(data, lock);
            }
            // The lock is forgotten, so its record ends at the deadline.
            Plan::Forget => self.tally.pairs += 1,
            Plan::GiveAway if data & 128 == 0 => {
                let key = core.key(&lock).expect("it is held").to_vec();
                let token = core.into_token(lock, now).expect("it is held");
                let (other, data) =
                    (self.net.client_mut(1 - client), data & !127 | Plan::Release as u64);
                self.tally.given += 1;
                if other.adopt(&key, token, TTL, data, now).is_err() {
                    self.tally.refused += 1;
                }
            }
            Plan::ReleaseSilently => {
                core.release_nowait(&lock, now);
                self.leave(&lock.token());
                self.tally.pairs += 1;
            }
            _ => {
                let token = lock.token();
                core.release(lock, data, now);
                self.leave(&token);
            }
        }
    }

    fn release(&mut self, client: usize, data: u64) {
        if let Some(lock) = self.callers[client].later.remove(&data) {
            let (token, now) = (lock.token(), self.net.now());
            self.net.client_mut(client).release(lock, data, now);
            self.leave(&token);
        }
    }

    fn release_all(&mut self, client: usize) {
        let all: Vec<u64> = self.callers[client].later.keys().copied().collect();
        all.into_iter().for_each(|data| self.release(client, data));
    }

    /// Releases the locks that were kept for later, and sometimes makes another request.
    fn release_later(&mut self) {
        for client in 0..CLIENTS {
            let (now, core) = (self.net.now(), self.net.client_mut(client));
            let later = &self.callers[client].later;
            let last = later.keys().next_back().copied();
            match (self.dice.below(40), last) {
                (0, _) => {
                    core.inspect(SHARED.0, 0, now).expect("there is room");
                }
                (1, _) => {
                    let options = LockOptions::new(TTL).wait_forever();
                    let asked = core.acquire(SHARED.0, options, 0, now);
                    core.cancel(asked.expect("there is room"), now);
                }
                (2, Some(data)) => {
                    let token = later[&data].token();
                    core.extend_token(b"0:0", token, TTL, 0, now).expect("there is room");
                }
                _ => {}
            }
            if later.len() > 8 {
                self.release_all(client);
            }
        }
    }
}

/// Lets time pass, and brings about faults.
impl World {
    /// Lets time pass, and meanwhile takes the completions of each client, as its callers would.
    fn pass(&mut self, by: Duration) {
        let until = self.net.now().saturating_add(by);
        while let Some(client) = self.net.run(until) {
            self.take_all(client);
        }
        (0..CLIENTS).for_each(|client| self.take_all(client));
        for node in 0..NODES {
            if self.net.is_frozen(node) && self.frozen_until[node] <= self.net.now() {
                self.net.thaw(node);
            }
        }
    }

    fn take_all(&mut self, client: usize) {
        let now = self.net.now();
        while let Some(done) = self.net.client_mut(client).poll_completion(now) {
            self.completed(client, done);
        }
        let core = self.net.client_mut(client);
        while let Some(update) = core.poll_lock_update() {
            let lost = matches!(update.kind, redlatch::LockUpdateKind::Lost(_));
            self.tally.lost += u64::from(lost);
        }
        while let Some(event) = core.poll_node_event() {
            let quarantined = matches!(event, NodeEvent::Quarantined { .. });
            self.tally.quarantines += u64::from(quarantined);
        }
    }

    fn bring_about_fault(&mut self) {
        let node = self.dice.place(NODES);
        match self.dice.below(8) {
            0..=3 => {
                let client = self.dice.place(CLIENTS);
                self.tally.cuts += u64::from(self.net.is_connected(client, node));
                self.net.cut(client, node);
            }
            4 | 5 => {
                let by = Duration::from_millis(self.dice.one_of(&[40, 300, 900]));
                self.frozen_until[node] = self.net.now().saturating_add(by);
                self.net.freeze(node);
                self.tally.freezes += 1;
            }
            6 => {
                let memory = self.dice.one_of(&[Restart::Empty, Restart::WithData]);
                self.net.restart(node, memory);
                self.tally.restarts += 1;
            }
            _ => {
                let commands: [&[&[u8]]; 2] = [&[b"SCRIPT", b"FLUSH"], &[b"FLUSHALL"]];
                self.net.command(node, self.dice.one_of(&commands));
                self.tally.flushes += 1;
            }
        }
    }

    /// Releases all locks or lets them expire, and checks that nothing is left.
    pub fn come_to_rest(&mut self) {
        (0..CLIENTS).for_each(|client| self.release_all(client));
        // The time is longer than a ttl, a freeze and a quarantine together.
        for _ in 0..400 {
            self.pass(Duration::from_millis(10));
        }
        for (client, caller) in self.callers.iter().enumerate() {
            let core = self.net.get_client(client);
            let open = core.open_records() + core.open_ops();
            assert_eq!(open, 0, "client {client}: {:?}", core.open_records());
            assert!(caller.later.is_empty());
            let nodes = (0..NODES).map(NodeId::new);
            assert_eq!(nodes.map(|node| core.pending_releases(node)).sum::<usize>(), 0);
            // These timers may be open: the next probe of each node, the next check for silence,
            // and the end of a quarantine.
            let timers = core.open_timers();
            assert!(timers <= 3 * NODES, "client {client}: {timers} timers");
        }
    }
}

fn client(number: u8, start: Start) -> Coordinator {
    let labels = (0..NODES).map(|node| NodeSettings::new(format!("n{node}")));
    let mut settings = Settings::new(labels.collect());
    settings.max_ttl = MAX_TTL;
    settings.node_timeout = Duration::from_millis(50);
    settings.restart_guard = RestartGuard::On;
    let now = Instant::from_nanos(start.clock());
    let mut core = Coordinator::new(settings, [number; 32], now).expect("these settings work");
    if start == Start::BeforeWrap {
        core.start_before_wrap(BEFORE_WRAP);
    }
    core.report_lock_updates();
    core
}
