//! The warning before the end of a lock, as a future.

use std::sync::Arc;
use std::task::Poll;

use super::*;
use executor::Task;
use redlatch::{AutoExtend, ClosedReason, Error, LockOptions, LostReason, SharedGuard};

/// The shortest stall that breaks these tests, if their times have the factor 1.
const STALL: Duration = Duration::from_millis(250);

/// A ttl whose warning comes after a second, if the times have the factor 1.
const SHORT: Duration = Duration::from_millis(1_500);

/// Waits for the warning of this lock on another thread.
#[track_caller]
fn wait_for_warning_on_a_thread(guard: &SharedGuard) -> Result<Duration, Error> {
    let expiring = guard.expiring();
    in_time("the warning", move || expiring.wait())
}

/// Whether the warning came with less than a third of the ttl left, and more than a ninth.
#[track_caller]
fn is_in_time(warned: &Result<Duration, Error>, ttl: Duration) {
    let left = warned.as_ref().expect("it is held");
    assert!(*left <= ttl / 3 && *left > ttl / 9, "{left:?} of {ttl:?}");
}

#[track_caller]
fn assert_is_lost(ended: Poll<Result<Duration, Error>>, why: LostReason) {
    let Poll::Ready(Err(Error::Lost { reason, .. })) = ended else { panic!("{ended:?}") };
    assert_eq!(reason, why);
}

/// Runs a test on a client of three nodes. After a stall it runs again with a longer ttl.
fn with_short_ttl(test: impl Fn(&SharedClient, Duration)) {
    despite_stalls(STALL, |times| {
        let fleet = Fleet::start(3);
        test(&client(&fleet), times * SHORT);
    });
}

#[test]
fn expiring_is_ready_a_third_of_the_ttl_before_the_end_and_again_after_an_extend() {
    with_short_ttl(|client, ttl| {
        let mut guard = client.lock("a", ttl).wait().unwrap();
        let before = client.gauges();
        assert!(!guard.is_expiring());
        is_in_time(&wait_for_warning_on_a_thread(&guard), ttl);
        assert!(guard.is_expiring());
        // While the warning holds, the next one is ready at once.
        let Poll::Ready(again) = Task::new(guard.expiring()).poll() else { panic!("it is warned") };
        is_in_time(&again, ttl);

        guard.extend(ttl).wait().unwrap();
        assert!(!guard.is_expiring());
        assert!(Task::new(guard.expiring()).poll().is_pending(), "that was the former deadline");
        is_in_time(&wait_for_warning_on_a_thread(&guard), ttl);
        let lost = guard.lost();
        let error = in_time("the loss", move || lost.wait());
        assert!(matches!(error, Error::Lost { reason: LostReason::Expired, .. }), "{error}");
        assert_is_lost(Task::new(guard.expiring()).poll(), LostReason::Expired);
        assert!(!guard.is_expiring());
        drop(guard);
        assert!(before.calls <= 1);
        let mut idle = before;
        (idle.records, idle.timers) = (0, before.timers - 1);
        nothing_is_open(client, idle);
    });
}

#[test]
fn expiring_never_comes_for_a_lock_that_is_renewed_in_time() {
    with_short_ttl(|client, ttl| {
        let kept = LockOptions::new(ttl).auto_extend(600 * SECOND);
        let guard = client.lock("a", kept).wait().unwrap();
        let expiring = Task::pending(guard.expiring());
        let (mut deadline, mut renewed) = (guard.deadline(), 0);
        while renewed < 6 {
            assert!(!expiring.is_woken() && !guard.is_expiring(), "after {renewed} renewals");
            assert_eq!(guard.check(), Ok(()));
            let now = guard.deadline();
            renewed += u32::from(now != deadline);
            deadline = now;
            std::thread::sleep(millis(5));
        }
    });
}

#[test]
fn expiring_comes_while_a_renewal_fails_and_a_later_one_takes_it_back() {
    despite_stalls(STALL, |times| {
        let (fleet, ttl) = (Fleet::start(3), 2 * times * SHORT);
        let client = client(&fleet);
        let terms = AutoExtend::at_most(600 * SECOND).warn_before(ttl / 2);
        let guard = client.lock("a", LockOptions::new(ttl).auto_extend(terms)).wait().unwrap();
        eventually(SOON, "all have answered", || client.gauges().unanswered == 0);
        fleet.iter().for_each(|node| node.stop());
        let left = wait_for_warning_on_a_thread(&guard).expect("it is held");
        assert!(left <= ttl / 2 && left > ttl / 4, "{left:?} of {ttl:?}");
        assert!(guard.is_expiring());
        fleet.iter().for_each(|node| node.cont());
        eventually(left, "it is renewed", || guard.deadline().is_some() && !guard.is_expiring());
        assert!(guard.remaining() > left);
        assert!(Task::new(guard.expiring()).poll().is_pending());
    });
}

