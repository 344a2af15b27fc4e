//! Processes that lock overlapping sets of keys, while a minority of the nodes stops, continues,
//! dies and comes back: no two hold one key at one time, and no process waits for long.
//!
//! The hazard is a node that forgets: these write every key to a file before they answer, so that a
//! key survives a kill.

use std::collections::BTreeMap;

use redlatch::clock;

use super::contending::{Contest, begin};
use super::*;
use crate::support::holds::{Hold, assert_no_two_holders, holds_in, trouble};

/// The environment variable with the length in seconds: a minute or more for a long run.
const SECONDS: &str = "REDLATCH_TEST_SETS_SECONDS";
const SECONDS_UNLESS_SET: u64 = 6;

/// The longest time that a process may wait for its set.
const LONGEST: Duration = Duration::from_secs(5);

fn now() -> u64 {
    clock::now().as_nanos()
}

/// Runs `processes` processes, with faults of the nodes if `troubled`. Returns their holds.
fn run(nodes: usize, processes: usize, keys: usize, of: usize, troubled: bool) -> Vec<Hold> {
    let fleet = Fleet::with(nodes, &["--appendonly", "yes", "--appendfsync", "no"]);
    let length = Duration::from_secs(number(SECONDS).unwrap_or(SECONDS_UNLESS_SET));
    let file = fleet[0].directory().join("holds");
    std::fs::write(&file, "").expect("the fleet's directory can be written");
    let mut running: Vec<_> = (0..processes).map(|_| begin(&fleet.urls())).collect();
    running.iter_mut().for_each(|process| assert_eq!(process.answer(), "ready"));
    let end = now() + length.as_nanos() as u64;
    let name = file.display().to_string();
    for process in &mut running {
        process.tell(&Contest { keys, of, end, file: &name }.order());
    }
    let goes_on = || troubled && now() + (SECOND.as_nanos() as u64) < end;
    let troubles = trouble(&fleet, millis(300), goes_on);
    running.iter_mut().for_each(|process| assert_eq!(process.answer(), "done"));
    let holds = holds_in(&file);
    println!("{} holds in {length:?}, with {troubles} troubles", holds.len());
    drop(running);
    fleet.wait_empty();
    holds
}

fn assert_no_process_waited_long(holds: &[Hold], processes: usize) {
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    for hold in holds {
        *turns.entry(hold.who).or_default() += usize::from(hold.from > 0);
        assert!(hold.from > 0, "no lock: {hold:?}");
    }
    let waited = holds.iter().map(|hold| hold.from - hold.asked).max().unwrap_or(0);
    let waited = Duration::from_nanos(waited);
    let (least, most) = (turns.values().min(), turns.values().max());
    println!("turns from {least:?} to {most:?}; the longest wait: {waited:?}");
    assert_eq!(turns.len(), processes);
    assert!(waited < LONGEST, "a process waited for {waited:?}");
}

#[test]
fn two_processes_with_crossed_sets_do_not_wait_for_each_other() {
    let holds = run(3, 2, 2, 2, false);
    assert_no_two_holders(&holds);
    assert_no_process_waited_long(&holds, 2);
}

#[test]
fn processes_with_overlapping_sets_have_their_turns_while_a_minority_comes_and_goes() {
    let holds = run(5, 8, 10, 3, true);
    assert_no_two_holders(&holds);
    assert_no_process_waited_long(&holds, 8);
}

#[test]
fn overlapping_holds_of_one_key_are_found() {
    let hold = |who, from, until, keys: &[usize]| {
        let keys = keys.to_vec();
        Hold { who, asked: 0, from, until, keys }
    };
    assert_no_two_holders(&[hold(1, 10, 30, &[1, 2]), hold(2, 20, 40, &[3, 4])]);
    assert_no_two_holders(&[hold(1, 20, 30, &[1]), hold(2, 10, 20, &[1]), hold(3, 0, 0, &[1])]);
    for both in [
        vec![hold(1, 10, 30, &[1, 2]), hold(2, 20, 40, &[2, 3])],
        vec![hold(1, 10, 21, &[1]), hold(3, 0, 0, &[1]), hold(2, 20, 30, &[1])],
    ] {
        let found = std::panic::catch_unwind(|| assert_no_two_holders(&both));
        assert!(found.is_err(), "{both:?}");
    }
}
