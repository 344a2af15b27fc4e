//! The arithmetic of fencing numbers: which number follows from the votes of a majority, and which
//! of these nodes have stored it already.
//!
//! A node that grants a fenced lock raises its counter by one, and votes for the new value. The
//! fencing number is the m-th smallest vote among the nodes that granted, where m is a majority.
//! The lock has the number as soon as m nodes that hold its key have counters of at least that
//! number.
//!
//! Why such numbers are unique and only grow: m nodes stored the number of a holder while they held
//! its key. Each of them that grants the key to a later holder votes for a greater number. At most
//! N - m nodes may vote lower. As N - m is less than m, the m-th smallest vote is greater, too. No
//! clock is needed for this as long as no node loses its counter.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::proto::key_set::MOST_KEYS;
use crate::proto::lock::Fence;
use crate::proto::locks::record::records::Record;
use crate::proto::node_set::{MAX_NODES, NodeId, NodeSet};
use crate::proto::quorum::not_exceeded_by;
use crate::proto::wire::counters::Counting;

/// How many times `max_ttl` a counter lives after its last change.
const LIFE_IN_MAX_TTLS: u32 = 10;

/// `max_ttl` divided by this is the step by which the start of a counter is rounded down. The step
/// and the greatest difference of two clocks, half of `max_ttl`, are together shorter than the
/// quarantine of a node that forgot its counters. So a new counter does not start below a number
/// that was given before.
const STEP_DIVISOR: u32 = 8;

/// The longest step, in milliseconds.
const LONGEST_STEP: u64 = 1000;

/// How long a counter lives after its last change.
pub fn counters_live(max_ttl: Duration) -> Duration {
    max_ttl.saturating_mul(LIFE_IN_MAX_TTLS)
}

/// The votes for the fencing number of one key, and the number.
#[derive(Debug, Clone)]
struct KeyVotes {
    /// The votes of the nodes that granted; 0 for the others.
    votes: [u64; MAX_NODES],
    /// The number, once a majority has voted. The lock has it once the attempt is won.
    fence: Option<NonZeroU64>,
}

const NO_VOTES: KeyVotes = KeyVotes { votes: [0; MAX_NODES], fence: None };

impl Default for KeyVotes {
    fn default() -> KeyVotes {
        NO_VOTES
    }
}

/// The votes of one attempt for its fencing numbers, and these numbers: one for each key.
#[derive(Debug, Clone, Default)]
pub struct Fencing {
    /// The votes for the first key. Most locks have no other, and need no further memory.
    first: KeyVotes,
    /// The votes for the other keys, in the order of their bytes.
    others: Vec<KeyVotes>,
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
    /// No votes yet, for `keys` keys. The nodes vote in the round with the number `round`.
    #[cfg(test)]
    pub fn new(keys: usize, round: u32, max_ttl: Duration) -> Fencing {
        let mut fencing = Fencing::default();
        fencing.begin(keys, round, max_ttl);
        fencing
    }

    /// As [`new`](Fencing::new), in the memory of an earlier attempt.
    pub fn begin(&mut self, keys: usize, round: u32, max_ttl: Duration) {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        let lives = millis(counters_live(max_ttl));
        let step = millis(max_ttl / STEP_DIVISOR).clamp(1, LONGEST_STEP);
        let mut others = std::mem::take(&mut self.others);
        others.clear();
        others.resize(keys.saturating_sub(1), NO_VOTES);
        *self = Fencing { first: NO_VOTES, others, round, lives, step, floor: 1 };
    }

    /// How many keys the lock has.
    pub fn count_keys(&self) -> usize {
        1 + self.others.len()
    }

    /// Sets the floor for the node that is asked next: there a counter below the floor counts as
    /// absent.
    pub fn set_floor(&mut self, floor: u64) {
        self.floor = floor;
    }

    /// The number of the round in which the nodes vote.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Notes the votes of a node. Returns whether there is one for each key: if not, none is noted.
    pub fn put(&mut self, node: NodeId, votes: &[u64]) -> bool {
        let fits = votes.len() == self.count_keys();
        if fits {
            let keys = self.of_keys_mut().zip(votes);
            keys.for_each(|(key, &vote)| key.votes[node.index()] = vote);
        }
        fits
    }

