//! Faults that the simulation found, each with the shortest order of events that shows it.

use super::*;
use redlatch::{AutoExtend, LockOptions, NodeId};

#[test]
fn auto_extend_registrations_leave_room_for_releases() {
    let keep = AutoExtend::extensions(1);
    let mut bench = Bench::with(1, |settings| settings.limits.asks = 4);
    bench.acquire();
    bench.core.acquire(b"b", LockOptions::once(TTL).auto_extend(keep), 2, bench.now).unwrap();
    assert_eq!(
        bench.names(0),
        ["SET", "SET"],
        "and nothing that names the key, in the room for releases"
    );
    bench.core.close(bench.now);
    assert_eq!(bench.names(0), ["EVAL", "EVAL"]);
}

#[test]
fn an_inspection_does_not_wait_for_a_node_that_it_did_not_ask() {
    let mut bench = Bench::new(3);
    bench.lose(2);
    bench.pass(Duration::from_secs(1));
    bench.core.inspect(b"k", 1, bench.now).unwrap();
    bench.assert_sent(0..2, ["GETRANGE", "PTTL"]);
    bench.pass(millis(40));
    // The client writes the handshake of node 2 long after it asked the others.
    bench.core.handle_connected(NodeId::new(2), bench.now);
    assert_eq!(bench.names(2)[0], "HELLO");
    bench.pass(millis(10));
    let done = bench.completion().expect("the time is over");
    let Ok(Outcome::Inspected(seen)) = done.result else { panic!() };
    assert_eq!(seen.nodes.len(), 3);
}

/// Three nodes, and a kept lock that all of them granted.
fn kept(keep: AutoExtend) -> (Bench, redlatch::Lock) {
    let mut bench = Bench::new(3);
    bench.ask(1, LockOptions::once(TTL).auto_extend(keep));
    bench.answer_to(["SET", "CLIENT", "PTTL"], 0..3, "+OK\r\n+OK\r\n:10000\r\n");
    match bench.completion().map(|done| done.result) {
        Some(Ok(Outcome::Acquired(lock))) => (bench, lock),
        other => panic!("no lock: {other:?}"),
    }
}

#[test]
fn foreign_write_starts_no_check_while_an_extend_pauses() {
    let (mut bench, lock) = kept(AutoExtend::extensions(9));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    for node in 0..3 {
        assert_eq!(bench.names(node), ["EVALSHA", "CLIENT", "PTTL"]);
        let said = if node == 0 { ":1" } else { "-LOADING it is" };
        bench.reply(node, &format!("{said}\r\n+OK\r\n:10000\r\n"));
    }
    (0..3).for_each(|node| bench.reply(node, ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"));
    bench.pass(millis(1));
    assert!(bench.sent(0).is_empty(), "it would run beside the one that pauses");
    bench.pass(millis(49));
    bench.answer_to(["EVALSHA", "CLIENT", "PTTL"], 0..3, ":1\r\n+OK\r\n:10000\r\n");
    let done = bench.completion().unwrap();
    assert!(matches!((done.data, done.result), (2, Ok(Outcome::Extended { .. }))));
    bench.pass(Duration::from_secs(1));
    assert!(bench.sent(0).is_empty());
}

#[test]
fn extend_that_began_before_auto_extend_keeps_its_bound() {
    let (mut bench, lock) = Bench::new(1).with_lock(&[0]);
    bench.pass(Duration::from_secs(4));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    let bound = bench.now.saturating_add(Duration::from_secs(1));
    bench.core.auto_extend(&lock, AutoExtend::at_most(Duration::from_secs(1)), bench.now).unwrap();
    bench.answer([0], ":1\r\n");
    let extended = bench.completion().unwrap().result;
    assert_eq!(extended, Ok(Outcome::Extended { deadline: bound }));
    assert_eq!(bench.core.deadline(&lock), Some(bound));
}

#[test]
fn auto_extend_on_new_terms_after_a_bound_renews_before_the_deadline() {
    let (mut bench, lock) = kept(AutoExtend::at_most(Duration::from_secs(1)));
    bench.pass(millis(500));
    bench.core.auto_extend(&lock, AutoExtend::extensions(3), bench.now).unwrap();
    bench.pass(millis(1));
    bench.answer_to(["EVALSHA", "CLIENT", "PTTL"], 0..3, ":1\r\n+OK\r\n:10000\r\n");
    assert!(bench.core.remaining(&lock, bench.now) > Duration::from_secs(9));
}

#[test]
fn an_extend_that_was_won_is_not_reported_for_a_lock_that_was_lost_since() {
    let (mut bench, lock) = kept(AutoExtend::at_most(Duration::from_secs(1)));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer(0..3, ":1\r\n+OK\r\n:10000\r\n");
    // The client ends a kept lock 2 ms before its deadline.
    bench.pass(millis(998));
    assert!(bench.core.deadline(&lock).is_none());
    let ends: Vec<_> = std::iter::from_fn(|| bench.completion()).collect();
    assert!(ends.iter().all(|done| matches!(done.result, Err(Error::Lost { .. }))), "{ends:?}");
    assert_eq!(ends.len(), 1);
    assert_eq!(bench.loss().1, redlatch::LostReason::MaxHold);
}
