//! The course of a lock over several keys: its record, its turns inside this client, and its
//! questions to the nodes. Everything else of it is as for one key.
//!
//! A request for several keys enters the queues of all its keys in one step. It has a key inside
//! this client as soon as no earlier request has it, and asks the nodes when it has all of them. So
//! every request waits only for earlier ones, whatever the order in which callers name their keys.
//!
//! The hazard is an answer that is about one key only. "Gone" says nothing of the other keys, so
//! the release of the whole stays pending.

use crate::proto::error::{Busy, ConfigError, Error, NodeReply, ReportedSet};
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::key_set::KeySet;
use crate::proto::keys::KeysRef;
use crate::proto::locks::attempt::again::{FirstStep, HowItWaits};
use crate::proto::locks::held::proof::Proof;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::round::state::{Purpose, Round};
use crate::proto::locks::set::chain::Chain;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::locks::{AcquireParams, Locks, WaitEvent, busy};
use crate::proto::node_set::NodeId;
use crate::proto::quorum::Ballot;
use crate::proto::settings::LONGEST_KEY;
use crate::proto::time::Instant;
use crate::proto::wire::ask::LockAsk;

impl Locks {
    /// Refuses keys that cannot be locked, or that are too long together with their prefixes.
    #[inline]
    pub(in crate::proto::locks) fn check_keys(&self, keys: KeysRef<'_>) -> Result<(), Error> {
        let keys = match keys {
            KeysRef::One(key) => return self.check_key(key),
            KeysRef::Several(keys) => keys,
        };
        keys.iter().try_for_each(|key| self.check_key(key))?;
        let prefixes = keys.len() * self.key_prefix.as_bytes().len();
        let (given, most) = (prefixes + keys.as_parts().0.len(), LONGEST_KEY);
        if given > most {
            return Err(ConfigError::KeyTooLong { given, most }.into());
        }
        Ok(())
    }

    /// Opens the record and the request for several keys. The record has each key inside this
    /// client, except those that it has to wait for, in these queues. Without such keys, the
    /// request begins. `in_line`: the key for which others stand in line.
    pub fn open_set(
        &mut self,
        keys: &KeySet,
        waits_in: &[(usize, u32)],
        in_line: Option<usize>,
        params: AcquireParams,
        now: Instant,
    ) -> Result<Op, Error> {
        if waits_in.is_empty() {
            self.check_room()?;
        }
        let round = Round::acquire(self.cluster.size(), now, params.ttl);
        let token = self.random_token(false);
        let id = self.records.open_set(keys, token, round).ok_or(busy(Busy::Records))?;
        self.records.get_mut(id).fenced = params.fenced;
        for key in 0..keys.len() {
            match waits_in.iter().find(|(waited_for, _)| *waited_for == key) {
                Some(&(_, queue)) => self.set_of(id, |set| set.wait_in(key, queue)),
                None => self.records.index_key(id, key),
            }
        }
        let how = self.how_it_waits(&params, now);
        let stage = Stage::Gathering { record: id };
        let op = self.ops.open(params.data, now, params.give_up_at, stage);
        self.ops.link(op, self.records.get_mut(id), params.auto_extend);
        self.ops.set_joins(op, how.joins);
        if waits_in.is_empty() {
            self.begin_set(op, id, how, in_line, now);
        } else {
            self.ops.limit_wait(op);
        }
        Ok(op)
    }

    /// A request for several keys has all of them inside this client since this moment.
    pub fn begin_gathered(&mut self, op: Op, id: RecordId, in_line: Option<usize>, now: Instant) {
        let record = self.records.get_mut(id);
        let ttl = record.ttl;
        record.round = Round::acquire(self.cluster.size(), now, ttl);
        record.deadline = ttl.deadline(now);
        let how = HowItWaits { joins: self.ops.joins(op), may_wait: true };
        self.begin_set(op, id, how, in_line, now);
    }

    /// Takes the first step of a request for several keys, all of which it has inside this client.
    fn begin_set(
        &mut self,
        op: Op,
        id: RecordId,
        how: HowItWaits,
        in_line: Option<usize>,
        now: Instant,
    ) {
        self.ops.move_to(op, Stage::Running { record: id });
        let hashes: Vec<KeyHash> = self.records.get(id).hashes().collect();
        let first = self.first_step(how, in_line.is_some(), hashes, now);
        if first.hands_over() {
            // Nothing was sent with the token before.
            self.records.get_mut(id).token = self.random_token(true);
        }
        let chain = in_line.filter(|_| first == FirstStep::Join).map(Chain::begin);
        self.set_of(id, |set| set.chain = chain);
        self.begin_request(op, id, first, now);
    }

    /// The first of the keys of a record for which this holds.
    pub fn first_key_where(
        &self,
        id: RecordId,
        holds: impl FnMut(KeyHash) -> bool,
    ) -> Option<usize> {
        self.records.get(id).hashes().position(holds)
    }

