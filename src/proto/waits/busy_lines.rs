//! What the waits remember across requests: which keys have a line.

use std::time::Duration;

use crate::proto::key::KeyHash;
use crate::proto::time::Instant;

/// For how many keys the client remembers that other clients wait.
const REMEMBERED_KEYS: usize = 64;
/// How long the client remembers a key.
pub(super) const FORGOTTEN: Duration = Duration::from_millis(500);

/// The keys for which other clients stood in line a moment ago: a new request for one of them joins
/// the line with its first attempt.
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

    /// Remembers that other clients stood in line with a request that got the key.
    pub fn note(&mut self, key: KeyHash, now: Instant) {
        self.0[key.place(REMEMBERED_KEYS)] = Some((key, now));
    }

    /// Forgets the line of a key for which no other client waits any more.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
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
