//! The node marker: what a client learns about a node from the marker that another process wrote
//! there, and when it writes the marker itself.

use super::bench::{INFO_REPLID, bulk};
use super::*;
use redlatch::proto::QuarantineReason;
use redlatch::proto::command::MARK;
use redlatch::proto::{NodeSettings, Settings};
use redlatch::{LockOptions, NodeId, RestartGuard, proto::Instant};

pub const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
/// The time of the nodes at `NOW`, in microseconds since 1970.
pub const MICROS: u64 = 1_700_001_000_000_000;
pub const MINUTE: u64 = 60_000_000;
/// The length of a quarantine: `max_ttl` and its drift.
pub const MEMORY: Duration = Duration::from_millis(60_602);

/// A marker of node 0 that was written so many microseconds before `NOW`.
pub fn marker(ago: u64, end: &str) -> Option<String> {
    let run_id = format!("{}0", "R".repeat(39));
    Some(format!("1 {run_id} {} {}{end}", "H".repeat(40), MICROS - ago))
}

pub fn settings(guard: RestartGuard) -> Settings {
    let mut settings = Settings::new(vec![NodeSettings::new("n0")]);
    settings.restart_guard = guard;
    settings
}

/// A new process connects to one node with this marker and this `INFO`.
pub fn meet(guard: RestartGuard, marker: Option<String>, info: &str) -> Bench {
    let mut bench = Bench::of_settings(settings(guard), &[marker], NOW);
    bench.set_info(0, info);
    bench.connect(0);
    bench
}

/// For how long the node is in quarantine, and why; `None` if no event reports a quarantine.
pub fn quarantine_of(bench: &mut Bench) -> Option<(Duration, QuarantineReason)> {
    std::iter::from_fn(|| bench.core.poll_node_event()).find_map(|event| match event {
        NodeEvent::Quarantined { until, why, .. } => Some((until.saturating_since(bench.now), why)),
        _ => None,
    })
}

#[test]
fn quarantine_begins_when_a_node_was_first_seen_without_a_marker() {
    let mut first = meet(RestartGuard::On, Some(String::new()), INFO_REPLID);
    assert_eq!(quarantine_of(&mut first), Some((MEMORY, QuarantineReason::Unmarked)));
    assert_eq!(first.markers[0], marker(0, ""), "it is written for the next process");
    // The next process also distrusts the node until `MEMORY` after the first one met it. The
    // uptime of a day proves nothing, because the node may have been flushed since.
    for (ago, left) in [(MINUTE / 2, Some(MEMORY - millis(30_000))), (2 * MINUTE, None)] {
        let mut next = meet(RestartGuard::On, marker(ago, ""), INFO_REPLID);
        assert_eq!(
            quarantine_of(&mut next),
            left.map(|left| (left, QuarantineReason::MarkedLately))
        );
        assert_eq!(next.markers[0], marker(ago, ""), "it stays as it is");
    }
}

#[test]
fn a_node_that_was_promoted_and_restarted_long_ago_is_trusted_by_its_marker() {
    let promoted = format!("{INFO_REPLID}second_repl_offset:88\r\n");
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), &promoted);
    assert_eq!(quarantine_of(&mut bench), None);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    // If the client may not use the marker, only `second_repl_offset` shows the promotion.
    let mut bench = meet(RestartGuard::On, None, &promoted);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Promoted)));
}

#[test]
fn a_node_of_another_identity_than_its_marker_is_quarantined_and_marked_anew() {
    let cases = [
        (INFO_REPLID.replace("RRR", "SSS"), QuarantineReason::Restarted),
        (INFO_REPLID.replace("HHH", "III"), QuarantineReason::Promoted),
    ];
    for (info, why) in cases {
        let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), &info);
        assert_eq!(quarantine_of(&mut bench), Some((MEMORY, why)));
        let written = bench.markers[0].clone().unwrap();
        assert!(written.ends_with(&MICROS.to_string()), "{written}");
        assert_ne!(Some(written), marker(0, ""), "it names the new identity");
    }
}

