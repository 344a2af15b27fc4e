//! What a program that watches its locks gets: the spans and events of `tracing`, and the metrics
//! of the `metrics` facade, on masters inside the process.

#![allow(clippy::disallowed_methods, reason = "a test waits for real sockets, on a real clock")]

mod collector;
mod measured;
#[path = "../support/ready.rs"]
mod ready;
mod traced;

use redlatch::testing::tcp::Masters;
use redlatch::{Config, RestartGuard};

/// A configuration for these masters, whose grants count at once.
fn config(masters: &Masters) -> Config {
    let config = Config::new(masters.urls()).expect("the addresses are right");
    config.restart_guard(RestartGuard::Off)
}
