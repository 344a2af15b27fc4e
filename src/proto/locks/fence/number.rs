//! The arithmetic of fencing numbers: which number the votes of a majority give, and which of these
//! nodes have it already.
//!
//! Each node that grants a lock counts, and its count is its vote. The number is the m-th smallest
//! vote among those that granted, where m is a majority. It is the number of the lock as soon as m
//! nodes have a counter of at least that much while they hold the key for the lock.
//!
//! Why such numbers are unique and only grow: two holders' majorities share a node, and that node
//! granted first to one of them and later to the other. The counter there was at least the number
//! of the first one, so the vote for the second one is greater. At most N - m nodes do not vote so,
//! which is fewer than m, so the m-th smallest vote is greater, too. No clock is needed for this as
//! long as no counter is lost.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::proto::key_set::MOST_KEYS;
use crate::proto::lock::Fence;
use crate::proto::locks::record::records::Record;
use crate::proto::node_set::{MAX_NODES, NodeId, NodeSet};
use crate::proto::quorum::not_exceeded_by;
use crate::proto::wire::counters::Counting;

/// For how many times `max_ttl` a counter lives after it was touched.
const LIVES_MAX_TTLS: u32 = 10;

/// The part of `max_ttl` that is the step of a counter's start. Together with the difference of two
/// clocks, half of `max_ttl` at most, it stays below the time for which a node that forgot its
/// counters is in quarantine: so a counter never starts below a number that was given before.
const STEP_PART: u32 = 8;

/// The longest step, in milliseconds.
const LONGEST_STEP: u64 = 1000;

/// The votes for the fencing number of one key, and the number.
#[derive(Debug, Clone)]
struct Count {
    /// The votes of the nodes that granted; 0 for the others.
    votes: [u64; MAX_NODES],
    /// The number, once a majority has voted; it counts once the attempt is won.
    fence: Option<NonZeroU64>,
}

const NO_VOTES: Count = Count { votes: [0; MAX_NODES], fence: None };

impl Default for Count {
    fn default() -> Count {
        NO_VOTES
    }
}

/// The votes for the fencing numbers of one attempt, and the numbers: one for each key.
#[derive(Debug, Clone, Default)]
pub struct Fencing {
    /// Of the first key: most locks have one.
    first: Count,
    /// Of the other keys, in the order of their bytes.
    others: Vec<Count>,
    /// The number of the round in which the nodes vote.
    round: u32,
    /// How long counters live, in milliseconds.
    lives: u64,
    /// The step of a counter's start, in milliseconds.
    step: u64,
    /// The floor of the node that is asked next.
    floor: u64,
}

impl Fencing {
    /// No votes yet, for so many keys, with this `max_ttl`. The nodes vote in the round of this
    /// number.
    #[cfg(test)]
    pub fn new(keys: usize, round: u32, max_ttl: Duration) -> Fencing {
        let mut fencing = Fencing::default();
        fencing.begin(keys, round, max_ttl);
        fencing
    }

    /// As [`new`](Fencing::new), in the memory of an earlier attempt.
    pub fn begin(&mut self, keys: usize, round: u32, max_ttl: Duration) {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let lives = millis(max_ttl.saturating_mul(LIVES_MAX_TTLS));
        let step = millis(max_ttl / STEP_PART).clamp(1, LONGEST_STEP);
        let mut others = std::mem::take(&mut self.others);
        others.clear();
        others.resize(keys.saturating_sub(1), NO_VOTES);
        *self = Fencing { first: NO_VOTES, others, round, lives, step, floor: 1 };
    }

    /// How many keys the lock has.
    pub fn count_keys(&self) -> usize {
        1 + self.others.len()
    }

    /// Sets the floor of the node that is asked next: a counter below it counts as absent there.
    pub fn set_floor(&mut self, floor: u64) {
        self.floor = floor;
    }

    /// The number of the round in which the nodes vote.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Takes a node's votes, one for each key. Returns whether they are so many.
    pub fn put(&mut self, node: NodeId, votes: &[u64]) -> bool {
        let fits = votes.len() == self.count_keys();
        if fits {
            let counts = self.counts_mut().zip(votes);
            counts.for_each(|(count, &vote)| count.votes[node.index()] = vote);
        }
        fits
    }

    fn counts(&self) -> impl ExactSizeIterator<Item = &Count> {
        (0..self.count_keys()).map(|key| match key.checked_sub(1) {
            None => &self.first,
            Some(other) => &self.others[other],
        })
    }

