//! Locks over several keys with a fencing number for each key: what the client asks the nodes, and
//! how their votes give the numbers.

use std::time::Duration;

use redlatch::proto::counter_key;
use redlatch::proto::sets::{ACQUIRE, EXTEND_SET, RELEASE_SET};
use redlatch::proto::{KeySet, ReportedSet};
use redlatch::{ConfigError, Error, Lock, LockOptions, Op, RestartGuard};

use crate::bench::{Bench, Command, FLUSH, TTL};
use crate::fencing_on_masters::{START, World, majorities};

const NOPERM: &str = "-NOPERM this user has no permissions to run the 'evalsha' command\r\n";

fn keys() -> KeySet {
    KeySet::new(["b", "a"]).expect("a good set")
}

fn ask(bench: &mut Bench) -> Op {
    ask_with_wait(bench, Duration::ZERO)
}

fn ask_with_wait(bench: &mut Bench, wait: Duration) -> Op {
    bench.ask_for(keys(), 7, LockOptions::new(TTL).wait(wait).fenced())
}

/// The command as text: its script, the keys and counters, and the arguments after the token. A
/// script with arguments for counters is called "count" or "raise".
fn script(command: &Command) -> String {
    let scripts = [("acquire", ACQUIRE), ("extend", EXTEND_SET), ("release", RELEASE_SET)];
    let runs = |(_, script): &&(&str, redlatch::proto::command::Script)| match &command[0][..] {
        "EVAL" => command[1] == script.source,
        "EVALSHA" => command[1] == script.sha1,
        _ => false,
    };
    let (name, _) = scripts.iter().find(runs).unwrap_or_else(|| panic!("{command:?}"));
    let count: usize = command[2].parse().expect("a number of keys");
    let (keys, arguments) = command[3..].split_at(count);
    let name = match *name {
        "acquire" if arguments.len() > 2 => "count",
        "extend" if arguments.len() > 2 => "raise",
        name => name,
    };
    format!("{name} {} | {}", keys.join(" "), arguments[1..].join(" "))
}

/// The keys of the set, and their counters.
const KEYS: &str = "a b redlatch:fence:{a} redlatch:fence:{b}";

/// Asserts that the node was sent this one command.
#[track_caller]
fn expect(bench: &mut Bench, node: usize, expected: &str) {
    let sent = bench.sent(node);
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(script(&sent[0]).replace(KEYS, "KEYS"), expected, "node {node}");
}

/// The node grants both keys, and votes for these two numbers.
fn vote(bench: &mut Bench, node: usize, votes: [u64; 2]) {
    bench.reply(node, &format!("*2\r\n:{}\r\n:{}\r\n", votes[0], votes[1]));
}

fn fences(lock: &Lock) -> Vec<u64> {
    lock.fences().collect()
}

/// The acquire: the ttl, the life and the step of a counter, and its floor.
const COUNT: &str = "count KEYS | 10000 600000 1000 1099511627776";

fn hold(bench: &mut Bench, votes: [u64; 2]) -> Lock {
    ask(bench);
    for node in 0..bench.markers.len() {
        expect(bench, node, COUNT);
        vote(bench, node, votes);
    }
    bench.won()
}

/// So many nodes that were asked for the set.
fn asked(nodes: usize) -> Bench {
    let mut bench = Bench::new(nodes);
    ask(&mut bench);
    bench
}

/// So many nodes, and a lock as `hold` acquires it.
fn held(nodes: usize, votes: [u64; 2]) -> (Bench, Lock) {
    let mut bench = Bench::new(nodes);
    let lock = hold(&mut bench, votes);
    (bench, lock)
}

#[test]
fn fences_of_equal_votes_take_one_round_trip() {
    let (mut bench, lock) = held(3, [7, 90]);
    assert_eq!((lock.fence(), fences(&lock)), (None, vec![7, 90]));
    assert_eq!(fences(&lock.alias()), [7, 90]);
    assert_eq!((bench.core.stats().fenced, bench.core.stats().written_back), (1, 0));
    bench.core.extend(&lock, TTL, 0, bench.now).expect("it is held");
    for node in 0..3 {
        expect(&mut bench, node, "raise KEYS | 10000 600000 1000 1099511627776 7 90");
        bench.reply(node, ":1\r\n");
    }
    bench.extended();
    bench.core.release_nowait(&lock, bench.now);
    for node in 0..3 {
        expect(&mut bench, node, "release a b | ");
        bench.reply(node, ":1\r\n");
    }
    bench.assert_idle();
    assert_eq!(fences(&lock), [7, 90], "a late holder still knows its numbers");
}

