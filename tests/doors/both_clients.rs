//! Calls that the blocking and the shared client both have: those of an operator (inspect,
//! force-release, vouch), and the one that runs a closure while the lock is held. The masters are
//! inside this process.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redlatch::testing::tcp::{LocalMaster, Masters};
use redlatch::{
    Client, Config, Error, LostReason, NodeReply, NodeState, Outcome, Report, SharedClient,
};

use super::*;
use crate::engine_loop::Loop;

/// A client whose nodes are masters that were started a moment ago.
fn config(masters: &Masters) -> Config {
    Config::new(masters.urls()).expect("good addresses").node_timeout(10 * SECOND)
}

fn old_masters() -> Masters {
    let masters = Masters::start(3).expect("there are ports");
    masters.iter().for_each(|master| master.set_uptime(86_400));
    masters
}

fn replies(report: &Report) -> Vec<NodeReply> {
    report.nodes.iter().map(|node| node.reply).collect()
}

/// Drives `client` until `has` is true of each node: two nodes decide, the third may be later.
fn drive_until_each(
    client: &Client,
    masters: &Masters,
    what: &str,
    has: impl Fn(&LocalMaster) -> bool,
) {
    eventually(SOON, what, || {
        client.drive(millis(1)).expect("the poller works");
        masters.iter().all(&has)
    });
}

#[test]
fn force_release_of_what_was_seen_leaves_what_changed_through_both_clients() {
    let masters = old_masters();
    let blocking = ready::client(config(&masters));
    let shared = ready::shared(config(&masters));
    for round in 0..2 {
        let holder = ready::client(config(&masters));
        let guard = holder.lock("a", TTL).expect("it is free");
        drive_until_each(&holder, &masters, "each has the key", |master| master.get("a").is_some());
        let seen = match round {
            0 => blocking.inspect("a"),
            _ => shared.inspect("a").wait(),
        };
        let seen = seen.expect("the nodes answer");
        // The holder releases, and takes another lock of the key: nobody has seen that one.
        guard.release().expect("it is held");
        drive_until_each(&holder, &masters, "none has the key", |master| master.get("a").is_none());
        std::mem::forget(holder.lock("a", TTL).expect("it is free"));
        drive_until_each(&holder, &masters, "each has the key", |master| master.get("a").is_some());
        let ask = |seen: &redlatch::Inspection| match round {
            0 => blocking.dangerously_force_release_seen(seen),
            _ => shared.dangerously_force_release_seen(seen).wait(),
        };
        let report = ask(&seen).expect("the nodes answer");
        assert_eq!(replies(&report), [NodeReply::Held; 3], "{report}");
        assert!(masters.iter().all(|master| master.get("a").is_some()));
        let seen = blocking.inspect("a").expect("the nodes answer");
        let report = ask(&seen).expect("the nodes answer");
        assert_eq!(replies(&report), [NodeReply::Granted; 3], "{report}");
        assert!(masters.iter().all(|master| master.get("a").is_none()));
    }
    // The engine's force-release does the same.
    let mut it = Loop::ready(config(&masters));
    let seen = blocking.inspect("a").expect("the nodes answer");
    it.engine.dangerously_force_release_seen(&seen, 7).expect("there is room");
    let Ok(Outcome::ForceReleased(report)) = it.completion().result else { panic!("no report") };
    assert_eq!(replies(&report), [NodeReply::Absent; 3], "{report}");
}

#[test]
fn vouch_ends_the_quarantine_through_both_clients() {
    for door in ["blocking", "shared"] {
        let masters = Masters::start(3).expect("there are ports");
        let quarantined = |states: Vec<NodeState>| {
            states.iter().all(|state| matches!(state, NodeState::Quarantined(_)))
        };
        let report = if door == "blocking" {
            let client = Client::connect(config(&masters)).expect("a good configuration");
            eventually(SOON, "all nodes are connected", || {
                client.drive(millis(1)).expect("the poller works");
                quarantined(client.nodes())
            });
            assert!(matches!(client.try_lock("a", TTL), Err(Error::NoQuorum(_))));
            let report = client.vouch().expect("the nodes take it");
            drop(client.try_lock("a", TTL).expect("their grants count"));
            report
        } else {
            let client =
                SharedClient::connect_blocking(config(&masters)).expect("a good configuration");
            eventually(SOON, "all nodes are connected", || quarantined(client.nodes()));
            assert!(matches!(client.try_lock("a", TTL).wait(), Err(Error::NoQuorum(_))));
            let report = client.vouch().wait().expect("the nodes take it");
            drop(client.try_lock("a", TTL).wait().expect("their grants count"));
            report
        };
        assert_eq!(replies(&report), [NodeReply::Granted; 3], "{door}: {report}");
    }
}

#[test]
fn with_lock_of_the_blocking_client_renews_inside_its_calls() {
    let masters = old_masters();
    let client = ready::client(config(&masters));
    let ttl = 4 * SECOND;
    let becomes_free =
        || drive_until_each(&client, &masters, "none has a key", |master| master.keys().is_empty());
    let held = client.with_lock(["a", "b"], ttl, |guard| {
        assert_eq!(guard.keys().count(), 2);
        let first = guard.deadline();
        eventually(3 * ttl, "it is held beyond its first ttl", || {
            guard.check().expect("it is renewed");
            first.is_some_and(|first| redlatch::clock::now() > first)
        });
        Ok::<_, Error>(7)
    });
    assert_eq!(held, Ok(7));
    becomes_free();
    let failed = client.with_lock("a", ttl, |_| Err::<(), Box<dyn std::error::Error>>("no".into()));
    assert_eq!(failed.unwrap_err().to_string(), "no", "its own error, of its own type");
    becomes_free();
    let ran = Cell::new(false);
    let lost = client.with_lock("a", ttl, |guard| {
        ran.set(true);
        client.dangerously_force_release("a")?;
        eventually(3 * ttl, "the loss is noticed", || guard.check().is_err());
        Ok::<_, Error>(())
    });
    assert!(matches!(lost, Err(Error::Lost { reason: LostReason::Gone, .. })), "{lost:?}");
    assert!(ran.get());
    let panics = || client.with_lock("a", TTL, |_| -> Result<(), Error> { panic!("of the user") });
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    becomes_free();
    let none: Result<(), Error> = client.with_lock([""; 0], TTL, |_| panic!("there is no lock"));
    assert!(matches!(none, Err(Error::Config(_))));
}
