//! Locks over several keys on real servers: what a holder, a contender and an operator see.

mod by_token;
mod contending;
mod crowd;
mod doors;
mod fenced;

use std::time::Duration;

use crate::ready;
use crate::support::{Fleet, SECOND, SOON, despite_stalls, eventually, millis, number};
use redlatch::testing::master::Trouble;
use redlatch::testing::tcp::{LocalMaster, Masters};
use redlatch::{Client, Config, ConfigError, Error, LockOptions, LockUpdateKind, LostReason};
use redlatch::{NodeError, NodeReply, ReleaseOutcome, RestartGuard};

const TTL: Duration = Duration::from_secs(10);

/// Without the restart guard, because these servers are seconds old and granted no lock before.
fn config(urls: impl IntoIterator<Item = String>) -> Config {
    let config = Config::new(urls).expect("good addresses").node_timeout(5 * SECOND);
    config.restart_guard(RestartGuard::Off)
}

fn client(fleet: &Fleet) -> Client {
    ready::client(config(fleet.urls()))
}

fn fleet_and_client(nodes: usize) -> (Fleet, Client) {
    let fleet = Fleet::start(nodes);
    let client = client(&fleet);
    (fleet, client)
}

/// Every key on every node, as text.
fn keys(fleet: &Fleet) -> Vec<(usize, String)> {
    let all = fleet.keys_everywhere().into_iter();
    let text = |(node, key): (usize, Vec<u8>)| (node, String::from_utf8_lossy(&key).into_owned());
    let mut all: Vec<(usize, String)> = all.map(text).collect();
    all.sort();
    all
}

#[test]
fn set_is_one_token_on_every_key_of_a_majority_and_its_release_leaves_none() {
    let (fleet, client) = fleet_and_client(5);
    let mut guard = client.try_lock(["b", "a", "c\0\r\n", "a"], TTL).unwrap();
    let names: Vec<&[u8]> = guard.keys().collect();
    assert_eq!(names, [&b"a"[..], b"b", b"c\0\r\n"]);
    eventually(SOON, "all five have all keys", || fleet.keys_everywhere().len() == 15);
    let token = guard.token().to_string().into_bytes();
    for node in fleet.iter() {
        assert!(["a", "b", "c\0\r\n"].iter().all(|key| node.get(key).as_ref() == Some(&token)));
    }
    guard.check().unwrap();
    guard.extend(2 * TTL).unwrap();
    assert!(guard.remaining() > TTL + TTL / 2, "{:?}", guard.remaining());
    for node in fleet.iter().take(3) {
        eventually(SOON, "every key lives longer", || {
            ["a", "b", "c\0\r\n"].iter().all(|key| node.pttl(key) > 19_000)
        });
    }
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();
    // Dropping a guard releases all keys, too.
    drop(client.try_lock(["a", "b"], TTL).unwrap());
    fleet.wait_empty();
}

#[test]
fn set_that_is_refused_writes_none_of_its_keys() {
    let fleet = Fleet::start(3);
    let (holder, other) = (client(&fleet), client(&fleet));
    let held = holder.try_lock("b", TTL).unwrap();
    eventually(SOON, "all three have it", || keys(&fleet).len() == 3);
    let error = other.try_lock(["a", "b", "c"], TTL).unwrap_err();
    println!("{error}");
    assert!(error.is_contended() && error.to_string().contains("for \"b\", one of 3 keys"));
    // Late answers arrive during this call, and the client sends releases.
    other.drive(millis(100)).unwrap();
    let all_but_b: Vec<_> = keys(&fleet).into_iter().filter(|(_, key)| key != "b").collect();
    assert!(all_but_b.is_empty(), "a part of a set: {all_but_b:?}");
    assert_eq!(held.release().unwrap(), ReleaseOutcome::Released);
    other.try_lock(["a", "b", "c"], TTL).unwrap().release().unwrap();
    fleet.wait_empty();
}

