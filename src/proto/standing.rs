//! What a node is to us at the moment: may it be asked, does its grant count, when is it connected
//! to again. Pure: what was vetted, silence and time in, a verdict out.
//!
//! The hazard is a node that forgot a live lock and grants it again. What cannot be read is
//! distrusted.

use std::fmt;
use std::time::Duration;

use super::error::Cause;
use super::greeting::{Info, RUN_ID_DIGITS};
use super::settings::RestartGuard;
use super::time::{Instant, drift};

/// What a node is to us at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// There is no connection, for this reason. Another attempt follows.
    Down(Cause),
    /// A connection is being opened.
    Connecting,
    /// The connection is open; it is not known yet whether the node may be asked.
    Greeting,
    /// It may be asked.
    Ready,
    /// It may be asked, and may deny, release and extend, but its grants do not count until then.
    Quarantined(Instant),
    /// It has not answered for too long: it is asked for nothing new until it answers.
    Suspect,
    /// It answered, and may not be used, for this reason. It is looked at again later.
    Rejected(Cause),
}

impl Standing {
    /// Whether there is a connection over which bytes can come.
    pub const fn is_connected(self) -> bool {
        self.is_usable() || matches!(self, Standing::Greeting | Standing::Suspect)
    }

    /// Whether it may be asked something new.
    pub const fn is_usable(self) -> bool {
        matches!(self, Standing::Ready | Standing::Quarantined(_))
    }
}

/// Why a node's grants do not count for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distrust {
    /// It has not been up for long.
    Young,
    /// It is not the process it was: a restart, or a failover behind one address.
    Restarted,
    /// It was a replica, and became a master at a time nobody knows.
    Promoted,
    /// A database of it was flushed.
    Flushed,
    /// Its clock jumped: what it holds may end too early or too late.
    ClockJumped,
    /// It does not tell how long it has been up.
    Unknown,
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distrust::Young => "it was started a short while ago",
            Distrust::Restarted => "it was restarted",
            Distrust::Promoted => "it was a replica and was promoted",
            Distrust::Flushed => "it was flushed",
            Distrust::ClockJumped => "its clock jumped",
            Distrust::Unknown => "it does not tell how long it has been up",
        })
    }
}

/// What is remembered of a node from one connection to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// New at each start of the server; `None` where it was not told.
    pub run_id: Option<[u8; RUN_ID_DIGITS]>,
    /// It had been promoted.
    pub promoted: bool,
}

impl Identity {
    /// Who a node with this `INFO` is.
    pub fn of(info: &Info) -> Identity {
        Identity { run_id: info.run_id, promoted: info.promoted }
    }
}

/// How long a lock that a node forgot may still be believed in by somebody.
pub fn memory(max_ttl: Duration) -> Duration {
    max_ttl.saturating_add(drift(max_ttl))
}

/// The restart guard: for how long from now the grants of a node that was just vetted do not
/// count, and why. `known` is who it was on the connection before.
///
/// `uptime_in_seconds` is a difference of wall-clock seconds, off by up to one, and negative after
/// the clock was set back.
pub fn distrust(
    guard: RestartGuard,
    known: Option<Identity>,
    info: &Info,
    max_ttl: Duration,
) -> Option<(Duration, Distrust)> {
    if guard == RestartGuard::Off {
        return None;
    }
    let whole = memory(max_ttl);
    let Some(known) = known else { return distrust_at_first_sight(info, whole) };
    if info.run_id.is_none() {
        Some((whole, Distrust::Unknown))
    } else if info.run_id != known.run_id {
        Some((whole, Distrust::Restarted))
    } else if info.promoted && !known.promoted {
        Some((whole, Distrust::Promoted))
    } else {
        None
    }
}

