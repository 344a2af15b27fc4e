//! Copies of the locks, for tests that go on from one state in several ways.
//!
//! The hazard is the generator of tokens: two copies with generators in the same state give one
//! token to two attempts. A copy begins with a generator of a fixed seed, the same for every copy.
//! So a test gives each copy a new seed, or plans the draws. With planned draws two copies draw the
//! same tokens, in the same order.

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

    /// How many of the planned tokens were drawn.
    pub fn tokens_drawn(&self) -> usize {
        self.random.planned.as_ref().map_or(0, |planned| planned.drawn)
    }
}

/// The draws of a client, as a test has planned them. All pauses are equal, however many tokens
/// were drawn before.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The seeds of the tokens, in the order of the draws.
    pub tokens: Arc<[[u8; 32]]>,
    /// How many tokens were drawn.
    pub drawn: usize,
    /// The length of each pause, or the nearest length that the caller allows.
    pub pause: Duration,
    /// The seed of the other draws: the channel of the client and the secret of its marks.
    pub rest: [u8; 32],
}

impl Planned {
    /// The generator that draws the next token.
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

/// Copies an outcome. [`Outcome`] is not `Clone`, because a lock has one handle only.
fn copy_of(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Acquired(lock) => Outcome::Acquired(lock.alias()),
        &Outcome::Extended { deadline } => Outcome::Extended { deadline },
        &Outcome::Released(released) => Outcome::Released(released),
        Outcome::Inspected(inspection) => Outcome::Inspected(inspection.clone()),
        Outcome::Vouched(report) => Outcome::Vouched(report.clone()),
        Outcome::ForceReleased(report) => Outcome::ForceReleased(report.clone()),
        Outcome::Noted(report) => Outcome::Noted(report.clone()),
    }
}
