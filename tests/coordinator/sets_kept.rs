//! Sets that keep their first key while they stand in line for the next one, with nodes whose
//! replies the test writes. Answers to an earlier round must not count for a later one.

use std::time::Duration;

use redlatch::proto::{Action, KeySet};
use redlatch::{Error, LockOptions, NodeId, NodeState, Op};

use crate::bench::{Bench, Command, INFO_OLD, TTL, bulk};

const WAIT: Duration = Duration::from_secs(4);

/// The answer to a join: the key is the waiter's, for 9 s, and no other waiter is next.
pub const MINE: &str = "$10\r\nmine 9000 \r\n";

/// What a script does, by its keys and arguments: `take` keys, `count` (take them, with fencing
/// counters), `release` keys, `join` a line, or `give back` (release keys, and leave their lines).
fn asks_for(command: &Command) -> String {
    let count: usize = command[2].parse().expect("a number of keys");
    let (names, arguments) = command[3..].split_at(count);
    let own = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    let keys: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !name.starts_with("redlatch:")).collect();
    let verb = match keys.len() {
        1 if own("redlatch:line:") => "join",
        _ if own("redlatch:line:") => "give back",
        _ if own("redlatch:fence:") => "count",
        _ if arguments.len() == 1 => "release",
        _ => "take",
    };
    format!("{verb} {}", keys.join("+"))
}

/// Takes what the node was sent, and returns the requests about keys as `asks_for` describes them.
/// The node acknowledges releases and answers all requests that are not about keys.
pub fn asked(bench: &mut Bench, node: usize) -> Vec<String> {
    let mut asked = Vec::new();
    for command in bench.sent(node) {
        match &command[0][..] {
            "EVAL" | "EVALSHA" => {
                let ask = asks_for(&command);
                if ask.starts_with("release") || ask.starts_with("give back") {
                    bench.reply(node, ":1\r\n");
                }
                asked.push(ask);
            }
            "SUBSCRIBE" => {
                let channel = bulk(&command[1]);
                bench.reply(node, &format!(">3\r\n$9\r\nsubscribe\r\n{channel}:1\r\n"));
            }
            "SCRIPT" => bench.reply(node, &bulk("0123456789012345678901234567890123456789")),
            "TIME" => bench.answer_time(node),
            other => panic!("{other}"),
        }
    }
    asked
}

/// Lets time pass until the first `nodes` nodes are asked for something other than a release.
/// Asserts that this is `expected` on each of them.
pub fn until_asked(bench: &mut Bench, nodes: usize, expected: &str) {
    for _ in 0..2000 {
        let is_asked = |bench: &mut Bench, node| {
            let said = asked(bench, node);
            said.into_iter().find(|it| !it.starts_with("release") && !it.starts_with("give back"))
        };
        let all: Vec<_> = (0..nodes).filter_map(|node| is_asked(bench, node)).collect();
        if !all.is_empty() {
            assert_eq!(all, vec![expected; nodes]);
            return;
        }
        bench.pass(Duration::from_millis(1));
    }
    panic!("no node is asked to {expected}: {:?}", bench.completion())
}

/// The answer to a join: the key is another client's, which will not hand it over.
pub const HELD: &str = "$52\r\nheld 0 9000 1111111111111111111111111111111111111111\r\n";

/// Of three nodes, the third answers `third`, and then the other two `bytes`. A single node
/// answers `bytes`.
fn reply(bench: &mut Bench, bytes: &str, third: &str) {
    if bench.markers.len() == 3 {
        bench.reply(2, third);
        bench.reply(1, bytes);
    }
    bench.reply(0, bytes);
}