#[test]
fn set_is_handed_on_by_its_token() {
    let fleet = Fleet::start(3);
    let (giver, taker) = (client(&fleet), client(&fleet));
    let token = giver.try_lock(["a", "b"], TTL).unwrap().into_token().unwrap();
    let guard = taker.adopt(["b", "a"], token.clone(), TTL).unwrap();
    assert_ne!(guard.token(), token);
    assert_eq!(guard.keys().count(), 2);
    let error = giver.adopt(["a", "b"], token, TTL).unwrap_err();
    assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
    guard.check().unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();
}

#[test]
fn loss_of_a_set_is_reported_at_once_and_names_the_key() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.try_lock(["a", "b", "c"], TTL).unwrap();
    guard.auto_extend(60 * SECOND).unwrap();
    client.drive(millis(50)).unwrap();
    // If one node lost a key, the client heals it.
    fleet[0].command(&["DEL", "b"]);
    eventually(SOON, "the key is there again", || {
        client.drive(millis(5)).unwrap();
        fleet[0].get("b").is_some()
    });
    guard.check().unwrap();
    for node in fleet.iter().take(2) {
        node.command(&["DEL", "b"]);
    }
    let mut update = None;
    eventually(SOON, "the loss is reported", || {
        client.drive(millis(5)).unwrap();
        update = client.poll_lock_update();
        update.is_some()
    });
    let update = update.expect("it was reported");
    assert_eq!(update.key(), Some(&b"b"[..]));
    let LockUpdateKind::Lost(error) = update.kind else { panic!("{update:?}") };
    println!("{error}");
    assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
    assert!(guard.check().unwrap_err().to_string().contains("for \"b\", one of 3 keys"));
    // The client releases the keys that were not deleted, also on nodes that lost `b`.
    drop(guard);
    client.drive(millis(100)).unwrap();
    fleet.wait_empty();
}

#[test]
fn set_with_a_key_of_another_type_is_held_by_another_program() {
    let (fleet, client) = fleet_and_client(3);
    fleet.command(&["LPUSH", "b", "x"]);
    let error = client.try_lock(["a", "b"], TTL).unwrap_err();
    println!("{error}");
    assert!(error.is_contended() && error.to_string().contains("for \"b\", one of 2 keys"));
    // While the lock is held, one of its keys becomes a list and so belongs to another program. The
    // client releases the others.
    let guard = client.try_lock(["a", "c"], TTL).unwrap();
    eventually(SOON, "all three have it", || keys(&fleet).len() == 9);
    for node in fleet.iter() {
        node.command(&["DEL", "a"]);
        node.command(&["LPUSH", "a", "x"]);
    }
    let released = guard.release().unwrap();
    assert_eq!(released, ReleaseOutcome::TakenByOther);
    eventually(SOON, "only the lists stay", || keys(&fleet).iter().all(|(_, key)| key != "c"));
    assert_eq!(keys(&fleet).len(), 6);
}

#[test]
fn set_on_a_node_without_memory_leaves_nothing_there() {
    let (fleet, client) = fleet_and_client(3);
    fleet[0].command(&["CONFIG", "SET", "maxmemory", "1"]);
    let guard = client.try_lock(["a", "b"], TTL).unwrap();
    assert!(keys(&fleet).iter().all(|(node, _)| *node != 0), "{:?}", keys(&fleet));
    drop(guard);
    fleet[1].command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = client.try_lock(["a", "b"], TTL).unwrap_err();
    println!("{error}");
    let report = error.report().unwrap();
    assert_eq!(report.nodes[0].reply, NodeReply::Failed(NodeError::OutOfMemory));
    assert!(error.to_string().contains("needed 2 of 3 for \"a\" and 1 more key: "), "{error}");
    client.drive(millis(100)).unwrap();
    fleet.wait_empty();
    // The memory limit is what the server uses at present, so it is reached in the middle of the
    // script. The script goes on.
    let used = fleet[2].info("used_memory");
    fleet[2].command(&["CONFIG", "SET", "maxmemory", &used]);
    let before = fleet[2].info("used_memory");
    println!("memory limit {used}, in use {before}");
    for node in fleet.iter().take(2) {
        node.command(&["CONFIG", "SET", "maxmemory", "0"]);
    }
    let long = |number: u32| format!("{number:0>900}");
    let guard = client.try_lock((0..64).map(long).collect::<Vec<_>>(), TTL).unwrap();
    client.drive(millis(100)).unwrap();
    let there = keys(&fleet).iter().filter(|(node, _)| *node == 2).count();
    assert!(there == 0 || there == 64, "{there} of 64 keys");
    drop(guard);
    client.drive(millis(100)).unwrap();
    fleet.wait_empty();
}

