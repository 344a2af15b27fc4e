//! How nodes are run and reached in production: with TLS, with users that have few rights, by names
//! whose addresses change, over Unix sockets, and on servers that refuse half of the commands.

mod credentials;
#[cfg(feature = "tls")]
mod encrypted;
mod moves;
mod no_lua;
#[cfg(feature = "tls")]
mod papers;
mod rights;
mod secrets;
mod sentinels;

use std::path::Path;
use std::time::{Duration, Instant};

use crate::engine_loop::sleep;
use crate::ready;
use crate::support::{Fleet, Node, SECOND, SOON, eventually, millis};
use redlatch::{Client, Config, NodeState, ReleaseOutcome, RestartGuard};

const TTL: Duration = Duration::from_secs(10);

/// A configuration without the restart guard, because these servers are seconds old and granted no
/// lock before.
fn config(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Config {
    let config = Config::new(urls).expect("good addresses");
    config.restart_guard(RestartGuard::Off).node_timeout(3 * SECOND)
}

/// A client whose nodes are all ready.
#[track_caller]
fn ready(config: Config) -> Client {
    ready::client(config)
}

/// Acquires, extends and releases a lock.
#[track_caller]
fn lock_extend_and_release(client: &Client) {
    let mut guard = client.try_lock("invoice:42", TTL).expect("a free key");
    guard.extend(2 * TTL).expect("a lock that is held");
    assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
}

/// `redis://credentials@127.0.0.1:PORT/db`
fn url(node: &Node, credentials: &str, db: &str) -> String {
    format!("redis://{credentials}127.0.0.1:{}{db}", node.port())
}
