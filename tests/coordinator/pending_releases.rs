//! Pending releases: a key that may be left on a node is released after its `SET` on the same
//! connection, or at the start of the next connection, after the client has ended the earlier one.
//! A live lock is not released.

use redlatch::proto::{Limits, LockOptions};

use super::*;

#[test]
fn release_of_an_unanswered_set_follows_on_its_connection() {
    let mut bench = Bench::new(3).with_request();
    bench.answer_to(["SET"], [0], "+OK\r\n");
    bench.pass(millis(50));
    bench.no_quorum();
    assert_eq!(bench.names(0), ["EVALSHA"], "it answers, so its answer will be read");
    for silent in [1, 2] {
        assert_eq!(bench.names(silent), ["SET", "EVAL"], "nobody may read this answer");
        bench.reply(silent, "+OK\r\n:1\r\n");
    }
    bench.reply(0, ":1\r\n");
    bench.assert_idle();
}

#[test]
fn a_release_is_sent_by_its_source_where_an_answer_is_late() {
    // If a node has left a request unanswered for 12.5 ms, a quarter of the node timeout, the
    // client does not rely on reading a NOSCRIPT from it, and sends the source.
    for (waited, release) in [(12, "EVALSHA"), (13, "EVAL")] {
        let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
        bench.sent(2);
        bench.pass(millis(waited));
        bench.core.release(lock, 2, bench.now);
        assert_eq!(bench.names(0), ["EVALSHA"], "it answered");
        assert_eq!(bench.names(2), [release], "unanswered for {waited} ms");
        if release == "EVALSHA" {
            bench.reply(2, "+OK\r\n-NOSCRIPT No matching script\r\n");
            assert_eq!(bench.names(2), ["EVAL"], "the node forgot the script");
        }
    }
}

#[test]
fn release_is_pending_after_an_error_and_not_after_a_denial() {
    let mut bench = Bench::new(5).with_request();
    let replies =
        ["-OOM full\r\n", "-UPSTREAM timeout\r\n", "-LOADING wait\r\n", "_\r\n", "+OK\r\n"];
    let mut with_release = Vec::new();
    for (node, reply) in replies.iter().enumerate() {
        let said = bench.names(node);
        if node > 2 {
            with_release.push((["n3", "n4"][node - 3], said == ["SET", "EVALSHA"]));
        }
        bench.reply(node, reply);
    }
    let report = bench.no_quorum();
    assert_eq!(report.nodes[2].reply, NodeReply::Failed(NodeError::Loading));
    // Nodes 3 and 4 had not answered when the attempt was lost, so the releases there follow the
    // SETs. Of the other nodes, only node 1 may have set the key in spite of its error.
    let released: Vec<bool> = (0..5).map(|node| !bench.sent(node).is_empty()).collect();
    assert_eq!(released, [false, true, false, false, false]);
    assert_eq!(with_release, [("n3", true), ("n4", true)]);
}

#[test]
fn pending_release_is_not_due_while_the_lock_is_held_not_even_on_a_new_connection() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    for node in 0..3 {
        bench.sent(node);
        bench.lose(node);
    }
    bench.pass(millis(500));
    for node in [0, 1] {
        assert!(bench.connect(node).is_empty(), "a live lock was released");
    }
    // Node 2 had not answered its SET, so the client ends the old connection. It releases nothing.
    let sent = bench.connect(2);
    assert_eq!(sent, [["CLIENT", "KILL", "ID", "3"]]);
    bench.reply(2, ":1\r\n");
    bench.answer_time(2);
    assert!(bench.core.remaining(&lock, bench.now) > Duration::ZERO);
    bench.core.release(lock, 2, bench.now);
    for node in 0..3 {
        bench.answer_to(["EVALSHA"], [node], if node == 2 { ":0\r\n" } else { ":1\r\n" });
    }
    assert_eq!(bench.released(), ReleaseOutcome::Released);
    bench.assert_idle();
}

#[test]
fn pending_releases_are_sent_once_after_the_earlier_connection_is_ended() {
    let mut bench = Bench::new(3).with_request();
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.lose_and_back_off(0);
    bench.completion().unwrap();
    let sent: Vec<String> = bench.connect(0).into_iter().map(|command| command.join(" ")).collect();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[0], "CLIENT KILL ID 1");
    assert!(sent[1].starts_with("EVAL "), "a new connection may not know the script: {sent:?}");
    bench.reply(0, ":0\r\n:0\r\n");
    bench.answer_time(0);
    bench.pass(millis(200));
    assert!(bench.sent(0).is_empty(), "it was proved gone, and is paid once");
    for node in [1, 2] {
        bench.reply(node, "+OK\r\n:1\r\n");
    }
    bench.assert_idle();
}