#[test]
fn a_second_promotion_between_two_connections_is_seen() {
    let promoted = format!("{INFO_REPLID}second_repl_offset:88\r\n");
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), &promoted);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    bench.set_info(0, &promoted.replace("HHH", "III"));
    bench.reconnect(0);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Promoted)));
}

#[test]
fn a_flush_between_two_connections_is_seen() {
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
    bench.markers[0] = Some(String::new());
    bench.reconnect(0);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Unmarked)));
}

#[test]
fn a_client_that_sees_a_flush_or_a_jump_of_the_clock_marks_the_node_for_the_next_process() {
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
    // For several flush messages the client sends one script, and no other until it is answered.
    bench.reply(0, &FLUSH.repeat(3));
    let sent = bench.sent(0);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0][1].as_str(), sent[0][5].as_str()), (MARK, ""), "unless another did");
    bench.reply(0, &bulk(&marker(0, "").unwrap()));
    bench.reply(0, FLUSH);
    assert_eq!(bench.sent(0).len(), 1);
    // The answer is lost with the connection, so the next connection has to write the marker.
    assert_eq!(markings(&bench.reconnect(0)), [""]);

    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
    bench.pass(Duration::from_secs(5));
    assert_eq!(bench.names(0), ["TIME"]);
    bench.answer_time_with_skew(0, 3_600_000_000);
    let sent = bench.sent(0);
    assert_eq!((sent[0][1].as_str(), sent[0][5].as_str()), (MARK, "new"), "the old one survived");
}

#[test]
fn a_flush_during_the_handshake_is_not_missed() {
    let mut bench = Bench::of_settings(settings(RestartGuard::On), &[marker(2 * MINUTE, "")], NOW);
    bench.open(0);
    // The flush comes after the node executed CLIENT TRACKING and the GET of the marker.
    let sent = bench.sent(0);
    let names: Vec<&str> = sent.iter().map(|command| command[0].as_str()).collect();
    let at = |name| names.iter().position(|&other| other == name).unwrap();
    assert!(sent[1][1] == "TRACKING" && at("GET") > 1, "{names:?}");
    let replies: Vec<String> = sent.iter().map(|c| bench.handshake_reply(0, c)).collect();
    let (before, after) = replies.split_at(at("GET") + 1);
    bench.reply(0, &format!("{}{FLUSH}{}", before.concat(), after.concat()));
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    let sent = bench.sent(0);
    assert!(sent.iter().any(|command| command[1..].first().is_some_and(|word| word == MARK)));
}

#[test]
fn a_marker_from_the_nodes_future_is_written_anew() {
    let run_id = format!("{}0", "R".repeat(39));
    let future = format!("1 {run_id} {} {}", "H".repeat(40), MICROS + MINUTE);
    let mut bench = meet(RestartGuard::On, Some(future), INFO_REPLID);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::ClockJumped)));
    assert_eq!(bench.markers[0], marker(0, ""));
}

