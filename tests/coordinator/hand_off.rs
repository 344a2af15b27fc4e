//! Handing a lock to another client by its token, and requests that need only a token or a key.

use super::*;
use redlatch::{AutoExtend, KeyState, KeySummary, LockToken, LostReason};

fn token() -> LockToken {
    LockToken::parse(&"1".repeat(40)).unwrap()
}

#[test]
fn hand_off_ends_renewals_and_releases_nothing() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.core.auto_extend(&lock, AutoExtend::extensions(9), bench.now).unwrap();
    bench.core.extend(&lock, TTL, 4, bench.now).unwrap();
    let given = lock.token();
    assert_eq!(bench.core.into_token(lock, bench.now), Some(given));
    let error = bench.refused();
    assert!(matches!(error, Error::Lost { reason: LostReason::Over, .. }), "{error}");
    assert!(bench.core.poll_lock_update().is_none(), "it is given away, not lost");
    assert_eq!(bench.names(0), ["CLIENT", "PTTL", "EVALSHA", "CLIENT", "PTTL"]);
    bench.answer([0, 1], "+OK\r\n:9000\r\n:1\r\n+OK\r\n:9000\r\n");
    bench.answer([2], "+OK\r\n");
    assert!(bench.reconnect(2).iter().all(|command| command[0] != "EVAL"), "no release is pending");
    bench.pass(TTL * 2);
    bench.assert_idle();
}

#[test]
fn hand_off_leaves_a_record_until_the_last_grant_of_the_acquire_has_come() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    assert!(bench.core.into_token(lock, bench.now).is_some());
    assert_eq!(bench.core.open_records(), 1, "node 2 has not answered");
    bench.sent(2);
    bench.reply(2, "+OK\r\n");
    assert_eq!(bench.core.open_records(), 0);
    bench.assert_idle();
}

#[test]
fn hand_off_of_a_lock_that_is_over_reports_no_loss_later() {
    let mut bench = Bench::new(3);
    bench.core.report_lock_updates();
    let lock = bench.hold(&[0, 1]);
    // The deadline has passed, but the client was not driven since, so it has not ended the lock.
    bench.now = bench.now.saturating_add(TTL);
    assert_eq!(bench.core.into_token(lock, bench.now), None);
    bench.pass(millis(1));
    assert_eq!(bench.core.poll_lock_update(), None, "its caller gave it up");
}

#[test]
fn adopt_takes_a_lock_over_under_a_new_token() {
    let mut bench = Bench::new(3);
    bench.core.adopt(b"k", token(), TTL, 5, bench.now).unwrap();
    for node in 0..2 {
        let sent = bench.sent(node);
        assert_eq!((sent[0][0].as_str(), sent[0][4].as_str()), ("EVAL", &*token().to_string()));
        assert_ne!(sent[0][5], sent[0][4], "the new one is another");
        bench.reply(node, ":1\r\n");
    }
    let done = bench.completion().unwrap();
    let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{:?}", done.result) };
    assert_ne!(lock.token(), token());
    assert_eq!(bench.core.remaining(&lock, bench.now), TTL - millis(102));
    bench.core.release(lock, 6, bench.now);
    assert_eq!(bench.names(2), ["EVAL", "EVALSHA"], "the adopt is unanswered there");
}

#[test]
fn adopt_by_a_token_that_lost_the_key_releases_the_new_token() {
    let mut bench = Bench::new(3);
    bench.core.adopt(b"k", token(), TTL, 5, bench.now).unwrap();
    bench.answer_each([":1\r\n", ":-3\r\n", ":-2\r\n"].into_iter().enumerate());
    let result = bench.completion().unwrap().result;
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Gone, .. })), "{result:?}");
    assert!(format!("{result:?}").contains("its ttl was over, or it was deleted"), "{result:?}");
    assert_eq!(bench.names(0), ["EVALSHA"], "what it changed is released");
    assert!(bench.sent(1).is_empty() && bench.sent(2).is_empty());
    bench.reply(0, ":1\r\n");
    bench.assert_idle();
}

#[test]
fn an_adopt_that_is_cancelled_is_released() {
    let mut bench = Bench::new(1);
    let op = bench.core.adopt(b"k", token(), TTL, 5, bench.now).unwrap();
    bench.core.cancel(op, bench.now);
    bench.answer_to(["EVAL", "EVALSHA"], [0], ":1\r\n:1\r\n");
    bench.assert_idle();
}

#[test]
fn a_token_is_extended_without_a_pending_release() {
    let mut bench = Bench::new(3);
    let cases: [([&str; 3], bool); 3] = [
        ([":1\r\n", ":1\r\n", ":0\r\n"], true),
        ([":0\r\n", ":-1\r\n", ":1\r\n"], false),
        (["-MISCONF a\r\n", "-MISCONF a\r\n", ":1\r\n"], false),
    ];
    for (replies, good) in cases {
        bench.core.extend_token(b"k", token(), TTL, 5, bench.now).unwrap();
        for (node, reply) in replies.iter().enumerate() {
            bench.answer_to(["EVALSHA"], [node], reply);
        }
        let result = bench.completion().unwrap().result;
        assert_eq!(result.is_ok(), good, "{result:?}");
        assert!((0..3).all(|node| bench.sent(node).is_empty()), "nothing is released or healed");
        bench.assert_idle();
    }
}

