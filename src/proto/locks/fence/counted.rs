//! The keys that this client counted lately: their counters are probably there, so a transaction
//! can count them up.
//!
//! The table only says how to ask first. A vote from a counter that was not there does not count,
//! and the node is asked again by the script. So an entry may be wrong, or that of another key.

use std::time::Duration;

#[cfg(feature = "testing")]
use crate::proto::fingerprint::Fingerprint;
use crate::proto::key::KeyHash;
use crate::proto::time::Instant;

/// How many places the table has, 16 bytes each. Of two keys that share a place only the one that
/// was counted last has it. It has no memory before the first fencing number.
const PLACES: usize = 4096;

/// When each key was counted: a table of fixed size, by the hash of the key.
#[derive(Debug, Clone, Default)]
pub struct CountedKeys(Vec<Option<(KeyHash, Instant)>>);

impl CountedKeys {
    /// Notes that a lock on this key got its fencing number.
    pub fn note(&mut self, key: KeyHash, now: Instant) {
        if self.0.is_empty() {
            self.0.resize(PLACES, None);
        }
        self.0[key.place(PLACES)] = Some((key, now));
    }

    /// Whether the key was counted less than `lives` ago, and not forgotten since.
    pub fn has(&self, key: KeyHash, lives: Duration, now: Instant) -> bool {
        let place = self.0.get(key.place(PLACES)).copied().flatten();
        place.is_some_and(|(of, at)| of == key && now.saturating_since(at) < lives)
    }

    /// Forgets the key: other clients want it, or its counter was not there.
    pub fn forget(&mut self, key: KeyHash) {
        if let Some(place) = self.0.get_mut(key.place(PLACES)) {
            *place = place.filter(|&(of, _)| of != key);
        }
    }

    /// Adds the keys to a fingerprint. Their moments do not matter in a run that is shorter than
    /// half of the time that a counter lives.
    #[cfg(feature = "testing")]
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>, lives: Duration) {
        for (place, entry) in self.0.iter().enumerate() {
            if let Some((_, at)) = entry {
                let ago = fingerprint.now().saturating_since(*at);
                assert!(ago < lives / 2, "no run is that long");
                fingerprint.add(1 + place as u64);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: Duration = Duration::from_secs(600);

    #[test]
    fn key_is_known_until_its_counter_ends_or_another_key_takes_its_place() {
        let at = |seconds| Instant::default().saturating_add(Duration::from_secs(seconds));
        let key = KeyHash::of(b"a");
        let mut others = (0_u32..).map(|number| KeyHash::of(&number.to_le_bytes()));
        let same_place = others.find(|other| other.place(PLACES) == key.place(PLACES)).unwrap();
        let mut counted = CountedKeys::default();
        counted.forget(key);
        assert!(!counted.has(key, LIVES, at(1)));
        counted.note(key, at(1));
        assert!(counted.has(key, LIVES, at(600)) && !counted.has(key, LIVES, at(601)));
        assert!(!counted.has(same_place, LIVES, at(1)));
        counted.forget(same_place);
        assert!(counted.has(key, LIVES, at(1)), "it is another key");
        counted.note(same_place, at(2));
        assert!(!counted.has(key, LIVES, at(2)) && counted.has(same_place, LIVES, at(2)));
        counted.forget(same_place);
        assert!(!counted.has(same_place, LIVES, at(2)));
    }
}