    fn of_keys(&self) -> impl ExactSizeIterator<Item = &KeyVotes> {
        (0..self.count_keys()).map(|key| match key.checked_sub(1) {
            None => &self.first,
            Some(other) => &self.others[other],
        })
    }

    fn of_keys_mut(&mut self) -> impl Iterator<Item = &mut KeyVotes> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// The number of the first key, once it is known.
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.first.fence
    }

    /// The numbers of all keys; 0 for one that is not known yet.
    pub fn fences(&self) -> impl ExactSizeIterator<Item = u64> {
        self.of_keys().map(|key| key.fence.map_or(0, NonZeroU64::get))
    }

    /// The vote of a node for the only key; 0 if it gave none.
    #[cfg(feature = "testing")]
    pub fn vote_of(&self, node: NodeId) -> u64 {
        self.first.votes[node.index()]
    }

    /// Computes the number of each key from the votes of the nodes that granted. Returns whether
    /// each key has one now: not if fewer than `majority` nodes granted.
    pub fn count(&mut self, grants: NodeSet, majority: usize) -> bool {
        self.of_keys_mut().for_each(|key| key.compute(grants, majority));
        self.of_keys().all(|key| key.fence.is_some())
    }

    /// Whether the node voted, and its counter of each key is at least the number of that key.
    pub fn is_stored_at(&self, node: NodeId) -> bool {
        self.of_keys().all(|key| key.is_stored_at(node))
    }
}

impl KeyVotes {
    fn compute(&mut self, grants: NodeSet, majority: usize) {
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
    /// The fencing number. If the lock has several keys: that of the first one.
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

    /// What the scripts with counters need. `raises`: also the fencing numbers, to which the script
    /// raises the counters.
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

    /// A holder acquires on the nodes in `granting`: raises their counters by one, and returns the
    /// number that `fenced` computes from the votes.
    fn acquire(counters: &mut [u64], granting: u32, fenced: impl Fn(&mut [u64]) -> u64) -> u64 {
        let nodes = (0..counters.len()).filter(|node| granting & (1 << node) != 0);
        let nodes: Vec<usize> = nodes.collect();
        nodes.iter().for_each(|&node| counters[node] += 1);
        let mut votes: Vec<u64> = nodes.iter().map(|&node| counters[node]).collect();
        fenced(&mut votes)
    }

    /// Stores the number on a majority and no more: of the nodes in `granting` those with the
    /// greatest counters.
    fn store(counters: &mut [u64], granting: u32, fence: u64) {
        let mut nodes: Vec<usize> =
            (0..counters.len()).filter(|node| granting & (1 << node) != 0).collect();
        nodes.sort_unstable_by_key(|&node| std::cmp::Reverse(counters[node]));
        for &node in &nodes[..majority(counters.len())] {
            counters[node] = counters[node].max(fence);
        }
    }

    /// All combinations of counters from 0 to `most`.
    fn spreads(nodes: usize, most: u64) -> impl Iterator<Item = Vec<u64>> {
        let count = (most + 1).pow(nodes as u32);
        (0..count).map(move |number| {
            let digit = |node| number / (most + 1).pow(node) % (most + 1);
            (0..nodes as u32).map(digit).collect()
        })
    }

    /// All sets of nodes, as bits, that have a majority.
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
    fn fences_by_the_greatest_vote_without_a_write_back_would_not_grow() {
        // The counters are 5, 1, 1. The first holder acquires on nodes 0 and 1, the second on nodes
        // 1 and 2.
        let greatest = |votes: &mut [u64]| votes.iter().copied().max().unwrap();
        let mut counters = vec![5, 1, 1];
        let first = acquire(&mut counters, 0b011, greatest);
        let second = acquire(&mut counters, 0b110, greatest);
        assert_eq!((first, second), (6, 3));
        // The same holders, by the rule and with a write-back.
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
        // Node 0 has not stored the number of the second key, node 1 not that of the first.
        assert_eq!(nodes.map(|node| fencing.is_stored_at(node)), [false; 3]);
        assert!(fencing.put(nodes[2], &[6, 9]) && fencing.is_stored_at(nodes[2]));
        assert_eq!(fencing.round(), 4);
    }
}