#[test]
fn an_operator_who_vouches_is_believed_by_every_process() {
    let mut bench = meet(RestartGuard::On, Some(String::new()), INFO_REPLID);
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    bench.core.vouch(7, bench.now).unwrap();
    let sent = bench.sent(0);
    let vouched = sent.iter().find(|command| command.get(1).is_some_and(|word| word == MARK));
    assert_eq!(vouched.unwrap()[6], " vouched");
    bench.reply(0, &bulk(&marker(0, " vouched").unwrap()));
    let Ok(Outcome::Vouched(report)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(report.nodes[0].reply, NodeReply::Granted);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    bench.assert_idle();
    // The next process trusts the node, even if the node has been up for only a second.
    let young = INFO_REPLID.replace("86400", "1");
    let mut next = meet(RestartGuard::On, marker(0, " vouched"), &young);
    assert_eq!(quarantine_of(&mut next), None);
    // The node has restarted since, so the marker does not vouch for it any more.
    let restarted = INFO_REPLID.replace("RRR", "SSS");
    let mut next = meet(RestartGuard::On, marker(MINUTE, " vouched"), &restarted);
    assert_eq!(quarantine_of(&mut next), Some((MEMORY, QuarantineReason::Restarted)));
}

#[test]
fn vouch_does_not_cover_what_a_node_forgets_later() {
    let mut bench = meet(RestartGuard::On, Some(String::new()), INFO_REPLID);
    bench.core.vouch(7, bench.now).unwrap();
    bench.sent(0);
    // The flush deleted the marker, so the script of `vouch` wrote none.
    bench.reply(0, &format!("{FLUSH}_\r\n"));
    bench.no_quorum();
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
}

#[test]
fn an_operator_vouches_only_in_the_place_of_the_marker_that_was_seen() {
    let mut bench = meet(RestartGuard::On, marker(MINUTE / 2, ""), INFO_REPLID);
    bench.core.vouch(7, bench.now).unwrap();
    let vouches = |bench: &mut Bench| -> Vec<String> {
        let sent = bench.sent(0).into_iter();
        let scripts = sent.filter(|command| command.get(1).is_some_and(|word| word == MARK));
        scripts.filter(|script| script[6] == " vouched").map(|script| script[5].clone()).collect()
    };
    assert_eq!(vouches(&mut bench), [(MICROS - MINUTE / 2).to_string()]);
    // A flush comes before the answer, so the client writes a new marker. The next `vouch` has to
    // replace this one.
    bench.reply(0, &format!("{FLUSH}_\r\n"));
    bench.answer([0], &bulk(&marker(0, "").unwrap()));
    bench.core.vouch(8, bench.now).unwrap();
    assert_eq!(vouches(&mut bench), [MICROS.to_string()]);
}

/// The client could not write the marker during the handshake, so `vouch` has no marker that it
/// could replace. If it wrote one all the same, it would also vouch for what a flush just before it
/// made the node forget.
#[test]
fn no_operator_vouches_for_a_node_whose_marker_was_never_seen() {
    let mut bench = Bench::of_settings(settings(RestartGuard::On), &[Some(String::new())], NOW);
    bench.shake_hands(0);
    bench.answer_to(["EVAL"], [0], "-OOM no\r\n");
    bench.sent(0);
    bench.core.vouch(7, bench.now).unwrap();
    let sent = bench.sent(0);
    assert_eq!(sent[0][5], "0", "the time of the marker that it replaces: there is none");
    bench.reply(0, "_\r\n");
    bench.no_quorum();
}

#[test]
fn vouch_by_two_clients_at_once_succeeds() {
    let mut bench = meet(RestartGuard::On, Some(String::new()), INFO_REPLID);
    bench.core.vouch(7, bench.now).unwrap();
    bench.core.vouch(8, bench.now).unwrap();
    bench.answer([0], &bulk(&marker(0, " vouched").unwrap()).repeat(2));
    for _ in 0..2 {
        assert!(bench.completion().unwrap().result.is_ok());
    }
}

#[test]
fn a_quarantine_that_began_after_an_operator_vouched_lasts_to_its_own_end() {
    let mut settings = settings(RestartGuard::On);
    settings.probe_interval = MEMORY * 4;
    let mut bench = Bench::of_settings(settings, &[Some(String::new())], NOW);
    bench.connect(0);
    bench.core.vouch(7, bench.now).unwrap();
    bench.answer([0], &bulk(&marker(0, " vouched").unwrap()));
    assert_eq!(bench.node_state(0), NodeState::Ready);
    for _ in 0..2 {
        // Each flush begins a quarantine that the earlier `vouch` does not end. The second flush
        // prolongs the quarantine of the first.
        bench.pass(Duration::from_secs(10));
        bench.reply(0, FLUSH);
        assert_eq!(markings(&bench.sent(0)), [""]);
        bench.reply(0, &bulk(&marker(0, "").unwrap()));
    }
    bench.pass(MEMORY - Duration::from_secs(10));
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    bench.pass(Duration::from_secs(10));
    assert_eq!(bench.node_state(0), NodeState::Ready);
}

/// The second argument of each script in `said` that writes the marker: what it may replace.
fn markings(said: &[bench::Command]) -> Vec<&str> {
    let scripts = said.iter().filter(|command| command.get(1).is_some_and(|word| word == MARK));
    scripts.map(|script| script[5].as_str()).collect()
}

#[test]
fn a_jump_of_the_clock_is_written_down_when_the_node_can_be_asked_again() {
    let jump = 3_600_000_000;
    let asked_for_its_time = || {
        let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
        bench.pass(Duration::from_secs(5));
        assert_eq!(bench.names(0), ["TIME"]);
        bench
    };
    // The node is suspect when it answers `TIME` with the jump.
    let mut bench = asked_for_its_time();
    bench.pass(millis(60));
    assert_eq!(bench.node_state(0), NodeState::Suspect);
    bench.answer_time_with_skew(0, jump);
    assert_eq!(markings(&bench.sent(0)), ["new"]);
    // A script that writes the marker after a flush of another database is already in flight, so
    // the client sends the next one after the answer.
    let mut bench = asked_for_its_time();
    bench.reply(0, FLUSH);
    assert_eq!(markings(&bench.sent(0)), [""]);
    bench.answer_time_with_skew(0, jump);
    assert_eq!(markings(&bench.sent(0)), [""; 0]);
    bench.reply(0, &bulk(&marker(2 * MINUTE, "").unwrap()));
    assert_eq!(markings(&bench.sent(0)), ["new"]);
    // The node has no memory, so the client tries again with the next probe.
    bench.reply(0, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    assert_eq!(markings(&bench.sent(0)), [""; 0]);
    bench.pass(Duration::from_secs(5));
    assert_eq!(markings(&bench.sent(0)), ["new"]);
    bench.reply(0, &bulk(&marker(0, "").unwrap()));
    bench.markers[0] = marker(0, "");
    bench.answer_time_with_skew(0, jump);
    bench.pass(Duration::from_secs(5));
    assert_eq!(markings(&bench.sent(0)), [""; 0], "it is written");
    // If the connection is lost before the answer, the client writes the marker on the next one.
    let mut bench = asked_for_its_time();
    bench.answer_time_with_skew(0, jump);
    assert_eq!(markings(&bench.sent(0)), ["new"]);
    assert_eq!(markings(&bench.reconnect(0)), ["new"]);
}

#[test]
fn a_marker_that_cannot_be_written_for_a_while_is_no_reason_to_trust() {
    let wrapped = "-ERR Error running script (call to f_1): @user_script:1: @user_script: 1: \
                   -MISCONF Redis is configured to save RDB snapshots\r\n";
    for refusal in ["-OOM no\r\n", "-MISCONF no\r\n", wrapped] {
        let mut bench = Bench::of_settings(settings(RestartGuard::On), &[Some(String::new())], NOW);
        bench.shake_hands(0);
        bench.answer_to(["EVAL"], [0], refusal);
        assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)), "{refusal}");
    }
}

