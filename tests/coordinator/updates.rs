//! Updates of locks that were handed out: later deadlines, warnings and losses. Each loss is
//! reported once, also of a lock that is not kept.

use super::*;
use redlatch::{AutoExtend, Lock, LockOptions, LockUpdate, LockUpdateKind, LostReason};

/// A bench whose driver asked for updates, and whose nodes are not probed.
fn reporting(nodes: usize) -> Bench {
    let mut bench = Bench::with(nodes, |settings| {
        settings.probe_interval = TTL * 100;
        settings.node_timeout = TTL / 2;
    });
    bench.core.report_lock_updates();
    bench
}

/// Takes all updates.
fn updates(bench: &mut Bench) -> Vec<LockUpdate> {
    let updates: Vec<_> = std::iter::from_fn(|| bench.core.poll_lock_update()).collect();
    assert!(!bench.core.has_lock_updates());
    updates
}

fn take_update_kinds(bench: &mut Bench) -> Vec<LockUpdateKind> {
    updates(bench).into_iter().map(|update| update.kind).collect()
}

/// Asserts that the only update is the loss of the lock with this token. Returns its data and its
/// reason.
#[track_caller]
fn take_only_loss(bench: &mut Bench, token: redlatch::LockToken) -> (u64, LostReason) {
    let mut updates = updates(bench);
    let update = updates.pop().expect("the loss is reported");
    assert_eq!((updates.len(), update.token), (0, token));
    match update.kind {
        LockUpdateKind::Lost(Error::Lost { reason, report }) => {
            assert_eq!(&report.key[..], b"k");
            (update.data, reason)
        }
        other => panic!("no loss: {other:?}"),
    }
}

fn pass_to_the_deadline(bench: &mut Bench, lock: &Lock) {
    let deadline = bench.core.deadline(lock).expect("it is held");
    bench.pass(deadline.saturating_since(bench.now));
}

#[test]
fn lock_update_reports_the_loss_of_a_lock_without_auto_extend_once_at_its_deadline() {
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    let deadline = bench.core.deadline(&lock).unwrap();
    bench.pass(deadline.saturating_since(bench.now) - millis(1));
    assert!(updates(&mut bench).is_empty(), "it is early");
    bench.pass(millis(1));
    assert_eq!(take_only_loss(&mut bench, lock.token()), (1, LostReason::Expired));
    bench.pass(TTL);
    assert!(updates(&mut bench).is_empty() && bench.completion().is_none());
}

#[test]
fn lock_update_of_a_lock_that_is_not_renewed_is_reported_only_to_a_driver_that_wants_them() {
    for kind in ["plain", "watched", "kept"] {
        let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1, 2]);
        match kind {
            "watched" => bench.core.watch(&lock, bench.now),
            "kept" => bench.core.auto_extend(&lock, AutoExtend::extensions(0), bench.now).unwrap(),
            // The driver asks for updates only after this lock was handed out.
            _ => bench.core.report_lock_updates(),
        }
        pass_to_the_deadline(&mut bench, &lock);
        let losses = updates(&mut bench);
        let losses = losses.iter().filter(|it| matches!(it.kind, LockUpdateKind::Lost(_))).count();
        assert_eq!(losses, usize::from(kind != "plain"), "{kind}");
    }
}

#[test]
fn lock_updates_that_are_not_taken_take_the_room_of_one() {
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    for times in 2..6 {
        bench.extend(&lock, times * TTL, 0..3);
    }
    let deadline = bench.core.deadline(&lock).unwrap();
    assert_eq!(take_update_kinds(&mut bench), [LockUpdateKind::Extended { deadline }]);
}

