//! What callers of a shared client are reported of a lock that is over, whatever happened to the
//! call that found the loss.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::task::Poll;

use super::*;
use executor::Task;
use redlatch::{AutoExtend, ClosedReason, Error, LockOptions, LostReason};

#[test]
fn loss_that_an_extend_finds_is_reported_though_its_call_was_dropped() {
    let (fleet, client) = fleet_and_client(3);
    let before = client.gauges();
    for is_dropped in [true, false] {
        let mut guard = client.lock("a", TTL).wait().unwrap();
        let lease = guard.watcher();
        fleet.command(&["DEL", "a"]);
        let extend = Task::pending(guard.extend(TTL));
        let mut unpolled = None;
        if is_dropped {
            drop(extend);
        } else {
            eventually(10 * SECOND, "it has ended", || extend.is_woken());
            unpolled = Some(extend);
        }
        eventually(SOON, "the loss is seen", || lease.check().is_err());
        assert!(matches!(lease.check(), Err(Error::Lost { reason: LostReason::Gone, .. })));
        assert!(lease.remaining().is_zero());
        drop(unpolled);
        drop(guard);
        nothing_is_open(&client, before);
    }
}

#[test]
fn extend_whose_call_is_dropped_goes_on_until_the_next_extend() {
    let (fleet, client) = fleet_and_client(3);
    let before = client.gauges();
    let mut guard = client.lock("a", TTL).wait().unwrap();
    for factor in 2..20 {
        let dropped = Task::pending(guard.extend(factor * TTL / 4));
        drop(dropped);
        let mut extend = Task::new(guard.extend(TTL));
        if factor % 2 == 0 {
            assert!(extend.poll().is_pending(), "the one before is taken back");
        }
    }
    let dropped = Task::pending(guard.extend(6 * TTL));
    drop(dropped);
    eventually(SOON, "it is prolonged", || guard.remaining() > 5 * TTL);
    drop(guard);
    fleet.wait_empty();
    nothing_is_open(&client, before);
}

#[test]
fn extend_that_is_refused_leaves_the_extend_before_it() {
    let (fleet, client) = fleet_and_client(3);
    let mut guard = client.lock("a", TTL).wait().unwrap();
    fleet.command(&["DEL", "a"]);
    fleet.iter().for_each(|node| node.stop());
    let dropped = Task::pending(guard.extend(TTL));
    drop(dropped);
    assert!(matches!(guard.extend(Duration::ZERO).wait(), Err(Error::Config(_))));
    fleet.iter().for_each(|node| node.cont());
    eventually(SOON, "the loss is seen", || guard.check().is_err());
    assert!(matches!(guard.check(), Err(Error::Lost { reason: LostReason::Gone, .. })));
}

#[test]
fn a_watcher_of_a_lock_leaves_nothing_when_it_is_dropped() {
    let (_fleet, client) = fleet_and_client(3);
    let guard = client.lock("a", LockOptions::new(TTL).auto_extend(10 * TTL)).wait().unwrap();
    let mut stays = Task::pending(guard.lost());
    for _ in 0..100 {
        let mut lost = Task::new(guard.lost());
        assert!(lost.poll().is_pending() && lost.poll().is_pending());
        let wakes = Arc::clone(&lost.wakes);
        drop(lost);
        assert_eq!(Arc::strong_count(&wakes), 1, "its waker is kept");
    }
    drop(guard);
    assert!(stays.is_woken() && stays.poll().is_ready());
}

