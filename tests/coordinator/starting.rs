//! Requests at the start of a client: the core holds them until a quorum is connected or the first
//! handshakes are over. Also: what a report says about nodes that are not connected.

use super::*;
use redlatch::proto::Action;
use redlatch::{LockOptions, LockToken, LostReason, NodeId};

/// Asks once for a lock, and asserts that the core holds the request.
fn ask(bench: &mut Bench) {
    bench.acquire();
    assert!(bench.completion().is_none(), "it ended before any node was connected");
}

/// The node refuses the connection that was asked for.
fn refuse(bench: &mut Bench, node: usize) {
    bench.core.handle_disconnected(NodeId::new(node), "Connection refused", bench.now);
}

#[test]
fn an_acquire_is_held_until_a_quorum_is_connected() {
    let mut bench = Bench::not_connected(5);
    ask(&mut bench);
    bench.pass(millis(300));
    for node in [0, 1] {
        assert!(bench.connect(node).is_empty(), "a node was asked before a quorum was there");
    }
    let sent = bench.connect(2);
    assert_eq!(sent[0][0], "SET", "{sent:?}");
    bench.assert_sent(0..2, ["SET"]);
    (0..3).for_each(|node| bench.reply(node, "+OK\r\n"));
    let lock = bench.won();
    // The deadline counts from when the core stopped holding the request back, and not from the
    // call.
    assert_eq!(bench.core.remaining(&lock, bench.now), TTL - millis(102));
}

#[test]
fn an_acquire_is_held_no_longer_than_the_connect_timeout() {
    let mut bench = Bench::not_connected(3);
    ask(&mut bench);
    bench.connect(0);
    bench.pass(millis(999));
    assert!(bench.completion().is_none());
    bench.pass(millis(1));
    let report = bench.no_quorum();
    assert_eq!(report.nodes[1].reply, NodeReply::Failed(NodeError::Unreachable));
    assert_eq!(bench.names(0), [] as [&str; 0], "a minority is not asked");
    bench.assert_idle();
}

#[test]
fn an_acquire_is_not_held_once_the_first_handshakes_cannot_give_a_quorum() {
    let mut bench = Bench::not_connected(3);
    ask(&mut bench);
    refuse(&mut bench, 0);
    assert!(bench.completion().is_none());
    refuse(&mut bench, 1);
    let done = bench.completion().expect("the third one alone is no quorum");
    assert!(matches!(done.result, Err(Error::NoQuorum(_))), "{:?}", done.result);
    bench.assert_idle();
}

#[test]
fn report_of_a_node_that_is_not_connected_names_the_step_and_the_time() {
    let mut bench = Bench::not_connected(7);
    ask(&mut bench);
    bench.core.handle_encrypting(redlatch::NodeId::new(5));
    bench.open(6);
    bench.sent(6);
    bench.pass(millis(400));
    (0..4).for_each(|node| refuse(&mut bench, node));
    let report = bench.no_quorum();
    let details = report.nodes[4..].iter().map(|node| node.detail.as_deref().unwrap_or(""));
    let waiting = |step| format!("waiting for {step} for 400.0ms");
    assert_eq!(details.collect::<Vec<_>>(), ["TCP", "TLS", "HELLO"].map(waiting));
    bench.pass(millis(600));
    bench.acquire();
    let report = bench.no_quorum();
    for (node, step) in [(4, "TCP"), (5, "TLS"), (6, "HELLO")] {
        let detail = report.nodes[node].detail.as_deref();
        let words = format!("no answer to {step} within the connect timeout of 1s");
        assert_eq!(detail, Some(words.as_str()));
    }
}

/// Rule 2: no attempt waits for a connection.
#[test]
fn nothing_is_held_after_the_first_handshakes() {
    let mut bench = Bench::not_connected(3);
    bench.connect(0);
    bench.connect(1);
    bench.lose(0);
    let actions = bench.actions();
    assert!(actions.contains(&Action::Connect(NodeId::new(2))), "the third is still connecting");
    bench.put_back(actions);
    bench.acquire();
    let done = bench.completion().expect("two of three are not ready, and that is all");
    assert!(matches!(done.result, Err(Error::NoQuorum(_))), "{:?}", done.result);
}

#[test]
fn request_that_is_held_at_the_start_can_be_cancelled_and_passes_its_turn_on() {
    let mut bench = Bench::not_connected(3);
    let first = bench.ask(1, LockOptions::once(TTL));
    let _second = bench.ask(2, LockOptions::new(TTL).wait(TTL));
    bench.core.cancel(first, bench.now);
    bench.connect(0);
    assert_eq!(bench.connect(1)[0][0], "SET");
    bench.answer_to(["SET"], [0], "+OK\r\n");
    bench.reply(1, "+OK\r\n");
    assert_eq!(bench.completion().map(|done| done.data), Some(2));
}