#[test]
fn lock_update_alone_reports_the_loss_of_an_auto_extended_lock() {
    let cases = [
        (AutoExtend::extensions(0), LostReason::Extensions),
        (AutoExtend::at_most(TTL / 2), LostReason::MaxHold),
        (AutoExtend::at_most(TTL * 100), LostReason::Expired),
    ];
    for (terms, reason) in cases {
        let (mut bench, lock) = reporting(3).with_kept_lock(terms);
        let deadline = bench.core.deadline(&lock).unwrap();
        bench.pass(deadline.saturating_since(bench.now) - LOSS_BEFORE);
        let mut reported = updates(&mut bench);
        let Some(LockUpdateKind::Lost(error)) = reported.pop().map(|it| it.kind) else {
            panic!("the loss is reported before the deadline")
        };
        assert!(matches!(&error, Error::Lost { reason: told, .. } if *told == reason), "{error}");
        assert!(bench.completion().is_none(), "the request completed before");
        bench.pass(TTL);
        assert!(updates(&mut bench).is_empty(), "{reason:?}");
    }
}

#[test]
fn lock_update_reports_a_loss_that_an_extend_finds() {
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.reply(0, ":0\r\n");
    assert!(updates(&mut bench).is_empty(), "two of three may hold it");
    bench.reply(1, ":-1\r\n");
    assert_eq!(take_only_loss(&mut bench, lock.token()), (1, LostReason::Gone));
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Lost { .. })), "of the extend");
    bench.pass(TTL);
    assert!(updates(&mut bench).is_empty() && bench.completion().is_none());
}

#[test]
fn lock_update_reports_a_loss_that_is_found_after_the_end_of_an_extend() {
    // Node 0 refuses the extend for good, so that fails. Later node 1 answers that the key is gone.
    let (mut bench, lock) = reporting(2).with_lock(&[0, 1]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    for script in ["EVALSHA", "EVAL"] {
        bench.answer_to([script], [0], "-NOPERM no\r\n");
    }
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Config(_))));
    assert!(updates(&mut bench).is_empty(), "it is held until its deadline");
    bench.reply(1, ":-1\r\n");
    assert_eq!(take_only_loss(&mut bench, lock.token()), (1, LostReason::Gone));
}

#[test]
fn lock_update_of_a_flush_reports_auto_extended_and_watched_locks_at_once() {
    for is_kept in [true, false] {
        let mut bench = reporting(3);
        let lock = if is_kept {
            let lock = bench.hold_kept(AutoExtend::at_most(TTL * 100));
            bench.core.watch(&lock, bench.now);
            (0..3).for_each(|node| assert!(bench.names(node).is_empty(), "it is kept"));
            lock
        } else {
            let lock = bench.hold(&[0, 1, 2]);
            (0..3).for_each(|node| assert!(bench.names(node).is_empty(), "it costs nothing"));
            bench.core.watch(&lock, bench.now);
            bench.answer_to(["CLIENT", "PTTL"], 0..3, "+OK\r\n:9999\r\n");
            lock
        };
        assert_eq!(bench.core.auto_extended_locks(), 1);
        (0..2).for_each(|node| bench.reply(node, FLUSH));
        bench.pass(millis(1));
        for node in 0..2 {
            assert_eq!(bench.names(node)[0], "EVALSHA", "{is_kept}");
            bench.reply(node, ":0\r\n");
        }
        let data = if is_kept { 7 } else { 1 };
        assert_eq!(take_only_loss(&mut bench, lock.token()), (data, LostReason::Gone));
    }
}

#[test]
fn lock_update_of_a_watched_lock_comes_just_before_the_deadline() {
    let ttls = [(TTL, LOSS_BEFORE), (millis(4), Duration::from_micros(980))];
    for (ttl, before) in ttls {
        let mut bench = reporting(3);
        bench.ask(1, LockOptions::once(ttl));
        (0..3).for_each(|node| bench.reply(node, "+OK\r\n"));
        let lock = bench.won();
        bench.core.watch(&lock, bench.now);
        bench.core.watch(&lock, bench.now);
        assert_eq!(bench.core.auto_extended_locks(), 1);
        let left = bench.core.remaining(&lock, bench.now);
        bench.pass(left - before - Duration::from_nanos(1));
        assert!(updates(&mut bench).is_empty(), "no warning, and no loss yet");
        bench.pass(Duration::from_nanos(1));
        assert_eq!(take_only_loss(&mut bench, lock.token()), (1, LostReason::Expired));
        assert!(bench.completion().is_none(), "a watched lock has no request");
    }
}

