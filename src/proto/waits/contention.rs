//! What the waits remember across requests: which keys have a line, what was learned of other
//! waiters for a key, and how long a node takes to answer.

use std::time::Duration;

use crate::proto::key::KeyHash;
use crate::proto::time::Instant;
use crate::proto::waiting::{Crowd, WINDOW};

/// For how many keys the client remembers that other clients wait.
const REMEMBERED_KEYS: usize = 64;
/// After this time the client forgets them.
pub(super) const FORGOTTEN: Duration = Duration::from_millis(500);
/// The bounds of the measured round trip: a busy loop must not make every waiter wait for long.
const ROUND_TRIPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(5));

/// The keys for which other clients stood in line a moment ago: a new request for a fair lock joins
/// at once.
#[derive(Debug, Clone)]
pub struct BusyLines([Option<(KeyHash, Instant)>; REMEMBERED_KEYS]);

impl BusyLines {
    /// Whether other clients stand in line for the key, as far as the client remembers.
    pub fn contain(&self, key: KeyHash, now: Instant) -> bool {
        let seen = self.0[key.place(REMEMBERED_KEYS)];
        seen.is_some_and(|(whose, at)| whose == key && now.saturating_since(at) < FORGOTTEN)
    }

    /// The keys for which others stood in line, and when.
    #[cfg(feature = "testing")]
    pub fn all(&self) -> impl Iterator<Item = (KeyHash, Instant)> {
        self.0.iter().copied().flatten()
    }

    /// A request got the key after it stood in line with others.
    pub fn note(&mut self, key: KeyHash, now: Instant) {
        self.0[key.place(REMEMBERED_KEYS)] = Some((key, now));
    }

    /// No other client waits for the key any more.
    pub fn forget(&mut self, key: KeyHash) {
        let seen = &mut self.0[key.place(REMEMBERED_KEYS)];
        *seen = seen.filter(|(whose, _)| *whose != key);
    }
}

impl Default for BusyLines {
    fn default() -> BusyLines {
        BusyLines([None; REMEMBERED_KEYS])
    }
}

/// What the client learned of other waiters a moment ago, by key.
#[derive(Debug, Clone)]
pub struct Crowds([Option<(KeyHash, Instant, Crowd)>; REMEMBERED_KEYS]);

impl Crowds {
    /// What is known for this key.
    pub fn of(&self, key: KeyHash, now: Instant) -> Crowd {
        match self.0[key.place(REMEMBERED_KEYS)] {
            Some((whose, at, crowd)) if whose == key && now.saturating_since(at) < FORGOTTEN => {
                crowd
            }
            _ => Crowd::default(),
        }
    }

    /// A request that knows this got the key.
    pub fn note(&mut self, key: KeyHash, crowd: Crowd, now: Instant) {
        self.0[key.place(REMEMBERED_KEYS)] = Some((key, now, crowd));
    }
}

impl Default for Crowds {
    fn default() -> Crowds {
        Crowds([None; REMEMBERED_KEYS])
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
    WINDOW + 2 * round_trip
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
    fn what_was_learned_of_other_waiters_is_remembered_for_a_while() {
        let (key, other) = (KeyHash::of(b"a"), KeyHash::of(b"b"));
        let mut waiting = crate::proto::waiting::Waiting::new(5, 1, at(0));
        waiting.note_lost(true, Duration::from_micros(100));
        let (mut crowds, crowd) = (Crowds::default(), waiting.crowd);
        assert_ne!(crowd, Crowd::default());
        crowds.note(key, crowd, at(100));
        assert_eq!(crowds.of(key, at(599)), crowd);
        assert_eq!(crowds.of(key, at(600)), Crowd::default());
        assert_eq!(crowds.of(other, at(100)), Crowd::default());
    }

    #[test]
    fn a_busy_line_is_remembered_for_a_while() {
        let (key, other) = (KeyHash::of(b"a"), KeyHash::of(b"b"));
        let mut lines = BusyLines::default();
        assert!(!lines.contain(key, at(1)));
        lines.note(key, at(100));
        assert!(lines.contain(key, at(599)) && !lines.contain(other, at(100)));
        assert!(!lines.contain(key, at(600)));
        lines.forget(other);
        assert!(lines.contain(key, at(100)));
        lines.forget(key);
        assert!(!lines.contain(key, at(100)));
    }
}
