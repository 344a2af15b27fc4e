//! Copies of the locks, for tests that go on from one state in several ways.
//!
//! The hazard is the generator of tokens: two copies that draw from the same one give one token to
//! two attempts. So a copy draws from a generator of its own, which is the same for every copy. A
//! test gives it a new seed before it draws.

use crate::proto::locks::Locks;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::random::Random;
use crate::proto::locks::requests::Stage;

impl Locks {
    /// From now on, tokens and pauses are drawn from this seed.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.random = Random::new(seed);
    }
}

impl Clone for Random {
    fn clone(&self) -> Random {
        Random::new([0; 32])
    }
}

impl Clone for Stage {
    fn clone(&self) -> Stage {
        match self {
            &Stage::Starting { record } => Stage::Starting { record },
            &Stage::Running { record } => Stage::Running { record },
            &Stage::Queued { queue, ttl, fenced } => Stage::Queued { queue, ttl, fenced },
            &Stage::Gathering { record } => Stage::Gathering { record },
            Stage::Pausing { record, last } => {
                Stage::Pausing { record: *record, last: last.clone() }
            }
            &Stage::Task { task } => Stage::Task { task },
            &Stage::Granted { record } => Stage::Granted { record },
            Stage::Extended { lock } => Stage::Extended { lock: lock.alias() },
            Stage::Over(Err(error)) => Stage::Over(Err(error.clone())),
            Stage::Over(Ok(outcome)) => Stage::Over(Ok(copy_of(outcome))),
        }
    }
}

/// A handle of a lock is not `Clone`, so neither is an outcome.
fn copy_of(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Acquired(lock) => Outcome::Acquired(lock.alias()),
        &Outcome::Extended { deadline } => Outcome::Extended { deadline },
        &Outcome::Released(released) => Outcome::Released(released),
        Outcome::Inspected(inspection) => Outcome::Inspected(inspection.clone()),
        Outcome::Vouched(report) => Outcome::Vouched(report.clone()),
        Outcome::ForceReleased(report) => Outcome::ForceReleased(report.clone()),
    }
}
