//! The library on real servers, through each of its interfaces.
//!
//! These machines are shared, and the tests have to pass at a load of twenty and more. So a test
//! takes its clients from `ready`, waits for up to `SOON` for what takes no time, and waits for a
//! node before it reads it, because that node need not be in the majority. If a rule is about time,
//! the test checks the order of events, compares with a plain timer, or has a bound that is ten
//! times what is expected. It prints what it measured.
//!
//! A machine may also stall for a second or two. So a test acquires a short lock with `lock`, which
//! tries again, and keeps a lock with a ttl of at least four seconds. Where a test needs shorter
//! times, `despite_stalls` runs it again after a stall.

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
