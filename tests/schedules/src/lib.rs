//! The shared client of redlatch, compiled with locks and threads whose order is drawn at random.
//!
//! `src/shared` and `src/proto` are the code of the library, word for word, and so is what an
//! engine does in a turn. `net` has the rest as a test needs it: locks and threads of the crate
//! `shuttle`, a poller and a network between tasks, and a clock that stands still. The hazard is
//! the clock: what only a timeout brings about never happens here.
#![forbid(unsafe_code)]
// The unit tests beside the code of the library are not for this package.
#![cfg(not(test))]
#![allow(dead_code, unused_imports, reason = "no test uses all of the library")]
#![allow(unexpected_cfgs, reason = "the features are those of the library")]

pub mod config;
pub mod net;
#[path = "../../../src/proto/mod.rs"]
pub mod proto;
#[path = "../../../src/shared/mod.rs"]
pub mod shared;
