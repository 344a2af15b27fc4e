//! Fenced acquires by a transaction in place of the script: the client sends it where it counted
//! the key before, so that the counter is probably there.

use std::time::Duration;

use redlatch::proto::counter_key;
use redlatch::testing::master::Trouble;
use redlatch::{Error, NodeError, NodeReply};

use crate::fencing_on_masters::World;

const KEY: &[u8] = b"k";
const ALL: [usize; 3] = [0, 1, 2];

/// Two clients, of which the first has held the lock with a counter on each node, and its number.
fn clients_with_counters() -> (World, [usize; 2], u64) {
    let mut world = World::new(&[0, 0, 0]);
    let clients = world.clients_with_markers();
    let lock = world.acquire(clients[0], &ALL);
    world.release(clients[0], &lock, &ALL);
    (world, clients, lock.fence().expect("it is fenced"))
}

/// What is in flight from a client to a node.
fn sent(world: &mut World, client: usize, node: usize) -> String {
    world.net.write(client);
    String::from_utf8_lossy(&world.net.unexecuted(client, node)).into_owned()
}

fn is_transaction(commands: &str) -> bool {
    commands.contains("\r\nMULTI\r\n") && commands.contains("\r\nEXEC\r\n")
}

fn counts_by_script(commands: &str) -> bool {
    commands.contains("\r\nEVAL") && commands.contains("redlatch:fence:{k}")
}

fn has_key(world: &World, node: usize) -> bool {
    world.net.master(node).get(world.net.now(), 0, KEY).is_some()
}

fn give_trouble(world: &mut World, node: usize, trouble: Trouble) {
    world.net.master_mut(node).suffer(trouble);
}

fn answers(commands: &[&str], line: &str) -> Trouble {
    let commands = commands.iter().map(|&name| name.to_owned()).collect();
    Trouble::Answers { commands, reply: line.as_bytes().to_vec() }
}

#[test]
fn key_that_was_counted_before_is_locked_by_a_transaction() {
    let (mut world, [a, b], number) = clients_with_counters();
    for later in 1..=3 {
        world.net.advance(Duration::from_secs(100));
        world.ask(a);
        for node in ALL {
            let commands = sent(&mut world, a, node);
            assert!(is_transaction(&commands) && !counts_by_script(&commands), "{commands}");
        }
        let lock = world.win(a, &ALL);
        assert_eq!(lock.fence(), Some(number + later));
        for node in ALL {
            assert_eq!(world.counter(node), number + later);
            let left = world.net.command(node, &[b"PTTL", &counter_key(KEY)]);
            assert_eq!(left, b":600000\r\n", "it lives on from the last time that it counted");
        }
        world.release(a, &lock, &ALL);
    }
    world.ask(b);
    assert!(counts_by_script(&sent(&mut world, b, 0)), "it has not counted this key");
    assert_eq!(world.win(b, &ALL).fence(), Some(number + 4));
}

/// The replies arrive byte by byte.
#[test]
fn replies_to_a_transaction_may_come_in_pieces() {
    let (mut world, [a, _], number) = clients_with_counters();
    world.ask(a);
    for node in ALL {
        world.net.deliver_to_node(a, node);
        while !world.net.unread(a, node).is_empty() {
            world.net.deliver_some_to_client(a, node, 1);
        }
    }
    assert_eq!(world.won(a).fence(), Some(number + 1));
}

#[test]
fn counter_that_is_not_there_gives_no_vote_and_is_started_by_the_script() {
    let (mut world, [a, b], number) = clients_with_counters();
    let lock = world.acquire(b, &ALL);
    world.release(b, &lock, &ALL);
    // A majority of the counters is gone, as when they expire.
    world.net.advance(Duration::from_secs(590));
    ALL[..2].iter().for_each(|&node| world.operate(node, &[b"DEL", &counter_key(KEY)]));
    world.ask(a);
    for node in &ALL[..2] {
        assert!(is_transaction(&sent(&mut world, a, *node)));
        world.exchange(a, *node);
        assert_eq!(world.counter(*node), 1, "INCR started it from 0");
        assert!(world.result(a).is_none());
        assert!(counts_by_script(&sent(&mut world, a, *node)));
        world.exchange(a, *node);
    }
    let lock = world.won(a);
    assert!(lock.fence() > Some(number + 1), "{:?} after {}", lock.fence(), number + 1);
    world.release(a, &lock, &ALL);
}

/// The counter that the transaction started is no counter for a client that may not read markers,
/// either.
#[test]
fn counter_that_a_transaction_started_counts_as_absent_for_every_client() {
    let (mut world, [a, _], number) = clients_with_counters();
    ALL.iter().for_each(|&node| world.operate(node, &[b"DEL", &counter_key(KEY)]));
    world.ask(a);
    for node in ALL {
        world.net.deliver_to_node(a, node);
        assert_eq!(world.counter(node), 1);
        world.operate(node, &[b"DEL", KEY]);
    }
    let without_markers = world.client();
    world.net.advance(Duration::from_secs(61));
    assert!(world.acquire(without_markers, &ALL).fence() > Some(number));
}