#[test]
fn loss_waiter_does_not_change_the_auto_extension() {
    let (_fleet, client) = fleet_and_client(3);
    let ttl = 12 * SECOND;
    let mut guards = Vec::new();
    let stop = Arc::new(AtomicBool::new(false));
    // Other threads use the client, so both threads of this test wait for its mutex, and either may
    // get it first.
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    client.nodes();
                }
            })
        })
        .collect();
    for number in 0..100 {
        let mut guard = client.lock(number.to_string(), ttl).wait().unwrap();
        let both = Arc::new(Barrier::new(3));
        let looker = |_| {
            let (lease, both) = (guard.watcher(), Arc::clone(&both));
            std::thread::spawn(move || {
                both.wait();
                drop(lease.lost());
            })
        };
        let lookers: Vec<_> = (0..2).map(looker).collect();
        both.wait();
        guard.auto_extend(AutoExtend::at_most(60 * SECOND)).unwrap();
        lookers.into_iter().for_each(|looker| looker.join().unwrap());
        guards.push(guard);
    }
    stop.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().unwrap());
    let deadlines = || guards.iter().map(|guard| guard.deadline()).collect::<Vec<_>>();
    let before = deadlines();
    let is_renewed = |(before, now): (&Option<_>, &Option<_>)| now.is_none() || now > before;
    eventually(2 * ttl, "each is renewed once more, or lost", || {
        before.iter().zip(&deadlines()).all(is_renewed)
    });
    let lost = guards.iter().filter(|guard| guard.check().is_err()).count();
    assert_eq!(lost, 0, "so many are not renewed any more");
}

#[test]
fn a_call_of_close_leaves_nothing_when_it_is_dropped() {
    let (fleet, client) = fleet_and_client(3);
    let held = client.lock("a", TTL).wait().unwrap();
    fleet[0].stop();
    let mut stays = Task::pending(client.close(600 * SECOND));
    let mut moves = client.close(600 * SECOND);
    for _ in 0..100 {
        // Each poll is by another task.
        let mut task = Task::new(&mut moves);
        assert!(task.poll().is_pending() && task.poll().is_pending());
        let former = Arc::clone(&task.wakes);
        drop(task);
        let _task = Task::pending(&mut moves);
        assert_eq!(Arc::strong_count(&former), 1, "its waker is kept");
    }
    let goes = Task::pending(client.close(600 * SECOND));
    let wakes = Arc::clone(&goes.wakes);
    drop(goes);
    assert_eq!(Arc::strong_count(&wakes), 1, "its waker is kept");
    fleet[0].cont();
    eventually(10 * SECOND, "the watchers that stay are woken", || stays.is_woken());
    assert_eq!(stays.poll(), std::task::Poll::Ready(0));
    drop(held);
}

#[test]
fn close_of_several_callers_ends_at_the_shortest_timeout() {
    let (fleet, client) = fleet_and_client(3);
    let held = client.lock("a", TTL).wait().unwrap();
    fleet[0].stop();
    let mut patient = Task::pending(client.close(600 * SECOND));
    let left = in_time("a close of 100 ms", move || client.close(millis(100)).wait());
    assert_eq!(left, 1);
    eventually(SOON, "the other is woken", || patient.is_woken());
    assert_eq!(patient.poll(), Poll::Ready(1));
    drop(held);
    fleet[0].cont();
}

#[test]
fn client_that_closes_refuses_new_requests() {
    let (fleet, client) = fleet_and_client(3);
    let held = client.lock("a", TTL).wait().unwrap();
    fleet[0].stop();
    let mut closing = Task::new(client.close(600 * SECOND));
    assert!(closing.poll().is_pending(), "one node has not let go of it");
    assert!(held.remaining().is_zero() && held.deadline().is_none());
    let mut refused = Task::new(client.lock("b", TTL));
    assert!(refused.poll().is_pending() && refused.is_woken(), "a call yields once");
    let refused = refused.poll();
    assert!(matches!(refused, Poll::Ready(Err(Error::Closed(ClosedReason::Asked)))), "{refused:?}");
    fleet[0].cont();
    eventually(10 * SECOND, "it is closed", || closing.is_woken());
    assert_eq!(closing.poll(), Poll::Ready(0));
    fleet.wait_empty();
}

#[test]
fn a_watcher_of_a_lock_is_woken_by_the_end_of_its_client() {
    let (_fleet, client) = fleet_and_client(3);
    let kept = LockOptions::new(TTL).auto_extend(10 * TTL);
    let guards = [("a", kept), ("b", LockOptions::new(TTL))]
        .map(|(key, options)| client.lock(key, options).wait().unwrap());
    let mut waiting = guards.each_ref().map(|guard| Task::new(guard.lost()));
    waiting.iter_mut().for_each(|lost| assert!(lost.poll().is_pending()));
    assert_eq!(client.close(10 * SECOND).wait(), 0);
    for mut lost in waiting {
        assert!(lost.is_woken(), "nobody else would");
        assert_eq!(lost.poll(), Poll::Ready(Error::Closed(ClosedReason::Asked)));
    }
}

