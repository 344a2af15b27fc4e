//! In the steady state a lock costs no allocation, neither in the coordinator nor in the engine.
//!
//! Allocations are counted per thread, so that those of other threads do not matter. The hazard is
//! a warm-up that is too short: a buffer grows to the most that was ever in flight, so the warm-up
//! has to put more in flight than the counted part does.

#![cfg(feature = "net")]
#![expect(unsafe_code, reason = "an allocator that counts is unsafe to write")]
#![allow(clippy::disallowed_methods, reason = "a test waits for real servers, on a real clock")]

#[path = "support/by_hand.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod by_hand;
#[path = "support/counting.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod counting;
#[path = "support/ready.rs"]
mod ready;
mod support;

use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use redlatch::{Client, Config, Engine, KeySet, Lock, LockOptions, Outcome, RestartGuard};

use by_hand::ByHand;
use counting::{allocated, allocated_everywhere};
use support::Fleet;

/// A test that counts on all threads locks this for writing, so that no other test runs beside it.
static ALONE: RwLock<()> = RwLock::new(());

const PAIRS: u64 = 10_000;
/// How many locks a node may be behind.
const LAG: u64 = 2_000;
const TTL: Duration = Duration::from_secs(10);

/// A node timeout so long that no node counts as silent, which would change the count.
fn guarded(fleet: &Fleet) -> Config {
    let config = Config::new(fleet.urls()).expect("the urls of the fleet");
    config.node_timeout(Duration::from_secs(5))
}

/// Runs the work several times, and returns by how much this counter grew where it grew least.
fn fewest_of(times: u32, count: fn() -> u64, mut work: impl FnMut()) -> u64 {
    let grown = (0..times).map(|_| {
        let before = count();
        work();
        count() - before
    });
    grown.min().expect("it ran")
}

#[test]
fn allocation_count_is_per_thread() {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let before = allocated();
    let mut bytes: Vec<u8> = std::hint::black_box(Vec::with_capacity(1));
    bytes.reserve(1_000);
    assert_eq!(allocated() - before, 2);
    let other = std::thread::spawn(|| {
        let before = allocated();
        (0..1_000).for_each(|_| drop(std::hint::black_box(vec![1_u8])));
        allocated() - before
    });
    assert_eq!(other.join().expect("it ends"), 1_000);
    assert!(allocated() - before < 1_000);
}

#[test]
fn the_engine_allocates_nothing_with_one_lock_in_flight() {
    engine_allocates_nothing(1);
}

#[test]
fn the_engine_allocates_nothing_with_64_locks_in_flight() {
    engine_allocates_nothing(64);
}

#[test]
fn the_engine_allocates_nothing_with_512_locks_in_flight() {
    engine_allocates_nothing(512);
}

fn engine_allocates_nothing(in_flight: usize) {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let fleet = Fleet::start(5);
    let mut ours = Ours::connect(&fleet, in_flight);
    // The largest turn of every buffer: all locks are requested in one turn, and all are released
    // in one turn.
    ours.take_all_then_give_all_back();
    // If a node is late, requests to it and their records pile up. So in the warm-up each node is
    // late once.
    for node in &fleet {
        node.stop();
        ours.pairs(LAG, usize::MAX);
        node.cont();
        ours.turn_until(|engine| engine.coordinator().open_records() == 0);
    }

    // A buffer grows once more if a node is later than in the warm-up.
    let fewest = fewest_of(5, allocated, || ours.pairs(PAIRS / 5, LAG as usize / 2));
    assert_eq!(fewest, 0, "allocations in {} pairs with {in_flight} in flight", PAIRS / 5);
    ours.end();
}

/// The blocking client has one request in flight for each call, so the test varies how many locks
/// are held.
#[test]
fn the_client_allocates_nothing_with_1_64_and_512_locks_held() {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    for count in [1, 64, 512] {
        client_allocates_nothing(count);
    }
}

fn client_allocates_nothing(held: usize) {
    let fleet = Fleet::start(5);
    let client = ready::client(guarded(&fleet).restart_guard(RestartGuard::Off));
    let keys: Vec<String> = (0..held).map(|slot| format!("key:{slot:04}")).collect();
    let mut guards = Vec::with_capacity(held);
    let mut pairs = |count: usize| {
        for _ in 0..count.div_ceil(held) {
            guards.extend(keys.iter().enumerate().map(|(slot, key)| {
                let locked = match slot % 2 {
                    0 => client.lock(key, TTL),
                    _ => client.lock([key], TTL),
                };
                locked.expect("it is free")
            }));
            for guard in guards.drain(..) {
                guard.release().expect("it is given back");
            }
        }
    };
    pairs(2 * held);
    for node in &fleet {
        node.stop();
        pairs(LAG as usize);
        node.cont();
        pairs(2 * held);
    }
    // A call returns at the majority. If a node is later than in the warm-up, a buffer grows once
    // more.
    let fewest = fewest_of(5, allocated, || pairs(PAIRS as usize / 5));
    assert_eq!(fewest, 0, "allocations in {} pairs with {held} held", PAIRS / 5);
}