#[test]
fn a_node_that_does_not_say_what_time_it_is_is_judged_without_its_marker() {
    let known = marker(2 * MINUTE, "");
    let mut bench = Bench::of_settings(settings(RestartGuard::On), &[known], NOW);
    bench.open(0);
    let sent = bench.sent(0);
    let mut reply = |command: &bench::Command| match command[0].as_str() {
        "TIME" => "-NOPERM no\r\n".to_string(),
        _ => bench.handshake_reply(0, command),
    };
    let replies: String = sent.iter().map(&mut reply).collect();
    bench.reply(0, &replies);
    assert_eq!(bench.node_state(0), NodeState::Ready, "it has been up for a day");
}

/// The replication id of a master also changes without a promotion: when a replica attaches, by a
/// backup, or when the backlog ends. The client must not put the node in quarantine for that.
#[test]
fn a_new_replication_history_without_a_promotion_costs_nothing() {
    let info = format!("{}second_repl_offset:-1\r\n", INFO_REPLID.replace("HHH", "III"));
    for end in ["", " vouched"] {
        let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, end), &info);
        assert_eq!(quarantine_of(&mut bench), None);
        let written = bench.markers[0].clone().unwrap();
        assert!(written.contains("III"), "{written}");
        assert!(written.ends_with(&format!("{}{end}", MICROS - 2 * MINUTE)), "{written}");
    }
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
    bench.set_info(0, &info);
    bench.reconnect(0);
    assert_eq!(quarantine_of(&mut bench), None, "also for a client that knew the node");
    // A node reports for only an hour that it was promoted. A client with longer ttls cannot rely
    // on that, so it assumes a promotion.
    let mut long = settings(RestartGuard::On);
    long.max_ttl = Duration::from_secs(2 * 3600);
    let mut bench = Bench::of_settings(long, &[marker(2 * MINUTE, "")], NOW);
    bench.set_info(0, &info);
    bench.connect(0);
    assert_eq!(quarantine_of(&mut bench).unwrap().1, QuarantineReason::Promoted);
}

