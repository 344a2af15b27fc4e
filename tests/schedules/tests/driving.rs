//! Who drives a shared client, in thousands of random orders of its threads: whatever the order is,
//! each call ends.
//!
//! The clock stands still and no node is silent, so no timeout can help a call that was forgotten:
//! then all threads sleep, and `shuttle` reports a deadlock. The hazard is a nap of the driver that
//! ends by itself, because it makes up for a lost wake-up. So every test runs twice: with naps that
//! never end by themselves, and with naps that end at any moment.
//!
//! `SCHEDULES` is the number of orders of each kind.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use schedules::config::Config;
use schedules::net::sync::set_naps_end;
use schedules::net::world::World;
use schedules::proto::{ClosedReason, Error};
use schedules::shared::SharedClient;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::thread::{self, JoinHandle};
use shuttle::{MaxSteps, Runner, future};

const TTL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// How many orders of each kind are tried unless `SCHEDULES` says it.
const ORDERS: usize = 100;

/// The orders are the same in each run: more of them begin with these.
const SEED: u64 = 0;

/// The most changes of the running task that an order of the PCT kind has.
const DEPTH: usize = 4;

/// More steps than any order has in which all calls end.
const MOST_STEPS: usize = 200_000;

/// Runs `act` on a client of `nodes` masters, in many orders. It returns the threads that it
/// started.
fn in_any_order(nodes: usize, act: fn(&SharedClient) -> Vec<JoinHandle<()>>) {
    let orders = std::env::var("SCHEDULES").map_or(ORDERS, |orders| orders.parse().unwrap());
    let body = move || {
        let world = Arc::new(World::new(nodes));
        let client = SharedClient::connect_blocking(Config::new(&world)).unwrap();
        let carried = Arc::clone(&world);
        let network = thread::spawn(move || carried.run());
        for started in act(&client) {
            started.join().unwrap();
        }
        // The driver and the network end.
        drop(client);
        network.join().unwrap();
        assert_eq!(world.keys(), 0, "a lock was not released");
    };
    for naps_end in [false, true] {
        set_naps_end(naps_end);
        run(RandomScheduler::new_from_seed(SEED, orders), body);
        run(PctScheduler::new_from_seed(SEED, DEPTH, orders), body);
    }
}

fn run(scheduler: impl Scheduler + 'static, body: impl Fn() + Send + Sync + 'static) {
    let mut config = shuttle::Config::new();
    config.max_steps = MaxSteps::FailAfter(MOST_STEPS);
    config.silence_warnings = true;
    config.stack_size = 256 * 1024;
    Runner::new(scheduler, config).run(body);
}

/// Runs `act` on this number of threads, each with its number.
fn on_threads(
    client: &SharedClient,
    count: usize,
    act: fn(SharedClient, usize),
) -> Vec<JoinHandle<()>> {
    let started = (0..count).map(|number| {
        let client = client.clone();
        thread::spawn(move || act(client, number))
    });
    started.collect()
}

