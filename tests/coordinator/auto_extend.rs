//! Locks that the client keeps by auto-extend: renewals, checks after another client wrote to the
//! key, and how the loss is reported.

use super::*;
use redlatch::{AutoExtend, LockOptions, LockUpdateKind, LostReason};

/// The commands of a renewal: the extend, and two that register the key for notifications.
const RENEWAL: [&str; 3] = ["EVALSHA", "CLIENT", "PTTL"];
/// A node's answers to `RENEWAL`, if it extends the key.
const RENEWAL_GRANTED: &str = ":1\r\n+OK\r\n:9000\r\n";

fn at_most_an_hour() -> AutoExtend {
    AutoExtend::at_most(Duration::from_secs(3600))
}

/// The reason of the loss, which is reported as an update and not as a completion.
#[track_caller]
fn loss_reason(bench: &mut Bench) -> LostReason {
    assert!(bench.completion().is_none(), "the request completed before");
    bench.loss().1
}

/// A notification that another client wrote to the key.
fn write_notification(key: &str) -> String {
    format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{key}\r\n", key.len())
}

/// Lets time pass in steps shorter than the node timeout, so that no node is found silent.
fn pass_in_steps(bench: &mut Bench, by: Duration) {
    let end = bench.now.saturating_add(by);
    while bench.now < end {
        bench.pass(end.saturating_since(bench.now).min(millis(40)));
    }
}

/// Lets time pass up to the next renewal, and answers it.
fn pass_and_answer_renewal(bench: &mut Bench, nodes: usize) {
    while bench.core.output(redlatch::NodeId::new(0)).is_empty() {
        bench.pass(millis(10));
    }
    for node in 0..nodes {
        let names: Vec<String> = bench.names(node).into_iter().filter(|n| n != "TIME").collect();
        assert_eq!(names, RENEWAL, "n{node}");
        bench.reply(node, RENEWAL_GRANTED);
    }
}

#[test]
fn a_lock_is_renewed_at_a_third_of_its_ttl_and_not_after_its_release() {
    let (mut bench, lock) = Bench::quiet(3).with_kept_lock(at_most_an_hour());
    let first = bench.core.deadline(&lock).unwrap();
    pass_in_steps(&mut bench, millis(3_100));
    assert!(bench.sent(0).is_empty(), "it is early");
    let before = bench.now;
    pass_and_answer_renewal(&mut bench, 3);
    assert!(bench.now.saturating_since(before) < millis(300), "it is late");
    assert!(bench.core.deadline(&lock).unwrap() > first);
    while bench.core.output(redlatch::NodeId::new(0)).is_empty() {
        bench.pass(millis(10));
    }
    bench.assert_sent(0..3, RENEWAL);
    bench.core.release_nowait(&lock, bench.now);
    for node in 0..3 {
        assert_eq!(bench.names(node), ["EVAL"], "after a renewal that is not answered");
        bench.reply(node, &format!("{RENEWAL_GRANTED}:1\r\n"));
    }
    pass_in_steps(&mut bench, millis(20_000));
    assert!(bench.sent(0).is_empty() && bench.notice().is_none());
    bench.assert_idle();
}

#[test]
fn many_locks_are_renewed_together() {
    let mut bench = Bench::quiet(1);
    for index in 0..10_u64 {
        let options = LockOptions::once(TTL).auto_extend(at_most_an_hour());
        bench.ask_for(format!("k{index}"), 1, options);
        bench.answer([0], "+OK\r\n+OK\r\n:9999\r\n");
        bench.completion().unwrap();
        bench.pass(millis(10));
    }
    let mut turns = 0;
    for _ in 0..400 {
        bench.pass(millis(10));
        let sent = bench.sent(0).len();
        turns += usize::from(sent > 0);
        (0..sent / 3).for_each(|_| bench.reply(0, RENEWAL_GRANTED));
    }
    assert!((1..=2).contains(&turns), "{turns} turns for locks that are 100 ms apart");
}

#[test]
fn a_majority_that_does_not_answer_is_asked_until_the_deadline_and_the_loss_is_reported_before_it()
{
    let mut bench = Bench::with(3, |settings| {
        (settings.node_timeout, settings.reset_after) = (TTL, TTL * 4);
        settings.probe_interval = TTL * 300;
    });
    let lock = bench.hold_kept(at_most_an_hour());
    let deadline = bench.core.deadline(&lock).unwrap();
    pass_in_steps(&mut bench, millis(3_500));
    let until_warned = deadline.saturating_since(bench.now).saturating_sub(TTL / 3);
    pass_in_steps(&mut bench, until_warned + millis(1));
    let warning = bench.core.poll_lock_update().expect("a warning");
    assert_eq!((warning.data, warning.token), (7, lock.token()));
    assert_eq!(warning.kind, LockUpdateKind::Expiring { deadline, key: b"k"[..].into() });
    let left = deadline.saturating_since(bench.now).saturating_sub(LOSS_BEFORE);
    pass_in_steps(&mut bench, left - millis(1));
    assert!(bench.core.poll_lock_update().is_none());
    assert!(!bench.core.remaining(&lock, bench.now).is_zero());
    bench.pass(millis(1));
    assert!(bench.now < deadline);
    assert_eq!(loss_reason(&mut bench), LostReason::Expired);
    assert!(bench.core.remaining(&lock, bench.now).is_zero());
    assert!(bench.core.poll_lock_update().is_none(), "it is reported once");
    bench.pass(deadline.saturating_since(bench.now));
    for node in 0..3 {
        let names = bench.names(node);
        assert_eq!(names.last().map(String::as_str), Some("EVAL"), "it is released: {names:?}");
    }
}

