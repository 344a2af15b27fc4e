//! Many processes contend for one key while nodes stop, continue, die and come back: no two hold it
//! at one time, and each gets its turn.
//!
//! The hazard is a node that forgets. These nodes write every key to a file before they answer, so
//! a key survives a kill and the restart guard may be off.

use std::collections::BTreeMap;

use super::process::{Process, end_processes};
use super::*;
use crate::support::holds::{Hold, assert_no_two_holders, holds_in, trouble};

const PROCESSES: usize = 32;

/// The environment variable with the length in seconds: a minute or more for a long run.
const SECONDS: &str = "REDLATCH_TEST_WAITING_SECONDS";
const SECONDS_UNLESS_TOLD: u64 = 6;

/// The ttl. Sometimes a holder keeps the lock until its deadline, and one process should not wait
/// much longer for another.
const HELD: Duration = millis(300);

/// Once this many turns per process are over, each process has had one with near certainty.
const TURNS: usize = 40;

/// How long these turns may take.
const AS_LONG: Duration = Duration::from_secs(180);

#[test]
fn waiters_share_a_key_while_nodes_come_and_go() {
    let fleet = Fleet::with(3, &["--appendonly", "yes", "--appendfsync", "no"]);
    let length = Duration::from_secs(number(SECONDS).unwrap_or(SECONDS_UNLESS_TOLD));
    let file = fleet[0].directory().join("holds");
    std::fs::write(&file, "").expect("the fleet's directory can be written");
    let mut processes: Vec<Process> =
        (0..PROCESSES).map(|_| Process::begin(&fleet.urls())).collect();
    processes.iter_mut().for_each(Process::wait_ready);
    let begin = now();
    let end = begin + length.as_nanos() as u64;
    for process in &mut processes {
        process.tell(&format!("contend a {} {} {}", HELD.as_millis(), u64::MAX, file.display()));
    }
    let goes_on = || now() + SECOND.as_nanos() as u64 / 2 < end;
    let troubles = trouble(&fleet, millis(250), goes_on);
    // On a busy machine the processes have had few turns by now.
    eventually(AS_LONG, "each had its turn, or there were enough for all", || {
        let turns = turns_of(&holds_in(&file));
        turns.len() == PROCESSES || turns.values().sum::<usize>() >= TURNS * PROCESSES
    });
    let end = now();
    end_processes(&file);
    for process in &mut processes {
        assert_eq!(process.answer(), "done");
    }
    let holds = holds_in(&file);
    println!("{} holds, with {troubles} troubles", holds.len());
    assert_no_two_holders(&holds);
    assert_each_has_its_turn(&holds);
    assert_no_long_gap(&holds, begin, end);
    drop(processes);
    eventually(3 * SOON, "what is left ends with its ttl", || fleet.keys_everywhere().is_empty());
}

/// How often each process held the key, without those that never did.
fn turns_of(holds: &[Hold]) -> BTreeMap<u32, usize> {
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.from > 0) {
        *turns.entry(hold.who).or_default() += 1;
    }
    turns
}

fn assert_each_has_its_turn(holds: &[Hold]) {
    let turns = turns_of(holds);
    let (least, most) = (turns.values().min(), turns.values().max());
    println!("turns of {} processes: from {least:?} to {most:?}", turns.len());
    assert_eq!(turns.len(), PROCESSES, "some had no turn: {turns:?}");
}

/// Checks that there was no long time in which no process got the key.
fn assert_no_long_gap(holds: &[Hold], begin: u64, end: u64) {
    let waited = |hold: &Hold| if hold.from > 0 { hold.from } else { end }.max(hold.asked);
    let longest_wait = holds.iter().map(|hold| waited(hold) - hold.asked).max().unwrap_or(0);
    let mut moments: Vec<u64> =
        holds.iter().map(|hold| hold.from).filter(|from| *from > 0 && *from < end).collect();
    moments.extend([begin, end]);
    moments.sort();
    let gaps = moments.windows(2).map(|pair| pair[1] - pair[0]);
    let longest_gap = Duration::from_nanos(gaps.max().unwrap_or(0));
    let per_second = (moments.len() - 2) as f64 * 1e9 / (end - begin) as f64;
    let longest_wait = Duration::from_nanos(longest_wait);
    println!("{per_second:.0} holds/s; the longest wait {longest_wait:?}, gap {longest_gap:?}");
    assert!(longest_gap < 10 * HELD, "nobody got it for {longest_gap:?}");
}
