//! Two coordinators and three masters on simulated time. Every batch of acquires and releases takes
//! as much time as a program with a thousand pairs a second has for it, so 10^8 pairs take a day.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::proto::{
    Action, AutoExtend, Completion, Coordinator, Instant, LockOptions, Settings,
};
use redlatch::proto::{Lock, LockToken, NodeEvent, NodeId, NodeSettings, Outcome, RestartGuard};
use redlatch::testing::master::{ConnectionId, Master, Restart};

use crate::dice::Dice;

const NODES: usize = 3;
const CLIENTS: usize = 2;
/// Keys of each client that are in flight at once.
const BATCH: u64 = 32;
/// A key that both clients want, and how many acquires in a thousand are for it.
const SHARED: (&[u8], u64) = (b"shared", 15);
const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000 * MICRO;
const SECOND: u64 = 1_000 * MILLI;
const HOUR: u64 = 3_600 * SECOND;
/// What a batch of both clients takes: 64 pairs, if 10^8 take a day.
const BATCH_TIME: u64 = 55 * MILLI;
const WAY: u64 = 100 * MICRO;
const TTL: Duration = Duration::from_millis(400);
const MAX_TTL: Duration = Duration::from_secs(1);
/// Batches in a thousand that begin with a fault.
const FAULTS: u64 = 150;
/// The number of records that are opened before the counts of 32 bits wrap.
const BEFORE_WRAP: u32 = 3_000;

/// Where a run starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// A machine that has been up for eleven days.
    Usual,
    /// After nearly 2^32 records, requests and tasks, each record after nearly 2^32 rounds.
    BeforeWrap,
    /// The clock is at zero.
    ClockAtZero,
    /// The clock has three days left until its last moment.
    ClockNearEnd,
}

impl Start {
    pub const ALL: [Start; 4] =
        [Start::Usual, Start::BeforeWrap, Start::ClockAtZero, Start::ClockNearEnd];

    fn clock(self) -> u64 {
        match self {
            Start::Usual | Start::BeforeWrap => 1_000_000_000 * MILLI,
            Start::ClockAtZero => 0,
            // A whole second, as in the other starts: nodes count their uptime in seconds.
            Start::ClockNearEnd => (u64::MAX - 72 * HOUR) / SECOND * SECOND,
        }
    }
}

#[derive(Debug)]
struct Wire {
    connection: ConnectionId,
    /// What came while the node was frozen.
    backlog: Vec<u8>,
}

/// What a client wants of a lock that it gets.
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

#[derive(Debug)]
struct Client {
    core: Coordinator,
    wires: [Option<Wire>; NODES],
    /// Locks that are released when their extend has ended, or after a while, by their requests.
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
    began: u64,
    now: u64,
    dice: Dice,
    masters: Vec<Master>,
    frozen_until: [u64; NODES],
    clients: Vec<Client>,
    /// The token of the shared key's holder, and up to when it believes in its lock.
    holder: Option<(LockToken, u64)>,
    tally: Tally,
}

impl World {
    pub fn new(start: Start) -> World {
        let now = start.clock();
        let clients = (0..CLIENTS).map(|number| client(number as u8, start)).collect();
        let master = |number: usize| {
            let mut master = Master::new(number as u64, Instant::from_nanos(now));
            master.set_uptime(Instant::from_nanos(now), 24 * 60 * 60);
            master
        };
        let mut world = World {
            began: now,
            now,
            dice: Dice::new(7),
            masters: (0..NODES).map(master).collect(),
            frozen_until: [0; NODES],
            clients,
            holder: None,
            tally: Tally::default(),
        };
        world.settle();
        world
    }

    pub fn pairs(&self) -> u64 {
        self.tally.pairs
    }

