//! A histogram of durations, from microseconds to an hour, whose classes are fixed: counting one
//! duration is two additions, and allocates nothing.

use std::time::Duration;

use crate::proto::time::whole_micros;

/// How many classes there are: the last one has no upper bound.
pub const CLASSES: usize = 28;

/// The first class ends at 64 µs: no lock is taken over a network faster than that.
const FIRST_END_BITS: u32 = 6;

/// How many waits or holds took how long, in classes that double.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Durations {
    classes: [u64; CLASSES],
    micros: u64,
}

impl Durations {
    /// Every class, shortest first: its upper bound, and how many durations are in it. The first
    /// class ends at 64 µs, and each following one at twice the end of the one before, up to 72
    /// minutes. The last one has no upper bound.
    pub fn classes(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        self.classes.iter().enumerate().map(|(class, &count)| {
            let end = Duration::from_micros(1 << (class as u32 + FIRST_END_BITS));
            ((class + 1 < CLASSES).then_some(end), count)
        })
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The sum of all durations, in whole microseconds.
    pub fn total(&self) -> Duration {
        Duration::from_micros(self.micros)
    }

    /// Counts one duration.
    pub(crate) fn add(&mut self, took: Duration) {
        let micros = whole_micros(took);
        self.micros = self.micros.saturating_add(micros);
        // Each class ends at twice the end of the one before, so the class is the number of binary
        // digits beyond `FIRST_END_BITS`.
        let digits = u64::BITS - micros.leading_zeros();
        let class = digits.saturating_sub(FIRST_END_BITS) as usize;
        self.classes[class.min(CLASSES - 1)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_class_that_ends_above_it() {
        for micros in [0, 63, 64, 127, 128, 1_000_000, (1 << 32) - 1, 1 << 32, u64::MAX] {
            let took = Duration::from_micros(micros);
            let mut durations = Durations::default();
            durations.add(took);
            let classes: Vec<_> = durations.classes().collect();
            let class = classes.iter().position(|(_, count)| *count > 0).expect("it is counted");
            let (end, _) = classes[class];
            assert!(end.is_none_or(|end| took < end), "{took:?} ends above {end:?}");
            let below = class.checked_sub(1).and_then(|below| classes[below].0);
            assert!(below.is_none_or(|below| took >= below), "{took:?} is not below {below:?}");
            assert_eq!((durations.count(), durations.total()), (1, took));
        }
    }
}
