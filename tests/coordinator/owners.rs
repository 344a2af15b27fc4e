//! The owner that a single request names in its tokens, in place of the owner of its client.

use redlatch::proto::KeySet;
use redlatch::{ConfigError, LockOptions, LockToken};

use super::*;
use crate::bench::Command;
use crate::line::LONG;
use crate::line_world::World;

const CLIENT: &str = "host:4711";
const REQUEST: &str = "web-1@10.0.0.7:8080";

/// Nodes, and a client with an owner.
fn bench() -> Bench {
    Bench::with(3, |settings| {
        settings.probe_interval = TTL * 300;
        settings.owner = Some(CLIENT.into());
    })
}

/// Options for a lock whose tokens name the owner of the request.
fn owned(bench: &mut Bench) -> LockOptions {
    let id = bench.core.owner_id(REQUEST).expect("a token can name it");
    LockOptions::new(TTL).wait(TTL).owned_by(id)
}

/// The tokens with an owner in these commands, in their order. Without an owner a token looks like
/// the SHA1 of a script.
fn tokens(commands: &[Command]) -> Vec<LockToken> {
    let tokens = commands.iter().flatten().filter_map(|word| word.parse().ok());
    tokens.filter(|token: &LockToken| token.owner().is_some()).collect()
}

/// The owners in these tokens, in their order.
fn owners(tokens: &[LockToken]) -> Vec<&str> {
    tokens.iter().map(|token| token.owner().unwrap_or_default()).collect()
}

/// Answers everything that was sent to the nodes, and returns the tokens that were sent to node 0.
fn answer(bench: &mut Bench, reply: &str) -> Vec<LockToken> {
    let tokens = tokens(&bench.sent(0));
    bench.reply(0, reply);
    bench.answer(1..3, reply);
    tokens
}

#[test]
fn owner_of_a_request_is_in_its_token_and_other_requests_name_that_of_the_client() {
    let mut bench = bench();
    let options = owned(&mut bench);
    bench.ask(1, options);
    bench.core.acquire(b"b", TTL, 2, bench.now).unwrap();
    bench.core.acquire(b"c", options, 3, bench.now).unwrap();
    let sent = bench.sent(0);
    let digits = |command: &Command| command[2].split_once(':').expect("an owner").0.to_owned();
    for (command, owner) in sent.iter().zip([REQUEST, CLIENT, REQUEST]) {
        assert_eq!(command[0], "SET");
        assert_eq!(command[2], format!("{}:{owner}", digits(command)));
        assert_eq!(command[3..], ["NX", "PX", "10000"]);
    }
    assert_eq!(sent.len(), 3);
    assert_ne!(digits(&sent[0]), digits(&sent[2]), "they share the owner only");
    bench.reply(0, &"+OK\r\n".repeat(3));
    bench.answer([1], &"+OK\r\n".repeat(3));
    assert_eq!(bench.won().token().owner(), Some(REQUEST));
    assert_eq!(bench.won().token().owner(), Some(CLIENT));
}

#[test]
fn owner_of_a_request_is_in_the_token_of_its_next_attempt() {
    let mut bench = bench().without_lines();
    let options = owned(&mut bench);
    bench.ask(1, options);
    let first = answer(&mut bench, "_\r\n");
    bench.pass(millis(50));
    let second = answer(&mut bench, "+OK\r\n");
    assert_eq!([owners(&first), owners(&second)], [[REQUEST]; 2]);
    assert_ne!(first, second);
    assert_eq!(bench.won().token(), second[0]);
}

#[test]
fn owner_of_a_request_is_in_the_token_of_its_turn_in_the_queue_of_its_client() {
    let mut bench = bench();
    let options = owned(&mut bench);
    let lock = bench.hold(&[0, 1, 2]);
    bench.ask(2, options);
    bench.ask(3, LockOptions::new(TTL).wait(TTL));
    assert!(bench.sent(0).is_empty(), "they wait for their turn");
    let mut turn = |lock| {
        bench.core.release_nowait(&lock, bench.now);
        let tokens = answer(&mut bench, ":1\r\n+OK\r\n");
        assert_eq!(tokens[0], lock.token(), "the release");
        let next = bench.won();
        assert_eq!(tokens[1], next.token());
        next
    };
    let second = turn(lock);
    assert_eq!(second.token().owner(), Some(REQUEST));
    let third = turn(second);
    assert_eq!(third.token().owner(), Some(CLIENT));
}

