//! The report of what every node said to the question that failed: one line for an operator.

use std::fmt;
use std::time::Duration;

use super::node::{NodeError, NodeReply};

/// What one node said, in a [`Report`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node's label: its address, without credentials.
    pub label: Box<str>,
    /// What the node said.
    pub reply: NodeReply,
    /// The node's own words if they say more: an error line, a connect error.
    pub detail: Option<Box<str>>,
    /// Why the node's grants do not count, whatever it said; `None` if they do.
    pub quarantine: Option<Quarantine>,
}

/// For how long the grants of a node do not count yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantine {
    /// The time that is left.
    pub left: Duration,
    /// This client is the first one that met the node without a node marker: the node is new, or
    /// lost its keys.
    pub is_unmarked: bool,
}

/// What every node said to the question that failed. `Debug` prints the same line as `Display`.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The key that was asked for. Of several keys: the one that a node named last as held or
    /// gone, or else the first in the order of the bytes.
    pub key: Box<[u8]>,
    /// If the lock has several keys: how many, and whether `key` is one that a node named.
    pub set: Option<ReportedSet>,
    /// How many nodes had to say yes.
    pub needed: usize,
    /// Every node, in the order of the list.
    pub nodes: Vec<NodeReport>,
    /// For how long the key is held, if that is known: after a wait, or if this client holds it.
    pub held: Option<HeldFor>,
    /// The request named the lock by its token: this client does not know up to when it was held.
    pub by_token: bool,
}

/// What a [`Report`] says of a lock over several keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedSet {
    /// How many keys the lock has.
    pub keys: usize,
    /// Whether a node named the report's key: it is held, or gone, or another's there.
    pub named: bool,
}

/// For how long a key is held that stands in the way of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldFor {
    /// A majority of the nodes can be free after this time, unless the lock is extended.
    Left(Duration),
    /// The key has no ttl on this many nodes, so no majority becomes free by itself: another
    /// program wrote it.
    Ever {
        /// How many nodes hold the key without a ttl.
        nodes: usize,
    },
    /// This client itself holds the lock.
    Ours {
        /// The time to the lock's deadline.
        left: Duration,
        /// The client renews the lock.
        auto_extended: bool,
    },
}

impl HeldFor {
    /// The beginning of a contended error; `nodes` is how many nodes there are.
    pub(super) fn describe(
        held: Option<HeldFor>,
        nodes: usize,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        match held {
            None => f.write_str("held by another client"),
            Some(HeldFor::Left(left)) => write!(f, "held by another client for {left:.1?} more"),
            Some(HeldFor::Ever { nodes: by }) => {
                write!(f, "held for ever by another client, no ttl on {by} of {nodes} nodes")
            }
            Some(HeldFor::Ours { auto_extended: true, .. }) => {
                f.write_str("held by this client, which renews it; release it first")
            }
            Some(HeldFor::Ours { left, .. }) => {
                write!(f, "held by this client for {left:.1?} more; release it first")
            }
        }
    }
}

impl Report {
    /// Whether a majority would be possible if the grants of quarantined nodes counted.
    pub fn is_for_the_restart_guard(&self) -> bool {
        let quarantined = NodeReply::Failed(NodeError::Quarantined);
        let count = |reply| self.nodes.iter().filter(|node| node.reply == reply).count();
        let open = count(NodeReply::Granted) + count(NodeReply::Nothing);
        count(quarantined) > 0 && count(quarantined) + open >= self.needed
    }

    /// Writes why too few nodes for a majority still hold the key.
    pub(super) fn write_gone(&self, f: &mut impl fmt::Write) -> fmt::Result {
        let nodes = self.nodes.len();
        let count = |reply| self.nodes.iter().filter(|node| node.reply == reply).count();
        match (count(NodeReply::Absent), count(NodeReply::Held)) {
            (0, 0) => f.write_str("its key is gone on too many nodes"),
            (0, held) => write!(f, "its key is another client's on {held} of {nodes} nodes"),
            (absent, held) => {
                let deleted = "by DEL, FLUSHALL, force-release or a restart without its data";
                if self.by_token {
                    write!(f, "its key is gone on {absent} of {nodes} nodes: its ttl was over, ")?;
                    write!(f, "or it was deleted {deleted}")?;
                } else {
                    write!(f, "its key was deleted on {absent} of {nodes} nodes, {deleted}")?;
                }
                if held > 0 { write!(f, ", and is another client's on {held}") } else { Ok(()) }
            }
        }
    }