#[test]
fn expiring_comes_at_the_bound_of_a_renewal() {
    with_short_ttl(|client, ttl| {
        let kept = LockOptions::new(ttl).auto_extend(AutoExtend::extensions(1));
        let guard = client.lock("a", kept).wait().unwrap();
        let first = guard.deadline();
        is_in_time(&wait_for_warning_on_a_thread(&guard), ttl);
        assert!(guard.deadline() > first, "it was renewed before");
    });
}

/// The future of a warning is not ready because of a deadline that is not in force any more.
#[test]
fn expiring_that_is_woken_and_not_polled_waits_for_the_next_warning_after_an_extend() {
    with_short_ttl(|client, ttl| {
        let mut guard = client.lock("a", ttl).wait().unwrap();
        let mut expiring = Task::pending(guard.expiring());
        eventually(ttl, "it is woken", || expiring.is_woken());
        guard.extend(ttl).wait().unwrap();
        assert!(expiring.poll().is_pending() && !expiring.is_woken());
        eventually(ttl, "it is woken again", || expiring.is_woken());
        let Poll::Ready(left) = expiring.poll() else { panic!("it is warned") };
        is_in_time(&left, ttl);
    });
}

#[test]
fn expiring_is_ready_at_once_for_the_first_caller_that_comes_late() {
    with_short_ttl(|client, ttl| {
        let guard = client.lock("a", ttl).wait().unwrap();
        eventually(ttl, "it is late", || guard.remaining() < ttl / 4);
        assert!(!guard.is_expiring(), "no caller asked for a warning");
        let mut expiring = Task::new(guard.expiring());
        let is_ready = expiring.poll().is_ready();
        eventually(ttl / 10, "the driver warns", || is_ready || expiring.is_woken());
        assert!(guard.is_expiring());
    });
}

#[test]
fn expiring_leaves_nothing_when_it_is_dropped() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.lock("a", TTL).wait().unwrap();
    let mut stays = Task::pending(guard.expiring());
    for _ in 0..100 {
        let mut expiring = Task::new(guard.expiring());
        assert!(expiring.poll().is_pending() && expiring.poll().is_pending());
        let wakes = Arc::clone(&expiring.wakes);
        drop(expiring);
        assert_eq!(Arc::strong_count(&wakes), 1, "its waker is kept");
        drop(guard.expiring());
    }
    assert!(guard.check().is_ok() && !stays.is_woken());
    guard.extend(TTL).wait().unwrap();
    drop(guard);
    assert!(stays.is_woken());
    assert_is_lost(stays.poll(), LostReason::Over);
    fleet.wait_empty();
}

#[test]
fn expiring_returns_why_the_lock_is_over_before_its_warning() {
    let (fleet, client) = fleet_and_client(3);
    let held = ["lost", "released", "given", "closed"].map(|key| {
        let guard = client.lock(key, TTL).wait().unwrap();
        let expiring = Task::pending(guard.expiring());
        (guard, expiring)
    });
    let [lost, released, given, closed] = held;
    eventually(SOON, "it is registered everywhere", || client.gauges().unanswered == 0);
    fleet.command(&["DEL", "lost"]);
    let (_gone, mut lost) = lost;
    eventually(TTL / 2, "it is woken", || lost.is_woken());
    assert_is_lost(lost.poll(), LostReason::Gone);

    let (guard, mut ended) = released;
    guard.release().wait().unwrap();
    assert_is_lost(ended.poll(), LostReason::Over);
    let (guard, mut ended) = given;
    let token = guard.into_token().unwrap();
    assert_is_lost(ended.poll(), LostReason::Over);
    client.release_token("given", token).wait().unwrap();

    let (guard, mut ended) = closed;
    assert_eq!(client.close(10 * SECOND).wait(), 0);
    assert!(ended.is_woken(), "no other thread would");
    let asked = Poll::Ready(Err(Error::Closed(ClosedReason::Asked)));
    assert_eq!(ended.poll(), asked);
    assert_eq!(Task::new(guard.expiring()).poll(), asked);
}

/// A lock whose caller awaits its end alone has no warning, so it wakes its driver once.
#[test]
fn expiring_that_is_not_awaited_leaves_a_waiter_for_the_end_alone() {
    with_short_ttl(|client, ttl| {
        let guard = client.lock("a", ttl).wait().unwrap();
        let before = client.gauges().timers;
        let mut lost = Task::pending(guard.lost());
        assert_eq!(client.gauges().timers, before, "a timer of a warning");
        let expiring = Task::pending(guard.expiring());
        assert_eq!(client.gauges().timers, before + 1);
        eventually(ttl, "it is woken", || expiring.is_woken());
        assert!(!lost.is_woken() && lost.poll().is_pending());
    });
}
