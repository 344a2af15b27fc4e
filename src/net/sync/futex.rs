//! A word at which threads sleep, made with the system's futex.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex::{Flags, wait_bitset, wake_bitset};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// A word at which threads sleep, each under one of its 32 bits.
#[derive(Debug)]
pub(crate) struct Word(AtomicU32);

impl Word {
    pub(crate) const fn new() -> Word {
        Word(AtomicU32::new(0))
    }

    /// The value, which each wake changes.
    pub(crate) fn value(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sleeps until this bit is woken, for `limit` at most; not at all if the value is no longer
    /// the one that was `seen`. It may return without a cause.
    pub(crate) fn sleep(&self, seen: u32, bit: NonZeroU32, limit: Option<Duration>) {
        let until = limit.map(end_of);
        // The caller's own state shows why it returned.
        let _ = wait_bitset(&self.0, Flags::PRIVATE, seen, until.as_ref(), bit);
    }

    /// Wakes the threads that sleep under these bits.
    pub(crate) fn wake(&self, bits: NonZeroU32) {
        self.0.fetch_add(1, Ordering::AcqRel);
        // This fails only for an invalid address.
        let _ = wake_bitset(&self.0, Flags::PRIVATE, i32::MAX as u32, bits);
    }
}

/// The moment after `limit`, by the clock of this system call.
fn end_of(limit: Duration) -> Timespec {
    let now = clock_gettime(ClockId::Monotonic);
    let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    now.checked_add(limit).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}
