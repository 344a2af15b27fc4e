//! When the client renews kept locks that the caller also extends, and which updates it reports.

use super::foreign_writes::{BUSY, WRITTEN, answer, kept};
use super::*;
use redlatch::{AutoExtend, Lock, LockOptions, LockUpdateKind, LostReason};

const ALL_GRANT: [&str; 3] = [":1\r\n"; 3];

/// Auto-extend whose bound is later than the end of these tests.
fn auto_extend_for_long() -> AutoExtend {
    AutoExtend::at_most(TTL * 100)
}

/// Lets time pass while the nodes agree to all requests. Returns how many extends each node got.
fn pass_granting_all(bench: &mut Bench, by: Duration) -> usize {
    let end = bench.now.saturating_add(by);
    let mut extends = 0;
    while bench.now < end {
        bench.pass(end.saturating_since(bench.now).min(millis(20)));
        extends += answer(bench, ALL_GRANT);
    }
    extends / 3
}

/// The caller extends the lock, all nodes agree, and the caller gets `Extended`.
fn extend(bench: &mut Bench, lock: &Lock, ttl: Duration) {
    bench.core.extend(lock, ttl, 2, bench.now).unwrap();
    answer(bench, ALL_GRANT);
    let done = bench.completion().expect("an end");
    assert!(matches!((done.data, &done.result), (2, Ok(Outcome::Extended { .. }))), "{done:?}");
}

#[test]
fn a_lock_that_was_extended_by_little_is_renewed_when_a_third_of_its_ttl_is_over() {
    let (mut bench, lock) = kept(Bench::quiet(3), auto_extend_for_long());
    for _ in 0..4 {
        pass_granting_all(&mut bench, millis(3_000));
        let left = bench.core.remaining(&lock, bench.now);
        extend(&mut bench, &lock, left + millis(200));
    }
    let left = bench.core.remaining(&lock, bench.now);
    assert!(left > TTL / 3, "{left:?} are left after {} renewals", bench.core.stats().renewed);
}

#[test]
fn a_lock_that_was_extended_by_much_is_not_renewed_before_there_is_something_to_prolong() {
    let (mut bench, lock) = kept(Bench::quiet(3), auto_extend_for_long());
    extend(&mut bench, &lock, TTL * 3);
    assert_eq!(pass_granting_all(&mut bench, TTL * 2), 0, "it had that much anyway");
    assert_eq!(pass_granting_all(&mut bench, TTL / 2), 1);
    let left = bench.core.remaining(&lock, bench.now);
    assert!(left > TTL / 2, "{left:?} are left");
}

#[test]
fn an_auto_extend_that_begins_after_an_extend_that_was_lost_renews_in_time() {
    let (mut bench, lock) = Bench::quiet(3).with_lock_everywhere();
    pass_granting_all(&mut bench, millis(9_000));
    let op = bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    answer(&mut bench, [BUSY; 3]);
    bench.core.cancel(op, bench.now);
    bench.core.auto_extend(&lock, auto_extend_for_long(), bench.now).unwrap();
    pass_granting_all(&mut bench, millis(2_000));
    assert!(!bench.core.remaining(&lock, bench.now).is_zero(), "{:?}", bench.notice());
}

#[test]
fn auto_extend_ends_with_max_hold_as_its_reason_at_any_ttl() {
    for hold in 100..140 {
        let mut bench = Bench::quiet(3);
        let (ttl, keep) = (millis(20), AutoExtend::at_most(millis(hold)));
        bench.ask(7, LockOptions::new(ttl).wait(ttl).auto_extend(keep));
        let (mut lost, mut renewals) = (None, 0);
        while lost.is_none() {
            for node in 0..3 {
                for command in bench.sent(node) {
                    renewals += usize::from(node == 0 && command[0] == "EVALSHA");
                    let said = if command[0] == "SET" { "+OK\r\n" } else { ":1\r\n" };
                    bench.reply(node, said);
                }
            }
            drop(bench.completion());
            let notices = std::iter::from_fn(|| bench.notice());
            lost = notices.into_iter().find_map(|it| match it.kind {
                LockUpdateKind::Lost(error) => Some(error),
                _ => None,
            });
            bench.pass(Duration::from_micros(100));
        }
        assert!(
            matches!(lost, Some(Error::Lost { reason: LostReason::MaxHold, .. })),
            "{hold}: {lost:?}"
        );
        // In the last millisecond before the bound the client does not renew again and again.
        assert!(renewals <= hold as usize / 7 + 1, "{hold}: {renewals} renewals");
    }
}

