//! The shared client on real servers: calls as futures and from threads, guards that renew by
//! themselves, and its end.

#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]

#[path = "../support/mod.rs"]
mod support;

mod basics;
#[cfg(feature = "tokio")]
mod runtimes;

use std::time::{Duration, Instant};

use redlatch::{Config, RestartGuard, SharedClient, Standing};
use support::{Fleet, eventually};

const TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

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
        let ready = client.nodes().iter().filter(|&&it| it == Standing::Ready).count();
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
