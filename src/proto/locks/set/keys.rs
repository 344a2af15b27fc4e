//! What a record with several keys knows of them: where each ends in the record's buffer, the queue
//! of the requests that wait for it, and which key a node named last.
//!
//! The hazard is a key that two records of this client ask for. So a record is found by a key only
//! when it has its turn for that key. Until then its request waits in the queue of the key, as any
//! other request does.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::proto::ids::RecordId;
use crate::proto::key::{BuildKeyHasher, KeyHash};
use crate::proto::key_set::{KeySet, parts};
use crate::proto::locks::record::records::{Record, Records};
use crate::proto::locks::set::chain::Chain;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// The keys of a record with several. Their bytes are in the record's own buffer.
#[derive(Debug, Clone, Default)]
pub struct SetOfKeys {
    /// Where each key ends in the record's buffer.
    ends: Vec<u32>,
    hashes: Vec<KeyHash>,
    /// For each key: the queue of the requests that wait until this record gives it up. If this
    /// record itself waits for the key: the queue that its own request is in.
    queues: Vec<Option<u32>>,
    /// The keys for which this record has no turn yet inside this client, as bits.
    waits_for: u64,
    /// The key that a node named last: another client has it there, or it is gone.
    named: Option<u8>,
    /// The state of the set, if it waits in line.
    pub chain: Option<Chain>,
    /// If the set keeps keys while it waits: when it may give way next, and how many waiters stood
    /// before it at the last such moment.
    pub next_give_way: Option<(Instant, u64)>,
    /// How often the request began anew after it stood in line.
    begun_anew: u32,
    /// The key whose line the token joined last.
    pub joined_key: Option<u8>,
    /// The nodes that refused the present round, and the key because of which each did so.
    pub refused_by: Vec<(NodeId, u8)>,
}

impl SetOfKeys {
    #[cfg(test)]
    pub fn new(keys: &KeySet) -> SetOfKeys {
        let mut set = SetOfKeys::default();
        set.begin(keys);
        set
    }

    /// The keys of a new record, which has its turn for none of them yet. The lists keep their
    /// memory.
    pub fn begin(&mut self, keys: &KeySet) {
        let SetOfKeys { mut ends, mut hashes, mut queues, mut refused_by, .. } =
            std::mem::take(self);
        ends.clear();
        ends.extend_from_slice(keys.as_parts().1);
        hashes.clear();
        hashes.extend(keys.iter().map(KeyHash::of));
        queues.clear();
        queues.resize(ends.len(), None);
        refused_by.clear();
        *self = SetOfKeys { ends, hashes, queues, refused_by, ..SetOfKeys::default() };
    }

    /// The keys for the record of the next attempt, which takes over the queues of this one.
    /// `joins_for`: the next attempt waits in line, for this key if it is the first time.
    fn take_over(&mut self, joins_for: Option<u8>) -> SetOfKeys {
        let chain = joins_for.map(|key| match self.chain {
            Some(chain) => chain.begin_anew(),
            None => Chain::begin(usize::from(key)),
        });
        let queues = std::mem::replace(&mut self.queues, vec![None; self.ends.len()]);
        SetOfKeys {
            ends: self.ends.clone(),
            hashes: self.hashes.clone(),
            queues,
            waits_for: self.waits_for,
            named: None,
            chain,
            next_give_way: None,
            begun_anew: self.begun_anew.saturating_add(u32::from(self.chain.is_some())),
            joined_key: None,
            refused_by: Vec::new(),
        }
    }

    /// A round begins: no node has refused it.
    pub fn begin_round(&mut self) {
        self.refused_by.clear();
    }

