//! The doors: the engine on somebody else's poller, behind one descriptor, behind a blocking call.
//! Whether it is woken when it has to be, left alone otherwise, and ends in order.
//!
//! Where a rule is about time, the tests look at the order of events, or at a bound ten times what
//! is expected: these machines are shared. What stands for ever when a wake-up is lost has no other
//! timer that would come to its help: see [`config`].

#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]
#![cfg(any(target_os = "linux", target_os = "android"))]

#[path = "../support/mod.rs"]
mod support;

mod fd;
mod outer;
mod timers;

use std::time::{Duration, Instant};

use outer::Outer;
use redlatch::{Client, Config, RestartGuard, Standing};
use support::{Fleet, Node, eventually};

const TTL: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// What does not come within this was lost.
const LOST: Duration = Duration::from_secs(10);

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// No timer of its own in the time that a test takes: nothing but what it waits for wakes it.
fn config<I>(urls: I) -> Config
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let config = Config::new(urls).expect("good addresses");
    // These servers are seconds old, and nothing was ever locked there.
    let config = config.restart_guard(RestartGuard::Off).max_ttl(HOUR);
    config.node_timeout(60 * SECOND).reset_after(HOUR).probe_interval(HOUR)
}

/// A blocking client all of whose nodes are ready.
#[track_caller]
fn client(config: Config) -> Client {
    let client = Client::connect(config).expect("a good configuration");
    eventually(10 * SECOND, "the nodes are ready", || {
        client.drive(millis(1)).expect("the poller works");
        client.nodes().iter().all(|&it| it == Standing::Ready)
    });
    client
}
