//! Answers and calls that come too late, and requests that are refused before they are sent.

use super::monitor_lines::{What, heard};
use super::*;
use crate::support::{CountingListener, Monitor};
use redlatch::{Busy, ConfigError, Error, Outcome, ReleaseOutcome};

#[test]
fn calls_succeed_although_nodes_forgot_their_scripts() {
    let (fleet, client) = fleet_and_client(5);
    for _ in 0..3 {
        let mut guard = client.try_lock("a", TTL).unwrap();
        fleet.command(&["SCRIPT", "FLUSH"]);
        guard.extend(TTL).unwrap();
        fleet.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
        fleet.wait_empty();
    }
    // No call reads the answer to this release, so it has to work on a node that lacks its script.
    let guard = client.try_lock("a", TTL).unwrap();
    fleet.command(&["SCRIPT", "FLUSH"]);
    drop(guard);
    fleet.wait_empty();
}

#[test]
fn a_release_after_the_expiry_leaves_the_next_holder_alone() {
    let fleet = Fleet::start(5);
    let (first, second) = (client(&fleet), client(&fleet));
    // Once the client makes a call before the release, which ends the record at its deadline; once
    // not.
    for driven in [false, true] {
        // `lock` waits and tries again: if the machine stalls, so short a lock is over before it is
        // granted.
        let guard = first.lock("a", millis(50)).unwrap();
        if driven {
            first.drive(millis(100)).unwrap();
        }
        let other = second.lock("a", TTL).unwrap();
        // A majority of the nodes was free; on the others the first lock may end a moment later.
        eventually(SOON, "it is over everywhere", || {
            fleet.values("a").iter().all(|held| held != guard.token().digits())
        });
        assert!(guard.check().is_err());
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::TakenByOther, "driven: {driven}");
        let token = other.token().to_string().into_bytes();
        let held = fleet.values("a");
        assert!(held.len() >= 3 && held.iter().all(|held| *held == token));
        assert_eq!(other.release().unwrap(), ReleaseOutcome::Released);
    }
    let guard = first.lock("a", millis(20)).unwrap();
    eventually(SOON, "it is over", || guard.check().is_err());
    wait_until_all_keys_end(&fleet);
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::AlreadyExpired);
}

#[test]
fn attempt_that_a_majority_answers_after_the_ttl_has_expired() {
    let fleet = Fleet::start(3);
    let timeout = 60 * SECOND;
    let client = ready::client(config(&fleet).node_timeout(timeout));
    fleet.on([0, 1], Node::stop);
    let start = Instant::now();
    let error = client.try_lock("a", millis(40)).unwrap_err();
    assert!(matches!(error, Error::Expired(_)), "{error}");
    assert!(start.elapsed() < timeout / 2, "it waited for the node timeout");
    fleet.on([0, 1], Node::cont);
    wait_until_all_keys_end(&fleet);
}

#[test]
fn a_grant_that_is_fetched_after_its_deadline_is_no_lock() {
    let (fleet, mut embedded) = fleet_and_loop(3);
    let monitors: Vec<_> = fleet.iter().map(|node| node.monitor()).collect();
    // The nodes reply at once, but the caller reads the replies too late. By then the keys may have
    // expired, so the test checks the commands that the nodes executed, not their keys.
    embedded.engine.acquire("a", LockOptions::once(millis(100)), 1).unwrap();
    embedded.engine.prepare();
    let has_set = |monitor: &Monitor| heard(monitor).iter().any(|heard| heard.what == What::Set);
    eventually(SOON, "granted", || monitors.iter().all(has_set));
    std::thread::sleep(millis(98));
    let done = embedded.completion();
    assert!(matches!(done.result, Err(Error::Expired(_))), "{:?}", done.result);
    // The core decides in time, but the caller fetches the completion too late.
    embedded.engine.acquire("b", LockOptions::once(millis(100)), 2).unwrap();
    eventually(SOON, "decided", || {
        embedded.turn();
        embedded.engine.coordinator().has_completions()
    });
    std::thread::sleep(millis(98));
    let done = embedded.engine.poll_completion().expect("it is decided");
    assert!(matches!(done.result, Err(Error::Expired(_))), "{:?}", done.result);
    embedded.turn();
    wait_until_all_keys_end(&fleet);
}

