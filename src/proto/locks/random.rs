//! The generator of all random numbers. As there is only one, a simulated run can be repeated.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::proto::lock::LockToken;
#[cfg(feature = "testing")]
use crate::proto::locks::copies::Planned;

/// The generator. Only tests can copy it.
#[derive(Debug)]
pub struct Random {
    pub(super) rng: StdRng,
    /// The draws that a test has planned, which take the place of random ones.
    #[cfg(feature = "testing")]
    pub(super) planned: Option<Planned>,
}

impl Random {
    /// The generator of this seed.
    pub fn new(seed: [u8; 32]) -> Random {
        let rng = StdRng::from_seed(seed);
        Random {
            rng,
            #[cfg(feature = "testing")]
            planned: None,
        }
    }

    /// The generator itself.
    #[inline]
    pub fn rng(&mut self) -> &mut StdRng {
        &mut self.rng
    }

    /// Draws the token of an attempt, without an owner. `hands_over`: the release of its lock hands
    /// the key over to the next one in line.
    #[inline]
    pub fn token(&mut self, hands_over: bool) -> LockToken {
        #[cfg(feature = "testing")]
        if let Some(planned) = &mut self.planned {
            return LockToken::draw(&mut planned.next_token(), hands_over);
        }
        LockToken::draw(&mut self.rng, hands_over)
    }

    /// Draws a length between these two.
    pub fn pause(&mut self, least: Duration, most: Duration) -> Duration {
        #[cfg(feature = "testing")]
        if let Some(planned) = &self.planned {
            return planned.pause.clamp(least, most);
        }
        self.rng.random_range(least..=most)
    }

    /// Draws an index below `count`.
    pub fn index(&mut self, count: usize) -> usize {
        #[cfg(feature = "testing")]
        if self.planned.is_some() {
            return 0;
        }
        self.rng.random_range(0..count)
    }
}
