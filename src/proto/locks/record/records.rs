//! The records. One record has what the client knows of one attempt and its lock, until no question
//! about them is in flight and no release is pending.
//!
//! The hazard is a record that is closed too early: no code would release a grant that comes later.
//! So a record stays open without its caller, and its place in the slab is used again only under a
//! new generation.

#[cfg(feature = "testing")]
mod fingerprint;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use slab::Slab;

use crate::proto::error::NodeReply;
use crate::proto::ids::{Generation, Op, Place, RecordId};
use crate::proto::key::{BuildKeyHasher, KeyHash};
use crate::proto::key_set::KeySet;
use crate::proto::keys::KeysRef;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::locks::held::proof::Proof;
use crate::proto::locks::held::updates::PendingUpdate;
use crate::proto::locks::record::spares::Spares;
use crate::proto::locks::record::trouble::Trouble;
use crate::proto::locks::release::pending::Pending;
use crate::proto::locks::renew::schedule::LOSS_BEFORE;
use crate::proto::locks::round::state::{Purpose, Round};
use crate::proto::locks::set::keys::SetIndex;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::surplus::{FEW, make_room, shrink_slab};
use crate::proto::time::{Instant, Ttl, drift};
use crate::proto::timers::Timer;
use crate::proto::wire::ask::LockAsk;
use crate::proto::wire::effect::Effect;

/// The phase of a record. It never moves back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The nodes are asked for the key, or are about to be. Only now may an acquire be written.
    Asking,
    /// A majority granted. Only now may an extend be written.
    Held,
    /// The lock is over, and its releases are due. Only now may a release be written.
    Ending,
    /// The token was given to another client: no release is pending for it. Nothing is written any
    /// more.
    Given,
}

/// Stands in [`Record::held_since`] if no caller holds the lock.
const NOT_HELD: Instant = Instant::from_nanos(u64::MAX);

/// What the client knows of one attempt.
#[derive(Debug, Clone)]
pub struct Record {
    /// The generation: another one for each record that uses the same place in the slab.
    pub generation: Generation,
    /// The key. The bytes of several keys stand one directly after the other.
    pub key: Vec<u8>,
    /// The token, which no other attempt has.
    pub token: LockToken,
    /// The ttl that was asked for last.
    pub ttl: Ttl,
    /// The ttl that the caller asked for last. An extend that did not make the deadline later does
    /// not count.
    pub caller_ttl: Ttl,
    /// The longest ttl that any request of this record asked for: a node may execute an early
    /// request after all others.
    pub longest: Ttl,
    /// The moment from which the holder must not believe in the lock any more.
    pub deadline: Instant,
    /// The phase of the record's life.
    pub phase: Phase,
    /// The nodes where the key may be, or may still come to be.
    pub pending: Pending,
    /// Nodes whose grant does not count in the present round, because they were in quarantine when
    /// they were asked, or have been since. In an attempt for a fenced lock also nodes whose
    /// counters do not count. In an extend the grant of a node counts in spite of a quarantine if
    /// our key there was proven at that moment.
    pub uncounted: NodeSet,
    /// The nodes that are known to have our key, and until when.
    pub proof: Proof,
    /// The fields that few records need.
    pub(in crate::proto::locks) trouble: Option<Box<Trouble>>,
    /// The lock is to have a fencing number for each key, so the nodes vote for these numbers in
    /// its attempts.
    pub fenced: bool,
    /// The key is registered at the nodes with each request, so that they report writes to it.
    pub tracked: bool,
    /// The place of the lock among the auto-extended locks, if it is auto-extended or watched.
    pub auto_extended: Option<Place>,
    /// When the lock was handed out to its caller; `NOT_HELD` before that, and after the end of the
    /// lock.
    held_since: Instant,
    /// Whether updates of the lock are reported, and which update the driver has not taken yet.
    pub update: PendingUpdate,
    /// The data of the acquire or adopt, once the lock is handed out.
    pub data: u64,
    /// The queue of the requests that wait until this record gives up the key.
    queue: Option<Place>,
    /// The hash under which [`Records`] finds the record, while it does: only of a record with one
    /// key.
    found_by: Option<KeyHash>,
    /// The next record whose key has the same hash.
    next_of_key: Option<Place>,
    /// The present round. If none is in flight: the last one.
    pub round: Round,
    /// The request that waits for the outcome of the round.
    pub op: Option<Op>,
    /// Ends the round.
    pub round_timer: Option<Timer>,
    /// Ends the lock, at its deadline.
    pub deadline_timer: Option<Timer>,
}

