//! Healing: the client sets the key again on nodes that lost it while the lock is held.

use super::*;

/// Extends the lock: the nodes give these replies. Returns whether the extend was won.
fn extend(bench: &mut Bench, lock: &redlatch::Lock, replies: &[&str]) -> bool {
    bench.core.extend(lock, TTL, 2, bench.now).unwrap();
    for (node, reply) in replies.iter().enumerate() {
        bench.answer_to(["EVALSHA"], [node], reply);
    }
    bench.completion().expect("an end").result.is_ok()
}

#[test]
fn after_a_won_extend_a_node_that_lost_the_key_gets_it_again_and_counts() {
    let (mut bench, lock) = Bench::new(3).with_lock_everywhere();
    assert!(extend(&mut bench, &lock, &[":0\r\n", ":1\r\n", ":1\r\n"]));
    let sent = bench.sent(0);
    assert_eq!(sent[0][..2], ["SET", "k"], "what is left of the lock, and not over another's");
    assert_eq!((sent[0][3].as_str(), sent[0][5].as_str()), ("NX", "9898"));
    assert!(bench.sent(1).is_empty() && bench.sent(2).is_empty());
    bench.reply(0, "+OK\r\n");
    assert_eq!(bench.core.stats().healed, 1);
    // Now node 1 loses the key: only with the healed node 0 there is a majority.
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":0\r\n", ":1\r\n"]));
    bench.core.release(lock, 3, bench.now);
    assert_eq!(bench.names(1), ["SET", "EVALSHA"], "the heal is released after it");
}

#[test]
fn heal_waits_until_another_clients_key_is_gone() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.answer([2], "$-1\r\n");
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":1\r\n", ":-1\r\n"]));
    assert!(bench.sent(2).is_empty());
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":1\r\n", ":0\r\n"]));
    assert_eq!(bench.names(2), ["SET"]);
}

#[test]
fn heal_follows_only_the_answer_of_the_latest_extend() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.answer([2], "$-1\r\n");
    for round in 0..2 {
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        bench.answer(0..2, ":1\r\n");
        assert!(bench.completion().unwrap().result.is_ok(), "round {round}");
    }
    bench.answer_to(["EVALSHA", "EVALSHA"], [2], ":0\r\n");
    assert!(bench.sent(2).is_empty(), "that was the round before");
    bench.reply(2, ":0\r\n");
    bench.answer_to(["SET"], [2], "+OK\r\n");
    assert!(extend(&mut bench, &lock, &[":0\r\n", ":1\r\n", ":1\r\n"]));
}

#[test]
fn heal_in_quarantine_counts_when_the_quarantine_is_over() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    bench.answer([2], &format!("+OK\r\n{FLUSH}"));
    assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)));
    // Node 2 had the key before its quarantine began, so its vote in an extend counts.
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":-1\r\n", ":1\r\n"]));
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":-1\r\n", ":1\r\n"]));
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock(&[0, 1]);
    bench.answer([2], &format!("+OK\r\n{FLUSH}"));
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":1\r\n", ":0\r\n"]));
    bench.answer_to(["SET"], [2], "+OK\r\n");
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    for (node, reply) in [":1\r\n", ":-1\r\n", ":1\r\n"].iter().enumerate() {
        assert_eq!(bench.names(node), ["EVALSHA"], "it is prolonged there all the same");
        bench.reply(node, reply);
    }
    assert!(bench.completion().is_none(), "one that counts, one that does not, and one against");
    // The client repeats the extend. It would win once the quarantine is over, but the deadline of
    // the lock comes first.
    while matches!(bench.node_state(2), NodeState::Quarantined(_)) {
        bench.pass(millis(40));
        for node in 0..3 {
            bench.answer_all(node, |command| match command[0].as_str() {
                "EVALSHA" if node == 1 => ":-1\r\n",
                _ => ":1\r\n",
            });
        }
    }
    let result = bench.completion().expect("an end").result;
    assert!(matches!(result, Err(Error::Lost { .. })), "the quarantine outlives the lock");
}

#[test]
fn heal_that_is_in_flight_when_a_node_is_flushed_does_not_count() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock_everywhere();
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":1\r\n", ":0\r\n"]));
    assert_eq!(bench.names(2), ["SET"]);
    // The node forgets all keys, perhaps also another client's live lock, and then executes the
    // heal. So the healed key must not count.
    bench.reply(2, &format!("{FLUSH}+OK\r\n"));
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_each([":1\r\n", ":-1\r\n", ":1\r\n"].into_iter().enumerate());
    assert!(bench.completion().is_none(), "one that counts, one that does not, and one against");
}

#[test]
fn pending_release_ends_only_with_the_answer_to_the_last_extend() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    bench.answer([2], "$-1\r\n");
    for _ in 0..2 {
        bench.extend(&lock, TTL, 0..2);
    }
    bench.answer_to(["EVALSHA", "EVALSHA"], [2], ":-1\r\n");
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(bench.names(2), ["EVAL"], "the second one is not answered");
}

#[test]
fn a_healed_key_that_survived_a_flush_counts_in_quarantine() {
    let (mut bench, lock) = Bench::short_quarantine(3).with_lock_everywhere();
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":1\r\n", ":0\r\n"]));
    assert_eq!(bench.names(2), ["SET"]);
    // The node executes the heal while the client trusts it. Then another database of the node is
    // flushed, which leaves the healed key alone.
    bench.reply(2, &format!("+OK\r\n{FLUSH}"));
    assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)));
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":-1\r\n", ":1\r\n"]));
}

#[test]
fn heal_that_is_answered_after_the_release_is_not_counted() {
    let (mut bench, lock) = Bench::new(3).with_lock_everywhere();
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":1\r\n", ":0\r\n"]));
    assert_eq!(bench.names(2), ["SET"]);
    bench.core.release_nowait(&lock, bench.now);
    bench.reply(2, "+OK\r\n");
    assert_eq!(bench.core.stats().healed, 0);
}

#[test]
fn heal_is_not_asked_of_a_node_whose_connection_is_lost() {
    let (mut bench, lock) = Bench::new(3).with_lock_everywhere();
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    bench.answer_each([(2, ":0\r\n"), (0, ":1\r\n")]);
    bench.lose(2);
    bench.answer([1], ":1\r\n");
    assert!(bench.completion().unwrap().result.is_ok());
    assert!(bench.core.output(redlatch::NodeId::new(2)).is_empty());
    // The client heals the node after the next extend that it wins.
    bench.pass(millis(600));
    bench.connect(2);
    assert!(extend(&mut bench, &lock, &[":1\r\n", ":1\r\n"]));
    assert_eq!(bench.names(2), ["EVALSHA", "SET"]);
}
