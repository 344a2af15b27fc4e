//! The names of the keys that the library keeps beside a lock's key, and the keys that cannot be
//! locked.
//!
//! The braces around the lock's key give the library's key the same hash slot, unless the lock's
//! key has braces of its own.
//!
//! The hazard is a lock on one of the library's own keys: its token and what the library writes
//! there would overwrite each other.

use crate::proto::error::ConfigError;

/// What the names of the library's own keys begin with. No key of a lock may begin with it.
pub const NAMESPACE: &str = "redlatch:";

/// What stands before and after a lock's key in the name of its line.
pub const LINE: [&[u8]; 2] = [b"redlatch:line:{", b"}"];

/// What stands before and after a lock's key in the name of its fencing counter.
pub const COUNTER: [&[u8]; 2] = [b"redlatch:fence:{", b"}"];

/// A text that stands beside a lock's key and says something about it. No node decides by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// What the leader of an election says of itself.
    Leader,
    /// Asks the leader of an election to step down.
    Resign,
}

impl Note {
    /// What stands before a lock's key in the name of its note. After it stands a brace.
    const fn beginning(self) -> &'static [u8] {
        match self {
            Note::Leader => b"redlatch:leader:{",
            Note::Resign => b"redlatch:resign:{",
        }
    }

    /// The note of a lock's key, as it is sent.
    pub fn key(self, key: &[u8]) -> Vec<u8> {
        [self.beginning(), key, b"}"].concat()
    }
}

/// The line of a lock's key, as it is sent.
pub fn line_key(key: &[u8]) -> Vec<u8> {
    [LINE[0], key, LINE[1]].concat()
}

/// The fencing counter of a lock's key, as it is sent.
#[cfg(any(test, feature = "testing"))]
pub fn counter_key(key: &[u8]) -> Vec<u8> {
    [COUNTER[0], key, COUNTER[1]].concat()
}

/// The keys that cannot be locked, as a caller would name them.
#[derive(Debug, Clone)]
pub struct ReservedKeys {
    /// What the reserved keys begin with: the rest of [`NAMESPACE`] after the prefix. `None` if no
    /// key with this prefix can be in [`NAMESPACE`].
    beginning: Option<&'static [u8]>,
    /// The node marker without the prefix. `None` if its name does not begin with the prefix, or is
    /// in [`NAMESPACE`].
    marker: Option<Box<[u8]>>,
}

impl ReservedKeys {
    /// The keys that cannot be locked with this prefix, which does not begin with [`NAMESPACE`],
    /// and with this node marker.
    pub fn new(prefix: &str, marker: Option<&str>) -> ReservedKeys {
        let marker = marker.filter(|marker| !marker.starts_with(NAMESPACE));
        let marker = marker.and_then(|marker| marker.strip_prefix(prefix));
        ReservedKeys {
            beginning: NAMESPACE.strip_prefix(prefix).map(str::as_bytes),
            marker: marker.map(|marker| marker.as_bytes().into()),
        }
    }

    /// Refuses a key that cannot be locked.
    #[inline]
    pub fn check(&self, key: &[u8]) -> Result<(), ConfigError> {
        let is_own = self.beginning.is_some_and(|beginning| key.starts_with(beginning));
        if is_own || self.marker.as_deref() == Some(key) { self.refuse(key) } else { Ok(()) }
    }

    #[cold]
    fn refuse(&self, key: &[u8]) -> Result<(), ConfigError> {
        let rest = self.beginning.and_then(|beginning| key.strip_prefix(beginning));
        Err(match rest {
            Some(rest) => {
                ConfigError::ReservedKey { sent: [NAMESPACE.as_bytes(), rest].concat().into() }
            }
            None => ConfigError::KeyOfMarker { key: key.into() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of a key that a cluster hashes: what stands between its first opening brace and the
    /// next closing one, or the whole key if nothing does.
    fn hash_tag(key: &[u8]) -> &[u8] {
        let opens = key.iter().position(|&byte| byte == b'{').map(|at| at + 1);
        let tag = opens.and_then(|from| key[from..].split(|&byte| byte == b'}').next());
        tag.filter(|tag| !tag.is_empty() && key.contains(&b'}')).unwrap_or(key)
    }

    #[test]
    fn own_keys_of_a_key_have_its_hash_slot_and_are_reserved() {
        for key in [&b"job"[..], b"a:line", b"\0\r\n", b" "] {
            let notes = [Note::Leader, Note::Resign].map(|note| note.key(key));
            for own in [line_key(key), counter_key(key)].into_iter().chain(notes) {
                assert_eq!(hash_tag(&own), hash_tag(key), "{}", own.escape_ascii());
                assert!(ReservedKeys::new("", None).check(&own).is_err());
            }
        }
    }

    #[test]
    fn own_keys_of_different_keys_differ() {
        let keys = [&b""[..], b"a", b"{a}", b"a}", b"{a", b"a{b}", b"line:{a}", b"leader:{a}"];
        let notes = |key| [Note::Leader, Note::Resign].map(|note| note.key(key));
        let own = |key| [line_key(key), counter_key(key)].into_iter().chain(notes(key));
        let different: std::collections::HashSet<Vec<u8>> =
            keys.iter().flat_map(|key| own(key)).collect();
        assert_eq!(different.len(), 4 * keys.len());
    }

    #[test]
    fn key_is_reserved_if_its_name_with_the_prefix_begins_with_the_namespace() {
        let cases = [
            ("", "redlatch:", true),
            ("", "redlatch:node", true),
            ("", "redlatch", false),
            ("", "redlatch-a", false),
            ("", "a:redlatch:b", false),
            ("", "Redlatch:a", false),
            ("", "", false),
            ("red", "latch:a", true),
            ("red", "latch", false),
            ("redlatch", ":", true),
            ("redlatch", "a:", false),
            ("app:", "redlatch:a", false),
            ("redlatches:", "redlatch:a", false),
        ];
        for (prefix, key, is_reserved) in cases {
            let sent = format!("{prefix}{key}").into_bytes().into();
            let refused = Err(ConfigError::ReservedKey { sent });
            let expected = if is_reserved { refused } else { Ok(()) };
            let checked = ReservedKeys::new(prefix, None).check(key.as_bytes());
            assert_eq!(checked, expected, "{prefix:?} and {key:?}");
        }
    }

    #[test]
    fn node_marker_is_reserved_under_its_name_without_the_prefix() {
        let refused = |prefix, key: &[u8]| {
            let checked = ReservedKeys::new(prefix, Some("app:node")).check(key);
            checked == Err(ConfigError::KeyOfMarker { key: key.into() })
        };
        assert!(refused("", b"app:node") && refused("app:", b"node") && refused("app:node", b""));
        assert!(!refused("app:", b"app:node") && !refused("", b"node") && !refused("b", b"node"));
    }
}
