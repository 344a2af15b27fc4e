//! The local queue of a key: which request has the next turn, also when the lock or a wait ends
//! before the client handles its timers.

use super::waiting::{acquired, ask_for};
use super::*;

const WAIT: Duration = Duration::from_secs(100);

/// Answers all requests to a node until the core sends no more: a `SET` by `set`, and `PTTL` by
/// `left`.
fn answer(bench: &mut Bench, node: usize, set: &str, left: &str) {
    loop {
        let sent = bench.sent(node);
        for command in &sent {
            let reply = match command[0].as_str() {
                "SET" => format!("{set}\r\n"),
                "CLIENT" => "+OK\r\n".to_string(),
                "PTTL" => format!(":{left}\r\n"),
                _ if set == "+OK" => ":1\r\n".to_string(),
                _ => ":0\r\n".to_string(),
            };
            bench.reply(node, &reply);
        }
        if sent.is_empty() {
            return;
        }
    }
}

#[test]
fn request_is_not_refused_because_of_a_lock_that_is_over() {
    let (mut bench, lock) = Bench::new(1).with_lock(&[0]);
    // The lock has ended, but its timer has not expired yet.
    bench.now = bench.now.saturating_add(TTL);
    assert!(bench.core.remaining(&lock, bench.now).is_zero());
    ask_for(&mut bench, 5, Duration::ZERO);
    assert!(bench.completion().is_none());
    assert_eq!(bench.names(0), ["EVALSHA", "SET"]);
}

#[test]
fn a_wait_that_is_over_has_no_turn() {
    let (mut bench, lock) = Bench::quiet(1).with_lock(&[0]);
    ask_for(&mut bench, 2, millis(20));
    bench.now = bench.now.saturating_add(millis(500));
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(bench.names(0), ["EVAL"]);
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Contended(_))));
}

#[test]
fn adopt_does_not_split_the_queue() {
    let (mut bench, lock) = Bench::quiet(1).without_lines().with_lock(&[0]);
    let token = bench.core.into_token(lock, bench.now).unwrap();
    ask_for(&mut bench, 1, WAIT);
    ask_for(&mut bench, 2, WAIT);
    answer(&mut bench, 0, "_", "9000");
    bench.core.adopt(b"k", token, TTL, 9, bench.now).unwrap();
    bench.answer([0], ":1\r\n");
    let mut order = Vec::new();
    for _ in 0..4 {
        let (data, lock) = acquired(&mut bench);
        order.push(data);
        if data == 9 {
            ask_for(&mut bench, 3, WAIT);
        }
        bench.core.release_nowait(&lock, bench.now);
        for _ in 0..30 {
            answer(&mut bench, 0, "+OK", "-2");
            bench.pass(Duration::from_micros(200));
        }
    }
    assert_eq!(order, [9, 1, 2, 3]);
}

#[test]
fn the_waiter_after_those_that_gave_up_has_its_turn() {
    for gave_up in [1, 2, 5] {
        let (mut bench, lock) = Bench::quiet(1).with_lock(&[0]);
        let deadline = bench.core.open_timers();
        (0..gave_up).for_each(|_| {
            ask_for(&mut bench, 2, millis(20));
        });
        ask_for(&mut bench, 3, WAIT);
        // The waits of the first requests are over, but their timers have not expired yet when the
        // lock is released.
        bench.now = bench.now.saturating_add(millis(500));
        bench.core.release_nowait(&lock, bench.now);
        assert_eq!(bench.names(0), ["EVAL", "SET"], "the last one asks");
        bench.reply(0, ":1\r\n+OK\r\n");
        for _ in 0..gave_up {
            let done = bench.completion().unwrap();
            assert!(matches!((done.data, done.result), (2, Err(Error::Contended(_)))));
        }
        assert_eq!(acquired(&mut bench).0, 3);
        // One timer more than that of the deadline looks for silent nodes.
        assert!(bench.core.open_timers() <= deadline + 1, "a wait that is over has no timer");
    }
}

#[test]
fn a_turn_that_ends_at_once_is_followed_by_the_next() {
    let (mut bench, lock) = Bench::quiet(1).with_lock(&[0]);
    (1..=3).for_each(|data| {
        ask_for(&mut bench, data, WAIT);
    });
    // The node connects again with a configuration that the client rejects.
    bench.lose_and_back_off(0);
    let evicts = "maxmemory:1000\r\nmaxmemory_policy:allkeys-lru\r\n";
    bench.set_info(0, &format!("{INFO_OLD}{evicts}"));
    bench.connect(0);
    assert!(matches!(bench.node_state(0), NodeState::Rejected(_)));
    bench.core.release_nowait(&lock, bench.now);
    for data in 1..=3 {
        let done = bench.completion().expect("each has its turn, and its end");
        assert!(matches!((done.data, done.result), (d, Err(Error::Config(_))) if d == data));
    }
    assert_eq!(bench.core.open_ops(), 0);
}

#[test]
fn request_is_refused_because_of_a_lock_only_before_its_deadline() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    let deadline = bench.core.deadline(&lock).unwrap();
    // The timer of the deadline has not expired yet.
    for (moment, asks) in [(deadline.as_nanos() - 1, false), (deadline.as_nanos(), true)] {
        bench.now = redlatch::proto::Instant::from_nanos(moment);
        ask_for(&mut bench, 2, Duration::ZERO);
        assert_eq!(bench.names(0).contains(&"SET".to_string()), asks);
    }
}
