//! What a shell script can do that has only a key and a token: extend the lock, and release it.

use super::monitor_lines::{What, heard};
use super::*;
use redlatch::{LockToken, LostReason, ReleaseOutcome};

#[test]
fn a_lock_is_prolonged_by_its_token_alone_and_not_by_another() {
    let fleet = Fleet::start(3);
    let (holder, script) = (client(&fleet), client(&fleet));
    let guard = holder.try_lock("a", 2 * SECOND).unwrap();
    holder.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    let token = LockToken::parse(&guard.token().to_string()).expect("it reads back");
    let before = clock::now();
    let deadline = script.extend_token("a", token.clone(), TTL).unwrap();
    assert!(deadline.saturating_since(before) > TTL / 2);
    assert!(deadline.saturating_since(clock::now()) < TTL, "the drift is taken off");
    for node in &fleet {
        eventually(SOON, "it is prolonged there", || node.pttl("a") > 5_000);
    }
    // An extend by token never shortens. It fails with a wrong token, for another key, or with a
    // bad ttl.
    let shorter = script.extend_token("a", token.clone(), SECOND).unwrap();
    assert!(shorter < deadline, "a majority agreed to no more than that");
    for (token, key) in [(wrong_token(), "a"), (token.clone(), "b")] {
        let error = script.extend_token(key, token, TTL).unwrap_err();
        println!("{error}");
        assert!(matches!(error, Error::Lost { reason: LostReason::Gone, .. }), "{error}");
    }
    for ttl in [Duration::ZERO, millis(2), Duration::MAX] {
        assert!(
            matches!(script.extend_token("a", token.clone(), ttl), Err(Error::Config(_))),
            "{ttl:?}"
        );
    }
    script.drive(millis(50)).unwrap();
    assert!(fleet.iter().all(|node| node.pttl("a") > 4_000), "it was shortened");
    assert_eq!(fleet.keys_everywhere().len(), 3, "a key was made");
    drop(script);
    for monitor in &monitors {
        let heard = heard(monitor);
        let whats: Vec<What> = heard.iter().map(|heard| heard.what).collect();
        assert!(whats.iter().all(|what| *what == What::Extend), "{heard:?}");
        assert_eq!(whats.len(), 4);
    }
    // The holder's own deadline is still the one that it asked for itself.
    assert!(guard.remaining() <= 2 * SECOND);
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();
}

#[test]
fn extend_token_without_a_quorum_is_an_error_and_releases_nothing() {
    let fleet = Fleet::start(3);
    let holder = client(&fleet);
    let script = ready::client(config(&fleet).node_timeout(millis(100)));
    let guard = holder.try_lock("a", TTL).unwrap();
    holder.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
    fleet.on([0, 1], Node::stop);
    let start = Instant::now();
    let error = script.extend_token("a", guard.token(), TTL).unwrap_err();
    println!("two of three stopped: after {:?}: {error}", start.elapsed());
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    fleet.on([0, 1], Node::cont);
    script.wait_ready(3);
    drop(script);
    holder.drive(millis(100)).unwrap();
    assert_eq!(fleet.values("a").len(), 3, "what it asked was released");
    guard.check().unwrap();
}

#[test]
fn a_lock_is_given_back_by_its_token_alone_and_not_by_another() {
    let fleet = Fleet::start(3);
    let (holder, script) = (client(&fleet), client(&fleet));
    let ttl = 30 * SECOND;
    for by in [&script, &holder] {
        let guard = holder.lock("a", kept(ttl)).unwrap();
        holder.drive_until(SOON, "all have it", || fleet.values("a").len() == 3);
        assert_eq!(by.release_token("a", wrong_token()).unwrap(), ReleaseOutcome::TakenByOther);
        by.drive(millis(50)).unwrap();
        assert_eq!(fleet.values("a").len(), 3, "another's token released it");
        guard.check().unwrap();
        let start = Instant::now();
        assert_eq!(by.release_token("a", guard.token()).unwrap(), ReleaseOutcome::Released);
        let told = holder.until_lost(&guard);
        println!("ttl {ttl:?}: given back by its token: told after {:?}", start.elapsed());
        assert!(start.elapsed() < ttl / 4, "told by its renewal");
        assert_eq!(told.reason(), LostReason::Gone);
        let again = by.release_token("a", guard.token()).unwrap();
        assert_eq!(again, ReleaseOutcome::AlreadyExpired);
        by.drive_until(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    }
}