    /// Writes what some of the nodes said.
    pub(super) fn write_nodes(
        &self,
        f: &mut impl fmt::Write,
        wanted: impl Fn(&NodeReport) -> bool,
    ) -> fmt::Result {
        for (index, node) in self.nodes.iter().filter(|node| wanted(node)).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", node.label, node.reply)?;
            if let Some(detail) = &node.detail {
                write!(f, " ({detail})")?;
            }
        }
        Ok(())
    }

    /// Whether a node of the list is a server that another address leads to as well.
    pub(super) fn names_one_server_twice(&self) -> bool {
        let twice = NodeReply::Failed(NodeError::SameServer);
        self.nodes.iter().any(|node| node.reply == twice)
    }

    /// How long it takes until the grants of a quorum count, unless more happens to the nodes.
    /// `None`: that does not depend on the restart guard alone.
    pub fn quorum_in(&self) -> Option<Duration> {
        if !self.is_for_the_restart_guard() {
            return None;
        }
        let left = |node: &NodeReport| match node.reply {
            NodeReply::Granted | NodeReply::Nothing | NodeReply::Failed(NodeError::Quarantined) => {
                Some(node.quarantine.map_or(Duration::ZERO, |it| it.left))
            }
            _ => None,
        };
        let mut left: Vec<Duration> = self.nodes.iter().filter_map(left).collect();
        left.sort_unstable();
        left.get(self.needed.saturating_sub(1)).copied()
    }

    /// The hint in an error that the restart guard causes: what the caller can do.
    pub(super) fn hint(&self) -> String {
        // Rounds up: a wait that is a second too long does no harm, but one that is a second too
        // short ends in another refusal.
        let in_words =
            |left: Duration| format!("; wait {} s: nothing else is needed", left.as_secs() + 1);
        self.quorum_in().map(in_words).unwrap_or_default()
    }
}

/// How many bytes of a key an error shows: it is one line.
const SHOWN_OF_A_KEY: usize = 100;

/// A key in quotes; of a long one the beginning and the length.
struct ShownKey<'a>(&'a [u8]);

impl fmt::Display for ShownKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ShownKey(key) = self;
        match key.get(..SHOWN_OF_A_KEY) {
            Some(start) if key.len() > SHOWN_OF_A_KEY => {
                write!(f, "\"{}...\" ({} bytes)", start.escape_ascii(), key.len())
            }
            _ => write!(f, "\"{}\"", key.escape_ascii()),
        }
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (needed, nodes) = (self.needed, self.nodes.len());
        write!(f, "needed {needed} of {nodes}")?;
        // A report about the nodes alone names no key.
        if !self.key.is_empty() {
            write!(f, " for {}", ShownKey(&self.key))?;
        }
        match self.set {
            None => {}
            Some(ReportedSet { keys, named: true }) => write!(f, ", one of {keys} keys")?,
            Some(ReportedSet { keys: 2, .. }) => f.write_str(" and 1 more key")?,
            Some(ReportedSet { keys, .. }) => write!(f, " and {} more keys", keys - 1)?,
        }
        f.write_str(": ")?;
        self.write_nodes(f, |_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::error::ConfigError;

    const GUARDED: NodeReply = NodeReply::Failed(NodeError::Quarantined);
    const UNREACHABLE: NodeReply = NodeReply::Failed(NodeError::Unreachable);

    fn report(needed: usize, replies: &[NodeReply]) -> Report {
        let node = |(index, &reply): (usize, &NodeReply)| NodeReport {
            label: format!("n{index}").into(),
            reply,
            detail: None,
            quarantine: (reply == GUARDED).then(|| Quarantine {
                left: Duration::from_millis(1000 * index as u64 + 500),
                is_unmarked: true,
            }),
        };
        let nodes = replies.iter().enumerate().map(node).collect();
        Report { key: (*b"k").into(), set: None, needed, nodes, held: None, by_token: false }
    }

    #[test]
    fn hint_to_wait_comes_only_where_the_end_of_quarantines_makes_a_majority() {
        let cases = [
            (&[GUARDED, GUARDED, UNREACHABLE][..], Some(2)),
            (&[GUARDED, GUARDED, GUARDED], Some(2)),
            (&[GUARDED, NodeReply::Granted, UNREACHABLE], Some(1)),
            (&[GUARDED, NodeReply::Nothing, GUARDED], Some(1)),
            (&[GUARDED, UNREACHABLE, UNREACHABLE], None),
            (&[GUARDED, NodeReply::Held, UNREACHABLE], None),
            (&[NodeReply::Granted, NodeReply::Granted, UNREACHABLE], None),
        ];
        for (replies, seconds) in cases {
            let report = report(2, replies);
            assert_eq!(report.is_for_the_restart_guard(), seconds.is_some(), "{report}");
            let hint = |seconds| format!("; wait {seconds} s: nothing else is needed");
            assert_eq!(report.hint(), seconds.map(hint).unwrap_or_default(), "{report}");
        }
    }

    #[test]
    fn report_shows_the_beginning_of_a_long_key() {
        let text = |length| {
            let key = vec![b'k'; length].into();
            Report { key, ..report(1, &[]) }.to_string()
        };
        assert_eq!(text(100), format!("needed 1 of 0 for \"{}\": ", "k".repeat(100)));
        let long = format!("needed 1 of 0 for \"{}...\" (3000 bytes): ", "k".repeat(100));
        assert_eq!(text(3000), long);
    }

    #[test]
    fn configuration_error_names_the_addresses_that_lead_to_one_server() {
        let same = NodeReply::Failed(NodeError::SameServer);
        let text =
            |replies: &[NodeReply]| ConfigError::Nodes(Box::new(report(2, replies))).to_string();
        let twice = text(&[NodeReply::Nothing, same, NodeReply::Nothing]);
        assert!(twice.starts_with("two addresses lead to one server"), "{twice}");
        assert!(twice.contains("n1") && !twice.contains("n0") && !twice.contains("n2"), "{twice}");
        let other = text(&[NodeReply::Nothing, NodeReply::Failed(NodeError::NoAuth)]);
        assert!(other.starts_with("configuration: too few usable nodes"), "{other}");
        assert!(other.contains("n0") && other.contains("n1"), "{other}");
    }
}