#[test]
fn fences_of_different_votes_are_written_back_before_the_lock_is_handed_out() {
    let mut bench = asked(3);
    for (node, votes) in [(0, [6, 2]), (1, [2, 9])] {
        expect(&mut bench, node, COUNT);
        vote(&mut bench, node, votes);
    }
    // The numbers are the greatest votes, 6 and 9. Nodes 0 and 1 have one of them each, so both are
    // asked to raise their counters.
    for node in 0..2 {
        assert!(bench.completion().is_none());
        expect(&mut bench, node, "raise KEYS | 0 600000 1000 1099511627776 6 9");
        bench.reply(node, ":1\r\n");
    }
    assert_eq!(fences(&bench.won()), [6, 9]);
    assert_eq!((bench.core.stats().fenced, bench.core.stats().written_back), (1, 1));
}

#[test]
fn fences_whose_write_back_finds_a_key_gone_are_none() {
    // In the first case the second key is gone, in the second the first key is another client's.
    for (found, named) in [(":-4\r\n", "b"), (":-3\r\n", "a")] {
        let mut bench = asked(3);
        expect(&mut bench, 2, COUNT);
        bench.reply(2, ":-1\r\n");
        for (node, votes) in [(0, [6, 6]), (1, [6, 2])] {
            expect(&mut bench, node, COUNT);
            vote(&mut bench, node, votes);
        }
        expect(&mut bench, 1, "raise KEYS | 0 600000 1000 1099511627776 6 6");
        bench.reply(1, found);
        let error = bench.refused();
        let report = error.report().expect("it has a report");
        assert!(matches!(error, Error::Contended(_)), "{error}");
        assert_eq!(report.set, Some(ReportedSet { keys: 2, named: true }));
        assert_eq!(*report.key, *named.as_bytes(), "{error}");
        for node in 0..2 {
            expect(&mut bench, node, "release a b | ");
            bench.reply(node, ":-2\r\n");
        }
        assert!(bench.sent(2).is_empty(), "it refused, so it holds nothing");
        bench.assert_idle();
    }
}

#[test]
fn votes_for_another_number_of_keys_are_no_votes() {
    let mut bench = asked(3);
    (0..3).for_each(|node| expect(&mut bench, node, COUNT));
    bench.reply(0, "*3\r\n:7\r\n:7\r\n:7\r\n");
    vote(&mut bench, 1, [7, 7]);
    assert!(bench.completion().is_none(), "one node has voted");
    bench.reply(2, ":-1\r\n");
    assert!(matches!(bench.refused(), Error::NoQuorum(_) | Error::Contended(_)));
    expect(&mut bench, 0, "release a b | ");
    // The script cannot give a single number, so the client closes the connection.
    let mut bench = asked(1);
    expect(&mut bench, 0, COUNT);
    bench.reply(0, ":1\r\n");
    assert!(matches!(bench.refused(), Error::NoQuorum(_)));
}

#[test]
fn fenced_set_touches_no_counter_of_a_node_in_quarantine() {
    let mut bench = Bench::new(3);
    bench.reply(0, FLUSH);
    drop(bench.sent(0));
    ask(&mut bench);
    let sent = bench.sent(0);
    assert_eq!(script(sent.last().expect("it is asked")), "acquire a b | 10000", "{sent:?}");
    bench.reply(0, &format!("{}:1\r\n", "_\r\n".repeat(sent.len() - 1)));
    expect(&mut bench, 1, COUNT);
    vote(&mut bench, 1, [6, 6]);
    assert!(bench.completion().is_none(), "one node has voted");
    expect(&mut bench, 2, COUNT);
    vote(&mut bench, 2, [6, 6]);
    let lock = bench.won();
    bench.core.extend(&lock, TTL, 0, bench.now).expect("it is held");
    expect(&mut bench, 0, "extend a b | 10000");
    expect(&mut bench, 1, "raise KEYS | 10000 600000 1000 1099511627776 6 6");
}

#[test]
fn heal_of_a_fenced_set_raises_the_counters() {
    let (mut bench, lock) = held(3, [7, 90]);
    bench.core.extend(&lock, TTL, 0, bench.now).expect("it is held");
    for (node, reply) in [(0, ":-4\r\n"), (1, ":1\r\n"), (2, ":1\r\n")] {
        expect(&mut bench, node, "raise KEYS | 10000 600000 1000 1099511627776 7 90");
        bench.reply(node, reply);
    }
    let sent = bench.sent(0);
    let text = script(&sent[0]).replace(KEYS, "KEYS");
    assert!(
        text.starts_with("count KEYS | ") && text.ends_with(" 600000 1000 1099511627776 7 90"),
        "{text}"
    );
    vote(&mut bench, 0, [7, 90]);
    assert_eq!(bench.core.stats().healed, 1);
}

#[test]
fn fenced_script_over_a_set_that_was_forgotten_is_not_sent_again_after_its_release() {
    let (mut bench, lock) = held(1, [7, 7]);
    bench.core.release_nowait(&lock, bench.now);
    expect(&mut bench, 0, "release a b | ");
    bench.reply(0, ":1\r\n");
    let op = ask(&mut bench);
    bench.reply(0, "-NOSCRIPT no\r\n");
    let forms: Vec<_> = bench.sent(0).into_iter().map(|command| command[0].clone()).collect();
    assert_eq!(forms, ["EVALSHA", "EVAL"]);
    bench.core.cancel(op, bench.now);
    expect(&mut bench, 0, "release a b | ");
    bench.reply(0, "-NOSCRIPT no\r\n");
    assert!(bench.sent(0).is_empty(), "a repeat would come after the release");
    bench.reply(0, ":-2\r\n");
    bench.assert_idle();
}

