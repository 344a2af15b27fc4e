//! Turns that come late. At or after its deadline nothing prolongs a lock, and in each turn the
//! client handles the losses that are due before it sends renewals.

use super::foreign_writes::WRITTEN;
use super::*;
use redlatch::{AutoExtend, Lock, LockOptions, LockUpdateKind, LostReason};

const NO_SCRIPT: &str = "-NOSCRIPT No matching script. Please use EVAL.\r\n";

/// Acquires kept locks on all nodes. Their keys begin with `name`.
fn keep_many(bench: &mut Bench, name: &str, count: usize, ttl: Duration, keep: AutoExtend) {
    for index in 0..count {
        bench.ask_for(format!("{name}{index}"), 1, LockOptions::once(ttl).auto_extend(keep));
        bench.answer_to(["SET", "CLIENT", "PTTL"], 0..3, "+OK\r\n+OK\r\n:9999\r\n");
        assert!(matches!(bench.completion().unwrap().result, Ok(Outcome::Acquired(_))));
    }
}

/// Whether the command sets or extends its key.
fn prolongs(command: &[String]) -> bool {
    match command[0].as_str() {
        "SET" => true,
        // The scripts of extend and release have the token as an argument. Only that of extend has
        // a ttl after the token.
        "EVAL" | "EVALSHA" => command.len() == 6,
        _ => false,
    }
}

fn releases(command: &[String]) -> bool {
    command[0].starts_with("EVAL") && command.len() == 5
}

/// How many locks were reported lost.
fn count_lost(bench: &mut Bench) -> usize {
    let notices = std::iter::from_fn(|| bench.notice());
    notices.filter(|it| matches!(it.kind, LockUpdateKind::Lost(_))).count()
}

#[test]
fn late_turn_after_all_deadlines_releases_every_auto_extended_lock() {
    let mut bench = Bench::quiet(3);
    keep_many(&mut bench, "k", 600, TTL, AutoExtend::at_most(TTL * 100));
    bench.pass(TTL * 2);
    for node in 0..3 {
        let sent = bench.sent(node);
        assert_eq!(sent.iter().filter(|command| prolongs(command)).count(), 0, "n{node}");
        assert_eq!(sent.iter().filter(|command| releases(command)).count(), 600, "n{node}");
    }
    assert_eq!(count_lost(&mut bench), 600);
    assert_eq!(bench.core.auto_extended_locks(), 0);
}

#[test]
fn losses_are_reported_before_the_renewals_of_other_locks() {
    let mut bench = Bench::quiet(3);
    keep_many(&mut bench, "live", 600, TTL, AutoExtend::at_most(TTL * 100));
    // These 300 locks are not renewed. They end a little after the renewals of the others are due.
    keep_many(&mut bench, "over", 300, millis(3_450), AutoExtend::extensions(0));
    bench.pass(millis(3_430));
    assert_eq!(count_lost(&mut bench), 300, "all of them in the first turn");
    for node in 0..3 {
        let sent = bench.sent(node);
        let first_renewal = sent.iter().position(|command| prolongs(command)).unwrap();
        let last_release = sent.iter().rposition(|command| releases(command)).unwrap();
        assert_eq!(sent.iter().filter(|command| releases(command)).count(), 300);
        assert!(last_release < first_renewal, "losses come before renewals");
    }
    // The client sends 256 renewals in a turn, and is due again at once for the rest.
    for _ in 0..2 {
        assert!(bench.core.next_timeout().is_some_and(|at| at <= bench.now));
        bench.pass(Duration::ZERO);
    }
    assert_eq!(bench.sent(0).iter().filter(|command| prolongs(command)).count(), 600 - 256);
    assert_eq!(bench.core.auto_extended_locks(), 600);
}

/// The pause of the request is over after 10 ms, and node 2 counts as silent after 50 ms. A turn
/// after 60 ms has to act on both in this order, so that the request still asks node 2.
#[test]
fn late_turn_repeats_a_request_before_a_silence_that_is_due_later() {
    let mut bench = Bench::with(3, |settings| {
        (settings.retry, settings.probe_interval) = ((millis(10), millis(10)), TTL * 100);
    });
    bench.ask(1, LockOptions::new(TTL).wait(TTL));
    bench.assert_sent(0..3, ["SET"]);
    (0..2).for_each(|node| bench.reply(node, "-LOADING no\r\n"));
    assert_eq!(bench.names(2), ["EVALSHA"], "the attempt is lost");
    bench.pass(millis(60));
    assert_eq!(bench.node_state(2), NodeState::Suspect);
    assert!(bench.names(2).contains(&"SET".into()), "it was ready when the pause was over");
}

