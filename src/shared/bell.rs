//! The bell of a thread that waits for a call, and how several bells are rung together.
//!
//! A thread sleeps at one of the words of the process, under one of its bits, and one system call
//! wakes all threads of a word whose bits it names. The hazard is a ring between the last look at
//! the bell and the sleep. So a thread reads the word before it says that it sleeps, and a thread
//! that rings changes the word after it has read that: then the sleep does not begin.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::task::Wake;
use std::time::Duration;

use crate::net::clock;
use crate::net::sync::{AtomicU32, Ordering, SLEEPERS, WORD_COUNT, WORDS};

/// No one has rung.
const SILENT: u32 = 0;

/// Someone has rung, and the thread did not see it yet.
const RUNG: u32 = 1;

/// No one has rung, and the thread sleeps or is about to.
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

    /// Takes the bells out, if any was rung.
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
