//! Extends on nodes that may have forgotten a live lock. The grant of such a node counts only if
//! this client's key cannot have replaced a key that the node forgot. Each test plays an order of
//! events that would else make two holders: a rival client has the key on node 2, and its request
//! is in flight to node 0.

use super::*;
use redlatch::{Lock, LockToken, NodeId};

/// Node 2 is killed and starts again without its keys.
fn restart_empty(bench: &mut Bench) {
    bench.set_info(2, &INFO_OLD.replace("RRR", "SSS"));
    bench.reconnect(2);
    assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)));
}

/// Nodes 1 and 2 grant an extend, and node 0 does not answer. Returns whether the extend is won,
/// which is to say: whether the grant of node 2 counts.
fn extended_by_1_and_2(bench: &mut Bench, lock: &Lock) -> bool {
    bench.core.extend(lock, TTL, 2, bench.now).unwrap();
    for node in [1, 2] {
        assert_eq!(bench.names(node).last().unwrap(), "EVALSHA");
        bench.reply(node, ":1\r\n");
    }
    bench.completion().is_some_and(|done| done.result.is_ok())
}

/// All three nodes grant extends of the lock until the quarantine of node 2 is over.
fn wait_for_the_end_of_the_quarantine(bench: &mut Bench, lock: &Lock) {
    // The first extend is in flight already.
    loop {
        (0..3).for_each(|node| bench.answer_all(node, |_| ":1\r\n"));
        if let Some(done) = bench.completion() {
            assert!(done.result.is_ok());
            if bench.node_state(2) == NodeState::Ready {
                return;
            }
            bench.core.extend(lock, TTL, 2, bench.now).unwrap();
        }
        bench.pass(millis(50));
    }
}

