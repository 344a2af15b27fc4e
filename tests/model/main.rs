//! A search through every order of events, with the real coordinators and the pure masters of
//! `testing::master`, not with models of them. A state is a copy of all clients and nodes and of
//! what is in flight between them; a step is one message, one timer, one request or one fault.
//!
//! ```text
//! cargo test --all-features --test model                          # small bounds, some seconds
//! MODEL=gate cargo test --release --all-features --test model -- --nocapture  # four minutes
//! MODEL=full cargo test --release --all-features --test model -- --nocapture
//! ```
//!
//! `tests/planted` plants faults into a copy of this tree, and so shows that the search finds them.
//!
//! What is checked in every state: no two callers believe in the lock; a majority of the nodes has
//! the lock that a caller believes in, where a node that forgot a key counts for that key's lock
//! and for no other until the key would have expired; the client whose token is on a node, as the
//! key or in its line, asks for the lock, holds it or has a release pending there; no token is in a
//! line twice; a flushed key comes back only after a won extend; every request has one answer. And
//! from every state a quiet future, in which all messages arrive and time passes, ends with no
//! record, no request, no key and no line.
//!
//! The bounds are in `plans`. Time moves only to the next timer or to the expiry of a key. It moves
//! without limit while nothing is in flight; moving past a message uses up one of the bound
//! `delays`. Handshakes take no step of their own. A plan may let clients wait for the lock in
//! line; a pause between two polls has one length. Other waits, auto-extend and tasks are not
//! covered: the fingerprint refuses them.
//!
//! The hazard is a fingerprint that leaves out too much: see `samples`.

#![allow(clippy::disallowed_methods, reason = "it measures how long a search takes")]

mod bounds;
mod check;
mod client;
mod fingerprint;
mod names;
mod network;
mod plans;
mod samples;
mod search;
mod shortest;
mod step;
mod steps;
mod time;
mod wire;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use bounds::Plan;
use search::Found;
use step::Step;
use world::World;

/// The most states of a plan that fit into the time and memory of a test.
const MOST: usize = 4_000_000;
/// How many states are searched of a plan under `DEEP`, which is too large to be complete.
const DEEP: usize = 200_000;
/// How many are searched of a plan under `WIDE`. With fenced locks there are more states, because
/// they also differ in time.
const WIDE: usize = 1_000_000;

/// Searches a plan; prints what it found and returns it.
fn run(name: &str, plan: &Plan, most: usize) -> Found {
    let start = Instant::now();
    let found = search::complete(plan, most);
    let whole = if found.cut_off { "cut off" } else { "complete" };
    println!(
        "{name}: {} states, {} steps, depth {}, {whole}, {} pairs compared, {:.1?}",
        found.states,
        found.steps,
        found.depth,
        found.compared,
        start.elapsed()
    );
    if let Some((words, steps)) = &found.violation {
        panic!("{name}: {words}\n{}", trace(plan, steps));
    }
    found
}

/// Describes a run: its steps, and the states between them.
fn trace(plan: &Plan, steps: &[Step]) -> String {
    let mut text = String::new();
    let (mut world, prefix) = (World::new(&Plan { prefix: &[], ..*plan }), plan.prefix);
    for &step in prefix.iter().chain(steps) {
        text += &format!("{}\n", world.step_in_words(step));
        let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| world.take(step)));
        if !matches!(taken, Ok(Ok(()))) {
            break;
        }
    }
    text
}

/// Whether `MODEL` asks for these larger bounds: `gate` or `full`.
fn is_asked_for(bounds: &str) -> bool {
    std::env::var("MODEL").is_ok_and(|which| which == bounds)
}

/// Whether `MODEL_ONLY` lets the plan run: `MODEL_ONLY=fenced` runs those with `fenced` in the
/// name.
fn is_wanted(name: &str) -> bool {
    std::env::var("MODEL_ONLY").map_or(true, |part| name.contains(&part))
}

#[test]
fn every_order_of_events_within_small_bounds_is_safe() {
    run_complete(plans::QUICK);
}

/// Searches plans that are complete within their bounds. Returns the number of their states. Each
/// thread takes the next plan when it has searched one; a plan takes half a gigabyte at most.
fn run_complete(plans: &[(&str, Plan)]) -> usize {
    let wanted: Vec<_> = plans.iter().filter(|(name, _)| is_wanted(name)).collect();
    let (next, states) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let search = || {
        while let Some((name, plan)) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = run(name, plan, MOST);
            assert!(!found.cut_off, "{name} is not complete");
            states.fetch_add(found.states, Ordering::Relaxed);
        }
    };
    // A thread that panics makes the scope panic.
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, |count| count.get().min(4));
        (0..threads).for_each(|_| drop(scope.spawn(search)));
    });
    let states = states.into_inner();
    println!("{states} states, all complete");
    states
}

/// With `MODEL=gate` or `MODEL=full` only: four minutes in a release build.
#[test]
fn every_order_of_events_within_the_bounds_of_the_gate_is_safe() {
    if is_asked_for("gate") || is_asked_for("full") {
        run_complete(plans::GATE);
    }
}

/// With `MODEL=full` only: minutes in a release build.
#[test]
fn every_order_of_events_within_the_full_bounds_is_safe() {
    if !is_asked_for("full") {
        return;
    }
    let mut states = run_complete(plans::FULL);
    for (name, plan) in plans::WIDE.iter().filter(|(name, _)| is_wanted(name)) {
        states += run(name, plan, WIDE).states;
    }
    for (name, plan) in plans::DEEP.iter().filter(|(name, _)| is_wanted(name)) {
        states += run(name, plan, DEEP).states;
    }
    let all = std::env::var_os("MODEL_ONLY").is_none();
    assert!(!all || states > 1_000_000, "only {states} states");
}

/// In a tree with planted faults only: finds the one that `PLANTED_FAULT` names (`tests/planted`).
#[test]
fn planted_fault_is_found() {
    let Ok(fault) = std::env::var("PLANTED_FAULT") else { return };
    for plan in plans::of_fault(&fault) {
        let start = Instant::now();
        let found = shortest::shortest(&plan, MOST);
        let text = found
            .violation
            .as_ref()
            .map(|(words, steps)| format!("{}{} steps: {words}", trace(&plan, steps), steps.len()));
        let text = text.unwrap_or_else(|| panic!("{fault} is not found: {found:?}"));
        println!("{fault}: {} states, {:.1?}\n{text}\n", found.states, start.elapsed());
    }
}