#[test]
fn an_absent_key_proves_nothing_while_an_earlier_connection_may_still_set_it() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.sent(2);
    assert_eq!(bench.reconnect(2).len(), 1, "the end of the earlier connection");
    bench.reply(2, "-NOPERM not you\r\n");
    bench.answer_time(2);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_each([(2, ":0\r\n"), (0, ":1\r\n"), (1, ":1\r\n")]);
    assert!(bench.completion().unwrap().result.is_ok());
    assert_eq!(bench.names(2), ["SET"], "it is healed");
    bench.reply(2, "$-1\r\n");
    bench.core.release(lock, 3, bench.now);
    bench.answer_to(["EVALSHA"], 0..3, ":1\r\n");
    bench.pass(millis(60));
    assert_eq!(bench.names(2), ["EVAL"], "it could not be ended: said twice");
    bench.reply(2, ":0\r\n");
    bench.completion().unwrap();
    bench.assert_idle();
}

#[test]
fn release_is_sent_twice_if_the_earlier_connection_cannot_be_ended() {
    let mut bench = Bench::new(1).with_request();
    bench.sent(0);
    bench.lose_and_back_off(0);
    bench.completion().unwrap();
    assert_eq!(bench.connect(0).len(), 2);
    bench.reply(0, "-NOPERM not you\r\n:0\r\n");
    bench.answer_time(0);
    assert_eq!(bench.core.open_records(), 1, "its SET may still be executed");
    bench.pass(millis(60));
    bench.answer_to(["EVAL"], [0], ":1\r\n");
    bench.assert_idle();
}

/// The client cannot end its first connection to node 2: either it does not know the connection's
/// id, or it has no permission. So this connection may still deliver the `SET` of the acquire. The
/// second connection is lost during a heal, and the client ends it. This does not prove that the
/// first has ended, so the release is sent twice.
#[test]
fn release_is_sent_twice_if_only_a_later_connection_can_be_ended() {
    for has_no_id in [false, true] {
        let mut bench = Bench::new(3);
        bench.lose_and_back_off(2);
        bench.has_no_connection_ids = has_no_id;
        bench.connect(2);
        bench.has_no_connection_ids = false;
        release_after_a_later_connection_was_ended(bench, has_no_id);
    }
}

fn release_after_a_later_connection_was_ended(mut bench: Bench, has_no_id: bool) {
    let lock = bench.hold(&[0, 1]);
    bench.sent(2);
    let ends = bench.reconnect(2);
    if has_no_id {
        assert!(ends.is_empty(), "the client does not know its id: {ends:?}");
    } else {
        assert_eq!(ends[0][..2], ["CLIENT", "KILL"], "{ends:?}");
        bench.reply(2, "-NOPERM not you\r\n");
        bench.answer_time(2);
    }
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_each([(2, ":0\r\n"), (0, ":1\r\n"), (1, ":1\r\n")]);
    assert!(bench.completion().unwrap().result.is_ok());
    assert_eq!(bench.names(2), ["SET"], "it is healed");
    let sent = bench.reconnect(2);
    assert_eq!(sent[0][..2], ["CLIENT", "KILL"], "{sent:?}");
    bench.reply(2, ":1\r\n");
    bench.answer_time(2);
    bench.core.release(lock, 3, bench.now);
    for node in 0..3 {
        assert!(bench.names(node)[0].starts_with("EVAL"), "n{node}");
        bench.reply(node, ":1\r\n");
    }
    bench.pass(millis(60));
    assert_eq!(bench.names(2), ["EVAL"], "the first connection may still deliver its SET");
    bench.reply(2, ":0\r\n");
    bench.completion().unwrap();
    bench.assert_idle();
}

#[test]
fn another_process_at_the_address_executes_nothing_of_the_earlier_connection() {
    for has_no_connection_ids in [false, true] {
        let mut bench = Bench::new(1);
        bench.lose_and_back_off(0);
        bench.has_no_connection_ids = has_no_connection_ids;
        bench.connect(0);
        release_after_another_process_answered(bench);
    }
}

fn release_after_another_process_answered(mut bench: Bench) {
    bench.acquire();
    bench.sent(0);
    bench.lose_and_back_off(0);
    bench.completion().unwrap();
    bench.set_info(0, &INFO_OLD.replace('R', "S"));
    let sent = bench.connect(0);
    assert_eq!(sent.len(), 1, "there is nobody to end: {sent:?}");
    assert_eq!(sent[0][0], "EVAL", "but its data may have been kept");
    bench.reply(0, ":1\r\n");
    bench.assert_idle();
}