impl Record {
    /// Whether the release of the lock hands the key over to the next one in line. The token says
    /// so.
    #[inline]
    pub fn hands_over(&self) -> bool {
        self.token.hands_over()
    }

    /// Whether the release hands the key over at this node: not where the user may not use the
    /// line.
    #[inline]
    pub fn hands_over_at(&self, node: NodeId) -> bool {
        self.hands_over() && !self.plain().contains(node)
    }

    /// The lock is handed out. `reports`: its updates are reported, with this data.
    pub fn note_handed_out(&mut self, now: Instant, reports: bool, data: u64) {
        (self.held_since, self.data) = (now, data);
        self.update = if reports { PendingUpdate::Nothing } else { PendingUpdate::Unreported };
    }

    /// When the lock was handed out to its caller; `NOT_HELD` before that.
    pub fn held_since(&self) -> Instant {
        self.held_since
    }

    /// The lock is not held any more. Returns when it was handed out, if it was.
    pub fn end_hold(&mut self) -> Option<Instant> {
        let since = std::mem::replace(&mut self.held_since, NOT_HELD);
        (since != NOT_HELD).then_some(since)
    }

    /// The hash of the only key, while [`Records`] finds the record by it.
    #[inline]
    pub fn only_key_hash(&self) -> Option<KeyHash> {
        self.found_by
    }

    /// The queue of the requests that wait until this record gives up the key.
    pub fn queue(&self) -> Option<u32> {
        self.queue.map(|queue| queue.index() as u32)
    }

    /// Replaces the queue.
    pub fn set_queue(&mut self, queue: Option<u32>) {
        self.queue = queue.map(|queue| Place::new(queue as usize));
    }

    /// Takes the queue out: no request waits for this record any more.
    pub fn take_queue(&mut self) -> Option<u32> {
        let queue = self.queue();
        self.queue = None;
        queue
    }

    /// A node answered a request that may create or prolong the key, and has executed it by `now`.
    /// `effect` is what the answer proves.
    #[inline]
    pub fn on_answer(&mut self, node: NodeId, effect: Effect, now: Instant) {
        let expires_at = self.gone_if_executed(now);
        self.pending.on_answer(node, effect, expires_at);
    }

    /// The node executed a release. Returns whether another release has to follow, because the node
    /// may still execute a request of a lost connection.
    #[inline]
    pub fn on_released(&mut self, node: NodeId, now: Instant) -> bool {
        let late = self.pending.unproven().contains(node);
        let expires_at = if late { self.gone_if_executed(now) } else { now };
        self.pending.on_released(node, expires_at)
    }

    /// A connection was lost while a request that may create or prolong the key was unanswered. The
    /// node may execute it later, until there is proof that it does not, or until the connection
    /// must have ended at the node, too. `provable`: such a proof may come.
    pub fn on_ask_lost(&mut self, node: NodeId, provable: bool, now: Instant) {
        let expires_at = self.gone_if_executed(now);
        self.pending.on_lost(node, provable, expires_at);
        if let Some(line) = self.line_mut() {
            // If the lost request was a join, the node may still put the token into the line. So
            // the release has to take it out.
            line.note_possible_place(node);
        }
    }

    /// When the key has expired on the node, even with drift, if the node executes the request with
    /// the longest ttl at `moment`. A token in line may get the key as late as the line ends. If
    /// other clients keep the line alive, the token may get the key even later: then no record has
    /// it any more, and the client gives the key back.
    #[inline]
    pub fn gone_if_executed(&self, moment: Instant) -> Instant {
        let gone = self.longest.gone_after(moment);
        match self.line() {
            None => gone,
            Some(line) => gone.saturating_add(line.lives).saturating_add(drift(line.lives)),
        }
    }