/// Another client writes to the key so often that a check of the key is in flight when the renewal
/// is due, and again each time that the renewal is tried, 50 ms later. The lock may be renewed nine
/// times, and with such a bound checks prolong nothing: so a renewal has to get through.
#[test]
fn checks_of_the_key_put_no_renewal_off_until_the_lock_is_lost() {
    let mut bench = Bench::quiet(3);
    let (ttl, keep) = (millis(300), AutoExtend::extensions(9));
    bench.ask(7, LockOptions::new(ttl).wait(ttl).auto_extend(keep));
    bench.answer(0..3, "+OK\r\n+OK\r\n:299\r\n");
    assert!(matches!(bench.completion().unwrap().result, Ok(Outcome::Acquired(_))));
    let mut checked = 0;
    for milli in 1..=300 {
        // The check begins a twentieth of the ttl after the write, and is answered 8 ms later.
        if milli % 50 == 32 {
            bench.reply(2, WRITTEN);
        }
        bench.pass(millis(1));
        if !matches!(milli % 50, 46..50 | 0..4) {
            checked += answer(&mut bench, ALL_GRANT) / 3;
        }
    }
    assert!(checked >= 5, "{checked} checks and renewals");
    let renewed = bench.core.stats().renewed;
    assert!(renewed > 0, "lost: {:?}", bench.notice());
}

/// The nodes answer no extend. The client reports the loss a little before the deadline, but the
/// holder may read that late and go by the deadline that it knows. So the client writes no release
/// before this deadline.
#[test]
fn no_release_is_written_before_the_deadline_that_the_holder_knows() {
    for ttl in [millis(10), millis(300), TTL] {
        // No node is found to be silent before the deadline.
        let mut bench = Bench::with(3, |settings| {
            settings.probe_interval = TTL * 100;
            (settings.node_timeout, settings.reset_after) = (TTL, TTL * 4);
        });
        let keep = AutoExtend::at_most(TTL * 100);
        bench.ask(7, LockOptions::new(ttl).wait(ttl).auto_extend(keep));
        bench.answer(0..3, "+OK\r\n");
        let Ok(Outcome::Acquired(lock)) = bench.completion().unwrap().result else { panic!() };
        let deadline = bench.core.deadline(&lock).expect("it is held");
        let releases = |bench: &mut Bench| {
            let sent = bench.sent(0);
            sent.iter()
                .filter(|command| command[0].starts_with("EVAL") && command.len() == 5)
                .count()
        };
        while bench.now.saturating_add(Duration::from_micros(100)) < deadline {
            bench.pass(Duration::from_micros(100));
            assert_eq!(releases(&mut bench), 0, "{ttl:?}: {:?} left", deadline);
        }
        assert_eq!(bench.core.remaining(&lock, bench.now), Duration::ZERO, "its loss is reported");
        bench.pass(deadline.saturating_since(bench.now));
        assert_eq!(releases(&mut bench), 1, "{ttl:?}");
    }
}

