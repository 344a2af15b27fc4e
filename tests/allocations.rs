//! In the steady state a lock costs no allocation: neither in the coordinator nor in the engine.
//!
//! Allocations are counted for each thread by itself, so that those of other threads do not count.
//! The hazard is a warm-up that is too short: buffers grow to the most that was ever in flight, so
//! the warm-up has to see more than the counted part after it.

#![cfg(feature = "net")]
#![expect(unsafe_code, reason = "an allocator that counts is unsafe to write")]
#![allow(clippy::disallowed_methods, reason = "a test waits for real servers, on a real clock")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use redlatch::proto::{Action, Coordinator};
use redlatch::proto::{NodeSettings, Settings};
use redlatch::{
    Config, Engine, Lock, LockOptions, NodeId, NodeState, Outcome, RestartGuard, SharedClient,
};

use support::Fleet;

/// Allocations on all threads, of which the driver of a shared client is one.
static EVERYWHERE: AtomicU64 = AtomicU64::new(0);

/// Only one test counts everywhere: others wait for it, and run by themselves.
static ALONE: RwLock<()> = RwLock::new(());

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    // Const and without a destructor: reading it allocates nothing by itself.
    static ALLOCATED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's allocator; counting touches only a cell of the thread's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        EVERYWHERE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are the ones that are asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.set(ALLOCATED.get() + 1);
        EVERYWHERE.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

/// How often this thread has allocated, or made an allocation larger.
fn allocated() -> u64 {
    ALLOCATED.get()
}

const PAIRS: u64 = 10_000;
/// How many pairs a node may be late by.
const LAG: u64 = 1_000;
const TTL: Duration = Duration::from_secs(10);

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

fn engine_allocates_nothing(in_flight: usize) {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let fleet = Fleet::start(5);
    let mut ours = Ours::connect(&fleet, in_flight);
    // Every buffer sees its largest turn: all are asked at once, and all given back at once.
    ours.take_all_then_give_all_back();
    // A late node lets questions, and their records, pile up: each node may be late.
    for node in &fleet {
        node.stop();
        ours.pairs(LAG, usize::MAX);
        node.cont();
        ours.turn_until(|engine| engine.coordinator().open_records() == 0);
    }

    let before = allocated();
    ours.pairs(PAIRS, LAG as usize / 2);
    let allocations = allocated() - before;
    assert_eq!(allocations, 0, "allocations in {PAIRS} pairs with {in_flight} in flight");
    ours.end();
}