#[test]
fn fenced_set_whose_script_failed_in_the_middle_is_released_although_the_repeat_is_denied() {
    let (mut bench, lock) = held(1, [7, 7]);
    bench.core.release_nowait(&lock, bench.now);
    drop(bench.sent(0));
    bench.reply(0, ":1\r\n");
    ask(&mut bench);
    drop(bench.sent(0));
    bench.reply(0, NOPERM);
    expect(&mut bench, 0, COUNT);
    // The first script may have set the first key before it failed. Then this client's own token is
    // the reason for the denial, so the client has to release it.
    bench.reply(0, ":-1\r\n");
    assert!(matches!(bench.refused(), Error::Contended(_)));
    expect(&mut bench, 0, "release a b | ");
}

#[test]
fn fenced_set_is_refused_without_the_restart_guard_before_a_byte_is_sent() {
    let mut bench = Bench::with(1, |settings| settings.restart_guard = RestartGuard::Off);
    let asked = bench.core.acquire(keys(), LockOptions::new(TTL).wait(TTL).fenced(), 0, bench.now);
    let error = asked.expect_err("it cannot be promised");
    assert!(matches!(error, Error::Config(ConfigError::Fence { .. })), "{error}");
    assert!(bench.sent(0).is_empty());
}

#[test]
fn fenced_set_of_one_key_is_a_fenced_lock() {
    let mut bench = Bench::new(1);
    let set = KeySet::new(["k", "k"]).expect("a good set");
    bench.ask_for(&set, 0, LockOptions::new(TTL).wait(TTL).fenced());
    assert_eq!(bench.sent(0)[0][2..5], ["2", "k", "redlatch:fence:{k}"]);
    bench.reply(0, ":7\r\n");
    let lock = bench.won();
    assert_eq!((lock.fence(), fences(&lock)), (Some(7), vec![7]));
}

/// Two holders one after the other, the first by one majority, the second by another: one locks a
/// set, the other one of its keys. The counters start at `spread`.
fn holders_follow(spread: [&[u64]; 2], first: &[usize], second: &[usize], set_first: bool) {
    let mut world = World::new(spread[0]);
    for (node, count) in spread[1].iter().enumerate() {
        world.operate(node, &[b"SET", &counter_key(b"l"), (START + count).to_string().as_bytes()]);
    }
    let [a, b] = [(); 2].map(|()| world.client());
    let set = KeySet::new(["k", "l"]).expect("a good set");
    let (lock, later) = if set_first {
        let lock = world.acquire_all(a, &set, first);
        world.release(a, &lock, first);
        (lock, world.acquire(b, second))
    } else {
        let lock = world.acquire(a, first);
        world.release(a, &lock, first);
        (lock, world.acquire_all(b, &set, second))
    };
    let (before, after) = (fences(&lock)[0], fences(&later)[0]);
    assert!(after > before, "{spread:?}, {first:?}, {second:?}: {before}, {after}");
    // A third lock on the set has greater numbers, also of the key that the single lock left alone.
    let of_set = if set_first { fences(&lock)[1] } else { fences(&later)[1] };
    world.release(b, &later, second);
    let again = world.acquire_all(a, &set, first);
    assert!(fences(&again)[1] > of_set, "{spread:?}, {first:?}, {second:?}: {of_set}, {again:?}");
    assert!(fences(&again)[0] > after, "{spread:?}, {first:?}, {second:?}: {after}, {again:?}");
}

#[test]
fn fences_grow_from_locks_on_one_key_to_sets_and_back() {
    let spreads: Vec<Vec<u64>> = (0..27_u64)
        .map(|n| (0..3).map(|node| 1 + 4 * (n / 3_u64.pow(node) % 3)).collect())
        .collect();
    let mut seen = 0;
    for (number, spread) in spreads.iter().enumerate() {
        let other = &spreads[(number * 7 + 5) % spreads.len()];
        for first in majorities(3) {
            for second in majorities(3) {
                for set_first in [true, false] {
                    holders_follow([spread, other], &first, &second, set_first);
                    seen += 1;
                }
            }
        }
    }
    assert_eq!(seen, 1_944);
}

#[test]
fn key_of_a_fenced_set_may_be_named_after_another_one() {
    let mut bench = Bench::new(1);
    let set = KeySet::new(["k", "{k}:fence"]).unwrap();
    bench.core.acquire(&set, LockOptions::once(TTL).fenced(), 7, bench.now).expect("two keys");
    let counters = ["redlatch:fence:{k}", "redlatch:fence:{{k}:fence}"];
    let expected = [&["4", "k", "{k}:fence"][..], &counters].concat();
    assert_eq!(bench.sent(0)[0][2..7], expected);
}
