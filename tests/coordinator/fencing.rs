//! Fencing numbers: the votes, the second round that writes the greatest vote back, and every order
//! of events that could give two holders one number, or a later holder a smaller one.

use super::*;
use crate::bench::Command;
use redlatch::proto::command::EXTEND;
use redlatch::proto::sets::{ACQUIRE, EXTEND_SET};
use redlatch::{ConfigError, Lock, LockOptions, Op, RestartGuard};

const COUNTER: &str = "redlatch:fence:{k}";
/// A counter below the floor counts as absent. Nodes without a marker, as here, have the lowest
/// floor.
const FLOOR: &str = "1099511627776";

pub fn ask(bench: &mut Bench) -> Op {
    bench.ask(1, LockOptions::once(TTL).fenced())
}

/// Takes the one command that the node was sent, which has to run a script.
#[track_caller]
pub fn script(bench: &mut Bench, node: usize) -> Command {
    let mut sent = bench.sent(node);
    assert_eq!(sent.len(), 1, "{sent:?}");
    let command = sent.remove(0);
    assert!(command[0].starts_with("EVAL"), "{command:?}");
    command
}

pub fn runs(command: &Command, script: redlatch::proto::command::Script) -> bool {
    command[1] == script.source || command[1] == script.sha1
}

pub fn vote(bench: &mut Bench, node: usize, vote: u64) {
    bench.reply(node, &format!(":{vote}\r\n"));
}

/// Each of these nodes takes the script that it was sent, and votes.
#[track_caller]
pub fn votes(bench: &mut Bench, votes: impl IntoIterator<Item = (usize, u64)>) {
    for (node, of_it) in votes {
        script(bench, node);
        vote(bench, node, of_it);
    }
}

/// An acquire for which node 1 voted less than node 0. So the client writes node 0's vote, 6, back
/// to node 1.
fn undecided() -> Bench {
    let mut bench = asked(3);
    votes(&mut bench, [(0, 6), (1, 2)]);
    bench
}

/// Acquires with these votes of the first nodes. A majority has to vote the same.
pub fn hold(bench: &mut Bench, of_first: &[u64]) -> Lock {
    ask(bench);
    votes(bench, of_first.iter().copied().enumerate());
    bench.won()
}

/// So many nodes that were asked for the lock.
fn asked(nodes: usize) -> Bench {
    let mut bench = Bench::new(nodes);
    ask(&mut bench);
    bench
}

/// So many nodes, and a lock as `hold` acquires it.
pub fn held(nodes: usize, of_first: &[u64]) -> (Bench, Lock) {
    let mut bench = Bench::new(nodes);
    let lock = hold(&mut bench, of_first);
    (bench, lock)
}

/// Acquires with these votes of all nodes, and releases. After that the nodes know the script.
pub fn give_back(bench: &mut Bench, of_all: &[u64]) {
    let lock = hold(bench, &of_all[..2]);
    votes(bench, [(2, of_all[2])]);
    release(bench, &lock);
}

/// Releases a lock, and all nodes confirm that.
pub fn release(bench: &mut Bench, lock: &Lock) {
    bench.core.release_nowait(lock, bench.now);
    for node in 0..3 {
        for _ in bench.sent(node) {
            bench.reply(node, ":1\r\n");
        }
    }
}

#[test]
fn fence_of_equal_votes_takes_one_round_trip() {
    let mut bench = asked(3);
    let command = script(&mut bench, 0);
    assert_eq!(command[0], "EVAL", "the first time on a connection the node gets the source");
    assert!(runs(&command, ACQUIRE));
    assert_eq!(command[2..5], ["2", "k", COUNTER]);
    assert_eq!(
        command[6..],
        ["10000", "600000", "1000", FLOOR],
        "the ttl, and ten max_ttl for the counter"
    );
    vote(&mut bench, 0, 7);
    assert!(bench.completion().is_none());
    votes(&mut bench, [(1, 7)]);
    let lock = bench.won();
    assert_eq!(lock.fence(), Some(7));
    assert_eq!(lock.alias().fence(), Some(7));
    assert!(bench.sent(0).is_empty(), "nothing is written back");
    assert_eq!((bench.core.stats().fenced, bench.core.stats().written_back), (1, 0));
    bench.core.release_nowait(&lock, bench.now);
    assert_eq!(bench.sent(0)[0][3], "k", "the release names only the key, and leaves the counter");
    assert_eq!(lock.fence(), Some(7), "a late holder still knows its number");
}

