//! The shared client on real servers: calls as futures and from threads, guards that renew by
//! themselves, and its end.

#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]

#[path = "../support/mod.rs"]
mod support;

mod basics;
mod by_hand;
mod dropped;
mod ends;
mod forked;
mod lost;
mod quiet;
#[cfg(feature = "tokio")]
mod runtimes;
mod threads;
mod yielding;

use std::time::{Duration, Instant};

use redlatch::shared::Gauges;
use redlatch::{Config, NodeState, RestartGuard, SharedClient};
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
    let idle = Gauges { timers: before.timers, ..Gauges::default() };
    let start = Instant::now();
    while client.gauges() != idle {
        let now = client.gauges();
        assert!(start.elapsed() < 10 * SECOND, "{now:?} is open, and it was {before:?}");
        std::thread::sleep(millis(2));
    }
}

/// Numbers that look random, from a seed that is printed.
#[derive(Debug, Clone)]
struct Dice(u64);

impl Dice {
    /// Those of this process.
    fn of_this_run() -> Dice {
        let seed = u64::from(std::process::id());
        println!("the dice are of seed {seed}");
        Dice(seed)
    }

    /// Others, for something that rolls by itself.
    fn others(&mut self) -> Dice {
        Dice(u64::from(self.roll(u32::MAX)) << 32 | u64::from(self.roll(u32::MAX)))
    }

    /// 0 to `sides` - 1.
    fn roll(&mut self, sides: u32) -> u32 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(sides)) as u32
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
