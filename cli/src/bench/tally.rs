//! The counts of a measurement: latencies in two histograms, and errors by their kind.
//!
//! The hazard is an error that makes the figures look better. So both latencies of a pair are
//! recorded when its release has ended, whatever the outcome. A bad outcome is also counted as an
//! error.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use redlatch::{Error, ReleaseOutcome};

use crate::output::word;

/// The significant digits of a recorded value: it is exact to a thousandth.
const DIGITS: u8 = 3;

/// The longest latency that is recorded, in nanoseconds.
const LONGEST: u64 = 24 * 60 * 60 * 1_000_000_000;

/// The counts of one measurement.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Latencies from the request to the lock, in nanoseconds.
    pub acquire: Histogram<u64>,
    /// Latencies from the call of the release to its outcome, in nanoseconds.
    pub release: Histogram<u64>,
    /// How often each error occurred.
    pub errors: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub fn new() -> Tally {
        Tally { acquire: empty(), release: empty(), errors: BTreeMap::new() }
    }

    /// How many pairs ended.
    pub fn pairs(&self) -> u64 {
        self.release.len()
    }

    /// Records a pair whose lock was acquired and whose release has ended.
    pub fn pair(&mut self, acquire: Duration, release: Duration, how: ReleaseOutcome) {
        record(&mut self.acquire, acquire);
        record(&mut self.release, release);
        match how {
            ReleaseOutcome::Released => {}
            ReleaseOutcome::AlreadyExpired => self.trouble("release_expired", 1),
            ReleaseOutcome::TakenByOther => self.trouble("release_taken_by_other", 1),
            ReleaseOutcome::Unconfirmed { .. } => self.trouble("release_unconfirmed", 1),
        }
    }

    /// Counts a request that got no lock.
    pub fn refused(&mut self, error: &Error) {
        self.trouble(word(error), 1);
    }

    /// Counts pairs that had not ended, or not even begun, when the measurement ended.
    pub fn unfinished(&mut self, count: u64) {
        self.trouble("unfinished", count);
    }

    fn trouble(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.errors.entry(kind).or_default() += count;
        }
    }
}

/// A histogram of latencies in nanoseconds.
pub fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST, DIGITS)
        .expect("the bounds and the digits are within those of the histogram")
}

pub fn record(histogram: &mut Histogram<u64>, took: Duration) {
    histogram.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
}

#[cfg(test)]
mod tests {
    use redlatch::Busy;

    use super::*;

    const MICRO: Duration = Duration::from_micros(1);

    #[test]
    fn pair_counts_whatever_the_outcome_of_its_release() {
        let mut tally = Tally::new();
        tally.pair(MICRO, 2 * MICRO, ReleaseOutcome::Released);
        tally.pair(3 * MICRO, 50_000 * MICRO, ReleaseOutcome::AlreadyExpired);
        tally.refused(&Error::Busy(Busy::Nodes));
        tally.unfinished(0);
        assert_eq!((tally.pairs(), tally.acquire.len()), (2, 2));
        assert!(tally.release.max() >= 50_000_000);
        let errors: Vec<_> = tally.errors.into_iter().collect();
        assert_eq!(errors, [("busy", 1), ("release_expired", 1)]);
    }

    #[test]
    fn tally_records_the_shortest_and_the_longest_times() {
        let mut tally = Tally::new();
        tally.pair(Duration::ZERO, Duration::MAX, ReleaseOutcome::Released);
        assert_eq!(tally.pairs(), 1);
    }
}
