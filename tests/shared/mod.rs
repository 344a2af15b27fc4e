//! The shared client on real servers: calls as futures and from threads, guards that renew by
//! themselves, and its end.

mod basics;
mod close_and_panics;
mod connecting;
mod dropped;
mod elections;
mod executor;
mod expiring;
mod forked;
mod leading;
mod loss;
#[cfg(feature = "tokio")]
mod runtimes;
mod threads;
mod wake_ups;
mod yielding;

use std::time::{Duration, Instant};

use crate::ready;
use crate::support::{Dice, Fleet, Node, SECOND, SOON, despite_stalls, eventually, millis, number};
use redlatch::shared::Gauges;
use redlatch::{Config, NodeState, RestartGuard, SharedClient};

const TTL: Duration = Duration::from_secs(10);

/// The nodes of this fleet, with a node timeout that no healthy node misses, however busy the
/// machine is. These servers are seconds old, and nothing was ever locked there.
fn config(fleet: &Fleet) -> Config {
    let config = Config::new(fleet.urls()).expect("good addresses");
    config.restart_guard(RestartGuard::Off).node_timeout(5 * SECOND)
}

/// A client whose nodes are all ready.
fn client(fleet: &Fleet) -> SharedClient {
    ready::shared(config(fleet))
}

fn fleet_and_client(nodes: usize) -> (Fleet, SharedClient) {
    let fleet = Fleet::start(nodes);
    let client = client(&fleet);
    (fleet, client)
}

/// Checks that the client has no open request or record, and as many timers as before the test.
fn nothing_is_open(client: &SharedClient, before: Gauges) {
    let mut idle = Gauges::default();
    idle.timers = before.timers;
    let start = Instant::now();
    while client.gauges() != idle {
        let now = client.gauges();
        assert!(start.elapsed() < 10 * SECOND, "{now:?} is open, and it was {before:?}");
        std::thread::sleep(millis(2));
    }
}

/// Runs a closure on a thread of its own, and fails if the closure hangs.
#[track_caller]
fn in_time<T: Send + 'static>(what: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || sender.send(act()));
    match receiver.recv_timeout(20 * SECOND) {
        Ok(done) => done,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("it hangs: {what}"),
        Err(_) => std::panic::resume_unwind(thread.join().expect_err("it panicked")),
    }
}