    /// A node answered an extend: the key is absent, or another client's. A node that `is_new`
    /// never had the key, so it has not lost it.
    pub fn note_absent(&mut self, node: NodeId, reply: NodeReply, is_new: bool) {
        if self.healing().contains(node) {
            // The node answered before it received the heal that is in flight, which may bring the
            // key back.
            return;
        }
        let trouble = self.trouble_mut();
        if !is_new {
            trouble.absent.insert(node);
        }
        if reply == NodeReply::Held {
            trouble.taken.insert(node);
        } else {
            trouble.taken.remove(node);
        }
        self.proof.end(node.into());
        // Else a release stays pending: the token may stand in the node's line, and the other keys
        // of a set may still be there.
        if self.line().is_none() && self.set().is_none() {
            self.pending.on_gone(node);
        }
    }

    /// The token is given to another client. From now on this client releases it on no node.
    pub fn hand_off(&mut self) {
        self.phase = Phase::Given;
        self.pending.give_away();
    }

    /// Whether the outcome of the record's round still matters: the lock may have ended, or been
    /// given away, while the questions of the round are in flight.
    #[inline]
    pub fn is_deciding(&self) -> bool {
        match self.round.purpose {
            Purpose::Extend => self.phase == Phase::Held,
            Purpose::Release => true,
            Purpose::Acquire | Purpose::WriteBack | Purpose::Claim => self.phase == Phase::Asking,
        }
    }

    /// Whether the answer to this question is a vote in the present round of an attempt.
    #[inline]
    pub fn awaits_grant(&self, ask: LockAsk) -> bool {
        self.phase == Phase::Asking && self.round.number == ask.round
    }

    /// The ttl of a heal: the time until the deadline, so that the key does not outlive the lock.
    pub fn ttl_left(&self, now: Instant) -> Option<Ttl> {
        let left = self.deadline.saturating_since(now);
        Ttl::new(left, left).ok()
    }

    /// The ttl with which a command that compares and sets extends the key. That command gives the
    /// key a new expiry, also an earlier one. So the ttl is that of the round, or as much more as
    /// the deadline needs that is in force now.
    pub fn ttl_of_replacement(&self, now: Instant) -> Ttl {
        let left = self.deadline.saturating_since(now);
        self.round.ttl.max(Ttl::lasting(left, self.longest))
    }

    /// How long before its deadline the lock counts as lost. If it is auto-extended or watched,
    /// that is a little earlier, so that its holder is notified in time: by half of a short ttl at
    /// most.
    pub fn lost_before(&self) -> Duration {
        if self.auto_extended.is_none() {
            return Duration::ZERO;
        }
        LOSS_BEFORE.min(self.caller_ttl.usable() / 2)
    }

    /// Whether the lock was lost a little before its deadline, so that its releases wait for the
    /// deadline.
    pub fn waits_for_its_deadline(&self) -> bool {
        self.phase == Phase::Ending && self.deadline_timer.is_some()
    }

    /// Whether the lock counts as lost by now, even if its timer has not fired yet. From then on no
    /// request that prolongs it is written.
    pub fn is_overdue(&self, now: Instant) -> bool {
        self.deadline.saturating_since(now) <= self.lost_before()
    }

    /// Whether the record can be closed: its lock is over, no question is in flight, no release is
    /// pending, and no caller waits.
    #[inline]
    pub fn is_finished(&self) -> bool {
        let is_ended = matches!(self.phase, Phase::Ending | Phase::Given);
        is_ended && self.pending.is_over() && self.op.is_none()
    }
}

/// All records of a client.
#[derive(Debug, Clone)]
pub struct Records {
    slab: Slab<Record>,
    /// The first record for each hash of a key; the record names the next one. Only records with
    /// one key that ask for a lock or hold one are here.
    by_key: HashMap<KeyHash, RecordId, BuildKeyHasher>,
    /// The records with several keys, by the hash of each key.
    pub(in crate::proto::locks) in_sets: SetIndex,
    spares: Spares,
    next_generation: Generation,
    /// The number that the first round of each record gets.
    #[cfg(feature = "testing")]
    first_round: u32,
    most: usize,
    /// How many records are reserved for requests that wait in queues, and for tasks.
    reserved: usize,
}

