//! Waiting for a key that another holds, on real servers and between processes: which waiter gets
//! it next, when, and what is left of those that gave up.
//!
//! If a rule is about time, the tests look at the order of events, or at a bound ten times what is
//! expected: these machines are shared. What was measured is printed.

#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]

#[path = "../support/mod.rs"]
mod support;

mod cancelled;
mod crowd;
mod death;
mod hand_over;
mod inside;
mod odd_nodes;
mod process;
mod uncontended;

use std::time::{Duration, Instant};

use redlatch::{Config, Engine, Lock, LockOptions, NodeId, Op, Outcome, RestartGuard};
use support::{Fleet, Node, Proxy, eventually};

/// No test waits for the end of such a lock: a waiter that gets it was notified, or looked.
const TTL: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// Ten times the longest that a waiter goes without a look when no release is reported to it.
const LOOKED_BY: Duration = Duration::from_secs(5);

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Without the restart guard: these servers are seconds old, and nothing was ever locked there.
fn config<I>(urls: I) -> Config
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    Config::new(urls).expect("good addresses").restart_guard(RestartGuard::Off)
}

fn waiting() -> LockOptions {
    LockOptions::new(TTL).wait(60 * SECOND)
}

/// The moment on the clock of deadlines, which is the same in all processes.
fn now() -> u64 {
    redlatch::clock::now().as_nanos()
}

/// Lets time pass: only where its passing is the point.
fn let_pass(time: Duration) {
    std::thread::sleep(time);
}

fn nothing_is_left<'a>(nodes: impl IntoIterator<Item = &'a Node>) {
    let nodes: Vec<&Node> = nodes.into_iter().collect();
    eventually(5 * SECOND, "no key is left", || nodes.iter().all(|node| node.keys().is_empty()));
}

/// An engine on a poller of its own, as an embedder has it.
struct Loop {
    engine: Engine,
    poll: mio::Poll,
    events: mio::Events,
}

impl Loop {
    /// With all nodes ready.
    fn new(config: Config) -> Loop {
        let nodes = config.settings().nodes.len();
        // No healthy node misses it here.
        let config = config.node_timeout(SECOND);
        let poll = mio::Poll::new().expect("a poller");
        let engine = Engine::new(config, poll.registry(), mio::Token(0)).expect("good settings");
        let mut embedded = Loop { engine, poll, events: mio::Events::with_capacity(64) };
        embedded.turn_until("the nodes are ready", |it| it.coordinator().ready().len() == nodes);
        embedded
    }

    /// Prepares, sleeps for at most this long, takes the events.
    fn turn(&mut self, most: Duration) {
        let timeout = self.engine.prepare().unwrap_or(most).min(most);
        self.poll.poll(&mut self.events, Some(timeout)).expect("the poller works");
        for event in &self.events {
            self.engine.handle_event(event);
        }
    }

    #[track_caller]
    fn turn_until(&mut self, what: &str, mut holds: impl FnMut(&mut Engine) -> bool) {
        eventually(30 * SECOND, what, || {
            self.turn(millis(10));
            holds(&mut self.engine)
        });
    }

    #[track_caller]
    fn turn_for(&mut self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.turn(millis(1));
        }
    }

    /// Waits for one lock.
    #[track_caller]
    fn lock(&mut self, key: &str) -> Lock {
        let op = self.engine.acquire(key, waiting(), 0).expect("there is room");
        self.locked(op)
    }

    #[track_caller]
    fn locked(&mut self, op: Op) -> Lock {
        let mut ended = None;
        self.turn_until("it has the lock", |engine| {
            while let Some(done) = engine.poll_completion() {
                if done.op == op {
                    ended = Some(done.result);
                }
            }
            ended.is_some()
        });
        match ended {
            Some(Ok(Outcome::Acquired(lock))) => lock,
            other => panic!("no lock: {other:?}"),
        }
    }

    /// No request, pending release or wait is left.
    #[track_caller]
    fn comes_to_rest(&mut self) {
        self.turn_until("nothing is open", |engine| {
            while engine.poll_completion().is_some() {}
            let core = engine.coordinator();
            let nodes = (0..core.settings().nodes.len()).map(NodeId::new);
            let owed: usize = nodes.map(|node| core.pending_releases(node)).sum();
            owed == 0 && core.open_records() == 0 && core.open_ops() == 0
        });
    }
}

/// Enough randomness for moments, from a seed that is printed.
struct Dice(u64);

impl Dice {
    fn new() -> Dice {
        let seed = now() | 1;
        println!("seed {seed}");
        Dice(seed)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}
