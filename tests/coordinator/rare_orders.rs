//! Rare orders of events. Each of them once left a key or a record behind, or gave a wrong answer.

use super::*;
use redlatch::RestartGuard;
use redlatch::proto::Action;
use redlatch::proto::Settings;
use redlatch::{LockOptions, NodeId};

const NEVER: Duration = Duration::from_secs(3600);

/// The nodes are not probed.
fn without_probes(settings: &mut Settings) {
    settings.probe_interval = NEVER;
}

/// Lets 10 s pass in which node 0 gives this reply to every request.
fn answer_everything(bench: &mut Bench, reply: &str) {
    for _ in 0..100 {
        bench.pass(millis(100));
        bench.answer_all(0, |_| reply);
        bench.completion();
    }
}

#[test]
fn release_is_not_lost_while_a_node_is_asked_whose_key_it_is() {
    let native = "*2\r\n*1\r\n$7\r\ndelifeq\r\n_\r\n";
    let mut bench = Bench::of(1, INFO_OLD, native, without_probes);
    let (first, second) = (bench.hold(&[0]), bench.hold(&[0]));
    for lock in [&first, &second] {
        bench.core.extend(lock, TTL, 2, bench.now).unwrap();
    }
    bench.sent(0);
    bench.lose(0);
    bench.pass(millis(30));
    assert_eq!(bench.connect(0).len(), 1, "the end of the earlier connection");
    bench.reply(0, "-NOPERM no\r\n");
    bench.answer_time(0);
    bench.core.release_nowait(&first, bench.now);
    bench.answer([0], ":1\r\n");
    bench.pass(millis(40));
    assert_eq!(bench.names(0), ["EVALSHA"], "the extend of the second is asked again");
    bench.reply(0, ":1\r\n");
    bench.core.release(second, 3, bench.now);
    bench.sent(0);
    bench.pass(millis(9));
    bench.reply(0, ":0\r\n");
    answer_everything(&mut bench, ":0\r\n");
    bench.assert_idle();
}

#[test]
fn a_shorter_extend_does_not_end_a_pending_release_earlier() {
    let mut bench = Bench::with(3, |settings| {
        without_probes(settings);
        (settings.node_timeout, settings.reset_after) = (TTL, NEVER);
    });
    let lock = bench.hold(&[0, 1]);
    assert_eq!(bench.names(2), ["SET"]);
    bench.extend(&lock, millis(1000), 0..2);
    // Node 2 executes the SET, with its ttl of 10 s, only after 9 s. So its key far outlives the
    // lock, and the release has to stay pending for longer than the ttl of the extend.
    bench.pass(millis(9_000));
    bench.reply(2, "+OK\r\n:1\r\n");
    bench.core.release_nowait(&lock, bench.now);
    bench.answer([2], "-BUSY a script runs\r\n");
    bench.pass(millis(9_500));
    assert!(bench.names(2).contains(&"EVAL".into()), "what it is owed lapsed too early");
}

#[test]
fn an_extend_that_is_fetched_after_its_deadline_is_no_extend() {
    let (mut bench, lock) = Bench::with(1, without_probes).with_lock(&[0]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer([0], ":1\r\n");
    bench.pass(Duration::from_secs(30));
    assert_eq!(bench.core.remaining(&lock, bench.now), Duration::ZERO);
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Lost { .. })));
}

#[test]
fn no_extend_is_written_after_the_deadline_however_late_the_turn() {
    let (mut bench, lock) = Bench::with(3, without_probes).with_lock_everywhere();
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer(0..3, "-BUSY a script runs\r\n");
    bench.pass(Duration::from_secs(20));
    for node in 0..3 {
        let sent = bench.sent(node);
        assert_eq!(sent.len(), 1, "the release alone: {sent:?}");
        assert_eq!(sent[0].len(), 5, "a release has no ttl: {sent:?}");
    }
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Lost { .. })));
}

