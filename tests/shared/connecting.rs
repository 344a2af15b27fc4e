//! A shared client that connects while its caller does something else.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use redlatch::Error;
use redlatch::testing::tcp::Masters;

use super::*;

/// Polls a future that is not ready yet.
#[track_caller]
fn begin<F: Future>(future: Pin<&mut F>) {
    let polled = future.poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
}

/// The connections to this node that have the name of this test's client.
fn connections(node: &Node, name: &str) -> usize {
    let name = format!("name={name}");
    node.client_list().iter().filter(|line| line.split(' ').any(|word| word == name)).count()
}

#[test]
fn connect_does_not_block_the_thread_that_polls_it() {
    let masters = Masters::start(3).expect("there are ports");
    masters.iter().for_each(|master| master.freeze());
    let config = Config::new(masters.urls()).unwrap().restart_guard(RestartGuard::Off);
    let mut connecting = pin!(SharedClient::connect(config.connect_timeout(20 * SECOND)));
    let start = Instant::now();
    begin(connecting.as_mut());
    assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
    masters.iter().for_each(|master| master.thaw());
    // `block_on` polls with another waker than the last poll did. The client has to wake this new
    // one.
    let locks = smol::block_on(connecting).expect("the nodes answer");
    let guard = smol::block_on(locks.lock("a", TTL)).expect("it is free");
    guard.check().unwrap();
}

#[test]
fn connect_reports_what_cannot_work() {
    let config = || Config::new(["redis://127.0.0.1:1"]).unwrap().max_ttl(Duration::ZERO);
    let error = smol::block_on(SharedClient::connect(config())).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert_eq!(SharedClient::connect_blocking(config()).unwrap_err(), error);
}

/// The future is dropped before its first poll, while it connects, or when it has connected and was
/// not polled again.
#[test]
fn connect_that_is_dropped_leaves_no_connection() {
    let fleet = Fleet::start(3);
    let config = |name: &str| config(&fleet).client_name(name);
    drop(SharedClient::connect(config("never")));
    for (name, waits) in [("at-once", false), ("later", true)] {
        {
            let mut connecting = pin!(SharedClient::connect(config(name)));
            begin(connecting.as_mut());
            if waits {
                eventually(SOON, "it is connected", || {
                    fleet.iter().all(|node| connections(node, name) > 0)
                });
                std::thread::sleep(millis(100));
            }
        }
        eventually(SOON, "its connections are closed", || {
            fleet.iter().all(|node| connections(node, name) == 0)
        });
    }
    assert!(fleet.iter().all(|node| connections(node, "never") == 0));
    // A connect that is not dropped stays connected.
    let locks = smol::block_on(SharedClient::connect(config("stays"))).unwrap();
    assert!(fleet.iter().any(|node| connections(node, "stays") > 0));
    drop(locks);
}
