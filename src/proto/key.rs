//! By what a key is found again: a number that its bytes give.
//!
//! Two keys may have the same one. Whoever finds something by it looks at the key itself, or does
//! no harm where it is another's.

use std::hash::{DefaultHasher, Hasher};

/// The number of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(u64);

impl KeyHash {
    /// The number of `key`.
    pub fn of(key: &[u8]) -> KeyHash {
        let mut hasher = DefaultHasher::new();
        hasher.write(key);
        KeyHash(hasher.finish())
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