#[test]
fn an_adopt_is_held_and_stays_an_adopt() {
    let mut bench = Bench::not_connected(1);
    let token = LockToken::parse(&"a".repeat(40)).unwrap();
    bench.core.adopt(b"k", token, TTL, 5, bench.now).unwrap();
    assert_eq!(bench.connect(0)[0][0], "EVAL");
    bench.reply(0, ":-2\r\n");
    let result = bench.completion().expect("the token does not hold the key").result;
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Gone, .. })), "{result:?}");
}

#[test]
fn queued_request_behind_one_that_is_held_ends_with_no_quorum() {
    let mut bench = Bench::not_connected(3);
    bench.ask(1, LockOptions::new(TTL).wait(TTL));
    bench.ask(2, LockOptions::new(TTL).wait(millis(100)));
    bench.pass(millis(100));
    let done = bench.completion().expect("its wait is over");
    assert_eq!(done.data, 2);
    let Err(Error::NoQuorum(report)) = done.result else { panic!("{:?}", done.result) };
    assert_eq!(report.nodes[0].reply, NodeReply::Failed(NodeError::Unreachable));
}

#[test]
fn an_acquire_is_held_while_nodes_that_are_ready_and_connecting_can_make_a_quorum() {
    let mut bench = Bench::not_connected(5);
    ask(&mut bench);
    bench.connect(0);
    bench.connect(1);
    refuse(&mut bench, 2);
    assert!(bench.completion().is_none(), "two are ready, and two are connecting");
    assert_eq!(bench.connect(3)[0][0], "SET");
}

#[test]
fn one_attempt_for_a_key_that_waits_for_the_start_reports_that_no_quorum_is_connected() {
    let mut bench = Bench::not_connected(3);
    bench.ask(1, LockOptions::new(TTL).wait(TTL));
    bench.ask(2, LockOptions::once(TTL));
    let done = bench.completion().expect("it does not wait");
    assert_eq!(done.data, 2);
    assert!(matches!(done.result, Err(Error::NoQuorum(_))), "{:?}", done.result);
}

#[test]
fn a_node_that_stops_during_the_handshake_is_reported_with_the_step_that_it_did_not_answer() {
    let mut bench = Bench::not_connected(1);
    ask(&mut bench);
    bench.open(0);
    bench.sent(0);
    // The node answers HELLO and CLIENT TRACKING, and then nothing: INFO is next.
    bench.reply(0, "%1\r\n$2\r\nid\r\n:1\r\n+OK\r\n");
    bench.pass(Duration::from_secs(1));
    let report = bench.no_quorum();
    let words = "no answer to INFO within the connect timeout of 1s";
    assert_eq!(report.nodes[0].detail.as_deref(), Some(words));
}

#[test]
fn a_node_that_ends_the_connection_during_the_handshake_is_reported_with_what_it_said() {
    let mut bench = Bench::not_connected(1);
    bench.open(0);
    bench.answer([0], "%1\r\n$2\r\nid\r\n:1\r\n-LOADING Redis is loading\r\n");
    bench.core.handle_disconnected(NodeId::new(0), "reset", bench.now);
    assert_eq!(bench.node_state(0), NodeState::Down(NodeError::Loading));
    assert_eq!(bench.core.last_error(NodeId::new(0)), NodeError::Loading);
    // If the driver reports the same end twice, the second report changes nothing.
    let failures = bench.core.failures(NodeId::new(0));
    bench.core.handle_disconnected(NodeId::new(0), "reset", bench.now);
    assert_eq!(bench.core.failures(NodeId::new(0)), failures);
    assert_eq!(bench.core.last_error(NodeId::new(0)), NodeError::Loading);
}

#[test]
fn a_connection_that_is_refused_is_unreachable_and_one_that_was_ready_is_lost() {
    let mut bench = Bench::not_connected(2);
    refuse(&mut bench, 0);
    assert_eq!(bench.node_state(0), NodeState::Down(NodeError::Unreachable));
    bench.connect(1);
    bench.lose(1);
    assert_eq!(bench.node_state(1), NodeState::Down(NodeError::Lost));
}

#[test]
fn error_of_a_full_node_without_a_request_is_reported() {
    let mut bench = Bench::new(1);
    bench.reply(0, "-ERR max number of clients reached\r\n");
    assert_eq!(bench.node_state(0), NodeState::Down(NodeError::TooManyClients));
}

#[test]
fn a_node_that_wants_a_password_which_the_client_does_not_have_is_refused_at_once() {
    let mut bench = Bench::not_connected(1);
    bench.open(0);
    let asked = bench.sent(0).len();
    bench.reply(0, &"-NOAUTH Authentication required.\r\n".repeat(asked));
    assert_eq!(bench.node_state(0), NodeState::Rejected(NodeError::NoAuth));
    assert!(bench.sent(0).is_empty());
}
