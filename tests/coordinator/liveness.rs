//! A node that does not answer: the client suspects it, sends it no new requests and replaces its
//! connection, or trusts it again when it answers.

use super::*;
use redlatch::proto::Action;
use redlatch::{LockOptions, NodeId};

#[test]
fn a_silent_node_is_asked_for_nothing_new_and_its_connection_is_replaced() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.sent(2);
    bench.pass(millis(50));
    assert_eq!(bench.node_state(2), NodeState::Suspect);
    let second = bench.hold(&[0, 1]);
    assert!(bench.sent(2).is_empty(), "it is suspect");
    // Node 2 was sent the SET of the first lock, so the release follows it at once. It was not sent
    // that of the second lock, so this release waits.
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(bench.names(2), ["EVAL"]);
    bench.core.release_nowait(&second, bench.now);
    assert!(bench.sent(2).is_empty());
    bench.pass(millis(499));
    assert!(bench.actions().is_empty());
    bench.pass(millis(1));
    let node = NodeId::new(2);
    assert_eq!(bench.actions(), [Action::Disconnect(node), Action::Connect(node)]);
}

#[test]
fn a_node_that_answers_again_is_ready_again_and_gets_its_pending_releases() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.sent(2);
    bench.pass(millis(40));
    bench.reply(2, "+OK\r\n");
    // Node 2 has answered the SET of the first lock. Now it is silent after the next one.
    let other = bench.core.acquire(b"other", LockOptions::once(TTL), 7, bench.now).unwrap();
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.reply(0, "+OK\r\n");
    bench.reply(1, "+OK\r\n");
    bench.pass(millis(60));
    assert_eq!(bench.node_state(2), NodeState::Suspect);
    bench.core.release_nowait(&lock, bench.now);
    assert!(bench.sent(2).is_empty(), "nothing of this lock is unanswered there: it waits");
    assert_eq!(bench.core.pending_releases(NodeId::new(2)), 1);
    bench.reply(2, "+OK\r\n");
    assert_eq!(bench.node_state(2), NodeState::Ready);
    assert_eq!(bench.names(2), ["EVAL"]);
    bench.core.cancel(other, bench.now);
    bench.reply(2, ":1\r\n");
    assert!(bench.actions().is_empty(), "its connection was kept");
}

#[test]
fn a_node_that_answers_too_slowly_becomes_suspect() {
    let mut bench = Bench::new(3);
    for _ in 0..10 {
        bench.acquire();
    }
    assert_eq!(bench.names(2).len(), 10);
    for _ in 0..4 {
        bench.pass(millis(40));
        bench.reply(2, "_\r\n");
        assert_eq!(bench.node_state(2), NodeState::Ready);
    }
    bench.pass(millis(40));
    bench.pass(millis(40));
    assert_eq!(bench.node_state(2), NodeState::Suspect, "its oldest question is older than four");
}

#[test]
fn a_round_waits_for_answers_to_questions_that_were_written_late() {
    let mut bench = Bench::new(3).with_request();
    // The caller's thread did not run for 500 ms. The requests are written only now, so no node can
    // have answered them.
    bench.now = bench.now.saturating_add(millis(500));
    bench.assert_sent(0..3, ["SET"]);
    bench.core.handle_timeout(bench.now);
    assert!(bench.completion().is_none());
    bench.pass(millis(10));
    bench.reply(0, "+OK\r\n");
    bench.reply(1, "+OK\r\n");
    assert!(matches!(bench.completion().unwrap().result, Ok(Outcome::Acquired(_))));
    assert_eq!(bench.node_state(2), NodeState::Ready);
}

#[test]
fn a_round_does_not_wait_for_late_questions_beyond_the_deadline() {
    let mut bench = Bench::new(3);
    let deadline = bench.now.saturating_add(TTL - TTL / 100 - millis(2));
    bench.acquire();
    bench.now = deadline.saturating_sub(millis(10));
    bench.assert_sent(0..3, ["SET"]);
    bench.core.handle_timeout(bench.now);
    assert!(bench.completion().is_none());
    // The deadline comes before the node timeout, which counts from the late write.
    bench.pass(millis(10));
    assert!(matches!(bench.completion().unwrap().result, Err(Error::Expired(_))));
}

#[test]
fn an_idle_connection_is_asked_for_its_time_and_found_dead() {
    let mut bench = Bench::new(1);
    bench.pass(millis(4_999));
    assert!(bench.sent(0).is_empty());
    bench.pass(millis(1));
    assert_eq!(bench.names(0), ["TIME"]);
    bench.answer_time(0);
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.names(0), ["TIME"]);
    bench.pass(millis(50));
    assert_eq!(bench.node_state(0), NodeState::Suspect);
    bench.pass(millis(500));
    let node = NodeId::new(0);
    assert_eq!(bench.actions(), [Action::Disconnect(node), Action::Connect(node)]);
}

#[test]
fn connections_are_replaced_at_once_if_they_lasted_and_else_with_growing_pauses() {
    let mut bench = Bench::new(1);
    bench.pass(Duration::from_secs(1));
    bench.lose(0);
    bench.pass(Duration::ZERO);
    assert_eq!(bench.actions(), [Action::Connect(NodeId::new(0))]);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        bench.lose(0);
        let lost_at = bench.now;
        let due = bench.core.next_timeout().unwrap();
        bench.pass(due.saturating_since(lost_at));
        assert_eq!(bench.actions(), [Action::Connect(NodeId::new(0))]);
        pauses.push(due.saturating_since(lost_at));
    }
    assert!(pauses[0] >= millis(10) && pauses[0] <= millis(20), "{pauses:?}");
    assert!(pauses[8..].iter().all(|&p| p >= millis(250) && p <= millis(500)), "{pauses:?}");
}

#[test]
fn a_suspect_node_is_reported_as_silent() {
    let (mut bench, _) = Bench::quiet(3).with_lock(&[0, 1]);
    bench.sent(2);
    bench.pass(millis(50));
    assert_eq!(bench.node_state(2), NodeState::Suspect);
    bench.acquire();
    bench.answer([0, 1], "_\r\n");
    let Err(Error::Contended(report)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(report.nodes[2].reply, NodeReply::Failed(NodeError::Silent));
}
