//! Moments and ttls. Nothing here reads a clock: a moment is an argument.
//!
//! The hazard is arithmetic that wraps: a deadline past the end of time must not become one at its
//! beginning. Everything saturates, and a ttl is checked once, when it is made.

use std::fmt;
use std::time::Duration;

const NANOS_PER_MILLI: u64 = 1_000_000;

/// The part of the drift that does not grow with the ttl. It covers the precision of a node's
/// expiry (one millisecond) and that of our own rounding. Source: the Redlock page, "Safety
/// arguments".
const DRIFT_FIXED_NANOS: u64 = 2 * NANOS_PER_MILLI;

/// The longest ttl that fits into the 48 bits of a [`Ttl`]: 8,900 years.
const LONGEST_MILLIS: u64 = (1 << 48) - 1;

/// A moment, in nanoseconds on some monotonic clock. Only the caller knows which clock it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The moment `nanos` nanoseconds after the clock's own zero.
    pub const fn from_nanos(nanos: u64) -> Instant {
        Instant(nanos)
    }

    /// Nanoseconds since the clock's own zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This moment moved on by `by`; the end of time if that would wrap.
    #[must_use]
    pub fn saturating_add(self, by: Duration) -> Instant {
        Instant(self.0.saturating_add(nanos(by)))
    }

    /// This moment moved back by `by`; the beginning of time if that would wrap.
    #[must_use]
    pub fn saturating_sub(self, by: Duration) -> Instant {
        Instant(self.0.saturating_sub(nanos(by)))
    }

    /// The earliest of the moments that are `Some`.
    #[inline]
    pub fn first_of<const N: usize>(moments: [Option<Instant>; N]) -> Option<Instant> {
        moments.into_iter().fold(None, |first, moment| match (first, moment) {
            (Some(first), Some(moment)) => Some(first.min(moment)),
            (first, moment) => first.or(moment),
        })
    }

    /// How many nanoseconds after `earlier` this moment is; zero if it is not after it. For the hot
    /// path: a `Duration` is divided into seconds and the rest.
    #[inline]
    pub(crate) const fn nanos_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub fn saturating_since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Without the arithmetic of 128 bits that `Duration::as_nanos` needs: it runs for each answer.
#[inline]
fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(duration.subsec_nanos()))
}

/// The whole microseconds of a duration, without the arithmetic of 128 bits that
/// `Duration::as_micros` needs.
#[inline]
pub fn whole_micros(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000);
    seconds.saturating_add(u64::from(duration.subsec_micros()))
}

/// How far two clocks may differ over `length`: a hundredth of it, and two milliseconds.
pub fn drift(length: Duration) -> Duration {
    Duration::from_nanos(
        (nanos(length) / 100 * Ttl::DRIFT_PERCENT).saturating_add(DRIFT_FIXED_NANOS),
    )
}

/// How long a key may live on a node: whole milliseconds, checked.
///
/// A holder gets less than that: the drift (a hundredth of the ttl, and two milliseconds) is taken
/// off, because a node's clock may run faster than ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl {
    /// 48 bits instead of 64, because a lock has several ttls and is kept small. The highest bits
    /// come first, so that ttls compare as their milliseconds do.
    millis: [u16; 3],
}

impl Ttl {
    /// The shortest ttl that leaves a holder anything.
    pub const SHORTEST: Duration = Duration::from_millis(3);

    /// The part of the drift that grows with the ttl, in percent: the speeds of two clocks may
    /// differ by this much.
    pub const DRIFT_PERCENT: u64 = 1;

    /// `asked`, rounded down to whole milliseconds.
    ///
    /// # Errors
    /// [`InvalidTtl`] when nothing would be left after drift, or when it is longer than `max_ttl`.
    pub fn new(asked: Duration, max_ttl: Duration) -> Result<Ttl, InvalidTtl> {
        if asked > max_ttl {
            return Err(InvalidTtl::TooLong { asked, max_ttl });
        }
        // Without the arithmetic of 128 bits that `Duration::as_millis` needs.
        let whole = asked.as_secs().checked_mul(1000);
        let millis = whole.and_then(|whole| whole.checked_add(u64::from(asked.subsec_millis())));
        let millis = millis.ok_or(InvalidTtl::TooLong { asked, max_ttl })?;
        if millis > LONGEST_MILLIS {
            let max_ttl = Duration::from_millis(LONGEST_MILLIS);
            return Err(InvalidTtl::TooLong { asked, max_ttl });
        }
        let ttl = Ttl { millis: [32, 16, 0].map(|bits| (millis >> bits) as u16) };
        if ttl.nanos() <= ttl.drift_nanos() {
            return Err(InvalidTtl::TooShort { asked });
        }
        Ok(ttl)
    }

