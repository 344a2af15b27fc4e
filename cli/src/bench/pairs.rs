//! The pairs in flight. A pair is one acquire, and the release right after it.
//!
//! A [`Load`](super::measure::Load) decides when a pair begins. Both latencies are those that a
//! caller sees: from the call, or from when the call should have been made, until the caller has
//! the answer.

use std::time::Duration;

use redlatch::{Completion, Error, LockOptions, Op, Outcome, clock, clock::Instant};
use slab::Slab;

use super::driver::Driver;
use super::tally::Tally;

/// A pair that has to begin now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// The client that acquires.
    pub client: usize,
    /// The number of the key.
    pub key: usize,
    /// When the pair should have begun, if the load has fixed moments: its latency is measured from
    /// then.
    pub intended: Option<Instant>,
}

/// A pair that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    pub client: usize,
    pub key: usize,
    /// The pair got no lock.
    pub failed: bool,
}

/// The measured time. Pairs that begin before or after it are not recorded.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    pub begin: Instant,
    pub end: Instant,
}

impl Window {
    pub fn counts(&self, from: Instant) -> bool {
        self.begin <= from && from < self.end
    }
}

#[derive(Debug)]
struct Pair {
    client: usize,
    key: usize,
    from: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Asking(Op),
    Releasing { acquire: Duration, from: Instant },
}

/// The pairs in flight.
#[derive(Debug)]
pub struct Pairs {
    keys: Vec<String>,
    options: LockOptions,
    slab: Slab<Pair>,
    /// The number of the measurement. It distinguishes these pairs from those of an earlier one,
    /// whose answers may still come in.
    round: u64,
}

/// How many low bits of a request's `data` are the pair's number. The others are the round.
const PAIR_BITS: u32 = 32;

impl Pairs {
    pub fn new(keys: Vec<String>, options: LockOptions, round: u64) -> Pairs {
        Pairs { keys, options, slab: Slab::new(), round }
    }

    /// How many pairs are in flight.
    pub fn in_flight(&self) -> usize {
        self.slab.len()
    }

    /// Begins a pair: requests its lock.
    ///
    /// # Errors
    /// The request is refused before anything is sent.
    pub fn begin(&mut self, driver: &mut Driver, begin: Begin) -> Result<(), (Instant, Error)> {
        let Begin { client, key, intended } = begin;
        let entry = self.slab.vacant_entry();
        let data = (self.round << PAIR_BITS) | entry.key() as u64;
        let from = intended.unwrap_or_else(clock::now);
        let asked = driver.client(client).acquire(&self.keys[key], self.options, data);
        let stage = Stage::Asking(asked.map_err(|error| (from, error))?);
        entry.insert(Pair { client, key, from, stage });
        Ok(())
    }

    /// Handles the end of a request. After an acquire this requests the release; after a release or
    /// an error it returns the pair that has ended, and records it if it began in the window.
    pub fn take(
        &mut self,
        driver: &mut Driver,
        done: Completion,
        window: &Window,
        tally: &mut Tally,
    ) -> Option<Ended> {
        let number = (done.data & u64::from(u32::MAX)) as usize;
        if done.data >> PAIR_BITS != self.round {
            return None;
        }
        let now = clock::now();
        let pair = self.slab.get_mut(number)?;
        let counts = window.counts(pair.from);
        let failed = match (done.result, &pair.stage) {
            (Ok(Outcome::Acquired(lock)), _) => {
                let acquire = now.saturating_since(pair.from);
                pair.stage = Stage::Releasing { acquire, from: now };
                driver.client(pair.client).release(lock, done.data);
                return None;
            }
            (Ok(Outcome::Released(how)), &Stage::Releasing { acquire, from }) => {
                if counts {
                    tally.pair(acquire, now.saturating_since(from), how);
                }
                false
            }
            (Ok(other), stage) => unreachable!("{stage:?} ended as {other:?}"),
            (Err(error), _) => {
                if counts {
                    tally.refused(&error);
                }
                true
            }
        };
        let Pair { client, key, .. } = self.slab.remove(number);
        Some(Ended { client, key, failed })
    }

    /// Cancels the acquires in flight, and returns how many pairs were in flight. Releases go on.
    pub fn abandon(&mut self, driver: &mut Driver) -> u64 {
        let in_flight = self.slab.len() as u64;
        for pair in self.slab.drain() {
            if let Stage::Asking(op) = pair.stage {
                driver.client(pair.client).cancel(op);
            }
        }
        in_flight
    }
}
