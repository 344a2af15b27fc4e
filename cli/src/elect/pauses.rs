//! How long a candidate stays out of the election after its CMD failed: a plain value.

use std::time::Duration;

/// The pause after the first failure, which then doubles, up to the longest.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(60);

/// After a CMD that ran so long, the next failure counts as the first one.
const LONG_RUN: Duration = Duration::from_secs(60);

/// The pauses of one candidate.
#[derive(Debug, Default)]
pub struct Pauses {
    /// The pause after the last failure; zero if there was none.
    last: Duration,
}

impl Pauses {
    /// The pause after a CMD that ran so long, and failed or not.
    pub fn after(&mut self, ran: Duration, failed: bool) -> Duration {
        if ran >= LONG_RUN || !failed {
            self.last = Duration::ZERO;
        }
        if failed {
            self.last = (self.last * 2).clamp(FIRST, LONGEST);
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_with_each_failure_and_begins_anew_after_a_long_run() {
        let mut pauses = Pauses::default();
        let mut after = |ran: u64, failed| pauses.after(Duration::from_secs(ran), failed).as_secs();
        assert_eq!(after(0, false), 0);
        assert_eq!([5, 10, 20, 40, 60, 60], std::array::from_fn(|_| after(59, true)));
        assert_eq!([after(60, true), after(0, true)], [5, 10]);
        assert_eq!([after(1, false), after(1, true)], [0, 5]);
    }
}