impl Records {
    /// No records, with room for `most`.
    pub fn new(most: usize) -> Records {
        Records {
            slab: Slab::new(),
            by_key: HashMap::default(),
            in_sets: SetIndex::default(),
            spares: Spares::default(),
            next_generation: Generation::FIRST,
            #[cfg(feature = "testing")]
            first_round: 0,
            most,
            reserved: 0,
        }
    }

    /// From now on `left` more generations are given before their number wraps, and the numbers of
    /// rounds wrap at the second round of each record.
    #[cfg(feature = "testing")]
    pub fn start_before_wrap(&mut self, left: u32) {
        self.next_generation = Generation::before_wrap(left);
        self.first_round = u32::MAX - 1;
    }

    /// Opens a record in the phase `Asking`; `None` if there is no room.
    pub fn open(&mut self, key: &[u8], token: LockToken, round: Round) -> Option<RecordId> {
        #[cfg(feature = "testing")]
        let round = round.numbered_from(self.first_round);
        if self.slab.len() + self.reserved >= self.most {
            return None;
        }
        make_room(&mut self.slab);
        let generation = self.next_generation.advance();
        let record = Record {
            generation,
            key: self.spares.key(key),
            token,
            ttl: round.ttl,
            caller_ttl: round.ttl,
            longest: round.ttl,
            deadline: round.ttl.deadline(round.start),
            phase: Phase::Asking,
            pending: Pending::default(),
            uncounted: NodeSet::EMPTY,
            proof: Proof::default(),
            trouble: None,
            fenced: false,
            tracked: false,
            auto_extended: None,
            held_since: NOT_HELD,
            update: PendingUpdate::Unreported,
            data: 0,
            queue: None,
            found_by: None,
            next_of_key: None,
            round,
            op: None,
            round_timer: None,
            deadline_timer: None,
        };
        Some(RecordId { index: self.slab.insert(record) as u32, generation })
    }

    /// Opens a record for several keys, and does not index any of them; `None` if there is no room.
    pub fn open_set(&mut self, keys: &KeySet, token: LockToken, round: Round) -> Option<RecordId> {
        let id = self.open(keys.as_parts().0, token, round)?;
        let set = self.spares.set(keys);
        self.spares.trouble_of(&mut self.slab[id.index as usize]).set = Some(set);
        Some(id)
    }

    /// Opens a record for one key or several; `None` if there is no room.
    pub fn open_keys(
        &mut self,
        keys: KeysRef<'_>,
        token: LockToken,
        round: Round,
    ) -> Option<RecordId> {
        match keys {
            KeysRef::One(key) => self.open(key, token, round),
            KeysRef::Several(keys) => self.open_set(keys, token, round),
        }
    }

    /// Reserves room for a record that is opened later. Returns whether there was room.
    pub fn reserve(&mut self) -> bool {
        let room = self.slab.len() + self.reserved < self.most;
        self.reserved += usize::from(room);
        room
    }

    /// Gives back reserved room for one record.
    pub fn give_up_reserved(&mut self) {
        self.reserved -= 1;
    }

    /// Opens a record for the same key as `record`.
    pub fn open_again(
        &mut self,
        record: RecordId,
        token: LockToken,
        round: Round,
    ) -> Option<RecordId> {
        let key = std::mem::take(&mut self.get_mut(record).key);
        let opened = self.open(&key, token, round);
        self.get_mut(record).key = key;
        opened
    }

    /// The record.
    ///
    /// # Panics
    /// If it is closed. Code that keeps an id has to forget it when the record is closed, or to
    /// check [`is_open`](Records::is_open).
    #[inline]
    pub fn get(&self, id: RecordId) -> &Record {
        let record = &self.slab[id.index as usize];
        assert!(record.generation == id.generation, "{id:?} is closed");
        record
    }

    /// The record, to change it.
    ///
    /// # Panics
    /// If it is closed.
    #[inline]
    pub fn get_mut(&mut self, id: RecordId) -> &mut Record {
        let record = &mut self.slab[id.index as usize];
        assert!(record.generation == id.generation, "{id:?} is closed");
        record
    }

