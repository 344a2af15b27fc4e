//! Limits: the longest key, the number of records, and how many bytes and unanswered requests the
//! client keeps for a node.

use super::*;
use redlatch::proto::{LONGEST_KEY, Limits};
use redlatch::{Busy, ConfigError, LockOptions, NodeId};

/// A bench with these limits, whose nodes are not probed.
fn limited(nodes: usize, limits: impl FnOnce(Limits) -> Limits) -> Bench {
    Bench::with(nodes, |settings| {
        settings.probe_interval = TTL * 100;
        settings.limits = limits(settings.limits);
    })
}

fn ask_for(bench: &mut Bench, key: &[u8]) -> Result<redlatch::Op, Error> {
    bench.core.acquire(key, LockOptions::once(TTL), 1, bench.now)
}

/// How many bytes are in the outbox of the node.
fn output(bench: &Bench, node: usize) -> usize {
    bench.core.output(NodeId::new(node)).len()
}

#[test]
fn key_that_is_too_long_with_its_prefix_is_refused_before_anything_is_sent() {
    let prefix = "tenant:";
    let mut bench = Bench::with(3, |settings| {
        settings.key_prefix = prefix.into();
        settings.probe_interval = TTL * 100;
    });
    let longest = LONGEST_KEY - prefix.len();
    let error = ask_for(&mut bench, &vec![b'k'; longest + 1]).unwrap_err();
    let (given, most) = (LONGEST_KEY + 1, LONGEST_KEY);
    assert_eq!(error, Error::Config(ConfigError::KeyTooLong { given, most }));
    assert!((0..3).all(|node| output(&bench, node) == 0));
    assert!(ask_for(&mut bench, &vec![b'k'; longest]).is_ok());
    assert!(output(&bench, 0) > LONGEST_KEY);
}

#[test]
fn limit_of_records_refuses_the_next_request() {
    let mut bench = limited(3, |limits| limits.records(2));
    bench.acquire();
    bench.acquire();
    assert_eq!(ask_for(&mut bench, b"one more"), Err(Error::Busy(Busy::Records)));
}

#[test]
fn full_nodes_make_a_request_busy_only_if_they_would_make_a_quorum() {
    // Two of the five nodes are down, so a quorum needs each of the other three.
    let mut bench = limited(5, |limits| limits.asks(4));
    bench.lose(3);
    bench.lose(4);
    let ops = [bench.acquire(), bench.acquire()];
    bench.assert_sent(0..3, ["SET", "SET"]);
    bench.reply(2, "+OK\r\n+OK\r\n");
    assert!(ops.iter().all(|&op| bench.core.is_open(op)));
    assert_eq!(ask_for(&mut bench, b"one more"), Err(Error::Busy(Busy::Nodes)));
    assert_eq!(output(&bench, 2), 0, "no node was asked");
    // If there is no quorum even with the full nodes, the request is lost, and not busy.
    let mut bench = limited(5, |limits| limits.asks(2));
    bench.acquire();
    (2..5).for_each(|node| bench.lose(node));
    assert!(bench.completion().is_some());
    ask_for(&mut bench, b"one more").unwrap();
    let done = bench.completion().expect("two of five are no quorum");
    assert!(matches!(done.result, Err(Error::NoQuorum(_))), "{done:?}");
}

#[test]
fn full_minority_does_not_keep_a_majority_from_being_asked() {
    let mut bench = limited(5, |limits| limits.asks(4));
    bench.acquire();
    bench.acquire();
    (0..5).for_each(|node| drop(bench.sent(node)));
    (2..5).for_each(|node| bench.reply(node, "+OK\r\n+OK\r\n"));
    ask_for(&mut bench, b"one more").unwrap();
    let asked = |bench: &Bench, node| output(bench, node) > 0;
    let nodes = [0, 1, 2, 3, 4].map(|node| asked(&bench, node));
    assert_eq!(nodes, [false, false, true, true, true]);
    let stats = bench.core.stats();
    let full = |node: usize| stats.nodes[node].errors(NodeError::Full) > 0;
    assert!(full(0) && full(1) && !full(2));
}