/// A pair from a thread that waits, with the driver on another: both are counted.
#[test]
fn the_shared_client_allocates_nothing() {
    let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
    let fleet = Fleet::start(5);
    let config = Config::new(fleet.urls()).expect("the urls of the fleet");
    let config = config.restart_guard(RestartGuard::Off).node_timeout(Duration::from_secs(5));
    let client = SharedClient::connect(config).expect("good settings");
    let pairs = |count: u64, most: usize| {
        for _ in 0..count {
            let guard = client.lock("key", TTL).wait().expect("it is free");
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
    // What the harness allocates meanwhile is not ours: so there is more than one try.
    let mut fewest = u64::MAX;
    for _ in 0..5 {
        let before = EVERYWHERE.load(Ordering::Relaxed);
        pairs(PAIRS / 5, LAG as usize / 2);
        fewest = fewest.min(EVERYWHERE.load(Ordering::Relaxed) - before);
    }
    assert_eq!(fewest, 0, "allocations in {} pairs", PAIRS / 5);
}

/// The engine and the loop of a program that uses it.
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
        // No node is found silent: a busy machine must not change what is counted.
        let config = Config::new(fleet.urls()).expect("the urls of the fleet");
        let config = config.restart_guard(RestartGuard::Off);
        let config =
            config.node_timeout(Duration::from_secs(5)).owner("host:4711/job").key_prefix("job:");
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

    /// So many pairs, with all keys in flight as long as fewer than `most` records are open: on a
    /// busy machine a node can be thousands of pairs later than a majority.
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

    /// The counted part was complete: no request and no record is left.
    fn end(mut self) {
        self.turn_until(|engine| engine.coordinator().open_records() == 0);
        assert_eq!(self.engine.coordinator().open_ops(), 0);
    }
}

#[test]
fn the_coordinator_allocates_nothing() {
    let _others = ALONE.read().unwrap_or_else(PoisonError::into_inner);
    let mut by_hand = ByHand::connect();
    by_hand.pairs(100);
    let before = allocated();
    by_hand.pairs(PAIRS);
    let allocations = allocated() - before;
    assert_eq!(allocations, 0, "allocations in {PAIRS} pairs");
    assert_eq!(by_hand.coordinator.open_records(), 0);
}

/// A coordinator without sockets: the test answers its requests by hand, at once, for every node.
struct ByHand {
    coordinator: Coordinator,
    replies: Vec<u8>,
    now: u64,
}

const NODES: usize = 5;

impl ByHand {
    fn connect() -> ByHand {
        let nodes = (0..NODES).map(|index| NodeSettings::new(index.to_string())).collect();
        let coordinator = Coordinator::new(Settings::new(nodes), [7; 32], at(0));
        let coordinator = coordinator.expect("these settings work");
        let mut by_hand = ByHand { coordinator, replies: Vec::with_capacity(4096), now: 0 };
        while let Some(action) = by_hand.coordinator.poll_action() {
            let Action::Connect(node) = action else { panic!("{action:?}") };
            by_hand.coordinator.handle_connected(node, at(0));
        }
        by_hand.answer();
        let all_ready = (0..NODES)
            .all(|node| by_hand.coordinator.node_state(NodeId::new(node)) == NodeState::Ready);
        assert!(all_ready, "the handshake was answered");
        by_hand
    }

    fn pairs(&mut self, count: u64) {
        for number in 0..count {
            let acquire =
                self.coordinator.acquire(b"key", TTL, Duration::ZERO, number, at(self.now));
            acquire.expect("there is room");
            self.answer();
            let done = self.coordinator.poll_completion(at(self.now)).expect("all granted");
            let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{done:?}") };
            self.coordinator.release(lock, number, at(self.now));
            self.answer();
            let done = self.coordinator.poll_completion(at(self.now)).expect("all let go");
            assert!(matches!(done.result, Ok(Outcome::Released(_))));
        }
    }

    /// Every node answers everything that was asked of it, a tenth of a millisecond later.
    fn answer(&mut self) {
        self.now += 100_000;
        if self.coordinator.next_timeout().is_some_and(|due| due <= at(self.now)) {
            self.coordinator.handle_timeout(at(self.now));
        }
        for node in (0..NODES).map(NodeId::new) {
            self.replies.clear();
            let output = self.coordinator.output(node);
            let count = output.len();
            answer_commands(output, node, &mut self.replies);
            self.coordinator.handle_sent(node, count, at(self.now));
            self.coordinator.handle_bytes(node, &self.replies, at(self.now));
        }
    }
}

fn at(nanos: u64) -> redlatch::clock::Instant {
    redlatch::clock::Instant::from_nanos(nanos)
}

/// Answers as a master would on which every key is free, and every release finds its token.
fn answer_commands(mut commands: &[u8], node: NodeId, replies: &mut Vec<u8>) {
    while !commands.is_empty() {
        let arguments = length(&mut commands, b'*');
        let mut name: &[u8] = b"";
        for index in 0..arguments {
            let bytes = length(&mut commands, b'$');
            let (argument, rest) = commands.split_at(bytes);
            commands = &rest[2..];
            if index == 0 {
                name = argument;
            }
        }
        match name {
            b"SET" => replies.extend_from_slice(b"+OK\r\n"),
            b"EVALSHA" => replies.extend_from_slice(b":1\r\n"),
            b"HELLO" => replies.extend_from_slice(b"%1\r\n$2\r\nid\r\n:1\r\n"),
            b"INFO" => {
                let info = format!(
                    "run_id:{:040}\r\nuptime_in_seconds:86400\r\nrole:master\r\n",
                    node.index()
                );
                replies.extend_from_slice(format!("${}\r\n{info}\r\n", info.len()).as_bytes());
            }
            b"EVAL" => replies.extend_from_slice(b"-ERR no arguments\r\n"),
            b"SCRIPT" => replies.extend_from_slice(b"$3\r\nsha\r\n"),
            _ => replies.extend_from_slice(b"-ERR unknown command\r\n"),
        }
    }
}

/// Takes one line, such as `*5` or `$3`, and returns its number.
fn length(commands: &mut &[u8], kind: u8) -> usize {
    assert_eq!(commands[0], kind);
    let end = commands.iter().position(|&byte| byte == b'\r').expect("whole commands");
    let digits = std::str::from_utf8(&commands[1..end]).expect("digits");
    *commands = &commands[end + 2..];
    digits.parse().expect("a number")
}