/// A kept lock, and how long it takes until the client reports it lost.
fn kept() -> (Bench, Lock, Duration) {
    let keep = AutoExtend::at_most(TTL * 100);
    let (bench, lock) = super::foreign_writes::kept(Bench::quiet(3), keep);
    let left = bench.core.remaining(&lock, bench.now) - LOSS_BEFORE;
    (bench, lock, left)
}

fn assert_nothing_prolongs(bench: &mut Bench) {
    for node in 0..3 {
        let sent = bench.sent(node);
        assert!(!sent.iter().any(|command| prolongs(command)), "n{node}: {sent:?}");
    }
}

fn assert_lost(bench: &mut Bench, data: u64) {
    let mut ends = std::iter::from_fn(|| bench.completion());
    let end = ends.find(|end| end.data == data && end.result.is_err()).expect("an end");
    assert!(matches!(end.result, Err(Error::Lost { reason: LostReason::Expired, .. })), "{end:?}");
}

#[test]
fn foreign_write_check_that_comes_late_prolongs_nothing() {
    let (mut bench, _, left) = kept();
    (0..3).for_each(|node| bench.reply(node, WRITTEN));
    bench.pass(left);
    assert_nothing_prolongs(&mut bench);
    let last = std::iter::from_fn(|| bench.notice()).last().map(|it| it.kind);
    let Some(LockUpdateKind::Lost(Error::Lost { reason, .. })) = last else { panic!("{last:?}") };
    assert_eq!(reason, LostReason::Expired);
}

#[test]
fn extend_of_the_caller_is_not_repeated_at_the_loss_of_an_auto_extended_lock() {
    for past in [Duration::ZERO, TTL] {
        let (mut bench, lock, left) = kept();
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        super::foreign_writes::answer(&mut bench, [super::foreign_writes::BUSY; 3]);
        // The pause after which the client would repeat the extend is over before the client is
        // driven again, and so is the lock.
        bench.pass(left + past);
        assert_nothing_prolongs(&mut bench);
        assert_lost(&mut bench, 2);
    }
}

/// Extends the lock. The nodes answer that they do not know the script, and the client reads that
/// after `late`.
fn extend_without_script(bench: &mut Bench, lock: &Lock, late: Duration) {
    bench.core.extend(lock, TTL, 2, bench.now).unwrap();
    let sent: Vec<Vec<String>> = (0..3).map(|node| bench.names(node)).collect();
    bench.now = bench.now.saturating_add(late);
    for (node, sent) in sent.iter().enumerate() {
        let named = if sent.len() > 1 { "+OK\r\n:9999\r\n" } else { "" };
        bench.reply(node, &format!("{NO_SCRIPT}{named}"));
    }
}

#[test]
fn a_script_that_a_node_forgot_is_not_sent_at_or_past_the_deadline() {
    for (late, sent) in [(millis(1), true), (Duration::ZERO, false), (TTL, false)] {
        let (mut bench, lock) = Bench::quiet(3).with_lock_everywhere();
        let left = bench.core.remaining(&lock, bench.now);
        // The client reads the answer 1 ms before the deadline, at the deadline, or a ttl after it.
        let late = if sent { left - late } else { left + late };
        extend_without_script(&mut bench, &lock, late);
        let said = bench.sent(0);
        assert_eq!(said.iter().any(|command| prolongs(command)), sent, "{late:?}: {said:?}");
        bench.pass(millis(1));
        assert_lost(&mut bench, 2);
    }
    // The same for a kept lock, which the client ends 2 ms before its deadline.
    let (mut bench, lock, left) = kept();
    extend_without_script(&mut bench, &lock, left);
    assert_nothing_prolongs(&mut bench);
    bench.pass(Duration::ZERO);
    assert_lost(&mut bench, 2);
}

#[test]
fn a_node_that_answers_past_the_deadline_is_not_healed() {
    let (mut bench, lock) = Bench::quiet(3).with_lock_everywhere();
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    (0..3).for_each(|node| assert_eq!(bench.names(node), ["EVALSHA"]));
    (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
    assert!(bench.completion().unwrap().result.is_ok());
    bench.now = bench.core.deadline(&lock).unwrap();
    bench.reply(2, ":0\r\n");
    assert_nothing_prolongs(&mut bench);
}
