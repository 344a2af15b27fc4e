//! Probes: in regular intervals the client reads the node marker and whether the node may evict,
//! because no notification reports a change of these.

use super::bench::{Command, INFO_REPLID, bulk};
use super::marker::{MEMORY, MICROS, MINUTE, NOW, marker, meet, quarantine_of, settings};
use super::*;
use redlatch::proto::command::MARK;
use redlatch::proto::{Action, QuarantineReason};
use redlatch::{LockOptions, NodeId, RestartGuard};

const PROBE: Duration = Duration::from_secs(5);

/// Lets a probe interval pass, and node 0 answer everything. Returns what `settle` returns.
pub fn probe(bench: &mut Bench) -> Vec<String> {
    bench.pass(PROBE);
    settle(bench)
}

/// Node 0 answers everything, and runs the scripts that write its marker. Returns the second
/// argument of each of these scripts, which says what the script may replace.
pub fn settle(bench: &mut Bench) -> Vec<String> {
    let mut markings = Vec::new();
    loop {
        let sent = bench.sent(0);
        if sent.is_empty() {
            return markings;
        }
        for command in sent {
            if command[0] == "TIME" {
                bench.answer_time(0);
                continue;
            }
            if command.get(1).is_some_and(|word| word == MARK) {
                markings.push(command[5].clone());
            }
            answer_as_usual(bench, &command);
        }
    }
}

/// Node 0 answers the command, and runs its script.
fn answer_as_usual(bench: &mut Bench, command: &Command) {
    let reply = bench.handshake_reply(0, command);
    bench.reply(0, &reply);
}

/// Lets a probe interval pass, and node 0 answer the first part of the probe.
fn begin_probe(bench: &mut Bench) {
    bench.pass(PROBE);
    bench.sent(0);
    bench.answer_time(0);
}

/// A client that trusts node 0, and has probed it once since.
fn trusting() -> Bench {
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
    assert!(probe(&mut bench).is_empty());
    assert_eq!(quarantine_of(&mut bench), None);
    bench
}

/// The marker that a script would write on node 0 now.
fn marker_now(bench: &Bench) -> Option<String> {
    let ago = MICROS.checked_sub(bench.micros(0));
    assert_eq!(ago.unwrap_or(0), 0, "the clock of the tests begins with MICROS");
    marker(0, "").map(|marker| marker.replace(&MICROS.to_string(), &bench.micros(0).to_string()))
}

#[test]
fn probe_that_finds_no_marker_quarantines_the_node_and_writes_one() {
    let mut bench = trusting();
    bench.markers[0] = Some(String::new());
    assert_eq!(probe(&mut bench), [""]);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Unmarked)));
    assert_eq!(bench.markers[0], marker_now(&bench));
    // The next probe finds this marker, and writes no other one.
    assert!(probe(&mut bench).is_empty());
    assert_eq!(quarantine_of(&mut bench), None);
}

/// An operator swapped the databases of the node. The other database has an older marker, of a
/// client with other locks.
#[test]
fn probe_that_finds_an_older_marker_of_the_same_process_replaces_it() {
    for (ago, end) in
        [(7 * MINUTE, ""), (7 * MINUTE, " vouched"), (MINUTE, ""), (MINUTE, " vouched")]
    {
        let mut bench = trusting();
        bench.markers[0] = marker(ago, end);
        assert_eq!(probe(&mut bench), [(MICROS - ago).to_string()], "{ago} {end}");
        assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::MarkerChanged)));
        assert_eq!(bench.markers[0], marker_now(&bench), "the next process waits, too");
        assert!(probe(&mut bench).is_empty());
        assert_eq!(quarantine_of(&mut bench), None);
    }
}

/// The client compares a marker with the one that it last read or wrote, and not with that of the
/// handshake.
#[test]
fn marker_is_compared_with_the_one_read_or_written_last() {
    let at = |since: u64| marker(0, "").map(|m| m.replace(&MICROS.to_string(), &since.to_string()));
    let mut bench = trusting();
    assert!(probe(&mut bench).is_empty());
    // Another client wrote this marker after the handshake and before the second probe.
    bench.markers[0] = at(MICROS + 7_000_000);
    assert_eq!(probe(&mut bench), [(MICROS + 7_000_000).to_string()]);

    let mut bench = trusting();
    bench.markers[0] = Some(String::new());
    begin_probe(&mut bench);
    let script = bench.sent(0);
    let between = bench.micros(0) + 20_000;
    bench.pass(millis(40));
    answer_as_usual(&mut bench, &script[0]);
    bench.markers[0] = at(between);
    assert_eq!(probe(&mut bench), [between.to_string()], "it was written before that marker");
}