/// Real servers do not run out of memory in the middle of a script; these simulated masters do.
#[test]
fn part_of_a_set_that_a_node_wrote_before_it_ran_out_of_memory_is_released() {
    for fenced in [false, true] {
        let masters = Masters::start(3).expect("three masters");
        let mut config = config(masters.urls());
        let mut options = LockOptions::once(TTL);
        if fenced {
            masters.iter().for_each(|master| master.set_uptime(24 * 60 * 60));
            config = config.restart_guard(RestartGuard::On);
            options = options.fenced();
        }
        let client = ready::client(config);
        let locks = |master: &LocalMaster| {
            let is_lock = |key: &Vec<u8>| ["a", "b", "c"].iter().any(|it| it.as_bytes() == *key);
            master.keys().iter().filter(|key| is_lock(key)).count()
        };
        for master in masters.iter().take(2) {
            master.suffer(Trouble::OutOfMemoryInside { after: 1 });
        }
        let error = client.try_lock(["a", "b", "c"], options).unwrap_err();
        println!("{error}");
        assert!(matches!(error, Error::NoQuorum(_)), "{error}");
        let report = error.report().unwrap();
        assert_eq!(report.nodes[0].reply, NodeReply::Failed(NodeError::OutOfMemory));
        let text = error.to_string();
        assert!(text.contains("needed 2 of 3 for \"a\" and 2 more keys: "), "{text}");
        assert!(text.contains("out of memory"), "{text}");
        eventually(SOON, "the part is released", || {
            client.drive(millis(1)).expect("the poller works");
            masters.iter().all(|master| locks(master) == 0)
        });
        masters.iter().for_each(LocalMaster::serve);
        let guard = client.try_lock(["a", "b", "c"], options).unwrap();
        assert_eq!(guard.fences().count(), if fenced { 3 } else { 0 });
    }
}

#[test]
fn set_that_is_not_allowed_is_refused_before_a_byte_is_sent() {
    let (fleet, client) = fleet_and_client(1);
    let commands = fleet[0].info("total_commands_processed");
    let none: [&str; 0] = [];
    let error = client.lock(none, TTL).unwrap_err();
    assert_eq!(error.to_string(), "keys: the list is empty; name at least one");
    let names: Vec<String> = (0..65).map(|number| number.to_string()).collect();
    let error = client.lock(&names, TTL).unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::Keys { given: 65 })), "{error}");
    println!("{error}");
    // The restart guard of this client is off, so it refuses fenced locks.
    let fenced = LockOptions::new(TTL).fenced();
    let error = client.lock(["a", "b"], fenced).unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::Fence { .. })), "{error}");
    println!("{error}");
    let after: u64 = fleet[0].info("total_commands_processed").parse().unwrap();
    // INFO itself is a command, too.
    assert!(after <= commands.parse::<u64>().unwrap() + 2, "{commands}, {after}");
    let guard = client.lock(&names[..64], TTL).unwrap();
    assert_eq!(guard.keys().count(), 64);
    guard.release().unwrap();
    fleet.wait_empty();
}

#[test]
fn script_over_a_set_that_every_node_forgot_is_sent_again() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.try_lock(["a", "b"], TTL).unwrap();
    let forget = || {
        fleet.command(&["SCRIPT", "FLUSH"]);
    };
    guard.extend(TTL).unwrap();
    forget();
    guard.extend(TTL).unwrap();
    forget();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    forget();
    drop(client.try_lock(["a", "b"], TTL).unwrap());
    fleet.wait_empty();
}
