//! Requests about a key that need no lock of this client: extend by token, inspect, and forced
//! release of what an inspection saw.

use super::*;
use redlatch::{Inspection, KeyState, KeySummary, LockToken, LostReason};

fn token() -> LockToken {
    LockToken::parse(&"2".repeat(40)).unwrap()
}

/// Asks to extend the key by its token.
fn extend(bench: &mut Bench, ttl: Duration) {
    bench.core.extend_token(b"k", token(), ttl, 5, bench.now).unwrap();
}

fn answer(bench: &mut Bench, replies: &[&str]) {
    for (node, reply) in replies.iter().enumerate() {
        bench.answer_to(["EVALSHA"], [node], reply);
    }
}

#[test]
fn extend_by_token_is_lost_when_a_majority_of_nodes_lack_the_token() {
    let mut bench = Bench::quiet(5);
    extend(&mut bench, TTL);
    answer(&mut bench, &[":0\r\n", ":-1\r\n"]);
    assert!(bench.completion().is_none(), "three nodes may extend it yet");
    bench.answer([2], ":0\r\n");
    let result = bench.completion().expect("two are no majority").result;
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Gone, .. })), "{result:?}");
    assert!(format!("{result:?}").contains("its ttl was over, or it was deleted"), "{result:?}");
}

#[test]
fn extend_by_token_is_counted_in_the_errors_of_its_nodes() {
    let mut bench = Bench::quiet(3);
    extend(&mut bench, TTL);
    answer(&mut bench, &[":1\r\n", "-LOADING no\r\n"]);
    let errors = |node: usize| bench.core.stats().nodes[node].errors(NodeError::Loading);
    assert_eq!((errors(0), errors(1)), (0, 1));
}

#[test]
fn extend_by_token_that_is_lost_reports_why() {
    let (gone, unsure) = (":0\r\n", "-LOADING no\r\n");
    let forbidden = "-NOPERM no\r\n";
    let error = |replies: &[&str]| {
        let mut bench = Bench::quiet(3);
        extend(&mut bench, TTL);
        for (node, reply) in replies.iter().enumerate() {
            // A node that refuses the SHA1 of the script gets its source, and refuses that, too.
            while !bench.sent(node).is_empty() {
                bench.reply(node, reply);
            }
        }
        bench.refused()
    };
    assert!(matches!(error(&[gone, unsure, unsure]), Error::NoQuorum(_)));
    assert!(matches!(error(&[unsure, forbidden, unsure]), Error::NoQuorum(_)));
    assert!(matches!(error(&[forbidden, forbidden]), Error::Config(_)));
    let lost = error(&[gone, gone]);
    assert!(matches!(lost, Error::Lost { reason: LostReason::Gone, .. }), "{lost:?}");
}

/// A ttl that is shorter than the node timeout.
const SHORT: Duration = Duration::from_millis(40);
/// What drift leaves of `SHORT`.
const USABLE: Duration = Duration::from_micros(37_600);

#[test]
fn extend_by_token_that_is_decided_or_fetched_at_its_deadline_is_no_extend() {
    let just_before = USABLE - Duration::from_nanos(1);
    for (step, after, good) in [
        ("decided", just_before, true),
        ("decided", USABLE, false),
        ("fetched", just_before, true),
        ("fetched", USABLE, false),
    ] {
        let mut bench = Bench::quiet(3);
        extend(&mut bench, SHORT);
        let late = bench.now.saturating_add(after);
        if step == "decided" {
            bench.now = late;
        }
        answer(&mut bench, &[":1\r\n", ":1\r\n"]);
        bench.now = late;
        let result = bench.completion().expect("it is decided").result;
        let expired = matches!(result, Err(Error::Lost { reason: LostReason::Expired, .. }));
        assert_eq!((result.is_ok(), expired), (good, !good), "{step} after {after:?}: {result:?}");
    }
}

#[test]
fn extend_by_token_is_repeated_by_its_source_before_its_deadline_only() {
    for (after, repeated) in [(USABLE - Duration::from_nanos(1), true), (USABLE, false)] {
        let mut bench = Bench::quiet(3);
        extend(&mut bench, SHORT);
        assert_eq!(bench.names(0), ["EVALSHA"]);
        bench.now = bench.now.saturating_add(after);
        bench.reply(0, "-NOSCRIPT no\r\n");
        let expected: &[&str] = if repeated { &["EVAL"] } else { &[] };
        assert_eq!(bench.names(0), expected);
    }
    // A node that answers even EVAL with NOSCRIPT is not asked again, and has no vote.
    let mut bench = Bench::quiet(3);
    extend(&mut bench, TTL);
    answer(&mut bench, &["-NOSCRIPT no\r\n"]);
    bench.answer_to(["EVAL"], [0], "-NOSCRIPT no\r\n");
    assert!(bench.sent(0).is_empty());
}

#[test]
fn extend_by_token_reports_a_node_in_quarantine_also_if_it_agreed() {
    let mut bench = Bench::short_quarantine(3);
    bench.reply(0, FLUSH);
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    extend(&mut bench, TTL);
    answer(&mut bench, &[":1\r\n", ":1\r\n"]);
    assert!(bench.completion().is_none(), "one that counts");
    bench.answer([2], "-LOADING no\r\n");
    let report = bench.no_quorum();
    assert_eq!(report.nodes[0].reply, NodeReply::Failed(NodeError::Quarantined));
}