/// The clock of the node was set back a little while the script was in flight.
#[test]
fn marker_that_this_client_wrote_is_known_whatever_time_it_has() {
    let mut bench = trusting();
    bench.markers[0] = marker(7 * MINUTE, "");
    begin_probe(&mut bench);
    let script = bench.sent(0);
    bench.skew_micros[0] = -30_000;
    answer_as_usual(&mut bench, &script[0]);
    bench.skew_micros[0] = 0;
    assert!(probe(&mut bench).is_empty());
}

/// An operator restored the data of another node into the running node.
#[test]
fn probe_that_finds_the_marker_of_another_process_replaces_it() {
    let mut bench = trusting();
    bench.markers[0] = marker(MINUTE, "").map(|marker| marker.replace("RRR", "XXX"));
    assert_eq!(probe(&mut bench), [(MICROS - MINUTE).to_string()]);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::MarkerChanged)));
    assert_eq!(bench.markers[0], marker_now(&bench));
}

/// Two clients see that the databases were swapped, and the first one writes a new marker. The
/// second one must not take that for another loss and write the marker again, and so on.
#[test]
fn clients_that_notice_one_loss_do_not_write_the_marker_in_turns() {
    let mut benches = [trusting(), trusting()];
    let mut shared = marker(7 * MINUTE, "");
    let mut written = Vec::new();
    for _ in 0..4 {
        for bench in &mut benches {
            bench.markers[0].clone_from(&shared);
            written.extend(probe(bench));
            shared.clone_from(&bench.markers[0]);
        }
    }
    assert_eq!(written, [(MICROS - 7 * MINUTE).to_string()]);
    for bench in &mut benches {
        let (_, why) = quarantine_of(bench).expect("each has noticed it");
        assert_eq!(why, QuarantineReason::MarkerChanged);
        assert_eq!(quarantine_of(bench), None, "once");
    }
}

/// To a node that never writes the marker, the client sends only one script for each probe.
#[test]
fn node_that_returns_another_marker_than_was_written_is_asked_again_with_the_next_probe() {
    let mut bench = trusting();
    for ago in [3, 5, 7, 9] {
        bench.pass(PROBE);
        bench.markers[0] = marker(ago * MINUTE, "");
        bench.sent(0);
        bench.answer_time(0);
        let sent = bench.sent(0);
        assert_eq!((sent.len(), sent[0][1].as_str()), (1, MARK));
        bench.reply(0, &bulk(&marker((ago + 1) * MINUTE, "").unwrap()));
        assert!(bench.sent(0).is_empty());
        assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    }
}

/// Another client wrote a new marker because it saw a flush that this client did not see.
#[test]
fn probe_that_finds_a_later_marker_quarantines_the_node_and_leaves_the_marker() {
    let mut bench = trusting();
    bench.pass(millis(2_000));
    let new = marker_now(&bench);
    bench.markers[0].clone_from(&new);
    bench.pass(PROBE - millis(2_000));
    assert!(settle(&mut bench).is_empty());
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::MarkerChanged)));
    assert_eq!(bench.markers[0], new);
    // Then an operator vouched, which wrote another marker. It begins no new quarantine, and does
    // not end the present one.
    bench.pass(millis(2_000));
    bench.markers[0] = marker_now(&bench).map(|marker| format!("{marker} vouched"));
    bench.pass(PROBE - millis(2_000));
    assert!(settle(&mut bench).is_empty());
    assert_eq!(quarantine_of(&mut bench), None);
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
}

