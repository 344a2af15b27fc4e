//! One lock over several keys beside as many single locks that are taken in parallel: how long it
//! takes until all keys are held, and the processor time of the client and of one server.
//!
//! The hazard is the machine, which is never quiet. So the cases run in short rounds, one after the
//! other, and the figures of a case are medians over its rounds.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "../../tests/support/engine_loop.rs"]
mod engine_loop;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use kit::clap::{self, Parser};
use kit::{Measured, Meter, Round, Rounds, Samples, Table};
use redlatch::{Config, KeySet, Lock, LockOptions, Outcome, RestartGuard};

use engine_loop::Loop;
use support::{Fleet, Node, SECOND};

/// How many masters a client has.
const NODES: usize = 5;

/// The ttl of a lock. It is so long that no lock expires.
const TTL: Duration = Duration::from_secs(10);

/// How many keys are taken together, as one set or as single locks.
const CASES: [(usize, bool); 5] = [(1, false), (2, true), (2, false), (8, true), (8, false)];

/// One lock over several keys beside as many single locks.
#[derive(Debug, Parser)]
struct Options {
    #[command(flatten)]
    rounds: Rounds<15, 300>,
}

fn main() {
    let Options { rounds } = kit::read();
    let fleet = Fleet::start(NODES);
    let mut bench = Bench::connect(&fleet);
    for &(keys, set) in &CASES {
        bench.run(keys, set, Duration::from_millis(200));
    }
    let figures = Measured::in_turns(CASES.len(), rounds.count, |case, _| {
        let (keys, set) = CASES[case];
        bench.round(&fleet[0], keys, set, rounds.length)
    });
    println!("{NODES} nodes, {rounds}; all times are per turn of all keys, in us");
    let table = Table::new([(":case", 16), ("p50", 8), ("p99", 8), ("client", 8), ("server", 8)]);
    println!("\n{}", table.head());
    for (case, &(keys, set)) in CASES.iter().enumerate() {
        let name = match (keys, set) {
            (1, _) => "1 single lock".to_string(),
            (_, true) => format!("a set of {keys} keys"),
            (_, false) => format!("{keys} single locks"),
        };
        let cell = |of: fn(&Figures) -> f64| format!("{:.1}", figures.median(case, of));
        let times = [cell(|it| it.0.p50_us()), cell(|it| it.0.p99_us())];
        let cpu = [cell(|it| it.0.cpu_us()), cell(|it| it.1)];
        println!("{}", table.row([name].into_iter().chain(times).chain(cpu)));
    }
}

/// The figures of one round: the time of each turn, from the request until all keys are held, and
/// the processor time of the first server for each of them, in microseconds.
type Figures = (Round, f64);

/// The engine and its loop.
struct Bench {
    locks: Loop,
    held: Vec<Lock>,
}

impl Bench {
    fn connect(fleet: &Fleet) -> Bench {
        let config = Config::new(fleet.urls()).expect("the urls of the fleet");
        let config = config.restart_guard(RestartGuard::Off).node_timeout(SECOND);
        Bench { locks: Loop::ready(config), held: Vec::new() }
    }

    /// Takes all keys and gives them back, again and again.
    fn run(&mut self, keys: usize, set: bool, length: Duration) -> Round {
        let names: Vec<String> = (0..keys).map(|key| format!("key-{key}")).collect();
        let all = KeySet::new(&names).expect("a good set");
        let mut samples = Samples::default();
        let meter = Meter::start_of_thread();
        let end = meter.until(length);
        loop {
            let asked = Instant::now();
            if asked >= end {
                return meter.stop(samples);
            }
            let engine = &mut self.locks.engine;
            let locks = if set {
                engine.acquire(&all, LockOptions::once(TTL), 0).expect("there is room");
                1
            } else {
                for name in &names {
                    engine.acquire(name, LockOptions::once(TTL), 0).expect("there is room");
                }
                keys
            };
            self.until(locks);
            samples.acquired(asked);
            for lock in std::mem::take(&mut self.held) {
                self.locks.engine.release(lock, 0);
            }
            self.until(locks);
        }
    }

    /// Drives the engine until this many requests have ended, and keeps the locks.
    fn until(&mut self, mut open: usize) {
        while open > 0 {
            while let Some(done) = self.locks.engine.poll_completion() {
                open -= 1;
                match done.result.expect("the keys are free") {
                    Outcome::Acquired(lock) => self.held.push(lock),
                    Outcome::Released(_) => {}
                    other => panic!("a free key came to {other:?}"),
                }
            }
            if open > 0 {
                self.locks.turn_within(SECOND);
            }
        }
    }

    fn round(&mut self, node: &Node, keys: usize, set: bool, length: Duration) -> Figures {
        let server = cpu(node.pid());
        let round = self.run(keys, set, length);
        let server = cpu(node.pid()).saturating_sub(server);
        let turns = round.pairs();
        (round, server.as_secs_f64() * 1e6 / turns)
    }
}

/// How long the first thread of a process was on a processor.
fn cpu(process: u32) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).expect("Linux");
    let nanos = text.split(' ').next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanos.expect("the first number"))
}
