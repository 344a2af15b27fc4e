//! Counters of locks: how many are held, how they ended, how long they were waited for and held.

use super::*;
use redlatch::{AutoExtend, Durations, LockOptions, Stats};

/// The counts of held, released and lost locks, and of holds.
fn ends(stats: &Stats) -> [u64; 4] {
    [stats.held, stats.released, stats.lost, stats.holds.count()]
}

/// The upper bound of the histogram class that has the one counted duration.
fn class_of(durations: &Durations) -> Option<Duration> {
    let (end, _) = durations.classes().find(|(_, count)| *count > 0).expect("one was counted");
    end
}

#[test]
fn counters_distinguish_released_lost_and_handed_off_locks() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    assert_eq!(ends(bench.core.stats()), [1, 0, 0, 0]);
    bench.pass(millis(5));
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(ends(bench.core.stats()), [0, 1, 0, 1]);
    assert_eq!(bench.core.stats().holds.total(), millis(5));

    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    bench.pass(TTL);
    assert_eq!(ends(bench.core.stats()), [0, 0, 1, 1], "its deadline passed");
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(ends(bench.core.stats()), [0, 0, 1, 1], "it was over");

    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    assert!(bench.core.into_token(lock, bench.now).is_some());
    assert_eq!(ends(bench.core.stats()), [0, 0, 0, 1], "it was given away");
    assert_eq!((bench.core.stats().won, bench.core.stats().waits.count()), (1, 1));
}

#[test]
fn counters_measure_the_wait_from_the_request_to_the_lock() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    assert_eq!(class_of(&bench.core.stats().waits), Some(Duration::from_micros(64)));
    // This client holds the key, so its second request waits in the local queue.
    let before = bench.core.stats().waits.total();
    bench.ask(2, LockOptions::new(TTL).wait(TTL * 10));
    bench.pass(millis(20));
    bench.core.release_nowait(&lock, bench.now);
    bench.answer(0..3, ":1\r\n+OK\r\n");
    assert!(matches!(bench.completion().unwrap().result, Ok(Outcome::Acquired(_))));
    let waited = bench.core.stats().waits.total().saturating_sub(before);
    assert_eq!(waited, millis(20));
}

#[test]
fn counters_separate_extends_of_the_caller_from_renewals() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    bench.extend(&lock, TTL, 0..3);
    assert_eq!((bench.core.stats().extended, bench.core.stats().renewed), (1, 0));

    let mut bench = Bench::quiet(3);
    let keep = AutoExtend::at_most(TTL * 10);
    bench.ask(7, LockOptions::once(TTL).auto_extend(keep));
    bench.answer(0..3, "+OK\r\n+OK\r\n:9999\r\n");
    assert!(matches!(bench.completion().unwrap().result, Ok(Outcome::Acquired(_))));
    bench.pass(TTL / 2);
    bench.answer(0..3, ":1\r\n+OK\r\n:9999\r\n");
    assert_eq!((bench.core.stats().extended, bench.core.stats().renewed), (0, 1));
}

/// The counts of grants, denials and errors of a node.
fn votes(stats: &Stats, node: usize) -> (u64, u64, u64) {
    let node = &stats.nodes[node];
    (node.grants, node.denials, node.all_errors().map(|(_, count)| count).sum())
}

#[test]
fn counters_of_a_node_count_answers_to_an_acquire_and_not_to_a_release() {
    let (mut bench, lock) = Bench::quiet(3).with_lock(&[0, 1, 2]);
    bench.core.release(lock, 2, bench.now);
    for (node, reply) in ["-NOSCRIPT no\r\n", ":1\r\n", ":-1\r\n"].into_iter().enumerate() {
        bench.answer_to(["EVALSHA"], [node], reply);
    }
    assert_eq!(votes(bench.core.stats(), 0), (1, 0, 0), "the client sends the script, then");
    assert_eq!(votes(bench.core.stats(), 1), (1, 0, 0));
    assert_eq!(votes(bench.core.stats(), 2), (1, 0, 0), "the key of another is no denial");
    bench.acquire();
    for (node, reply) in ["_\r\n", "_\r\n", "-OOM no\r\n"].into_iter().enumerate() {
        bench.sent(node);
        let first = if node == 0 { ":1\r\n" } else { "" };
        bench.reply(node, &format!("{first}{reply}"));
    }
    assert_eq!(votes(bench.core.stats(), 1), (1, 1, 0));
    assert_eq!(votes(bench.core.stats(), 2), (1, 0, 1));
}

