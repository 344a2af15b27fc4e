//! Counters of locks: how many are held, how they ended, how long they were waited for and held.

use super::*;
use redlatch::{AutoExtend, Durations, Stats};

/// A bench whose nodes are not probed.
fn quiet() -> Bench {
    Bench::with(3, |settings| settings.probe_interval = TTL * 100)
}

/// Held, released, lost, and how many holds were counted.
fn ends(stats: &Stats) -> [u64; 4] {
    [stats.held, stats.released, stats.lost, stats.holds.count()]
}

/// In which class one of these was counted: below how long.
fn class_of(durations: &Durations) -> Option<Duration> {
    let (end, _) = durations.classes().find(|(_, count)| *count > 0).expect("one was counted");
    end
}

#[test]
fn counters_tell_a_released_lock_from_a_lost_one_and_from_one_given_away() {
    let mut bench = quiet();
    let lock = bench.hold(&[0, 1, 2]);
    assert_eq!(ends(bench.core.stats()), [1, 0, 0, 0]);
    bench.pass(millis(5));
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(ends(bench.core.stats()), [0, 1, 0, 1]);
    assert_eq!(bench.core.stats().holds.total(), millis(5));

    let mut bench = quiet();
    let lock = bench.hold(&[0, 1, 2]);
    bench.pass(TTL);
    assert_eq!(ends(bench.core.stats()), [0, 0, 1, 1], "its deadline passed");
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(ends(bench.core.stats()), [0, 0, 1, 1], "it was over");

    let mut bench = quiet();
    let lock = bench.hold(&[0, 1, 2]);
    assert!(bench.core.into_token(lock, bench.now).is_some());
    assert_eq!(ends(bench.core.stats()), [0, 0, 0, 1], "it was given away");
    assert_eq!((bench.core.stats().won, bench.core.stats().waits.count()), (1, 1));
}

#[test]
fn counters_have_the_wait_from_the_request_to_the_lock() {
    let mut bench = quiet();
    let lock = bench.hold(&[0, 1, 2]);
    assert_eq!(class_of(&bench.core.stats().waits), Some(Duration::from_micros(64)));
    // The second request of this client waits for its turn.
    let before = bench.core.stats().waits.total();
    bench.core.acquire(b"k", TTL, TTL * 10, 2, bench.now).unwrap();
    bench.pass(millis(20));
    bench.core.release_nowait(&lock, bench.now);
    for node in 0..3 {
        bench.said(node);
        bench.reply(node, ":1\r\n+OK\r\n");
    }
    assert!(matches!(bench.completion().unwrap().result, Ok(Outcome::Acquired(_))));
    let waited = bench.core.stats().waits.total().saturating_sub(before);
    assert_eq!(waited, millis(20));
}

#[test]
fn counters_have_extends_of_the_caller_apart_from_renewals() {
    let mut bench = quiet();
    let lock = bench.hold(&[0, 1, 2]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    for node in 0..3 {
        bench.said(node);
        bench.reply(node, ":1\r\n");
    }
    assert!(bench.completion().unwrap().result.is_ok());
    assert_eq!((bench.core.stats().extended, bench.core.stats().renewed), (1, 0));

    let mut bench = quiet();
    let keep = Some(AutoExtend::at_most(TTL * 10));
    let wait = Duration::ZERO;
    bench.core.acquire_and_auto_extend(b"k", TTL, wait, keep, 7, bench.now).unwrap();
    for node in 0..3 {
        bench.said(node);
        bench.reply(node, "+OK\r\n+OK\r\n:9999\r\n");
    }
    assert!(matches!(bench.completion().unwrap().result, Ok(Outcome::Acquired(_))));
    bench.pass(TTL / 2);
    for node in 0..3 {
        bench.said(node);
        bench.reply(node, ":1\r\n+OK\r\n:9999\r\n");
    }
    assert_eq!((bench.core.stats().extended, bench.core.stats().renewed), (0, 1));
}