/// How many bytes the `SET` of a key with one letter takes.
fn length_of_a_set() -> usize {
    let mut bench = limited(1, |limits| limits);
    ask_for(&mut bench, b"a").unwrap();
    output(&bench, 0)
}

#[test]
fn half_of_the_outbox_is_kept_for_releases() {
    let set = length_of_a_set();
    // The limit is two bytes short of a second SET.
    let mut bench = limited(1, |limits| limits.outbox(2 * set));
    ask_for(&mut bench, b"a").unwrap();
    assert_eq!(ask_for(&mut bench, b"b"), Err(Error::Busy(Busy::Nodes)));
    let mut bench = limited(1, |limits| limits.outbox(2 * set + 2));
    ask_for(&mut bench, b"a").unwrap();
    assert!(ask_for(&mut bench, b"b").is_ok());
}

fn hold(bench: &mut Bench, key: &[u8]) -> redlatch::Lock {
    ask_for(bench, key).unwrap();
    bench.answer([0], "+OK\r\n");
    bench.won()
}

/// A closed client has no later turn in which it could send the releases.
#[test]
fn client_that_ends_writes_its_releases_although_the_outbox_is_full() {
    let mut bench = limited(1, |limits| limits.outbox(2 * length_of_a_set()));
    let locks = [b"a", b"b", b"c"].map(|key| hold(&mut bench, key));
    for lock in &locks {
        bench.core.release_nowait(lock, bench.now);
    }
    assert!(bench.core.pending_releases(NodeId::new(0)) > 0, "the outbox is full");
    bench.core.close(bench.now);
    let written = String::from_utf8_lossy(bench.core.output(NodeId::new(0))).into_owned();
    for lock in &locks {
        assert!(written.contains(&lock.token().to_string()), "{written}");
    }
}

#[test]
fn release_is_put_off_if_the_outbox_is_full_and_sent_later() {
    let mut bench = limited(1, |limits| limits);
    let lock = hold(&mut bench, b"a");
    bench.core.release_nowait(&lock, bench.now);
    let (set, release) = (length_of_a_set(), output(&bench, 0));

    let mut bench = limited(1, |limits| limits.outbox(set + release));
    let locks = [hold(&mut bench, b"a"), hold(&mut bench, b"b")];
    ask_for(&mut bench, b"c").unwrap();
    bench.core.release_nowait(&locks[0], bench.now);
    assert_eq!(output(&bench, 0), set + release, "the outbox is exactly full");
    bench.core.release_nowait(&locks[1], bench.now);
    assert_eq!(output(&bench, 0), set + release, "nothing fits any more");
    bench.answer_to(["SET", "EVAL"], [0], "_\r\n:1\r\n");
    for _ in 0..10 {
        bench.pass(millis(10));
    }
    assert_eq!(bench.names(0), ["EVAL"], "it was pending");
}

#[test]
fn full_node_is_not_asked_for_its_time() {
    for (asks, expected) in [(2, &["SET"][..]), (4, &["SET", "TIME"])] {
        let mut bench = Bench::with(1, |settings| {
            settings.probe_interval = millis(100);
            settings.node_timeout = Duration::from_secs(1);
            settings.limits = settings.limits.asks(asks);
        });
        bench.acquire();
        bench.pass(millis(100));
        assert_eq!(bench.names(0), expected);
    }
}

#[test]
fn release_is_put_off_if_a_node_has_as_many_questions_as_it_may() {
    let (mut bench, lock) = limited(1, |limits| limits.asks(4)).with_lock(&[0]);
    let ops = [bench.acquire(), bench.acquire()];
    ops.into_iter().for_each(|op| bench.core.cancel(op, bench.now));
    assert_eq!(bench.core.unanswered(NodeId::new(0)), 4);
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(bench.core.unanswered(NodeId::new(0)), 4);
    assert_eq!(bench.core.pending_releases(NodeId::new(0)), 1);
}
