//! One lock over several keys beside as many single locks that are taken in parallel: how long it
//! takes until all keys are held, and the processor time of the client and of one server.
//!
//! The hazard is the machine, which is never quiet. So the cases run in short rounds, one after the
//! other, and the figures of a case are medians over its rounds.
//!
//! Options: `--rounds N` (15), `--seconds-per-round F` (0.3).

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use redlatch::{Config, Engine, KeySet, Lock, LockOptions, Outcome, RestartGuard};

use support::Fleet;

/// How many masters a client has.
const NODES: usize = 5;

/// The ttl of a lock; no lock lives long enough for it to matter.
const TTL: Duration = Duration::from_secs(10);

/// How many keys are taken together, as one set or as single locks.
const CASES: [(usize, bool); 5] = [(1, false), (2, true), (2, false), (8, true), (8, false)];

fn main() {
    let (rounds, length) = options();
    let fleet = Fleet::start(NODES);
    let mut bench = Bench::connect(&fleet);
    for &(keys, set) in &CASES {
        bench.run(keys, set, Duration::from_millis(200));
    }
    let mut figures = vec![Vec::new(); CASES.len()];
    for _ in 0..rounds {
        for (case, &(keys, set)) in CASES.iter().enumerate() {
            figures[case].push(bench.round(&fleet, keys, set, length));
        }
    }
    println!(
        "{NODES} nodes, {rounds} rounds of {length:?}; all times are per turn of all keys, in us"
    );
    println!("{:<26} {:>8} {:>8} {:>8} {:>8}", "case", "p50", "p99", "client", "server");
    for (&(keys, set), figures) in CASES.iter().zip(&figures) {
        let name = match (keys, set) {
            (1, _) => "1 single lock".to_string(),
            (_, true) => format!("a set of {keys} keys"),
            (_, false) => format!("{keys} single locks"),
        };
        let median = |of: fn(&Figures) -> f64| {
            let mut values: Vec<f64> = figures.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (p50, p99) = (median(|it| it.p50), median(|it| it.p99));
        let (client, server) = (median(|it| it.client), median(|it| it.server));
        println!("{name:<26} {p50:>8.1} {p99:>8.1} {client:>8.1} {server:>8.1}");
    }
}

/// The rounds, and how long each of them is.
fn options() -> (usize, Duration) {
    let (mut rounds, mut seconds) = (15, 0.3);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<f64>().ok());
        match argument.as_str() {
            "--rounds" => rounds = number().expect("a number of rounds") as usize,
            "--seconds-per-round" => seconds = number().expect("a time in seconds"),
            "--bench" => {}
            other => panic!("{other}: no such option"),
        }
    }
    (rounds, Duration::from_secs_f64(seconds))
}

/// What one round showed, in microseconds.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// From the request until all keys are held.
    p50: f64,
    p99: f64,
    /// The processor time of the client for one acquire and release of all keys.
    client: f64,
    /// The processor time of the first server.
    server: f64,
}

/// The engine and its loop.
struct Bench {
    poll: Poll,
    events: Events,
    engine: Engine,
    held: Vec<Lock>,
}

impl Bench {
    fn connect(fleet: &Fleet) -> Bench {
        let config = Config::new(fleet.urls()).expect("the urls of the fleet");
        let config = config.restart_guard(RestartGuard::Off).node_timeout(Duration::from_secs(1));
        let poll = Poll::new().expect("a poller");
        let engine = Engine::new(config, poll.registry(), Token(0)).expect("an engine");
        let events = Events::with_capacity(64);
        let mut bench = Bench { poll, events, engine, held: Vec::new() };
        while bench.engine.coordinator().ready().len() < NODES {
            bench.turn();
        }
        bench
    }

    fn turn(&mut self) {
        let timeout = self.engine.prepare();
        self.poll.poll(&mut self.events, timeout).expect("the poller works");
        for event in &self.events {
            self.engine.handle_event(event);
        }
    }

    /// Takes all keys and gives them back, again and again. Returns how long each acquire took.
    fn run(&mut self, keys: usize, set: bool, length: Duration) -> Vec<Duration> {
        let names: Vec<String> = (0..keys).map(|key| format!("key-{key}")).collect();
        let all = KeySet::new(&names).expect("a good set");
        let mut took = Vec::new();
        let end = Instant::now() + length;
        while Instant::now() < end {
            let start = Instant::now();
            let locks = if set {
                self.engine.acquire(&all, LockOptions::once(TTL), 0).expect("there is room");
                1
            } else {
                for name in &names {
                    self.engine.acquire(name, LockOptions::once(TTL), 0).expect("there is room");
                }
                keys
            };
            self.until(locks);
            took.push(start.elapsed());
            for lock in std::mem::take(&mut self.held) {
                self.engine.release(lock, 0);
            }
            self.until(locks);
        }
        took
    }

    /// Drives the engine until this many requests have ended, and keeps the locks.
    fn until(&mut self, mut open: usize) {
        while open > 0 {
            while let Some(done) = self.engine.poll_completion() {
                open -= 1;
                match done.result.expect("the keys are free") {
                    Outcome::Acquired(lock) => self.held.push(lock),
                    Outcome::Released(_) => {}
                    other => panic!("a free key came to {other:?}"),
                }
            }
            if open > 0 {
                self.turn();
            }
        }
    }

    fn round(&mut self, fleet: &Fleet, keys: usize, set: bool, length: Duration) -> Figures {
        let (client, server) = (cpu(std::process::id()), cpu(fleet[0].pid()));
        let mut took = self.run(keys, set, length);
        let (client, server) = (cpu(std::process::id()) - client, cpu(fleet[0].pid()) - server);
        took.sort();
        let turns = took.len() as f64;
        let part = |of: usize| took[took.len() * of / 100].as_secs_f64() * 1e6;
        let each = |nanos: u64| nanos as f64 / turns / 1e3;
        Figures { p50: part(50), p99: part(99), client: each(client), server: each(server) }
    }
}

/// How long the first thread of a process was on a processor, in nanoseconds.
fn cpu(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).expect("Linux");
    let nanos = text.split(' ').next().and_then(|number| number.parse().ok());
    nanos.expect("the first number")
}