#[test]
fn a_renewal_that_fails_is_tried_again_at_a_bounded_pace() {
    let (mut bench, lock) = Bench::quiet(1).with_kept_lock(AutoExtend::extensions(1));
    pass_in_steps(&mut bench, millis(3_400));
    for _ in 0..5 {
        assert_eq!(bench.names(0), RENEWAL);
        bench.reply(0, "-MISCONF disk\r\n+OK\r\n:5000\r\n");
        assert!(bench.sent(0).is_empty());
        bench.pass(millis(50));
    }
    assert_eq!(bench.names(0), RENEWAL);
    bench.reply(0, RENEWAL_GRANTED);
    let deadline = bench.core.deadline(&lock).unwrap();
    let left = deadline.saturating_since(bench.now);
    pass_in_steps(&mut bench, left - TTL / 4);
    assert!(bench.sent(0).is_empty(), "it was renewed as often as it may be");
    let warning = bench.notice().expect("a warning");
    assert!(matches!(warning.kind, LockUpdateKind::Expiring { .. }), "{warning:?}");
    pass_in_steps(&mut bench, TTL / 4);
    assert_eq!(loss_reason(&mut bench), LostReason::Extensions, "failures are not counted");
}

#[test]
fn no_extension_reaches_beyond_max_hold() {
    let mut bench = Bench::quiet(1);
    let start = bench.now;
    let lock = bench.hold_kept(AutoExtend::at_most(Duration::from_secs(12)));
    let end = start.saturating_add(Duration::from_secs(12));
    let mut asked = Vec::new();
    while !bench.core.remaining(&lock, bench.now).is_zero() {
        bench.pass(millis(40));
        for command in bench.sent(0).into_iter().filter(|command| command[0] == "EVALSHA") {
            if let Some(ttl) = command.get(5) {
                let ttl = millis(ttl.parse().unwrap());
                assert!(bench.now.saturating_add(ttl) <= end, "{ttl:?}");
                asked.push(ttl);
                bench.reply(0, RENEWAL_GRANTED);
            }
        }
    }
    assert!(bench.now > start.saturating_add(Duration::from_secs(11)), "{asked:?}");
    assert!((1..=4).contains(&asked.len()), "{asked:?}");
    assert_eq!(loss_reason(&mut bench), LostReason::MaxHold);
}

#[test]
fn auto_extend_checks_at_once_a_key_that_is_deleted_on_a_majority() {
    let (mut bench, lock) = Bench::quiet(5).with_kept_lock(at_most_an_hour());
    bench.pass(millis(10));
    for node in [0, 1] {
        bench.reply(node, &write_notification("k"));
        bench.pass(Duration::ZERO);
        assert!(bench.sent(node).is_empty(), "a majority holds it");
    }
    bench.reply(2, &write_notification("another"));
    bench.reply(2, &write_notification("k"));
    bench.pass(Duration::ZERO);
    bench.assert_sent(0..5, RENEWAL);
    for node in 0..5 {
        bench.reply(node, if node < 3 { ":0\r\n+OK\r\n:-2\r\n" } else { RENEWAL_GRANTED });
    }
    assert_eq!(loss_reason(&mut bench), LostReason::Gone);
    assert!(bench.core.deadline(&lock).is_none());
    for node in 0..5 {
        let healed = bench.sent(node).into_iter().any(|command| command[0] == "SET");
        assert!(!healed, "a lost round heals nothing");
    }
}

#[test]
fn auto_extend_checks_pushes_of_a_minority_at_a_bounded_rate() {
    let (mut bench, _kept) = Bench::quiet(3).with_kept_lock(AutoExtend::extensions(1));
    let mut extends = 0;
    for _ in 0..100 {
        bench.reply(0, &write_notification("k"));
        bench.pass(millis(20));
        for node in 0..3 {
            let asked = bench.sent(node).iter().filter(|c| c[0] == "EVALSHA").count();
            extends += asked;
            (0..asked).for_each(|_| bench.reply(node, RENEWAL_GRANTED));
        }
    }
    // The loop takes 2 s. A check is due each 500 ms, a twentieth of the ttl: about four checks.
    assert!((3 * 3..=3 * 5).contains(&extends), "{extends} extends");
    assert_eq!(bench.core.stats().renewed, 0, "checks are not counted as renewals");
}