/// A set over `a` and `b` is refused twice, and then joins the line of `a` to take its keys in the
/// order of their bytes. `take` is its request for both keys, as `asks_for` describes it.
pub fn joins_in_order(bench: &mut Bench, take: &str, ttl: Duration) -> Op {
    let options = LockOptions::new(ttl).wait(WAIT);
    let options = if take.starts_with("count") { options.fenced() } else { options };
    let keys = KeySet::new(["a", "b"]).expect("a good set");
    let op = bench.core.acquire(keys, options, 0, bench.now).expect("it can be asked for");
    let nodes = bench.markers.len();
    until_asked(bench, nodes, take);
    reply(bench, ":-1\r\n", ":-1\r\n");
    // Refused for the first time, the set keeps nothing. Refused for the second time, it begins
    // anew, in the order of the bytes.
    until_asked(bench, nodes, "join a");
    reply(bench, MINE, HELD);
    until_asked(bench, nodes, take);
    reply(bench, ":-2\r\n", ":-1\r\n");
    until_asked(bench, nodes, "join a");
    op
}

/// Goes on from `joins_in_order`: gets `a` on a majority of the nodes, and asks for both keys. On
/// the third node `a` is another client's.
pub fn asks_in_order(bench: &mut Bench, take: &str, ttl: Duration) -> Op {
    let op = joins_in_order(bench, take, ttl);
    reply(bench, MINE, HELD);
    until_asked(bench, bench.markers.len(), take);
    op
}

/// Goes on from `asks_in_order`: is refused because of `b`, and asks for `a` alone to keep it.
pub fn keeps_the_first_key(bench: &mut Bench, take: &str, ttl: Duration) -> Op {
    let op = asks_in_order(bench, take, ttl);
    reply(bench, ":-2\r\n", ":-1\r\n");
    until_asked(bench, bench.markers.len(), "take a");
    op
}

#[test]
fn set_that_keeps_its_first_key_has_its_deadline_from_the_round_over_all_keys() {
    let mut bench = Bench::without_tracking(1);
    keeps_the_first_key(&mut bench, "take a+b", TTL);
    bench.reply(0, ":1\r\n");
    until_asked(&mut bench, 1, "join b");
    bench.pass(Duration::from_millis(20));
    bench.reply(0, MINE);
    until_asked(&mut bench, 1, "take a+b");
    let last = bench.now;
    bench.pass(Duration::from_millis(1));
    bench.reply(0, ":1\r\n");
    let lock = bench.won();
    let deadline = bench.core.deadline(&lock).expect("it is held");
    let usable = TTL - TTL / 100 - Duration::from_millis(2);
    assert_eq!(deadline, last.saturating_add(usable));
    bench.core.release(lock, 0, bench.now);
    assert_eq!(asked(&mut bench, 0), ["give back a+b"]);
}