#[test]
fn caller_that_did_not_run_finds_no_healthy_node_silent() {
    let fleet = Fleet::start(5);
    let timeout = millis(50);
    let mut embedded = Loop::ready(config(&fleet).node_timeout(timeout));
    for round in 0..5 {
        embedded.engine.acquire("a", LockOptions::once(TTL), round).unwrap();
        embedded.engine.prepare();
        // All nodes are healthy: they execute the SET, however busy the machine is.
        eventually(SOON, "all have it", || fleet.values("a").len() == 5);
        std::thread::sleep(3 * timeout);
        let done = embedded.completion();
        let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{:?}", done.result) };
        assert_eq!(node_states(&embedded.engine), [NodeState::Ready; 5]);
        embedded.engine.release(lock, round);
        embedded.engine.prepare();
        eventually(SOON, "all have released it", || fleet.values("a").is_empty());
        std::thread::sleep(3 * timeout);
        let done = embedded.completion();
        let released = Ok(Outcome::Released(ReleaseOutcome::Released));
        assert_eq!(done.result, released);
    }
    assert_eq!(node_states(&embedded.engine), [NodeState::Ready; 5]);
}

#[test]
fn bad_ttls_and_keys_are_refused_before_a_byte_is_sent() {
    let (fleet, client) = fleet_and_client(3);
    let monitors: Vec<_> = fleet.iter().map(|node| node.monitor()).collect();
    for ttl in [Duration::ZERO, millis(1), millis(2), 61 * SECOND, millis(u64::MAX), Duration::MAX]
    {
        let error = client.try_lock("a", ttl).unwrap_err();
        assert!(matches!(error, Error::Config(ConfigError::Ttl(_))), "{ttl:?}: {error}");
    }
    let error = client.try_lock(vec![b'k'; 65 * 1024], TTL).unwrap_err();
    assert!(matches!(error, Error::Config(ConfigError::KeyTooLong { .. })), "{error}");
    let mut guard = client.try_lock("held", TTL).unwrap();
    assert!(matches!(guard.extend(millis(1)), Err(Error::Config(_))));
    guard.check().unwrap();
    drop(guard);
    for monitor in &monitors {
        let lines = monitor.lines();
        assert!(!lines.iter().any(|line| line.contains("\"a\"")), "{lines:?}");
        assert!(!lines.iter().any(|line| line.contains("PEXPIRE")), "{lines:?}");
    }
}

#[test]
fn a_refused_ttl_sends_no_byte_at_all() {
    let listener = CountingListener::start();
    let urls = [listener.url()];
    let client = Client::connect(plain(urls)).unwrap();
    // The listener does not answer the handshake, so the client may connect again before the test
    // reads the counts once more.
    let handshakes = |listener: &CountingListener| (listener.connections(), listener.bytes());
    let before = handshakes(&listener);
    for ttl in [Duration::ZERO, millis(1), Duration::MAX] {
        assert!(client.try_lock("a", ttl).is_err());
    }
    assert_eq!(handshakes(&listener), before);
    assert!(before.1 > 0, "the handshake itself is counted");
}

#[test]
fn busy_is_returned_before_anything_is_sent() {
    let fleet = Fleet::start(1);
    let limits = redlatch::Limits::default().records(2);
    let client = ready::client(config(&fleet).limits(limits));
    let first = client.try_lock("a", TTL).unwrap();
    let second = client.try_lock("b", TTL).unwrap();
    let error = client.try_lock("c", TTL).unwrap_err();
    assert_eq!(error, Error::Busy(Busy::Records));
    assert_eq!(fleet[0].get("c"), None);
    assert_eq!(first.release().unwrap(), ReleaseOutcome::Released);
    assert!(client.try_lock("c", TTL).is_ok());
    assert_eq!(second.release().unwrap(), ReleaseOutcome::Released);
}