    /// The ends of the keys that an acquire asks for now: not all, if the set renews the keys that
    /// it keeps.
    pub fn asked_ends(&self) -> &[u32] {
        let asked = self.chain.and_then(Chain::asked);
        &self.ends[..asked.map_or(self.ends.len(), usize::from)]
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Where each key ends in the record's buffer.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// The hashes of the keys.
    pub fn hashes(&self) -> &[KeyHash] {
        &self.hashes
    }

    /// Whether the record has no turn for this key yet.
    pub fn is_waited_for(&self, key: usize) -> bool {
        self.waits_for & (1 << key) != 0
    }

    /// Whether the record has no turn yet for one of its keys.
    pub fn waits(&self) -> bool {
        self.waits_for != 0
    }

    /// The request of the record waits for this key in `queue`.
    pub fn wait_in(&mut self, key: usize, queue: u32) {
        self.waits_for |= 1 << key;
        self.queues[key] = Some(queue);
    }

    /// The record has its turn for this key: the queue of the key is its own now.
    pub fn take_turn(&mut self, key: usize) {
        self.waits_for &= !(1 << key);
    }

    /// The record gives up its wait. Returns the queues that its request is in.
    pub fn leave_queues(&mut self) -> Vec<u32> {
        let waited_for = |key: &usize| self.waits_for & (1 << key) != 0;
        let keys: Vec<usize> = (0..self.len()).filter(waited_for).collect();
        self.waits_for = 0;
        keys.into_iter().filter_map(|key| self.queues[key].take()).collect()
    }

    /// The queue of a key, whether the request waits in it or others wait for this record.
    pub fn place_of(&self, key: usize) -> Option<u32> {
        self.queues[key]
    }

    /// The queue of the requests that wait until this record gives up the key.
    pub fn queue_of(&self, key: usize) -> Option<u32> {
        self.queues[key].filter(|_| !self.is_waited_for(key))
    }

    /// Replaces the queue of a key that the record has.
    pub fn set_queue_of(&mut self, key: usize, queue: u32) {
        self.queues[key] = Some(queue);
    }

    /// The queues of the requests that wait until this record gives up a key.
    pub fn own_queues(&self) -> impl Iterator<Item = u32> {
        (0..self.len()).filter_map(|key| self.queue_of(key))
    }

    /// Takes the queues out in which requests wait for this record.
    pub fn take_queues(&mut self) -> Vec<u32> {
        let own = self.own_queues().collect();
        let waited_for = self.waits_for;
        let own_place = |(key, _): &(usize, &mut Option<u32>)| waited_for & (1 << key) == 0;
        self.queues.iter_mut().enumerate().filter(own_place).for_each(|(_, queue)| *queue = None);
        own
    }

    /// Sets the key, by its index, that reports name. None of the keys: reports name the first.
    pub fn set_named(&mut self, key: u64) {
        self.named = u8::try_from(key).ok().filter(|&key| usize::from(key) < self.len());
    }

    /// How often the request began anew after it stood in line.
    pub fn begun_anew(&self) -> u32 {
        self.begun_anew
    }

    /// The key that a node named last.
    pub fn named(&self) -> Option<usize> {
        self.named.map(usize::from)
    }
}

impl Record {
    /// The keys, if there are several.
    #[inline]
    pub fn set(&self) -> Option<&SetOfKeys> {
        self.trouble.as_ref()?.set.as_deref()
    }

    /// The keys, to change what is known of them, if there are several.
    #[inline]
    pub fn set_mut(&mut self) -> Option<&mut SetOfKeys> {
        self.trouble.as_mut()?.set.as_deref_mut()
    }

    /// All keys of the record.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let one = self.set().is_none().then_some(&self.key[..]);
        let several = self.set().map(|set| parts(&self.key, set.ends()));
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// How many keys there are.
    pub fn count_keys(&self) -> usize {
        self.set().map_or(1, SetOfKeys::len)
    }

    /// The key that reports name: the one that a node named last, or else the first.
    pub fn shown_key(&self) -> &[u8] {
        match self.set() {
            None => &self.key,
            Some(set) => self.keys().nth(set.named().unwrap_or(0)).unwrap_or(&self.key),
        }
    }

    /// The first key.
    pub fn first_key(&self) -> &[u8] {
        self.keys().next().unwrap_or(&self.key)
    }

    /// The queue of the requests that wait until this record gives up this key.
    pub fn queue_at(&self, key: &[u8]) -> Option<u32> {
        match self.set() {
            None => self.queue(),
            Some(set) => self.keys().position(|own| own == key).and_then(|key| set.queue_of(key)),
        }
    }

    /// Whether an acquire asks for all keys now: not if a set renews the keys that it keeps in
    /// line.
    pub fn asks_for_all_keys(&self) -> bool {
        self.set().is_none_or(|set| set.asked_ends().len() == set.len())
    }

    /// The hash of each key.
    pub fn hashes(&self) -> impl Iterator<Item = KeyHash> {
        let of_key = || self.only_key_hash().unwrap_or_else(|| KeyHash::of(&self.key));
        let one = self.set().is_none().then(of_key);
        let several = self.set().map(|set| set.hashes().iter().copied());
        one.into_iter().chain(several.into_iter().flatten())
    }

