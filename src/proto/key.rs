//! The hash of a key, by which records and queues are found.
//!
//! Two keys may have the same hash. Code that finds something by it compares the key itself, or
//! does no harm if it is another's.

use std::hash::{BuildHasherDefault, DefaultHasher, Hasher};

/// The hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// The hash of `key`.
    pub fn of(key: &[u8]) -> KeyHash {
        let mut hasher = DefaultHasher::new();
        hasher.write(key);
        KeyHash(hasher.finish())
    }

    /// The place of this hash in a table with that many places.
    pub const fn place(self, places: usize) -> usize {
        (self.0 % places as u64) as usize
    }
}

/// The hasher of a map by key hashes: they need no further hashing.
pub type HashOfIt = BuildHasherDefault<AsItIs>;

/// Takes a key hash as the hash.
#[derive(Debug, Clone, Copy, Default)]
pub struct AsItIs(u64);

impl Hasher for AsItIs {
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
    fn a_key_has_one_number_and_others_have_others() {
        assert_eq!(KeyHash::of(b"a"), KeyHash::of(b"a"));
        assert_ne!(KeyHash::of(b"a"), KeyHash::of(b"b"));
        assert_ne!(KeyHash::of(b""), KeyHash::of(b"\0"));
    }
}