#[test]
fn extend_does_not_count_a_key_that_was_granted_in_quarantine() {
    let mut bench = Bench::short_quarantine(3);
    restart_empty(&mut bench);
    let lock = bench.hold(&[0, 1]);
    bench.answer_to(["SET"], [2], "+OK\r\n");
    assert!(!extended_by_1_and_2(&mut bench, &lock));
    // At the end of the quarantine every lock that the node forgot is over, so its grant counts.
    wait_for_the_end_of_the_quarantine(&mut bench, &lock);
    assert!(extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn extend_does_not_count_a_key_that_was_granted_after_a_flush() {
    let mut bench = Bench::short_quarantine(3);
    // The lock is won without node 2, which is flushed before it executes the SET.
    let lock = bench.hold(&[0, 1]);
    bench.answer_to(["SET"], [2], &format!("{FLUSH}+OK\r\n"));
    assert!(!extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn extend_does_not_count_a_key_that_was_granted_after_a_flush_during_the_acquire() {
    let mut bench = Bench::short_quarantine(3);
    bench.acquire();
    bench.answer_to(["SET"], [2], &format!("{FLUSH}+OK\r\n"));
    bench.answer([0, 1], "+OK\r\n");
    let lock = bench.won();
    assert!(!extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn extend_does_not_count_a_key_whose_set_was_unanswered_when_the_connection_was_lost() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    assert_eq!(bench.names(2), ["SET"]);
    // The node restarts without its keys, and the SET of the old connection may have come after
    // that. The client sees only that it is another process.
    restart_empty(&mut bench);
    assert!(!extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn extend_counts_a_key_that_survived_what_the_node_forgot() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    bench.answer_to(["SET"], [2], "+OK\r\n");
    bench.reply(2, FLUSH);
    // This client's key was there before and after the flush, so no other client had the key.
    assert!(extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn extend_counts_a_key_found_on_a_trusted_node_though_the_reply_to_set_was_lost() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    assert_eq!(bench.names(2), ["SET"]);
    bench.reconnect(2);
    assert_eq!(bench.node_state(2), NodeState::Ready);
    bench.answer([2], ":1\r\n");
    bench.answer_time(2);
    // The old connection has ended, and this extend finds the key while the node is trusted.
    assert!(extended_by_1_and_2(&mut bench, &lock));
    bench.reply(2, FLUSH);
    assert!(extended_by_1_and_2(&mut bench, &lock), "the key survived the flush");
}

#[test]
fn extend_of_an_adopted_lock_never_counts_a_node_in_quarantine() {
    let mut bench = Bench::short_quarantine(3);
    let token = LockToken::parse(&"5".repeat(40)).unwrap();
    bench.core.adopt(b"k", token, TTL, 1, bench.now).unwrap();
    bench.answer_to(["EVAL"], 0..3, ":1\r\n");
    let lock = bench.won();
    // Later node 2 answers an extend that it has the key. After a flush that does not count: the
    // earlier holder may have healed the key there after an earlier flush, which this client could
    // not see.
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_to(["EVALSHA"], 0..3, ":1\r\n");
    assert!(bench.completion().expect("an end").result.is_ok());
    bench.reply(2, FLUSH);
    assert!(!extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn extend_by_token_never_counts_a_node_in_quarantine() {
    let token = LockToken::parse(&"5".repeat(40)).unwrap();
    // The quarantine begins before the extend is sent, while it is in flight, or after node 2
    // granted it.
    for (before, granted) in [(true, false), (false, false), (false, true)] {
        let mut bench = Bench::short_quarantine(3);
        if before {
            bench.reply(2, FLUSH);
        }
        bench.core.extend_token(b"k", token.clone(), TTL, 2, bench.now).unwrap();
        bench.assert_sent(0..3, ["EVALSHA"]);
        if !before && !granted {
            bench.reply(2, FLUSH);
        }
        bench.reply(2, ":1\r\n");
        if granted {
            bench.reply(2, FLUSH);
        }
        bench.reply(1, ":1\r\n");
        assert!(bench.completion().is_none(), "one vote counts: {before}, {granted}");
        bench.reply(0, ":0\r\n");
        bench.no_quorum();
    }
}

#[test]
fn a_node_that_granted_after_a_flush_is_no_holder() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    bench.answer_to(["SET"], [2], &format!("{FLUSH}+OK\r\n"));
    let holders: Vec<usize> = bench.core.holders(&lock).iter().map(NodeId::index).collect();
    assert_eq!(holders, [0, 1]);
}

#[test]
fn extend_does_not_count_a_key_on_a_node_that_had_denied_it() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    bench.answer_to(["SET"], [2], "_\r\n");
    // An operator makes node 2 a copy of node 0, so it has this client's key and not the rival's.
    restart_empty(&mut bench);
    assert!(!extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn extend_does_not_count_a_key_on_a_node_that_was_never_asked_for_it() {
    let mut bench = Bench::short_quarantine(3);
    bench.lose(2);
    let lock = bench.hold(&[0, 1]);
    bench.pass(millis(600));
    bench.set_info(2, &INFO_OLD.replace("RRR", "SSS"));
    bench.connect(2);
    assert!(!extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn extend_does_not_count_a_key_that_was_granted_after_a_jump_of_the_clock() {
    for noticed in ["while the node is trusted", "in quarantine"] {
        let mut bench = Bench::short_quarantine(3);
        // The clock of node 2 jumped before the SET, so the rival's key expired too early.
        let lock = bench.hold_everywhere();
        bench.pass(Duration::from_secs(5));
        bench.assert_sent(0..3, ["TIME"]);
        if noticed == "in quarantine" {
            // The client first reads that another database was flushed, and then, in the same turn,
            // the time with the jump.
            bench.reply(2, FLUSH);
        }
        for node in 0..3 {
            bench.answer_time_with_skew(node, if node == 2 { 3_600_000_000 } else { 0 });
        }
        assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)), "{noticed}");
        assert!(!extended_by_1_and_2(&mut bench, &lock), "{noticed}");
    }
}

#[test]
fn extend_does_not_confirm_a_key_that_an_old_connection_may_still_create() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    assert_eq!(bench.names(2), ["SET"]);
    bench.reconnect(2);
    bench.sent(2);
    // The node refuses CLIENT KILL, so it may execute the SET of the old connection at any time.
    bench.reply(2, "-NOPERM no\r\n");
    bench.answer_time(2);
    assert!(extended_by_1_and_2(&mut bench, &lock));
    bench.reply(2, FLUSH);
    assert!(!extended_by_1_and_2(&mut bench, &lock));
}

#[test]
fn a_node_that_was_healed_in_quarantine_is_a_holder_when_that_is_over() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    bench.answer_to(["SET"], [2], &format!("+OK\r\n{FLUSH}"));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_each([":1\r\n", ":1\r\n", ":0\r\n"].into_iter().enumerate());
    assert!(bench.completion().expect("an end").result.is_ok());
    assert_eq!(bench.names(2), ["SET"], "it is healed");
    bench.reply(2, "+OK\r\n");
    let holders = |bench: &Bench| -> Vec<usize> {
        bench.core.holders(&lock).iter().map(NodeId::index).collect()
    };
    assert_eq!(holders(&bench), [0, 1]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    wait_for_the_end_of_the_quarantine(&mut bench, &lock);
    assert_eq!(holders(&bench), [0, 1, 2]);
}