#[test]
fn fenced_script_is_sent_by_its_sha1_from_the_second_time_on() {
    let (mut bench, lock) = held(3, &[7, 7]);
    votes(&mut bench, [(2, 7)]);
    bench.core.release_nowait(&lock, bench.now);
    bench.answer(0..3, ":1\r\n");
    ask(&mut bench);
    assert_eq!(script(&mut bench, 0)[..2], ["EVALSHA", ACQUIRE.sha1]);
    bench.reply(0, "-NOSCRIPT No matching script.\r\n");
    assert_eq!(script(&mut bench, 0)[..2], ["EVAL", ACQUIRE.source]);
    vote(&mut bench, 0, 8);
    votes(&mut bench, [(1, 8)]);
    assert_eq!(bench.won().fence(), Some(8));
}

/// The client cannot judge the clock of such a node, and a new counter starts from this clock.
#[test]
fn node_that_refuses_time_counts_for_no_fence() {
    let mut bench = Bench::new(3);
    bench.pass(bench.core.settings().probe_interval);
    assert_eq!(bench.names(0), ["TIME"]);
    bench.reply(0, "-NOPERM this user has no permissions to run the 'time' command\r\n");
    ask(&mut bench);
    assert_eq!(bench.names(0), ["SET"], "it touches no counter");
}

#[test]
fn fence_of_different_votes_is_written_back_before_the_lock_is_handed_out() {
    let mut bench = undecided();
    assert!(bench.completion().is_none(), "only one node has the number");
    assert!(bench.sent(0).is_empty(), "it is not written to the node that has it");
    let command = script(&mut bench, 1);
    assert!(runs(&command, EXTEND_SET));
    assert_eq!(command[2..5], ["2", "k", COUNTER]);
    assert_eq!(command[6..], ["0", "600000", "1000", FLOOR, "6"], "the key is not extended");
    bench.reply(1, ":1\r\n");
    assert_eq!(bench.won().fence(), Some(6));
    assert_eq!((bench.core.stats().fenced, bench.core.stats().written_back), (1, 1));
}

#[test]
fn fence_whose_write_back_finds_another_token_is_no_fence() {
    for found in [":-2\r\n", ":-3\r\n"] {
        let mut bench = asked(3);
        script(&mut bench, 2);
        bench.reply(2, ":-1\r\n");
        votes(&mut bench, [(0, 6), (1, 2)]);
        script(&mut bench, 1);
        bench.reply(1, found);
        let error = bench.refused();
        assert!(matches!(error, Error::Contended(_)), "{error}");
        // The client releases the key on nodes 0 and 1, which granted it, and not on node 2.
        assert_eq!(script(&mut bench, 0)[3], "k");
        assert_eq!(script(&mut bench, 1)[3], "k");
        assert!(bench.sent(2).is_empty());
        bench.reply(0, ":1\r\n");
        bench.reply(1, ":0\r\n");
        bench.assert_idle();
    }
}

#[test]
fn fence_that_is_written_back_after_the_deadline_is_no_fence() {
    let mut bench = undecided();
    script(&mut bench, 1);
    // The client's thread did not run: it reads the answer after the deadline.
    bench.now = bench.now.saturating_add(TTL);
    bench.reply(1, ":1\r\n");
    bench.core.handle_timeout(bench.now);
    let error = bench.refused();
    assert!(matches!(error, Error::Expired(_)), "{error}");
    assert_eq!(bench.sent(0)[0][3], "k", "the release");
}

#[test]
fn fence_is_not_written_back_at_the_deadline() {
    let mut bench = asked(3);
    script(&mut bench, 0);
    script(&mut bench, 1);
    vote(&mut bench, 0, 6);
    bench.now = bench.now.saturating_add(TTL);
    vote(&mut bench, 1, 2);
    assert!(matches!(bench.refused(), Error::Expired(_)));
    let sent = bench.sent(1);
    assert!(sent.iter().all(|command| !runs(command, EXTEND_SET)), "{sent:?}");
}