/// The votes of a fenced lock and the keys of a set are kept in the memory of earlier locks.
#[test]
fn a_fenced_pair_and_a_pair_of_eight_keys_allocate_nothing() {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let fleet = Fleet::start(3);
    let client = ready::vouched(guarded(&fleet).key_prefix("job:"));
    ready::wait_ready(&client, 3);
    let eight = KeySet::new((0..8).map(|key| format!("key-{key}"))).expect("a good set");
    let fenced = || {
        let guard = client.lock("key", LockOptions::new(TTL).fenced()).expect("it is free");
        assert!(guard.fence().is_some());
        guard.release().expect("it is given back");
    };
    let set = || {
        let guard = client.lock(&eight, TTL).expect("all are free");
        guard.release().expect("it is given back");
    };
    for (what, pair) in [("fenced", &fenced as &dyn Fn()), ("of eight keys", &set)] {
        let pairs = |count: u64| (0..count).for_each(|_| pair());
        pairs(LAG);
        let fewest = fewest_of(5, allocated, || pairs(PAIRS / 5));
        assert_eq!(fewest, 0, "allocations in {} pairs {what}", PAIRS / 5);
    }
}

/// A client at rest probes its nodes: it reads the marker and the memory of each.
#[test]
fn probes_allocate_nothing() {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let fleet = Fleet::start(3);
    let config = guarded(&fleet).probe_interval(Duration::from_millis(5));
    let client = Client::connect(config).expect("good settings");
    let probe = |seconds: u64| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) {
            client.drive(Duration::from_millis(10)).expect("the poller works");
        }
    };
    let asked = || {
        let stats = fleet[0].command(&["INFO", "commandstats"]).text();
        let of_time = stats.lines().find_map(|line| line.strip_prefix("cmdstat_time:calls="));
        of_time.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    probe(1);
    let earlier = asked();
    let fewest = fewest_of(3, allocated, || probe(1));
    let probes = asked() - earlier;
    println!("{probes} probes of each node, and {fewest} allocations in a third of them");
    assert!(probes >= 30, "it has probed");
    assert_eq!(fewest, 0);
}

/// One thread waits for its lock while another drives the client: allocations of both are counted.
#[test]
fn the_shared_client_allocates_nothing() {
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    let fleet = Fleet::start(5);
    let client = ready::shared(guarded(&fleet).restart_guard(RestartGuard::Off));
    let pairs = |count: u64, most: usize| {
        for number in 0..count {
            let locked = match number % 3 {
                0 => client.lock("key", TTL).wait(),
                1 => client.lock(b"key", TTL).wait(),
                _ => client.lock(["key"], TTL).wait(),
            };
            let guard = locked.expect("it is free");
            guard.check().expect("it is held");
            guard.release().wait().expect("it is given back");
            while client.gauges().records > most {
                std::thread::yield_now();
            }
        }
    };
    pairs(100, usize::MAX);
    for node in &fleet {
        node.stop();
        pairs(LAG, usize::MAX);
        node.cont();
        pairs(1, 0);
    }
    // The test harness may allocate meanwhile.
    let fewest = fewest_of(5, allocated_everywhere, || pairs(PAIRS / 5, LAG as usize / 2));
    assert_eq!(fewest, 0, "allocations in {} pairs", PAIRS / 5);
}

/// The engine, in the loop of a program that embeds it.
struct Ours {
    poll: Poll,
    events: Events,
    engine: Engine,
    keys: Vec<String>,
    held: Vec<Lock>,
    /// Keys that are not in flight.
    idle: Vec<u64>,
}

impl Ours {
    fn connect(fleet: &Fleet, in_flight: usize) -> Ours {
        let config = guarded(fleet).restart_guard(RestartGuard::Off);
        let config = config.owner("host:4711/job").key_prefix("job:");
        let poll = Poll::new().expect("a poller");
        let engine = Engine::new(config, poll.registry(), Token(0)).expect("an engine");
        let keys = (0..in_flight).map(|slot| format!("key:{slot:04}")).collect();
        let events = Events::with_capacity(64);
        let held = Vec::with_capacity(in_flight);
        let idle = Vec::with_capacity(in_flight);
        let mut ours = Ours { poll, events, engine, keys, held, idle };
        ours.turn_until(|engine| engine.coordinator().ready().len() == 5);
        ours
    }

