//! What a program can observe of its locks: the spans and events of `tracing`, and the metrics of
//! the `metrics` facade. The masters are in-process.

#![allow(clippy::disallowed_methods, reason = "a test waits for real sockets, on a real clock")]

mod collector;
mod measured;
#[path = "../support/ready.rs"]
mod ready;
mod traced;

use redlatch::testing::tcp::Masters;
use redlatch::{Config, RestartGuard};

/// A configuration without the restart guard, so that the grants of these new masters count.
fn config(masters: &Masters) -> Config {
    let config = Config::new(masters.urls()).expect("the addresses are right");
    config.restart_guard(RestartGuard::Off)
}