    /// The record of this lock, if it is still open. The token is compared, too, because a caller
    /// may keep a handle for so long that another record has the same place and generation.
    pub fn find(&self, lock: &Lock) -> Option<RecordId> {
        let same = self.is_open(lock.record) && self.get(lock.record).token == lock.token;
        same.then_some(lock.record)
    }

    /// Whether the record is still open.
    #[inline]
    pub fn is_open(&self, id: RecordId) -> bool {
        let record = self.slab.get(id.index as usize);
        record.is_some_and(|record| record.generation == id.generation)
    }

    /// The record, to change it, if it is still open.
    #[inline]
    pub fn get_open_mut(&mut self, id: RecordId) -> Option<&mut Record> {
        let record = self.slab.get_mut(id.index as usize);
        record.filter(|record| record.generation == id.generation)
    }

    /// From now on the record, which has one key, is found by the hash of that key.
    pub fn index(&mut self, id: RecordId, hash: KeyHash) {
        let first = self.by_key.insert(hash, id);
        let record = self.get_mut(id);
        record.found_by = Some(hash);
        record.next_of_key = first.map(|id| Place::new(id.index as usize));
    }

    /// From now on the record is not found by its keys. Returns whether it was until now.
    pub fn unindex(&mut self, id: RecordId) -> bool {
        let record = self.get_mut(id);
        let Some(hash) = record.found_by.take() else {
            return record.set().is_some() && self.unindex_set(id);
        };
        let next = record.next_of_key.take();
        if next.is_none() {
            // Nearly always, no other record has the key.
            if let Entry::Occupied(first) = self.by_key.entry(hash) {
                if *first.get() == id {
                    first.remove();
                    return true;
                }
            }
        }
        let place = Place::new(id.index as usize);
        let before =
            self.with_only_key(hash).find(|&other| self.get(other).next_of_key == Some(place));
        match (before, next) {
            (Some(before), next) => self.get_mut(before).next_of_key = next,
            (None, Some(next)) => {
                let next = self.at(next);
                self.by_key.insert(hash, next);
            }
            (None, None) => {
                self.by_key.remove(&hash);
            }
        }
        true
    }

    /// The record that asks for this key, or holds it; the caller gives the hash, too.
    #[inline]
    pub fn current_record(&self, key: &[u8], hash: KeyHash) -> Option<RecordId> {
        // Two records may have the key: one adopts it, and the other holds it or waits for it.
        // Requests wait for the other one.
        let waited_for = |id: &RecordId| {
            let record = self.get(*id);
            let asks = record.phase == Phase::Asking && record.taken_up().is_none();
            record.queue_at(key).is_some() || asks
        };
        if self.in_sets.is_empty() {
            let all = || self.with_only_key(hash).filter(|&id| self.get(id).key == key);
            let first = all().next()?;
            return all().find(waited_for).or(Some(first));
        }
        let all = || self.with_key(hash).filter(|&id| self.get(id).has_key(key));
        let first = all().next()?;
        all().find(waited_for).or(Some(first))
    }

    /// The record by which this client holds the key.
    pub fn holder(&self, key: &[u8]) -> Option<RecordId> {
        let holds = |id: &RecordId| {
            let record = self.get(*id);
            record.phase == Phase::Held && record.has_key(key)
        };
        self.with_key(KeyHash::of(key)).find(holds)
    }

    /// The records whose keys have this hash.
    pub fn with_key(&self, hash: KeyHash) -> impl Iterator<Item = RecordId> {
        self.with_only_key(hash).chain(self.in_sets.with_key(hash))
    }

    /// The records of one key that has this hash.
    fn with_only_key(&self, hash: KeyHash) -> impl Iterator<Item = RecordId> {
        let mut next = self.by_key.get(&hash).copied();
        std::iter::from_fn(move || {
            let id = next?;
            next = self.get(id).next_of_key.map(|next| self.at(next));
            Some(id)
        })
    }

    /// The record at this place, which is open.
    fn at(&self, place: Place) -> RecordId {
        let generation = self.slab[place.index()].generation;
        RecordId { index: place.index() as u32, generation }
    }

    /// Closes a record; its place may be used again.
    pub fn close(&mut self, id: RecordId) {
        let record = self.slab.remove(id.index as usize);
        self.spares.take_from(record);
    }

