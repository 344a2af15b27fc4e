//! A day of operations in fast motion: coordinators and in-process masters in simulated time, with
//! faults. At several moments it looks at what is left. Nothing may grow: no byte, record, request
//! or timer. The runs start just before 32-bit counters wrap, at the zero of the clock, and a few
//! days before its last moment.
//!
//! ```text
//! cargo test --all-features --test long_run       # a short one
//! LONG_RUN_PAIRS=100000000 cargo test --release --all-features --test long_run -- --nocapture
//! ```

#![expect(unsafe_code, reason = "an allocator that counts is unsafe to write")]
#![allow(clippy::disallowed_methods, reason = "the run reports how long a pair takes")]

#[path = "../support/counting.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod counting;
#[path = "../support/dice.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod dice;
mod world;

use std::time::Instant;

use world::{Start, Tally, World};

/// How many locks all runs together acquire and release, unless `LONG_RUN_PAIRS` says otherwise.
const PAIRS: u64 = 60_000;

/// At how many moments each run looks at what is left.
const LOOKS: u64 = 10;

/// By how much two such moments may differ though nothing grows: a buffer keeps its largest size,
/// and a master keeps expired keys until a command reads them.
const GROWTH: i64 = 128 * 1024;

/// What is left when all requests have ended.
#[derive(Debug, Clone, Copy)]
struct Left {
    live: i64,
    timers: usize,
}

#[test]
fn long_run_leaves_no_byte_record_request_or_timer() {
    let pairs = std::env::var("LONG_RUN_PAIRS").ok();
    let pairs: u64 = pairs.map_or(PAIRS, |text| text.parse().expect("a number of pairs"));
    let run = |start| run(start, pairs / Start::ALL.len() as u64);
    let tallies = Start::ALL.map(run);
    // All runs have the same seed, so the start of a run must not change its counters.
    for (start, tally) in Start::ALL.iter().zip(&tallies) {
        assert_eq!(*tally, tallies[0], "{start:?} is another run");
    }
}

/// Acquires and releases `pairs` locks. The first half shows how much memory is needed; the second
/// half must need no more.
fn run(start: Start, pairs: u64) -> Tally {
    let mut world = World::new(start);
    let mut looks: Vec<Left> = Vec::with_capacity(LOOKS as usize);
    let began = Instant::now();
    for number in 1..=LOOKS {
        world.run_until(pairs * number / LOOKS);
        world.come_to_rest();
        let left = Left { live: counting::live(), timers: world.open_timers() };
        looks.push(left);
        println!(
            "{start:?}: {} pairs, {:.2} hours: {} bytes live, {} timers, {} of RSS",
            world.pairs(),
            world.hours(),
            left.live,
            left.timers,
            resident().map_or("unknown".into(), |bytes| format!("{} KiB", bytes / 1024)),
        );
    }
    let micros = began.elapsed().as_secs_f64() * 1e6 / world.pairs() as f64;
    println!("{start:?}: {micros:.1} µs a pair; {:?}", world.tally());
    let (first, second) = looks.split_at(looks.len() / 2);
    let most = |looks: &[Left]| looks.iter().map(|it| (it.live, it.timers)).max();
    let (first, second) = (most(first).expect("a look"), most(second).expect("a look"));
    assert!(second.0 <= first.0 + GROWTH, "bytes: {} and then {}", first.0, second.0);
    world.tally().clone()
}

/// The memory of this process, if the system reports it.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