    /// Whether this is one of the keys.
    pub fn has_key(&self, key: &[u8]) -> bool {
        match self.set() {
            None => self.key == key,
            Some(_) => self.keys().any(|own| own == key),
        }
    }
}

/// The records with several keys, by the hash of each key for which they have their turn.
#[derive(Debug, Clone, Default)]
pub struct SetIndex(HashMap<KeyHash, Sharers, BuildKeyHasher>);

/// The records that have one key. Nearly always it is one record, for which nothing is allocated.
#[derive(Debug, Clone)]
struct Sharers {
    first: RecordId,
    others: Vec<RecordId>,
}

impl SetIndex {
    /// The records that have a key with this hash.
    #[inline]
    pub fn with_key(&self, hash: KeyHash) -> impl Iterator<Item = RecordId> {
        let sharers = self.0.get(&hash).into_iter();
        sharers.flat_map(|it| std::iter::once(it.first).chain(it.others.iter().copied()))
    }

    /// Whether no record is found here.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn add(&mut self, hash: KeyHash, id: RecordId) {
        match self.0.entry(hash) {
            Entry::Occupied(mut sharers) => sharers.get_mut().others.push(id),
            Entry::Vacant(place) => {
                place.insert(Sharers { first: id, others: Vec::new() });
            }
        }
    }

    fn remove(&mut self, hash: KeyHash, id: RecordId) -> bool {
        let Some(sharers) = self.0.get_mut(&hash) else { return false };
        if sharers.first != id {
            let place = sharers.others.iter().position(|&other| other == id);
            return place.map(|place| sharers.others.remove(place)).is_some();
        }
        if sharers.others.is_empty() {
            self.0.remove(&hash);
        } else {
            sharers.first = sharers.others.remove(0);
        }
        true
    }
}

impl Records {
    /// From now on the record is found by this key of its set: it has its turn for the key.
    pub fn index_key(&mut self, id: RecordId, key: usize) {
        if let Some(hash) = self.hash_in_set(id, key) {
            self.in_sets.add(hash, id);
        }
    }

    /// The hash of a key, if the record has several.
    pub fn hash_in_set(&self, id: RecordId, key: usize) -> Option<KeyHash> {
        self.get(id).set()?.hashes().get(key).copied()
    }

    /// From now on the record is found by none of its keys. Returns whether it was until now.
    pub(in crate::proto::locks) fn unindex_set(&mut self, id: RecordId) -> bool {
        let mut found = false;
        for key in 0..self.get(id).count_keys() {
            let hash = self.hash_in_set(id, key);
            found |= hash.is_some_and(|hash| self.in_sets.remove(hash, id));
        }
        found
    }

    /// The record `next` takes over the keys and queues of the record `id`, for the next attempt.
    /// `joins_for`: the next attempt waits in line, for this key if it is the first time.
    pub fn take_place_of_set(&mut self, next: RecordId, id: RecordId, joins_for: Option<u8>) {
        self.unindex_set(id);
        let Some(set) = self.get_mut(id).set_mut() else { return };
        let set = set.take_over(joins_for);
        let keys = set.len();
        self.get_mut(next).trouble_mut().set = Some(Box::new(set));
        (0..keys).for_each(|key| self.index_key(next, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(keys: &[&str]) -> SetOfKeys {
        SetOfKeys::new(&KeySet::new(keys).unwrap())
    }

    #[test]
    fn queue_that_the_record_waits_in_is_not_its_own() {
        let mut set = set(&["a", "b", "c"]);
        set.wait_in(1, 7);
        set.set_queue_of(2, 8);
        assert!(set.waits() && set.is_waited_for(1) && !set.is_waited_for(2));
        assert_eq!((set.queue_of(1), set.queue_of(2)), (None, Some(8)));
        assert_eq!(set.own_queues().collect::<Vec<_>>(), [8]);
        let mut given_up = set.clone();
        assert_eq!(given_up.leave_queues(), [7]);
        assert_eq!((given_up.waits(), given_up.take_queues()), (false, vec![8]));
        set.take_turn(1);
        assert_eq!((set.waits(), set.take_queues()), (false, vec![7, 8]));
        assert_eq!(set.own_queues().count(), 0);
    }

    #[test]
    fn key_is_named_only_if_the_set_has_it() {
        let mut set = set(&["a", "b"]);
        set.set_named(1);
        assert_eq!(set.named(), Some(1));
        for impossible in [2, 63, u64::MAX] {
            set.set_named(impossible);
            assert_eq!(set.named(), None, "{impossible}");
        }
    }
}
