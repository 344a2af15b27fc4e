//! The number of a node, and sets of nodes as bits.

/// The most nodes a client can have: a set of them is the bits of a `u32`.
pub const MAX_NODES: usize = 32;

/// A node, by its place in the list of nodes that the client was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u8);

impl NodeId {
    /// The node at `index` of the list.
    ///
    /// # Panics
    /// When `index` is not below [`MAX_NODES`].
    pub fn new(index: usize) -> NodeId {
        assert!(index < MAX_NODES, "node index {index} is past the limit of {MAX_NODES}");
        NodeId(index as u8)
    }

    /// The node's place in the list.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    const fn bit(self) -> u32 {
        1 << self.0
    }
}

/// A set of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct NodeSet(u32);

impl NodeSet {
    /// No node.
    pub const EMPTY: NodeSet = NodeSet(0);

    /// The first `count` nodes of the list.
    ///
    /// # Panics
    /// When `count` is more than [`MAX_NODES`].
    #[inline]
    pub fn first(count: usize) -> NodeSet {
        assert!(count <= MAX_NODES, "{count} nodes are past the limit of {MAX_NODES}");
        NodeSet(if count == MAX_NODES { u32::MAX } else { (1 << count) - 1 })
    }

    /// Adds `node`. Returns whether it was new.
    pub fn insert(&mut self, node: NodeId) -> bool {
        let new = !self.contains(node);
        self.0 |= node.bit();
        new
    }

    /// Takes `node` out. Returns whether it was there.
    pub fn remove(&mut self, node: NodeId) -> bool {
        let there = self.contains(node);
        self.0 &= !node.bit();
        there
    }

    /// Whether `node` is in the set.
    pub const fn contains(self, node: NodeId) -> bool {
        self.0 & node.bit() != 0
    }

    /// How many nodes are in the set.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The nodes that are in either set.
    #[must_use]
    pub const fn union(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 | other.0)
    }

    /// The nodes that are in both sets.
    #[must_use]
    pub const fn common(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & other.0)
    }

    /// The nodes that are in this set and not in `other`.
    #[must_use]
    pub const fn minus(self, other: NodeSet) -> NodeSet {
        NodeSet(self.0 & !other.0)
    }

    /// The nodes of the set, in the order of the list.
    pub fn iter(self) -> impl Iterator<Item = NodeId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let node = NodeId(left.trailing_zeros() as u8);
            left &= left - 1;
            Some(node)
        })
    }
}

impl From<NodeId> for NodeSet {
    fn from(node: NodeId) -> NodeSet {
        NodeSet(node.bit())
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<I: IntoIterator<Item = NodeId>>(nodes: I) -> NodeSet {
        nodes.into_iter().fold(NodeSet::EMPTY, |mut set, node| {
            set.insert(node);
            set
        })
    }
}

/// For each node a count from 0 to 2: the questions that it has not answered.
///
/// Two are enough: a node that has not answered a question yet may be asked one more, and a node
/// that answers neither is silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outstanding {
    some: NodeSet,
    two: NodeSet,
}

impl Outstanding {
    /// Counts one more question to each of these nodes.
    ///
    /// # Panics
    /// When one of them has two already.
    pub fn add(&mut self, nodes: NodeSet) {
        let third = self.two.common(nodes);
        assert!(third.is_empty(), "a third question to {third:?}");
        self.two = self.two.union(self.some.common(nodes));
        self.some = self.some.union(nodes);
    }

    /// Counts one question to `node` less.
    ///
    /// # Panics
    /// When there is none.
    pub fn take(&mut self, node: NodeId) {
        if !self.two.remove(node) {
            assert!(self.some.remove(node), "nothing was asked of node {}", node.index());
        }
    }

    /// The nodes with an unanswered question.
    #[inline]
    pub const fn nodes(self) -> NodeSet {
        self.some
    }

    /// The nodes with two unanswered questions: they get no third.
    #[inline]
    pub const fn full(self) -> NodeSet {
        self.two
    }

    /// Whether a question to `node` is unanswered.
    pub const fn contains(self, node: NodeId) -> bool {
        self.some.contains(node)
    }

    /// Whether two questions to `node` are unanswered.
    pub const fn is_full(self, node: NodeId) -> bool {
        self.two.contains(node)
    }

    /// Whether all nodes have answered all questions.
    pub const fn is_empty(self) -> bool {
        self.some.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in_and_gives_it_in_order() {
        let mut set: NodeSet = [31, 0, 7].map(NodeId::new).into_iter().collect();
        assert_eq!(set.iter().map(NodeId::index).collect::<Vec<_>>(), [0, 7, 31]);
        assert!(set.remove(NodeId::new(7)) && !set.remove(NodeId::new(7)));
        assert!(!set.insert(NodeId::new(31)));
        assert_eq!(set.len(), 2);
    }

    #[test]
    fn up_to_two_questions_are_counted_for_each_node() {
        let (mut asked, node) = (Outstanding::default(), NodeId::new(3));
        asked.add(node.into());
        assert!(asked.contains(node) && !asked.is_full(node));
        asked.add([0, 3].map(NodeId::new).into_iter().collect());
        assert!(asked.is_full(node) && !asked.contains(NodeId::new(2)));
        assert!(asked.contains(NodeId::new(0)) && !asked.is_full(NodeId::new(0)));
        asked.take(NodeId::new(0));
        asked.take(node);
        assert!(asked.contains(node) && !asked.is_full(node));
        asked.take(node);
        assert!(!asked.contains(node) && asked.is_empty());
    }

    #[test]
    fn the_full_set_has_every_node() {
        assert_eq!(NodeSet::first(MAX_NODES).len(), MAX_NODES);
        assert_eq!(NodeSet::first(5).iter().count(), 5);
        assert!(NodeSet::first(0).is_empty());
        assert_eq!(NodeSet::first(5).minus(NodeSet::first(3)).len(), 2);
        assert_eq!(NodeSet::first(3).union(NodeSet::first(5)), NodeSet::first(5));
    }
}
