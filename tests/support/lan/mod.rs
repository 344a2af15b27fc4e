//! A LAN inside this process, in simulated time: masters, and contenders that want the same keys.
//!
//! The simulation opens no socket and reads no clock, so the figures of a run are the same on every
//! machine. The contenders compute in no simulated time, so the benches measure their cost in
//! commands.

mod bare;
mod client;
#[path = "../dice.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod dice;
mod figures;
mod kind;
mod program;
mod world;

#[allow(unused_imports, reason = "a test or a bench needs some of them")]
pub use {
    figures::{Counts, Figures},
    kind::Kind,
    world::{Setting, TTL, run},
};