    /// The nodes are asked for their votes in the present round of a record.
    pub fn begin_fencing(&mut self, id: RecordId, max_ttl: Duration) {
        let record = &mut self.slab[id.index as usize];
        let fencing = self.spares.fencing(record.count_keys(), record.round.number, max_ttl);
        self.spares.trouble_of(record).fencing = Some(fencing);
    }

    /// The open records.
    pub fn ids(&self) -> Vec<RecordId> {
        let id = |(index, record): (usize, &Record)| RecordId {
            index: index as u32,
            generation: record.generation,
        };
        self.slab.iter().map(id).collect()
    }

    /// Gives back the memory that was not needed, if at most `most` records were open in the last
    /// interval. A place in the slab that is given back and comes again has a new generation.
    pub fn shrink(&mut self, most: usize) {
        shrink_slab(&mut self.slab, most);
        if most < self.by_key.capacity() / 4 {
            self.by_key.shrink_to((2 * most).max(FEW));
        }
        self.spares.shrink(most);
    }

    #[cfg(test)]
    pub(super) fn spares(&self) -> &Spares {
        &self.spares
    }

    /// For how many records there is room without new memory.
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// How many records are open.
    pub fn len(&self) -> usize {
        self.slab.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::lock::Fence;
    use crate::proto::quorum::Ballot;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn open(records: &mut Records, key: &[u8]) -> Option<RecordId> {
        let ttl = Ttl::new(Duration::from_secs(1), Duration::from_secs(60)).unwrap();
        let token = LockToken::random(&mut StdRng::from_seed([1; 32]));
        records.open(key, token, Round::acquire(Ballot::of_majority(3), Instant::default(), ttl))
    }

    fn lock(records: &Records, record: RecordId) -> Lock {
        let open = records.get(record);
        Lock { record, token: open.token.clone(), fence: Fence::None }
    }

    #[test]
    fn an_old_handle_finds_nothing_in_a_place_that_is_used_again() {
        let mut records = Records::new(10);
        let first = open(&mut records, b"a").unwrap();
        let handle = lock(&records, first);
        assert_eq!(records.find(&handle), Some(first));
        records.close(first);
        assert_eq!(records.find(&handle), None);
        let second = open(&mut records, b"b").unwrap();
        assert_eq!(second.index, first.index, "the place is used again");
        assert_eq!(records.find(&handle), None);
        assert_eq!(records.get(second).key, b"b");
    }

    #[test]
    fn a_handle_whose_generation_came_again_finds_no_other_lock() {
        let mut records = Records::new(1);
        let record = open(&mut records, b"a").unwrap();
        let other = LockToken::random(&mut StdRng::from_seed([2; 32]));
        assert_eq!(records.find(&Lock { record, token: other, fence: Fence::None }), None);
        assert_eq!(records.find(&lock(&records, record)), Some(record));
    }

    #[test]
    fn an_old_handle_finds_nothing_in_a_place_that_was_given_back_and_came_again() {
        let mut records = Records::new(100_000);
        let old: Vec<RecordId> = (0..10_000).map(|_| open(&mut records, b"a").unwrap()).collect();
        let handles: Vec<Lock> = old.iter().map(|&id| lock(&records, id)).collect();
        old.iter().for_each(|&id| records.close(id));
        records.shrink(0);
        assert_eq!(records.capacity(), FEW);
        let new: Vec<RecordId> = (0..10_000).map(|_| open(&mut records, b"a").unwrap()).collect();
        assert!(new.iter().any(|id| id.index == old[9_999].index), "the places came again");
        for (id, handle) in old.iter().zip(&handles) {
            assert!(!records.is_open(*id), "{id:?}");
            // Every record here has the same token, so only the generation can tell the lock from
            // the new record.
            assert_eq!(records.find(handle), None);
        }
    }

    #[test]
    fn records_are_found_by_their_keys() {
        let mut records = Records::new(10);
        let numbers = [&b"a"[..], b"b", b"a", b"a"].map(|key| open(&mut records, key).unwrap());
        for id in numbers {
            let hash = KeyHash::of(&records.get(id).key);
            records.index(id, hash);
        }
        let found = |records: &Records, key: &[u8]| {
            let mut found: Vec<RecordId> = records.with_key(KeyHash::of(key)).collect();
            found.sort_unstable_by_key(|id| id.index);
            found
        };
        assert_eq!(found(&records, b"a"), [numbers[0], numbers[2], numbers[3]]);
        for (gone, left) in [(2, vec![0, 3]), (3, vec![0]), (0, vec![])] {
            records.unindex(numbers[gone]);
            let left: Vec<RecordId> = left.into_iter().map(|index: usize| numbers[index]).collect();
            assert_eq!(found(&records, b"a"), left);
        }
        assert_eq!(found(&records, b"b"), [numbers[1]]);
    }

    #[test]
    fn records_are_limited_to_the_number_that_was_allowed() {
        let mut records = Records::new(2);
        let first = open(&mut records, b"a").unwrap();
        open(&mut records, b"b").unwrap();
        assert_eq!(open(&mut records, b"c"), None);
        records.close(first);
        assert!(records.reserve());
        assert!(!records.reserve(), "that was the last place");
        assert_eq!(open(&mut records, b"c"), None);
        records.give_up_reserved();
        assert!(open(&mut records, b"c").is_some());
    }

    #[test]
    fn record_is_finished_when_nothing_is_in_flight_pending_or_waited_for() {
        let mut records = Records::new(1);
        let id = open(&mut records, b"a").unwrap();
        let record = records.get_mut(id);
        assert!(!record.is_finished(), "it is asking");
        record.phase = Phase::Ending;
        assert!(record.is_finished());
        let node = NodeId::new(0);
        record.pending.on_asked(node.into());
        assert!(!record.is_finished());
        record.pending.on_answer(node, Effect::Written, Instant::default());
        assert!(!record.is_finished(), "a release is pending");
        record.pending.on_release_asked(node.into());
        record.pending.on_released(node, Instant::default());
        assert!(!record.is_finished());
        record.pending.on_release_over(node);
        assert!(record.is_finished());
    }

    /// Opens `count` records with different keys, and then closes them.
    fn open_and_close(records: &mut Records, count: usize) {
        let open = |n: usize| {
            let key = n.to_string();
            let id = open(records, key.as_bytes()).unwrap();
            records.index(id, KeyHash::of(key.as_bytes()));
            id
        };
        let ids: Vec<RecordId> = (0..count).map(open).collect();
        for id in ids {
            assert!(records.unindex(id));
            records.close(id);
        }
    }

    #[test]
    fn records_give_back_the_room_of_a_burst_but_not_what_was_in_use() {
        let mut records = Records::new(100_000);
        open_and_close(&mut records, 50_000);
        let before = records.by_key.capacity();
        records.shrink(before / 4);
        assert_eq!(records.by_key.capacity(), before, "a quarter of it was in use");
        records.shrink(5_000);
        let capacity = records.by_key.capacity();
        assert!((10_000..before).contains(&capacity), "{capacity}");
        assert!((10_000..before).contains(&records.capacity()));
        records.shrink(1);
        assert_eq!(records.capacity(), FEW);
        assert!(records.by_key.capacity() < 2 * FEW);
    }

    #[test]
    fn record_that_requests_wait_for_comes_before_one_that_adopts() {
        let queued: fn(&mut Record) = |record| {
            record.phase = Phase::Held;
            record.set_queue(Some(3));
        };
        let asking: fn(&mut Record) = |record| record.phase = Phase::Asking;
        for wanted in [asking, queued] {
            for adopt_first in [true, false] {
                let mut records = Records::new(10);
                let ids = [(); 2].map(|()| open(&mut records, b"k").unwrap());
                let [adopting, other] = if adopt_first { ids } else { [ids[1], ids[0]] };
                let given = LockToken::random(&mut StdRng::from_seed([2; 32]));
                records.get_mut(adopting).trouble_mut().taken_up = Some(Box::new(given));
                wanted(records.get_mut(other));
                let hash = KeyHash::of(b"k");
                ids.into_iter().for_each(|id| records.index(id, hash));
                assert_eq!(records.current_record(b"k", hash), Some(other));
                assert_eq!(records.current_record(b"other", hash), None);
            }
        }
    }
}
