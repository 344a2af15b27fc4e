//! The library on real servers, through each of its interfaces.
//!
//! If a rule is about time, the tests look at the order of events, or at a bound ten times what is
//! expected: these machines are shared. What was measured is printed.

#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]

#[path = "support/engine_loop.rs"]
mod engine_loop;
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
