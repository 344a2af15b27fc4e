//! The restart guard: of a node that may have forgotten a live lock, denials count and grants do
//! not.

use super::marker::MEMORY;
use super::*;
use redlatch::NodeId;
use redlatch::RestartGuard;
use redlatch::proto::QuarantineReason;

/// The client loses its connection to the node, and finds another process there.
fn restart(bench: &mut Bench, node: usize) {
    bench.set_info(node, &INFO_OLD.replace("RRR", "SSS"));
    bench.reconnect(node);
}

#[test]
fn a_restarted_node_denies_and_its_grants_do_not_count_until_every_lock_it_forgot_is_over() {
    let mut bench = Bench::with(3, |settings| settings.probe_interval = MEMORY * 2);
    restart(&mut bench, 0);
    assert_eq!(bench.node_state(0), NodeState::Quarantined(bench.now.saturating_add(MEMORY)));
    bench.acquire();
    for node in 0..3 {
        assert_eq!(bench.names(node), ["SET"], "it may deny, so it is asked");
    }
    bench.reply(0, "+OK\r\n");
    bench.reply(1, "+OK\r\n");
    assert!(bench.completion().is_none(), "one grant of three counts");
    bench.reply(2, "_\r\n");
    let error = bench.refused();
    assert!(matches!(error, Error::Contended(_)), "{error}");
    let text = error.to_string();
    let words = "n0 grant ignored: node is quarantined (restart guard: it was restarted; \
                 its grants count in 60.6 s)";
    assert!(text.contains(words), "{text}");
    assert!(bench.names(0)[0].starts_with("EVAL"), "and what it granted is released");
    bench.names(1);
    bench.reply(0, ":1\r\n");
    bench.reply(1, ":1\r\n");
    // The grant of a SET that was sent 1 ms before the end of the quarantine does not count either.
    bench.pass(MEMORY - millis(1));
    bench.acquire();
    bench.names(0);
    bench.pass(millis(1));
    assert_eq!(bench.node_state(0), NodeState::Ready);
    bench.reply(0, "+OK\r\n");
    bench.answer([1], "+OK\r\n");
    assert!(bench.completion().is_none(), "its SET was sent in quarantine");
    bench.answer([2], "+OK\r\n");
    assert!(bench.completion().unwrap().result.is_ok());
    assert!(bench.acquire() != bench.acquire());
}

#[test]
fn a_node_whose_grant_does_not_count_or_is_not_known_is_no_holder() {
    let mut bench = Bench::with(5, |settings| settings.probe_interval = MEMORY * 2);
    restart(&mut bench, 3);
    let lock = bench.hold(&[0, 1, 2]);
    bench.assert_sent([3, 4], ["SET"]);
    bench.reply(3, "+OK\r\n");
    // The client cannot know whether node 4 executed the SET.
    bench.lose(4);
    let holders: Vec<usize> = bench.core.holders(&lock).iter().map(NodeId::index).collect();
    assert_eq!(holders, [0, 1, 2]);
    assert!(bench.core.into_token(lock, bench.now).is_some());
}

