//! What the live tests share: real servers, a client to look into them, listeners with a script.
//!
//! This module knows nothing of the library under test. The one hazard: a [`Fleet`] holds one of a
//! few places for which every test of this machine waits, so a test has one fleet at a time and
//! drops it early.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of this")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, on a real clock")]

pub mod again;
pub mod asked;
mod canned;
mod dice;
pub mod drawing;
mod folder;
pub mod holds;
mod listener;
mod lock;
mod monitor;
mod plain_timer;
mod ports;
mod process;
mod proxy;
mod redis;
mod resp_client;
pub mod sentinels;
pub mod signals;
mod stalls;

use std::time::{Duration, Instant};

pub use asked::number;
pub use canned::{Canned, Reply, healthy};
pub use dice::Dice;
pub use folder::Folder;
pub use listener::{CountingListener, Scripted};
pub use lock::{PLACES, ServerLock};
pub use monitor::Monitor;
pub use plain_timer::PlainTimer;
pub use ports::{free_port, is_reserved};
pub use process::Server;
pub use proxy::{Cut, Proxy, Way};
pub use redis::{Fleet, Node};
pub use resp_client::{RespClient, Value, encode};
pub use stalls::despite_stalls;

pub const SECOND: Duration = Duration::from_secs(1);

/// How long a test waits for what a client, a node or a tool does without waiting for a timer. It
/// takes milliseconds, and on a machine with a dozen busy programs for each processor up to half a
/// second.
///
/// Half of the ttl that most tests give a lock, so a key that is gone within this time was released
/// and did not expire. [`Fleet::emptied`] checks that also where the ttl is shorter.
pub const SOON: Duration = Duration::from_secs(5);

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Calls `holds` again and again until it is true; panics with `what` after `limit`.
///
/// A test names what it waits for, instead of sleeping for as long as that usually takes.
#[track_caller]
pub fn eventually(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        if holds() {
            return;
        }
        let waited = start.elapsed();
        assert!(waited < limit, "waited {waited:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