#[test]
fn a_flush_of_all_nodes_is_a_loss_at_once() {
    let (mut bench, _kept) = Bench::quiet(3).with_kept_lock(at_most_an_hour());
    (0..3).for_each(|node| bench.reply(node, FLUSH));
    bench.pass(Duration::ZERO);
    bench.assert_sent(0..3, RENEWAL);
    (0..3).for_each(|node| bench.reply(node, ":0\r\n+OK\r\n:-2\r\n"));
    assert_eq!(loss_reason(&mut bench), LostReason::Gone);
    assert_eq!(bench.names(2), ["EVALSHA"], "its answer was not there yet");
    bench.reply(2, ":0\r\n");
    assert!((0..3).all(|node| bench.sent(node).is_empty()), "no key comes back");
    bench.assert_idle();
}

#[test]
fn auto_extend_notices_a_key_that_was_deleted_before_its_registration() {
    let (mut bench, lock) = Bench::quiet(1).with_lock(&[0]);
    bench.core.auto_extend(&lock, at_most_an_hour(), bench.now).unwrap();
    bench.answer_to(["CLIENT", "PTTL"], [0], "+OK\r\n:-2\r\n");
    bench.pass(Duration::ZERO);
    assert_eq!(bench.names(0), RENEWAL);
    bench.reply(0, ":0\r\n+OK\r\n:-2\r\n");
    assert_eq!(loss_reason(&mut bench), LostReason::Gone);
    bench.assert_idle();
}

#[test]
fn auto_extend_by_no_extensions_leaves_the_lock_until_its_deadline() {
    let (mut bench, lock) = Bench::quiet(1).with_kept_lock(at_most_an_hour());
    let deadline = bench.core.deadline(&lock);
    bench.core.auto_extend(&lock, AutoExtend::extensions(0), bench.now).unwrap();
    assert_eq!(bench.core.auto_extended_locks(), 1, "the former terms are over");
    pass_in_steps(&mut bench, millis(5_000));
    assert!(bench.sent(0).is_empty());
    assert_eq!(bench.core.deadline(&lock), deadline);
    bench.core.release_nowait(&lock, bench.now);
    bench.answer([0], ":1\r\n");
    assert!(bench.completion().is_none() && bench.notice().is_none());
    bench.assert_idle();
}

#[test]
fn auto_extend_terms_are_checked_before_anything_is_sent() {
    let mut bench = Bench::quiet(1);
    for bad in [AutoExtend::at_most(millis(2)), at_most_an_hour().warn_before(TTL)] {
        let asked = bench.core.acquire(
            b"k",
            LockOptions::new(TTL).wait(TTL).auto_extend(bad),
            7,
            bench.now,
        );
        assert!(matches!(asked, Err(Error::Config(_))), "{asked:?}");
    }
    assert!(bench.sent(0).is_empty());
    bench.assert_idle();
}

#[test]
fn auto_extend_starts_no_check_while_a_renewal_is_in_flight() {
    let (mut bench, _) = Bench::new(3).with_kept_lock(at_most_an_hour());
    while bench.core.output(redlatch::NodeId::new(0)).is_empty() {
        bench.pass(millis(10));
    }
    bench.answer(0..3, &write_notification("k"));
    bench.pass(Duration::ZERO);
    for node in 0..3 {
        assert!(bench.sent(node).is_empty(), "the renewal will show what is there");
    }
}

#[test]
fn extend_by_the_caller_is_refused_when_no_ttl_fits_before_the_bound() {
    let mut bench = Bench::quiet(3);
    let bound = Duration::from_secs(5);
    let lock = bench.hold_kept(AutoExtend::at_most(bound));
    bench.now = bench.now.saturating_add(bound - Duration::from_micros(2_500));
    let op = bench.core.extend(&lock, TTL, 8, bench.now).unwrap();
    let done = bench.completion().expect("nothing can be asked");
    assert_eq!(done.op, op);
    let Err(Error::Config(error)) = done.result else { panic!("{:?}", done.result) };
    assert!(matches!(error, redlatch::ConfigError::Ttl(_)), "{error}");
    assert!((0..3).all(|node| bench.sent(node).is_empty()));
}

#[test]
fn auto_extend_reports_no_renewal_that_gave_no_later_deadline() {
    let (mut bench, lock) = Bench::quiet(3).with_kept_lock(at_most_an_hour());
    bench.core.extend(&lock, TTL, 8, bench.now).unwrap();
    bench.answer(0..3, RENEWAL_GRANTED);
    let done = bench.completion().expect("the extend of the caller");
    assert!(matches!(done.result, Ok(Outcome::Extended { .. })), "{done:?}");
    assert!(!bench.core.has_lock_updates(), "the deadline is the same");
}

#[test]
fn auto_extend_starts_no_renewal_while_a_check_is_in_flight() {
    let (mut bench, _) = Bench::quiet(3).with_kept_lock(at_most_an_hour());
    pass_in_steps(&mut bench, TTL / 3 - millis(10));
    (0..3).for_each(|node| bench.reply(node, &write_notification("k")));
    bench.pass(Duration::ZERO);
    bench.assert_sent(0..3, RENEWAL);
    bench.pass(millis(20));
    for node in 0..3 {
        assert!(bench.sent(node).is_empty(), "the renewal waits for the check");
    }
}