/// The node does not notify the client of flushes, so between the probe and the writing of the
/// marker it may be flushed again. So the quarantine begins when the marker is written.
#[test]
fn quarantine_of_a_node_that_reports_no_flush_begins_when_its_marker_is_written() {
    let mut bench = Bench::without_tracking(1);
    bench.markers[0] = marker(0, "");
    bench.set_info(0, INFO_REPLID);
    bench.reconnect(0);
    bench.pass(MEMORY * 2);
    settle(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    quarantine_of(&mut bench);
    bench.markers[0] = Some(String::new());
    begin_probe(&mut bench);
    quarantine_of(&mut bench).expect("the marker is missing");
    let script = bench.sent(0);
    assert_eq!(script[0][1], MARK);
    bench.pass(millis(40));
    answer_as_usual(&mut bench, &script[0]);
    assert_eq!(bench.node_state(0), NodeState::Quarantined(bench.now.saturating_add(MEMORY)));
}

/// The client notices late that node 2 lost its data. Before its grant, node 2 may have forgotten
/// another client's live lock, so its vote must not count.
#[test]
fn extend_does_not_count_a_key_on_a_node_whose_marker_is_missing() {
    for found in [Some(String::new()), Some("SWAPPED".to_owned())] {
        let markers: Vec<_> = (0..3)
            .map(|node| marker(2 * MINUTE, "").map(|m| m.replace("RR0", &format!("RR{node}"))))
            .collect();
        let mut bench = Bench::of_settings(three_nodes(), &markers, NOW);
        (0..3).for_each(|node| drop(bench.connect(node)));
        let lock = bench.hold_everywhere();
        bench.markers[2] = found.map(|found| match found.as_str() {
            "SWAPPED" => {
                markers[2].clone().unwrap().replace(&(MICROS - 2 * MINUTE).to_string(), "17")
            }
            _ => found,
        });
        bench.pass(PROBE);
        for node in 0..3 {
            bench.sent(node);
            bench.answer_time(node);
        }
        assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)));
        bench.sent(2);
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        bench.answer_to(["EVALSHA"], [1, 2], ":1\r\n");
        assert!(bench.completion().is_none(), "one of three counts");
    }
}

fn three_nodes() -> redlatch::proto::Settings {
    let nodes = (0..3).map(|node| redlatch::proto::NodeSettings::new(format!("n{node}")));
    redlatch::proto::Settings::new(nodes.collect())
}

/// Another client has written a new replication id into the marker, and kept its time. The node has
/// forgotten nothing, so this client begins no quarantine, and uses the new id from now on.
#[test]
fn marker_with_another_replication_history_and_the_same_time_is_the_known_one() {
    let mut bench = trusting();
    bench.markers[0] = marker(2 * MINUTE, "").map(|marker| marker.replace("HHH", "III"));
    assert!(probe(&mut bench).is_empty());
    assert_eq!(quarantine_of(&mut bench), None);
    let before = bench.markers[0].clone();
    // After a flush of another database the script finds that id in the marker, and leaves it.
    bench.reply(0, FLUSH);
    assert_eq!(settle(&mut bench), [""]);
    assert_eq!(bench.markers[0], before);
}

#[test]
fn marker_that_could_not_be_written_in_the_handshake_is_written_with_a_probe() {
    let mut bench = Bench::of_settings(settings(RestartGuard::On), &[Some(String::new())], NOW);
    bench.shake_hands(0);
    bench.answer_to(["EVAL"], [0], "-OOM no\r\n");
    settle(&mut bench);
    quarantine_of(&mut bench).expect("it has no marker");
    assert_eq!(probe(&mut bench), [""]);
    assert_eq!(bench.markers[0], marker_now(&bench));
    assert_eq!(quarantine_of(&mut bench), None, "it is in quarantine already");
}

#[test]
fn marker_that_may_not_be_read_any_more_or_is_of_another_program_is_not_asked_for_again() {
    let refused = ("-NOPERM no\r\n", None);
    let lost = Some((MEMORY, QuarantineReason::Unmarked));
    let cases = [
        refused,
        ("-WRONGTYPE no\r\n", lost),
        ("$5\r\nhello\r\n", lost),
        ("-LOADING no\r\n", None),
    ];
    for (answer, expected) in cases {
        let mut bench = trusting();
        bench.pass(PROBE);
        bench.core.handle_sent(NodeId::new(0), bench.core.output(NodeId::new(0)).len(), bench.now);
        let rest = bulk(INFO_REPLID);
        let micros = bench.micros(0);
        let time =
            format!("*2\r\n$10\r\n{}\r\n$6\r\n{:06}\r\n", micros / 1_000_000, micros % 1_000_000);
        bench.reply(0, &format!("{time}{answer}{rest}"));
        assert_eq!(quarantine_of(&mut bench), expected, "{answer}");
        bench.pass(PROBE);
        let output = String::from_utf8(bench.core.output(NodeId::new(0)).to_vec()).unwrap();
        assert!(output.contains("TIME") && output.contains("memory"), "{output}");
        assert_eq!(output.contains("GET"), answer.starts_with("-LOADING"), "{answer}: {output}");
        assert!(!output.contains("EVAL"), "{output}");
    }
}

/// A probe is exactly these three commands, in one write.
#[test]
fn probe_asks_for_the_time_the_marker_and_the_memory() {
    let mut bench = meet(RestartGuard::On, marker(2 * MINUTE, ""), INFO_REPLID);
    assert!(
        bench.core.output(NodeId::new(0)).is_empty(),
        "the handshake has asked for all but the time"
    );
    bench.pass(PROBE);
    let output = String::from_utf8(bench.core.output(NodeId::new(0)).to_vec()).unwrap();
    let words = "*1\r\n$4\r\nTIME\r\n*2\r\n$3\r\nGET\r\n$13\r\nredlatch:node\r\n\
                 *2\r\n$4\r\nINFO\r\n$6\r\nmemory\r\n";
    assert_eq!(output, words);
}

