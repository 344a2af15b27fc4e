//! Copies of the locks, for tests that go on from one state in several ways.
//!
//! The hazard is the generator of tokens: two copies that draw from the same one give one token to
//! two attempts. So a copy draws from a generator of its own, which is the same for every copy. A
//! test gives it a new seed before it draws, or plans the draws: then two copies that draw equally
//! often draw the same.

use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::proto::locks::Locks;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::random::Random;
use crate::proto::locks::requests::Stage;

impl Locks {
    /// From now on, tokens and pauses are drawn from this seed.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.random = Random::new(seed);
    }

    /// From now on, all draws are planned.
    pub fn plan_draws(&mut self, planned: Planned) {
        self.random = Random { planned: Some(planned.clone()), ..Random::new(planned.rest) };
    }

    /// How many tokens were drawn as planned.
    pub fn tokens_drawn(&self) -> usize {
        self.random.planned.as_ref().map_or(0, |planned| planned.drawn)
    }
}

/// The draws of a client, as a test has planned them. No pause depends on how many tokens were
/// drawn before it.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The seeds of its tokens, in their order.
    pub tokens: Arc<[[u8; 32]]>,
    /// How many of them were drawn.
    pub drawn: usize,
    /// Each pause has this length, or the nearest to it that is allowed.
    pub pause: Duration,
    /// The seed of what a client draws once: its channel and the secret of its marks.
    pub rest: [u8; 32],
}

impl Planned {
    /// The generator of the next token.
    ///
    /// # Panics
    /// If there is no seed left.
    pub(super) fn next_token(&mut self) -> StdRng {
        let seed = self.tokens[self.drawn];
        self.drawn += 1;
        StdRng::from_seed(seed)
    }
}

impl Clone for Random {
    fn clone(&self) -> Random {
        let planned = self.planned.clone();
        let seed = planned.as_ref().map_or([0; 32], |planned| planned.rest);
        Random { planned, ..Random::new(seed) }
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