#[test]
fn inspect_reports_what_every_node_holds() {
    let mut bench = Bench::new(3);
    bench.core.inspect(b"k", 5, bench.now).unwrap();
    assert_eq!(bench.names(0), ["GETRANGE", "PTTL"]);
    bench.sent(1);
    bench.reply(0, "$1\r\nx\r\n:500\r\n");
    bench.reply(1, "$1\r\nx\r\n:-1\r\n");
    assert!(bench.completion().is_none());
    bench.lose(2);
    let Ok(Outcome::Inspected(seen)) = bench.completion().unwrap().result else { panic!() };
    let KeySummary::Held { value, nodes, left } = seen.summary() else { panic!("{seen:?}") };
    assert_eq!((value.as_bytes(), nodes, left), (&b"x"[..], 2, Some(millis(500))));
    assert!(matches!(seen.nodes[2].state, KeyState::Failed(_)));
    bench.assert_idle();
}

#[test]
fn inspect_ends_at_the_node_timeout_and_may_be_cancelled() {
    let mut bench = Bench::new(3);
    bench.core.inspect(b"k", 5, bench.now).unwrap();
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.reply(0, "_\r\n:-2\r\n");
    bench.pass(millis(50));
    let Ok(Outcome::Inspected(seen)) = bench.completion().unwrap().result else { panic!() };
    assert_eq!(seen.nodes[0].state, KeyState::Absent);
    assert_eq!(seen.nodes[1].state, KeyState::Failed(NodeError::Silent));
    let op = bench.core.inspect(b"k", 5, bench.now).unwrap();
    bench.core.cancel(op, bench.now);
    for node in 0..3 {
        bench.answer([node], if node == 0 { "_\r\n:-2\r\n" } else { "_\r\n:-2\r\n_\r\n:-2\r\n" });
    }
    assert!(bench.completion().is_none());
    bench.assert_idle();
}

#[test]
fn force_release_deletes_the_key_whatever_it_holds() {
    let mut bench = Bench::new(3);
    bench.core.force_release(b"k", 5, bench.now).unwrap();
    for (node, reply) in [":0\r\n", ":1\r\n"].iter().enumerate() {
        bench.answer_to(["DEL"], [node], reply);
    }
    assert_eq!(bench.released(), ReleaseOutcome::Released);
    bench.answer([2], ":1\r\n");
    bench.assert_idle();
}

#[test]
fn force_release_ends_the_same_whichever_node_answers_first() {
    use ReleaseOutcome::{AlreadyExpired, Released};
    for (replies, expected) in [
        ([":1\r\n", ":1\r\n", ":0\r\n"], Released),
        ([":1\r\n", ":0\r\n", ":0\r\n"], Released),
        ([":0\r\n", ":0\r\n", ":0\r\n"], AlreadyExpired),
        ([":1\r\n", ":0\r\n", "-BUSY a\r\n"], Released),
        ([":0\r\n", ":0\r\n", "-BUSY a\r\n"], AlreadyExpired),
    ] {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut bench = Bench::new(3);
            bench.core.force_release(b"k", 5, bench.now).unwrap();
            for node in order {
                bench.answer([node], replies[node]);
            }
            assert_eq!(bench.released(), expected, "{replies:?} by {order:?}");
            bench.assert_idle();
        }
    }
}

#[test]
fn extend_by_token_that_is_cancelled_leaves_no_record_however_it_ends() {
    let mut bench = Bench::new(3);
    for replies in [["-BUSY a\r\n"; 3], [":1\r\n"; 3], [":0\r\n"; 3], ["-NOPERM a\r\n"; 3]] {
        let op = bench.core.extend_token(b"k", token(), TTL, 5, bench.now).unwrap();
        bench.core.cancel(op, bench.now);
        for (node, reply) in replies.iter().enumerate() {
            while !bench.sent(node).is_empty() {
                bench.reply(node, reply);
            }
        }
        bench.assert_idle();
    }
    let op = bench.core.extend_token(b"k", token(), TTL, 5, bench.now).unwrap();
    bench.core.cancel(op, bench.now);
    (0..3).for_each(|node| drop(bench.sent(node)));
    bench.pass(millis(50));
    (0..3).for_each(|node| bench.reply(node, ":1\r\n"));
    bench.assert_idle();
}

