//! A key as it is sent, with the prefix of the settings; and the hash of a key, by which records
//! and queues are found.
//!
//! Two keys may have the same hash. Code that finds an entry by a hash also compares the key, or
//! does no harm if the entry is that of another key.

use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};
use std::num::NonZeroU64;

/// Makes the key that is sent out of the key that a caller named. Everything else, such as records
/// and errors, has the key as the caller named it.
#[derive(Debug, Clone, Default)]
pub struct KeyPrefix {
    length: usize,
    /// The prefix, and after it the last key that it was put before.
    buffer: Vec<u8>,
}

impl KeyPrefix {
    /// Puts `prefix` before every key.
    pub fn new(prefix: &str) -> KeyPrefix {
        KeyPrefix { length: prefix.len(), buffer: prefix.into() }
    }

    /// The key as it is sent.
    #[inline]
    pub fn put_before<'a>(&'a mut self, key: &'a [u8]) -> &'a [u8] {
        if self.length == 0 {
            return key;
        }
        self.buffer.truncate(self.length);
        self.buffer.extend_from_slice(key);
        &self.buffer
    }

    /// The prefix.
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }

    /// The hash of a key as its caller named it, for the key as a node names it. A key without the
    /// prefix is none of this client's, and gets the hash of its whole name.
    #[inline]
    pub fn hash_of(&self, sent: &[u8]) -> KeyHash {
        KeyHash::of(sent.strip_prefix(self.as_bytes()).unwrap_or(sent))
    }
}

/// The hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(NonZeroU64);

impl KeyHash {
    /// The hash of `key`.
    pub fn of(key: &[u8]) -> KeyHash {
        let mut hasher = DefaultHasher::new();
        hasher.write(key);
        KeyHash(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN))
    }

    /// The place of this hash in a table with that many places.
    pub const fn place(self, places: usize) -> usize {
        (self.0.get() % places as u64) as usize
    }
}

/// The hasher of a map by key hashes: they need no further hashing.
pub type BuildKeyHasher = BuildHasherDefault<KeyHasher>;

/// Returns a key hash as it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0.rotate_left(8) ^ u64::from(byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_is_put_before_a_key_and_taken_off_again() {
        let mut prefix = KeyPrefix::new("app:");
        for key in [&b""[..], b"a", b"longer than the prefix", b"a"] {
            let sent = prefix.put_before(key).to_vec();
            assert_eq!(sent, [b"app:", key].concat());
            assert_eq!(prefix.hash_of(&sent), KeyHash::of(key));
        }
        assert_eq!(prefix.hash_of(b"a"), KeyHash::of(b"a"), "another client's key: harmless");
        let mut none = KeyPrefix::new("");
        assert_eq!(none.put_before(b"a"), b"a");
        assert_eq!(none.hash_of(b"a"), KeyHash::of(b"a"));
    }

    #[test]
    fn key_hash_is_equal_for_equal_keys_and_differs_for_others() {
        assert_eq!(KeyHash::of(b"a"), KeyHash::of(b"a"));
        assert_ne!(KeyHash::of(b"a"), KeyHash::of(b"b"));
        assert_ne!(KeyHash::of(b""), KeyHash::of(b"\0"));
    }

    #[test]
    fn hashes_are_spread_over_the_places_of_a_table() {
        let places: std::collections::BTreeSet<usize> =
            (0..100_u8).map(|n| KeyHash::of(&[n]).place(64)).collect();
        assert!(places.len() > 32 && places.iter().all(|&place| place < 64), "{places:?}");
        let of = |bytes: &[u8]| {
            let mut hasher = KeyHasher::default();
            hasher.write(bytes);
            hasher.finish()
        };
        assert_eq!(of(&[1, 2, 3]), 0x01_02_03);
        assert_eq!(of(&[3; 9]), 0x03_03_03_03_03_03_03_00, "no byte is lost: 3 ^ 3 is 0");
    }
}