#[test]
fn fence_that_no_node_confirms_in_time_is_lost_and_its_wait_goes_on() {
    let mut bench = Bench::new(3);
    bench.core.acquire(b"k", LockOptions::new(TTL).wait(TTL).fenced(), 1, bench.now).unwrap();
    votes(&mut bench, [(0, 6), (1, 2)]);
    script(&mut bench, 1);
    bench.pass(millis(51));
    assert!(bench.completion().is_none(), "the next attempt follows");
    for node in 0..2 {
        bench.sent(node);
    }
    bench.reply(0, ":1\r\n");
    bench.reply(1, ":1\r\n:1\r\n");
    bench.sent(2);
    bench.reply(2, ":9\r\n:1\r\n");
    bench.pass(millis(60));
    for node in [0, 1] {
        let asked = bench.sent(node);
        assert!(asked.iter().any(|command| runs(command, ACQUIRE)), "{asked:?}");
        let first = asked.iter().position(|command| runs(command, ACQUIRE)).unwrap();
        let before = ":1\r\n".repeat(first);
        bench.reply(node, &format!("{before}:10\r\n"));
    }
    assert_eq!(bench.won().fence(), Some(10), "a new attempt has a new number");
}

#[test]
fn late_vote_counts_in_the_second_round() {
    // A late vote of 9 or 6 shows that the node has the number already. After a vote of 3 the
    // client writes the number to that node, too.
    for (late, to_write) in [(9, false), (6, false), (3, true)] {
        let mut bench = undecided();
        script(&mut bench, 1);
        script(&mut bench, 2);
        vote(&mut bench, 2, late);
        if to_write {
            assert!(bench.completion().is_none());
            assert!(runs(&script(&mut bench, 2), EXTEND_SET));
            bench.reply(2, ":1\r\n");
        }
        assert_eq!(bench.won().fence(), Some(6), "late vote {late}");
        bench.reply(1, ":1\r\n");
    }
    let mut bench = undecided();
    script(&mut bench, 1);
    script(&mut bench, 2);
    bench.reply(2, ":-1\r\n");
    assert!(bench.completion().is_none());
    bench.lose(1);
    assert!(matches!(bench.refused(), Error::Contended(_) | Error::NoQuorum(_)));
}

#[test]
fn second_round_does_not_wait_for_lost_connections() {
    let mut bench = undecided();
    script(&mut bench, 1);
    bench.lose(2);
    bench.lose(1);
    assert!(matches!(bench.refused(), Error::NoQuorum(_)));
}

#[test]
fn node_that_is_flushed_between_the_rounds_does_not_count() {
    // First case: node 0 voted for the number, and lost its counter by a FLUSH.
    let mut bench = undecided();
    script(&mut bench, 1);
    bench.reply(0, FLUSH);
    bench.reply(1, ":1\r\n");
    assert!(bench.completion().is_none(), "one node has the number");
    votes(&mut bench, [(2, 6)]);
    assert_eq!(bench.won().fence(), Some(6));
    // Second case: node 1 is flushed in the second round, and confirms the number after that.
    let mut bench = undecided();
    script(&mut bench, 1);
    bench.reply(1, &format!("{FLUSH}:1\r\n"));
    bench.lose(2);
    assert!(matches!(bench.refused(), Error::NoQuorum(_)));
}

#[test]
fn node_in_quarantine_counts_no_fence_and_creates_no_counter() {
    let mut bench = Bench::new(3);
    bench.reply(0, FLUSH);
    bench.sent(0);
    ask(&mut bench);
    let sent = bench.sent(0);
    assert_eq!(sent.last().unwrap()[0], "SET", "a plain SET, which touches no counter: {sent:?}");
    bench.reply(0, &format!("{}+OK\r\n", "_\r\n".repeat(sent.len() - 1)));
    votes(&mut bench, [(1, 6)]);
    assert!(bench.completion().is_none());
    votes(&mut bench, [(2, 6)]);
    assert_eq!(bench.won().fence(), Some(6));
}

