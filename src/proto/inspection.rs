//! What the nodes hold at a key, read from outside: the inspection changes nothing.
//!
//! The hazard is to read too much into it. The nodes are read separately, not at one moment, and
//! their state may have changed before the caller sees it.

use std::fmt;
use std::time::Duration;

use crate::proto::error::NodeError;

/// How many bytes of a value are asked for and kept. A token of this library has 40 bytes. Another
/// program may write a value that is longer than any reply should be: it is cut.
pub const KEPT: usize = 56;

/// What a node holds at a key, or the beginning of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value {
    bytes: [u8; KEPT],
    length: u8,
}

impl Value {
    /// The beginning of `bytes`.
    pub fn of(bytes: &[u8]) -> Value {
        let length = bytes.len().min(KEPT);
        let mut kept = [0; KEPT];
        kept[..length].copy_from_slice(&bytes[..length]);
        Value { bytes: kept, length: length as u8 }
    }

    /// The bytes of the value, as far as they were kept.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Bytes that are not printable ASCII are escaped.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().escape_ascii().fmt(f)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({self})")
    }
}

/// What one node holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyState {
    /// The node holds nothing: the key is free there.
    Absent,
    /// The node holds the key, with this value.
    Held {
        /// The value: the holder's token.
        value: Value,
        /// How much longer the key lives; `None`: for ever. Zero if that is not known.
        left: Option<Duration>,
    },
    /// The node gave no answer, for this reason.
    Failed(NodeError),
}

/// What one node said.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeKeyState {
    /// The node's label: its address, without credentials.
    pub label: Box<str>,
    /// What the node holds.
    pub sight: KeyState,
    /// The node's own words, if they say more.
    pub detail: Option<Box<str>>,
    /// How long the node's answer took; zero if it gave none.
    pub took: Duration,
}

/// What the nodes hold at a key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The key.
    pub key: Box<[u8]>,
    /// How many nodes are a majority.
    pub quorum: usize,
    /// Every node, in the order of the list.
    pub nodes: Vec<NodeKeyState>,
}

/// What the nodes together say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySummary {
    /// A majority holds nothing: a client that asks can acquire the lock.
    Free,
    /// A majority holds the same token.
    Held {
        /// The holder's token.
        value: Value,
        /// How many nodes hold it.
        nodes: usize,
        /// How long until a majority does not hold it any more, unless it is extended; `None`: for
        /// ever.
        left: Option<Duration>,
    },
    /// No token has a majority, and the key is not free on one: attempts are in flight, or left
    /// something.
    Split,
    /// Too few nodes answered.
    Unknown,
}

impl Inspection {
    /// What the nodes together say.
    pub fn finding(&self) -> KeySummary {
        let sights = || self.nodes.iter().map(|node| node.sight);
        for sight in sights() {
            let KeyState::Held { value, .. } = sight else { continue };
            let mut lefts: Vec<Option<Duration>> = sights()
                .filter_map(|other| match other {
                    KeyState::Held { value: same, left } if same == value => Some(left),
                    _ => None,
                })
                .collect();
            if lefts.len() >= self.quorum {
                // The longest first; a key without expiry counts as longer than all.
                lefts.sort_by_key(|left| std::cmp::Reverse(left.unwrap_or(Duration::MAX)));
                let left = lefts[self.quorum - 1];
                return KeySummary::Held { value, nodes: lefts.len(), left };
            }
        }
        let free = sights().filter(|sight| *sight == KeyState::Absent).count();
        let failed = sights().filter(|sight| matches!(sight, KeyState::Failed(_))).count();
        if free >= self.quorum {
            KeySummary::Free
        } else if failed > self.nodes.len() - self.quorum {
            KeySummary::Unknown
        } else {
            KeySummary::Split
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::node_set::majority;

    fn seen(sights: &[KeyState]) -> KeySummary {
        let node = |&sight: &KeyState| NodeKeyState {
            label: "n".into(),
            sight,
            detail: None,
            took: Duration::ZERO,
        };
        let (quorum, nodes) = (majority(sights.len()), sights.iter().map(node).collect());
        Inspection { key: b"k"[..].into(), quorum, nodes }.finding()
    }

    fn held(value: &[u8], millis: Option<u64>) -> KeyState {
        KeyState::Held { value: Value::of(value), left: millis.map(Duration::from_millis) }
    }

    #[test]
    fn a_majority_decides_what_is_seen() {
        let [a, b, never] = [held(b"a", Some(5)), held(b"b", Some(9)), held(b"a", None)];
        let (none, down) = (KeyState::Absent, KeyState::Failed(NodeError::Unreachable));
        let by_a = |nodes, millis: Option<u64>| KeySummary::Held {
            value: Value::of(b"a"),
            nodes,
            left: millis.map(Duration::from_millis),
        };
        let cases: [(&[KeyState], KeySummary); 8] = [
            (&[a, a, none], by_a(2, Some(5))),
            (&[a, held(b"a", Some(7)), held(b"a", Some(9))], by_a(3, Some(7))),
            (&[a, never, never], by_a(3, None)),
            (&[none, none, a], KeySummary::Free),
            (&[a, b, none], KeySummary::Split),
            (&[a, none, down], KeySummary::Split),
            (&[a, down, down], KeySummary::Unknown),
            (&[b, a, a], by_a(2, Some(5))),
        ];
        for (sights, finding) in cases {
            assert_eq!(seen(sights), finding, "{sights:?}");
        }
    }

    #[test]
    fn a_long_value_is_cut_and_any_is_printable() {
        let long = Value::of(&[b'x'; 1000]);
        assert_eq!(long.as_bytes().len(), KEPT);
        assert_eq!(Value::of(b"a\r\n\0").to_string(), "a\\r\\n\\x00");
    }
}
