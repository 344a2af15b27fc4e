//! A word at which threads sleep, made with a mutex and a condition variable, for systems other
//! than Linux and for random schedules. A wake wakes all threads of the word, whatever their bits.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{Condvar, Mutex, PoisonError};

/// A word at which threads sleep, each under one of its 32 bits.
#[derive(Debug, Default)]
pub(crate) struct Word {
    value: Mutex<u32>,
    changed: Condvar,
}

impl Word {
    /// The value, which each wake changes.
    pub(crate) fn value(&self) -> u32 {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until this bit is woken, for `limit` at most; not at all if the value is no longer
    /// the one that was `seen`. It may return without a cause.
    pub(crate) fn sleep(&self, seen: u32, _: NonZeroU32, limit: Option<Duration>) {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        if *value != seen {
            return;
        }
        match limit {
            Some(limit) => drop(self.changed.wait_timeout(value, limit)),
            None => drop(self.changed.wait(value)),
        }
    }

    /// Wakes the threads that sleep under these bits.
    pub(crate) fn wake(&self, _: NonZeroU32) {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        *value = value.wrapping_add(1);
        drop(value);
        self.changed.notify_all();
    }
}
