//! The fingerprint of a state: a number that is equal for two states that behave alike from then
//! on.
//!
//! A search over all orders of events (`tests/model`) visits each state once, and recognizes it by
//! this number. So the number leaves out what cannot matter: counters, reports, generations, places
//! in slabs, and the random texts and running numbers by which nodes know things. Moments are
//! relative to now.
//!
//! Each part of the core takes its structs apart field by field, without `..`, so that a new field
//! does not compile before its author decides whether it matters. A state that the fingerprint does
//! not cover makes it panic.
//!
//! The nodes are interchangeable: each has a hash of its own, and the search sorts these hashes.
//!
//! The hazard is a fingerprint that leaves out too much: the search would skip states that it has
//! not seen. A test compares what follows from states that have the same fingerprint.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::proto::ids::RecordId;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;

/// Gives names to random texts and running numbers, which differ between states that behave alike.
pub trait Names {
    /// The name of a text of 40 characters: a token, or the identity of a node.
    fn text(&self, text: &[u8]) -> u64;

    /// The name of a text that contains tokens, beginnings of tokens, marks or channels: a member
    /// of a line, or the value of a key.
    fn said(&self, text: &[u8]) -> u64;

    /// The name of a connection that a node knows by this number.
    fn connection(&self, node: NodeId, number: i64) -> u64;

    /// Whether the absolute time matters: it does if counters start from it.
    fn time_matters(&self) -> bool;
}

/// Returns the place of a record and the number of its round; `None` if the record is closed.
pub(crate) type Place<'a> = &'a dyn Fn(RecordId) -> Option<(u64, u32)>;

/// The most nodes that a fingerprint covers.
const NODES: usize = 8;

/// A fingerprint that is being made.
#[derive(Clone)]
pub struct Fingerprint<'a> {
    now: Instant,
    names: &'a dyn Names,
    whole: u64,
    nodes: [u64; NODES],
}

impl<'a> Fingerprint<'a> {
    /// An empty fingerprint for a state at this moment.
    pub fn new(now: Instant, names: &'a dyn Names) -> Fingerprint<'a> {
        Fingerprint { now, names, whole: 0, nodes: [0; NODES] }
    }

    /// The moment of the state.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Adds something about the whole state.
    pub fn add(&mut self, word: u64) {
        self.whole = mix(self.whole, word);
    }

    /// Adds something about one node.
    pub fn add_at(&mut self, node: NodeId, word: u64) {
        let hash = &mut self.nodes[node.index()];
        *hash = mix(*hash, word);
    }

    /// Adds, for each node, in which of these sets it is.
    pub fn add_sets(&mut self, nodes: usize, sets: &[NodeSet]) {
        for node in NodeSet::first(nodes).iter() {
            let bits = sets.iter().fold(0, |bits, set| 2 * bits + u64::from(set.contains(node)));
            self.add_at(node, bits);
        }
    }

    /// The name of a random text.
    pub fn name(&self, text: &[u8]) -> u64 {
        self.names.text(text)
    }

    /// The name of a text that contains tokens, marks or channels.
    pub fn said(&self, text: &[u8]) -> u64 {
        self.names.said(text)
    }

    /// The name of a connection that a node knows by this number.
    pub fn connection(&self, node: NodeId, number: i64) -> u64 {
        self.names.connection(node, number)
    }

    /// Whether the absolute time matters: it does if counters start from it.
    pub fn time_matters(&self) -> bool {
        self.names.time_matters()
    }

    /// How far a moment lies ahead, for a moment that does not matter once it is past.
    pub fn ahead(&self, moment: Instant) -> u64 {
        nanos(moment.saturating_since(self.now))
    }

    /// How far a moment lies back, for a moment that does not matter beyond `limit`.
    pub fn ago(&self, moment: Instant, limit: Duration) -> u64 {
        nanos(self.now.saturating_since(moment).min(limit))
    }

    /// The hash of what was added about the whole state, and that of each node.
    pub fn parts(&self) -> (u64, &[u64]) {
        (self.whole, &self.nodes)
    }
}

fn nanos(length: Duration) -> u64 {
    u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)
}

/// The hash of a value.
pub fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = MixHasher::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A hasher that takes eight bytes at a time. The one of the standard library is slower, because it
/// also resists chosen inputs, which a search does not have.
#[derive(Debug, Clone, Default)]
pub struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        mix(self.0, 0)
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            self.write_u64(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        }
        let rest = words.remainder();
        // The length tells a rest of zeros from no rest.
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        last[7] = rest.len() as u8;
        self.write_u64(u64::from_le_bytes(last));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // The first constant makes leading zeros count.
        let word = self.0 ^ number ^ 0xa076_1d64_78bd_642f;
        let product = u128::from(word) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

/// Adds a word to a hash.
pub const fn mix(hash: u64, word: u64) -> u64 {
    let product = ((hash ^ 0x9e37_79b9_7f4a_7c15) as u128)
        .wrapping_add((word as u128) << 64 | word as u128)
        .wrapping_mul(0xd6e8_feb8_6659_fd93_a076_1d64_78bd_642f);
    let folded = (product as u64) ^ ((product >> 64) as u64);
    (folded ^ (folded >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (folded >> 32)
}