#[test]
fn loss_after_a_refused_extend_is_reported_though_no_call_waits_for_it() {
    // One of two nodes refuses the extend for good. Later the other node answers that the key is
    // gone.
    for is_dropped in [false, true] {
        let fleet = Fleet::start(2);
        let client = ready::shared(config(&fleet).node_timeout(10 * SECOND));
        let mut guard = client.lock("a", TTL).wait().unwrap();
        fleet.wait_held("a", &guard.token());
        for rule in ["-eval", "-evalsha"] {
            assert!(fleet[0].command(&["ACL", "SETUSER", "default", rule]).is_ok());
        }
        fleet[1].command(&["DEL", "a"]);
        fleet[1].stop();
        if is_dropped {
            let _extend = Task::pending(guard.extend(TTL));
        } else {
            assert!(matches!(guard.extend(TTL).wait(), Err(Error::Config(_))));
        }
        assert_eq!(guard.check(), Ok(()));
        fleet[1].cont();
        eventually(SOON, "the loss is seen", || guard.check().is_err());
        assert!(matches!(guard.check(), Err(Error::Lost { reason: LostReason::Gone, .. })));
    }
}

#[test]
fn loss_of_a_lock_without_auto_extend_has_its_reason_with_and_without_a_waiter() {
    let (fleet, client) = fleet_and_client(3);
    let before = client.gauges();
    // A ttl of 9 ms is too short for renewals.
    for ttl in [millis(9), millis(400)] {
        for is_waited_for in [false, true] {
            let guard = client.lock("a", ttl).wait().unwrap();
            let watcher = guard.watcher();
            if is_waited_for {
                let error = in_time("the loss", move || watcher.lost().wait());
                assert!(
                    matches!(error, Error::Lost { reason: LostReason::Expired, .. }),
                    "{error}"
                );
            }
            let expired =
                || matches!(guard.check(), Err(Error::Lost { reason: LostReason::Expired, .. }));
            eventually(10 * SECOND, "its reason is known", expired);
            assert!(guard.remaining().is_zero() && !guard.is_expiring());
            drop(guard);
            nothing_is_open(&client, before);
        }
    }
    eventually(SOON, "no key is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn loss_of_a_lock_without_auto_extend_is_noticed_at_once_during_a_wait_for_it() {
    let (fleet, client) = fleet_and_client(3);
    let before = client.gauges();
    let guard = client.lock("a", TTL).wait().unwrap();
    let mut lost = Task::pending(guard.lost());
    eventually(SOON, "it is registered everywhere", || client.gauges().unanswered == 0);
    fleet.command(&["DEL", "a"]);
    eventually(TTL / 2, "it is woken", || lost.is_woken());
    let Poll::Ready(Error::Lost { reason: LostReason::Gone, report }) = lost.poll() else {
        panic!("it is lost")
    };
    assert_eq!(&report.key[..], b"a");
    drop(guard);
    nothing_is_open(&client, before);
}

#[test]
fn loss_of_one_lock_is_not_that_of_the_next_one_in_its_place() {
    let (fleet, client) = fleet_and_client(3);
    for number in 0..200 {
        let short = client.try_lock(format!("short:{number}"), millis(8)).wait();
        let next = short.map(|short| {
            // In some rounds the guard is dropped when the client has found the loss and has not
            // reported it yet.
            while !short.remaining().is_zero() {
                std::thread::yield_now();
            }
            drop(short);
            client.lock(format!("long:{number}"), TTL).wait().unwrap()
        });
        if let Ok(next) = next {
            std::thread::sleep(Duration::from_micros(200));
            assert_eq!(next.check(), Ok(()), "{number}");
        }
    }
    fleet.wait_empty();
}
