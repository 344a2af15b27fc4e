//! The shared client on async runtimes: its driver is a tokio task, and any executor polls its
//! calls.

use super::*;
use redlatch::{AutoExtend, ClosedReason, Error, LockOptions};

async fn client_on_tokio(fleet: &Fleet) -> SharedClient {
    let client = SharedClient::connect_tokio(config(fleet)).await.expect("a good configuration");
    ready::all_ready(&client).await;
    client
}

/// Acquires, contends, waits, renews and closes, once each.
async fn make_each_call(fleet: &Fleet) {
    let client = client_on_tokio(fleet).await;
    let mut guard = client.lock("a", TTL).await.unwrap();
    fleet.wait_held("a", &guard.token());
    guard.extend(2 * TTL).await.unwrap();
    assert!(matches!(client.try_lock("a", TTL).await, Err(Error::Contended(_))));
    let other = client.clone();
    let waiter = tokio::spawn(async move { other.lock("a", TTL).await.map(|guard| guard.token()) });
    tokio::time::sleep(millis(20)).await;
    assert!(!waiter.is_finished());
    let token = guard.token();
    drop(guard);
    assert_ne!(waiter.await.unwrap().unwrap(), token);
    // The ttl is so long that the renewals go on if the machine stalls for two seconds.
    let ttl = 4 * SECOND;
    let held = client.with_lock_async("b", ttl, |lease| async move {
        let first = lease.deadline().expect("it is held");
        while redlatch::clock::now() < first {
            tokio::time::sleep(millis(10)).await;
        }
        lease.check()
    });
    assert_eq!(held.await, Ok(()));
    let kept = client.lock("c", LockOptions::new(TTL).auto_extend(TTL)).await.unwrap();
    let lost = tokio::spawn(kept.lost());
    assert_eq!(client.close(5 * SECOND).await, 0);
    assert_eq!(lost.await.unwrap(), Error::Closed(ClosedReason::Asked));
    fleet.wait_empty();
}

#[test]
fn client_works_on_a_current_thread_runtime() {
    let fleet = Fleet::start(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(make_each_call(&fleet));
}

#[test]
fn client_works_on_a_runtime_of_several_threads() {
    let fleet = Fleet::start(3);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(make_each_call(&fleet));
}

#[test]
fn a_client_of_a_runtime_is_used_from_elsewhere_and_ends_with_its_runtime() {
    let fleet = Fleet::start(3);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let client = runtime.block_on(client_on_tokio(&fleet));
    let guard = client.lock("a", LockOptions::new(TTL).auto_extend(TTL)).wait().unwrap();
    let unwatched = client.lock("c", TTL).wait().unwrap();
    let other = client.clone();
    let waiter = std::thread::spawn(move || other.lock("a", TTL).wait().map(|_| ()));
    eventually(SOON, "it waits", || client.gauges().calls == 2);
    drop(runtime);
    assert_eq!(waiter.join().unwrap(), Err(Error::Closed(ClosedReason::DriverGone)));
    assert_eq!(guard.lost().wait(), Error::Closed(ClosedReason::DriverGone));
    // No driver is left that could report to the holder, or send the holder's release.
    assert_eq!(unwatched.check(), Err(Error::Closed(ClosedReason::DriverGone)));
    assert_eq!(
        client.lock("b", TTL).wait().map(|_| ()),
        Err(Error::Closed(ClosedReason::DriverGone))
    );
}

#[test]
fn close_ends_in_time_also_if_no_thread_drives_the_runtime() {
    let fleet = Fleet::start(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(client_on_tokio(&fleet));
    let held = runtime.block_on(client.lock("a", TTL).into_future()).unwrap();
    let left = in_time("a close of 100 ms", move || client.close(millis(100)).wait());
    assert_eq!(left, 1, "nobody read what the nodes answered");
    assert_eq!(held.check(), Err(Error::Closed(ClosedReason::Asked)));
    fleet.wait_empty();
}

/// The test blocks the runtime, so that the driver finds the answer and the due warning in one
/// turn.
#[test]
fn renewal_counts_though_the_next_warning_is_due_in_the_same_turn() {
    despite_stalls(millis(300), |times| renewal_counts(times * 6 * SECOND));
}

fn renewal_counts(ttl: Duration) {
    let fleet = Fleet::start(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let config = config(&fleet).probe_interval(3600 * SECOND);
        let client = SharedClient::connect_tokio(config).await.unwrap();
        ready::all_ready(&client).await;
        let keep = AutoExtend::extensions(1).warn_before(ttl / 2);
        let guard = client.lock("a", LockOptions::new(ttl).auto_extend(keep)).await.unwrap();
        let first = guard.deadline().unwrap();
        let unanswered = || client.gauges().unanswered;
        while unanswered() > 0 {
            tokio::task::yield_now().await;
        }
        fleet.iter().for_each(|node| node.stop());
        while unanswered() == 0 {
            tokio::time::sleep(millis(1)).await;
        }
        fleet.iter().for_each(|node| node.cont());
        std::thread::sleep(ttl / 2 + millis(200));
        assert!(redlatch::clock::now() < first, "too late: this shows nothing");
        while unanswered() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(guard.is_expiring());
        let now = guard.deadline().unwrap();
        assert!(now > first.saturating_add(SECOND), "the copy is an old one");
    });
}

#[test]
fn client_for_tokio_outside_of_a_runtime_is_an_error() {
    let config = Config::new(["redis://127.0.0.1:1"]).unwrap();
    let mut future = std::pin::pin!(SharedClient::connect_tokio(config));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = std::future::Future::poll(future.as_mut(), &mut context);
    assert!(matches!(polled, std::task::Poll::Ready(Err(Error::Config(_)))));
}

/// Two tasks are woken in one turn, so the driver yields for both. After that no thread drives the
/// runtime.
#[test]
fn guard_that_is_dropped_after_its_runtime_releases_its_lock() {
    let fleet = Fleet::start(3);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(client_on_tokio(&fleet));
    for number in 0..10 {
        let (a, b) = (format!("a{number}"), format!("b{number}"));
        let both = async { tokio::join!(client.lock(a, TTL), client.lock(b, TTL)) };
        let (a, b) = runtime.block_on(both);
        drop((a.unwrap(), b.unwrap()));
        fleet.wait_empty();
    }
}

#[test]
fn blocking_call_works_inside_block_in_place() {
    let fleet = Fleet::start(3);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let client = runtime.block_on(client_on_tokio(&fleet));
    let (told, rounds) = std::sync::mpsc::channel();
    // In some rounds one turn of the driver wakes both tasks on its own worker.
    for name in ["a", "b"] {
        let (client, told) = (client.clone(), told.clone());
        runtime.spawn(async move {
            for _ in 0..300 {
                let guard = client.lock(name, TTL).await.unwrap();
                // Without `block_in_place` no worker would be left that polls tokio's sockets.
                tokio::task::block_in_place(|| guard.release().wait()).unwrap();
                told.send(()).expect("the test waits for it");
            }
        });
    }
    drop(told);
    for round in 0..600 {
        rounds.recv_timeout(10 * SECOND).unwrap_or_else(|error| panic!("{round}: {error}"));
    }
}
