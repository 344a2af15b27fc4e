//! What the nodes hold at a key, read from outside: the inspection changes nothing.
//!
//! The hazard is to take an inspection for the present state. The nodes are read separately, not at
//! one moment, and what they hold may have changed before the caller sees it.

use std::fmt;
use std::time::Duration;

use crate::proto::error::NodeError;
use crate::proto::lock::{LONGEST_TOKEN, LockToken};
use crate::proto::quorum::reached_by;

/// How many bytes of a value are asked for and kept: more than the longest token has
/// ([`LONGEST_TOKEN`]). A longer value, which another program wrote, is cut.
pub const VALUE_BYTES: usize = 160;

const _: () = assert!(VALUE_BYTES > LONGEST_TOKEN, "a token is kept whole");

/// How many waiters of the line beside a key are read and kept, from the first on.
pub const LINE_SHOWN: usize = 100;

/// What a node holds at a key, or the beginning of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Value {
    bytes: [u8; VALUE_BYTES],
    length: u8,
}

impl Value {
    /// The value `bytes`, cut after 160 bytes.
    pub fn of(bytes: &[u8]) -> Value {
        let length = bytes.len().min(VALUE_BYTES);
        let mut stored = [0; VALUE_BYTES];
        stored[..length].copy_from_slice(&bytes[..length]);
        Value { bytes: stored, length: length as u8 }
    }

    /// The bytes of the value, as far as they were kept.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The value as a token; `None` if another program wrote it.
    pub fn token(&self) -> Option<LockToken> {
        std::str::from_utf8(self.as_bytes()).ok().and_then(LockToken::parse)
    }

    /// The owner that the value names, if it is a token with an owner.
    pub fn owner(&self) -> Option<&str> {
        self.token()?;
        let text = std::str::from_utf8(self.as_bytes()).ok()?;
        text.split_once(':').map(|(_, owner)| owner)
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

/// What one node answered to an inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeKeyState {
    /// The node's label: its address, without credentials.
    pub label: Box<str>,
    /// What the node holds.
    pub state: KeyState,
    /// The node's own text, if it says more.
    pub detail: Option<Box<str>>,
    /// How long the node's answer took; zero if it gave none.
    pub took: Duration,
    /// The tokens of the requests that wait for the key on this node: in their order, the first
    /// 100 of them. Empty if the node does not let this client read its line.
    pub line: Vec<Value>,
}

/// What the nodes hold at a key. `Debug` prints the same line as `Display`.
#[derive(Clone, PartialEq, Eq)]
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
    /// No majority holds one value, and the key is free on no majority, whatever the nodes hold
    /// that did not answer. Attempts are in flight, or left keys behind.
    Split,
    /// Another kind of value than a string stands at the key on so many nodes that the others are
    /// no majority: another program uses the key, and no client can lock it.
    NoLock,
    /// It depends on the nodes that did not answer: with them, a majority may hold one token, or
    /// nothing.
    Unknown,
}

impl Inspection {
    /// The tokens of the requests that wait for the key on any node, in their order. Where the
    /// nodes have different orders, the mean place decides.
    pub fn line(&self) -> Vec<Value> {
        let mut places: Vec<(Value, usize, usize)> = Vec::new();
        for (place, token) in self.nodes.iter().flat_map(|node| node.line.iter().enumerate()) {
            match places.iter_mut().find(|(other, ..)| other == token) {
                Some((_, sum, nodes)) => (*sum, *nodes) = (*sum + place, *nodes + 1),
                None => places.push((*token, place, 1)),
            }
        }
        // `a / n < b / m`, without fractions.
        places.sort_by(|a, b| {
            (a.1 * b.2).cmp(&(b.1 * a.2)).then_with(|| a.0.as_bytes().cmp(b.0.as_bytes()))
        });
        places.into_iter().map(|(token, ..)| token).collect()
    }

