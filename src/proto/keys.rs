//! The keys of a request as a caller names them: one key, or several, in any of the usual types.
//!
//! The hazard is an allocation for a request with one key, as nearly all are. So the core borrows
//! one key from the caller, and only several become a [`KeySet`].

use std::borrow::Cow;
use std::sync::Arc;

use crate::proto::error::ConfigError;
use crate::proto::key_set::KeySet;

/// What a request can be for: one key, or several keys as one lock.
///
/// * One key is text or bytes: `&str`, `&String`, `&[u8]`, `&Vec<u8>`, a byte string literal
///   (`&[u8; N]`), or one of them by value, in a `Box`, an `Arc` or a `Cow`.
/// * Several keys are an array, a slice or a `Vec` of such keys, or a [`KeySet`]. They are one
///   lock: all or none of them. Their order does not matter, and a key that is named twice counts
///   once. An array or a slice of one key is that key.
///
/// A list without a key, or with more than [`MOST_KEYS`](crate::proto::MOST_KEYS) different ones,
/// is refused as [`ConfigError::Keys`], and keys that are too long together as
/// [`ConfigError::KeyTooLong`], before anything is sent. So is a key whose name begins with
/// `redlatch:`, as [`ConfigError::ReservedKey`]: such names are those of the library's own keys.
///
/// ```
/// use std::time::Duration;
/// use redlatch::proto::{ConfigError, Coordinator, Instant, KeySet, NodeSettings, Settings};
/// use redlatch::Error;
///
/// let nodes = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(NodeSettings::new);
/// let now = Instant::default();
/// let mut core = Coordinator::new(Settings::new(nodes.into()), [0; 32], now)?;
/// let ttl = Duration::from_secs(30);
///
/// // One key.
/// core.acquire("invoice:42", ttl, 0, now)?;
/// let name = format!("invoice:{}", 43);
/// core.acquire(&name, ttl, 0, now)?;
/// core.acquire(b"\x00\xff", ttl, 0, now)?;
/// core.acquire(&[0, 255][..], ttl, 0, now)?;
///
/// // One lock over several keys.
/// core.acquire(["account:7", "account:9"], ttl, 0, now)?;
/// core.acquire(&["account:7", "account:9"], ttl, 0, now)?;
/// core.acquire([&b"\x00"[..], b"\xff\xff"], ttl, 0, now)?;
/// let names: Vec<String> = (7..10).map(|number| format!("account:{number}")).collect();
/// core.acquire(&names, ttl, 0, now)?;
/// core.acquire(&names[1..], ttl, 0, now)?;
/// let accounts = KeySet::new(&names)?;
/// core.acquire(&accounts, ttl, 0, now)?;
///
/// let refused = core.acquire(&names[..0], ttl, 0, now);
/// assert_eq!(refused, Err(Error::Config(ConfigError::Keys { given: 0 })));
/// # Ok::<(), Error>(())
/// ```
///
/// No other type can be given: the trait is sealed.
pub trait Keys {
    /// The one key, or the set of several: borrowed if possible.
    #[doc(hidden)]
    fn named(&self) -> Result<NamedKeys<'_>, ConfigError>;
}

/// A type that is one key, alone or in a list.
pub trait OneKey {
    /// Its bytes.
    fn bytes(&self) -> &[u8];
}

/// The keys that a caller named; equal ones count as one.
#[derive(Debug)]
pub enum NamedKeys<'a> {
    /// One key.
    One(&'a [u8]),
    /// Two keys at least.
    Several(Cow<'a, KeySet>),
}

impl NamedKeys<'_> {
    /// The keys, as the layers below take them.
    #[inline]
    pub fn borrowed(&self) -> KeysRef<'_> {
        match self {
            NamedKeys::One(key) => KeysRef::One(key),
            NamedKeys::Several(keys) => KeysRef::Several(keys),
        }
    }
}

/// The keys of a request.
#[derive(Debug, Clone, Copy)]
pub enum KeysRef<'a> {
    /// One key.
    One(&'a [u8]),
    /// Two keys at least.
    Several(&'a KeySet),
}

impl<'a> KeysRef<'a> {
    /// The first key in the order of the bytes.
    #[inline]
    pub fn first(self) -> &'a [u8] {
        match self {
            KeysRef::One(key) => key,
            KeysRef::Several(keys) => keys.first(),
        }
    }

    /// The set, if there are several keys.
    #[inline]
    pub fn set(self) -> Option<&'a KeySet> {
        match self {
            KeysRef::One(_) => None,
            KeysRef::Several(keys) => Some(keys),
        }
    }

    /// How many keys there are.
    #[inline]
    pub fn len(self) -> usize {
        self.set().map_or(1, KeySet::len)
    }

    /// The keys, in the order of their bytes.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let one = if let KeysRef::One(key) = self { Some(key) } else { None };
        one.into_iter().chain(self.set().into_iter().flat_map(KeySet::iter))
    }
}

/// Keys that were taken out of a caller's type before.
impl Keys for KeysRef<'_> {
    #[inline]
    fn named(&self) -> Result<NamedKeys<'_>, ConfigError> {
        Ok(match *self {
            KeysRef::One(key) => NamedKeys::One(key),
            KeysRef::Several(keys) => NamedKeys::Several(Cow::Borrowed(keys)),
        })
    }
}

impl Keys for KeySet {
    fn named(&self) -> Result<NamedKeys<'_>, ConfigError> {
        if self.len() == 1 {
            return Ok(NamedKeys::One(self.first()));
        }
        Ok(NamedKeys::Several(Cow::Borrowed(self)))
    }
}