#[test]
fn counters_have_each_way_in_which_an_attempt_is_lost() {
    let lost = |bench: &Bench| {
        let stats = bench.core.stats();
        [stats.contended, stats.no_quorum, stats.expired, stats.misconfigured]
    };
    let cases = [
        ("_\r\n", [1, 0, 0, 0]),
        ("-LOADING no\r\n", [0, 1, 0, 0]),
        ("-NOPERM no\r\n", [0, 0, 0, 1]),
    ];
    for (reply, expected) in cases {
        let mut bench = Bench::quiet(3);
        bench.acquire();
        bench.answer(0..3, reply);
        assert!(bench.completion().unwrap().result.is_err());
        assert_eq!(lost(&bench), expected, "{reply}");
    }
    let mut bench = Bench::quiet(3);
    bench.ask(1, LockOptions::once(millis(20)));
    bench.now = bench.now.saturating_add(millis(20));
    bench.answer(0..3, "+OK\r\n");
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Expired(_))));
    assert_eq!(lost(&bench), [0, 0, 1, 0]);
}

#[test]
fn counters_and_events_follow_connections_and_pending_releases() {
    let mut bench = Bench::quiet(3);
    let node = |bench: &Bench| bench.core.stats().nodes[0];
    assert_eq!((node(&bench).connections, node(&bench).failures), (1, 0));
    let lock = bench.hold(&[0, 1, 2]);
    bench.lose(0);
    assert_eq!((node(&bench).connections, node(&bench).failures), (1, 1));
    bench.core.release_nowait(&lock, bench.now);
    std::iter::from_fn(|| bench.core.poll_node_event()).for_each(drop);
    bench.pass(millis(600));
    bench.connect(0);
    assert_eq!((node(&bench).connections, node(&bench).failures), (2, 1));
    assert_eq!(node(&bench).pending_releases_sent, 1);
    assert_eq!(node(&bench).pending_releases_dropped, 0);
    let events: Vec<_> = std::iter::from_fn(|| bench.core.poll_node_event()).collect();
    let sent = NodeEvent::PendingReleasesSent { node: redlatch::NodeId::new(0), count: 1 };
    assert!(events.contains(&sent), "{events:?}");
    let dropped = |event: &&NodeEvent| matches!(event, NodeEvent::PendingReleasesDropped { .. });
    assert_eq!(events.iter().find(dropped), None, "none was dropped");
    let mut bench = Bench::quiet(3);
    bench.lose_and_back_off(1);
    std::iter::from_fn(|| bench.core.poll_node_event()).for_each(drop);
    bench.connect(1);
    let sent = std::iter::from_fn(|| bench.core.poll_node_event())
        .any(|event| matches!(event, NodeEvent::PendingReleasesSent { count: 0, .. }));
    assert!(!sent, "nothing was pending there");
}

#[test]
fn events_report_when_a_quorum_of_nodes_counts_and_when_it_does_not() {
    let mut bench = Bench::not_connected(3);
    let quorum = |bench: &mut Bench| -> Vec<bool> {
        let events = std::iter::from_fn(|| bench.core.poll_node_event());
        let ready = events.filter_map(|event| match event {
            NodeEvent::QuorumReady => Some(true),
            NodeEvent::QuorumGone => Some(false),
            _ => None,
        });
        ready.collect()
    };
    bench.connect(0);
    assert!(quorum(&mut bench).is_empty(), "one of three");
    bench.connect(1);
    assert_eq!(quorum(&mut bench), [true]);
    bench.connect(2);
    bench.lose(2);
    assert!(quorum(&mut bench).is_empty(), "two are left");
    bench.lose(0);
    assert_eq!(quorum(&mut bench), [false]);
}