#[test]
fn lock_update_reports_no_loss_if_the_caller_ends_the_lock() {
    let ends: [fn(&mut Bench, Lock); 6] = [
        |bench, lock| {
            bench.core.release(lock, 2, bench.now);
        },
        |bench, _| bench.core.close(bench.now),
        |bench, lock| bench.core.release_nowait(&lock, bench.now),
        |bench, lock| assert!(bench.core.into_token(lock, bench.now).is_some()),
        |bench, _| bench.core.release_all(bench.now),
        |bench, _| bench.core.abandon_after_fork(),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        for kind in ["kept", "watched", "plain"] {
            let mut bench = reporting(3);
            let lock = match kind {
                "kept" => bench.hold_kept(AutoExtend::at_most(TTL * 100)),
                _ => bench.hold(&[0, 1, 2]),
            };
            if kind == "watched" {
                bench.core.watch(&lock, bench.now);
            }
            bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
            end(&mut bench, lock);
            bench.pass(2 * TTL);
            assert_eq!(updates(&mut bench), [], "{kind}, end {number}");
        }
    }
}

/// A driver that asked for updates and never takes them extends and releases locks.
#[test]
fn updates_of_locks_that_are_over_take_no_room() {
    let (mut bench, other) = reporting(3).with_lock(&[0, 1, 2]);
    for _ in 0..1_000 {
        let lock = bench.hold(&[0, 1, 2]);
        bench.extend(&lock, TTL * 2, 0..3);
        assert!(bench.core.has_lock_updates());
        bench.core.release_nowait(&lock, bench.now);
        bench.answer(0..3, ":1\r\n");
        assert!(!bench.core.has_lock_updates());
    }
    assert!(bench.core.queued_updates() < 50);
    assert!(!bench.core.remaining(&other, bench.now).is_zero());
}

/// The terms of auto-extend are replaced before the driver takes a warning. The deadline is still
/// the same, so the warning still holds.
#[test]
fn warning_stays_if_the_terms_of_auto_extend_are_replaced() {
    let (mut bench, lock) = reporting(3).with_kept_lock(AutoExtend::extensions(0));
    bench.pass(TTL * 3 / 4);
    bench.core.auto_extend(&lock, AutoExtend::at_most(TTL * 100), bench.now).unwrap();
    let updates = updates(&mut bench);
    let is_warning = |it: &LockUpdate| matches!(it.kind, LockUpdateKind::Expiring { .. });
    assert!(!updates.is_empty() && updates.iter().all(is_warning), "{updates:?}");
}

#[test]
fn lock_update_is_not_taken_after_the_release_of_a_lock_that_was_lost() {
    let ends: [fn(&mut Bench, Lock); 3] = [
        |bench, lock| {
            bench.core.release(lock, 2, bench.now);
        },
        |bench, lock| bench.core.release_nowait(&lock, bench.now),
        |bench, lock| assert_eq!(bench.core.into_token(lock, bench.now), None),
    ];
    for end in ends {
        let mut bench = reporting(3);
        let (released, other) = (bench.hold(&[0, 1, 2]), bench.hold(&[0, 1, 2]));
        pass_to_the_deadline(&mut bench, &other);
        assert!(bench.core.has_lock_updates());
        end(&mut bench, released);
        let left: Vec<_> = updates(&mut bench).into_iter().map(|update| update.token).collect();
        assert_eq!(left, [other.token()]);
    }
}

#[test]
fn lock_update_is_no_loss_of_what_was_never_handed_out() {
    let mut bench = reporting(3);
    // A grant that is not fetched in time, one that is cancelled, and an extend of another client's
    // lock by its token.
    let grant = |bench: &mut Bench| {
        let op = bench.acquire();
        (0..3).for_each(|node| bench.reply(node, "+OK\r\n"));
        op
    };
    grant(&mut bench);
    let cancelled = grant(&mut bench);
    bench.core.cancel(cancelled, bench.now);
    let token = redlatch::LockToken::parse(&"0".repeat(40)).unwrap();
    bench.core.extend_token(b"other", token, TTL, 3, bench.now).unwrap();
    bench.pass(2 * TTL);
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Expired(_))));
    assert_eq!(updates(&mut bench), []);
}

