//! What the threads of a shared client share state and wait with: mutexes, atomic values and thread
//! functions of the standard library, and words at which threads sleep. One system call wakes
//! several of these threads, which `thread::park` has no way to do.
//!
//! `src/shared` takes them from here and nowhere else, because the package in `tests/schedules`
//! compiles it with another module of this name. The hazard is such a type that comes from `std`
//! directly: random schedules would not interrupt a thread there.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod futex;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod portable;

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
pub(crate) use std::{thread, thread_local};

/// How many words there are, with 32 bits each: 512 threads have a bit of their own. Threads that
/// share a bit wake each other.
pub(crate) const WORD_COUNT: usize = 16;

/// The words at which the threads of this process sleep.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) static WORDS: [futex::Word; WORD_COUNT] = [const { futex::Word::new() }; WORD_COUNT];

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) static WORDS: std::sync::LazyLock<[portable::Word; WORD_COUNT]> =
    std::sync::LazyLock::new(Default::default);

/// How many threads have got a bit: the number of the next one.
pub(crate) static SLEEPERS: AtomicU32 = AtomicU32::new(0);

/// How many threads can run at the same time.
pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}