#[test]
fn grant_of_the_first_key_does_not_prove_the_whole_set() {
    let mut bench = Bench::without_tracking(3);
    keeps_the_first_key(&mut bench, "take a+b", TTL);
    (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
    // Node 2 grants `a`, too, and loses its connection before the client asks for both keys again.
    bench.reply(2, ":1\r\n");
    bench.lose(2);
    until_asked(&mut bench, 2, "join b");
    (0..2).for_each(|node| bench.reply(node, MINE));
    until_asked(&mut bench, 2, "take a+b");
    (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
    let lock = bench.won();
    // Node 2 restarts with the data of another node.
    bench.set_info(2, &INFO_OLD.replace("RRR", "SSS"));
    while !bench.actions().contains(&Action::Connect(NodeId::new(2))) {
        bench.pass(Duration::from_millis(100));
        (0..2).for_each(|node| drop(asked(&mut bench, node)));
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

/// Nodes 0 and 1 grant the key that is kept, so the set joins the next line. Then node 2 answers
/// that it does not know the script.
#[test]
fn script_is_not_repeated_while_the_set_waits_in_line() {
    let mut bench = Bench::without_tracking(3);
    keeps_the_first_key(&mut bench, "take a+b", TTL);
    (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
    until_asked(&mut bench, 2, "join b");
    bench.reply(2, "-NOSCRIPT No matching script.\r\n");
    assert!(asked(&mut bench, 2).is_empty(), "no round waits for the answer");
}

#[test]
fn node_that_refuses_the_last_round_after_the_majority_is_released_all_the_same() {
    let mut bench = Bench::without_tracking(3);
    keeps_the_first_key(&mut bench, "take a+b", TTL);
    reply(&mut bench, ":1\r\n", ":-1\r\n");
    until_asked(&mut bench, 3, "join b");
    reply(&mut bench, MINE, HELD);
    until_asked(&mut bench, 3, "take a+b");
    (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
    let lock = bench.won();
    // Node 2 refuses because of `b`, so it may have granted `a` meanwhile.
    bench.reply(2, ":-2\r\n");
    bench.core.release(lock, 0, bench.now);
    assert_eq!(asked(&mut bench, 2), ["give back a+b"]);
}

#[test]
fn set_begins_no_round_after_its_wait() {
    for kept in [false, true] {
        let mut bench = Bench::without_tracking(1);
        let end = bench.now.saturating_add(WAIT);
        keeps_the_first_key(&mut bench, "take a+b", TTL);
        if kept {
            bench.reply(0, ":1\r\n");
            until_asked(&mut bench, 1, "join b");
        }
        // The client's thread did not run, and reads the answer before its timers expire.
        bench.now = end;
        bench.reply(0, if kept { MINE } else { ":1\r\n" });
        assert!(asked(&mut bench, 0).iter().all(|ask| ask == "give back a+b"), "kept: {kept}");
        bench.pass(Duration::ZERO);
        let done = bench.completion().expect("its wait is over");
        assert!(matches!(done.result, Err(Error::Contended(_))), "{done:?}");
        asked(&mut bench, 0);
        bench.assert_idle();
    }
}

#[test]
fn set_that_is_refused_after_its_wait_keeps_nothing() {
    let mut bench = Bench::without_tracking(1);
    let end = bench.now.saturating_add(WAIT);
    asks_in_order(&mut bench, "take a+b", TTL);
    // The client's thread did not run, and reads the answer before its timers expire.
    bench.now = end;
    bench.reply(0, ":-2\r\n");
    assert_eq!(asked(&mut bench, 0), ["give back a+b"]);
    bench.pass(Duration::ZERO);
    let done = bench.completion().expect("its wait is over");
    assert!(matches!(done.result, Err(Error::Contended(_))), "{done:?}");
    bench.assert_idle();
}

#[test]
fn set_whose_first_key_is_granted_after_the_ttl_begins_anew() {
    let mut bench = Bench::without_tracking(3);
    let ttl = Duration::from_secs(1);
    keeps_the_first_key(&mut bench, "take a+b", ttl);
    bench.reply(0, ":1\r\n");
    // The client's thread does not run for longer than the ttl.
    bench.now = bench.now.saturating_add(ttl);
    bench.reply(1, ":1\r\n");
    assert!(bench.completion().is_none(), "its wait goes on");
    assert!(asked(&mut bench, 0).contains(&"give back a+b".to_owned()));
}

/// Node 2 answers the first of two rounds over all keys only during the write-back of the second.
/// Its keys have the ttl of the first round, which may end before the deadline of the second, so
/// the vote does not count.
#[test]
fn vote_of_an_earlier_round_over_all_keys_is_no_vote() {
    let mut bench = Bench::without_tracking(3);
    asks_in_order(&mut bench, "count a+b", TTL);
    // Nodes 0 and 1 refuse because of `b`. Node 2 does not answer yet.
    (0..2).for_each(|node| bench.reply(node, ":-2\r\n"));
    until_asked(&mut bench, 2, "take a");
    (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
    until_asked(&mut bench, 2, "join b");
    (0..2).for_each(|node| bench.reply(node, MINE));
    until_asked(&mut bench, 2, "count a+b");
    bench.reply(0, "*2\r\n:6\r\n:6\r\n");
    bench.reply(1, "*2\r\n:2\r\n:2\r\n");
    assert_eq!(asked(&mut bench, 1), ["count a+b"], "the write-back");
    // Now node 2 answers the first of the two rounds.
    bench.reply(2, "*2\r\n:6\r\n:6\r\n");
    assert!(bench.completion().is_none(), "one node has the numbers");
    bench.reply(1, ":1\r\n");
    assert_eq!(bench.won().fences().collect::<Vec<u64>>(), [6, 6]);
}