impl<K: OneKey> Keys for [K] {
    fn named(&self) -> Result<NamedKeys<'_>, ConfigError> {
        if let [one] = self {
            return Ok(NamedKeys::One(one.bytes()));
        }
        let set = KeySet::new(self.iter().map(OneKey::bytes))?;
        if set.len() == 1 {
            // The same key, more than once.
            return Ok(NamedKeys::One(self[0].bytes()));
        }
        Ok(NamedKeys::Several(Cow::Owned(set)))
    }
}

/// A list that derefs to a slice of keys.
macro_rules! lists {
    ($([$($generics:tt)*] $list:ty),*) => {$(
        impl<K: OneKey, $($generics)*> Keys for $list {
            fn named(&self) -> Result<NamedKeys<'_>, ConfigError> {
                <[K] as Keys>::named(self)
            }
        }
    )*};
}

lists!([const N: usize] [K; N], [] Vec<K>);

/// Types that are one key.
macro_rules! one_key {
    ($([$($generics:tt)*] $key:ty),*) => {$(
        impl<$($generics)*> OneKey for $key {
            #[inline]
            fn bytes(&self) -> &[u8] {
                AsRef::<[u8]>::as_ref(self)
            }
        }

        impl<$($generics)*> Keys for $key {
            #[inline]
            fn named(&self) -> Result<NamedKeys<'_>, ConfigError> {
                Ok(NamedKeys::One(OneKey::bytes(self)))
            }
        }
    )*};
}

one_key!([] str, [] String, [] [u8], [const N: usize] [u8; N], [] Vec<u8>);

/// Pointers to any of these.
macro_rules! pointers {
    ($([$($bounds:tt)*] $pointer:ty),*) => {$(
        impl<T: OneKey + ?Sized + $($bounds)*> OneKey for $pointer {
            #[inline]
            fn bytes(&self) -> &[u8] {
                T::bytes(self)
            }
        }

        impl<T: Keys + ?Sized + $($bounds)*> Keys for $pointer {
            #[inline]
            fn named(&self) -> Result<NamedKeys<'_>, ConfigError> {
                T::named(self)
            }
        }
    )*};
}

pointers!([] &T, [] Box<T>, [] Arc<T>, [ToOwned] Cow<'_, T>);

#[cfg(test)]
#[allow(clippy::needless_borrows_for_generic_args, reason = "every type is tried")]
mod tests {
    use super::*;
    use crate::proto::key_set::MOST_KEYS;

    /// The keys as text, if they are named.
    fn named(keys: impl Keys) -> Result<Vec<String>, ConfigError> {
        let named = keys.named()?;
        let keys = named.borrowed();
        assert_eq!(keys.len(), keys.iter().count());
        assert_eq!(keys.set().is_some(), keys.len() > 1, "one key is no set");
        assert_eq!(keys.iter().next(), Some(keys.first()));
        Ok(keys.iter().map(|key| key.escape_ascii().to_string()).collect())
    }

    #[test]
    fn keys_of_every_type_are_one_key() {
        let owned = String::from("k");
        for one in [
            named("k"),
            named(&owned),
            named(&&owned[..]),
            named(b"k"),
            named(&b"k"[..]),
            named(*b"k"),
            named(vec![b'k']),
            named(&vec![b'k']),
            named(Box::<str>::from("k")),
            named(Arc::<[u8]>::from(&b"k"[..])),
            named(Cow::Borrowed("k")),
            named(["k"]),
            named(["k", "k"]),
            named(&[b"k"][..]),
            named(KeySet::new(["k"]).unwrap()),
            named(owned.clone()),
        ] {
            assert_eq!(one.unwrap(), ["k"]);
        }
        // Bytes are one key, however many there are.
        assert_eq!(named(b"").unwrap(), [""]);
        assert_eq!(named([0_u8; 3]).unwrap(), [r"\x00\x00\x00"]);
    }

    #[test]
    fn keys_of_every_list_are_one_set() {
        let set = KeySet::new(["b", "a"]).unwrap();
        let strings = ["b", "a"].map(String::from);
        for several in [
            named(["b", "a"]),
            named(&["b", "a"]),
            named(&["b", "a", "b"][..]),
            named([&b"b"[..], b"a"]),
            named([b"b", b"a"]),
            named([*b"b", *b"a"]),
            named(vec!["b", "a"]),
            named(&strings),
            named(&strings[..]),
            named(strings.to_vec()),
            named(&set),
            named(set.clone()),
            named(Arc::new(set.clone())),
            named(Arc::<[String]>::from(strings.to_vec())),
        ] {
            assert_eq!(several.unwrap(), ["a", "b"]);
        }
    }

    #[test]
    fn keys_that_cannot_be_locked_together_are_refused() {
        let none: [&str; 0] = [];
        assert_eq!(named(none), Err(ConfigError::Keys { given: 0 }));
        assert_eq!(named(Vec::<String>::new()), Err(ConfigError::Keys { given: 0 }));
        let many: Vec<String> = (0..=MOST_KEYS).map(|number| number.to_string()).collect();
        assert_eq!(named(&many), Err(ConfigError::Keys { given: MOST_KEYS + 1 }));
        let long = [vec![b'a'; 60_000], vec![b'b'; 60_000]];
        assert!(matches!(named(&long), Err(ConfigError::KeyTooLong { given: 120_000, .. })));
    }

    #[test]
    fn keys_are_borrowed_if_possible() {
        let (text, set) = (String::from("k"), KeySet::new(["a", "b"]).unwrap());
        for one in [text.named(), [&text].named(), [&text, &text].named()] {
            let Ok(NamedKeys::One(key)) = one else { panic!("{one:?}") };
            assert_eq!(key.as_ptr(), text.as_ptr());
        }
        let Ok(NamedKeys::Several(Cow::Borrowed(same))) = set.named() else {
            panic!("it is copied");
        };
        assert!(std::ptr::eq(same, &set));
    }
}