/// Locks and releases, waiting for both.
fn pair(client: &SharedClient, key: &str) {
    client.lock(key, TTL).wait().unwrap().release().wait().unwrap();
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn calls_of_a_thread_alone_end() {
    in_any_order(3, |client| {
        on_threads(client, 1, |client, _| (0..3).for_each(|_| pair(&client, "a")))
    });
}

#[test]
fn calls_of_a_few_threads_end() {
    in_any_order(1, |client| {
        on_threads(client, 3, |client, number| {
            (0..2).for_each(|_| pair(&client, &number.to_string()));
        })
    });
}

#[test]
fn calls_of_many_threads_end() {
    in_any_order(1, |client| {
        on_threads(client, 7, |client, number| pair(&client, &number.to_string()))
    });
}

/// Between two requests of the thread that leads, the driver is roused for the future, and may come
/// too late.
#[test]
fn a_future_that_waits_beside_a_thread_that_leads_again_and_again_ends() {
    in_any_order(1, |client| {
        let held = client.lock("a", TTL).wait().unwrap();
        let mut started = on_threads(client, 1, |client, _| {
            drop(future::block_on(client.lock("a", TTL)).unwrap());
        });
        let client = client.clone();
        started.push(thread::spawn(move || {
            (0..4).for_each(|_| pair(&client, "b"));
            held.release().wait().unwrap();
        }));
        started
    });
}

/// From four waiting calls on, a thread leaves its request to the driver. No answer comes for those
/// that wait, so the request has to wake the driver.
#[test]
fn a_request_beside_many_calls_that_wait_for_a_lock_ends() {
    in_any_order(1, |client| {
        let held = client.lock("a", TTL).wait().unwrap();
        let mut started = on_threads(client, 4, |client, _| pair(&client, "a"));
        let client = client.clone();
        started.push(thread::spawn(move || {
            (0..2).for_each(|_| pair(&client, "b"));
            held.release().wait().unwrap();
        }));
        started
    });
}

#[test]
fn calls_of_threads_that_want_one_key_end() {
    in_any_order(1, |client| on_threads(client, 3, |client, _| pair(&client, "a")));
}

#[test]
fn futures_beside_threads_that_wait_end() {
    in_any_order(1, |client| {
        let mut started = on_threads(client, 2, |client, number| {
            (0..2).for_each(|_| pair(&client, &number.to_string()));
        });
        let client = client.clone();
        started.push(thread::spawn(move || {
            future::block_on(async {
                let guard = client.lock("future", TTL).await.unwrap();
                guard.release().await.unwrap();
            });
        }));
        started
    });
}

/// A future that is polled once and dropped leaves its place to none.
#[test]
fn calls_beside_futures_that_are_dropped_end() {
    in_any_order(1, |client| {
        let mut started = on_threads(client, 2, |client, _| pair(&client, "a"));
        let client = client.clone();
        started.push(thread::spawn(move || {
            let mut call = client.lock("a", TTL);
            let _ = poll(&mut call);
            drop(call);
            drop(client.lock("b", TTL).wait().unwrap());
        }));
        started
    });
}

/// A future that fetches its result wakes the next one. The first of these are never polled again,
/// so the driver wakes the others.
#[test]
fn futures_beside_others_that_are_not_polled_again_end() {
    in_any_order(1, |client| {
        let keys = 0..3;
        let mut futures: Vec<_> = keys.map(|key| client.lock(key.to_string(), TTL)).collect();
        futures.iter_mut().for_each(|call| assert!(poll(call).is_pending()));
        let started = on_threads(client, 3, |client, number| {
            drop(future::block_on(client.lock(format!("other-{number}"), TTL)).unwrap());
        });
        started.into_iter().for_each(|started| started.join().unwrap());
        drop(futures);
        Vec::new()
    });
}

/// This client holds the key, so the requests end where they are made: no answer comes.
#[test]
fn calls_that_fail_at_once_end() {
    in_any_order(1, |client| {
        let held = client.lock("a", TTL).wait().unwrap();
        let mut started = on_threads(client, 2, |client, _| {
            assert!(client.try_lock("a", TTL).wait().is_err());
        });
        let client = client.clone();
        started.push(thread::spawn(move || {
            assert!(future::block_on(client.try_lock("a", TTL)).is_err());
        }));
        // The guard is held until these have ended.
        started.into_iter().for_each(|started| started.join().unwrap());
        held.release().wait().unwrap();
        Vec::new()
    });
}

#[test]
fn the_end_of_a_lock_wakes_a_thread_that_waits_for_it() {
    in_any_order(1, |client| {
        let guard = client.lock("a", TTL).wait().unwrap();
        let lost = guard.lost();
        let waits = thread::spawn(move || assert!(matches!(lost.wait(), Error::Lost { .. })));
        let releases = thread::spawn(move || {
            guard.release().wait().unwrap();
        });
        let mut started = on_threads(client, 1, |client, _| pair(&client, "b"));
        started.extend([waits, releases]);
        started
    });
}

#[test]
fn calls_end_if_another_thread_closes_the_client() {
    in_any_order(1, |client| {
        let mut started = on_threads(client, 3, |client, number| {
            let ended =
                client.lock(number.to_string(), TTL).wait().and_then(|it| it.release().wait());
            let closed = Err(Error::Closed(ClosedReason::Asked));
            assert!(ended.is_ok() || ended.map(drop) == closed);
        });
        let client = client.clone();
        started.push(thread::spawn(move || assert_eq!(client.close(HOUR).wait(), 0)));
        started
    });
}

#[test]
fn an_inspection_ends_if_another_thread_closes_the_client() {
    in_any_order(1, |client| {
        // After this call the poller is free.
        pair(client, "b");
        let mut started = on_threads(client, 1, |client, _| {
            let seen = client.inspect("a").wait();
            assert!(seen.is_ok() || seen.map(drop) == Err(Error::Closed(ClosedReason::Asked)));
        });
        let client = client.clone();
        started.push(thread::spawn(move || assert_eq!(client.close(HOUR).wait(), 0)));
        started
    });
}

#[test]
fn a_client_that_connects_on_its_own_thread_arrives() {
    in_any_order(1, |client| {
        let mut started = on_threads(client, 1, |client, _| pair(&client, "a"));
        started.push(thread::spawn(|| {
            let world = Arc::new(World::new(1));
            let carried = Arc::clone(&world);
            let network = thread::spawn(move || carried.run());
            let client = future::block_on(SharedClient::connect(Config::new(&world))).unwrap();
            pair(&client, "b");
            drop(client);
            network.join().unwrap();
        }));
        started
    });
}