    /// The shortest ttl that leaves a holder `length`, but not more than `longest`.
    pub fn lasting(length: Duration, longest: Ttl) -> Ttl {
        let millis = nanos(length).div_ceil(NANOS_PER_MILLI);
        let with_fixed = millis.saturating_add(DRIFT_FIXED_NANOS.div_ceil(NANOS_PER_MILLI));
        let whole = with_fixed.saturating_mul(100).div_ceil(100 - Ttl::DRIFT_PERCENT);
        Ttl::new(Duration::from_millis(whole), longest.duration()).unwrap_or(longest)
    }

    /// The ttl as it is sent to a node.
    pub const fn as_millis(self) -> u64 {
        let [high, middle, low] = self.millis;
        (high as u64) << 32 | (middle as u64) << 16 | low as u64
    }

    /// The ttl as a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.as_millis())
    }

    /// The drift that is taken off: a hundredth of the ttl, and two milliseconds.
    pub fn drift(self) -> Duration {
        drift(self.duration())
    }

    /// What a holder has of the ttl at most: the ttl less the drift.
    pub fn usable(self) -> Duration {
        self.duration().saturating_sub(self.drift())
    }

    /// What a holder has of the ttl at most, but not more than `most`.
    #[inline]
    pub fn usable_up_to(self, most: Duration) -> Duration {
        let usable = self.nanos().saturating_sub(self.drift_nanos());
        if usable >= nanos(most) { most } else { Duration::from_nanos(usable) }
    }

    /// The moment up to which a holder may believe in a lock that was asked for at `start`.
    ///
    /// `start` is read before the first byte is written: a node counts its ttl from the moment it
    /// executes the command, which is later.
    #[inline]
    pub fn deadline(self, start: Instant) -> Instant {
        Instant(start.0.saturating_add(self.nanos().saturating_sub(self.drift_nanos())))
    }

    /// The moment at which a key has expired on every node, if no node wrote it after `executed`.
    /// The drift is added, because the clock of a node may be slower than ours.
    #[inline]
    pub fn gone_after(self, executed: Instant) -> Instant {
        Instant(executed.0.saturating_add(self.nanos()).saturating_add(self.drift_nanos()))
    }

    // The next two functions run for each answer, so they multiply instead of dividing.
    #[inline]
    const fn nanos(self) -> u64 {
        self.as_millis().saturating_mul(NANOS_PER_MILLI)
    }

    #[inline]
    const fn drift_nanos(self) -> u64 {
        let part = NANOS_PER_MILLI / 100 * Ttl::DRIFT_PERCENT;
        self.as_millis().saturating_mul(part).saturating_add(DRIFT_FIXED_NANOS)
    }
}

/// Why a duration is not a ttl. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidTtl {
    /// Nothing would be left after drift.
    TooShort {
        /// What was asked for.
        asked: Duration,
    },
    /// Longer than the configured `max_ttl`.
    TooLong {
        /// What was asked for.
        asked: Duration,
        /// The most that is configured.
        max_ttl: Duration,
    },
}

impl fmt::Display for InvalidTtl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidTtl::TooShort { asked } => write!(
                f,
                "ttl of {asked:?}: nothing is left of it after drift; the shortest is {:?}",
                Ttl::SHORTEST
            ),
            InvalidTtl::TooLong { asked, max_ttl } => {
                write!(f, "ttl of {asked:?}: it is longer than max_ttl; the longest is {max_ttl:?}")
            }
        }
    }
}