    fn counts_mut(&mut self) -> impl Iterator<Item = &mut Count> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// The number of the only key, or of the first one, once it is known.
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.first.fence
    }

    /// The numbers of all keys; 0 as long as one is not known.
    pub fn fences(&self) -> impl ExactSizeIterator<Item = u64> {
        self.counts().map(|count| count.fence.map_or(0, NonZeroU64::get))
    }

    /// The vote of a node for the only key; 0 if it gave none.
    #[cfg(feature = "testing")]
    pub fn vote_of(&self, node: NodeId) -> u64 {
        self.first.votes[node.index()]
    }

    /// A majority of `majority` nodes granted: the numbers of all keys. These nodes granted.
    /// Returns whether each key has a number.
    pub fn count(&mut self, grants: NodeSet, majority: usize) -> bool {
        self.counts_mut().for_each(|count| count.count(grants, majority));
        self.counts().all(|count| count.fence.is_some())
    }

    /// Whether the node voted, and each of its counters is at the number already.
    pub fn is_stored_at(&self, node: NodeId) -> bool {
        self.counts().all(|count| count.is_stored_at(node))
    }
}

impl Count {
    fn count(&mut self, grants: NodeSet, majority: usize) {
        let mut votes = [0; MAX_NODES];
        let mut known = 0;
        for node in grants.iter() {
            votes[known] = self.votes[node.index()];
            known += 1;
        }
        let number = not_exceeded_by(majority, &mut votes[..known]);
        self.fence = number.and_then(NonZeroU64::new);
    }

    fn is_stored_at(&self, node: NodeId) -> bool {
        let vote = self.votes[node.index()];
        vote > 0 && self.fence.is_some_and(|fence| vote >= fence.get())
    }
}

