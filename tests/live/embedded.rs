//! The engine on a caller's poller: cancelled requests, a dropped engine, and handles of locks that
//! are over.

use super::*;
use redlatch::{Error, LockOptions, Outcome, ReleaseOutcome};

#[test]
fn a_request_that_is_cancelled_has_no_completion_and_leaves_nothing() {
    let (fleet, mut embedded) = fleet_and_loop(3);
    for turns in 0..6 {
        let op = embedded.engine.acquire("a", LockOptions::once(60 * SECOND), turns).unwrap();
        for _ in 0..turns {
            embedded.turn();
        }
        embedded.engine.cancel(op);
        embedded.turn();
        assert!(embedded.engine.poll_completion().is_none(), "{turns} turns");
        embedded.turn_until("nothing is open", |engine| engine.coordinator().open_records() == 0);
        fleet.wait_empty();
    }
    assert_eq!(embedded.engine.coordinator().open_ops(), 0);
}

#[test]
fn a_wait_that_is_cancelled_ends_between_two_attempts_too() {
    let (fleet, mut embedded) = fleet_and_loop(3);
    let holder = client(&fleet);
    let guard = holder.try_lock("a", TTL).unwrap();
    for pause in 0..20 {
        let op = embedded.engine.acquire("a", LockOptions::new(TTL).wait(TTL), 0).unwrap();
        let start = Instant::now();
        while start.elapsed() < millis(pause * 3) {
            embedded.turn();
        }
        embedded.engine.cancel(op);
        assert!(embedded.engine.poll_completion().is_none());
    }
    embedded.turn_until("nothing is open", |engine| engine.coordinator().open_records() == 0);
    assert_eq!(embedded.engine.coordinator().open_ops(), 0);
    drop(guard);
    fleet.wait_empty();
}

#[test]
fn an_engine_that_is_dropped_releases_what_it_did_not_hand_out() {
    let (fleet, mut embedded) = fleet_and_loop(3);
    embedded.engine.acquire("asked", LockOptions::once(60 * SECOND), 1).unwrap();
    embedded.engine.prepare();
    embedded.engine.acquire("not even written", LockOptions::once(60 * SECOND), 2).unwrap();
    eventually(SOON, "it is granted", || fleet.values("asked").len() == 3);
    drop(embedded);
    fleet.wait_empty();
}

#[test]
fn a_lock_that_is_forgotten_frees_its_record_at_its_deadline() {
    let (fleet, mut embedded) = fleet_and_loop(3);
    // The ttl is so long that no stall of the machine ends the lock before the first check.
    embedded.engine.acquire("a", LockOptions::once(3 * SECOND), 1).unwrap();
    let Ok(Outcome::Acquired(lock)) = embedded.completion().result else { panic!("no lock") };
    assert_eq!(embedded.engine.coordinator().open_records(), 1);
    embedded.turn_until("its record is free", |engine| engine.coordinator().open_records() == 0);
    assert_eq!(embedded.engine.deadline(&lock), None);
    // The new lock may have the slot of the forgotten one, but the old handle must not reach it.
    embedded.engine.acquire("b", LockOptions::once(TTL), 2).unwrap();
    let Ok(Outcome::Acquired(other)) = embedded.completion().result else { panic!("no lock") };
    assert!(matches!(embedded.engine.extend(&lock, TTL, 3), Err(Error::Lost { .. })));
    embedded.engine.release(lock, 4);
    let done = embedded.completion();
    assert_eq!(done.data, 4);
    assert_eq!(done.result, Ok(Outcome::Released(ReleaseOutcome::AlreadyExpired)));
    assert!(!embedded.engine.remaining(&other).is_zero(), "the old handle ended another's lock");
    eventually(SOON, "all have it", || fleet.values("b").len() == 3);
    embedded.engine.release(other, 5);
    assert_eq!(embedded.completion().data, 5);
}

#[test]
fn a_release_while_an_extend_is_under_way_ends_both() {
    let (fleet, mut embedded) = fleet_and_loop(3);
    embedded.engine.acquire("a", LockOptions::once(TTL), 1).unwrap();
    let Ok(Outcome::Acquired(lock)) = embedded.completion().result else { panic!("no lock") };
    embedded.engine.extend(&lock, TTL, 2).unwrap();
    assert!(matches!(embedded.engine.extend(&lock, TTL, 3), Err(Error::Busy(_))));
    embedded.engine.release(lock, 4);
    let extended = embedded.completion();
    assert!(matches!((extended.data, extended.result), (2, Err(Error::Lost { .. }))));
    let released = embedded.completion();
    assert_eq!(released.data, 4);
    assert_eq!(released.result, Ok(Outcome::Released(ReleaseOutcome::Released)));
    fleet.wait_empty();
}

#[test]
fn engine_does_not_own_the_tokens_of_others() {
    let fleet = Fleet::start(1);
    let embedded = Loop::ready(config(&fleet));
    let owns = |token| embedded.engine.owns(mio::Token(token));
    assert!(owns(1000) && owns(1001), "a node, and the timer");
    assert!(!owns(1002) && !owns(999));
}