/// An extend finds the key gone on a majority, so the lock is lost, and the client releases the
/// node that still has the key. In the last 2 ms before the deadline the release waits for the
/// deadline, because the holder may not have noticed the loss.
#[test]
fn no_release_of_a_lock_that_is_gone_is_written_just_before_its_deadline() {
    for (left, at_once) in [(millis(100), true), (millis(3), true), (millis(2), false)] {
        let (mut bench, lock) = Bench::quiet(3).with_lock_everywhere();
        let deadline = bench.core.deadline(&lock).expect("it is held");
        bench.pass(deadline.saturating_since(bench.now) - left);
        bench.core.extend(&lock, TTL, 5, bench.now).unwrap();
        for (node, said) in [(0, ":1\r\n"), (1, ":0\r\n"), (2, ":0\r\n")] {
            bench.answer_to(["EVALSHA"], [node], said);
        }
        assert_eq!(bench.core.remaining(&lock, bench.now), Duration::ZERO, "it is gone");
        assert_eq!(!bench.names(0).is_empty(), at_once, "{left:?} before the deadline");
        if !at_once {
            bench.pass(left);
            assert_eq!(bench.names(0), ["EVALSHA"], "the release");
        }
    }
}

/// A caller that gives up a lost lock does not go by its deadline any more. So the client sends the
/// releases in the same call, before the deadline.
#[test]
fn a_lost_lock_that_is_given_up_is_released_before_its_deadline() {
    let ways: [fn(&mut Bench, Lock); 3] = [
        |bench, lock| bench.core.release_nowait(&lock, bench.now),
        |bench, lock| {
            let op = bench.core.release(lock, 9, bench.now);
            let done = bench.completion().expect("it is answered at once");
            assert_eq!(done.op, op);
            let expired = Outcome::Released(ReleaseOutcome::AlreadyExpired);
            assert_eq!(done.result, Ok(expired));
        },
        |bench, lock| assert_eq!(bench.core.into_token(lock, bench.now), None),
    ];
    for give_up in ways {
        let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::extensions(0));
        let left = bench.core.remaining(&lock, bench.now);
        bench.pass(left - millis(1));
        assert_eq!(bench.loss(), (1, LostReason::Extensions));
        assert!(bench.core.poll_lock_update().is_none() && bench.completion().is_none());
        assert_eq!(bench.names(0), [""; 0], "it is lost, and not released");
        give_up(&mut bench, lock);
        bench.answer_to(["EVAL"], 0..3, ":1\r\n");
        assert_eq!(bench.core.open_records(), 0);
    }
}

/// A client that ends releases its lost locks at once, and does not wait for their deadlines.
#[test]
fn the_end_of_a_client_releases_a_lock_that_waits_for_its_deadline() {
    let ends: [fn(&mut Bench); 2] =
        [|bench| bench.core.close(bench.now), |bench| bench.core.release_all(bench.now)];
    for end in ends {
        let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::extensions(0));
        let left = bench.core.remaining(&lock, bench.now);
        bench.pass(left - millis(1));
        assert_eq!(bench.names(0), [""; 0], "it is lost, and not released");
        end(&mut bench);
        assert_eq!(bench.names(0), ["EVAL"]);
    }
}

#[test]
fn auto_extend_refuses_a_ttl_too_short_to_be_renewed() {
    let mut bench = Bench::quiet(3);
    for (ttl, good) in [(3, false), (5, false), (9, false), (10, true)] {
        let ttl = millis(ttl);
        let asked = bench.core.acquire(
            b"k",
            LockOptions::new(ttl).wait(TTL).auto_extend(auto_extend_for_long()),
            7,
            bench.now,
        );
        assert_eq!(asked.is_ok(), good, "{asked:?}");
        if let Err(error) = asked {
            assert!(error.to_string().contains("ttl"), "{error}");
            assert!(bench.sent(0).is_empty());
        }
    }
}

#[test]
fn a_warning_that_was_not_fetched_is_not_reported_once_the_lock_was_renewed() {
    let (mut bench, lock) = kept(Bench::quiet(3), auto_extend_for_long());
    bench.pass(millis(3_400));
    answer(&mut bench, [BUSY; 3]);
    // The nodes refused the renewal, so the client sends it again. The warning is due now.
    bench.pass(millis(3_300));
    assert!(bench.core.has_lock_updates());
    answer(&mut bench, ALL_GRANT);
    assert!(bench.notice().is_none(), "it is not true any more");
    // The warning for the next deadline is still reported.
    bench.pass(millis(3_400));
    answer(&mut bench, [BUSY; 3]);
    bench.pass(millis(3_300));
    assert_eq!(bench.core.poll_lock_update().map(|it| it.kind), expiring(&bench, &lock));
    assert!(!bench.core.has_lock_updates());
}

