//! What each node answered in a round, in five bits for each node. Every held lock has a round, so
//! it has to be small.
//!
//! The hazard is a cause that is read back as another one: its number is its place in
//! [`NodeError::ALL`]. A test compares that list with the order of the declaration.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::node_set::{NodeId, NodeSet};

const BITS: usize = 5;

/// The numbers of the replies that are no failure. The numbers of the causes of failures follow.
const GRANTED: usize = 1;
const HELD: usize = 2;
const ABSENT: usize = 3;
const FIRST_CAUSE: usize = 4;

/// The last cause has no number of its own: the client sends the script then. It is noted as
/// `Other`.
const NUMBERED: usize = NodeError::ALL.len() - 1;
const _: () = assert!(NodeError::NoScript as usize == NUMBERED);
const _: () = assert!(FIRST_CAUSE + NUMBERED <= 1 << BITS);

/// What each node answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Replies {
    /// One set for each bit: the nodes whose reply has a number with that bit.
    bits: [NodeSet; BITS],
}

impl Replies {
    /// Notes the reply of a node, unless it gave one before.
    #[inline]
    pub fn put_first(&mut self, node: NodeId, reply: NodeReply) {
        if self.said_something().contains(node) {
            return;
        }
        // The node has no bit set yet, so bits are only added.
        let number = number_of(reply);
        if number == GRANTED {
            // A shortcut, because nearly every reply is a grant.
            self.bits[0].insert(node);
            return;
        }
        for (bit, nodes) in self.bits.iter_mut().enumerate() {
            if number & (1 << bit) != 0 {
                nodes.insert(node);
            }
        }
    }

    /// Replaces the reply of a node.
    #[inline]
    pub fn set(&mut self, node: NodeId, reply: NodeReply) {
        let number = number_of(reply);
        for (bit, nodes) in self.bits.iter_mut().enumerate() {
            if number & (1 << bit) == 0 {
                nodes.remove(node);
            } else {
                nodes.insert(node);
            }
        }
    }

    /// The reply of a node.
    pub fn of(&self, node: NodeId) -> NodeReply {
        let bits = self.bits.iter().enumerate();
        let number = bits.fold(0, |sum, (bit, set)| sum | usize::from(set.contains(node)) << bit);
        match number {
            0 => NodeReply::Nothing,
            GRANTED => NodeReply::Granted,
            HELD => NodeReply::Held,
            ABSENT => NodeReply::Absent,
            cause => NodeReply::Failed(NodeError::ALL[cause - FIRST_CAUSE]),
        }
    }

    /// The nodes that gave this reply.
    pub fn that_are(&self, reply: NodeReply) -> NodeSet {
        self.said_something().iter().filter(|&node| self.of(node) == reply).collect()
    }

    /// How many nodes failed with a cause for which `test` holds.
    pub fn count_failed(&self, test: impl Fn(NodeError) -> bool) -> usize {
        let replies = self.said_something().iter().map(|node| self.of(node));
        replies.filter(|reply| matches!(reply, NodeReply::Failed(cause) if test(*cause))).count()
    }

    /// The nodes that gave any reply.
    pub fn said_something(&self) -> NodeSet {
        self.bits.iter().fold(NodeSet::EMPTY, |all, &nodes| all.union(nodes))
    }
}

const fn number_of(reply: NodeReply) -> usize {
    match reply {
        NodeReply::Nothing | NodeReply::NotAsked => 0,
        NodeReply::Granted => GRANTED,
        NodeReply::Held => HELD,
        NodeReply::Absent => ABSENT,
        NodeReply::Failed(NodeError::NoScript) => FIRST_CAUSE + NodeError::Other as usize,
        NodeReply::Failed(cause) => FIRST_CAUSE + cause as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::node_set::MAX_NODES;

    #[test]
    fn every_reply_of_every_node_is_read_as_it_was_put() {
        let causes = NodeError::ALL[..NUMBERED].iter().map(|&cause| NodeReply::Failed(cause));
        let plain = [NodeReply::Nothing, NodeReply::Granted, NodeReply::Held, NodeReply::Absent];
        let all: Vec<NodeReply> = plain.into_iter().chain(causes).collect();
        for shift in 0..all.len() {
            let mut replies = Replies::default();
            let reply_of = |node: usize| all[(node + shift) % all.len()];
            for node in 0..MAX_NODES {
                replies.set(NodeId::new(node), NodeReply::Failed(NodeError::Other));
                replies.set(NodeId::new(node), reply_of(node));
            }
            for node in 0..MAX_NODES {
                assert_eq!(replies.of(NodeId::new(node)), reply_of(node), "node {node}");
            }
        }
    }

    #[test]
    fn causes_are_numbered_in_the_order_of_their_declaration() {
        for (number, &cause) in NodeError::ALL.iter().enumerate() {
            assert_eq!(cause as usize, number, "{cause:?}");
        }
    }

    #[test]
    fn cause_without_a_number_is_noted_as_another_error() {
        let (mut replies, node) = (Replies::default(), NodeId::new(3));
        replies.put_first(node, NodeReply::Failed(NodeError::NoScript));
        assert_eq!(replies.of(node), NodeReply::Failed(NodeError::Other));
    }

    #[test]
    fn first_reply_of_a_node_stands() {
        let (mut replies, node) = (Replies::default(), NodeId::new(31));
        replies.put_first(node, NodeReply::Nothing);
        replies.put_first(node, NodeReply::Failed(NodeError::Silent));
        replies.put_first(node, NodeReply::Granted);
        assert_eq!(replies.that_are(NodeReply::Failed(NodeError::Silent)), node.into());
        assert_eq!(replies.that_are(NodeReply::Granted), NodeSet::EMPTY);
        assert_eq!(replies.count_failed(|cause| cause == NodeError::Silent), 1);
    }
}