fn distrust_at_first_sight(info: &Info, whole: Duration) -> Option<(Duration, Distrust)> {
    if info.run_id.is_none() {
        return Some((whole, Distrust::Unknown));
    }
    if info.promoted {
        return Some((whole, Distrust::Promoted));
    }
    let uptime = info.uptime_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let surely_up = Duration::from_secs(uptime.unwrap_or(0).saturating_sub(1));
    let left = whole.saturating_sub(surely_up);
    (!left.is_zero()).then_some((left, Distrust::Young))
}

/// A reading of a node's clock: it was taken at some moment between the two of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Microseconds on the node's clock.
    pub micros: u64,
    /// When it was asked for.
    pub asked_at: Instant,
    /// When the answer was read.
    pub read_at: Instant,
}

/// How far a node's clock went further than ours between two readings, beyond what drift and the
/// way of the answers explain: nanoseconds, negative where it stayed behind. `None`: no jump.
pub fn clock_jump(before: &Reading, after: &Reading) -> Option<i64> {
    let theirs = i128::from(after.micros) * 1000 - i128::from(before.micros) * 1000;
    let least = after.asked_at.saturating_since(before.read_at);
    let most = after.read_at.saturating_since(before.asked_at);
    let (from, to) = (least.saturating_sub(drift(least)), most.saturating_add(drift(most)));
    let (from, to) = (from.as_nanos() as i128, to.as_nanos() as i128);
    let jump = if theirs > to { theirs - to } else { (theirs - from).min(0) };
    (jump != 0).then(|| i64::try_from(jump).unwrap_or(if jump > 0 { i64::MAX } else { i64::MIN }))
}

/// How many node timeouts the oldest question may wait, whatever else was answered meanwhile.
const OLDEST_MAY_WAIT: u32 = 4;

/// Whether a node with an unanswered question counts as silent: no reply at all for a node timeout
/// while the question is older than that, or a question that is older than four.
pub fn is_silent(
    oldest_ask: Option<Instant>,
    last_answer: Instant,
    node_timeout: Duration,
    now: Instant,
) -> bool {
    let Some(oldest) = oldest_ask else { return false };
    let waiting = now.saturating_since(oldest);
    let quiet = now.saturating_since(last_answer.max(oldest));
    quiet >= node_timeout || waiting >= node_timeout * OLDEST_MAY_WAIT
}