/// A marker in the format of a later version of redlatch.
fn marker_of_later_version(text: &str) -> Option<String> {
    Some(format!("2 {}0 {text}", "R".repeat(39)))
}

#[test]
fn marker_of_a_later_version_is_distrusted_and_left_alone() {
    let same_format = marker(2 * MINUTE, " else");
    for guard in [RestartGuard::On, RestartGuard::Persistent] {
        for found in [marker_of_later_version("x"), same_format.clone()] {
            let mut bench = meet(guard, found.clone(), INFO_REPLID);
            let reason = QuarantineReason::MarkerOfLaterVersion;
            assert_eq!(quarantine_of(&mut bench), Some((MEMORY, reason)));
            assert!(probe(&mut bench).is_empty());
            assert_eq!(quarantine_of(&mut bench), None);
            // This version cannot know what a change of such a marker means. It assumes a loss.
            bench.markers[0] = marker_of_later_version("y");
            assert!(probe(&mut bench).is_empty());
            assert_eq!(quarantine_of(&mut bench), Some((MEMORY, reason)));
            // After a flush of another database or a jump of the clock, and when an operator
            // vouches, this version's scripts leave the marker as it is.
            bench.reply(0, FLUSH);
            assert_eq!(settle(&mut bench), [""]);
            bench.skew_micros[0] = 3_600_000_000;
            assert_eq!(probe(&mut bench), ["new"]);
            bench.core.vouch(7, bench.now).unwrap();
            settle(&mut bench);
            assert!(bench.completion().unwrap().result.is_err());
            assert_eq!(bench.markers[0], marker_of_later_version("y"));
            // If the node has no marker any more, this version writes its own.
            bench.markers[0] = Some(String::new());
            assert_eq!(probe(&mut bench), [""]);
            assert!(bench.markers[0].clone().unwrap().starts_with("1 "));
        }
    }
}

/// A counter below the time of the node marker counts as absent. This version cannot read the time
/// of the marker, so it takes the time at which it first saw this marker.
#[test]
fn counter_floor_is_the_time_at_which_a_marker_of_a_later_version_was_first_seen() {
    let mut bench = meet(RestartGuard::On, marker_of_later_version("x"), INFO_REPLID);
    let floor = |bench: &mut Bench, key: &[u8]| {
        bench.pass(MEMORY);
        settle(bench);
        assert_eq!(bench.node_state(0), NodeState::Ready);
        bench.core.acquire(key, LockOptions::once(TTL).fenced(), 1, bench.now).unwrap();
        let sent = bench.sent(0);
        assert!(sent[0][0].starts_with("EVAL"), "{sent:?}");
        bench.reply(0, ":7\r\n");
        let Ok(Outcome::Acquired(lock)) = bench.completion().unwrap().result else { panic!() };
        bench.core.release_nowait(&lock, bench.now);
        assert_eq!(bench.sent(0).len(), 1);
        bench.reply(0, ":1\r\n");
        sent[0].last().unwrap().parse::<u64>().unwrap()
    };
    let first = floor(&mut bench, b"a");
    bench.markers[0] = marker_of_later_version("y");
    probe(&mut bench);
    assert!(first > 1 && floor(&mut bench, b"b") > first);
}

#[test]
fn marker_that_a_later_version_wrote_in_the_place_of_the_known_one_is_distrusted() {
    let mut bench = trusting();
    bench.markers[0] = marker_of_later_version("x");
    assert!(probe(&mut bench).is_empty());
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::MarkerOfLaterVersion)));
}

/// The `INFO` of a node that may evict keys.
fn evicting() -> String {
    format!("{INFO_REPLID}maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n")
}

fn reconnect(bench: &mut Bench) {
    bench.pass(Duration::from_secs(6));
    bench.connect(0);
}