    pub(in crate::proto::locks) fn set_of(
        &mut self,
        id: RecordId,
        change: impl FnOnce(&mut SetOfKeys),
    ) {
        if let Some(set) = self.records.get_mut(id).set_mut() {
            change(set);
        }
    }

    /// The turn of a request for several keys has come in this queue. Returns its record if it has
    /// all keys now.
    pub fn take_key(&mut self, op: Op, queue: u32, key: &[u8]) -> Option<RecordId> {
        let id = self.ops.gathers_for(op)?;
        let index = self.records.get(id).keys().position(|own| own == key)?;
        self.records.index_key(id, index);
        let set = self.records.get_mut(id).set_mut()?;
        set.set_queue_of(index, queue);
        set.take_turn(index);
        (!set.waits()).then_some(id)
    }

    /// The queues of the requests that wait for the keys of a record that has several.
    pub fn own_queues(&self, id: RecordId) -> Vec<u32> {
        self.records.get(id).set().map_or_else(Vec::new, |set| set.own_queues().collect())
    }

    /// A request that waits for some of its keys leaves their queues, and its record ends. Returns
    /// the queues.
    pub(in crate::proto::locks) fn stop_gathering(&mut self, id: RecordId, op: Op, now: Instant) {
        let record = self.records.get_mut(id);
        record.op = None;
        let queues = record.set_mut().map_or_else(Vec::new, |set| set.leave_queues());
        let left = queues.into_iter().map(|queue| WaitEvent::Left { op, queue });
        self.waits.extend(left);
        self.end(id, now);
    }

    /// Ends a request that waited for this key, among others, and gets no turn any more.
    pub fn end_gathering(&mut self, op: Op, key: &[u8], no_quorum: Option<&Error>, now: Instant) {
        let Some(id) = self.ops.gathers_for(op) else { return };
        let keys = self.records.get(id).count_keys();
        let mut error = self.why_no_turn(key, no_quorum, now);
        name_key(&mut error, key, keys);
        self.stop_gathering(id, op, now);
        self.ops.move_to(op, Stage::Over(Err(error)));
    }

    /// A key that a request waits for inside this client, and the queue that it is in.
    pub fn first_queue_of(&self, op: Op) -> Option<u32> {
        let set = self.records.get(self.ops.gathers_for(op)?).set()?;
        (0..set.len()).find(|&key| set.is_waited_for(key)).and_then(|key| set.place_of(key))
    }

    /// Opens a request for several keys that ends at once, because it would have to wait for this
    /// key, which the record `current_record` has.
    pub fn refuse_set(
        &mut self,
        current_record: RecordId,
        (key, keys): (&[u8], usize),
        params: AcquireParams,
        now: Instant,
    ) -> Op {
        let mut error = self.why_not_now(current_record, key, now);
        name_key(&mut error, key, keys);
        self.cluster.stats_mut().note_lost_attempt(&error);
        self.ops.open(params.data, now, params.give_up_at, Stage::Over(Err(error)))
    }

    /// The record gave up its keys: the requests after it have their turns.
    #[cold]
    pub(in crate::proto::locks) fn vacate_set(&mut self, id: RecordId) {
        let record = self.records.get_mut(id);
        let queues = record.set_mut().map_or_else(Vec::new, |set| set.take_queues());
        let vacated = queues.into_iter().map(|queue| WaitEvent::Vacated { queue });
        self.waits.extend(vacated);
    }

    /// Begins another round of an attempt. Its deadline counts from this round.
    pub(in crate::proto::locks) fn ask_anew(&mut self, id: RecordId, now: Instant) {
        let ballot = Ballot::of_majority(self.cluster.size());
        self.set_of(id, SetOfKeys::begin_round);
        let record = self.records.get_mut(id);
        let ttl = record.ttl;
        record.round.follow(Purpose::Acquire, ballot, now, ttl);
        record.deadline = ttl.deadline(now);
        // A node that is not asked in this round may lack the key that it adds.
        record.proof = Proof::default();
        self.begin_attempt(id, now);
    }

    /// Takes note of the key that a node named in its answer about a set.
    pub(in crate::proto::locks) fn note_named(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
    ) {
        if matches!(reply, NodeReply::Held | NodeReply::Absent) {
            let key = self.cluster.named_key(node);
            let in_round = self.records.get(ask.record).round.number == ask.round;
            self.set_of(ask.record, |set| {
                set.name(key);
                if in_round {
                    set.note_refusal(node, key);
                }
            });
        }
    }
}

/// The report of this error is about this key, of so many.
fn name_key(error: &mut Error, key: &[u8], keys: usize) {
    if let Error::Contended(report) | Error::NoQuorum(report) = error {
        report.key = key.into();
        report.set = Some(ReportedSet { keys, named: true });
    }
}