#[test]
fn node_whose_clock_is_far_from_the_median_counts_no_fence() {
    for (skew, counts) in [(14, true), (16, false), (-14, true), (-16, false), (600, false)] {
        let mut bench = Bench::quiet(3);
        // The node has the wrong clock from the handshake on, so the client sees no jump.
        bench.lose_and_back_off(0);
        bench.skew_micros[0] = skew * 1_000_000;
        bench.connect(0);
        bench.pass(millis(62_000));
        ask(&mut bench);
        let sent = bench.sent(0);
        let fenced = sent.iter().any(|command| runs(command, ACQUIRE));
        assert_eq!(fenced, counts, "{skew} s: {sent:?}");
        if counts {
            continue;
        }
        assert_eq!(sent.last().unwrap()[0], "SET");
        bench.reply(0, "+OK\r\n");
        votes(&mut bench, [(1, 6)]);
        script(&mut bench, 2);
        bench.lose(2);
        let error = bench.refused();
        assert!(error.to_string().contains("has a clock too far from the others'"), "{error}");
    }
}

#[test]
fn node_that_may_evict_counts_no_fence() {
    let evicting = format!("{INFO_OLD}maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n");
    let mut bench = Bench::of(3, &evicting, "*2\r\n_\r\n_\r\n", |s| s.allow_eviction = true);
    ask(&mut bench);
    for node in 0..2 {
        assert_eq!(bench.names(node), ["SET"]);
        bench.reply(node, "+OK\r\n");
    }
    let error = bench.refused();
    assert!(matches!(error, Error::Config(ConfigError::Nodes(_))), "{error}");
    assert!(error.to_string().contains("may evict keys"), "{error}");
    // A plain lock can be granted by these nodes.
    bench.answer(0..2, ":1\r\n");
    bench.sent(2);
    bench.reply(2, "_\r\n");
    assert_eq!(bench.hold(&[0, 1]).fence(), None);
}

#[test]
fn fence_is_refused_without_the_restart_guard_before_a_byte_is_sent() {
    let mut bench = Bench::with(3, |settings| settings.restart_guard = RestartGuard::Off);
    let asked = bench.core.acquire(b"k", LockOptions::once(TTL).fenced(), 1, bench.now);
    let error = asked.unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::Fence { .. })), "{error}");
    assert!(error.to_string().starts_with("fencing number: the restart guard is off"), "{error}");
    assert!((0..3).all(|node| bench.sent(node).is_empty()));
    bench.assert_idle();
}

