//! The key prefix: every key has it on the nodes, and the caller never sees it.

use super::*;
use redlatch::{ConfigError, KeySummary, LostReason, ReleaseOutcome};

fn prefixed(fleet: &Fleet) -> Client {
    ready::client(config(fleet).key_prefix("app:"))
}

fn keys(fleet: &Fleet) -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = fleet.keys_everywhere().into_iter().map(|(_, key)| key).collect();
    keys.dedup();
    keys
}

#[test]
fn prefix_is_before_the_key_on_the_nodes_and_nowhere_else() {
    let fleet = Fleet::start(3);
    let (ours, plain) = (prefixed(&fleet), client(&fleet));
    let mut guard = ours.lock("a", TTL).unwrap();
    eventually(SOON, "all have it", || fleet.keys_everywhere().len() == 3);
    assert_eq!(keys(&fleet), [b"app:a"]);
    assert_eq!(guard.key(), b"a");
    guard.extend(2 * TTL).unwrap();
    // Another client with the prefix contends for the same key; one without it names the whole key.
    let other = prefixed(&fleet);
    let error = other.try_lock("a", TTL).unwrap_err();
    assert!(error.is_contended() && error.to_string().contains("for \"a\":"), "{error}");
    assert!(plain.try_lock("app:a", TTL).unwrap_err().is_contended());
    plain.try_lock("a", TTL).unwrap().release().unwrap();
    let seen = other.inspect("a").unwrap();
    assert_eq!(&*seen.key, b"a");
    assert!(matches!(seen.summary(), KeySummary::Held { nodes: 3, .. }), "{seen}");
    // The lock is handed on by its token, and released by its token.
    let token = guard.into_token().unwrap();
    other.extend_token("a", token.clone(), TTL).unwrap();
    let guard = other.adopt("a", token, TTL).unwrap();
    assert_eq!(ours.release_token("a", guard.token()).unwrap(), ReleaseOutcome::Released);
    ours.drive_until(SOON, "nothing is left", || keys(&fleet).is_empty());
    let error = guard.release();
    assert_eq!(error.unwrap(), ReleaseOutcome::AlreadyExpired);
    plain.lock("app:a", TTL).map(std::mem::forget).unwrap();
    assert_eq!(ours.dangerously_force_release("a").unwrap(), ReleaseOutcome::Released);
    ours.drive_until(SOON, "nothing is left", || keys(&fleet).is_empty());
}

#[test]
fn prefixed_key_is_reported_when_it_is_released_and_when_it_is_deleted() {
    let fleet = Fleet::start(3);
    let (ours, other) = (prefixed(&fleet), prefixed(&fleet));
    // Waiters poll only once an hour, so what wakes them in time is a node's notification.
    let hour = (3600 * SECOND, 3600 * SECOND);
    let patient = config(&fleet).key_prefix("app:").retry(hour.0, hour.1);
    let waiter = ready::shared(patient);
    let guard = ours.lock("a", 30 * SECOND).unwrap();
    let waiting = std::thread::spawn(move || {
        waiter.lock("a", LockOptions::new(TTL).wait_forever()).wait().map(drop)
    });
    std::thread::sleep(millis(200));
    guard.release().unwrap();
    let start = Instant::now();
    ours.drive_until(SOON, "the waiter was woken", || waiting.is_finished());
    println!("woken after {:?}", start.elapsed());
    waiting.join().unwrap().unwrap();
    // A push notifies the client of a renewed lock that the key is gone.
    let guard = ours.lock("b", kept(30 * SECOND)).unwrap();
    assert_eq!(other.dangerously_force_release("b").unwrap(), ReleaseOutcome::Released);
    let told = ours.until_lost(&guard);
    assert_eq!(told.reason(), LostReason::Gone);
    assert!(told.error.to_string().contains("for \"b\":"), "{}", told.error);
}

#[test]
fn marker_and_length_are_checked_with_the_prefix() {
    let fleet = Fleet::start(1);
    let guarded = || config(&fleet).restart_guard(RestartGuard::On);
    let marked = guarded().node_marker("app:node").key_prefix("app:");
    let error = Client::connect(marked).unwrap().try_lock("node", TTL).unwrap_err();
    let named = ConfigError::KeyOfMarker { key: b"node"[..].into() };
    assert_eq!(error, Error::Config(named));
    let client = Client::connect(guarded().key_prefix("red")).unwrap();
    let error = client.try_lock("latch:node", TTL).unwrap_err();
    let sent = b"redlatch:node"[..].into();
    assert_eq!(error, Error::Config(ConfigError::ReservedKey { sent }));
    let error = Client::connect(guarded().key_prefix("redlatch:")).unwrap_err();
    let sent = b"redlatch:"[..].into();
    assert_eq!(error, Error::Config(ConfigError::ReservedKey { sent }));
    let client = prefixed(&fleet);
    let error = client.try_lock("k".repeat(64 * 1024 - 3), TTL).unwrap_err();
    let (given, most) = (64 * 1024 + 1, 64 * 1024);
    assert_eq!(error, Error::Config(ConfigError::KeyTooLong { given, most }));
    assert!(client.inspect("k".repeat(64 * 1024)).is_err());
}
