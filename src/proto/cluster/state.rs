//! The state of a node: may it be asked, is it silent, has its clock jumped, when does the client
//! connect to it again. The functions are pure: silence and time in, a verdict out.

use std::time::Duration;

use crate::proto::error::NodeError;
use crate::proto::time::{Instant, drift};

/// The state of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// There is no connection, for this reason. Another attempt to connect follows.
    Down(NodeError),
    /// A connection is being opened.
    Connecting,
    /// The connection is open; it is not known yet whether the node may be asked.
    Handshake,
    /// The node may be asked.
    Ready,
    /// The node may be asked, and may deny, release and extend, but its grants do not count until
    /// this moment.
    Quarantined(Instant),
    /// The node has not answered for too long: it is asked for nothing new until it answers.
    Suspect,
    /// The node answered, and may not be used, for this reason. It is tried again later.
    Rejected(NodeError),
}

impl NodeState {
    /// Whether there is a connection over which bytes can come.
    pub const fn is_connected(self) -> bool {
        self.is_usable() || matches!(self, NodeState::Handshake | NodeState::Suspect)
    }

    /// Whether the node may be asked something new.
    pub const fn is_usable(self) -> bool {
        matches!(self, NodeState::Ready | NodeState::Quarantined(_))
    }
}

/// A reading of a node's clock, taken at some moment between `asked_at` and `read_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Microseconds on the node's clock.
    pub micros: u64,
    /// When the reading was asked for.
    pub asked_at: Instant,
    /// When the answer was read.
    pub read_at: Instant,
}

impl Reading {
    /// What the node's clock shows now at least, but for its drift: in microseconds.
    pub fn micros_at(&self, now: Instant) -> u64 {
        let passed = now.saturating_since(self.read_at).as_micros();
        self.micros.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

/// How far a node's clock went further than ours between two readings, beyond what drift and the
/// travel time of the answers explain: in nanoseconds, negative if it went less far. `None`: no
/// jump.
pub fn clock_jump(before: &Reading, after: &Reading) -> Option<i64> {
    let theirs = i128::from(after.micros) * 1000 - i128::from(before.micros) * 1000;
    let least = after.asked_at.saturating_since(before.read_at);
    let most = after.read_at.saturating_since(before.asked_at);
    let (from, to) = (least.saturating_sub(drift(least)), most.saturating_add(drift(most)));
    let (from, to) = (from.as_nanos() as i128, to.as_nanos() as i128);
    let jump = if theirs > to { theirs - to } else { (theirs - from).min(0) };
    (jump != 0).then(|| i64::try_from(jump).unwrap_or(if jump > 0 { i64::MAX } else { i64::MIN }))
}

/// How many node timeouts the oldest question may wait before the node counts as silent, even if it
/// answers others meanwhile.
const OLDEST_MAY_WAIT: u32 = 4;

/// Whether a node with an unanswered question counts as silent: no reply at all for a node timeout
/// while the question is older than that, or a question that is older than four node timeouts.
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

/// The pause before the next attempt to connect, after `failures` failures in a row. Without a
/// failure there is no pause. With each failure the pause doubles, up to the longest, and each one
/// is shortened by up to a half at random. `random` is any number, uniformly drawn.
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

    #[test]
    fn a_clock_that_runs_with_ours_has_not_jumped() {
        let reading =
            |micros, asked, read| Reading { micros, asked_at: ms(asked), read_at: ms(read) };
        let before = reading(1_000_000_000, 100, 101);
        // The node's clock and the client's both advance by five seconds, give or take a hundredth
        // and two milliseconds.
        for micros in [5_000_000, 5_052_000, 4_948_000] {
            assert_eq!(clock_jump(&before, &reading(1_000_000_000 + micros, 5_100, 5_101)), None);
        }
        let ahead = clock_jump(&before, &reading(1_006_000_000, 5_100, 5_101)).unwrap();
        assert!((900_000_000..=1_000_000_000).contains(&ahead), "{ahead} ns");
        let back = clock_jump(&before, &reading(996_400_000, 5_100, 5_101)).unwrap();
        assert!(back < -8_000_000_000, "{back} ns");
        // An answer that was read an hour late proves little, so it is no sign of a jump.
        assert_eq!(clock_jump(&before, &reading(1_000_100_000, 200, 3_600_000)), None);
        assert!(clock_jump(&before, &reading(u64::MAX / 2000, 200, 201)).is_some());
    }

    #[test]
    fn jump_that_is_too_long_for_its_count_keeps_its_direction() {
        let reading = |micros| Reading { micros, asked_at: ms(100), read_at: ms(101) };
        assert_eq!(clock_jump(&reading(0), &reading(u64::MAX)), Some(i64::MAX));
        assert_eq!(clock_jump(&reading(u64::MAX), &reading(0)), Some(i64::MIN));
    }
}