impl Record {
    /// The fencing number; of a lock over several keys that of the first one.
    #[inline]
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.trouble.as_ref()?.fencing.as_ref()?.fence()
    }

    /// The fencing numbers for a handle of the lock.
    #[inline]
    pub fn fence_of_handle(&self) -> Fence {
        match self.fence() {
            None => Fence::None,
            Some(fence) if self.set().is_none() => Fence::Of(fence),
            Some(_) => {
                Fence::OfEach(self.fencing().into_iter().flat_map(Fencing::fences).collect())
            }
        }
    }

    /// The votes for the fencing number, if the record asks for one.
    pub fn fencing(&self) -> Option<&Fencing> {
        self.trouble.as_ref()?.fencing.as_deref()
    }

    /// What the scripts that count need: with the fencing numbers, if they are to raise the
    /// counters to them.
    pub fn counting(&self, raises: bool) -> Counting<impl ExactSizeIterator<Item = u64>> {
        let fencing = self.fencing().expect("only about fenced locks is asked with counters");
        let Fencing { lives, step, floor, .. } = *fencing;
        let fences = fencing.fences().take(if raises { MOST_KEYS } else { 0 });
        Counting { lives, step, floor, fences }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::quorum::majority;

    /// The counters of the nodes, acquired by one holder after another with whatever majority.
    /// Every holder gets its number by the rules, and stores it at its majority.
    fn acquire(counters: &mut [u64], granting: u32, fenced: impl Fn(&mut [u64]) -> u64) -> u64 {
        let nodes = (0..counters.len()).filter(|node| granting & (1 << node) != 0);
        let nodes: Vec<usize> = nodes.collect();
        nodes.iter().for_each(|&node| counters[node] += 1);
        let mut votes: Vec<u64> = nodes.iter().map(|&node| counters[node]).collect();
        fenced(&mut votes)
    }

    /// Stores the number at as few nodes as a majority needs: those with the greatest counters.
    fn store(counters: &mut [u64], granting: u32, fence: u64) {
        let mut nodes: Vec<usize> =
            (0..counters.len()).filter(|node| granting & (1 << node) != 0).collect();
        nodes.sort_unstable_by_key(|&node| std::cmp::Reverse(counters[node]));
        for &node in &nodes[..majority(counters.len())] {
            counters[node] = counters[node].max(fence);
        }
    }

    /// Every spread of counters up to `most`.
    fn spreads(nodes: usize, most: u64) -> impl Iterator<Item = Vec<u64>> {
        let count = (most + 1).pow(nodes as u32);
        (0..count).map(move |number| {
            let digit = |node| number / (most + 1).pow(node) % (most + 1);
            (0..nodes as u32).map(digit).collect()
        })
    }

    /// All sets of nodes that are a majority, or more.
    fn granting(nodes: usize) -> impl Iterator<Item = u32> {
        (0..1_u32 << nodes).filter(move |set| set.count_ones() as usize >= majority(nodes))
    }

    #[test]
    fn fences_grow_from_every_spread_of_counters_through_all_majorities() {
        let mut seen = 0;
        for (nodes, most) in [(1, 9), (2, 7), (3, 6), (4, 3), (5, 2)] {
            let needed = majority(nodes);
            for spread in spreads(nodes, most) {
                for first in granting(nodes) {
                    let mut counters = spread.clone();
                    let number = |votes: &mut [u64]| not_exceeded_by(needed, votes).unwrap();
                    let before = acquire(&mut counters, first, number);
                    store(&mut counters, first, before);
                    for second in granting(nodes) {
                        let mut counters = counters.clone();
                        let after = acquire(&mut counters, second, number);
                        assert!(
                            after > before,
                            "{spread:?}: {first:b} got {before}, then {second:b} got {after}"
                        );
                        seen += 1;
                    }
                }
            }
        }
        println!("{seen} pairs of holders");
    }

    #[test]
    fn the_greatest_vote_without_a_write_back_does_not_grow() {
        // Counters 5, 1, 1: the first majority is nodes 1 and 2, the second one 2 and 3.
        let greatest = |votes: &mut [u64]| votes.iter().copied().max().unwrap();
        let mut counters = vec![5, 1, 1];
        let first = acquire(&mut counters, 0b011, greatest);
        let second = acquire(&mut counters, 0b110, greatest);
        assert_eq!((first, second), (6, 3));
        // The same with the number stored at the majority.
        let mut counters = vec![5, 1, 1];
        let by_rule = |votes: &mut [u64]| not_exceeded_by(2, votes).unwrap();
        let first = acquire(&mut counters, 0b011, by_rule);
        store(&mut counters, 0b011, first);
        let second = acquire(&mut counters, 0b110, by_rule);
        assert_eq!((first, second), (6, 7));
    }

    #[test]
    fn number_is_the_smallest_that_a_majority_has_reached() {
        assert_eq!(not_exceeded_by(2, &mut [6, 2]), Some(6));
        assert_eq!(not_exceeded_by(2, &mut [6, 2, 2]), Some(2));
        assert_eq!(not_exceeded_by(3, &mut [9, 2, 5, 4, 1]), Some(4));
        assert_eq!(not_exceeded_by(2, &mut [9]), None);
        let nodes = [0, 1, 2].map(NodeId::new);
        let mut fencing = Fencing::new(1, 0, Duration::from_secs(60));
        nodes.iter().zip([6, 2]).for_each(|(&node, vote)| assert!(fencing.put(node, &[vote])));
        assert!(!fencing.is_stored_at(nodes[0]), "it has no number yet");
        let grants: NodeSet = nodes[..2].iter().copied().collect();
        assert!(fencing.count(grants, 2));
        assert_eq!(fencing.fence(), NonZeroU64::new(6));
        assert_eq!(nodes.map(|node| fencing.is_stored_at(node)), [true, false, false]);
        assert_eq!((fencing.lives, fencing.step), (600_000, 1000));
        assert_eq!(Fencing::new(1, 0, Duration::from_millis(100)).step, 12);
    }

    #[test]
    fn each_key_of_a_set_has_the_number_that_a_majority_has_reached_for_it() {
        let nodes = [0, 1, 2].map(NodeId::new);
        let mut fencing = Fencing::new(2, 4, Duration::from_secs(60));
        for (node, votes) in nodes.into_iter().zip([[6, 2], [5, 9]]) {
            assert!(fencing.put(node, &votes));
        }
        assert!(!fencing.put(nodes[2], &[7]) && !fencing.put(nodes[2], &[7, 7, 7]), "two keys");
        let grants: NodeSet = nodes[..2].iter().copied().collect();
        assert!(!fencing.count(grants, 3), "two votes are no majority of five");
        assert!(fencing.count(grants, 2));
        assert!(fencing.fences().eq([6, 9]));
        // Each node lacks one of the numbers.
        assert_eq!(nodes.map(|node| fencing.is_stored_at(node)), [false; 3]);
        assert!(fencing.put(nodes[2], &[6, 9]) && fencing.is_stored_at(nodes[2]));
        assert_eq!(fencing.round(), 4);
    }
}
