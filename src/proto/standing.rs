//! What a node is to us at the moment: may it be asked? Pure: silence and time in, a verdict out.

use std::time::Duration;

use super::error::Cause;
use super::time::Instant;

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
    /// It has not answered for too long: it is asked for nothing new until it answers.
    Suspect,
}

impl Standing {
    /// Whether there is a connection over which bytes can come.
    pub const fn is_connected(self) -> bool {
        matches!(self, Standing::Greeting | Standing::Ready | Standing::Suspect)
    }
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

/// The pause before the next attempt to connect, behind `failures` failures in a row: doubled each
/// time up to the longest, then shortened by up to a half. `random` is any number, uniformly drawn.
pub fn backoff((shortest, longest): (Duration, Duration), failures: u32, random: u32) -> Duration {
    let doubled = shortest.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(longest);
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
        for (failures, most) in [(0, 20), (1, 20), (2, 40), (3, 80), (7, 1000), (u32::MAX, 1000)] {
            let most = Duration::from_millis(most);
            assert_eq!(backoff(range, failures, u32::MAX), most, "{failures} failures");
            assert_eq!(backoff(range, failures, 0), most / 2, "{failures} failures");
        }
    }
}