/// The pause before the next attempt to connect, behind `failures` failures in a row: none behind
/// none, then doubled each time up to the longest, and shortened by up to a half. `random` is any
/// number, uniformly drawn.
pub fn backoff((shortest, longest): (Duration, Duration), failures: u32, random: u32) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
    let doubled = shortest.saturating_mul(1 << doublings.min(20)).min(longest);
    let half = doubled / 2;
    half + half.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    const TIMEOUT: Duration = Duration::from_millis(50);

    #[test]
    fn silence_is_counted_from_the_last_answer_or_the_oldest_question() {
        let silent = |oldest, last, now| is_silent(oldest, ms(last), TIMEOUT, ms(now));
        assert!(!silent(None, 0, 1_000_000));
        assert!(!silent(Some(ms(1_000)), 0, 1_049), "idle before, then asked");
        assert!(silent(Some(ms(1_000)), 0, 1_050));
        assert!(!silent(Some(ms(1_000)), 1_040, 1_080), "it answers others meanwhile");
        assert!(silent(Some(ms(1_000)), 1_199, 1_200), "but this one waits too long");
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_vary_by_half() {
        let range = (Duration::from_millis(20), Duration::from_secs(1));
        assert_eq!(backoff(range, 0, 7), Duration::ZERO);
        for (failures, most) in [(1, 20), (2, 40), (3, 80), (7, 1000), (u32::MAX, 1000)] {
            let most = Duration::from_millis(most);
            assert_eq!(backoff(range, failures, u32::MAX), most, "{failures} failures");
            assert_eq!(backoff(range, failures, 0), most / 2, "{failures} failures");
        }
    }

    fn info(run_id: Option<u8>, uptime: Option<i64>, promoted: bool) -> Info {
        let run_id = run_id.map(|digit| [digit; RUN_ID_DIGITS]);
        Info { run_id, uptime_seconds: uptime, promoted, ..Info::default() }
    }

    const MAX_TTL: Duration = Duration::from_secs(60);
    /// `max_ttl` and its drift, in milliseconds.
    const WHOLE: u64 = 60_000 + 602;

    #[test]
    fn a_node_seen_for_the_first_time_is_trusted_by_its_uptime() {
        let day = 24 * 3600;
        let cases = [
            (info(Some(1), Some(day), false), None),
            (info(Some(1), Some(62), false), None),
            (info(Some(1), Some(61), false), Some((602, Distrust::Young))),
            (info(Some(1), Some(31), false), Some((WHOLE - 30_000, Distrust::Young))),
            (info(Some(1), Some(1), false), Some((WHOLE, Distrust::Young))),
            (info(Some(1), Some(0), false), Some((WHOLE, Distrust::Young))),
            (info(Some(1), Some(-3600), false), Some((WHOLE, Distrust::Young))),
            (info(Some(1), Some(i64::MAX), false), None),
            (info(Some(1), None, false), Some((WHOLE, Distrust::Young))),
            (info(None, Some(day), false), Some((WHOLE, Distrust::Unknown))),
            (info(Some(1), Some(day), true), Some((WHOLE, Distrust::Promoted))),
        ];
        for (info, expected) in cases {
            let expected = expected.map(|(millis, why)| (Duration::from_millis(millis), why));
            assert_eq!(distrust(RestartGuard::On, None, &info, MAX_TTL), expected, "{info:?}");
            assert_eq!(distrust(RestartGuard::Off, None, &info, MAX_TTL), None);
        }
    }

    #[test]
    fn a_node_seen_before_is_distrusted_when_it_changed() {
        let day = Some(24 * 3600);
        let known = |run_id: Option<u8>, promoted| Some(Identity::of(&info(run_id, day, promoted)));
        let cases = [
            (known(Some(1), false), info(Some(1), Some(3), false), None),
            (known(Some(1), false), info(Some(2), day, false), Some(Distrust::Restarted)),
            (known(None, false), info(Some(1), day, false), Some(Distrust::Restarted)),
            (known(Some(1), false), info(None, day, false), Some(Distrust::Unknown)),
            (known(None, false), info(None, day, false), Some(Distrust::Unknown)),
            (known(Some(1), false), info(Some(1), day, true), Some(Distrust::Promoted)),
            (known(Some(1), true), info(Some(1), day, true), None),
        ];
        for (known, info, expected) in cases {
            let expected = expected.map(|why| (Duration::from_millis(WHOLE), why));
            assert_eq!(distrust(RestartGuard::On, known, &info, MAX_TTL), expected, "{info:?}");
        }
    }

    #[test]
    fn a_clock_that_runs_with_ours_has_not_jumped() {
        let reading =
            |micros, asked, read| Reading { micros, asked_at: ms(asked), read_at: ms(read) };
        let before = reading(1_000_000_000, 100, 101);
        // Five seconds later by both, give or take a hundredth and two milliseconds.
        for micros in [5_000_000, 5_052_000, 4_948_000] {
            assert_eq!(clock_jump(&before, &reading(1_000_000_000 + micros, 5_100, 5_101)), None);
        }
        let ahead = clock_jump(&before, &reading(1_006_000_000, 5_100, 5_101)).unwrap();
        assert!((900_000_000..=1_000_000_000).contains(&ahead), "{ahead} ns");
        let behind = clock_jump(&before, &reading(996_400_000, 5_100, 5_101)).unwrap();
        assert!(behind < -8_000_000_000, "{behind} ns");
        // An answer that was read an hour late proves little, and accuses nobody.
        assert_eq!(clock_jump(&before, &reading(1_000_100_000, 200, 3_600_000)), None);
        assert!(clock_jump(&before, &reading(u64::MAX / 2000, 200, 201)).is_some());
    }
}
