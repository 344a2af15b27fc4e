//! Panics in code of the caller: in a function that the configuration carries, and in a thread
//! whose unwinding drops a client.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::support::free_port;
use event_loops::LOOPS;
use redlatch::{FdEngine, LockOptions};

#[test]
fn panic_of_the_credentials_function_ends_that_connection_only() {
    let fleet = Fleet::start(3);
    for make in LOOPS {
        let unlucky = fleet[1].address().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let config = config(fleet.urls()).credentials(move |label| {
            if label == unlucky && count.fetch_add(1, Ordering::SeqCst) < 2 {
                panic!("nobody knows");
            }
            None
        });
        let mut locks = FdEngine::new(config).unwrap();
        let mut outer = make(&mut locks);
        // The turns in which the function panics end as all others do.
        outer.wait_ready(&mut locks, 3);
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        locks.batch().acquire("a", LockOptions::once(TTL), 1).unwrap();
        let lock = outer.won(&mut locks);
        locks.batch().release(lock, 2);
        outer.completion(&mut locks);
    }
}

#[test]
fn panic_of_the_resolver_counts_as_a_name_that_was_not_found() {
    let fleet = Fleet::start(3);
    let (port, nobody) = (fleet[2].port(), free_port());
    let urls = [fleet[0].url(), fleet[1].url(), format!("redis://node.example:{port}")];
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let config = config(urls).resolver(move |_, port| {
        // The resolver first gives a dead address, then panics, then gives the right one.
        let port = match count.fetch_add(1, Ordering::SeqCst) {
            0 => nobody,
            1 => panic!("no name server"),
            _ => port,
        };
        Ok(vec![([127, 0, 0, 1], port).into()])
    });
    let client = client(config.reconnect(millis(1), millis(20)));
    assert!(asked.load(Ordering::SeqCst) >= 3);
    drop(client);
}

#[test]
fn panic_that_drops_a_client_releases_its_locks() {
    let fleet = Fleet::start(3);
    let client = client(config(fleet.urls()));
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _one = client.try_lock("one", TTL).unwrap();
        let _two = client.try_lock("two", TTL).unwrap();
        panic!("of the caller");
    }));
    assert!(panicked.is_err());
    eventually(SOON, "both are given back", || fleet.keys_everywhere().is_empty());

    let mut locks = FdEngine::new(config(fleet.urls())).unwrap();
    let mut outer = Outer::Level;
    outer.wait_ready(&mut locks, 3);
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let mut ask = locks.batch();
        ask.acquire("three", LockOptions::once(TTL), 1).unwrap();
        panic!("of the caller, while it asks");
    }));
    assert!(panicked.is_err());
    eventually(SOON, "it is given back", || fleet.keys_everywhere().is_empty());
}
