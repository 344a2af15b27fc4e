//! Calls of a shared client one after the other, each waited for by a thread or polled as a future.

use super::*;
use redlatch::{
    AutoExtend, ClosedReason, Error, KeySummary, LockOptions, LostReason, ReleaseOutcome,
};

#[test]
fn a_lock_is_taken_extended_and_given_back_from_a_thread() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.lock("a", TTL).wait().unwrap();
    assert_eq!(guard.key(), b"a");
    fleet.wait_held("a", &guard.token());
    assert!(guard.remaining() > TTL / 2 && guard.remaining() < TTL);
    guard.check().unwrap();
    guard.extend(2 * TTL).wait().unwrap();
    assert!(guard.remaining() > TTL);
    assert!(matches!(client.try_lock("a", TTL).wait(), Err(Error::Contended(_))));
    let lease = guard.watcher();
    assert_eq!(guard.release().wait(), Ok(ReleaseOutcome::Released));
    assert!(matches!(lease.check(), Err(Error::Lost { reason: LostReason::Over, .. })));
    fleet.wait_empty();
    eventually(SOON, "nothing is open", || client.gauges().records == 0);
    assert_eq!((client.gauges().calls, client.gauges().requests), (0, 0));
}

#[test]
fn call_sends_no_request_before_its_first_poll() {
    let (fleet, client) = fleet_and_client(3);
    let call = client.lock("a", TTL);
    assert_eq!(client.gauges().requests, 0);
    drop(call);
    assert!(fleet.keys_everywhere().is_empty());
}

#[test]
fn waiter_has_the_lock_when_the_guard_before_it_is_dropped() {
    let (fleet, client) = fleet_and_client(3);
    let other = client.clone();
    let guard = client.lock("a", TTL).wait().unwrap();
    let waiter = std::thread::spawn(move || other.lock("a", TTL).wait().map(|guard| guard.token()));
    eventually(SOON, "it waits", || client.gauges().calls == 1);
    let token = guard.token();
    drop(guard);
    assert_ne!(waiter.join().unwrap().unwrap(), token);
    fleet.wait_empty();
}

#[test]
fn auto_extend_outlives_the_ttl_and_its_loss_is_reported() {
    despite_stalls(millis(500), |times| auto_extend_outlives(times * SECOND));
}

fn auto_extend_outlives(ttl: Duration) {
    let (fleet, client) = fleet_and_client(3);
    let guard = client.lock("a", LockOptions::new(ttl).auto_extend(60 * SECOND)).wait().unwrap();
    let start = Instant::now();
    let mut first = guard.deadline();
    let mut renewed = 0;
    while start.elapsed() < 3 * ttl {
        guard.check().unwrap();
        if guard.deadline() != first {
            (first, renewed) = (guard.deadline(), renewed + 1);
        }
        std::thread::sleep(millis(5));
    }
    assert!(renewed >= 3, "{renewed} renewals were seen");
    let lost = guard.lost();
    fleet.command(&["DEL", "a"]);
    assert!(matches!(lost.wait(), Error::Lost { reason: LostReason::Gone, .. }));
    assert!(matches!(guard.check(), Err(Error::Lost { reason: LostReason::Gone, .. })));
    assert!(guard.remaining().is_zero());
}

#[test]
fn loss_of_a_lock_without_auto_extend_is_reported_too() {
    let (fleet, client) = fleet_and_client(3);
    let guard = client.lock("a", millis(300)).wait().unwrap();
    let before = guard.deadline().unwrap();
    let error = guard.lost().wait();
    assert!(matches!(error, Error::Lost { reason: LostReason::Expired, .. }), "{error}");
    assert!(redlatch::clock::now() < before.saturating_add(SOON));
    eventually(SOON, "no key is left", || fleet.keys_everywhere().is_empty());

    let mut guard = client.lock("b", TTL).wait().unwrap();
    let lost = guard.lost();
    guard.auto_extend(AutoExtend::at_most(TTL)).unwrap();
    guard.release().wait().unwrap();
    assert!(matches!(lost.wait(), Error::Lost { reason: LostReason::Over, .. }));
}

