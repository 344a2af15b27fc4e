//! The keys that one thread has in flight at an engine, and what is asked next for each: the part
//! that the doors with completions share.

use std::time::Instant;

use kit::Samples;
use redlatch::{Completion, Engine, LockOptions, Outcome};

use super::TTL;

/// Keys, each of which is being acquired or released.
pub struct Slots {
    keys: Vec<String>,
    asked: Vec<Instant>,
    open: usize,
    until: Instant,
    samples: Samples,
}

impl Slots {
    pub fn new(name: &str, in_flight: usize) -> Slots {
        let keys = (0..in_flight).map(|slot| format!("{name}:{slot:04}")).collect();
        let now = Instant::now();
        let (asked, samples) = (vec![now; in_flight], Samples::default());
        Slots { keys, asked, open: 0, until: now, samples }
    }

    /// Asks for every key.
    pub fn begin(&mut self, engine: &mut Engine, until: Instant) {
        (self.open, self.until) = (self.keys.len(), until);
        for slot in 0..self.keys.len() {
            self.acquire(engine, slot);
        }
    }

    /// Releases a lock that was acquired, and requests the key of a lock that was released.
    pub fn take(&mut self, engine: &mut Engine, done: Completion) {
        let slot = done.data as usize;
        match done.result {
            Ok(Outcome::Acquired(lock)) => {
                self.samples.acquired(self.asked[slot]);
                engine.release(lock, done.data);
            }
            Ok(Outcome::Released(_)) if Instant::now() < self.until => self.acquire(engine, slot),
            Ok(Outcome::Released(_)) => self.open -= 1,
            other => panic!("a free key came to {other:?}"),
        }
    }

    /// Whether something is in flight.
    pub fn is_open(&self) -> bool {
        self.open > 0
    }

    pub fn samples(&mut self) -> Samples {
        std::mem::take(&mut self.samples)
    }

    fn acquire(&mut self, engine: &mut Engine, slot: usize) {
        self.asked[slot] = Instant::now();
        engine
            .acquire(&self.keys[slot], LockOptions::once(TTL), slot as u64)
            .expect("there is room");
    }
}