#[test]
fn a_restart_that_another_client_recorded_as_harmless_counts_for_a_client_without_that_setting() {
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
    bench.lose_and_back_off(0);
    // The node restarts with a new run id. A client with `RestartGuard::Persistent` has written
    // this id into the marker and kept its time, because for this client the node forgot nothing.
    let restarted = INFO_REPLID.replace("RRR", "SSS");
    bench.markers[0] = marker(2 * MINUTE, "").map(|marker| marker.replace("RRR", "SSS"));
    bench.set_info(0, &restarted);
    bench.connect(0);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Restarted)));
}

#[test]
fn the_key_of_the_marker_cannot_be_locked() {
    let mut bench = Bench::with(1, |settings| settings.node_marker = "app:node".into());
    let error = bench.core.acquire(b"app:node", LockOptions::once(TTL), 1, NOW).unwrap_err();
    assert_eq!(
        error.to_string(),
        "key \"app:node\": it is the key of the node marker; lock another key"
    );
    assert!(bench.sent(0).is_empty());
}

#[test]
fn vouch_ends_at_the_node_timeout_with_the_reply_of_each_node() {
    let mut bench = Bench::with_markers(&vec![Some(String::new()); 3], NOW);
    for node in 0..3 {
        bench.connect(node);
    }
    bench.core.vouch(7, bench.now).unwrap();
    let answer = bulk(&marker(0, " vouched").unwrap());
    bench.sent(0);
    bench.sent(1);
    bench.reply(0, &answer);
    bench.reply(1, "-NOPERM no\r\n");
    assert!(bench.completion().is_none(), "node 2 may answer yet");
    bench.pass(millis(50));
    let report = bench.no_quorum();
    let said: Vec<NodeReply> = report.nodes.iter().map(|node| node.reply).collect();
    let failed = [NodeReply::Failed(NodeError::NoPermission), NodeReply::Failed(NodeError::Silent)];
    assert_eq!(said, [NodeReply::Granted, failed[0], failed[1]]);
    bench.lose(2);
    bench.assert_idle();
}

#[test]
fn a_key_of_another_program_is_left_alone() {
    for value in ["hello", "1 2 3", &format!("1 {}", "x".repeat(90))] {
        let mut bench = meet(RestartGuard::On, Some(value.into()), INFO_REPLID);
        assert_eq!(quarantine_of(&mut bench), None, "the node is judged by its uptime");
        assert_eq!(bench.markers[0].as_deref(), Some(value));
        bench.reply(0, FLUSH);
        assert!(bench.sent(0).is_empty());
    }
}

#[test]
fn marker_is_not_read_without_the_restart_guard() {
    let mut off = Bench::of_settings(settings(RestartGuard::Off), &[Some(String::new())], NOW);
    let mut unnamed = settings(RestartGuard::On);
    unnamed.node_marker = "".into();
    let mut unnamed = Bench::of_settings(unnamed, &[Some(String::new())], NOW);
    for bench in [&mut off, &mut unnamed] {
        bench.connect(0);
        assert_eq!(bench.node_state(0), NodeState::Ready);
        assert_eq!(bench.markers[0].as_deref(), Some(""));
    }
    assert_eq!(off.core.last_error(NodeId::new(0)), NodeError::Unreachable);
}

