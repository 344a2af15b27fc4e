//! The nodes' clocks: whether each runs as fast as ours, and whether they agree.
//!
//! The node read its clock at an unknown moment between our question and its answer. The hazard is
//! to take the delay of an answer for an error of the clock: a difference that the delay can
//! explain must not be reported as a failure.

use std::time::Duration;

use redlatch::Ttl;

use super::{Finding, Subject, Use, span};
use crate::doctor::examination::Reading;
use crate::look::time;

/// The part of every ttl that the library takes off because clocks differ in rate.
const DRIFT: f64 = Ttl::DRIFT_PERCENT as f64 / 100.0;

/// A clock that NTP keeps right does not differ by this part in rate for long: above it, warn.
const ODD_RATE: f64 = 0.002;

/// Round trips to one node are taken to vary by this much at least.
const LEAST_VARIATION: Duration = Duration::from_micros(200);

/// A clock may differ from the median by `max_ttl` divided by this. Beyond that, the node's votes
/// for fencing numbers do not count.
const FENCE_DIVISOR: f64 = 4.0;

/// Clocks that NTP keeps right do not differ by this much, in seconds: above it, warn.
const ODD_SKEW: f64 = 1.0;

/// Whether the node's clock runs as fast as ours.
pub fn rate(subject: &Subject) -> Option<Finding> {
    const NAME: &str = "clock-rate";
    if subject.seen.round_trips.is_empty() {
        // The node became silent before its clock was read.
        return None;
    }
    let Some((rate, unsure)) = measured(&subject.seen.readings) else {
        return Some(Finding::unknown(NAME, "TIME"));
    };
    let (percent, within) = (rate * 100.0, unsure * 100.0);
    let which = if rate > 0.0 { "faster" } else { "slower" };
    let shown = format!("{:.2} % {which} than ours, give or take {within:.2} %", percent.abs());
    let surely = rate.abs() - unsure;
    let takes_off = format!("redlatch takes {} % off every ttl for that", Ttl::DRIFT_PERCENT);
    Some(if surely > DRIFT {
        let why = "its locks end at other times than their holders believe";
        Finding::fail(NAME, format!("{shown}: {why} ({takes_off}). Was it set, or is it broken?"))
    } else if surely > ODD_RATE {
        Finding::warn(NAME, format!("{shown}: {takes_off}, but no good clock is so far off"))
    } else if unsure > DRIFT {
        let slow = "answers take too long to compare clocks";
        Finding::warn(NAME, format!("unknown: {slow} ({shown})"))
    } else {
        Finding::ok(NAME, shown)
    })
}

/// How much faster the node's clock runs than ours, as a part of ours, and the uncertainty of that.
///
/// A delay that every answer has cancels out, because the rate comes from the difference between
/// two readings. So the uncertainty is only how much the round trips of those two readings differ,
/// and [`LEAST_VARIATION`].
fn measured(readings: &[Reading]) -> Option<(f64, f64)> {
    let (early, late) = readings.split_at(readings.len() / 2);
    let best = |some: &[Reading]| some.iter().copied().min_by_key(round_trip);
    let (first, last) = (best(early)?, best(late)?);
    let ours = (middle(&last) - middle(&first)) / 1e6;
    let theirs = last.micros as f64 - first.micros as f64;
    let shortest = round_trip(&first).min(round_trip(&last));
    let longer =
        (round_trip(&first) + round_trip(&last)).saturating_sub(2 * shortest) + LEAST_VARIATION;
    let unsure = longer.as_secs_f64() / 2.0;
    (ours > 0.0).then(|| ((theirs / 1e6 - ours) / ours, unsure / ours))
}

/// The time from the question to its answer.
fn round_trip(reading: &Reading) -> Duration {
    reading.read_at.saturating_since(reading.asked_at)
}

/// The most likely moment of the reading, halfway between question and answer, in microseconds of
/// our clock.
fn middle(reading: &Reading) -> f64 {
    (reading.asked_at.as_nanos() as f64 + reading.read_at.as_nanos() as f64) / 2e3
}

/// Whether the nodes agree on what time it is.
pub fn skew(subjects: &[Subject], how: &Use) -> Vec<Finding> {
    let ahead = |subject: &Subject| median(offsets(&subject.seen.readings));
    let ahead: Vec<(&Subject, f64)> =
        subjects.iter().filter_map(|subject| Some((subject, ahead(subject)?))).collect();
    let Some(middle) = median(ahead.iter().map(|(_, offset)| *offset).collect()) else {
        return Vec::new();
    };
    let of = |&(subject, offset): &(&Subject, f64)| Finding {
        node: Some(subject.label.clone()),
        ..judged(offset - middle, explained(&subject.seen.readings), ahead.len(), how)
    };
    ahead.iter().map(of).collect()
}

/// The largest clock difference that the delay of the answers can explain, in seconds.
fn explained(readings: &[Reading]) -> f64 {
    readings.iter().map(round_trip).max().unwrap_or_default().as_secs_f64() / 2.0
}