#[test]
fn a_lock_is_handed_on_by_its_token() {
    let fleet = Fleet::start(3);
    let (one, two) = (client(&fleet), client(&fleet));
    let token = one.lock("a", TTL).wait().unwrap().into_token().unwrap();
    fleet.wait_held("a", &token);
    let until = two.extend_token("a", token.clone(), 2 * TTL).wait().unwrap();
    assert!(until > redlatch::clock::now().saturating_add(TTL));
    let guard = two.adopt("a", token.clone(), TTL).wait().unwrap();
    assert_ne!(guard.token(), token);
    let seen = one.inspect("a").wait().unwrap();
    let KeySummary::Held { value: holder, .. } = seen.summary() else { panic!("{seen:?}") };
    assert_eq!(holder.as_bytes(), guard.token().digits());
    assert!(matches!(one.adopt("a", token, TTL).wait(), Err(Error::Lost { .. })));
    let token = guard.into_token().unwrap();
    assert_eq!(one.release_token("a", token).wait(), Ok(ReleaseOutcome::Released));
    let _held = one.lock("a", TTL).wait().unwrap();
    assert_eq!(two.dangerously_force_release("a").wait(), Ok(ReleaseOutcome::Released));
}

#[test]
fn a_closure_runs_under_a_lock_that_is_renewed() {
    let (fleet, client) = fleet_and_client(3);
    // The ttl is so long that the renewals go on if the machine stalls for two seconds.
    let ttl = 4 * SECOND;
    let held = client.with_lock("a", ttl, |lease| {
        let first = lease.deadline();
        eventually(3 * ttl, "it is held beyond its first ttl", || {
            first.is_some_and(|first| redlatch::clock::now() > first)
        });
        fleet.wait_held("a", &lease.token());
        lease.check().map(|()| 7)
    });
    assert_eq!(held, Ok(7));
    let failed = client.with_lock("a", ttl, |_| Err::<(), Box<dyn std::error::Error>>("no".into()));
    assert_eq!(failed.unwrap_err().to_string(), "no", "its own error, of its own type");
    fleet.wait_empty();
    let lost = client.with_lock("a", ttl, |lease| {
        fleet.command(&["DEL", "a"]);
        Ok::<_, Error>(lease.lost().wait())
    });
    assert!(matches!(lost, Err(Error::Lost { reason: LostReason::Gone, .. })), "{lost:?}");
    let panic = std::panic::catch_unwind(|| {
        client.with_lock("a", TTL, |_| -> Result<(), Error> { panic!("of the user") })
    });
    assert!(panic.is_err());
    fleet.wait_empty();
    drop(client.try_lock("a", TTL).wait().unwrap());
}

#[test]
fn client_that_is_closed_releases_its_locks_and_ends_all_calls() {
    let (fleet, client) = fleet_and_client(3);
    let held = client.lock("a", TTL).wait().unwrap();
    let kept = client.lock("b", LockOptions::new(TTL).auto_extend(TTL)).wait().unwrap();
    let lost = kept.lost();
    let other = client.clone();
    let waiter = std::thread::spawn(move || other.lock("a", TTL).wait().map(|_| ()));
    eventually(SOON, "it waits", || client.gauges().calls == 2);
    assert_eq!(client.close(5 * SECOND).wait(), 0);
    assert!(fleet.keys_everywhere().is_empty());
    assert_eq!(waiter.join().unwrap(), Err(Error::Closed(ClosedReason::Asked)));
    assert_eq!(lost.wait(), Error::Closed(ClosedReason::Asked));
    assert!(held.remaining().is_zero() && kept.remaining().is_zero());
    assert_eq!(held.check(), Err(Error::Closed(ClosedReason::Asked)));
    assert_eq!(client.lock("c", TTL).wait().map(|_| ()), Err(Error::Closed(ClosedReason::Asked)));
    assert_eq!(client.close(SECOND).wait(), 0, "again");
    assert_eq!(held.release().wait(), Err(Error::Closed(ClosedReason::Asked)));
}

#[test]
fn drop_of_the_last_handle_ends_the_driver_and_releases_all_locks() {
    let (fleet, client) = fleet_and_client(3);
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks
            .filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok())
            .filter(|name| name.trim() == "redlatch")
            .count()
    };
    // The driver's thread sets its own name.
    eventually(10 * SECOND, "there is a driver", || threads() >= 1);
    let guard = client.lock("a", TTL).wait().unwrap();
    drop(client);
    guard.check().expect("the guard keeps the client alive");
    drop(guard);
    fleet.wait_empty();
    eventually(SOON, "no connection of ours is left", || {
        fleet.iter().all(|node| node.client_list().len() <= 1)
    });
}