#[test]
fn close_does_not_release_a_lock_that_is_being_extended() {
    let (mut bench, lock) = Bench::new(1).with_lock(&[0]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.sent(0);
    bench.core.close(bench.now);
    assert!(bench.sent(0).is_empty());
    assert!(bench.core.remaining(&lock, bench.now) > Duration::ZERO);
}

#[test]
fn close_repeats_a_release_by_its_source() {
    let (mut bench, lock) = Bench::new(1).with_lock(&[0]);
    bench.core.release(lock, 2, bench.now);
    assert_eq!(bench.names(0), ["EVALSHA"]);
    bench.core.close(bench.now);
    assert_eq!(bench.names(0), ["EVAL"], "nobody will read a NOSCRIPT");
}

#[test]
fn a_node_that_breaks_right_after_its_handshake_is_not_connected_to_again_and_again() {
    let mut bench = Bench::new(1);
    bench.lose(0);
    let mut connections = 0;
    for _ in 0..10_000 {
        bench.pass(millis(1));
        let actions = bench.actions();
        if actions.contains(&Action::Connect(NodeId::new(0))) {
            connections += 1;
            bench.put_back(actions);
            bench.connect(0);
            bench.lose(0);
        }
    }
    assert!((15..60).contains(&connections), "{connections} connections in 10 s");
}

#[test]
fn connection_is_not_ended_by_its_id_if_the_process_may_be_another() {
    let untold = "role:master\r\n";
    let off = |settings: &mut Settings| settings.restart_guard = RestartGuard::Off;
    let mut bench = Bench::of(1, untold, "*0\r\n", off);
    bench.acquire();
    bench.sent(0);
    let sent = bench.reconnect(0);
    assert!(sent.iter().all(|command| command[0] != "CLIENT"), "{sent:?}");
    bench.reply(0, ":0\r\n");
    bench.answer_time(0);
    answer_everything(&mut bench, ":0\r\n");
    bench.completion();
    bench.assert_idle();
}

#[test]
fn a_clock_that_is_read_late_after_a_write_is_no_jump() {
    let mut bench = Bench::new(1);
    bench.pass(Duration::from_secs(5));
    let node = NodeId::new(0);
    let length = bench.core.output(node).len();
    let executed = bench.now;
    // The node executes TIME at once. The client's process does not run for 80 ms before it reads
    // its own clock.
    bench.now = bench.now.saturating_add(millis(80));
    bench.core.handle_sent(node, length, bench.now);
    let late = bench.now.saturating_since(executed).as_micros() as i64;
    bench.answer_time_with_skew(0, -late);
    assert_eq!(bench.node_state(0), NodeState::Ready);
}

#[test]
fn release_is_not_sent_again_while_it_is_in_flight() {
    let mut bench = Bench::with(1, |settings| {
        without_probes(settings);
        settings.reset_after = NEVER;
    });
    bench.acquire();
    bench.sent(0);
    bench.lose_and_back_off(0);
    bench.completion().unwrap();
    assert_eq!(bench.connect(0).len(), 2, "the end of the earlier connection, and the release");
    bench.pass(millis(50));
    assert_eq!(bench.node_state(0), NodeState::Suspect);
    bench.reply(0, "-NOPERM no\r\n:0\r\n");
    assert!(bench.sent(0).is_empty(), "two releases back to back prove no more than one");
    bench.answer_time(0);
    bench.pass(millis(60));
    bench.answer_to(["EVAL"], [0], ":0\r\n");
    bench.assert_idle();
}

#[test]
fn connect_timeout_counts_from_when_the_connection_was_begun() {
    let mut bench = Bench::new(1);
    bench.pass(Duration::from_secs(1));
    bench.lose(0);
    bench.pass(Duration::ZERO);
    let node = NodeId::new(0);
    assert_eq!(bench.actions(), [Action::Connect(node)]);
    // The caller's thread did not run for 3 s, and opens the connection only now.
    bench.now = bench.now.saturating_add(Duration::from_secs(3));
    bench.core.handle_connecting(node, bench.now);
    bench.pass(Duration::ZERO);
    assert_eq!(bench.node_state(0), NodeState::Connecting);
    bench.pass(millis(990));
    bench.core.handle_connected(node, bench.now);
    bench.sent(0);
    bench.pass(millis(20));
    assert_eq!(bench.node_state(0), NodeState::Handshake, "it was greeted 20 ms ago");
    bench.pass(millis(40));
    assert_eq!(bench.node_state(0), NodeState::Down(NodeError::Unreachable));
}

#[test]
fn requests_that_are_lost_after_the_end_of_their_lock_decide_nothing() {
    for what in ["let go", "given away", "cancelled"] {
        let mut bench = Bench::with(3, |settings| {
            without_probes(settings);
            settings.reset_after = NEVER;
        });
        if what == "cancelled" {
            let op = bench.acquire();
            (0..3).for_each(|node| drop(bench.sent(node)));
            bench.core.cancel(op, bench.now);
        } else {
            let lock = bench.hold_everywhere();
            bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
            (0..3).for_each(|node| drop(bench.sent(node)));
            if what == "given away" {
                bench.core.into_token(lock, bench.now).unwrap();
            } else {
                bench.core.release_nowait(&lock, bench.now);
            }
            let error = bench.refused();
            assert!(matches!(error, Error::Lost { .. }), "{error}");
        }
        let before = bench.core.stats().clone();
        bench.pass(TTL * 2);
        (0..3).for_each(|node| bench.lose(node));
        let owed = usize::from(what != "given away");
        for node in (0..3).map(NodeId::new) {
            assert_eq!(
                bench.core.pending_releases(node),
                owed,
                "{what}: it is paid once on {node:?}"
            );
        }
        let after = bench.core.stats();
        assert_eq!((after.no_quorum, after.expired), (before.no_quorum, before.expired), "{what}");
        assert!(bench.completion().is_none());
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what is measured is our own time")]
fn many_flushes_in_one_read_cost_little_more_than_one() {
    let mut bench = Bench::new(3);
    let keep = redlatch::AutoExtend::at_most(NEVER);
    bench.ask(1, LockOptions::new(TTL).wait(TTL).auto_extend(keep));
    for _ in 0..20_000 {
        bench.acquire();
    }
    let mut took = [1, 65_536 / FLUSH.len()].map(|count| {
        let bytes = FLUSH.repeat(count);
        bench.now = bench.now.saturating_add(millis(1));
        let start = std::time::Instant::now();
        bench.reply(0, &bytes);
        start.elapsed()
    });
    println!("one: {:?}, as many as are read at once: {:?}", took[0], took[1]);
    took[0] = took[0].max(millis(1));
    // If the client acted on each of these reports, each would take as long as the single one.
    assert!(took[1] < took[0] * 100, "{took:?}");
}