#[test]
fn a_release_that_is_refused_is_asked_again_and_lapses_with_its_ttl() {
    let (mut bench, lock) = Bench::quiet(1).with_lock(&[0]);
    bench.core.release(lock, 2, bench.now);
    let mut said = 0;
    for _ in 0..200 {
        for command in bench.names(0) {
            assert!(command.starts_with("EVAL"));
            said += 1;
            bench.reply(0, "-BUSY a script runs\r\n");
        }
        bench.pass(millis(100));
    }
    let released = bench.completion().unwrap().result;
    assert!(matches!(released, Ok(Outcome::Released(ReleaseOutcome::Unconfirmed { .. }))));
    assert!((10..=25).contains(&said), "{said} times in 10 s: at a bounded pace");
    bench.assert_idle();
}

#[test]
fn pause_before_a_refused_release_is_short_again_after_an_acknowledged_one() {
    #[track_caller]
    fn answer(bench: &mut Bench, reply: &str) {
        let sent = bench.names(0);
        assert!(matches!(&sent[..], [it] if it.starts_with("EVAL")), "one release: {sent:?}");
        bench.reply(0, reply);
    }
    const REFUSED: &str = "-BUSY a script runs\r\n";
    let (mut bench, lock) = Bench::quiet(1).with_lock(&[0]);
    bench.core.release(lock, 2, bench.now);
    // Each refusal doubles the pause, up to a second.
    for _ in 0..6 {
        answer(&mut bench, REFUSED);
        bench.pass(millis(1100));
    }
    answer(&mut bench, ":1\r\n");
    bench.completion().unwrap();

    let lock = bench.hold(&[0]);
    bench.core.release(lock, 2, bench.now);
    answer(&mut bench, REFUSED);
    // As after a first refusal.
    bench.pass(millis(150));
    answer(&mut bench, ":1\r\n");
    bench.completion().unwrap();
    bench.assert_idle();
}

#[test]
fn pending_releases_are_dropped_when_a_node_was_down_for_ten_max_ttl() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.sent(2);
    bench.lose(2);
    bench.core.release_nowait(&lock, bench.now);
    bench.answer_to(["EVAL"], [0, 1], ":1\r\n");
    assert_eq!(bench.core.open_records(), 1);
    let node = redlatch::NodeId::new(2);
    for _ in 0..700 {
        bench.pass(Duration::from_secs(1));
        for node in 0..2 {
            if bench.names(node) == ["TIME"] {
                bench.answer_time(node);
            }
        }
        bench.actions();
    }
    bench.assert_idle();
    assert_eq!(bench.core.pending_releases_dropped(), 1);
    let events: Vec<NodeEvent> = std::iter::from_fn(|| bench.core.poll_node_event()).collect();
    assert!(events.contains(&NodeEvent::PendingReleasesDropped { node, count: 1 }));
}

#[test]
fn pending_release_without_proof_lapses_when_the_earlier_connection_must_be_gone() {
    // The answer of the node to CLIENT KILL, and its answer to each release.
    for refusals in [["-NOPERM no\r\n"; 2], ["-NOPERM no\r\n", "-BUSY a script runs\r\n"]] {
        let mut bench = Bench::with(1, |settings| settings.probe_interval = GONE_AFTER * 3);
        bench.acquire();
        bench.sent(0);
        bench.lose(0);
        // The node may still execute the SET until `GONE_AFTER` is over. The key then lives for its
        // ttl and drift.
        let until = bench.now.saturating_add(GONE_AFTER + TTL + TTL / 100 + millis(2));
        bench.pass(millis(600));
        assert!(bench.completion().unwrap().result.is_err());
        assert_eq!(bench.connect(0).len(), 2, "the end of the connection, and the release");
        bench.reply(0, &refusals.concat());
        bench.answer_time(0);
        let mut said = 0;
        while bench.now < until {
            assert_eq!(bench.core.open_records(), 1, "its SET may still be executed");
            bench.pass(until.saturating_since(bench.now).min(millis(700)));
            for command in bench.names(0) {
                assert_eq!(command, "EVAL");
                said += 1;
                bench.reply(0, refusals[1]);
            }
        }
        assert!((600..=1_500).contains(&said), "{said} times in 16 minutes: at a bounded pace");
        // When the client would repeat the release next, it finds that this has lapsed.
        bench.pass(Duration::from_secs(1));
        bench.assert_idle();
        assert!(bench.sent(0).is_empty());
        let node = redlatch::NodeId::new(0);
        assert_eq!(
            (bench.core.pending_releases_dropped(), bench.core.pending_releases(node)),
            (1, 0)
        );
        let events: Vec<NodeEvent> = std::iter::from_fn(|| bench.core.poll_node_event()).collect();
        assert!(
            events.contains(&NodeEvent::PendingReleasesDropped { node, count: 1 }),
            "{events:?}"
        );
    }
}