/// Inspects the key: the three nodes give these replies.
fn seen(bench: &mut Bench, replies: [&str; 3]) -> Inspection {
    bench.core.inspect(b"k", 5, bench.now).unwrap();
    for (node, reply) in replies.iter().enumerate() {
        bench.answer_to(["GETRANGE", "PTTL"], [node], reply);
    }
    match bench.completion().map(|done| done.result) {
        Some(Ok(Outcome::Inspected(seen))) => *seen,
        other => panic!("no inspection: {other:?}"),
    }
}

#[test]
fn inspect_reports_a_key_that_expired_between_the_two_questions_as_absent() {
    let mut bench = Bench::quiet(3);
    let seen = seen(&mut bench, ["$1\r\nx\r\n:-2\r\n", "$1\r\nx\r\n:5\r\n", "$1\r\nx\r\n:-2\r\n"]);
    assert_eq!(seen.nodes[0].state, KeyState::Absent);
    assert!(matches!(seen.nodes[1].state, KeyState::Held { .. }));
    assert_eq!(seen.summary(), KeySummary::Free);
}

#[test]
fn inspect_reports_a_node_whose_connection_is_lost_between_its_two_answers_as_failed() {
    let mut bench = Bench::quiet(3);
    bench.core.inspect(b"k", 5, bench.now).unwrap();
    bench.answer(0..3, "$1\r\nx\r\n");
    bench.reply(0, ":500\r\n");
    bench.reply(1, ":500\r\n");
    bench.lose(2);
    let Ok(Outcome::Inspected(seen)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(seen.nodes[2].state, KeyState::Failed(NodeError::Lost));
}

#[test]
fn forced_release_of_what_was_seen_deletes_only_that_on_the_nodes_that_held_it() {
    let mut bench = Bench::quiet(3);
    let seen = seen(&mut bench, ["$1\r\nx\r\n:500\r\n", "$2\r\nyz\r\n:500\r\n", "_\r\n:-2\r\n"]);
    bench.core.force_release_seen(&seen, 6, bench.now).unwrap();
    for (node, value) in ["x", "yz"].into_iter().enumerate() {
        let sent = bench.sent(node);
        assert_eq!(sent.len(), 1);
        assert_eq!(sent[0][0], "EVAL");
        assert_eq!(sent[0][2..], ["1", "k", value, "159"], "compared as far as it was kept");
    }
    assert!(bench.sent(2).is_empty(), "the key was not there");
    bench.reply(0, ":1\r\n");
    assert!(bench.completion().is_none(), "n1 has not answered");
    bench.reply(1, ":-1\r\n");
    let Ok(Outcome::ForceReleased(report)) = bench.completion().unwrap().result else { panic!() };
    let replies: Vec<NodeReply> = report.nodes.iter().map(|node| node.reply).collect();
    assert_eq!(replies, [NodeReply::Granted, NodeReply::Held, NodeReply::Absent]);
    bench.assert_idle();
}

#[test]
fn forced_release_of_what_was_seen_ends_at_the_node_timeout() {
    let mut bench = Bench::quiet(3);
    let held = "$1\r\nx\r\n:500\r\n";
    let seen = seen(&mut bench, [held, held, "-NOPERM no\r\n-NOPERM no\r\n"]);
    bench.core.force_release_seen(&seen, 6, bench.now).unwrap();
    bench.sent(0);
    bench.sent(1);
    bench.reply(0, ":1\r\n");
    bench.pass(millis(50));
    let Ok(Outcome::ForceReleased(report)) = bench.completion().unwrap().result else { panic!() };
    let replies: Vec<NodeReply> = report.nodes.iter().map(|node| node.reply).collect();
    let failed = [NodeError::Silent, NodeError::NoPermission].map(NodeReply::Failed);
    assert_eq!(replies, [NodeReply::Granted, failed[0], failed[1]]);
}

#[test]
fn forced_release_of_what_was_seen_counts_a_node_that_cannot_be_asked_in_its_errors() {
    let mut bench = Bench::quiet(3);
    let held = "$1\r\nx\r\n:500\r\n";
    let seen = seen(&mut bench, [held, held, "-NOPERM no\r\n-NOPERM no\r\n"]);
    bench.lose(0);
    let errors = |bench: &Bench| {
        let of_node = |node: usize| bench.core.stats().nodes[node].all_errors();
        [0, 1, 2].map(|node| of_node(node).map(|(_, count)| count).sum::<u64>())
    };
    let before = errors(&bench);
    bench.core.force_release_seen(&seen, 6, bench.now).unwrap();
    let after = errors(&bench);
    assert_eq!([0, 1, 2].map(|node| after[node] - before[node]), [1, 0, 0]);
    assert_eq!(bench.names(1), ["EVAL"]);
}

#[test]
fn inspect_waits_one_node_timeout_for_value_and_line_together() {
    let token = "0123456789abcdef0123456789abcdef01234567";
    let held = format!("$40\r\n{token}\r\n:500\r\n");
    let mut bench = Bench::quiet(3);
    bench.core.inspect(b"k", 5, bench.now).unwrap();
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.pass(bench.core.settings().node_timeout - millis(1));
    for node in 0..3 {
        bench.reply(node, &held);
        assert_eq!(bench.names(node), ["ZRANGE"]);
    }
    bench.reply(0, &format!("*1\r\n$46\r\n200 - {token}\r\n"));
    assert!(bench.completion().is_none());
    bench.pass(millis(1));
    let Ok(Outcome::Inspected(seen)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(seen.nodes.iter().map(|node| node.line.len()).collect::<Vec<_>>(), [1, 0, 0]);
    assert!(seen.nodes.iter().all(|node| matches!(node.state, KeyState::Held { .. })));
}