#[test]
fn inspect_reads_the_beginning_of_a_value_and_distinguishes_empty_from_absent() {
    let mut bench = Bench::new(4);
    bench.core.inspect(b"k", 5, bench.now).unwrap();
    for node in 0..4 {
        let sent = bench.sent(node);
        assert_eq!(sent, [vec!["GETRANGE", "k", "0", "159"], vec!["PTTL", "k"]]);
    }
    let wrong = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n:-1\r\n";
    let beginning = format!("$56\r\n{}\r\n:500\r\n", "x".repeat(56));
    for (node, reply) in
        [&beginning, "$0\r\n\r\n:-2\r\n", "$0\r\n\r\n:700\r\n", wrong].into_iter().enumerate()
    {
        bench.reply(node, reply);
    }
    let Ok(Outcome::Inspected(seen)) = bench.completion().unwrap().result else { panic!() };
    let states: Vec<KeyState> = seen.nodes.iter().map(|node| node.state).collect();
    let held = |value: &[u8], left| KeyState::Held {
        value: redlatch::Value::of(value),
        left: Some(millis(left)),
    };
    let expected = [
        held(&[b'x'; 56], 500),
        KeyState::Absent,
        held(b"", 700),
        KeyState::Failed(NodeError::WrongType),
    ];
    assert_eq!(states, expected);
    bench.assert_idle();
}

#[test]
fn adopt_does_not_count_a_node_in_quarantine() {
    // The earlier holder may have healed the key on node 0 after this node forgot another client's
    // lock. The client that adopts cannot know that, so the grant of node 0 does not count.
    let mut bench = Bench::short_quarantine(3);
    bench.reply(0, FLUSH);
    assert!(matches!(bench.node_state(0), NodeState::Quarantined(_)));
    bench.core.adopt(b"k", token(), TTL, 5, bench.now).unwrap();
    bench.answer_each([":1\r\n", ":1\r\n", ":-3\r\n"].into_iter().enumerate());
    let result = bench.completion().unwrap().result;
    assert!(result.is_err(), "one that counts, one that does not, and one against: {result:?}");
    for node in [0, 1] {
        assert_eq!(bench.names(node), ["EVALSHA"], "what it changed is released, also there");
    }
}

/// Two of three nodes have to say that they lack the token. One has failed, so the answer of the
/// third node decides, although the request cannot be won any more.
#[test]
fn request_by_a_token_that_one_node_lacks_waits_for_the_node_that_can_prove_that_it_is_gone() {
    for adopts in [true, false] {
        for third in [Some("lacks"), Some("has"), Some("fails"), None] {
            let mut bench = Bench::quiet(3);
            let lacks = if adopts { ":-2\r\n" } else { ":0\r\n" };
            match adopts {
                true => bench.core.adopt(b"k", token(), TTL, 5, bench.now).unwrap(),
                false => bench.core.extend_token(b"k", token(), TTL, 5, bench.now).unwrap(),
            };
            (0..3).for_each(|node| drop(bench.sent(node)));
            bench.reply(0, lacks);
            bench.reply(1, "-LOADING no\r\n");
            assert!(bench.completion().is_none(), "the third node may lack it, too");
            match third {
                Some("lacks") => bench.reply(2, lacks),
                Some("has") => bench.reply(2, ":1\r\n"),
                Some(_) => bench.reply(2, "-LOADING no\r\n"),
                None => bench.pass(bench::NODE_TIMEOUT),
            }
            let error = bench.refused();
            let is_right = match third {
                Some("lacks") => matches!(error, Error::Lost { reason: LostReason::Gone, .. }),
                _ => matches!(error, Error::NoQuorum(_)),
            };
            assert!(is_right, "adopts: {adopts}, the third {third:?}: {error}");
        }
    }
}

/// Of five nodes two have failed and one has the token: three denials cannot come any more.
#[test]
fn request_by_a_token_ends_when_no_answer_can_prove_that_it_is_gone() {
    let mut bench = Bench::quiet(5);
    bench.core.extend_token(b"k", token(), TTL, 5, bench.now).unwrap();
    (0..5).for_each(|node| drop(bench.sent(node)));
    let replies = ["-LOADING no\r\n", "-LOADING no\r\n", ":1\r\n"];
    bench.answer_each(replies.into_iter().enumerate());
    assert!(bench.completion().is_none(), "it can be won");
    bench.reply(3, ":0\r\n");
    assert!(matches!(bench.refused(), Error::NoQuorum(_)), "node 4 changes nothing");
}

/// Half of an even number of nodes is away, so no majority can grant. A node that is asked all the
/// same would replace the token, and the release of the new one would end the lock that was given
/// away.
#[test]
fn request_by_a_token_that_cannot_be_won_asks_no_node() {
    for nodes in [4, 2] {
        for adopts in [true, false] {
            let mut bench = Bench::quiet(nodes);
            (nodes / 2..nodes).for_each(|node| bench.lose_and_back_off(node));
            (0..nodes).for_each(|node| drop(bench.sent(node)));
            match adopts {
                true => bench.core.adopt(b"k", token(), TTL, 5, bench.now).unwrap(),
                false => bench.core.extend_token(b"k", token(), TTL, 5, bench.now).unwrap(),
            };
            assert!(matches!(bench.refused(), Error::NoQuorum(_)), "{nodes} nodes");
            let sent: Vec<_> = (0..nodes / 2).flat_map(|node| bench.sent(node)).collect();
            assert!(sent.is_empty(), "{nodes} nodes, adopts: {adopts}: {sent:?}");
            bench.assert_idle();
        }
    }
}