#[test]
fn error_of_nodes_that_just_started_says_how_long_that_will_last() {
    let young = INFO_OLD.replace("86400", "11");
    let native = "*0\r\n";
    let mut bench = Bench::of(3, &young, native, |s| s.probe_interval = MEMORY * 2);
    let left = MEMORY - Duration::from_secs(10);
    assert_eq!(bench.node_state(0), NodeState::Quarantined(bench.now.saturating_add(left)));
    bench.acquire();
    bench.answer(0..2, "+OK\r\n");
    let error = bench.refused();
    assert!(matches!(error, Error::NoQuorum(_)), "it passes, so it is worth waiting: {error}");
    let text = "restart guard: it started a short time ago; its grants count in 50.6 s";
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn a_flush_takes_back_grants_that_are_not_decided_yet() {
    let mut bench = Bench::new(3).with_request();
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.reply(0, "+OK\r\n");
    bench.reply(0, FLUSH);
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    bench.reply(1, "+OK\r\n");
    assert!(bench.completion().is_none(), "the first grant was taken back");
    // A node sends its notification of a flush before the replies to later commands. So it executed
    // this SET after the FLUSH, and the grant does not count.
    bench.reply(2, &format!("{FLUSH}+OK\r\n"));
    bench.no_quorum();

    let mut off = Bench::with(3, |settings| settings.restart_guard = RestartGuard::Off);
    off.acquire();
    for node in 0..3 {
        off.sent(node);
    }
    off.reply(0, "+OK\r\n");
    off.reply(0, FLUSH);
    off.reply(1, "+OK\r\n");
    assert!(off.completion().unwrap().result.is_ok(), "the guard is off");
}

#[test]
fn a_clock_that_jumps_is_reported_and_distrusted() {
    for skew in [3_600_000_000, -3_600_000_000] {
        let mut bench = Bench::new(1);
        bench.pass(Duration::from_secs(5));
        assert_eq!(bench.names(0), ["TIME"]);
        bench.answer_time_with_skew(0, skew);
        let node = NodeId::new(0);
        let events: Vec<NodeEvent> = std::iter::from_fn(|| bench.core.poll_node_event()).collect();
        let jumped = events.iter().find_map(|event| match event {
            NodeEvent::ClockJumped { node: n, nanos } if *n == node => Some(*nanos / 1_000_000_000),
            _ => None,
        });
        let hours = jumped.expect("the jump is reported");
        assert!((3_590..=3_600).contains(&hours.abs()) && hours.signum() == skew.signum());
        let why = QuarantineReason::ClockJumped;
        let until = bench.now.saturating_add(MEMORY);
        assert!(events.contains(&NodeEvent::Quarantined { node, why, until }), "{events:?}");
        assert_eq!(bench.node_state(0), NodeState::Quarantined(until));
    }
}

#[test]
fn a_node_that_was_promoted_between_two_connections_is_distrusted_though_its_process_is_the_same() {
    // A promotion changes the replication id of a node, and not its run id.
    let replica =
        format!("{INFO_OLD}master_replid:{}\r\nsecond_repl_offset:-1\r\n", "a".repeat(40));
    let master = format!("{INFO_OLD}master_replid:{}\r\nsecond_repl_offset:88\r\n", "b".repeat(40));
    let mut bench = Bench::of(3, &replica, "*2\r\n_\r\n_\r\n", |settings| {
        settings.probe_interval = MEMORY * 2;
    });
    assert_eq!(bench.node_state(0), NodeState::Ready);
    bench.set_info(0, &master);
    bench.reconnect(0);
    let until = bench.now.saturating_add(MEMORY);
    assert_eq!(bench.node_state(0), NodeState::Quarantined(until));
    let events: Vec<NodeEvent> = std::iter::from_fn(|| bench.core.poll_node_event()).collect();
    let (node, why) = (NodeId::new(0), QuarantineReason::Promoted);
    assert!(events.contains(&NodeEvent::Quarantined { node, why, until }), "{events:?}");
    // A new connection does not prolong the quarantine.
    bench.lose(0);
    bench.pass(millis(1_000));
    bench.connect(0);
    assert_eq!(bench.node_state(0), NodeState::Quarantined(until));
}

#[test]
fn quarantine_outlives_its_connection_and_a_lost_connection_begins_none() {
    let mut bench = Bench::with(3, |settings| settings.probe_interval = MEMORY * 2);
    restart(&mut bench, 0);
    let NodeState::Quarantined(until) = bench.node_state(0) else { panic!() };
    bench.reconnect(0);
    assert_eq!(bench.node_state(0), NodeState::Quarantined(until), "the same process as before");
    bench.reconnect(1);
    assert_eq!(bench.node_state(1), NodeState::Ready);
    bench.pass(MEMORY);
    assert_eq!(bench.node_state(0), NodeState::Ready);
}

#[test]
fn an_error_that_the_restart_guard_causes_says_how_long_to_wait_and_nothing_else() {
    let mut bench = Bench::new(3);
    restart(&mut bench, 0);
    bench.lose(1);
    bench.acquire();
    bench.answer([0, 2], "+OK\r\n");
    let error = bench.refused();
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("its grants count in 60.6 s"), "{text}");
    assert!(text.ends_with("; wait 61 s: nothing else is needed"), "{text}");
    // A lock may be live, so the text names no way to get around the guard.
    for words in ["restart_guard", "--no-restart-guard", "vouch", "init"] {
        assert!(!text.contains(words), "{words} is in: {text}");
    }
    assert!(!text.contains('\n'), "{text}");
    // If another client holds the key on a majority, the text does not blame the guard.
    bench.pass(MEMORY * 2);
    bench.connect(1);
    bench.acquire();
    bench.answer([1, 2], "_\r\n");
    let text = bench.refused().to_string();
    assert!(!text.contains("nothing else is needed"), "{text}");
}

#[test]
fn a_node_whose_key_survived_is_a_holder_in_quarantine_too() {
    let mut bench = Bench::with(3, |settings| settings.probe_interval = MEMORY * 2);
    let lock = bench.hold(&[0, 1]);
    bench.answer([2], &format!("+OK\r\n{FLUSH}"));
    assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)));
    let holders: Vec<usize> = bench.core.holders(&lock).iter().map(NodeId::index).collect();
    assert_eq!(holders, [0, 1, 2]);
}

#[test]
fn a_grant_that_was_withdrawn_is_reported_as_one_of_a_node_in_quarantine() {
    let mut bench = Bench::with(3, |settings| settings.probe_interval = MEMORY * 2);
    bench.acquire();
    bench.answer([0], &format!("+OK\r\n{FLUSH}"));
    bench.answer([1], "_\r\n");
    let Err(Error::Contended(report)) = bench.completion().unwrap().result else { panic!() };
    let replies: Vec<NodeReply> = report.nodes.iter().map(|node| node.reply).collect();
    let guarded = NodeReply::Failed(NodeError::Quarantined);
    assert_eq!(replies, [guarded, NodeReply::Held, NodeReply::Nothing]);
}

#[test]
fn a_node_that_forgot_before_it_answered_is_reported_without_an_answer() {
    let mut bench = Bench::with(3, |settings| settings.probe_interval = MEMORY * 2);
    bench.acquire();
    bench.answer([0], FLUSH);
    bench.answer([1, 2], "_\r\n");
    let Err(Error::Contended(report)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(report.nodes[0].reply, NodeReply::Nothing);
}
