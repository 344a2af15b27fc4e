//! Many locks that one client holds and renews: what that costs in time on the processor, in
//! memory, and in turns of the loop that others have to wait for.
//!
//! `cargo bench --bench kept` starts the servers by itself. The hazard is a loop that is too slow
//! for its locks: every lock has to be there at the end, and none may have been lost on the way.

#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use kit::clap::{self, Parser};
use kit::{process_cpu, quantile};
use mio::{Events, Poll, Token};
use redlatch::{AutoExtend, Config, Engine, LockOptions, LockUpdateKind, Outcome, RestartGuard};
use support::Fleet;

/// Many locks that one client holds and renews.
#[derive(Debug, Parser)]
struct Options {
    #[arg(long, default_value_t = 100_000)]
    locks: u64,
    #[arg(long = "ttl-s", default_value = "30", value_parser = kit::seconds)]
    ttl: Duration,
    /// How long the locks are held.
    #[arg(long = "seconds", default_value = "40", value_parser = kit::seconds)]
    length: Duration,
    #[arg(long, default_value_t = 5, value_parser = kit::positive)]
    nodes: usize,
}

fn main() {
    let options: Options = kit::read();
    let fleet = Fleet::start(options.nodes);
    let before = resident();
    let mut held = Held::new(&fleet, &options);
    held.acquire_all(&options);
    let memory = resident().saturating_sub(before);
    println!(
        "{} locks on {} nodes, ttl {:?}; {} bytes of memory a lock",
        options.locks,
        options.nodes,
        options.ttl,
        memory / options.locks
    );
    held.keep_for(options.length);
    let missing = fleet.iter().map(|node| node.command(&["DBSIZE"]).int() as u64);
    let missing: Vec<u64> = missing.map(|keys| options.locks.saturating_sub(keys)).collect();
    assert!(missing.iter().all(|&missing| missing == 0), "keys are missing: {missing:?}");
}

/// An engine with its loop.
struct Held {
    engine: Engine,
    poll: Poll,
    events: Events,
}

impl Held {
    fn new(fleet: &Fleet, options: &Options) -> Held {
        let config = Config::new(fleet.urls()).expect("good addresses");
        let config = config.restart_guard(RestartGuard::Off).node_timeout(Duration::from_secs(2));
        let poll = Poll::new().expect("a poller");
        let engine = Engine::new(config, poll.registry(), Token(0)).expect("an engine");
        let mut held = Held { engine, poll, events: Events::with_capacity(64) };
        while held.engine.coordinator().ready().len() < options.nodes {
            held.turn();
        }
        held
    }

    /// Runs one turn, and returns how long it took without its sleep.
    fn turn(&mut self) -> Duration {
        let start = Instant::now();
        let timeout = self.engine.prepare().map(|sleep| sleep.min(Duration::from_millis(100)));
        let prepared = start.elapsed();
        self.poll.poll(&mut self.events, timeout).expect("a poller");
        let woke = Instant::now();
        for event in &self.events {
            self.engine.handle_event(event);
        }
        prepared + woke.elapsed()
    }

    fn acquire_all(&mut self, options: &Options) {
        let keep = AutoExtend::at_most(Duration::from_secs(86_400));
        let lock = LockOptions::new(options.ttl).auto_extend(keep);
        let (mut asked, mut had) = (0, 0);
        while had < options.locks {
            while asked < options.locks && asked < had + 5_000 {
                self.engine.acquire(format!("kept:{asked}"), lock, asked).expect("there is room");
                asked += 1;
            }
            self.turn();
            self.take_updates();
            while let Some(done) = self.engine.poll_completion() {
                match done.result {
                    Ok(Outcome::Acquired(_)) => had += 1,
                    other => panic!("no lock: {other:?}"),
                }
            }
        }
    }

    /// Takes note that each of the locks was renewed.
    fn take_updates(&mut self) {
        while let Some(update) = self.engine.poll_lock_update() {
            let extended = matches!(update.kind, LockUpdateKind::Extended { .. });
            assert!(extended, "a lock was not kept: {update:?}");
        }
    }

    fn keep_for(&mut self, length: Duration) {
        let (start, cpu) = (Instant::now(), process_cpu());
        let renewed = self.engine.stats().renewed;
        let mut turns: Vec<u64> = Vec::new();
        // What a turn would take on an otherwise idle machine.
        let mut longest_work = Duration::ZERO;
        while start.elapsed() < length {
            let used = process_cpu();
            turns.push(self.turn().as_nanos() as u64);
            longest_work = longest_work.max(process_cpu().saturating_sub(used));
            self.take_updates();
        }
        let cpu = process_cpu().saturating_sub(cpu);
        let renewed = self.engine.stats().renewed - renewed;
        turns.sort_unstable();
        let at = |part: f64| Duration::from_nanos(quantile(&turns, part) as u64);
        println!(
            "{renewed} renewals in {length:?}: {:.1} us of the processor each, {:.1} % of one; \
             turns p50 {:?}, p99 {:?}, longest {:?}, of which on the processor at most \
             {longest_work:?}",
            cpu.as_secs_f64() * 1e6 / renewed.max(1) as f64,
            100.0 * cpu.as_secs_f64() / length.as_secs_f64(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}

/// Bytes of memory that the process has.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
