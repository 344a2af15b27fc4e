//! Many clients that wait for one lock, compared with as many bare loops, which retry `SET NX`
//! without this library: how often they get the lock, how evenly, and with how many commands. The
//! counts are the same in every run.

use super::lan::{Counts, Kind, Setting, run};
use super::*;

/// The nodes of the simulated LAN.
const NODES: u64 = 5;

/// The figures are those of this many runs, each with its own seed, because one run may be unlucky.
const SEEDS: u64 = 2;

/// The figures of several runs together.
#[derive(Debug)]
struct Sum {
    acquisitions: u64,
    /// The smallest of Jain's fairness indices of the runs, in thousandths.
    jain: u64,
    commands: u64,
    /// How many contenders never had the lock.
    without: usize,
}

fn run_and_sum(kind: Kind, (contenders, hold): (usize, u64), length: u64) -> Sum {
    let setting = Setting { kind, contenders, hold: millis(hold), length: millis(length) };
    let runs: Vec<Counts> = (1..=SEEDS).map(|seed| run(&setting, seed)).collect();
    Sum {
        acquisitions: runs.iter().map(Counts::acquisitions).sum(),
        jain: runs.iter().map(Counts::jain).min().unwrap_or(0),
        commands: runs.iter().map(|it| it.commands).sum(),
        without: runs.iter().map(Counts::without).sum(),
    }
}

/// The bounds that waiters in line have to keep.
struct Floor {
    /// At least so many acquisitions, in hundredths of those of the bare loops.
    times: u64,
    /// At least this fairness index, in thousandths.
    jain: u64,
    /// At most so many commands for an acquisition on each node, in hundredths.
    commands: u64,
}

#[track_caller]
fn keeps_up(kind: Kind, setting: (usize, u64), length: u64, floor: &Floor) {
    let [ours, bare] = [kind, kind.bare()].map(|kind| run_and_sum(kind, setting, length));
    let times = 100 * ours.acquisitions / bare.acquisitions.max(1);
    let commands = 100 * ours.commands / (NODES * ours.acquisitions.max(1));
    println!("{kind} {setting:?}: {times} {} {commands}", ours.jain);
    assert!(times >= floor.times, "{setting:?}: {times} {ours:?} {bare:?}");
    assert!(ours.jain >= floor.jain, "{setting:?}: {ours:?}");
    assert!(commands <= floor.commands, "{setting:?}: {commands} {ours:?}");
    assert_eq!(ours.without, 0, "{setting:?}");
}

#[test]
fn waiters_have_a_key_more_often_than_bare_loops_and_in_turn() {
    for (contenders, commands) in [(2, 300), (16, 220), (64, 220)] {
        let floor = Floor { times: 140, jain: 990, commands };
        keeps_up(Kind::PLAIN, (contenders, 0), 500, &floor);
    }
}

#[test]
fn waiters_have_a_key_that_is_held_for_a_while_as_often_as_bare_loops() {
    // The run is short, so the polls and joins at its beginning weigh in the figures.
    let floor = Floor { times: 98, jain: 990, commands: 350 };
    [16, 64].into_iter().for_each(|count| keeps_up(Kind::PLAIN, (count, 1), 600, &floor));
}

#[test]
fn waiters_for_a_fenced_lock_have_it_nearly_as_often_as_bare_loops_have_a_plain_one() {
    for (hold, times) in [(0, 80), (1, 90)] {
        let floor = Floor { times, jain: 990, commands: 500 };
        [2, 16, 64].into_iter().for_each(|n| keeps_up(Kind::FENCED, (n, hold), 600, &floor));
    }
}

#[test]
fn waiters_for_the_same_two_keys_have_them_as_often_as_bare_loops() {
    for hold in [0, 1] {
        let floor = Floor { times: 80, jain: 850, commands: 800 };
        [2, 16, 64]
            .into_iter()
            .for_each(|n| keeps_up(Kind::PLAIN.keys(2, 2), (n, hold), 500, &floor));
    }
}

/// Each contender wants two keys of ten. From 32 contenders on the bare loops get them more often:
/// a waiter keeps its first key while it waits for the second one, which delays others.
#[test]
fn waiters_for_some_keys_of_several_keep_up_with_bare_loops_up_to_sixteen() {
    for hold in [0, 1] {
        let floor = Floor { times: 75, jain: 900, commands: 800 };
        [2, 16].into_iter().for_each(|n| keeps_up(Kind::PLAIN.keys(2, 10), (n, hold), 500, &floor));
    }
}
