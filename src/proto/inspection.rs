//! What the nodes hold at a key, seen from outside: nothing is changed by the looking.
//!
//! The hazard is to read too much into it: the nodes are looked at one beside the other, not at
//! one moment, and what was seen may be over when it is read.

use std::fmt;
use std::time::Duration;

use super::error::NodeError;

/// How much of a value is asked for and kept. A token of ours has 40 bytes; what other programs
/// write there may be longer than any reply should be, and is cut.
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

    /// Its bytes, as far as they were kept.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// What is no printable ASCII is escaped.
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
pub enum KeyState {
    /// Nothing: the key is free there.
    Absent,
    /// The key, with this in it.
    Held {
        /// What is in it: the holder's token.
        value: Value,
        /// How much longer it lives; `None`: for ever. Zero where that is not known.
        left: Option<Duration>,
    },
    /// It is not known.
    Failed(NodeError),
}

/// What one node said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeKeyState {
    /// The node's label: its address, without credentials.
    pub label: Box<str>,
    /// What it holds.
    pub sight: KeyState,
    /// Its own words, where they tell more.
    pub detail: Option<Box<str>>,
    /// How long its answer took; zero where there was none.
    pub took: Duration,
}

/// What the nodes hold at a key.
#[derive(Debug, Clone, PartialEq, Eq)]
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
pub enum KeySummary {
    /// A majority has nothing there: whoever asks can have it.
    Free,
    /// A majority holds this.
    Held {
        /// The holder's token.
        value: Value,
        /// How many nodes hold it.
        nodes: usize,
        /// When a majority does not hold it any more, unless it is prolonged; `None`: never.
        left: Option<Duration>,
    },
    /// Nobody has a majority, and it is not free on one: attempts are under way, or left something.
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
                // The longest first; one that lives for ever is longer than all.
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

    fn seen(sights: &[KeyState]) -> KeySummary {
        let node = |&sight: &KeyState| NodeKeyState {
            label: "n".into(),
            sight,
            detail: None,
            took: Duration::ZERO,
        };
        let (quorum, nodes) = (sights.len() / 2 + 1, sights.iter().map(node).collect());
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
