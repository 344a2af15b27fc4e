//! The doors: the ways in which a caller drives the engine, which are its own poller, one
//! descriptor, and blocking calls. Each door is woken when it has work, sleeps otherwise, and ends
//! in order.
//!
//! In these tests a caller hangs if a wake-up is lost: [`config`] leaves it no timer that would
//! wake it later.

mod both_clients;
mod close;
mod event_loops;
mod fd;
mod forked;
mod many_engines;
mod panics;
mod random;
mod send_sync;
mod shared_stressed;
mod short_ttls;
mod signals;
mod stress;
mod stressed;
mod timers;

use std::time::{Duration, Instant};

use crate::ready;
use crate::support::{Dice, Fleet, Node, SECOND, SOON, eventually, millis, number};
use event_loops::Outer;
use redlatch::{Client, Config, RestartGuard};

const TTL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// A wake-up that does not come within this time is lost.
const LOST: Duration = Duration::from_secs(10);

/// A configuration without timers that fire during a test: only the expected event wakes the loop.
fn config(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Config {
    let config = Config::new(urls).expect("good addresses");
    // These servers are seconds old, and no lock was ever granted there.
    let config = config.restart_guard(RestartGuard::Off).max_ttl(HOUR);
    config.node_timeout(60 * SECOND).reset_after(HOUR).probe_interval(HOUR)
}

/// A blocking client all of whose nodes are ready.
#[track_caller]
fn client(config: Config) -> Client {
    ready::client(config)
}

/// Ends connections of other clients to this node, each with this probability in percent, as a
/// restart of a proxy or a firewall that drops idle connections does.
fn kill_some(node: &Node, percent: u32, dice: &mut Dice) {
    for line in node.client_list() {
        let id = line.split(' ').find_map(|word| word.strip_prefix("id=")).expect("it has an id");
        if dice.roll(100) < percent {
            node.command(&["CLIENT", "KILL", "ID", id]);
        }
    }
}