#[test]
fn pending_release_whose_connection_was_ended_lapses_with_its_ttl_and_is_not_dropped() {
    let mut bench = Bench::with(1, |settings| settings.probe_interval = GONE_AFTER);
    bench.acquire();
    bench.sent(0);
    assert_eq!(bench.reconnect(0).len(), 2);
    bench.reply(0, ":1\r\n-BUSY a script runs\r\n");
    bench.answer_time(0);
    let until = bench.now.saturating_add(TTL + Duration::from_secs(2));
    while bench.now < until {
        bench.pass(millis(500));
        bench.names(0).iter().for_each(|_| bench.reply(0, "-BUSY a script runs\r\n"));
    }
    bench.completion().unwrap();
    bench.assert_idle();
    assert_eq!(bench.core.pending_releases_dropped(), 0);
}

#[test]
fn close_releases_what_was_not_handed_out() {
    let (mut bench, held) = Bench::new(3).with_lock_everywhere();
    bench.core.acquire(b"won", LockOptions::once(TTL), 2, bench.now).unwrap();
    bench.answer(0..3, "+OK\r\n");
    bench.core.acquire(b"asked", LockOptions::once(TTL), 3, bench.now).unwrap();
    bench.core.close(bench.now);
    for node in 0..3 {
        let sent = bench.sent(node);
        let words: Vec<(&str, &str)> = sent
            .iter()
            .map(|command| {
                (command[0].as_str(), command[if command.len() == 5 { 3 } else { 1 }].as_str())
            })
            .collect();
        assert_eq!(words, [("SET", "asked"), ("EVAL", "won"), ("EVAL", "asked")]);
    }
    assert!(bench.completion().is_none());
    assert!(bench.core.remaining(&held, bench.now) > Duration::ZERO, "that one is the caller's");
}

#[test]
fn close_sends_new_releases_before_repeated_ones() {
    let limits = Limits::default().asks(4);
    let mut bench = Bench::with(1, |settings| settings.limits = limits);
    bench.acquire();
    let second = bench.acquire();
    bench.core.cancel(second, bench.now);
    assert_eq!(bench.names(0), ["SET", "SET", "EVALSHA"]);
    bench.core.close(bench.now);
    let sent = bench.sent(0);
    let released: Vec<&str> = sent.iter().map(|command| command[4].as_str()).collect();
    assert_eq!(released.len(), 2, "the first request's release had no room: {sent:?}");
    assert_ne!(released[0], released[1]);
}

#[test]
fn close_writes_releases_that_wait_for_a_silent_node() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1, 2]);
    // With another request the client finds that node 2 is silent.
    bench.acquire();
    bench.assert_sent(0..3, ["SET"]);
    bench.reply(0, "+OK\r\n");
    bench.reply(1, "_\r\n");
    bench.pass(millis(50));
    assert_eq!(bench.node_state(2), NodeState::Suspect);
    assert_eq!(bench.names(2), ["EVAL"], "of the other request, after its SET");
    bench.core.release(lock, 2, bench.now);
    assert_eq!(bench.names(2), [""; 0], "it waits until the node answers");
    bench.core.close(bench.now);
    let sent = bench.sent(2);
    let keys: Vec<&str> = sent.iter().map(|command| command[3].as_str()).collect();
    assert_eq!(keys, ["k", "k1"], "no later turn can send it; the other's is repeated: {sent:?}");
}

#[test]
fn pending_release_waits_for_the_end_of_the_last_eight_connections() {
    let mut bench = Bench::new(1);
    for _ in 0..10 {
        bench.acquire();
        assert!(bench.names(0).contains(&"SET".to_string()));
        bench.lose(0);
        bench.completion();
        bench.pass(Duration::from_secs(2));
        let sent = bench.connect(0);
        let ended = sent.iter().filter(|command| command[..2] == ["CLIENT", "KILL"]).count();
        assert!((1..=8).contains(&ended), "{ended} connections");
    }
}
