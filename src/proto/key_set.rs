//! The keys of one lock over several keys: sorted by their bytes, each of them once.
//!
//! The hazard is the caller's order: two requests that took the same keys in different orders would
//! wait for each other. So every set has the order of the bytes.

use std::fmt;
use std::sync::Arc;

use crate::proto::error::ConfigError;

/// The most keys of one set. A script reads all of them before it writes one, and the node serves
/// no other client meanwhile.
pub const MOST_KEYS: usize = 64;

/// The keys of one lock over several keys: sorted by their bytes, each of them once.
///
/// ```
/// use redlatch::proto::KeySet;
///
/// let keys = KeySet::new(["bob", "alice", "bob"])?;
/// assert_eq!(keys.iter().collect::<Vec<_>>(), [b"alice".as_slice(), b"bob"]);
/// # Ok::<(), redlatch::proto::ConfigError>(())
/// ```
///
/// A program that locks the same keys often makes their set once: then a lock allocates nothing.
/// A clone shares the keys.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeySet(Arc<Parts>);

#[derive(PartialEq, Eq, Hash)]
struct Parts {
    /// All keys, one directly after the other.
    bytes: Box<[u8]>,
    /// Where each of them ends.
    ends: Box<[u32]>,
}

impl KeySet {
    /// The set of these keys. Their order does not matter, and a key may be named twice.
    ///
    /// # Errors
    /// [`ConfigError::Keys`] if there is no key, or if there are more than [`MOST_KEYS`] different
    /// ones; [`ConfigError::KeyTooLong`] if together they are longer than one key may be.
    pub fn new<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Result<KeySet, ConfigError> {
        let keys: Vec<K> = keys.into_iter().collect();
        let mut sorted: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.is_empty() || sorted.len() > MOST_KEYS {
            return Err(ConfigError::Keys { given: sorted.len() });
        }
        let bytes = sorted.concat();
        let (given, most) = (bytes.len(), crate::proto::settings::LONGEST_KEY);
        if given > most {
            return Err(ConfigError::KeyTooLong { given, most });
        }
        let mut end = 0;
        let end_of = |key: &&[u8]| {
            end += key.len() as u32;
            end
        };
        let ends = sorted.iter().map(end_of).collect();
        Ok(KeySet(Arc::new(Parts { bytes: bytes.into(), ends })))
    }

    /// The keys, in the order of their bytes.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        parts(&self.0.bytes, &self.0.ends)
    }

    /// The first key in the order of the bytes.
    pub fn first(&self) -> &[u8] {
        &self.0.bytes[..self.0.ends[0] as usize]
    }

    /// How many keys there are: at least one.
    #[expect(clippy::len_without_is_empty, reason = "a set is never empty")]
    pub fn len(&self) -> usize {
        self.0.ends.len()
    }

    /// All keys, one directly after the other, and where each of them ends.
    pub(crate) fn as_parts(&self) -> (&[u8], &[u32]) {
        (&self.0.bytes, &self.0.ends)
    }
}

/// Splits `bytes`, where keys stand one directly after the other, at the `ends` of the keys.
pub fn parts<'a>(bytes: &'a [u8], ends: &'a [u32]) -> impl Iterator<Item = &'a [u8]> {
    let mut start = 0;
    ends.iter().map(move |&end| {
        let key = &bytes[start..end as usize];
        start = end as usize;
        key
    })
}

/// The keys as text, in braces.
impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        for key in self.iter() {
            set.entry(&format_args!("\"{}\"", key.escape_ascii()));
        }
        set.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::settings::LONGEST_KEY;

    #[test]
    fn set_has_each_key_once_in_the_order_of_the_bytes() {
        let keys: [&[u8]; 6] = [b"b", b"", b"a\0", b"\xff\r\n", b"a", b"b"];
        let set = KeySet::new(keys).unwrap();
        let expected: [&[u8]; 5] = [b"", b"a", b"a\0", b"b", b"\xff\r\n"];
        assert_eq!(set.iter().collect::<Vec<_>>(), expected);
        assert_eq!((set.len(), set.first()), (5, &b""[..]));
        assert_eq!(set, KeySet::new(expected).unwrap());
        // The same bytes in other keys are another set.
        assert_ne!(KeySet::new(["ab", "c"]).unwrap(), KeySet::new(["a", "bc"]).unwrap());
        assert_eq!(format!("{set:?}"), r#"{"", "a", "a\x00", "b", "\xff\r\n"}"#);
    }

    #[test]
    fn set_is_neither_empty_nor_larger_than_its_limit() {
        let names = |count: usize| (0..count).map(|number| format!("key-{number}"));
        assert_eq!(KeySet::new(names(MOST_KEYS)).unwrap().len(), MOST_KEYS);
        let twice = names(MOST_KEYS).chain(names(MOST_KEYS));
        assert_eq!(KeySet::new(twice).unwrap().len(), MOST_KEYS, "a key counts once");
        let none: [&str; 0] = [];
        let error = KeySet::new(none).unwrap_err();
        assert_eq!(error.to_string(), "keys: the list is empty; name at least one");
        let error = KeySet::new(names(MOST_KEYS + 1)).unwrap_err();
        let text = "keys: 65 different keys are given; a lock can have 64 at most";
        assert_eq!(error.to_string(), text);
        let long = [vec![b'a'; LONGEST_KEY], vec![b'b']];
        assert!(matches!(KeySet::new(long), Err(ConfigError::KeyTooLong { given: 65_537, .. })));
    }
}
