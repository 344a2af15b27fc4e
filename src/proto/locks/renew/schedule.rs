//! The schedule of an auto-extended or watched lock: when it is renewed, how often at most, when
//! its holder is warned, and why it ended.
//!
//! The hazard is a holder that hangs, and whose lock is renewed for ever. So auto-extension always
//! has a bound, a length or a number of extensions, and no renewal goes beyond it.

use std::time::Duration;

use crate::proto::error::{ConfigError, LostReason};
use crate::proto::ids::RecordId;
use crate::proto::node_set::NodeSet;
use crate::proto::time::{Instant, Ttl, drift};
use crate::proto::timers::Timer;

/// A lock is renewed when its ttl divided by this is over, so that two more attempts fit in before
/// the deadline.
const RENEWED_AFTER: u32 = 3;
/// Renewals fall on multiples of the ttl divided by this. So locks that were acquired within such a
/// step are renewed together, in one write for each node.
const GRID: u32 = 60;
/// How many checks of a lock follow reported writes in one ttl at most. A node whose tracking table
/// is too small reports every key, again and again.
const CHECKS: u32 = 20;
/// The shortest ttl of an auto-extended lock. With a shorter one the loss would be reported before
/// a renewal can be answered.
const SHORTEST: Duration = Duration::from_millis(10);
/// A loss is reported this long before the deadline, because the poller sleeps whole milliseconds,
/// and a turn of the loop takes some time.
pub const LOSS_BEFORE: Duration = Duration::from_millis(2);

/// The terms of auto-extension: for how long or with how many extensions at most, and when the
/// holder is warned.
///
/// The ttl of the lock has to be 10 ms at least.
///
/// ```
/// use std::time::Duration;
/// use redlatch::AutoExtend;
///
/// let an_hour = Duration::from_secs(3600);
/// let an_hour = AutoExtend::at_most(an_hour).warn_before(Duration::from_secs(2));
/// let three_times = AutoExtend::extensions(3);
/// # let _ = (an_hour, three_times);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AutoExtend {
    max_hold: Option<Duration>,
    extensions: Option<u32>,
    warn_before: Option<Duration>,
}

impl AutoExtend {
    /// Auto-extends for `max_hold` at most. The deadline of the lock is never later than the end of
    /// that time.
    pub const fn at_most(max_hold: Duration) -> AutoExtend {
        AutoExtend { max_hold: Some(max_hold), extensions: None, warn_before: None }
    }

    /// Auto-extends `count` times at most. Extends because a node reported a write to the key are
    /// not counted.
    pub const fn extensions(count: u32) -> AutoExtend {
        AutoExtend { max_hold: None, extensions: Some(count), warn_before: None }
    }

    /// Auto-extends `count` times at most, in addition to any other bound.
    #[must_use]
    pub const fn with_extensions(mut self, count: u32) -> AutoExtend {
        self.extensions = Some(count);
        self
    }

    /// Warns the holder this long before the deadline, if the lock was not renewed by then. Unless
    /// set, a third of the ttl; at most half of it.
    #[must_use]
    pub const fn warn_before(mut self, warn_before: Duration) -> AutoExtend {
        self.warn_before = Some(warn_before);
        self
    }

    /// Checks whether a lock with this ttl can be auto-extended on these terms.
    ///
    /// # Errors
    /// The first setting that cannot work.
    pub fn check(&self, ttl: Ttl) -> Result<(), ConfigError> {
        let setting = |name, given, must| Err(ConfigError::Setting { name, given, must });
        match (self.max_hold, self.warn_before) {
            _ if ttl.duration() < SHORTEST => {
                setting("ttl of a lock with auto_extend", ttl.duration(), "at least 10 ms")
            }
            (Some(given), _) if given < Ttl::SHORTEST => {
                setting("max_hold", given, "at least 3 ms")
            }
            (_, Some(given)) if given > ttl.duration() / 2 => {
                setting("warn_before", given, "at most half of the ttl")
            }
            _ => Ok(()),
        }
    }
}

impl From<Duration> for AutoExtend {
    fn from(max_hold: Duration) -> AutoExtend {
        AutoExtend::at_most(max_hold)
    }
}