#[test]
fn denied_transaction_is_no_vote_and_the_next_attempt_is_a_script() {
    let (mut world, [a, b], number) = clients_with_counters();
    let lock = world.acquire(b, &ALL);
    world.ask(a);
    assert!(is_transaction(&sent(&mut world, a, 0)));
    ALL.iter().for_each(|&node| world.exchange(a, node));
    assert!(matches!(world.result(a), Some(Err(Error::Contended(_)))));
    assert_eq!(world.counter(0), number + 2, "it counted nevertheless");
    world.release(b, &lock, &ALL);
    world.ask(a);
    assert!(counts_by_script(&sent(&mut world, a, 0)));
    assert_eq!(world.win(a, &ALL).fence(), Some(number + 3));
}

#[test]
fn node_that_refuses_a_transaction_is_asked_by_the_script_from_then_on() {
    for (commands, line) in [
        (&["multi"][..], "-NOPERM this user has no permissions to run the 'multi' command\r\n"),
        (&["multi", "exec"], "-ERR unknown command 'MULTI', with args beginning with: \r\n"),
        (&["incr"], "-NOPERM this user has no permissions to run the 'incr' command\r\n"),
        (&["exec"], "-NOPERM this user has no permissions to run the 'exec' command\r\n"),
    ] {
        let (mut world, [a, _], number) = clients_with_counters();
        ALL.iter().for_each(|&node| give_trouble(&mut world, node, answers(commands, line)));
        let mut before = number;
        for by_script in [false, true, true] {
            world.ask(a);
            assert_eq!(counts_by_script(&sent(&mut world, a, 0)), by_script, "{line}");
            let lock = world.win(a, &ALL);
            assert!(lock.fence() > Some(before), "{line}");
            before = lock.fence().unwrap();
            world.release(a, &lock, &ALL);
            assert!(ALL.iter().all(|&node| !has_key(&world, node)), "{line}");
        }
    }
}

#[test]
fn node_that_executes_no_transaction_for_want_of_memory_says_so() {
    let (mut world, [a, _], number) = clients_with_counters();
    ALL.iter().for_each(|&node| give_trouble(&mut world, node, Trouble::OutOfMemory));
    world.ask(a);
    (0..3).for_each(|_| ALL.iter().for_each(|&node| world.exchange(a, node)));
    let Some(Err(Error::NoQuorum(report))) = world.result(a) else { panic!("no node has memory") };
    let causes = report.nodes.iter().map(|node| node.reply);
    let refused = NodeReply::Failed(NodeError::OutOfMemory);
    assert_eq!(causes.filter(|&reply| reply == refused).count(), 2);
    assert_eq!(world.counter(0), number);
    assert!(ALL.iter().all(|&node| !has_key(&world, node)));
}

/// The connection is lost when a part of the transaction has arrived: the node executes nothing.
#[test]
fn transaction_that_arrives_in_part_does_nothing() {
    let (mut world, [a, _], number) = clients_with_counters();
    world.ask(a);
    let whole = sent(&mut world, a, 1).len();
    for node in ALL {
        world.net.deliver_some_to_node(a, node, whole - 1);
        world.net.cut(a, node);
        assert!(!has_key(&world, node));
        assert_eq!(world.counter(node), number);
    }
}

/// Node 1 has no counter, but its answer comes after the request was cancelled.
#[test]
fn transaction_without_a_vote_is_not_repeated_after_its_release() {
    let (mut world, [a, _], _) = clients_with_counters();
    world.operate(1, &[b"DEL", &counter_key(KEY)]);
    let now = world.net.now();
    let op = world.ask(a);
    world.net.deliver_to_node(a, 1);
    world.net.client_mut(a).cancel(op, now);
    world.net.deliver_to_node(a, 1);
    world.exchange(a, 1);
    assert_eq!(sent(&mut world, a, 1), "", "a repeat would leave a lock without an owner");
    assert!(!has_key(&world, 1));
}

/// The transaction starts a counter on the flushed node. This stays there, and counts as absent
/// after the quarantine.
#[test]
fn transaction_on_a_node_that_was_just_flushed_gives_no_vote() {
    let (mut world, [a, _], number) = clients_with_counters();
    world.ask(a);
    world.net.write(a);
    world.operate(1, &[b"FLUSHALL"]);
    world.exchange(a, 1);
    assert!(!counts_by_script(&sent(&mut world, a, 1)), "it would start a counter too early");
    world.exchange(a, 0);
    assert!(world.result(a).is_none(), "one vote is no majority");
    world.exchange(a, 2);
    let lock = world.won(a);
    assert_eq!(lock.fence(), Some(number + 1));
    world.release(a, &lock, &ALL);
    (0..3).for_each(|_| world.exchange(a, 1));
    assert_eq!(world.counter(1), 1, "it is there after the quarantine");
    world.net.advance(Duration::from_secs(62));
    let late = world.client_with_marker("redlatch:node");
    assert!(world.acquire(late, &[1, 2]).fence() > lock.fence());
}
