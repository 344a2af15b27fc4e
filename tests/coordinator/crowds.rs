//! Many clients that wait for one lock, beside as many bare loops: how often they have it, how
//! evenly, and for how many commands. The counts are the same in every run.

use super::crowd_world::{Counts, Way, run};
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

#[track_caller]
fn keeps_up(way: Way, contenders: usize, hold: u64, length: u64, floor: &Floor) {
    let bare = if way == Way::Set { Way::BareSet } else { Way::Bare };
    let [ours, bare] = [way, bare].map(|way| run(way, contenders, millis(hold), millis(length), 1));
    let times = |it: &Counts| if hold == 0 { it.hand_overs } else { it.acquisitions() };
    let costs = |it: &Counts| it.commands / times(it).max(1);
    let part = |ours: u64, bare: u64| 100 * ours / bare.max(1);
    let seen = [
        part(times(&ours), times(&bare)),
        part(ours.jain(), bare.jain()),
        part(costs(&ours), costs(&bare)),
    ];
    println!("{way:?} {contenders} {hold} ms: {seen:?}, {} without", ours.without());
    assert!(seen[0] >= floor.times, "{contenders} at {hold} ms: {seen:?} {ours:?} {bare:?}");
    assert!(seen[1] >= floor.jain, "{contenders} at {hold} ms: {seen:?} {ours:?} {bare:?}");
    assert!(seen[2] <= floor.commands, "{contenders} at {hold} ms: {seen:?} {ours:?} {bare:?}");
}

/// A round is short, and its beginning is the worst of it.
const PLAIN: Floor = Floor { times: 85, jain: 85, commands: 130 };

#[test]
fn plain_waiters_hand_a_key_over_as_often_as_bare_loops() {
    for (contenders, length) in [(2, 500), (16, 300), (64, 300)] {
        keeps_up(Way::Plain, contenders, 0, length, &PLAIN);
    }
}

#[test]
fn plain_waiters_have_a_key_that_is_held_for_a_while_as_often_as_bare_loops() {
    for (contenders, length) in [(16, 300), (64, 300)] {
        keeps_up(Way::Plain, contenders, 1, length, &PLAIN);
    }
}

#[test]
fn waiters_for_several_keys_keep_up_with_bare_loops() {
    let floor = Floor { times: 70, jain: 80, commands: 170 };
    for (contenders, length) in [(2, 500), (16, 300), (64, 300)] {
        keeps_up(Way::Set, contenders, 0, length, &floor);
        keeps_up(Way::Set, contenders, 1, length, &floor);
    }
}
