//! Completions, which the client reports first and the caller fetches later; updates of renewals;
//! and `release_all`.

use super::*;
use redlatch::{AutoExtend, Lock, LockOptions, LockUpdateKind, LostReason};

#[test]
fn completion_is_reported_once_and_fetched_by_its_op() {
    let mut bench = Bench::new(3);
    let op = bench.acquire();
    assert!(bench.core.fetch(op, bench.now).is_none(), "it has no end yet");
    bench.answer_to(["SET"], 0..2, "+OK\r\n");
    assert_eq!(bench.core.poll_ended(), Some((op, 1)));
    assert_eq!(bench.core.poll_ended(), None);
    assert!(!bench.core.has_completions() && bench.completion().is_none());
    let done = bench.core.fetch(op, bench.now).unwrap();
    assert!(matches!(done.result, Ok(Outcome::Acquired(_))));
    assert!(bench.core.fetch(op, bench.now).is_none(), "it was fetched");
}

#[test]
fn a_lock_that_is_fetched_too_late_is_released_and_asked_for_again() {
    let mut bench = Bench::quiet(3).without_lines();
    let op = bench.ask(1, LockOptions::new(TTL).wait(2 * TTL));
    bench.answer_to(["SET"], 0..3, "+OK\r\n");
    assert_eq!(bench.core.poll_ended(), Some((op, 1)));
    bench.now = bench.now.saturating_add(TTL);
    assert!(bench.core.fetch(op, bench.now).is_none());
    assert_eq!(bench.core.poll_ended(), None, "it goes on");
    bench.answer_to(["EVALSHA"], 0..3, ":1\r\n");
    bench.pass(millis(60));
    assert_eq!(bench.names(0), ["SET"], "with another attempt");
}

#[test]
fn acquire_that_is_cancelled_before_its_fetch_is_released() {
    let mut bench = Bench::new(3);
    let op = bench.acquire();
    bench.answer(0..3, "+OK\r\n");
    assert_eq!(bench.core.poll_ended(), Some((op, 1)));
    bench.core.cancel(op, bench.now);
    assert!(bench.core.fetch(op, bench.now).is_none());
    bench.answer_to(["EVALSHA"], 0..3, ":1\r\n");
    bench.assert_idle();
}

/// Keeps a lock, and answers its first renewal.
fn renewed(bench: &mut Bench) -> Lock {
    let lock = bench.hold(&[0, 1, 2]);
    bench.core.auto_extend(&lock, AutoExtend::at_most(6 * TTL), bench.now).unwrap();
    answer_all(bench);
    let before = bench.core.deadline(&lock).unwrap();
    bench.pass(millis(3_400));
    answer_all(bench);
    assert!(bench.core.deadline(&lock).unwrap() > before);
    lock
}

fn answer_all(bench: &mut Bench) {
    for node in 0..3 {
        for name in bench.names(node) {
            match name.as_str() {
                "CLIENT" => bench.reply(node, "+OK\r\n"),
                "PTTL" => bench.reply(node, ":9000\r\n"),
                "EVALSHA" | "EVAL" => bench.reply(node, ":1\r\n"),
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_renewal_is_an_update_and_of_several_only_the_last_is_reported() {
    let mut bench = Bench::quiet(3);
    bench.core.report_lock_updates();
    let _lock = renewed(&mut bench);
    bench.pass(millis(3_400));
    answer_all(&mut bench);
    let update = bench.core.poll_lock_update().unwrap();
    let LockUpdateKind::Extended { deadline } = update.kind else { panic!("{update:?}") };
    assert_eq!(update.data, 1, "that of the acquire");
    assert!(deadline > bench.now.saturating_add(millis(9_000)), "that of the second one");
    assert!(bench.core.poll_lock_update().is_none() && bench.completion().is_none());
}

#[test]
fn a_renewal_that_was_not_fetched_is_not_reported_for_a_lock_that_was_lost() {
    let mut bench = Bench::quiet(3);
    let _lock = renewed(&mut bench);
    bench.pass(millis(3_400));
    bench.answer(0..3, ":0\r\n");
    let update = bench.core.poll_lock_update().unwrap();
    let LockUpdateKind::Lost(Error::Lost { reason, .. }) = update.kind else {
        panic!("{update:?}")
    };
    assert_eq!(reason, LostReason::Gone);
    assert!(bench.core.poll_lock_update().is_none() && bench.completion().is_none());
}

#[test]
fn release_all_releases_locks_and_ends_requests() {
    let (mut bench, held) = Bench::new(3).with_lock(&[0, 1, 2]);
    let kept = bench.hold(&[0, 1, 2]);
    bench.core.auto_extend(&kept, AutoExtend::extensions(1), bench.now).unwrap();
    bench.acquire();
    bench.ask(8, LockOptions::new(TTL).wait(TTL));
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.core.release_all(bench.now);
    for node in 0..3 {
        let sent = bench.names(node);
        let releases = sent.iter().filter(|name| name.starts_with("EVAL")).count();
        assert_eq!((releases, sent.contains(&"SET".to_string())), (3, false), "{sent:?}");
        // The answers to CLIENT CACHING and PTTL of the kept lock, to the SET of the request that
        // `release_all` ended, and to the three releases.
        bench.reply(node, "+OK\r\n:9000\r\n+OK\r\n:1\r\n:1\r\n:1\r\n");
    }
    assert!(bench.completion().is_none());
    assert!(bench.core.remaining(&held, bench.now).is_zero());
    bench.assert_idle();
}

#[test]
fn release_of_a_lock_drops_the_update_of_its_renewal() {
    let mut bench = Bench::quiet(3);
    bench.core.report_lock_updates();
    let lock = renewed(&mut bench);
    assert!(bench.core.has_lock_updates(), "it waits to be taken");
    bench.core.release(lock, 8, bench.now);
    assert!(!bench.core.has_lock_updates(), "a loop would be woken for nothing");
    answer_all(&mut bench);
    let done = bench.completion().unwrap();
    assert_eq!((done.data, done.result), (8, Ok(Outcome::Released(ReleaseOutcome::Released))));
    assert!(bench.completion().is_none() && bench.core.poll_lock_update().is_none());
    bench.assert_idle();
}

/// A driver that did not ask for updates never takes them: an update of a renewal would keep waking
/// its loop.
#[test]
fn renewal_wakes_no_driver_that_did_not_ask_for_later_deadlines() {
    let mut bench = Bench::quiet(3);
    let lock = renewed(&mut bench);
    bench.pass(millis(3_400));
    answer_all(&mut bench);
    assert!(!bench.core.has_lock_updates());
    assert!(bench.core.remaining(&lock, bench.now) > millis(9_000), "it was renewed");
}

#[test]
fn close_releases_neither_handed_off_nor_foreign_locks() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    let given = bench.core.into_token(lock, bench.now).unwrap();
    bench.core.extend_token(b"theirs", given, TTL, 2, bench.now).unwrap();
    bench.core.inspect(b"any", 3, bench.now).unwrap();
    for node in 0..3 {
        let sent = bench.sent(node);
        assert_eq!(sent[0][0], "EVALSHA", "{sent:?}");
    }
    bench.core.release_all(bench.now);
    for node in 0..3 {
        assert!(bench.sent(node).is_empty(), "another's lock is not ours to release");
    }
    assert!(bench.completion().is_none());
    assert_eq!(bench.core.open_ops(), 0);
}
