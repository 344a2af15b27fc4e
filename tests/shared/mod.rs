//! The shared client on real servers: calls as futures and from threads, guards that renew by
//! themselves, and its end.

mod basics;
mod close_and_panics;
mod dropped;
mod executor;
mod forked;
mod leading;
mod loss;
#[cfg(feature = "tokio")]
mod runtimes;
mod threads;
mod wake_ups;
mod yielding;

use std::time::{Duration, Instant};

use crate::support::{Dice, Fleet, SECOND, eventually, millis};
use redlatch::shared::Gauges;
use redlatch::{Config, NodeState, RestartGuard, SharedClient};

const TTL: Duration = Duration::from_secs(10);

/// The nodes of this fleet, with a node timeout that no healthy node misses here. These servers are
/// seconds old, and nothing was ever locked there.
fn config(fleet: &Fleet) -> Config {
    let config = Config::new(fleet.urls()).expect("good addresses");
    config.restart_guard(RestartGuard::Off).node_timeout(millis(500))
}

/// A client whose nodes are all ready.
fn client(fleet: &Fleet) -> SharedClient {
    let client = SharedClient::connect(config(fleet)).expect("a good configuration");
    all_ready(&client, fleet);
    client
}

fn all_ready(client: &SharedClient, fleet: &Fleet) {
    eventually(10 * SECOND, "the nodes are ready", || {
        let ready = client.nodes().iter().filter(|&&it| it == NodeState::Ready).count();
        ready == fleet.len()
    });
}

/// The tokens that the key holds, one for each node that has it.
fn tokens(fleet: &Fleet, key: &str) -> Vec<Vec<u8>> {
    fleet.iter().filter_map(|node| node.get(key)).collect()
}

/// No node has any key; it may take a moment until the last release has arrived.
fn nothing_is_left(fleet: &Fleet, within: Duration) {
    eventually(within, "no key is left", || fleet.keys_everywhere().is_empty());
}

/// Nothing is open in the client any more, and as many timers are set as before all that.
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

/// Does something on a thread of its own, and fails if that hangs.
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
