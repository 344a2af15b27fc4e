//! When the pairs of an open loop begin: moments of a Poisson process, drawn from a seed.
//!
//! Callers that know nothing of each other arrive like this. The times between two arrivals are
//! exponentially distributed, so arrivals come in clusters, and a client meets queues although it
//! has capacity to spare. The draws depend only on the seed, so that two contenders meet the same
//! clusters.

use std::time::Duration;

/// The arrivals of one round, in order: each is a time after the round's start.
#[derive(Debug, Clone)]
pub struct Arrivals {
    /// The state of SplitMix64.
    state: u64,
    mean_seconds: f64,
    at_seconds: f64,
    length: Duration,
}

impl Arrivals {
    /// Arrivals at this mean rate, until `length` is over.
    pub fn draw(seed: u64, per_second: f64, length: Duration) -> Arrivals {
        Arrivals { state: seed, mean_seconds: 1.0 / per_second, at_seconds: 0.0, length }
    }

    /// A number above zero, and at most 1.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // A float holds 53 bits exactly.
        ((mixed >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.at_seconds -= self.uniform().ln() * self.mean_seconds;
        let at = Duration::try_from_secs_f64(self.at_seconds).ok()?;
        (at < self.length).then_some(at)
    }
}
