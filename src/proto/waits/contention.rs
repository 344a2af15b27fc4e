//! What the waits remember across requests: how long others usually waited for a key, and how long
//! a node takes to answer.

use std::time::Duration;

use crate::proto::key::KeyHash;
use crate::proto::time::Instant;
use crate::proto::waiting::WINDOW;

/// For how many keys the client remembers that other clients wait, too.
const REMEMBERED_KEYS: usize = 64;
/// After this time the client forgets that others waited.
const FORGOTTEN: Duration = Duration::from_millis(500);
/// The bounds of the measured round trip: a busy loop must not make every waiter wait for long.
const ROUND_TRIPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// The usual wait for a few keys: a new request need not measure it again.
#[derive(Debug, Clone)]
pub struct ContentionHistory([(KeyHash, Duration, Instant); REMEMBERED_KEYS]);

impl ContentionHistory {
    /// The usual wait for a key; zero if there is none in memory.
    pub fn at(&self, key: KeyHash, now: Instant) -> Duration {
        let (whose, wait, seen_at) = self.0[key.place(REMEMBERED_KEYS)];
        let known = whose == key && now.saturating_since(seen_at) < FORGOTTEN;
        if known { wait } else { Duration::ZERO }
    }

    /// Takes note of a wait for the key among other waiters.
    pub fn note(&mut self, key: KeyHash, wait: Duration, now: Instant) {
        let before = self.at(key, now);
        let usual = if before.is_zero() { wait } else { (3 * before + wait) / 4 };
        self.0[key.place(REMEMBERED_KEYS)] = (key, usual, now);
    }

    /// No other client waits for the key any more.
    pub fn forget(&mut self, key: KeyHash) {
        let (whose, wait, _) = &mut self.0[key.place(REMEMBERED_KEYS)];
        if *whose == key {
            *wait = Duration::ZERO;
        }
    }
}

impl Default for ContentionHistory {
    fn default() -> ContentionHistory {
        ContentionHistory([(KeyHash::of(b""), Duration::ZERO, Instant::default()); REMEMBERED_KEYS])
    }
}

/// About how long a node takes to answer.
#[derive(Debug, Clone, Copy, Default)]
pub struct RoundTrip {
    nanos: u64,
}

impl RoundTrip {
    /// Takes note of one round trip.
    pub fn add(&mut self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.nanos = (self.nanos - self.nanos / 8).saturating_add(took / 8);
    }

    /// The usual round trip, within bounds.
    pub fn usual(self) -> Duration {
        Duration::from_nanos(self.nanos).clamp(ROUND_TRIPS.0, ROUND_TRIPS.1)
    }
}

/// How long other clients are left a turn.
pub fn turn_of_others(round_trip: Duration) -> Duration {
    2 * (WINDOW + round_trip)
}

/// How long a probe may take before it counts as unanswered.
pub fn patience(round_trip: Duration) -> Duration {
    4 * round_trip + Duration::from_millis(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_round_trip_is_about_what_the_last_ones_took() {
        let mut trips = RoundTrip::default();
        (0..100).for_each(|_| trips.add(Duration::from_micros(800)));
        assert!(trips.usual().abs_diff(Duration::from_micros(800)) < Duration::from_micros(2));
        trips.add(Duration::MAX);
        assert_eq!(trips.usual(), ROUND_TRIPS.1);
        assert_eq!(RoundTrip::default().usual(), ROUND_TRIPS.0);
    }

    #[test]
    fn a_usual_wait_is_remembered_for_a_while() {
        let (key, other) = (KeyHash::of(b"a"), KeyHash::of(b"b"));
        let (none, millis) = (Duration::ZERO, Duration::from_millis);
        let mut contention = ContentionHistory::default();
        assert_eq!(contention.at(key, at(1)), none);
        contention.note(key, millis(8), at(100));
        assert_eq!(contention.at(key, at(100)), millis(8));
        contention.note(key, millis(16), at(100));
        assert_eq!(contention.at(key, at(599)), millis(10));
        assert_eq!((contention.at(key, at(600)), contention.at(other, at(100))), (none, none));
    }
}