fn judged(ahead: f64, explained: f64, clocks: usize, how: &Use) -> Finding {
    const NAME: &str = "clock-skew";
    if clocks == 1 {
        return Finding::ok(NAME, "there is no other clock to compare it with");
    }
    let which = if ahead > 0.0 { "ahead of" } else { "behind" };
    let apart = Duration::try_from_secs_f64(ahead.abs()).unwrap_or(Duration::MAX);
    let apart = if ahead.abs() < 10.0 { time(apart) } else { span(apart) };
    let shown = format!("{apart} {which} the nodes' median");
    if ahead.abs() - explained > how.max_ttl.as_secs_f64() / FENCE_DIVISOR {
        let votes = "its votes for fencing numbers do not count";
        let why = "that is more than a quarter of max-ttl";
        return Finding::warn(NAME, format!("{shown}: {votes}, because {why}. Let NTP slew it"));
    }
    if ahead.abs() <= ODD_SKEW {
        return Finding::ok(NAME, shown);
    }
    let risk = "set right in one step it ends locks early or keeps them too long";
    Finding::warn(NAME, format!("{shown}: {risk}. Let NTP slew it"))
}

/// How far the node's clock is ahead of ours, in seconds, at each reading. Ours counts from the
/// start of the machine, so only the differences between nodes mean anything.
fn offsets(readings: &[Reading]) -> Vec<f64> {
    readings.iter().map(|reading| (reading.micros as f64 - middle(reading)) / 1e6).collect()
}

/// The median; of an even number of values, the mean of the middle two.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = *values.get(half)?;
    Some(if values.len() % 2 == 1 { upper } else { (values[half - 1] + upper) / 2.0 })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::examples::{node, readings, using};
    use super::*;

    fn with(ahead: f64, rate: f64) -> Subject {
        let mut subject = node("a");
        subject.seen.readings = readings(ahead, rate);
        subject
    }

    #[test]
    fn a_clock_that_goes_wrong_is_found_in_a_second() {
        let cases = [
            (0.0, Level::Ok),
            (0.002, Level::Ok),
            (0.005, Level::Warn),
            (-0.005, Level::Warn),
            (0.0099, Level::Warn),
            (0.02, Level::Fail),
            (-0.02, Level::Fail),
            (-3600.0, Level::Fail),
        ];
        for (wrong, level) in cases {
            let found = rate(&with(0.0, wrong)).unwrap();
            assert_eq!(found.level, level, "{wrong}: {found:?}");
        }
    }

    #[test]
    fn clock_drift_that_a_network_delay_explains_is_unknown() {
        let mut subject = with(0.0, 0.02);
        let later = |reading: &mut Reading| {
            reading.read_at = reading.read_at.saturating_add(Duration::from_millis(60));
        };
        subject.seen.readings[3..].iter_mut().for_each(later);
        let found = rate(&subject).unwrap();
        assert_eq!(found.level, Level::Warn);
        assert!(found.detail.starts_with("unknown"), "{found:?}");
        // If every answer has the same long delay, the delay does not explain the difference.
        subject.seen.readings[..3].iter_mut().for_each(later);
        assert_eq!(rate(&subject).unwrap().level, Level::Fail);
        subject.seen.readings.clear();
        assert_eq!(rate(&subject).unwrap().level, Level::Warn);
    }

    #[test]
    fn clock_that_differs_from_the_others_is_reported() {
        let levels = |ahead: &[f64]| -> Vec<Level> {
            let subjects: Vec<Subject> = ahead.iter().map(|&ahead| with(ahead, 0.0)).collect();
            skew(&subjects, &using()).iter().map(|finding| finding.level).collect()
        };
        use Level::{Ok, Warn};
        assert_eq!(levels(&[0.0, 0.9, -0.9]), [Ok, Ok, Ok]);
        assert_eq!(levels(&[0.0, 3600.0, 0.1]), [Ok, Warn, Ok]);
        assert_eq!(levels(&[0.0, -3600.0, 0.1]), [Ok, Warn, Ok]);
        assert_eq!(levels(&[0.0, 60.0]), [Warn, Warn]);
        assert_eq!(levels(&[60.0]), [Ok]);
        assert!(levels(&[]).is_empty());
    }

    #[test]
    fn clock_that_is_too_far_off_for_fencing_numbers_is_reported_so() {
        let mut using = using();
        for (max_ttl, ahead, off) in [(60, 14.0, false), (60, 16.0, true), (2, 0.6, true)] {
            using.max_ttl = Duration::from_secs(max_ttl);
            let subjects = [0.0, ahead, 0.0].map(|ahead| with(ahead, 0.0));
            let found = skew(&subjects, &using);
            assert_eq!(found[1].detail.contains("fencing numbers"), off, "{:?}", found[1]);
            assert!(!off || found[1].level == Level::Warn);
        }
    }
}