/// How long before the deadline the holder of a lock with this ttl is warned, unless the terms of
/// the lock say otherwise.
pub fn warns_before(ttl: Ttl) -> Duration {
    ttl.duration() / RENEWED_AFTER
}

/// When the warning before this deadline is due.
pub fn warns_at(deadline: Instant, warn_before: Duration) -> Instant {
    Instant::from_nanos(deadline.as_nanos().saturating_sub(warn_before.as_nanos() as u64))
}

/// A lock that is auto-extended or watched. A watched lock has no extensions left, and warns only
/// if the caller asked for it.
#[derive(Debug, Clone)]
pub struct AutoExtended {
    /// The record of the lock.
    pub record: RecordId,
    /// The lock is auto-extended; otherwise it is only watched.
    pub renews: bool,
    /// The holder is warned before the deadline. Always true if the lock is auto-extended.
    pub warns: bool,
    /// The ttl that each renewal asks for.
    ttl: Ttl,
    /// The latest deadline that auto-extension may give, if its length has a bound.
    until: Option<Instant>,
    /// How many extensions are left, if their number has a bound.
    extensions: Option<u32>,
    warn_before: Duration,
    /// The extend that is in flight is a renewal.
    pub renewing: bool,
    /// Starts the next renewal.
    pub renewal: Option<Timer>,
    /// Starts the warning.
    pub warning: Option<Timer>,
    /// The holder was warned before the present deadline.
    pub warned: bool,
    /// Nodes that may lack the key, for example because they reported a write to it, and were not
    /// asked since.
    pub doubted: NodeSet,
    /// When the last check began: an extend because of `doubted` nodes.
    pub checked_at: Option<Instant>,
    /// Starts the next check.
    pub check: Option<Timer>,
}

impl AutoExtended {
    /// A lock with this ttl, auto-extended or watched (`renews`) from `start` on.
    pub fn new(
        record: RecordId,
        renews: bool,
        auto_extend: AutoExtend,
        ttl: Ttl,
        start: Instant,
    ) -> AutoExtended {
        AutoExtended {
            record,
            renews,
            warns: renews,
            ttl,
            until: auto_extend.max_hold.map(|length| start.saturating_add(length)),
            extensions: auto_extend.extensions,
            warn_before: auto_extend.warn_before.unwrap_or(warns_before(ttl)),
            renewing: false,
            renewal: None,
            warning: None,
            warned: false,
            doubted: NodeSet::EMPTY,
            checked_at: None,
            check: None,
        }
    }

    /// `deadline`, or the bound of auto-extension if that is earlier.
    pub fn capped(&self, deadline: Instant) -> Instant {
        self.until.map_or(deadline, |until| until.min(deadline))
    }

    /// The ttl that an extend at `now` asks for if `ttl` is wanted: shorter if the bound is nearer.
    /// `None` if the time up to the bound is too short for any ttl.
    pub fn capped_ttl(&self, ttl: Ttl, now: Instant) -> Option<Ttl> {
        let left = self.until.map_or(Duration::MAX, |until| until.saturating_since(now));
        Ttl::new(ttl.duration().min(left), ttl.duration()).ok()
    }

    /// The ttl that a renewal at `now` asks for.
    pub fn renewal_ttl(&self, now: Instant) -> Option<Ttl> {
        self.capped_ttl(self.ttl, now)
    }

    /// The ttl that a check asks for. A check is not counted as an extension. So if their number
    /// has a bound, the check asks only for the time until `deadline`, and prolongs nothing.
    pub fn check_ttl(&self, deadline: Instant, now: Instant) -> Option<Ttl> {
        match self.extensions {
            Some(_) => Ttl::new(deadline.saturating_since(now), self.ttl.duration()).ok(),
            None => self.renewal_ttl(now),
        }
    }

