//! Several keys that are extended by their token: each node extends all of them or none, and a
//! majority of nodes decides.

use std::time::Duration;

use redlatch::proto::ReportedSet;
use redlatch::proto::sets::EXTEND_SET;
use redlatch::{Error, LockToken, LostReason, NodeError, NodeId, NodeReply, NodeState, Outcome};

use crate::bench::{Bench, FLUSH, TTL};

fn token() -> LockToken {
    LockToken::parse(&"b".repeat(40)).expect("forty digits")
}

/// Three nodes that are asked to extend `a` and `b`. A quarantine lasts for the ttl and its drift.
fn asked() -> Bench {
    let mut bench = Bench::short_quarantine(3);
    bench.core.extend_token(["b", "a"], token(), TTL, 5, bench.now).expect("it can be asked");
    bench
}

/// Asserts that the node was sent one command, which extends both keys: `EVAL` and the source of
/// the script, or `EVALSHA` and its SHA1.
#[track_caller]
fn expect(bench: &mut Bench, node: usize, name: &str, script: &str) {
    let sent = bench.sent(node);
    let (text, ttl) = (token().to_string(), TTL.as_millis().to_string());
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0], [name, script, "2", "a", "b", &text, &ttl]);
}

/// The key that an error names, and what it reports of the set.
fn named(error: &Error) -> (&[u8], Option<ReportedSet>) {
    let report = error.report().expect("it has a report");
    (&report.key, report.set)
}

#[test]
fn extend_by_token_of_a_set_is_one_script_on_each_node_and_a_majority_decides() {
    let mut bench = asked();
    for node in 0..3 {
        expect(&mut bench, node, "EVAL", EXTEND_SET.source);
    }
    bench.reply(0, ":1\r\n");
    // -2: the first key is gone on this node, so the script extended none.
    bench.reply(1, ":-2\r\n");
    assert!(bench.completion().is_none(), "one of three");
    bench.pass(Duration::from_millis(1));
    bench.reply(2, ":1\r\n");
    let result = bench.completion().expect("two of three").result;
    let asked_at = bench.now.saturating_sub(Duration::from_millis(1));
    let Ok(Outcome::Extended { deadline }) = result else { panic!("{result:?}") };
    assert!(deadline < asked_at.saturating_add(TTL), "the drift is taken off");
    bench.assert_idle();
}

#[test]
fn extend_by_token_of_a_set_names_the_key_that_is_lost() {
    for (answer, key) in
        [(":-2\r\n", b"a"), (":-3\r\n", b"a"), (":-4\r\n", b"b"), (":-5\r\n", b"b")]
    {
        let mut bench = asked();
        bench.answer(0..2, answer);
        let error = bench.refused();
        assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
        let set = Some(ReportedSet { keys: 2, named: true });
        assert_eq!(named(&error), (&key[..], set), "{answer:?}");
    }
    // Both nodes fail, so no answer names a key.
    let mut bench = asked();
    bench.answer(0..2, "-LOADING no\r\n");
    let error = bench.refused();
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    assert_eq!(named(&error), (&b"a"[..], Some(ReportedSet { keys: 2, named: false })));
}

#[test]
fn extend_by_token_of_a_set_never_counts_a_node_in_quarantine() {
    // The quarantine begins before the extend is sent, or after the node granted it.
    for before in [true, false] {
        let mut bench = Bench::short_quarantine(3);
        if before {
            bench.reply(2, FLUSH);
            assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)));
        }
        bench.core.extend_token(["a", "b"], token(), TTL, 5, bench.now).expect("it can be asked");
        (0..3).for_each(|node| expect(&mut bench, node, "EVAL", EXTEND_SET.source));
        bench.reply(2, ":1\r\n");
        if !before {
            bench.reply(2, FLUSH);
        }
        bench.reply(1, ":1\r\n");
        assert!(bench.completion().is_none(), "one vote counts; distrusted before: {before}");
        bench.reply(0, ":-4\r\n");
        let error = bench.refused();
        let Error::NoQuorum(report) = &error else { panic!("{error}") };
        assert_eq!(report.nodes[2].reply, NodeReply::Failed(NodeError::Quarantined));
    }
}

#[test]
fn extend_of_a_set_by_token_is_sent_again_as_eval_only_before_the_lock_would_end() {
    let mut bench = asked();
    (0..3).for_each(|node| expect(&mut bench, node, "EVAL", EXTEND_SET.source));
    (0..3).for_each(|node| bench.reply(node, ":1\r\n"));
    assert!(bench.completion().expect("an end").result.is_ok());
    for late in [false, true] {
        bench.core.extend_token(["a", "b"], token(), TTL, 5, bench.now).expect("it can be asked");
        expect(&mut bench, 0, "EVALSHA", EXTEND_SET.sha1);
        if late {
            bench.now = bench.now.saturating_add(TTL);
        }
        bench.reply(0, "-NOSCRIPT no\r\n");
        if late {
            assert!(bench.sent(0).is_empty());
        } else {
            expect(&mut bench, 0, "EVAL", EXTEND_SET.source);
            assert_eq!(bench.core.unanswered(NodeId::new(0)), 1);
            bench.reply(0, ":1\r\n");
        }
    }
}

#[test]
fn extend_by_token_of_a_set_takes_no_reply_that_its_script_cannot_give() {
    for reply in [":0\r\n", ":2\r\n", ":-1\r\n", "+OK\r\n", "$-1\r\n"] {
        let mut bench = asked();
        bench.answer(0..2, reply);
        let error = bench.refused();
        assert!(matches!(error, Error::NoQuorum(_)), "{reply:?}: {error}");
    }
}