#[test]
fn extend_of_a_fenced_lock_raises_the_counters_and_keeps_the_number() {
    let (mut bench, lock) = held(3, &[7, 7]);
    votes(&mut bench, [(2, 3)]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    for node in 0..3 {
        let command = script(&mut bench, node);
        assert!(runs(&command, EXTEND_SET), "{command:?}");
        assert_eq!(command[3..5], ["k", COUNTER]);
        assert_eq!(command[6..], ["10000", "600000", "1000", FLOOR, "7"]);
        bench.reply(node, ":1\r\n");
    }
    bench.extended();
    assert_eq!(lock.fence(), Some(7));
    // Node 0 forgot the script, so the client sends its source, with the same number.
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    assert_eq!(script(&mut bench, 0)[0], "EVALSHA");
    bench.reply(0, "-NOSCRIPT No matching script.\r\n");
    let command = script(&mut bench, 0);
    assert_eq!((command[0].as_str(), command[10].as_str()), ("EVAL", "7"));
}

#[test]
fn heal_of_a_fenced_lock_raises_the_counter() {
    let (mut bench, lock) = held(3, &[7, 7]);
    votes(&mut bench, [(2, 7)]);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    for (node, reply) in [(0, ":-2\r\n"), (1, ":1\r\n"), (2, ":1\r\n")] {
        script(&mut bench, node);
        bench.reply(node, reply);
    }
    let command = script(&mut bench, 0);
    assert_eq!(command[..2], ["EVAL", ACQUIRE.source]);
    assert_eq!(command[3..5], ["k", COUNTER]);
    assert_eq!(
        command[7..],
        ["600000", "1000", FLOOR, "7"],
        "the counter is raised, and not counted on"
    );
    bench.reply(0, ":7\r\n");
    assert_eq!(bench.core.stats().healed, 1);
}

/// A node that does not count for fences may create no counter. The counter would start from a
/// wrong clock, or while locks that the node forgot are still live.
#[test]
fn extend_and_heal_touch_no_counter_of_a_node_that_does_not_count() {
    for reply in [":1\r\n", ":0\r\n", "-NOSCRIPT No matching script.\r\n"] {
        let (mut bench, lock) = held(3, &[7, 7]);
        votes(&mut bench, [(2, 7)]);
        bench.reply(2, FLUSH);
        let marks = bench.sent(2).len();
        bench.reply(2, &"_\r\n".repeat(marks));
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        for node in 0..2 {
            assert!(runs(&script(&mut bench, node), EXTEND_SET));
        }
        assert!(runs(&script(&mut bench, 2), EXTEND), "the key alone is extended");
        bench.reply(2, reply);
        bench.reply(0, ":1\r\n");
        bench.reply(1, ":1\r\n");
        let sent = bench.sent(2);
        let names: Vec<&str> = sent.iter().map(|command| command[0].as_str()).collect();
        match reply {
            ":0\r\n" => assert_eq!(names, ["SET"], "the key alone is healed"),
            ":1\r\n" => assert!(names.is_empty(), "{sent:?}"),
            _ => assert!(names == ["EVAL"] && runs(&sent[0], EXTEND), "{sent:?}"),
        }
    }
}

#[test]
fn extend_that_a_flushed_node_has_no_script_for_is_repeated_without_the_counter() {
    let (mut bench, lock) = held(3, &[7, 7]);
    votes(&mut bench, [(2, 7)]);
    for replies in [[":1\r\n"; 3], [""; 3]] {
        bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
        for (node, reply) in replies.into_iter().enumerate() {
            assert!(runs(&script(&mut bench, node), EXTEND_SET));
            bench.reply(node, reply);
        }
    }
    bench.reply(2, &format!("{FLUSH}-NOSCRIPT No matching script.\r\n"));
    let sent = bench.sent(2);
    assert!(sent.iter().all(|command| !runs(command, EXTEND_SET)), "{sent:?}");
    assert_eq!(sent.last().unwrap()[..2], ["EVAL", EXTEND.source]);
}

#[test]
fn vote_that_no_counter_can_have_is_no_vote() {
    for bad in [":0\r\n", ":9007199254740993\r\n", "+OK\r\n", "*1\r\n:7\r\n"] {
        let mut bench = asked(3);
        script(&mut bench, 0);
        bench.reply(0, bad);
        assert!(!bench.node_state(0).is_connected(), "{bad:?}");
    }
    let mut bench = asked(3);
    let foreign = [
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        "-ERR the fencing counter is not a number\r\n",
    ];
    for (node, words) in foreign.into_iter().enumerate() {
        script(&mut bench, node);
        bench.reply(node, words);
    }
    let error = bench.refused();
    assert!(matches!(error, Error::NoQuorum(_)), "another program uses the key: {error}");
    // The script may have set the key before it failed, so the client releases it.
    assert_eq!(script(&mut bench, 0)[3], "k");
}

#[test]
fn queued_fenced_request_is_fenced_when_its_turn_comes() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    let asked = bench.core.acquire(b"k", LockOptions::new(TTL).wait(TTL).fenced(), 5, bench.now);
    asked.expect("it waits in the queue");
    bench.core.release_nowait(&lock, bench.now);
    for node in [0, 1] {
        let sent = bench.sent(node);
        assert!(runs(sent.last().unwrap(), ACQUIRE), "{sent:?}");
        bench.reply(node, ":1\r\n:4\r\n");
    }
    assert_eq!(bench.won().fence(), Some(4));
}

#[test]
fn plain_lock_has_no_fence_and_runs_no_fenced_script() {
    let (mut bench, lock) = Bench::new(3).with_lock(&[0, 1]);
    assert_eq!(lock.fence(), None);
    bench.core.extend(&lock, TTL, 2, bench.now).unwrap();
    let command = script(&mut bench, 0);
    assert!(!runs(&command, EXTEND_SET), "{command:?}");
}

#[test]
fn keys_of_any_bytes_have_a_counter_of_their_own() {
    let mut bench = Bench::with(3, |settings| settings.key_prefix = "app:".into());
    let key = b"a\0\r\nb";
    bench.core.acquire(key, LockOptions::once(TTL).fenced(), 1, bench.now).unwrap();
    let command = script(&mut bench, 0);
    assert_eq!(command[3..5], ["app:a\0\r\nb", "redlatch:fence:{app:a\0\r\nb}"]);
}
