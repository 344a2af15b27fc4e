//! The simulation: several real coordinators against simulated masters, in simulated time, with
//! every fault that a network and its machines can have. One seed decides everything, so a seed
//! that fails is a test case.
//!
//! ```text
//! cargo test --all-features --test sim                  # the seeds from 0 on, as many as usual
//! SIM_SEEDS=100000 cargo test --all-features --test sim # so many
//! SIM_FROM=5000 cargo test --all-features --test sim    # from another one on
//! SIM_SEED=1234 cargo test --all-features --test sim    # one, and its last events if it fails
//! SIM_SEED=1234 SIM_LINES=9999 cargo test ...           # and more of them
//! SIM_ALL=1 cargo test ... -- --nocapture               # counts failing seeds, and each fault
//! ```
//!
//! What is always checked: no two callers believe in a lock on one key at the same time; a lock
//! that a caller believes in is on a majority of the masters; it is handed out before its deadline
//! and not lost before; every request has one answer in time. Of locks with auto-extend: the loss
//! is reported once, in time and after a warning; no deadline is beyond the bound; without faults
//! they are renewed. Of locks that are given away: they stay until one client adopts them. Of locks
//! that an operator takes away: they do not come back, and their owners stop believing in them when
//! enough nodes have answered that they are gone.
//!
//! And at the end, when all faults are over: no request, pending release, renewal or wait is left,
//! no key is left although its ttl is long, and each client can take every key. A simulation in
//! which nothing happens finds nothing, so the test also demands that everything happened that can.
//! Scenarios that chance hardly ever finds are in `directed`, step by step.

mod agenda;
#[path = "../support/asked.rs"]
mod asked;
mod borrowing;
mod checker;
mod client;
mod copied;
#[path = "../support/dice.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod dice;
mod directed;
mod ending;
mod faults;
mod fetching;
mod handing;
mod holding;
mod keeping;
mod ledger;
mod network;
mod node;
mod operator;
mod plan;
mod planted;
mod relic;
mod restarts;
mod resting;
mod tally;
mod trace;
mod turning;
mod user;
mod waiting;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use asked::number;
use plan::Memory;
use tally::Tally;
use trace::Trace;
use world::World;

/// How many seeds are run by default.
const SEEDS: u64 = 4_000;

/// Runs a seed. Returns the counters, or the violations.
fn run(seed: u64, trace: Trace) -> Result<Tally, String> {
    run_with(seed, None, trace)
}

fn run_with(seed: u64, memory: Option<Memory>, trace: Trace) -> Result<Tally, String> {
    let run = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, memory, trace);
        world.run();
        match world.checker.violations() {
            [] => Ok(world.tally),
            violations => Err(violations.join("\n  ")),
        }
    }));
    run.unwrap_or_else(|_| Err("a panic: its words are above".into()))
}

/// Runs a seed once more, and returns its last events.
fn explain(seed: u64) -> String {
    let trace = Trace::on();
    let again = run(seed, trace.clone());
    let words = again.err().unwrap_or_else(|| "it does not fail again!".into());
    format!(
        "the last events:\n{}seed {seed} fails: run it with SIM_SEED={seed}\n  {words}",
        trace.text()
    )
}

/// Runs the seed that was asked for, or all seeds with this remainder by two: the test harness runs
/// both halves at the same time.
fn run_half(remainder: u64) {
    if let Some(seed) = number("SIM_SEED") {
        if let (0, Err(words)) = (remainder, run(seed, Trace::default())) {
            panic!("{words}\n{}", explain(seed));
        }
        return;
    }
    let asked = asked::seeds("SIM", 0, SEEDS);
    let seeds = asked.end - asked.start;
    let mut tally = Tally::default();
    let mut failed = Vec::new();
    for seed in asked.filter(|seed| seed % 2 == remainder) {
        match run(seed, Trace::default()) {
            Ok(more) => tally.add(more),
            Err(words) if number::<u64>("SIM_ALL").is_some() => failed.push((seed, words)),
            Err(_) => panic!("{}", explain(seed)),
        }
    }
    if let Some((seed, words)) = failed.first() {
        let all: Vec<u64> = failed.iter().map(|(seed, _)| *seed).collect();
        let count = all.len();
        panic!("{count} of {} seeds fail: {all:?}; seed {seed}:\n  {words}", seeds / 2);
    }
    let counters = tally.counters();
    let text: Vec<String> =
        counters.iter().map(|(what, count)| format!("  {count} {what}\n")).collect();
    println!("half of {seeds} seeds:\n{}", text.concat());
    for (what, count) in counters {
        assert!(*count > 0 || seeds < SEEDS, "nothing of this happened: {what}");
    }
}

#[test]
fn no_even_seed_finds_two_holders_or_anything_left() {
    run_half(0);
}

#[test]
fn no_odd_seed_finds_two_holders_or_anything_left() {
    run_half(1);
}

#[test]
fn one_seed_gives_the_same_run_again() {
    for seed in 0..20 {
        let [first, second] = [(); 2].map(|()| {
            let trace = Trace::on();
            let result = run(seed, trace.clone()).map(|mut tally| {
                tally.counters().iter().map(|(_, count)| **count).collect::<Vec<u64>>()
            });
            (result, trace.text())
        });
        assert_eq!(first, second);
    }
}

/// Shows that the simulation can fail: if nodes forget and no guard is on, it finds two holders.
#[test]
fn without_the_restart_guard_there_are_two_holders() {
    let two = |words: &String| words.contains("two holders");
    let found = (0..300).find(|&seed| {
        run_with(seed, Some(Memory::Unguarded), Trace::default()).is_err_and(|e| two(&e))
    });
    assert!(found.is_some());
}
