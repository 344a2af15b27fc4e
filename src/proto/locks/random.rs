//! The generator that all random numbers are drawn from, so that a simulated run can be repeated.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// The generator. Only tests can copy it.
#[derive(Debug)]
pub struct Random(StdRng);

impl Random {
    /// The generator of this seed.
    pub fn new(seed: [u8; 32]) -> Random {
        Random(StdRng::from_seed(seed))
    }

    /// The generator itself.
    #[inline]
    pub fn rng(&mut self) -> &mut StdRng {
        &mut self.0
    }

    /// A pause between these two.
    pub fn pause(&mut self, least: Duration, most: Duration) -> Duration {
        self.0.random_range(least..=most)
    }

    /// An index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        self.0.random_range(0..count)
    }
}
