//! Many clients that wait for one lock, beside as many bare loops: how often they have it, how
//! evenly, and for how many commands. The counts are the same in every run.

use super::lan::{Counts, Kind, Setting, run};
use super::*;

/// How much of the bare loops' figures is wanted, in hundredths.
struct Floor {
    /// Hand-overs at a hold of 0, else acquisitions.
    times: u64,
    /// Jain's index.
    jain: u64,
    /// Commands for each of these times, at most.
    commands: u64,
}

/// One run may be an unlucky one: the figures are those of this many, with a seed each.
const SEEDS: u64 = 3;

/// What several runs came to.
#[derive(Debug)]
struct Sum {
    /// Hand-overs at a hold of 0, else acquisitions.
    times: u64,
    /// The sum of Jain's indices.
    jain: u64,
    commands: u64,
    /// How many contenders never had the lock.
    without: usize,
}

fn sum(kind: Kind, contenders: usize, hold: u64, length: u64) -> Sum {
    let setting = Setting { kind, contenders, hold: millis(hold), length: millis(length) };
    let runs: Vec<Counts> = (1..=SEEDS).map(|seed| run(&setting, seed)).collect();
    let times = |it: &Counts| match hold {
        0 => it.hand_overs.len() as u64,
        _ => it.acquisitions(),
    };
    Sum {
        times: runs.iter().map(times).sum(),
        jain: runs.iter().map(Counts::jain).sum(),
        commands: runs.iter().map(|it| it.commands).sum(),
        without: runs.iter().map(Counts::without).sum(),
    }
}

#[track_caller]
fn keeps_up(kind: Kind, contenders: usize, hold: u64, length: u64, floor: &Floor) {
    let [ours, bare] = [kind, kind.bare()].map(|kind| sum(kind, contenders, hold, length));
    let costs = |it: &Sum| it.commands / it.times.max(1);
    let part = |ours: u64, bare: u64| 100 * ours / bare.max(1);
    let seen = [
        part(ours.times, bare.times),
        part(ours.jain, bare.jain),
        part(costs(&ours), costs(&bare)),
    ];
    println!("{kind} {contenders} {hold} ms: {seen:?}, {} without", ours.without);
    assert!(seen[0] >= floor.times, "{contenders} at {hold} ms: {seen:?} {ours:?} {bare:?}");
    assert!(seen[1] >= floor.jain, "{contenders} at {hold} ms: {seen:?} {ours:?} {bare:?}");
    assert!(seen[2] <= floor.commands, "{contenders} at {hold} ms: {seen:?} {ours:?} {bare:?}");
}

/// A round is short, and its beginning is the worst of it.
const PLAIN: Floor = Floor { times: 90, jain: 90, commands: 130 };

#[test]
fn plain_waiters_hand_a_key_over_as_often_as_bare_loops() {
    for (contenders, length) in [(2, 500), (16, 300), (64, 300)] {
        keeps_up(Kind::PLAIN, contenders, 0, length, &PLAIN);
    }
}

#[test]
fn plain_waiters_have_a_key_that_is_held_for_a_while_as_often_as_bare_loops() {
    for (contenders, length) in [(16, 300), (64, 300)] {
        keeps_up(Kind::PLAIN, contenders, 1, length, &PLAIN);
    }
}

#[test]
fn waiters_for_several_keys_keep_up_with_bare_loops() {
    let floor = Floor { times: 80, jain: 85, commands: 150 };
    for (contenders, length) in [(2, 500), (16, 300), (64, 300)] {
        keeps_up(Kind::PLAIN.keys(2, 2), contenders, 0, length, &floor);
        keeps_up(Kind::PLAIN.keys(2, 2), contenders, 1, length, &floor);
    }
}