#[test]
fn vouch_does_not_cover_what_a_node_forgets_before_its_answer_is_read() {
    // The node wrote the marker and was flushed after that. The client reads the flush message
    // before the answer.
    let mut bench = meet(RestartGuard::On, Some(String::new()), INFO_REPLID);
    bench.core.vouch(7, bench.now).unwrap();
    bench.answer([0], &format!("{FLUSH}{}", bulk(&marker(0, " vouched").unwrap())));
    let report = bench.no_quorum();
    assert_eq!(report.nodes[0].reply, NodeReply::Failed(NodeError::Quarantined));
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
}

#[test]
fn vouch_needs_the_marker_of_an_operator_in_the_answer() {
    let mut bench = meet(RestartGuard::On, Some(String::new()), INFO_REPLID);
    bench.core.vouch(7, bench.now).unwrap();
    bench.answer([0], &bulk(&marker(0, "").unwrap()));
    bench.no_quorum();
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
}

#[test]
fn vouch_is_refused_where_no_marker_can_name_the_node() {
    let mut unnamed = settings(RestartGuard::On);
    unnamed.node_marker = "".into();
    let unnamed = Bench::of_settings(unnamed, &[Some(String::new())], NOW);
    let mut unknown = Bench::of_settings(settings(RestartGuard::On), &[None], NOW);
    unknown.set_info(0, "uptime_in_seconds:86400\r\nrole:master\r\n");
    for mut bench in [unnamed, unknown] {
        bench.connect(0);
        bench.sent(0);
        bench.core.vouch(7, bench.now).unwrap();
        assert!(bench.sent(0).is_empty());
        let report = bench.no_quorum();
        assert_eq!(report.nodes[0].reply, NodeReply::Failed(NodeError::NoPermission));
    }
}

/// After a flush the node refuses to write the marker, with this reply. Returns whether the client
/// tries again with the next probe.
fn is_written_again(refusal: &str) -> bool {
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
    bench.reply(0, FLUSH);
    bench.answer_to(["EVAL"], [0], refusal);
    bench.pass(Duration::from_secs(5));
    let sent = bench.names(0);
    assert!(sent.contains(&"TIME".to_string()), "{sent:?}");
    sent.contains(&"EVAL".to_string())
}

#[test]
fn marker_that_a_node_refuses_for_good_is_not_written_again() {
    assert!(is_written_again("-OOM no\r\n"), "its memory may be free by now");
    assert!(!is_written_again("-NOPERM no\r\n"));
}

/// Counters below the time of the node marker count as absent. If the marker cannot be renewed
/// after a flush, it is older than the flush, and would let counters from before count. So the node
/// does not count for fences.
#[test]
fn node_whose_marker_could_not_be_renewed_counts_no_fence() {
    let new = bulk(&marker(0, "").expect("one was made"));
    for (answer, command) in [("-OOM no\r\n", "SET"), (&new, "EVAL")] {
        let mut settings = settings(RestartGuard::On);
        settings.probe_interval = millis(1_000_000);
        let mut bench = Bench::of_settings(settings, &[marker(2 * MINUTE, "")], NOW);
        bench.connect(0);
        bench.reply(0, FLUSH);
        let sent = bench.sent(0);
        assert_eq!(sent.last().map(|command| command[1].as_str()), Some(MARK), "{sent:?}");
        bench.reply(0, answer);
        bench.pass(MEMORY + millis(1));
        let fenced = bench.core.acquire(b"k", LockOptions::once(TTL).fenced(), 1, bench.now);
        fenced.expect("it can be asked for");
        let sent = bench.sent(0);
        assert_eq!(sent[0][0], command, "after {answer:?}: {sent:?}");
    }
}