/// The warning that the lock expires at its present deadline.
fn expiring(bench: &Bench, lock: &Lock) -> Option<LockUpdateKind> {
    let deadline = bench.core.deadline(lock)?;
    Some(LockUpdateKind::Expiring { deadline, key: b"k"[..].into() })
}

#[test]
fn a_warning_that_is_fetched_late_has_the_present_deadline() {
    let (mut bench, lock) = kept(Bench::quiet(3), auto_extend_for_long());
    for by in [6_700, 300] {
        bench.pass(millis(by));
        answer(&mut bench, [BUSY; 3]);
    }
    let left = bench.core.remaining(&lock, bench.now);
    // The extend prolongs the lock so little that the warning still holds.
    bench.core.extend(&lock, left + millis(200), 2, bench.now).unwrap();
    answer(&mut bench, ALL_GRANT);
    let deadline = bench.core.deadline(&lock).unwrap();
    assert_eq!(bench.completion().unwrap().result, Ok(Outcome::Extended { deadline }));
    assert_eq!(bench.core.poll_lock_update().map(|it| it.kind), expiring(&bench, &lock));
    assert!(bench.completion().is_none() && !bench.core.has_lock_updates());
}

#[test]
fn an_extend_of_the_caller_is_not_counted_as_the_renewal_that_failed_before_it() {
    for in_flight in [false, true] {
        let (mut bench, lock) = kept(Bench::quiet(3), AutoExtend::extensions(1));
        bench.pass(millis(3_400));
        if !in_flight {
            answer(&mut bench, [BUSY; 3]);
        }
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        answer(&mut bench, ALL_GRANT);
        assert!(bench.completion().unwrap().result.is_ok());
        assert_eq!(bench.core.stats().renewed, 0, "in flight: {in_flight}");
        assert_eq!(pass_granting_all(&mut bench, millis(3_400)), 1, "in flight: {in_flight}");
        assert_eq!(bench.core.stats().renewed, 1);
    }
}

#[test]
fn auto_extend_renews_by_the_ttl_of_the_caller() {
    // An extend to less than is left prolongs nothing, and does not change the ttl of renewals.
    for (extended_to, ttl) in [(millis(100), TTL), (TTL * 3, TTL * 3)] {
        let (mut bench, lock) = Bench::quiet(3).with_lock_everywhere();
        extend(&mut bench, &lock, extended_to);
        bench.core.auto_extend(&lock, auto_extend_for_long(), bench.now).unwrap();
        assert_eq!(pass_granting_all(&mut bench, ttl), 3, "renewals at each third of {ttl:?}");
    }
}

#[test]
fn auto_extend_registers_the_key_once() {
    let (mut bench, lock) = Bench::quiet(3).with_lock_everywhere();
    let named = |bench: &mut Bench| (0..3).all(|node| bench.names(node) == ["CLIENT", "PTTL"]);
    bench.core.auto_extend(&lock, auto_extend_for_long(), bench.now).unwrap();
    assert!(named(&mut bench));
    bench.core.auto_extend(&lock, auto_extend_for_long(), bench.now).unwrap();
    assert!((0..3).all(|node| bench.sent(node).is_empty()), "it is named already");
}

#[test]
fn nodes_that_do_not_answer_a_registration_are_found_silent() {
    let (mut bench, lock) = Bench::quiet(3).with_lock_everywhere();
    bench.pass(millis(100));
    bench.core.auto_extend(&lock, auto_extend_for_long(), bench.now).unwrap();
    bench.assert_sent(0..3, ["CLIENT", "PTTL"]);
    (0..6).for_each(|_| bench.pass(millis(20)));
    assert!((0..3).all(|node| bench.node_state(node) == NodeState::Suspect));
}
