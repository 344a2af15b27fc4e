//! Nodes that lose the key one after the other, in different rounds: the client adds them up, and
//! the lock is lost when no majority is left.

use super::*;
use redlatch::{Lock, LostReason};

/// Acquires a lock on all nodes.
fn hold(bench: &mut Bench, nodes: usize) -> Lock {
    bench.acquire();
    bench.answer_to(["SET"], 0..nodes, "+OK\r\n");
    bench.won()
}

/// The caller extends the lock. Only these nodes answer.
fn extend(bench: &mut Bench, lock: &Lock, replies: &[(usize, &str)]) {
    bench.core.extend(lock, TTL, 2, bench.now).unwrap();
    for &(node, reply) in replies {
        bench.answer_to(["EVALSHA"], [node], reply);
    }
}

fn assert_gone(bench: &mut Bench, lock: &Lock) {
    let result = bench.completion().expect("it is lost now").result;
    assert!(matches!(result, Err(Error::Lost { reason: LostReason::Gone, .. })), "{result:?}");
    assert!(bench.core.remaining(lock, bench.now).is_zero());
}

#[test]
fn nodes_that_lost_the_key_in_different_rounds_are_counted_together() {
    let mut bench = Bench::quiet(3);
    let lock = hold(&mut bench, 3);
    extend(&mut bench, &lock, &[(0, ":-1\r\n"), (1, ":1\r\n"), (2, ":1\r\n")]);
    assert!(bench.completion().unwrap().result.is_ok());
    // Node 0 does not answer this extend. But in the first one it held another client's key, and it
    // was not healed since, so it counts as lost.
    extend(&mut bench, &lock, &[(1, ":-1\r\n")]);
    assert_gone(&mut bench, &lock);
}

#[test]
fn extend_counts_answers_to_an_earlier_round() {
    let mut bench = Bench::quiet(5);
    let lock = hold(&mut bench, 5);
    let yes = [2, 3, 4].map(|node| (node, ":1\r\n"));
    extend(&mut bench, &lock, &yes);
    assert!(bench.completion().unwrap().result.is_ok());
    extend(&mut bench, &lock, &[(2, ":1\r\n"), (3, ":-1\r\n")]);
    bench.assert_sent([0, 1], ["EVALSHA", "EVALSHA"]);
    bench.reply(0, ":-1\r\n");
    assert!(bench.completion().is_none(), "two of five are no majority");
    assert!(!bench.core.remaining(&lock, bench.now).is_zero());
    bench.reply(1, ":-1\r\n");
    assert_gone(&mut bench, &lock);
}

#[test]
fn a_node_whose_key_came_back_without_a_heal_does_not_count() {
    let mut bench = Bench::quiet(3);
    let lock = hold(&mut bench, 3);
    extend(&mut bench, &lock, &[(0, ":-1\r\n"), (1, ":1\r\n"), (2, ":1\r\n")]);
    assert!(bench.completion().unwrap().result.is_ok());
    // If the grant of node 0 counted, there would be a majority.
    extend(&mut bench, &lock, &[(0, ":1\r\n"), (1, ":1\r\n")]);
    assert!(bench.completion().is_none(), "n1 alone counts");
    bench.answer_to(["EVALSHA"], [2], ":0\r\n");
    assert_gone(&mut bench, &lock);
}
