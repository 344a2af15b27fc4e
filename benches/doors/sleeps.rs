//! Threads that only sleep and are woken, twice a pair: the part of a pair that no client can save
//! its blocked threads.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use kit::{Door, Meter, Round, Samples};
use rustix::thread::futex::{Flags, wait, wake};

/// How many threads sleep at one word: one system call wakes them all.
const AT_ONE_WORD: usize = 32;

/// Threads that sleep until all of them do, and are then woken together.
pub struct Sleeps;

#[derive(Default)]
struct Beds {
    words: Vec<AtomicU32>,
    asleep: AtomicU32,
    closed: AtomicBool,
}

impl Beds {
    fn sleep(&self, number: usize, threads: u32) {
        let word = &self.words[number / AT_ONE_WORD];
        let seen = word.load(Ordering::Acquire);
        if self.asleep.fetch_add(1, Ordering::AcqRel) + 1 == threads {
            let _ = wake(&self.asleep, Flags::PRIVATE, 1);
        }
        while word.load(Ordering::Acquire) == seen {
            let _ = wait(word, Flags::PRIVATE, seen, None);
        }
    }

    /// Waits until all threads sleep, and wakes them.
    fn wake_all(&self, threads: u32) {
        loop {
            let asleep = self.asleep.load(Ordering::Acquire);
            if asleep == threads {
                break;
            }
            let _ = wait(&self.asleep, Flags::PRIVATE, asleep, None);
        }
        self.asleep.store(0, Ordering::Release);
        for word in &self.words {
            word.fetch_add(1, Ordering::AcqRel);
            let _ = wake(word, Flags::PRIVATE, i32::MAX as u32);
        }
    }

    fn make_pairs(&self, number: usize, threads: u32) -> Samples {
        let mut samples = Samples::default();
        loop {
            let asked = Instant::now();
            self.sleep(number, threads);
            if self.closed.load(Ordering::Acquire) {
                return samples;
            }
            samples.acquired(asked);
            self.sleep(number, threads);
        }
    }
}

impl Door for Sleeps {
    fn name(&self) -> &'static str {
        "Threads that only sleep twice"
    }

    fn run(&mut self, in_flight: usize, length: Duration) -> Round {
        let threads = u32::try_from(in_flight).expect("far fewer threads");
        let words = (0..in_flight.div_ceil(AT_ONE_WORD)).map(|_| AtomicU32::new(0)).collect();
        let (beds, mut samples) = (&Beds { words, ..Beds::default() }, Samples::default());
        let meter = std::thread::scope(|scope| {
            let started = |number| scope.spawn(move || beds.make_pairs(number, threads));
            let started: Vec<_> = (0..in_flight).map(started).collect();
            let meter = Meter::start();
            let until = meter.until(length);
            while Instant::now() < until {
                beds.wake_all(threads);
                beds.wake_all(threads);
            }
            beds.closed.store(true, Ordering::Release);
            beds.wake_all(threads);
            started.into_iter().for_each(|it| samples.append(it.join().expect("it only sleeps")));
            meter
        });
        meter.stop(samples)
    }
}