    fn turn(&mut self) {
        let timeout = self.engine.prepare();
        self.poll.poll(&mut self.events, timeout).expect("the poller works");
        for event in &self.events {
            self.engine.handle_event(event);
        }
    }

    fn turn_until(&mut self, is_so: impl Fn(&Engine) -> bool) {
        let started = Instant::now();
        while !is_so(&self.engine) {
            self.turn();
            assert!(started.elapsed() < Duration::from_secs(10), "it takes too long");
        }
    }

    fn acquire(&mut self, slot: u64) {
        self.engine
            .acquire(&self.keys[slot as usize], LockOptions::once(TTL), slot)
            .expect("there is room");
    }

    fn take_all_then_give_all_back(&mut self) {
        let count = self.keys.len();
        (0..count).for_each(|slot| self.acquire(slot as u64));
        while self.held.len() < count {
            self.turn();
            while let Some(done) = self.engine.poll_completion() {
                let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{done:?}") };
                self.held.push(lock);
            }
        }
        while let Some(lock) = self.held.pop() {
            self.engine.release(lock, 0);
        }
        let mut released = 0;
        while released < count {
            self.turn();
            released += std::iter::from_fn(|| self.engine.poll_completion()).count();
        }
    }

    /// Acquires and releases `count` locks. All keys are in flight while fewer than `most` records
    /// are open: on a busy machine a node can be thousands of locks behind the majority.
    fn pairs(&mut self, count: u64, most: usize) {
        let (mut begun, mut done) = (0, 0);
        self.idle.extend(0..self.keys.len() as u64);
        while done < count {
            while begun < count && self.engine.coordinator().open_records() < most {
                let Some(slot) = self.idle.pop() else { break };
                self.acquire(slot);
                begun += 1;
            }
            self.turn();
            while let Some(end) = self.engine.poll_completion() {
                match end.result {
                    Ok(Outcome::Acquired(lock)) => {
                        self.engine.release(lock, end.data);
                    }
                    Ok(Outcome::Released(_)) => {
                        self.idle.push(end.data);
                        done += 1;
                    }
                    other => panic!("a free key came to {other:?}"),
                }
            }
        }
        self.idle.clear();
    }

    /// Checks at the end that no request and no record is left.
    fn end(mut self) {
        self.turn_until(|engine| engine.coordinator().open_records() == 0);
        assert_eq!(self.engine.coordinator().open_ops(), 0);
    }
}

#[test]
fn the_coordinator_allocates_nothing() {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    for in_flight in [1, 64, 512] {
        let mut by_hand = ByHand::connect(in_flight);
        let mut locks = Vec::with_capacity(in_flight);
        // This many locks, so that one is handed over: a client that asks again at once hands over
        // one of 64.
        by_hand.pairs_into(66 * in_flight, TTL, &mut locks);
        let before = allocated();
        by_hand.pairs_into(PAIRS as usize, TTL, &mut locks);
        let allocations = allocated() - before;
        assert_eq!(allocations, 0, "allocations in {PAIRS} pairs with {in_flight} in flight");
        assert_eq!(by_hand.coordinator.open_records(), 0);
    }
}

/// The core takes a key by reference, whatever its type is.
#[test]
#[expect(clippy::needless_borrows_for_generic_args, reason = "every type is tried")]
fn acquire_of_a_key_of_any_type_allocates_nothing() {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let mut by_hand = ByHand::connect(1);
    let mut locks = Vec::with_capacity(1);
    let (text, set) = (String::from("key"), KeySet::new(["key"]).expect("it is one key"));
    let (list, shared) = (vec![text.clone()], std::sync::Arc::<str>::from("key"));
    let mut allocations = 0;
    for _ in 0..PAIRS / 10 {
        let before = allocated();
        by_hand.pair_of("key", TTL, &mut locks);
        by_hand.pair_of(&text, TTL, &mut locks);
        by_hand.pair_of(b"key", TTL, &mut locks);
        by_hand.pair_of(&b"key"[..], TTL, &mut locks);
        by_hand.pair_of(&shared, TTL, &mut locks);
        by_hand.pair_of(["key"], TTL, &mut locks);
        by_hand.pair_of(&["key"], TTL, &mut locks);
        by_hand.pair_of(&list, TTL, &mut locks);
        by_hand.pair_of(&list[..], TTL, &mut locks);
        by_hand.pair_of(&set, TTL, &mut locks);
        // The last round counts, because buffers grow in the first ones.
        allocations = allocated() - before;
    }
    assert_eq!(allocations, 0, "allocations for ten pairs of one key");
}