impl std::error::Error for InvalidTtl {}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: Duration = Duration::from_secs(60);

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_deadline_is_the_start_and_the_ttl_less_the_drift() {
        let ttl = Ttl::new(millis(10_000), MAX).unwrap();
        assert_eq!(ttl.drift(), millis(102));
        assert_eq!(ttl.deadline(Instant::from_nanos(5)).as_nanos(), 5 + 9_898_000_000);
    }

    #[test]
    fn key_is_gone_after_the_ttl_and_the_drift() {
        for ttl in [3, 4, 99, 10_000, 86_400_000, LONGEST_MILLIS] {
            let ttl = Ttl::new(millis(ttl), Duration::MAX).unwrap();
            let start = Instant::from_nanos(7);
            let gone = start.saturating_add(ttl.duration().saturating_add(ttl.drift()));
            assert_eq!(ttl.gone_after(start), gone);
            let usable = ttl.duration().saturating_sub(drift(ttl.duration()));
            let ends = usable.as_nanos() < u128::from(u64::MAX) / 2;
            assert!(!ends || ttl.deadline(start) == start.saturating_add(usable));
        }
    }

    #[test]
    fn usable_part_of_a_ttl_is_bounded() {
        for ttl in [3, 4, 99, 10_000, 86_400_000] {
            let ttl = Ttl::new(millis(ttl), Duration::MAX).unwrap();
            for most in [Duration::ZERO, millis(1), millis(96), millis(250), Duration::MAX] {
                assert_eq!(ttl.usable_up_to(most), most.min(ttl.usable()), "{ttl:?}, {most:?}");
            }
        }
        for micros in [0, 1, 999, 1_000_000, 86_400_000_001] {
            assert_eq!(whole_micros(Duration::from_micros(micros)), micros);
            assert_eq!(whole_micros(Duration::from_nanos(micros * 1000 + 999)), micros);
        }
        assert_eq!(whole_micros(Duration::MAX), u64::MAX);
    }

    #[test]
    fn first_of_some_moments_ignores_those_that_are_none() {
        let at = |nanos| Some(Instant::from_nanos(nanos));
        assert_eq!(Instant::first_of([None, at(5), at(3), None, at(4)]), at(3));
        assert_eq!(Instant::first_of([at(3), at(5)]), at(3));
        assert_eq!(Instant::first_of([None, None]), None);
    }

    #[test]
    fn a_duration_is_rounded_down_to_whole_milliseconds() {
        let ttl = Ttl::new(Duration::from_micros(9_999), MAX).unwrap();
        assert_eq!(ttl.as_millis(), 9);
    }

    #[test]
    fn a_ttl_that_leaves_nothing_or_is_too_long_is_refused() {
        for asked in [Duration::ZERO, millis(1), millis(2), Duration::from_micros(2_999)] {
            assert_eq!(Ttl::new(asked, MAX), Err(InvalidTtl::TooShort { asked }));
        }
        assert_eq!(Ttl::new(Ttl::SHORTEST, MAX).unwrap().as_millis(), 3);
        for asked in [MAX + Duration::from_nanos(1), Duration::MAX, millis(u64::MAX)] {
            assert_eq!(Ttl::new(asked, MAX), Err(InvalidTtl::TooLong { asked, max_ttl: MAX }));
        }
        let asked = Duration::MAX;
        assert_eq!(Ttl::new(asked, asked), Err(InvalidTtl::TooLong { asked, max_ttl: asked }));
    }

    #[test]
    fn ttl_for_a_validity_is_the_shortest_that_covers_it() {
        let longest = Ttl::new(Duration::from_secs(60), Duration::MAX).unwrap();
        let start = Instant::from_nanos(7);
        for micros in (0..3_000_000).step_by(997).chain([59_397_999, 59_398_000]) {
            let length = Duration::from_micros(micros);
            let ttl = Ttl::lasting(length, longest);
            assert!(ttl.deadline(start) >= start.saturating_add(length), "{length:?}: {ttl:?}");
            if let Ok(less) = Ttl::new(ttl.duration() - Duration::from_millis(1), Duration::MAX) {
                // Of a time with a part of a millisecond, the whole millisecond is left.
                let whole = Duration::from_millis(micros.div_ceil(1000));
                assert!(less.usable() < whole, "{length:?}: {less:?} is enough");
            }
        }
        for most in [Duration::from_secs(60), Duration::MAX] {
            assert_eq!(Ttl::lasting(most, longest), longest);
        }
    }

    #[test]
    fn arithmetic_of_ttls_and_moments_never_wraps() {
        let end = Instant::from_nanos(u64::MAX);
        assert_eq!(end.saturating_add(Duration::MAX), end);
        assert_eq!(Instant::from_nanos(1).saturating_since(end), Duration::ZERO);
        let longest = Ttl::new(millis(LONGEST_MILLIS), Duration::MAX).unwrap();
        assert_eq!(longest.as_millis(), LONGEST_MILLIS);
        assert!(longest > Ttl::new(millis(LONGEST_MILLIS - 0x1_0000), Duration::MAX).unwrap());
        for asked in [millis(LONGEST_MILLIS + 1), millis(u64::MAX)] {
            let max_ttl = longest.duration();
            let refused = Err(InvalidTtl::TooLong { asked, max_ttl });
            assert_eq!(Ttl::new(asked, Duration::MAX), refused);
        }
        assert_eq!(longest.deadline(end), end);
        assert!(longest.deadline(Instant::default()) > Instant::default());
    }
}