    /// When a renewal must have begun to give this deadline. The extend that really gave it may
    /// have been the caller's, for a shorter ttl or a longer one.
    pub fn counts_from(&self, deadline: Instant) -> Instant {
        let usable = u64::try_from(self.ttl.usable().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(deadline.as_nanos().saturating_sub(usable))
    }

    /// When the next renewal is due after one that began at `start`: as a moment on the grid, and a
    /// length after it that depends only on the ttl.
    pub fn next_renewal(&self, start: Instant) -> (Instant, Duration) {
        let grid = u64::try_from((self.ttl.duration() / GRID).as_nanos()).unwrap_or(u64::MAX);
        let from = start.as_nanos() - start.as_nanos() % grid.max(1);
        (Instant::from_nanos(from), self.ttl.duration() / RENEWED_AFTER)
    }

    /// When a lock with this deadline is renewed, whatever gave it the deadline: as long before the
    /// deadline as after a renewal. The first moment of the clock if that would be before it.
    pub fn renews_before(&self, deadline: Instant) -> Instant {
        let before = self.ttl.usable().saturating_sub(self.ttl.duration() / RENEWED_AFTER);
        let before = u64::try_from(before.as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(deadline.as_nanos().saturating_sub(before))
    }

    /// Whether auto-extension may prolong the lock beyond this moment: never so if the number of
    /// extensions has a bound.
    pub fn may_last_beyond(&self, moment: Instant) -> bool {
        self.extensions.is_none() && self.until.is_none_or(|until| until > moment)
    }

    /// Whether a lock with this deadline is renewed again.
    pub fn wants_renewal(&self, deadline: Instant) -> bool {
        self.extensions != Some(0) && !self.is_at_its_bound(deadline)
    }

    /// A renewal was won.
    pub fn was_renewed(&mut self) {
        self.renewing = false;
        self.extensions = self.extensions.map(|left| left.saturating_sub(1));
    }

    /// When the warning before this deadline is due.
    pub fn warns_at(&self, deadline: Instant) -> Instant {
        warns_at(deadline, self.warn_before)
    }

    /// The earliest moment of the next check. A pause after the last check in any case. If a
    /// majority may still be there, also a pause after `now`, so that one check serves all doubts
    /// of that time.
    pub fn next_check(&self, majority_may_be_gone: bool, now: Instant) -> Instant {
        let pause = self.ttl.duration() / CHECKS;
        let earliest = self.checked_at.map_or(now, |last| last.saturating_add(pause).max(now));
        if majority_may_be_gone { earliest } else { earliest.max(now.saturating_add(pause)) }
    }

    /// Why a lock is lost that ends at this deadline.
    pub fn reason(&self, deadline: Instant) -> LostReason {
        if self.is_at_its_bound(deadline) {
            LostReason::MaxHold
        } else if self.renews && self.extensions == Some(0) {
            LostReason::Extensions
        } else {
            LostReason::Expired
        }
    }

    /// Whether no extension can make this deadline later. An extend up to the bound gives a
    /// deadline before it, because its ttl is rounded down to whole milliseconds, and drift is
    /// subtracted.
    fn is_at_its_bound(&self, deadline: Instant) -> bool {
        let most = drift(self.ttl.duration()) + Duration::from_millis(1);
        self.until.is_some_and(|until| until.saturating_since(deadline) <= most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(9);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn ttl() -> Ttl {
        Ttl::new(TTL, TTL).unwrap()
    }

    fn extended(auto_extend: AutoExtend) -> AutoExtended {
        AutoExtended::new(RecordId::of(0), true, auto_extend, ttl(), at(1_000_000))
    }

    #[test]
    fn auto_extend_terms_that_cannot_work_are_refused() {
        let cases = [
            (AutoExtend::at_most(TTL), true),
            (AutoExtend::at_most(Duration::from_millis(2)), false),
            (AutoExtend::extensions(0), true),
            (AutoExtend::extensions(1).warn_before(TTL / 2), true),
            (AutoExtend::extensions(1).warn_before(TTL / 2 + Duration::from_nanos(1)), false),
        ];
        for (auto_extend, good) in cases {
            assert_eq!(auto_extend.check(ttl()).is_ok(), good, "{auto_extend:?}");
        }
        // With the shortest ttl there is time for an answer between a renewal and the report of a
        // loss.
        let shortest = Ttl::new(SHORTEST, TTL).unwrap();
        let reported = shortest.usable() - LOSS_BEFORE;
        assert!(reported > SHORTEST / RENEWED_AFTER + Duration::from_millis(2));
        let shorter = Ttl::new(SHORTEST - Duration::from_millis(1), TTL).unwrap();
        let auto_extend = AutoExtend::extensions(1);
        assert!(auto_extend.check(shortest).is_ok() && auto_extend.check(shorter).is_err());
    }

    #[test]
    fn renewals_within_a_step_of_the_grid_fall_together() {
        let entry = extended(AutoExtend::extensions(9));
        let due = |millis| {
            let (from, length) = entry.next_renewal(at(millis));
            from.saturating_add(length)
        };
        assert_eq!(due(900_000), at(903_000));
        assert_eq!(due(900_149), at(903_000));
        assert_eq!(due(900_150), at(903_150));
    }

    #[test]
    fn renewal_is_timed_by_the_deadline_whatever_extended_the_lock() {
        let entry = extended(AutoExtend::extensions(9));
        assert_eq!(entry.counts_from(ttl().deadline(at(1_000_000))), at(1_000_000));
        let longer = Ttl::new(2 * TTL, 2 * TTL).unwrap();
        let later = entry.counts_from(longer.deadline(at(1_000_000)));
        assert_eq!(later, at(1_008_910), "the drift is longer, too");
        assert_eq!(entry.renews_before(longer.deadline(at(1_000_000))), at(1_011_910));
        assert_eq!(entry.counts_from(at(1)), Instant::default());
        assert_eq!(entry.renews_before(at(1)), Instant::default(), "it is late already");
    }

    #[test]
    fn no_extension_reaches_beyond_the_bound() {
        let entry = extended(AutoExtend::at_most(Duration::from_secs(20)));
        assert_eq!(entry.renewal_ttl(at(1_010_000)), Some(ttl()));
        let last = entry.renewal_ttl(at(1_015_000)).unwrap();
        assert_eq!(last.duration(), Duration::from_secs(5));
        assert_eq!(entry.renewal_ttl(at(1_019_999)), None);
        assert_eq!(entry.capped(at(1_030_000)), at(1_020_000));
        assert!(entry.wants_renewal(at(1_018_900)));
        let end = last.deadline(at(1_015_000));
        assert!(!entry.wants_renewal(end));
        assert_eq!(entry.reason(end), LostReason::MaxHold);
        assert_eq!(entry.reason(at(1_010_000)), LostReason::Expired);
    }

    #[test]
    fn auto_extend_ends_at_its_bound_although_rounding_leaves_some_time() {
        let entry = extended(AutoExtend::at_most(Duration::from_secs(20)));
        let now = at(1_011_100).saturating_add(Duration::from_nanos(1));
        let last = entry.renewal_ttl(now).unwrap();
        assert_eq!(last.as_millis(), 8_899);
        assert!(!entry.wants_renewal(last.deadline(now)));
        assert_eq!(entry.reason(last.deadline(now)), LostReason::MaxHold);
        let now = at(1_011_000).saturating_add(Duration::from_nanos(1));
        assert!(!entry.wants_renewal(entry.renewal_ttl(now).unwrap().deadline(now)));
    }

    #[test]
    fn extensions_are_counted() {
        let mut entry = extended(AutoExtend::extensions(1));
        assert!(entry.wants_renewal(at(1)));
        entry.was_renewed();
        assert!(!entry.wants_renewal(at(1)));
        assert_eq!(entry.reason(at(1)), LostReason::Extensions);
    }

    #[test]
    fn auto_extend_checks_have_a_pause_between_them() {
        let mut entry = extended(AutoExtend::extensions(1));
        assert_eq!(entry.next_check(true, at(5_000)), at(5_000));
        assert_eq!(entry.next_check(false, at(5_000)), at(5_450));
        entry.checked_at = Some(at(4_900));
        assert_eq!(entry.next_check(true, at(5_000)), at(5_350));
    }

    #[test]
    fn shortest_max_hold_is_the_shortest_ttl() {
        assert!(AutoExtend::at_most(Ttl::SHORTEST).check(ttl()).is_ok());
        let shorter = Ttl::SHORTEST - Duration::from_nanos(1);
        assert!(AutoExtend::at_most(shorter).check(ttl()).is_err());
    }
}