    /// What the nodes together say.
    pub fn summary(&self) -> KeySummary {
        let states = || self.nodes.iter().map(|node| node.state);
        let mut most_alike = 0;
        for state in states() {
            let KeyState::Held { value, .. } = state else { continue };
            // A key without expiry counts as the one that lives longest.
            let mut lefts: Vec<Duration> = states()
                .filter_map(|other| match other {
                    KeyState::Held { value: same, left } if same == value => {
                        Some(left.unwrap_or(Duration::MAX))
                    }
                    _ => None,
                })
                .collect();
            most_alike = most_alike.max(lefts.len());
            if lefts.len() >= self.quorum {
                let left = reached_by(self.quorum, &mut lefts);
                let left = left.filter(|&left| left < Duration::MAX);
                return KeySummary::Held { value, nodes: lefts.len(), left };
            }
        }
        let count = |test: fn(KeyState) -> bool| states().filter(|&state| test(state)).count();
        let free = count(|state| state == KeyState::Absent);
        let no_lock = count(|state| state == KeyState::Failed(NodeError::WrongType));
        let silent = count(|state| matches!(state, KeyState::Failed(_))) - no_lock;
        if free >= self.quorum {
            KeySummary::Free
        } else if no_lock > self.nodes.len() - self.quorum {
            KeySummary::NoLock
        } else if most_alike.max(free) + silent >= self.quorum {
            KeySummary::Unknown
        } else {
            KeySummary::Split
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\", a quorum is {}:", self.key.escape_ascii(), self.quorum)?;
        for (index, node) in self.nodes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma} {} ", node.label)?;
            match node.state {
                KeyState::Absent => f.write_str("free")?,
                KeyState::Held { value, left: Some(left) } => {
                    write!(f, "held by {value} for {left:?}")?;
                }
                KeyState::Held { value, left: None } => write!(f, "held by {value} for ever")?,
                KeyState::Failed(cause) => cause.fmt(f)?,
            }
            if let Some(detail) = &node.detail {
                write!(f, " ({detail})")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::quorum::majority;

    fn seen(states: &[KeyState]) -> KeySummary {
        let node = |&state: &KeyState| NodeKeyState {
            label: "n".into(),
            state,
            detail: None,
            took: Duration::ZERO,
            line: Vec::new(),
        };
        let (quorum, nodes) = (majority(states.len()), states.iter().map(node).collect());
        Inspection { key: b"k"[..].into(), quorum, nodes }.summary()
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
        let list = KeyState::Failed(NodeError::WrongType);
        let cases: [(&[KeyState], KeySummary); 19] = [
            (&[a, a, none], by_a(2, Some(5))),
            (&[a, held(b"a", Some(7)), held(b"a", Some(9))], by_a(3, Some(7))),
            (&[a, never, never], by_a(3, None)),
            (&[none, none, a], KeySummary::Free),
            (&[a, b, none], KeySummary::Split),
            // The node that is down may hold the value of the first node, or be free like the
            // second.
            (&[a, none, down], KeySummary::Unknown),
            (&[a, b, down], KeySummary::Unknown),
            (&[a, down, down], KeySummary::Unknown),
            (&[none, down, down], KeySummary::Unknown),
            (&[down, down, down], KeySummary::Unknown),
            (&[a, b, none, none, down], KeySummary::Unknown),
            (&[a, b, held(b"c", None), none, down], KeySummary::Split),
            (&[list, list, list], KeySummary::NoLock),
            (&[list, list, a], KeySummary::NoLock),
            (&[list, a, none], KeySummary::Split),
            (&[list, a, down], KeySummary::Unknown),
            // A list is neither free nor a lock, whatever the node that is down holds.
            (&[list, list, a, b, down], KeySummary::Split),
            (&[list, a, a], by_a(2, Some(5))),
            (&[b, a, a], by_a(2, Some(5))),
        ];
        for (states, summary) in cases {
            assert_eq!(seen(states), summary, "{states:?}");
        }
    }

    #[test]
    fn inspection_is_one_line_with_the_key_as_text() {
        let node = |label: &str, state| NodeKeyState {
            label: label.into(),
            state,
            detail: matches!(state, KeyState::Failed(_)).then(|| "refused".into()),
            took: Duration::ZERO,
            line: Vec::new(),
        };
        let nodes = vec![
            node("a:1", held(b"tok\n", Some(1500))),
            node("b:1", held(b"tok", None)),
            node("c:1", KeyState::Absent),
            node("d:1", KeyState::Failed(NodeError::Unreachable)),
        ];
        let seen = Inspection { key: b"in\r\nvoice"[..].into(), quorum: 3, nodes };
        let line = "\"in\\r\\nvoice\", a quorum is 3: a:1 held by tok\\n for 1.5s, \
             b:1 held by tok for ever, c:1 free, d:1 not connected (refused)";
        assert_eq!(seen.to_string(), line);
        assert_eq!(format!("{seen:?}"), line);
    }

    #[test]
    fn line_is_in_the_order_of_the_mean_places_on_the_nodes_that_have_a_waiter() {
        let node = |line: &[&str]| NodeKeyState {
            label: "n".into(),
            state: KeyState::Absent,
            detail: None,
            took: Duration::ZERO,
            line: line.iter().map(|token| Value::of(token.as_bytes())).collect(),
        };
        let order = |lines: &[&[&str]]| -> Vec<String> {
            let nodes = lines.iter().map(|line| node(line)).collect();
            let seen = Inspection { key: b"k"[..].into(), quorum: 2, nodes };
            seen.line().iter().map(Value::to_string).collect()
        };
        assert_eq!(order(&[&["a", "b"], &["b", "a", "c"], &["a", "b"]]), ["a", "b", "c"]);
        assert_eq!(order(&[&["b", "a"], &["a", "b"], &["b"]]), ["b", "a"]);
        assert_eq!(order(&[&["b"], &["a"], &[]]), ["a", "b"], "by the token if all is the same");
        assert_eq!(order(&[&[], &[], &[]]), [""; 0]);
    }

    #[test]
    fn value_that_is_a_token_names_its_owner() {
        let digits = "0123456789abcdef0123456789abcdef01234567";
        let owned = Value::of(format!("{digits}:web-1:4711/nightly").as_bytes());
        assert_eq!(owned.owner(), Some("web-1:4711/nightly"));
        assert_eq!(owned.token().map(|token| token.to_string()), Some(owned.to_string()));
        let plain = Value::of(digits.as_bytes());
        assert_eq!((plain.owner(), plain.token().is_some()), (None, true));
        let long = format!("{digits}:{}", "x".repeat(100));
        assert_eq!(Value::of(long.as_bytes()).owner().map(str::len), Some(100));
        for other in ["web-1:4711", "not a token:me", &format!("{digits}:a b")] {
            assert_eq!(Value::of(other.as_bytes()).owner(), None, "{other}");
        }
    }

    #[test]
    fn a_long_value_is_cut_and_any_is_printable() {
        let long = Value::of(&[b'x'; 1000]);
        assert_eq!(long.as_bytes().len(), VALUE_BYTES);
        assert_eq!(Value::of(b"a\r\n\0").to_string(), "a\\r\\n\\x00");
    }
}
