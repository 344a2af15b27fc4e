//! Unexpected ends: full sockets, wakers and keys that panic or call the client, a driver that
//! dies.
#![expect(unsafe_code, reason = "wakers of the test are made by hand")]

use std::future::Future;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};

use super::*;
use crate::support::Proxy;
use executor::Task;
use redlatch::{ClosedReason, Error, LockOptions, NodeEvent};

type Hook = Box<dyn Fn(&str) + Send + Sync>;

/// A waker that does something whenever it is cloned, woken or dropped.
fn hooked(hook: impl Fn(&str) + Send + Sync + 'static) -> Waker {
    fn hook_of(data: *const ()) -> Arc<Hook> {
        // SAFETY: each waker owns one count of the Arc that it was made of.
        unsafe {
            Arc::increment_strong_count(data.cast::<Hook>());
            Arc::from_raw(data.cast::<Hook>())
        }
    }
    fn clone(data: *const ()) -> RawWaker {
        let hook = hook_of(data);
        hook("clone");
        RawWaker::new(Arc::into_raw(hook).cast(), &TABLE)
    }
    fn wake(data: *const ()) {
        hook_of(data)("wake");
        discard(data);
    }
    fn wake_by_ref(data: *const ()) {
        hook_of(data)("wake");
    }
    fn discard(data: *const ()) {
        hook_of(data)("drop");
        // SAFETY: the waker owned one count of the Arc, which this call takes over.
        unsafe { Arc::decrement_strong_count(data.cast::<Hook>()) };
    }
    static TABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, discard);
    let hook: Hook = Box::new(hook);
    let raw = RawWaker::new(Arc::into_raw(Arc::new(hook)).cast(), &TABLE);
    // SAFETY: the functions of the table keep what a waker promises, on any thread.
    unsafe { Waker::from_raw(raw) }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// Polls a future until it is ready, without waiting for a wake-up.
fn poll_until_ready<F: Future + Unpin>(future: &mut F, waker: &Waker) -> F::Output {
    loop {
        if let Poll::Ready(output) = poll(future, waker) {
            return output;
        }
        std::thread::sleep(millis(1));
    }
}

#[test]
fn a_waker_may_use_the_client_while_it_is_woken_cloned_or_dropped() {
    let (fleet, client) = fleet_and_client(3);
    let used = in_time("a waker that uses the client", move || {
        let (other, done) = (client.clone(), Arc::new(AtomicU32::new(0)));
        let count = Arc::clone(&done);
        let waker = hooked(move |_| {
            other.gauges();
            count.fetch_add(1, Ordering::Relaxed);
        });
        let invalid = poll_until_ready(&mut client.lock("a", millis(1)), &waker);
        assert!(matches!(invalid, Err(Error::Config(_))));
        let guard =
            poll_until_ready(&mut client.lock("a", LockOptions::new(TTL).auto_extend(TTL)), &waker)
                .unwrap();
        let mut waiting = client.lock("a", TTL);
        assert!(poll(&mut waiting, &waker).is_pending());
        assert!(poll(&mut waiting, &Waker::noop().clone()).is_pending(), "it is replaced");
        assert!(poll(&mut waiting, &waker).is_pending());
        let mut lost = guard.lost();
        assert!(poll(&mut lost, &waker).is_pending());
        assert!(poll(&mut lost, &waker).is_pending());
        drop(guard.lost());
        poll_until_ready(&mut guard.release(), &waker).unwrap();
        assert!(poll(&mut lost, &waker).is_ready());
        let mut guard = poll_until_ready(&mut waiting, &waker).unwrap();
        poll_until_ready(&mut guard.extend(2 * TTL), &waker).unwrap();
        let mut waiting = client.lock("a", TTL);
        assert!(poll(&mut waiting, &waker).is_pending());
        assert_eq!(poll_until_ready(&mut client.close(10 * SECOND), &waker), 0);
        assert!(poll(&mut waiting, &waker).is_ready());
        assert!(poll_until_ready(&mut client.lock("a", TTL), &waker).is_err());
        done.load(Ordering::Relaxed)
    });
    assert!(used > 20, "{used} times it was used");
    fleet.wait_empty();
}

/// A key that uses the client each time that its bytes are read.
struct UsesTheClient(SharedClient);

impl AsRef<[u8]> for UsesTheClient {
    fn as_ref(&self) -> &[u8] {
        self.0.gauges();
        b"a"
    }
}

/// The client reads a key of the user's own type only while it is unlocked.
#[test]
fn key_of_the_users_own_type_may_use_the_client() {
    let (fleet, client) = fleet_and_client(3);
    in_time("a key that uses the client", move || {
        let (key, waker) = (|| UsesTheClient(client.clone()), Waker::noop().clone());
        client.inspect(key()).wait().unwrap();
        poll_until_ready(&mut client.inspect(key()), &waker).unwrap();
        client.dangerously_force_release(key()).wait().unwrap();
        poll_until_ready(&mut client.dangerously_force_release(key()), &waker).unwrap();
    });
    fleet.wait_empty();
}