#[test]
fn lock_update_reports_a_later_deadline_and_no_other() {
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    for (ttl, is_later) in [(2 * TTL, true), (TTL, false)] {
        bench.extend(&lock, ttl, 0..3);
        let deadline = bench.core.deadline(&lock).unwrap();
        let expected = LockUpdate {
            data: 1,
            token: lock.token(),
            kind: LockUpdateKind::Extended { deadline },
        };
        assert_eq!(updates(&mut bench), if is_later { vec![expected] } else { vec![] });
    }
    // The lock is released before the driver takes the update, so this is not reported.
    bench.core.extend(&lock, 3 * TTL, 2, bench.now).unwrap();
    (0..3).for_each(|node| bench.reply(node, ":1\r\n"));
    assert!(bench.core.has_lock_updates());
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(updates(&mut bench), []);
}

#[test]
fn lock_update_warns_unless_the_lock_was_extended_since() {
    for is_extended in [false, true] {
        let (mut bench, lock) = reporting(3).with_kept_lock(AutoExtend::extensions(0));
        let deadline = bench.core.deadline(&lock).unwrap();
        bench.pass(TTL * 3 / 4);
        assert!(bench.core.has_lock_updates(), "the warning");
        if is_extended {
            bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
            (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
        }
        let kinds: Vec<_> = take_update_kinds(&mut bench);
        let expected = if is_extended {
            LockUpdateKind::Extended { deadline: bench.core.deadline(&lock).unwrap() }
        } else {
            LockUpdateKind::Expiring { deadline, key: b"k"[..].into() }
        };
        assert_eq!(kinds, [expected]);
    }
}

#[test]
fn extend_that_is_abandoned_is_repeated_and_the_next_one_takes_its_place() {
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    let op = bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    assert!(matches!(bench.core.extend(&lock, TTL, 2, bench.now), Err(Error::Busy(_))));
    bench.core.abandon(op, bench.now);
    (0..2).for_each(|node| bench.reply(node, "-BUSY no\r\n"));
    (0..2).for_each(|node| drop(bench.sent(node)));
    bench.pass(TTL / 2);
    assert_eq!(bench.names(0).last().map(String::as_str), Some("EVALSHA"), "it is repeated");
    let next = bench.core.extend(&lock, 2 * TTL, 3, bench.now).expect("it is not busy");
    assert!(!bench.core.is_open(op));
    bench.core.abandon(next, bench.now);
    (0..2).for_each(|node| bench.reply(node, ":1\r\n:1\r\n"));
    let deadline = bench.core.deadline(&lock).unwrap();
    assert!(deadline > bench.now.saturating_add(TTL));
    assert_eq!(take_update_kinds(&mut bench), [LockUpdateKind::Extended { deadline }]);
    assert!(bench.completion().is_none() && bench.core.open_ops() == 0, "nothing to fetch");
    // `abandon` cancels a request of any other kind.
    let acquire = bench.acquire();
    bench.core.abandon(acquire, bench.now);
    assert!(!bench.core.is_open(acquire));
}

#[test]
fn lock_update_reports_no_deadline_that_a_bound_has_brought_forward_since() {
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    bench.core.extend(&lock, 2 * TTL, 2, bench.now).unwrap();
    (0..3).for_each(|node| bench.reply(node, ":1\r\n"));
    let extended = bench.core.deadline(&lock).unwrap();
    // The caller bounds auto-extend before the driver takes the update with the later deadline.
    let keep = AutoExtend::at_most(TTL / 2);
    bench.core.auto_extend(&lock, keep, bench.now).unwrap();
    let capped = bench.core.deadline(&lock).unwrap();
    assert!(capped < extended, "the bound is the deadline now");
    assert_eq!(take_update_kinds(&mut bench), [LockUpdateKind::Extended { deadline: capped }]);
}

#[test]
fn lock_update_does_not_report_an_extend_that_gave_no_later_deadline() {
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    for (ttl, expected) in [(TTL, 0), (TTL / 2, 0), (2 * TTL, 1)] {
        bench.extend(&lock, ttl, 0..3);
        assert_eq!(updates(&mut bench).len(), expected, "{ttl:?}");
    }
}

/// The lock is watched with a warning, and the driver takes the updates after each step.
#[test]
fn warning_of_a_watched_lock_comes_a_third_of_the_ttl_before_each_deadline() {
    for first in ["watch", "warning"] {
        let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
        if first == "watch" {
            bench.core.watch(&lock, bench.now);
        }
        bench.core.watch_with_warning(&lock, bench.now);
        bench.core.watch_with_warning(&lock, bench.now);
        bench.core.watch(&lock, bench.now);
        assert_eq!(bench.core.auto_extended_locks(), 1);
        (0..3).for_each(|node| bench.reply(node, "+OK\r\n:9999\r\n"));
        pass_to_the_warning(&mut bench, &lock, TTL / 3);
        bench.extend(&lock, TTL, 0..3);
        let deadline = bench.core.deadline(&lock).unwrap();
        assert_eq!(
            take_update_kinds(&mut bench),
            [LockUpdateKind::Extended { deadline }],
            "{first} first"
        );
        assert!(!bench.core.is_expiring(&lock, bench.now));
        pass_to_the_warning(&mut bench, &lock, TTL / 3);
        pass_to_the_deadline(&mut bench, &lock);
        assert_eq!(take_only_loss(&mut bench, lock.token()), (1, LostReason::Expired));
        assert!(!bench.core.is_expiring(&lock, bench.now), "it is over");
    }
}

#[test]
fn warning_of_a_lock_that_is_watched_late_is_due_at_once() {
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    bench.pass(TTL * 3 / 4);
    assert!(updates(&mut bench).is_empty() && bench.core.is_expiring(&lock, bench.now));
    bench.core.watch_with_warning(&lock, bench.now);
    bench.pass(Duration::ZERO);
    let updates = updates(&mut bench);
    assert!(matches!(updates[..], [LockUpdate { kind: LockUpdateKind::Expiring { .. }, .. }]));
}

/// `is_expiring` turns true when a warning is due by the terms of auto-extend, or, without them, a
/// third of the ttl before the deadline. It does not matter whether the driver takes warnings.
#[test]
fn lock_is_expiring_from_the_moment_of_its_warning_on() {
    let mut bench = reporting(3);
    let warns_early = AutoExtend::extensions(0).warn_before(TTL / 2);
    let lock = bench.hold_kept(warns_early);
    pass_to_the_warning(&mut bench, &lock, TTL / 2);
    let (mut bench, lock) = reporting(3).with_lock(&[0, 1, 2]);
    let left = bench.core.remaining(&lock, bench.now);
    bench.pass(left - TTL / 3 - Duration::from_nanos(1));
    assert!(!bench.core.is_expiring(&lock, bench.now), "it is early");
    bench.pass(Duration::from_nanos(1));
    assert!(bench.core.is_expiring(&lock, bench.now));
    bench.core.release_nowait(&lock, bench.now);
    assert!(!bench.core.is_expiring(&lock, bench.now));
}

/// Lets time pass until the warning of this lock is due, which is `before` its deadline. Asserts
/// that the warning is not reported earlier, and takes it.
#[track_caller]
fn pass_to_the_warning(bench: &mut Bench, lock: &Lock, before: Duration) {
    let deadline = bench.core.deadline(lock).unwrap();
    bench.pass(deadline.saturating_since(bench.now) - before - Duration::from_nanos(1));
    assert!(updates(bench).is_empty() && !bench.core.is_expiring(lock, bench.now), "it is early");
    bench.pass(Duration::from_nanos(1));
    assert!(bench.core.is_expiring(lock, bench.now));
    let told: Vec<_> =
        updates(bench).into_iter().map(|update| (update.token, update.kind)).collect();
    let warning = LockUpdateKind::Expiring { deadline, key: b"k"[..].into() };
    assert_eq!(told, [(lock.token(), warning)]);
}