#[test]
fn owner_of_a_request_is_in_the_token_of_a_set() {
    let mut bench = bench();
    let (options, keys) = (owned(&mut bench), KeySet::new(["k", "l"]).unwrap());
    let ask = |bench: &mut Bench| {
        bench.core.acquire(&keys, options, 5, bench.now).unwrap();
    };
    ask(&mut bench);
    assert_eq!(owners(&answer(&mut bench, ":1\r\n")), [REQUEST]);
    let lock = bench.won();
    // After a long hold the next lock gets a token by which its release hands the keys over.
    bench.pass(millis(20));
    bench.core.release_nowait(&lock, bench.now);
    answer(&mut bench, ":1\r\n");
    ask(&mut bench);
    let sent = answer(&mut bench, ":1\r\n");
    assert_eq!(owners(&sent), [REQUEST]);
    assert!(sent[0].hands_over());
    let lock = bench.won();
    bench.core.release_nowait(&lock, bench.now);
    answer(&mut bench, ":1\r\n");
    // The set waits for the turn of one of its keys.
    bench.pass(millis(20));
    let lock = bench.hold(&[0, 1, 2]);
    ask(&mut bench);
    bench.core.release_nowait(&lock, bench.now);
    let sent = answer(&mut bench, ":1\r\n:1\r\n");
    assert_eq!(owners(&sent), [CLIENT, REQUEST], "a release, and the set");
}

#[test]
fn owner_of_a_request_stands_in_line_and_in_the_lock_that_is_handed_over() {
    let (mut world, [holder]) = World::with_clients(3);
    let waiter = world.client_with(|settings| settings.owner = Some(CLIENT.into()));
    let lock = world.acquire(holder, LONG);
    let id = world.call(waiter, |core, _| core.owner_id(REQUEST)).unwrap();
    world.ask_with(waiter, LockOptions::new(LONG).owned_by(id));
    // Refused, the client subscribes to its channel, and then joins.
    (0..2).for_each(|_| world.deliver(waiter, 0..3, waiter));
    let (suffix, join) = (format!(":{REQUEST}"), world.output(waiter, 0));
    assert!(join.contains("EVALSHA") && join.contains(&suffix), "{join}");
    world.settle();
    let members = world.line(0);
    assert!(members[0].ends_with(suffix.as_bytes()), "{}", members[0].escape_ascii());
    let lock = world.hand_on(holder, lock, waiter);
    assert_eq!(lock.token().owner(), Some(REQUEST));
    assert_eq!(world.value(0), lock.token().to_string());
    world.release_and_settle(waiter, lock);
    world.ask_with(waiter, LockOptions::new(LONG));
    world.settle();
    assert_eq!(world.won(waiter).token().owner(), Some(CLIENT));
    assert!(world.value(0).ends_with(CLIENT));
}

#[test]
fn owner_of_a_request_is_in_the_new_token_of_an_adopted_lock() {
    let mut bench = bench();
    let (options, given) = (owned(&mut bench), format!("{}:giver", "1".repeat(40)));
    for (options, owner) in [(options, REQUEST), (LockOptions::new(TTL), CLIENT)] {
        bench.core.adopt(b"k", given.parse().unwrap(), options, 5, bench.now).unwrap();
        assert_eq!(owners(&answer(&mut bench, ":1\r\n")), ["giver", owner]);
        let lock = bench.won();
        assert_eq!(lock.token().owner(), Some(owner));
        bench.core.release_nowait(&lock, bench.now);
        assert_eq!(owners(&answer(&mut bench, ":1\r\n")), [owner]);
    }
    bench.assert_idle();
}

#[test]
fn owner_of_a_request_is_refused_if_no_token_can_name_it() {
    let mut bench = bench();
    for owner in ["", "a b", &"x".repeat(101)] {
        let error = bench.core.owner_id(owner).unwrap_err();
        assert!(matches!(error, ConfigError::Owner { .. }), "{error}");
    }
    assert_eq!(bench.core.owner_id(REQUEST), bench.core.owner_id(REQUEST));
    assert_ne!(bench.core.owner_id(REQUEST), bench.core.owner_id("web-2"));
}
