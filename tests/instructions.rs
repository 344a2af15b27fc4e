//! What a lock costs in instructions: callgrind counts those of the core alone, driven by hand with
//! replies that were built before. The seed, the hashes and the clock are fixed, so nothing is
//! random.
//!
//! The numbers to compare with are in `instructions.txt`, together with the compiler with which
//! they were measured. Another compiler makes other code of the same source, so then a quarter more
//! is allowed instead of 5 %. If there is no number for a profile or an architecture, the test only
//! prints.
//!
//! The count is the difference between two runs of a child, which is this binary. One run makes so
//! many more acquires and releases. So neither the start nor the warm-up counts.

#![allow(clippy::disallowed_methods, reason = "a test starts a process")]

#[path = "support/by_hand.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod by_hand;

use std::process::Command;
use std::time::Duration;

use by_hand::ByHand;

/// The variable with the orders for the child: `in flight, pairs`.
const TOLD: &str = "REDLATCH_COUNTED_CHILD";
const NUMBERS: &str = include_str!("instructions.txt");
const PAIRS: usize = 1_024;
const TTL: Duration = Duration::from_secs(10);

/// By how much a count may exceed its number: with the same compiler, and with another one.
const SAME: f64 = 1.05;
const OTHER: f64 = 1.25;

#[test]
#[ignore = "needs valgrind: apt-get install valgrind"]
fn a_pair_takes_no_more_instructions_than_were_measured() {
    let (compiler, build) = (compiler(), build());
    let counts = [1, 64, 512].map(|in_flight| (in_flight, instructions_per_pair(in_flight)));
    for (in_flight, count) in counts {
        println!("{compiler} | {build} | {in_flight} | {count}");
    }
    for (in_flight, count) in counts {
        let Some((measured_with, number)) = number_for(&build, in_flight) else {
            println!("{build}, {in_flight} in flight: there is no number to compare with");
            continue;
        };
        let most = if measured_with == compiler { SAME } else { OTHER };
        let ratio = count as f64 / number as f64;
        assert!(
            ratio <= most,
            "{in_flight} in flight: {count} instructions a pair, {number} were measured with \
             {measured_with}; {ratio:.3} times as many, and {most} are allowed. If that is meant, \
             write the printed lines into tests/instructions.txt"
        );
    }
}

/// The compiler and the number in the file for this build, if any.
fn number_for(build: &str, in_flight: usize) -> Option<(&'static str, u64)> {
    let lines = NUMBERS.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.split(" | ").collect::<Vec<_>>()).find_map(|fields| match fields[..] {
        [compiler, of, locks, number] if of == build && locks == in_flight.to_string() => {
            Some((compiler, number.parse().expect("a number")))
        }
        _ => None,
    })
}

fn compiler() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(rustc).arg("--version").output().expect("the compiler is there");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn build() -> String {
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    format!("{} {profile}", std::env::consts::ARCH)
}

fn instructions_per_pair(in_flight: usize) -> u64 {
    let [short, long] = [PAIRS, 2 * PAIRS].map(|pairs| instructions(in_flight, pairs));
    (long - short) / PAIRS as u64
}

/// Runs the child under callgrind, and returns the number of instructions.
fn instructions(in_flight: usize, pairs: usize) -> u64 {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg(std::env::current_exe().expect("this binary has a path"));
    valgrind.args(["--exact", "child_process_that_callgrind_counts", "--ignored", "--nocapture"]);
    valgrind.env(TOLD, format!("{in_flight} {pairs}"));
    let output = valgrind.output().unwrap_or_else(|error| {
        panic!("valgrind cannot be started ({error}); install it: apt-get install valgrind")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let collected = said.lines().find_map(|line| line.split_once("Collected : "));
    let (_, number) = collected.expect("callgrind reports its count");
    number.trim().parse().expect("a number")
}

#[test]
#[ignore = "needs valgrind: the test above starts it"]
fn child_process_that_callgrind_counts() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    let [in_flight, pairs] = [0, 1].map(|index| words[index].parse().expect("a number"));
    let mut by_hand = ByHand::connect(in_flight);
    let mut locks = Vec::with_capacity(in_flight);
    by_hand.canned_pairs(2 * in_flight, TTL, &mut locks);
    by_hand.canned_pairs(pairs, TTL, &mut locks);
}