/// A waker that drops this value when it is woken.
struct Drops<T>(Mutex<Option<T>>);

impl<T: Send + 'static> Wake for Drops<T> {
    fn wake(self: Arc<Self>) {
        let it = self.0.lock().unwrap().take();
        drop(it);
    }
}

fn waker_that_drops<T: Send + 'static>(it: T) -> Waker {
    Waker::from(Arc::new(Drops(Mutex::new(Some(it)))))
}

#[test]
fn a_waker_may_drop_guards_calls_and_the_client() {
    let (fleet, client) = fleet_and_client(3);
    in_time("a waker that drops what is of the client", move || {
        let before = client.gauges();
        let guard = client.lock("b", TTL).wait().unwrap();
        let mut call = client.lock("b", TTL);
        assert!(poll(&mut call, Waker::noop()).is_pending());
        // The driver, or the thread that releases, calls each waker, which drops what it owns.
        let mut granted = client.lock("a", TTL);
        assert!(poll(&mut granted, &waker_that_drops((guard, call))).is_pending());
        eventually(10 * SECOND, "they were dropped", || client.gauges().calls == 1);
        let guard = poll_until_ready(&mut granted, Waker::noop()).unwrap();
        let mut lost = guard.lost();
        assert!(poll(&mut lost, &waker_that_drops(client.lock("a", TTL))).is_pending());
        drop(guard);
        drop(lost);
        nothing_is_open(&client, before);
        // The waker owns the last handle of the client, and the driver calls the waker.
        let mut last = client.lock("c", TTL);
        let waker = Arc::new(Drops(Mutex::new(Some(client))));
        assert!(poll(&mut last, &Waker::from(Arc::clone(&waker))).is_pending());
        eventually(10 * SECOND, "it is woken", || waker.0.lock().unwrap().is_none());
        drop(last);
    });
    fleet.wait_empty();
    eventually(10 * SECOND, "no connection of ours is left", || {
        fleet.iter().all(|node| node.client_list().len() <= 1)
    });
}

#[test]
fn waker_that_panics_does_not_keep_later_wakers_from_being_woken() {
    let (fleet, client) = fleet_and_client(3);
    let held = client.lock("a", TTL).wait().unwrap();
    let mut panicking: Vec<_> = (0..4).map(|_| client.lock("a", TTL)).collect();
    for call in &mut panicking {
        let waker = hooked(|what| assert_ne!(what, "wake", "a waker of the user's"));
        assert!(poll(call, &waker).is_pending());
    }
    let other = client.clone();
    let waiter = std::thread::spawn(move || other.lock("a", TTL).wait().map(|_| ()));
    eventually(SOON, "it waits", || client.gauges().calls == 5);
    // The thread that releases the lock wakes one of the waiters.
    drop(held);
    eventually(10 * SECOND, "it is granted", || fleet.values("a").len() == 3);
    assert_eq!(client.close(10 * SECOND).wait(), 0);
    assert_eq!(waiter.join().unwrap(), Err(Error::Closed(ClosedReason::Asked)));
    for mut call in panicking {
        assert!(matches!(poll(&mut call, Waker::noop()), Poll::Ready(Err(Error::Closed(_)))));
    }
    fleet.wait_empty();
}

struct Panics;

impl AsRef<[u8]> for Panics {
    fn as_ref(&self) -> &[u8] {
        panic!("a key of the user's")
    }
}

#[test]
fn key_whose_conversion_panics_breaks_nothing() {
    let (_fleet, client) = fleet_and_client(3);
    let before = client.gauges();
    for _ in 0..3 {
        let waited = catch_unwind(AssertUnwindSafe(|| client.inspect(Panics).wait()));
        assert!(waited.is_err());
        let asked = || client.dangerously_force_release(Panics).wait();
        assert!(catch_unwind(AssertUnwindSafe(asked)).is_err());
    }
    nothing_is_open(&client, before);
    client.lock("a", TTL).wait().unwrap().check().unwrap();
}

/// Sends requests until the socket of a node that reads nothing is full.
fn fill_a_socket(
    client: &SharedClient,
    options: LockOptions,
) -> Vec<Task<impl Future + Unpin + use<>>> {
    let key = |number: u32| format!("{number:060000}").into_bytes();
    let mut tasks: Vec<_> = (0..200).map(|n| Task::new(client.lock(key(n), options))).collect();
    tasks.iter_mut().for_each(|task| assert!(task.poll().is_pending()));
    tasks
}

