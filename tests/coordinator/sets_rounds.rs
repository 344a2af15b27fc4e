//! Several keys that are taken one after the other: what an answer to an earlier round is worth.

use std::time::Duration;

use redlatch::proto::{Action, KeySet};
use redlatch::{Lock, LockOptions, NodeId, NodeState, Outcome};

use crate::bench::{Bench, INFO_OLD, TTL};

const WAIT: Duration = Duration::from_secs(4);

fn wait_for(bench: &mut Bench, names: &[&str]) {
    let (keys, now) = (KeySet::new(names).expect("a good set"), bench.now);
    bench
        .core
        .acquire(&keys, LockOptions::new(TTL).wait(WAIT), 0, now)
        .expect("it can be asked for");
}

/// What the node is asked about keys: `take` or `release`, and the keys. It acknowledges releases,
/// and leaves a `take` unanswered.
fn asked(bench: &mut Bench, node: usize) -> Vec<String> {
    let mut asked = Vec::new();
    for command in bench.said(node) {
        match &command[0][..] {
            "EVAL" | "EVALSHA" => {
                let count: usize = command[2].parse().expect("a number of keys");
                let keys = command[3..3 + count].join("+");
                if command.len() == 4 + count {
                    bench.reply(node, ":1\r\n");
                    asked.push(format!("release {keys}"));
                } else {
                    asked.push(format!("take {keys}"));
                }
            }
            "TIME" => bench.tell_time(node),
            other => panic!("{other}"),
        }
    }
    asked
}

/// Lets time pass until all nodes are asked to take keys, each the same.
fn until_taking(bench: &mut Bench, nodes: usize) -> String {
    for _ in 0..4000 {
        let all: Vec<Vec<String>> = (0..nodes).map(|node| asked(bench, node)).collect();
        let takes = |said: &Vec<String>| said.iter().find(|it| it.starts_with("take")).cloned();
        if let Some(first) = takes(&all[0]) {
            assert!(all.iter().all(|said| takes(said).as_ref() == Some(&first)), "{all:?}");
            return first;
        }
        bench.pass(Duration::from_millis(1));
    }
    panic!("no node is asked: {:?}", bench.completion())
}

/// The set lost three attempts to other clients on all nodes, and asks for its first key now.
fn taking_singly(bench: &mut Bench, names: &[&str], nodes: usize) {
    wait_for(bench, names);
    for _ in 0..3 {
        assert_eq!(until_taking(bench, nodes), format!("take {}", names.join("+")));
        for node in 0..nodes {
            bench.reply(node, &format!(":-{}\r\n", names.len()));
        }
    }
    assert_eq!(until_taking(bench, nodes), format!("take {}", names[0]));
}

fn taken(bench: &mut Bench) -> Lock {
    match bench.completion().map(|done| done.result) {
        Some(Ok(Outcome::Acquired(lock))) => lock,
        other => panic!("no lock: {other:?}"),
    }
}

#[test]
fn set_begins_anew_if_one_of_its_first_keys_was_lost_before_the_last_round() {
    let mut bench = Bench::without_tracking(1).without_lines();
    taking_singly(&mut bench, &["a", "b", "c"], 1);
    bench.reply(0, ":1\r\n");
    assert_eq!(asked(&mut bench, 0), ["take a+b"]);
    bench.reply(0, ":1\r\n");
    assert_eq!(asked(&mut bench, 0), ["take a+b+c"]);
    // Another client has `b` now, so it is not `c` that the set has to wait for.
    bench.reply(0, ":-2\r\n");
    assert_eq!(asked(&mut bench, 0), ["release a+b+c"]);
    assert_eq!(until_taking(&mut bench, 1), "take a");
}

#[test]
fn grant_of_the_first_keys_does_not_prove_the_whole_set() {
    let mut bench = Bench::without_tracking(3).without_lines();
    taking_singly(&mut bench, &["a", "b"], 3);
    // Node 2 grants `a`, and its connection is lost before it is asked for both keys.
    bench.reply(2, ":1\r\n");
    bench.lose(2);
    for _ in ["a", "a+b"] {
        for node in [0, 1] {
            bench.reply(node, ":1\r\n");
        }
        for node in [0, 1] {
            asked(&mut bench, node);
        }
    }
    let lock = taken(&mut bench);
    // Another process takes the place of node 2, with the keys of another node.
    bench.set_info(2, &INFO_OLD.replace("RRR", "SSS"));
    bench.actions();
    while !bench.actions().contains(&Action::Connect(NodeId::new(2))) {
        bench.pass(Duration::from_millis(100));
        for node in [0, 1] {
            asked(&mut bench, node);
        }
    }
    bench.put_back(vec![Action::Connect(NodeId::new(2))]);
    bench.connect(2);
    assert!(matches!(bench.node_state(2), NodeState::Quarantined(_)));
    bench.core.extend(&lock, TTL, 2, bench.now).expect("it is held");
    for node in [1, 2] {
        asked(&mut bench, node);
        bench.reply(node, ":1\r\n");
    }
    assert!(bench.completion().is_none(), "another client may have been granted `b` by node 2");
}

#[test]
fn script_over_a_set_is_not_repeated_past_the_deadline() {
    let mut bench = Bench::new(1);
    // The node knows the script from an earlier set.
    wait_for(&mut bench, &["a", "b"]);
    asked(&mut bench, 0);
    bench.reply(0, ":1\r\n");
    let _held = taken(&mut bench);
    wait_for(&mut bench, &["c", "d"]);
    assert_eq!(bench.said(0)[0][0], "EVALSHA");
    // The answer is read before the timers of this turn.
    bench.now = bench.now.saturating_add(TTL);
    bench.reply(0, "-NOSCRIPT No matching script.\r\n");
    let said = bench.said(0);
    assert!(said.iter().all(|command| command[0] != "EVAL" || command.len() == 6), "{said:?}");
}

/// Two nodes say that the second key is another's, and the set waits for it in the same round.
#[test]
fn script_over_a_set_is_not_repeated_while_the_set_waits_for_a_key() {
    let mut bench = Bench::without_tracking(3).without_lines();
    taking_singly(&mut bench, &["a", "b"], 3);
    for node in 0..3 {
        bench.reply(node, ":1\r\n");
    }
    assert_eq!(until_taking(&mut bench, 3), "take a+b");
    for node in 0..2 {
        bench.reply(node, ":-2\r\n");
    }
    bench.reply(2, "-NOSCRIPT No matching script.\r\n");
    assert!(asked(&mut bench, 2).is_empty(), "no round waits for the answer");
}
