//! What the threads of a shared client share state and wait with: mutexes, atomic values and thread
//! functions, all from the standard library.
//!
//! `src/shared` takes them from here and nowhere else, because the package in `tests/schedules`
//! compiles it with another module of this name. The hazard is such a type that comes from `std`
//! directly: random schedules would not interrupt a thread there.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::{thread, thread_local};

/// How many threads can run at the same time.
pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