#[test]
fn no_call_blocks_while_a_socket_is_full_and_keys_that_are_left_are_counted() {
    let fleet = Fleet::start(3);
    let ttl = 4 * SECOND;
    for goes_on in [false, true] {
        let client = client(&fleet);
        let held = client.lock("held", ttl).wait().unwrap();
        fleet[0].stop();
        let start = Instant::now();
        let mut tasks = fill_a_socket(&client, LockOptions::new(ttl).wait(Duration::ZERO));
        eventually(10 * SECOND, "half of them are granted", || {
            tasks.iter().filter(|task| task.is_woken()).count() > 100
        });
        let granted: Vec<_> = tasks.iter_mut().take(20).map(Task::poll).collect();
        drop(granted);
        drop(tasks);
        drop(held);
        if goes_on {
            fleet[0].cont();
            assert_eq!(client.close(10 * SECOND).wait(), 0, "all nodes are there");
            fleet.wait_empty();
        } else {
            let left = client.close(millis(200)).wait();
            assert!(start.elapsed() < 10 * SECOND, "it took {:?}", start.elapsed());
            assert!((1..=201).contains(&left), "{left} are left");
            assert_eq!(client.close(Duration::ZERO).wait(), left, "whoever asks");
            fleet[0].cont();
            wait_until_all_keys_end(&fleet, ttl);
        }
    }
}

#[test]
fn a_client_whose_socket_is_full_is_dropped_without_waiting() {
    let fleet = Fleet::start(3);
    let ttl = 4 * SECOND;
    let client = client(&fleet);
    fleet[0].stop();
    let tasks = fill_a_socket(&client, LockOptions::new(ttl).wait(Duration::ZERO));
    let start = Instant::now();
    drop(client);
    drop(tasks);
    assert!(start.elapsed() < 5 * SECOND, "it took {:?}", start.elapsed());
    let others = || fleet.iter().skip(1).flat_map(|node| node.keys()).count();
    eventually(10 * SECOND, "the others have nothing", || others() == 0);
    fleet[0].cont();
    wait_until_all_keys_end(&fleet, ttl);
}

/// Waits until every key is gone, by a release or by its ttl.
#[track_caller]
fn wait_until_all_keys_end(fleet: &Fleet, ttl: Duration) {
    eventually(ttl + SOON, "no key is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn credentials_that_panic_keep_a_node_away_and_the_driver_goes_on() {
    let fleet = Fleet::start(3);
    let panics = Arc::new(AtomicBool::new(false));
    let look = Arc::clone(&panics);
    let config = config(&fleet).credentials(move |_| {
        assert!(!look.load(Ordering::Relaxed), "credentials of the user's");
        None
    });
    let client = ready::shared(config);
    let held = client.lock("a", TTL).wait().unwrap();
    let other = client.clone();
    let waiter = std::thread::spawn(move || other.lock("a", TTL).wait().map(|guard| guard.check()));
    eventually(SOON, "it waits", || client.gauges().calls == 1);
    panics.store(true, Ordering::Relaxed);
    fleet.command(&["CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES"]);
    eventually(10 * SECOND, "nobody is connected", || {
        client.nodes().iter().all(|&it| it != NodeState::Ready)
    });
    panics.store(false, Ordering::Relaxed);
    ready::wait_all_ready(&client);
    drop(held);
    assert_eq!(in_time("the waiter", move || waiter.join().unwrap()), Ok(Ok(())));
}

#[test]
fn a_resolver_that_panics_is_asked_again() {
    let fleet = Fleet::start(1);
    let (good, asked) = (fleet[0].address(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&asked);
    let config = Config::new(["redis://node.of.the.tests:1"]).unwrap();
    let config = config.restart_guard(RestartGuard::Off).connect_timeout(millis(100));
    let config = config.resolver(move |_, _| match count.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(vec![SocketAddr::from(([127, 0, 0, 1], 1))]),
        1 => panic!("a resolver of the user's"),
        _ => Ok(vec![good]),
    });
    let client = SharedClient::connect_blocking(config).unwrap();
    eventually(30 * SECOND, "its name leads there", || client.nodes() == [NodeState::Ready]);
    assert!(asked.load(Ordering::Relaxed) >= 3);
}

#[test]
fn address_of_a_name_is_updated_also_if_the_caller_takes_the_events() {
    let fleet = Fleet::start(1);
    let far = Proxy::start(fleet[0].address());
    far.vanish();
    let (good, away) = (fleet[0].address(), SocketAddr::from(([127, 0, 0, 1], far.port())));
    let asked = AtomicU32::new(0);
    let config = Config::new(["redis://node.of.the.tests:1"]).unwrap();
    let config = config.restart_guard(RestartGuard::Off).connect_timeout(millis(100));
    let config = config.resolver(move |_, _| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Ok(vec![away]),
        _ => Ok(vec![good]),
    });
    let client = SharedClient::connect_blocking(config).unwrap();
    eventually(30 * SECOND, "its name leads there", || {
        for event in std::iter::from_fn(|| client.poll_node_event()) {
            let stale = matches!(event, NodeEvent::AddressStale { .. });
            assert!(!stale, "the client looks names up by itself: {event:?}");
        }
        client.nodes() == [NodeState::Ready]
    });
}
