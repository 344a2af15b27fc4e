//! The library on real servers, through each of its interfaces.
//!
//! These machines are shared, and the tests pass at a load of twenty and more. So a test takes its
//! clients from `ready`, waits for what comes at once as long as `SOON`, and reads a node that need
//! not be among the majority only after it has waited for that node. If a rule is about time, the
//! tests look at the order of events, at a plain timer beside the client, or at a bound ten times
//! what is expected. What was measured is printed.
//!
//! A machine may also stall for a second or two. A test waits for a short lock with `lock`, which
//! makes another attempt, and keeps a lock with a ttl of at least four seconds. Where a test needs
//! shorter times, `despite_stalls` runs it again after a stall.

#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]

#[path = "support/engine_loop.rs"]
mod engine_loop;
#[path = "support/ready.rs"]
mod ready;
mod support;
#[path = "support/tests.rs"]
mod support_tests;

mod deploy;
#[cfg(any(target_os = "linux", target_os = "android"))]
mod doors;
mod faults;
mod live;
mod sets;
mod shared;
mod waiting;
