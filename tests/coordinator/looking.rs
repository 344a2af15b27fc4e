//! What a driver can read from the core between its turns. None of these calls changes anything.

use super::*;
use redlatch::proto::Instant;
use redlatch::{AutoExtend, Lock, NodeId, NodeSet};

fn nodes(indices: &[usize]) -> NodeSet {
    indices.iter().copied().map(NodeId::new).collect()
}

#[test]
fn driver_sees_whether_there_is_an_action_before_it_takes_one() {
    let mut bench = Bench::not_connected(2);
    assert!(bench.core.has_actions());
    assert!(bench.core.poll_action().is_some() && bench.core.has_actions());
    assert!(bench.core.poll_action().is_some() && !bench.core.has_actions());
    assert!(bench.core.poll_action().is_none());
}

#[test]
fn driver_sees_the_start_and_which_nodes_are_ready_or_reconnecting() {
    let mut bench = Bench::not_connected(3);
    assert!(bench.core.is_starting());
    assert_eq!(bench.core.ready(), NodeSet::EMPTY);
    bench.connect(0);
    assert!(bench.core.is_starting(), "one of three is no quorum");
    bench.connect(2);
    assert!(!bench.core.is_starting());
    assert_eq!(bench.core.ready(), nodes(&[0, 2]));
    // The loss of a connection soon after it was made counts as a failure, and the client pauses
    // before it connects again. That of an older one does not: the client reconnects at once.
    bench.lose(0);
    assert_eq!(bench.core.failures(NodeId::new(0)), 1);
    assert!(!bench.core.reconnecting().contains(NodeId::new(0)));
    bench.core.handle_disconnected(NodeId::new(1), "Connection refused", bench.now);
    bench.pass(Duration::from_secs(1));
    bench.core.handle_disconnected(NodeId::new(1), "Connection refused", bench.now);
    assert_eq!(bench.core.failures(NodeId::new(1)), 2, "in a row");
}

#[test]
fn connection_that_was_good_for_long_is_reconnecting_when_it_is_lost() {
    let mut bench = Bench::quiet(3);
    assert_eq!(bench.core.reconnecting(), NodeSet::EMPTY);
    bench.pass(TTL);
    bench.lose(1);
    assert_eq!(bench.core.failures(NodeId::new(1)), 0);
    assert_eq!(bench.core.reconnecting(), nodes(&[1]));
    assert_eq!(bench.core.ready(), nodes(&[0, 2]));
    bench.pass(Duration::ZERO);
    bench.connect(1);
    assert_eq!(bench.core.reconnecting(), NodeSet::EMPTY);
    // A node that is only suspect keeps its connection, so it is not reconnecting.
    bench.acquire();
    bench.sent(2);
    bench.pass(millis(50));
    assert_eq!(bench.node_state(2), NodeState::Suspect);
    assert_eq!(bench.core.reconnecting(), NodeSet::EMPTY);
}

#[test]
fn driver_sees_how_many_questions_are_unanswered() {
    let mut bench = Bench::quiet(3);
    let unanswered = |bench: &Bench| bench.core.unanswered(NodeId::new(1));
    let before = unanswered(&bench);
    let ops: Vec<_> = (0..3).map(|_| bench.acquire()).collect();
    assert_eq!(unanswered(&bench), before + 3);
    assert!(ops.iter().all(|&op| bench.core.is_open(op)));
    bench.answer([1], "+OK\r\n");
    assert_eq!(unanswered(&bench), before + 2);
    bench.core.cancel(ops[0], bench.now);
    assert!(!bench.core.is_open(ops[0]));
}

#[test]
fn key_of_a_lock_can_be_read_until_nothing_of_it_is_pending() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    assert_eq!(bench.core.key(&lock), Some(&b"k"[..]));
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(bench.core.key(&lock), Some(&b"k"[..]), "its releases are in flight");
    bench.answer(0..3, ":1\r\n");
    assert_eq!(bench.core.key(&lock), None);
    bench.assert_idle();
}

#[test]
fn error_of_a_request_can_be_read_before_its_outcome_is_fetched() {
    let mut bench = Bench::quiet(3);
    let op = bench.acquire();
    assert!(bench.core.error(op).is_none());
    bench.answer(0..2, "_\r\n");
    let error = bench.core.error(op).expect("two of three denied it");
    assert!(matches!(error, Error::Contended(_)), "{error:?}");
    let report = error.report().expect("a contended error has one");
    assert_eq!(report.nodes[0].reply, NodeReply::Held);
    assert!(bench.completion().is_some());
    assert!(bench.core.error(op).is_none(), "it was fetched");
}

fn acquire_kept(bench: &mut Bench, keep: AutoExtend) -> Lock {
    let lock = bench.hold(&[0, 1, 2]);
    bench.core.auto_extend(&lock, keep, bench.now).unwrap();
    lock
}

#[test]
fn auto_extends_beyond_a_moment_needs_a_held_lock_with_a_later_bound() {
    let after = |bench: &Bench, time: Duration| -> Instant { bench.now.saturating_add(time) };
    let mut bench = Bench::quiet(3);
    assert!(!bench.core.auto_extends_beyond(b"k", bench.now), "no lock");
    let lock = acquire_kept(&mut bench, AutoExtend::at_most(TTL * 3));
    let end = after(&bench, TTL * 3);
    let just_before = after(&bench, TTL * 3 - Duration::from_nanos(1));
    assert!(bench.core.auto_extends_beyond(b"k", just_before));
    assert!(!bench.core.auto_extends_beyond(b"k", end));
    assert!(!bench.core.auto_extends_beyond(b"k", after(&bench, TTL * 4)));
    assert!(!bench.core.auto_extends_beyond(b"other", bench.now));
    bench.core.release_nowait(&lock, bench.now);
    assert!(!bench.core.auto_extends_beyond(b"k", bench.now), "it is released");

    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    assert!(!bench.core.auto_extends_beyond(b"k", bench.now), "it is not extended");
    // The renewal is also bounded by a number of extensions, so the client does not know its end.
    let terms = AutoExtend::at_most(TTL * 3).with_extensions(2);
    bench.core.auto_extend(&lock, terms, bench.now).unwrap();
    assert!(!bench.core.auto_extends_beyond(b"k", bench.now));
}

#[test]
fn open_records_count_tasks_and_open_timers_count_renewals() {
    let mut bench = Bench::quiet(3);
    let (records, timers) = (bench.core.open_records(), bench.core.open_timers());
    let lock = bench.hold(&[0, 1, 2]);
    bench.core.inspect(b"other", 9, bench.now).unwrap();
    assert_eq!(bench.core.open_records(), records + 2);
    let without = bench.core.open_timers();
    assert!(without > timers);
    // Auto-extend needs timers of its own, for the next renewal and the warning.
    let terms = AutoExtend::at_most(TTL * 3);
    bench.core.auto_extend(&lock, terms, bench.now).unwrap();
    assert!(bench.core.open_timers() > without);
}
