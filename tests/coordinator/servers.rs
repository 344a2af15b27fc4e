//! Links: the addresses of the nodes. Two links whose servers report the same `run_id` lead to one
//! server, and have only one vote.

use super::*;
use redlatch::proto::Settings;
use redlatch::{RestartGuard, proto::Instant};

/// The client tries a rejected link again after at most this long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// `INFO` of a server that has been up for a day, with this last digit in its `run_id`.
fn info_of(server: usize) -> String {
    INFO_OLD.replace("RR0", &format!("RR{server}"))
}

/// Loses the connection of a node, and connects again. From now on `server` answers there.
fn lead_to(bench: &mut Bench, node: usize, server: usize) {
    bench.lose(node);
    bench.set_info(node, &info_of(server));
    reconnect(bench, node);
}

/// Lets time pass until the client opens the next connection, and answers the handshake there.
fn reconnect(bench: &mut Bench, node: usize) {
    bench.pass(LONGEST_PAUSE);
    bench.connect(node);
    for node in 0..3 {
        if bench.names(node) == ["TIME"] {
            bench.answer_time(node);
        }
    }
}

#[track_caller]
fn assert_rejected(bench: &Bench, node: usize) {
    assert_eq!(bench.node_state(node), NodeState::Rejected(NodeError::SameServer));
}

/// Acquires a new key. Asserts that only these nodes are asked, and lets each of them grant it.
#[track_caller]
fn attempt(bench: &mut Bench, asked: &[usize]) -> Result<Outcome, Error> {
    bench.acquire();
    for node in 0..3 {
        let expected: &[&str] = if asked.contains(&node) { &["SET"] } else { &[] };
        assert_eq!(bench.names(node), expected, "n{node}");
    }
    asked.iter().for_each(|&node| bench.reply(node, "+OK\r\n"));
    bench.completion().expect("all of them answered").result
}

#[test]
fn two_links_with_one_run_id_have_one_vote() {
    let mut bench = Bench::with(3, |settings| settings.restart_guard = RestartGuard::Off);
    lead_to(&mut bench, 2, 0);
    assert_rejected(&bench, 2);
    assert_eq!(bench.node_state(0), NodeState::Ready, "the earlier link keeps its vote");
    // Nodes 0 and 2 are one server, which grants, and node 1 denies. So the lock has one grant.
    bench.acquire();
    assert!(bench.sent(2).is_empty(), "n2 has no vote of its own");
    bench.names(0);
    bench.names(1);
    bench.reply(0, "+OK\r\n");
    bench.reply(1, "_\r\n");
    let error = bench.refused();
    let text = error.to_string();
    assert!(text.contains("n2 is the same server as another address"), "{text}");
    bench.answer([0], ":1\r\n");
    // The two servers together are a majority of the three nodes.
    assert!(attempt(&mut bench, &[0, 1]).is_ok());
}

#[test]
fn same_server_is_rejected_until_its_run_id_differs() {
    let mut bench = Bench::with(3, |settings| settings.restart_guard = RestartGuard::Off);
    lead_to(&mut bench, 2, 1);
    assert_rejected(&bench, 2);
    reconnect(&mut bench, 2);
    assert_rejected(&bench, 2);
    bench.set_info(2, &info_of(7));
    reconnect(&mut bench, 2);
    assert_eq!(bench.node_state(2), NodeState::Ready);
    assert!(attempt(&mut bench, &[0, 1, 2]).is_ok());
}

#[test]
fn a_server_that_is_silent_or_in_quarantine_is_known_by_its_run_id_too() {
    let mut bench = Bench::new(3).with_request();
    bench.names(0);
    bench.pass(millis(50));
    assert_eq!(bench.node_state(0), NodeState::Suspect);
    // The client gives this connection up after another 500 ms. Before that, node 2 connects.
    bench.lose(2);
    bench.set_info(2, &info_of(0));
    bench.pass(millis(100));
    bench.connect(2);
    assert_eq!(bench.node_state(0), NodeState::Suspect);
    assert_rejected(&bench, 2);
    let mut bench = Bench::new(3);
    lead_to(&mut bench, 0, 8);
    assert!(
        matches!(bench.node_state(0), NodeState::Quarantined(until) if until > Instant::default())
    );
    lead_to(&mut bench, 2, 8);
    assert_rejected(&bench, 2);
}

#[test]
fn the_later_link_takes_over_where_the_earlier_one_is_down() {
    let mut bench = Bench::with(3, |settings| settings.restart_guard = RestartGuard::Off);
    bench.lose(0);
    bench.lose(2);
    bench.set_info(2, &info_of(0));
    bench.pass(LONGEST_PAUSE);
    bench.connect(2);
    assert_eq!(bench.node_state(2), NodeState::Ready, "nobody else has the vote of that server");
    bench.connect(0);
    assert_rejected(&bench, 0);
}

#[test]
fn servers_that_report_no_run_id_are_not_taken_for_one() {
    let info = "uptime_in_seconds:86400\r\nrole:master\r\n";
    let off = |settings: &mut Settings| settings.restart_guard = RestartGuard::Off;
    let mut bench = Bench::of(3, info, "*2\r\n_\r\n_\r\n", off);
    assert!((0..3).all(|node| bench.node_state(node) == NodeState::Ready));
    assert!(attempt(&mut bench, &[0, 1, 2]).is_ok());
}