    pub fn hours(&self) -> f64 {
        (self.now - self.began) as f64 / HOUR as f64
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn open_timers(&self) -> usize {
        self.clients.iter().map(|it| it.core.open_timers()).sum()
    }

    /// Batches, until so many pairs were made in total.
    pub fn run_until(&mut self, pairs: u64) {
        while self.tally.pairs < pairs {
            if self.dice.chance(FAULTS) {
                self.go_wrong();
            }
            let end = self.now + BATCH_TIME;
            for client in 0..CLIENTS {
                (0..BATCH).for_each(|slot| self.acquire(client, slot));
            }
            self.settle();
            self.release_later();
            self.settle();
            self.now = self.now.max(end);
        }
    }

    fn at(&self) -> Instant {
        Instant::from_nanos(self.now)
    }

    fn acquire(&mut self, client: usize, slot: u64) {
        let (now, it) = (self.at(), &mut self.clients[client]);
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
        if it.core.acquire(key, options, data, now).is_err() {
            self.tally.refused += 1;
        }
    }

    fn completed(&mut self, client: usize, done: Completion) {
        let (now, it) = (self.at(), &mut self.clients[client]);
        match done.result {
            Ok(Outcome::Acquired(lock)) => {
                let until = it.core.deadline(&lock).expect("it is handed out").as_nanos();
                if done.data & 128 > 0 {
                    let free = self.holder.as_ref().is_none_or(|holder| holder.1 <= self.now);
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
                if let Some(lock) = it.later.remove(&done.data) {
                    it.core.release_nowait(&lock, now);
                    self.leave(&lock.token());
                    self.tally.pairs += 1;
                }
            }
        }
    }

    /// The holder of the shared key has released it.
    fn leave(&mut self, token: &LockToken) {
        if self.holder.as_ref().is_some_and(|(held, _)| held == token) {
            self.holder = None;
        }
    }

    fn use_lock(&mut self, client: usize, data: u64, lock: Lock) {
        let (now, it) = (self.at(), &mut self.clients[client]);
        let plan = PLANS.iter().find(|(_, plan)| *plan as u64 == data & 127);
        match plan.expect("one of them").1 {
            Plan::Extend => {
                if it.core.extend(&lock, TTL, data, now).is_ok() {
                    if let Some((token, until)) = &mut self.holder {
                        // The lock may be extended up to this moment at most.
                        let end = self.now + TTL.as_nanos() as u64;
                        *until = if *token == lock.token() { end } else { *until };
                    }
                    it.later.insert(data, lock);
                } else {
                    it.core.release_nowait(&lock, now);
                    self.leave(&lock.token());
                }
            }
            Plan::Keep if data & 128 == 0 => {
                it.later.insert(data, lock);
            }
            // The lock is forgotten, so its record lapses at its deadline.
            Plan::Forget => self.tally.pairs += 1,
            Plan::GiveAway if data & 128 == 0 => {
                let key = it.core.key(&lock).expect("it is held").to_vec();
                let token = it.core.into_token(lock, now).expect("it is held");
                let (other, data) =
                    (&mut self.clients[1 - client], data & !127 | Plan::Release as u64);
                self.tally.given += 1;
                if other.core.adopt(&key, token, TTL, data, now).is_err() {
                    self.tally.refused += 1;
                }
            }
            Plan::ReleaseSilently => {
                it.core.release_nowait(&lock, now);
                self.leave(&lock.token());
                self.tally.pairs += 1;
            }
            _ => {
                let token = lock.token();
                it.core.release(lock, data, now);
                self.leave(&token);
            }
        }
    }

    fn release(&mut self, client: usize, data: u64) {
        let (now, it) = (self.at(), &mut self.clients[client]);
        if let Some(lock) = it.later.remove(&data) {
            let token = lock.token();
            it.core.release(lock, data, now);
            self.leave(&token);
        }
    }

    /// Releases what is kept, and now and then asks something else.
    fn release_later(&mut self) {
        for client in 0..CLIENTS {
            let (now, it) = (self.at(), &mut self.clients[client]);
            let last = it.later.keys().next_back().copied();
            match (self.dice.below(40), last) {
                (0, _) => {
                    it.core.inspect(SHARED.0, 0, now).expect("there is room");
                }
                (1, _) => {
                    let asked =
                        it.core.acquire(SHARED.0, LockOptions::new(TTL).wait_forever(), 0, now);
                    it.core.cancel(asked.expect("there is room"), now);
                }
                (2, Some(data)) => {
                    let token = it.later[&data].token();
                    it.core.extend_token(b"0:0", token, TTL, 0, now).expect("there is room");
                }
                _ => {}
            }
            if it.later.len() > 8 {
                let all: Vec<u64> = it.later.keys().copied().collect();
                all.into_iter().for_each(|data| self.release(client, data));
            }
        }
    }
}

/// Bytes, time and faults.
impl World {
    /// Bytes go both ways until none is left, and everyone takes what came of it.
    fn settle(&mut self) {
        loop {
            self.now = self.now.saturating_add(WAY);
            let mut moved = false;
            for client in 0..CLIENTS {
                self.act(client);
                for node in 0..NODES {
                    moved |= self.write(client, node);
                }
            }
            self.now = self.now.saturating_add(WAY);
            (0..NODES).for_each(|node| self.read(node));
            for client in 0..CLIENTS {
                let now = self.at();
                while let Some(done) = self.clients[client].core.poll_completion(now) {
                    moved = true;
                    self.completed(client, done);
                }
                let core = &mut self.clients[client].core;
                if core.next_timeout().is_some_and(|due| due <= now) {
                    core.handle_timeout(now);
                }
                while let Some(update) = core.poll_lock_update() {
                    let lost = matches!(update.kind, redlatch::LockUpdateKind::Lost(_));
                    self.tally.lost += u64::from(lost);
                }
                while let Some(event) = core.poll_node_event() {
                    let quarantined = matches!(event, NodeEvent::Quarantined { .. });
                    self.tally.quarantines += u64::from(quarantined);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn act(&mut self, client: usize) {
        let now = self.at();
        while let Some(action) = self.clients[client].core.poll_action() {
            match action {
                Action::Connect(node) => {
                    let connection = self.masters[node.index()].connect();
                    let it = &mut self.clients[client];
                    it.wires[node.index()] = Some(Wire { connection, backlog: Vec::new() });
                    it.core.handle_connected(node, now);
                }
                Action::Disconnect(node) => self.hang_up(client, node.index()),
            }
        }
    }

    fn write(&mut self, client: usize, node: usize) -> bool {
        let (now, id) = (self.at(), NodeId::new(node));
        let it = &mut self.clients[client];
        let Some(wire) = &mut it.wires[node] else { return false };
        let output = it.core.output(id);
        let count = output.len();
        if self.now < self.frozen_until[node] {
            wire.backlog.extend_from_slice(output);
        } else if !wire.backlog.is_empty() {
            wire.backlog.extend_from_slice(output);
            let bytes = std::mem::take(&mut wire.backlog);
            self.masters[node].handle_bytes(now, wire.connection, &bytes);
        } else if count > 0 {
            self.masters[node].handle_bytes(now, wire.connection, output);
        }
        if count > 0 {
            it.core.handle_sent(id, count, now);
        }
        count > 0
    }

    fn read(&mut self, node: usize) {
        let (now, id) = (self.at(), NodeId::new(node));
        while let Some(output) = self.masters[node].poll_output() {
            let belongs = |it: &&mut Client| {
                it.wires[node].as_ref().is_some_and(|wire| wire.connection == output.connection)
            };
            let Some(it) = self.clients.iter_mut().find(belongs) else { continue };
            if !output.bytes.is_empty() && it.core.node_state(id).is_connected() {
                it.core.handle_bytes(id, &output.bytes, now);
            }
            if output.closes {
                it.wires[node] = None;
                it.core.handle_disconnected(id, "closed by the node", now);
            }
        }
    }

    fn hang_up(&mut self, client: usize, node: usize) {
        if let Some(wire) = self.clients[client].wires[node].take() {
            self.masters[node].disconnect(wire.connection);
        }
    }

    fn go_wrong(&mut self) {
        let (now, node) = (self.at(), self.dice.place(NODES));
        match self.dice.below(8) {
            0..=3 => {
                let client = self.dice.place(CLIENTS);
                if self.clients[client].wires[node].is_some() {
                    self.hang_up(client, node);
                    let core = &mut self.clients[client].core;
                    core.handle_disconnected(NodeId::new(node), "reset", now);
                    self.tally.cuts += 1;
                }
            }
            4 | 5 => {
                self.frozen_until[node] = self.now + self.dice.one_of(&[40, 300, 900]) * MILLI;
                self.tally.freezes += 1;
            }
            6 => {
                let memory = self.dice.one_of(&[Restart::Empty, Restart::WithData]);
                self.masters[node].restart(now, memory);
                self.tally.restarts += 1;
            }
            _ => {
                let operator = self.masters[node].connect();
                let command = self.dice.one_of(&[&b"SCRIPT FLUSH\r\n"[..], b"FLUSHALL\r\n"]);
                self.masters[node].handle_bytes(now, operator, command);
                self.masters[node].disconnect(operator);
                self.tally.flushes += 1;
            }
        }
    }

    /// Everything is released or lapses. Then nothing is left.
    pub fn come_to_rest(&mut self) {
        for client in 0..CLIENTS {
            let all: Vec<u64> = self.clients[client].later.keys().copied().collect();
            all.into_iter().for_each(|data| self.release(client, data));
        }
        let open = |it: &Client| it.core.open_records() + it.core.open_ops();
        // The time is longer than a ttl, a freeze and a quarantine together.
        for _ in 0..400 {
            self.settle();
            self.now = self.now.saturating_add(10 * MILLI);
        }
        for (number, it) in self.clients.iter().enumerate() {
            assert_eq!(open(it), 0, "client {number}: {:?}", it.core.open_records());
            assert!(it.later.is_empty());
            let nodes = (0..NODES).map(NodeId::new);
            assert_eq!(nodes.map(|node| it.core.pending_releases(node)).sum::<usize>(), 0);
            // The timers that may be open: the next probe of each node, the next look for silence,
            // and the end of a quarantine.
            let timers = it.core.open_timers();
            assert!(timers <= 3 * NODES, "client {number}: {timers} timers");
        }
    }
}

fn client(number: u8, start: Start) -> Client {
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
    Client { core, wires: [const { None }; NODES], later: BTreeMap::new(), serial: 0 }
}
