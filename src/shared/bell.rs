//! The bell of a thread that waits for a call, and how several bells are rung together.
//!
//! A thread sleeps at one of the words of the process, under one of its bits, and one system call
//! wakes all threads of a word whose bits it names. The hazard is a ring between the last look at
//! the bell and the sleep. So a thread reads the word before it sets its bell to asleep, and a
//! thread that rings an asleep bell changes the word after that. A sleep that has not begun by then
//! does not begin.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

use crate::net::clock;
use crate::net::sync::{AtomicU32, Ordering, SLEEPERS, WORD_COUNT, WORDS};

/// The bell was not rung.
const SILENT: u32 = 0;

/// The bell was rung, and its thread has not seen that yet.
const RUNG: u32 = 1;

/// The bell was not rung, and its thread sleeps or is about to.
const ASLEEP: u32 = 2;

const BITS: u32 = u32::BITS;

/// The bell of one thread.
#[derive(Debug)]
pub(super) struct Bell {
    state: AtomicU32,
    /// The word at which the thread sleeps.
    word: usize,
    bit: NonZeroU32,
}

impl Bell {
    /// A bell for the calling thread.
    pub(super) fn new() -> Bell {
        let number = SLEEPERS.fetch_add(1, Ordering::Relaxed);
        let word = (number / BITS) as usize % WORD_COUNT;
        let bit = NonZeroU32::new(1 << (number % BITS)).expect("one bit is set");
        Bell { state: AtomicU32::new(SILENT), word, bit }
    }

    /// Returns whether the thread sleeps, so that it has to be woken.
    fn ring(&self) -> bool {
        self.state.swap(RUNG, Ordering::AcqRel) == ASLEEP
    }

    /// Waits until the bell is rung, for `limit` at most. Only its own thread may call this.
    pub(super) fn wait(&self, limit: Option<Duration>) {
        let until = limit.map(|limit| clock::now().saturating_add(limit));
        let word = &WORDS[self.word];
        loop {
            let seen = word.value();
            let sleeps =
                self.state.compare_exchange(SILENT, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
            if sleeps.is_ok() {
                let left = until.map(|until| until.saturating_since(clock::now()));
                if left.is_none_or(|left| !left.is_zero()) {
                    word.sleep(seen, self.bit, left);
                }
            }
            if self.state.swap(SILENT, Ordering::AcqRel) == RUNG {
                return;
            }
            if until.is_some_and(|until| clock::now() >= until) {
                return;
            }
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.ring() {
            WORDS[self.word].wake(self.bit);
        }
    }
}

/// Bells that were rung while a mutex was locked: after that their threads are woken.
#[derive(Debug, Default)]
pub(super) struct Ringing {
    count: usize,
    /// The bits of the threads that sleep, for each word.
    asleep: [u32; WORD_COUNT],
}

impl Ringing {
    /// Rings a bell.
    pub(super) fn ring(&mut self, bell: &Bell) {
        self.count += 1;
        if bell.ring() {
            self.asleep[bell.word] |= bell.bit.get();
        }
    }

    /// How many bells were rung.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Takes out which threads to wake, if any bell was rung.
    pub(super) fn take(&mut self) -> Option<Ringing> {
        (self.count > 0).then(|| std::mem::take(self))
    }

    /// Wakes the threads that sleep, those of a word by one system call.
    pub(super) fn wake(self) {
        for (word, bits) in WORDS.iter().zip(self.asleep) {
            if let Some(bits) = NonZeroU32::new(bits) {
                word.wake(bits);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn sleep_does_not_begin_after_a_wake_that_came_before_it() {
        let bell = Bell::new();
        let word = &WORDS[bell.word];
        let (seen, start) = (word.value(), clock::now());
        word.wake(bell.bit);
        word.sleep(seen, bell.bit, Some(LONG));
        assert!(clock::now().saturating_since(start) < LONG);
    }

    #[test]
    fn wait_ends_at_its_limit_also_if_a_thread_with_the_same_bit_is_woken() {
        let bell = Bell::new();
        let limit = Duration::from_millis(50);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let start = clock::now();
                bell.wait(Some(limit));
                clock::now().saturating_since(start)
            });
            while !waits.is_finished() {
                WORDS[bell.word].wake(bell.bit);
            }
            assert!(waits.join().expect("it waits") >= limit);
        });
    }

    #[test]
    fn more_threads_than_bits_are_all_woken_together() {
        let bells: Vec<_> = (0..600).map(|_| Arc::new(Bell::new())).collect();
        std::thread::scope(|scope| {
            for bell in &bells {
                scope.spawn(|| bell.wait(None));
            }
            let mut ringing = Ringing::default();
            bells.iter().for_each(|bell| ringing.ring(bell));
            assert_eq!(ringing.len(), bells.len());
            ringing.wake();
        });
    }
}
