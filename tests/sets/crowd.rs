//! Processes that lock overlapping sets of keys, while a minority of the nodes stops, continues,
//! dies and comes back: no two hold one key at one time, and no process waits for long.
//!
//! The processes write their holds into one file, and the checker reads nothing else. The nodes
//! write every key to a file before they answer, so that a key survives a kill.

use std::collections::BTreeMap;

use redlatch::clock;

use super::contending::{Contest, begin};
use super::*;
use crate::support::Dice;

/// The environment variable with the length in seconds: a minute or more for a long run.
const SECONDS: &str = "REDLATCH_TEST_SETS_SECONDS";
const SECONDS_UNLESS_SET: u64 = 6;

/// The longest time that a process may wait for its set.
const LONGEST: Duration = Duration::from_secs(5);

/// One line of the file.
#[derive(Debug, Clone)]
struct Hold {
    who: u32,
    asked: u64,
    /// 0: the process did not get the lock.
    from: u64,
    until: u64,
    keys: Vec<usize>,
}

fn now() -> u64 {
    clock::now().as_nanos()
}

/// Runs `processes` processes, with faults of the nodes if `troubled`. Returns their holds.
fn run(nodes: usize, processes: usize, keys: usize, of: usize, troubled: bool) -> Vec<Hold> {
    let fleet = Fleet::with(nodes, &["--appendonly", "yes", "--appendfsync", "no"]);
    let seconds = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(SECONDS_UNLESS_SET));
    let file = fleet[0].directory().join("holds");
    std::fs::write(&file, "").expect("the fleet's directory can be written");
    let mut running: Vec<_> = (0..processes).map(|_| begin(&fleet.urls())).collect();
    running.iter_mut().for_each(|process| assert_eq!(process.answer(), "ready"));
    let end = now() + length.as_nanos() as u64;
    let name = file.display().to_string();
    for process in &mut running {
        process.tell(&Contest { keys, of, end, file: &name }.order());
    }
    let troubles = if troubled { trouble(&fleet, end) } else { 0 };
    running.iter_mut().for_each(|process| assert_eq!(process.answer(), "done"));
    let text = std::fs::read_to_string(&file).expect("the file can be read");
    let holds: Vec<Hold> = text.lines().map(read).collect();
    println!("{} holds in {length:?}, with {troubles} troubles", holds.len());
    drop(running);
    fleet.wait_empty();
    holds
}

/// Stops and continues, or kills and restarts, a minority of the nodes, again and again until
/// `end`. Returns how often.
fn trouble(fleet: &Fleet, end: u64) -> usize {
    let mut dice = Dice::printed(now());
    let mut troubles = 0;
    while now() + (SECOND.as_nanos() as u64) < end {
        let mut nodes: Vec<usize> = (0..fleet.len()).collect();
        dice.shuffle(&mut nodes);
        nodes.truncate(1 + dice.place(fleet.len() / 2));
        let kills: Vec<bool> = nodes.iter().map(|_| dice.chance(500)).collect();
        for (&node, &kill) in nodes.iter().zip(&kills) {
            if kill { fleet[node].kill() } else { fleet[node].stop() }
        }
        std::thread::sleep(millis(dice.below(300)));
        for (&node, &kill) in nodes.iter().zip(&kills) {
            if kill { fleet[node].restart() } else { fleet[node].cont() }
        }
        std::thread::sleep(millis(dice.below(300)));
        troubles += nodes.len();
    }
    troubles
}

fn read(line: &str) -> Hold {
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [who, asked, from, until, ref keys @ ..] = numbers[..] else {
        panic!("not a line of ours: {line}")
    };
    let keys = keys.iter().map(|&key| key as usize).collect();
    Hold { who: who as u32, asked, from, until, keys }
}

/// Checks that no two processes held one key at one time.
fn assert_no_two_holders(holds: &[Hold]) {
    let mut by_key: BTreeMap<usize, Vec<&Hold>> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.from > 0) {
        hold.keys.iter().for_each(|&key| by_key.entry(key).or_default().push(hold));
    }
    for (key, mut held) in by_key {
        held.sort_by_key(|hold| hold.from);
        for pair in held.windows(2) {
            assert!(pair[0].until <= pair[1].from, "key {key} is held by two: {pair:?}");
        }
    }
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
    let both = [hold(1, 10, 30, &[1, 2]), hold(2, 20, 40, &[2, 3])];
    assert!(std::panic::catch_unwind(|| assert_no_two_holders(&both)).is_err());
}