#[test]
fn node_that_may_evict_from_now_on_is_rejected_with_the_next_probe() {
    let mut bench = trusting();
    bench.set_info(0, &evicting());
    probe(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Rejected(NodeError::Evicts));
    assert_eq!(bench.actions(), [Action::Disconnect(NodeId::new(0))]);
    // As long as the node may evict, the client also rejects it on the next connection.
    bench.pass(Duration::from_secs(6));
    bench.open(0);
    settle(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Rejected(NodeError::Evicts));
    quarantine_of(&mut bench);
    // The node must not evict any more, but may have evicted a live lock just before.
    bench.set_info(0, INFO_REPLID);
    reconnect(&mut bench);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Evicting)));
    assert_eq!(bench.markers[0], marker_now(&bench), "the next process waits, too");
    bench.pass(MEMORY);
    settle(&mut bench);
    // The next connection begins no second quarantine for the same eviction.
    bench.lose(0);
    reconnect(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Ready);
}

#[test]
fn node_that_could_evict_at_the_first_handshake_is_quarantined_afterwards() {
    let mut bench = Bench::of_settings(settings(RestartGuard::On), &[marker(2 * MINUTE, "")], NOW);
    bench.set_info(0, &evicting());
    bench.open(0);
    settle(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Rejected(NodeError::Evicts));
    bench.set_info(0, INFO_REPLID);
    // Another client connected to the node before this one, and has written the marker.
    bench.pass(millis(100));
    let written = marker_now(&bench);
    bench.markers[0].clone_from(&written);
    reconnect(&mut bench);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Evicting)));
    assert_eq!(bench.markers[0], written);
}

#[test]
fn node_that_may_evict_counts_for_no_fence_where_eviction_is_allowed() {
    let mut allowed = settings(RestartGuard::On);
    allowed.allow_eviction = true;
    let mut bench = Bench::of_settings(allowed, &[marker(2 * MINUTE, "")], NOW);
    bench.connect(0);
    let asked_for_a_fence = |bench: &mut Bench, key: &[u8]| {
        bench.core.acquire(key, LockOptions::once(TTL).fenced(), 1, bench.now).unwrap();
        bench.names(0)[0].starts_with("EVAL")
    };
    assert!(asked_for_a_fence(&mut bench, b"a"));
    bench.reply(0, ":7\r\n");
    bench.set_info(0, &evicting());
    probe(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Ready);
    assert!(!asked_for_a_fence(&mut bench, b"b"), "its counters may be gone at any time");
}

#[test]
fn node_that_may_evict_is_rejected_without_the_restart_guard_too_and_trusted_afterwards() {
    let mut bench = Bench::of_settings(settings(RestartGuard::Off), &[None], NOW);
    bench.connect(0);
    bench.set_info(0, &evicting());
    probe(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Rejected(NodeError::Evicts));
    bench.set_info(0, INFO_REPLID);
    reconnect(&mut bench);
    assert_eq!(bench.node_state(0), NodeState::Ready);
}

/// A spare server, which has an old marker of its own, takes over the address of the node. Locks on
/// the node may be live, so the spare must wait, and the next process, too.
#[test]
fn another_server_with_an_older_marker_of_its_own_is_marked_anew() {
    for end in ["", " vouched"] {
        let mut bench = trusting();
        bench.lose_and_back_off(0);
        bench.set_info(0, &INFO_REPLID.replace("RRR", "SSS"));
        let own = marker(7 * MINUTE, end).map(|marker| marker.replace("RRR", "SSS"));
        bench.markers[0] = own;
        bench.connect(0);
        assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::Restarted)), "{end}");
        let written = marker_now(&bench).map(|marker| marker.replace("RRR", "SSS"));
        assert_eq!(bench.markers[0], written, "the next process waits, too");
    }
}

/// After a restart another client has written the marker of the new process. This client leaves it
/// as it is.
#[test]
fn marker_that_another_client_wrote_after_a_restart_is_left_as_it_is() {
    for end in ["", " vouched"] {
        let mut bench = trusting();
        bench.lose_and_back_off(0);
        bench.set_info(0, &INFO_REPLID.replace("RRR", "SSS"));
        let written = marker_now(&bench).map(|marker| marker.replace("RRR", "SSS") + end);
        bench.markers[0].clone_from(&written);
        bench.pass(millis(600));
        bench.connect(0);
        let expected = end.is_empty().then_some((MEMORY, QuarantineReason::Restarted));
        assert_eq!(quarantine_of(&mut bench), expected, "{end}");
        assert_eq!(bench.markers[0], written);
    }
}

/// An operator swapped the databases of the node while the client was not connected.
#[test]
fn older_marker_of_the_same_process_on_the_next_connection_is_replaced() {
    let mut bench = trusting();
    bench.markers[0] = marker(7 * MINUTE, "");
    bench.reconnect(0);
    assert_eq!(quarantine_of(&mut bench), Some((MEMORY, QuarantineReason::MarkerChanged)));
    assert_eq!(bench.markers[0], marker_now(&bench));
}
