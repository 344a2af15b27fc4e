//! The course of a request for several keys: its record, its turns inside this client, and its
//! rounds. In all else it is as a request for one key.
//!
//! A request for several keys enters the queues of all its keys in one step. It has its turn for a
//! key as soon as no earlier request has that key, and asks the nodes when it has all its turns. So
//! every request waits only for earlier ones, in whatever order callers name their keys.
//!
//! The hazard is an answer that is about one key only. "Gone" says nothing of the other keys, so
//! the release of all keys stays pending.

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
use crate::proto::settings::LONGEST_KEY;
use crate::proto::time::Instant;
use crate::proto::wire::ask::LockAsk;

impl Locks {
    /// Refuses keys that cannot be locked, or that are together too long, with a prefix for each.
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

    /// Opens the record and the request for several keys. `waits_in`: the keys for which other
    /// requests of this client come first, and their queues. If there are none, the request begins.
    /// `in_line`: the key for which other clients stand in line.
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
        let round = Round::acquire(self.cluster.ballot(), now, params.ttl);
        let token = self.random_token(false, params.owner);
        let id = self.records.open_set(keys, token, round).ok_or(busy(Busy::Records))?;
        self.records.get_mut(id).fenced = params.fenced;
        for key in 0..keys.len() {
            match waits_in.iter().find(|(waited_for, _)| *waited_for == key) {
                Some(&(_, queue)) => self.change_set(id, |set| set.wait_in(key, queue)),
                None => self.records.index_key(id, key),
            }
        }
        let how = self.how_it_waits(&params, now);
        let stage = Stage::Gathering { record: id };
        let op = self.ops.open(params.data, now, params.give_up_at, stage);
        self.ops.link(op, self.records.get_mut(id), params.auto_extend);
        self.ops.set_joins(op, how.joins);
        self.ops.set_owner(op, params.owner);
        if waits_in.is_empty() {
            self.begin_set(op, id, how, in_line, now);
        } else {
            self.ops.limit_wait(op);
        }
        Ok(op)
    }

    /// A request for several keys has its turn for all of them now: it begins.
    pub fn begin_gathered(&mut self, op: Op, id: RecordId, in_line: Option<usize>, now: Instant) {
        let record = self.records.get_mut(id);
        let ttl = record.ttl;
        record.round = Round::acquire(self.cluster.ballot(), now, ttl);
        record.deadline = ttl.deadline(now);
        let how = HowItWaits { joins: self.ops.joins(op), may_wait: true };
        self.begin_set(op, id, how, in_line, now);
    }

    /// Takes the first step of a request for several keys, which has its turn for all of them.
    fn begin_set(
        &mut self,
        op: Op,
        id: RecordId,
        how: HowItWaits,
        in_line: Option<usize>,
        now: Instant,
    ) {
        self.ops.move_to(op, Stage::Running { record: id });
        let mut again = false;
        for key in 0..self.records.get(id).count_keys() {
            if let Some(hash) = self.records.hash_in_set(id, key) {
                again |= self.asks_again(hash, now);
            }
        }
        let first = Locks::first_step(how, in_line.is_some(), again);
        if first.hands_over() {
            // The record may change its token, because nothing was sent with it yet.
            let owner = self.ops.owner(op);
            self.records.get_mut(id).token = self.random_token(true, owner);
        }
        let chain = in_line.filter(|_| first == FirstStep::Join).map(Chain::begin);
        self.change_set(id, |set| set.chain = chain);
        self.begin_request(op, id, first, now);
    }

    /// The first key of a record for whose hash `holds` is true.
    pub fn first_key_where(
        &self,
        id: RecordId,
        holds: impl FnMut(KeyHash) -> bool,
    ) -> Option<usize> {
        self.records.get(id).hashes().position(holds)
    }

    pub(in crate::proto::locks) fn change_set(
        &mut self,
        id: RecordId,
        change: impl FnOnce(&mut SetOfKeys),
    ) {
        if let Some(set) = self.records.get_mut(id).set_mut() {
            change(set);
        }
    }

    /// A request for several keys has its turn for `key`, in `queue`. Returns its record if it has
    /// its turn for all keys now.
    pub fn take_key(&mut self, op: Op, queue: u32, key: &[u8]) -> Option<RecordId> {
        let id = self.ops.gathers_for(op)?;
        let index = self.records.get(id).keys().position(|own| own == key)?;
        self.records.index_key(id, index);
        let set = self.records.get_mut(id).set_mut()?;
        set.set_queue_of(index, queue);
        set.take_turn(index);
        (!set.waits()).then_some(id)
    }

    /// The queues of the requests that wait until this record gives up one of its several keys.
    pub fn own_queues(&self, id: RecordId) -> Vec<u32> {
        self.records.get(id).set().map_or_else(Vec::new, |set| set.own_queues().collect())
    }

    /// A request for several keys gives up before it has all its turns: it leaves the queues, and
    /// its record ends.
    pub(in crate::proto::locks) fn stop_gathering(&mut self, id: RecordId, op: Op, now: Instant) {
        let record = self.records.get_mut(id);
        record.op = None;
        let queues = record.set_mut().map_or_else(Vec::new, |set| set.leave_queues());
        let left = queues.into_iter().map(|queue| WaitEvent::Left { op, queue });
        self.waits.extend(left);
        self.end(id, now);
    }

    /// Ends a request for several keys with an error, because it gets no turn for `key` in time.
    pub fn end_gathering(&mut self, op: Op, key: &[u8], no_quorum: Option<&Error>, now: Instant) {
        let Some(id) = self.ops.gathers_for(op) else { return };
        let keys = self.records.get(id).count_keys();
        let mut error = self.why_no_turn(key, no_quorum, now);
        name_key(&mut error, key, keys);
        self.stop_gathering(id, op, now);
        self.ops.move_to(op, Stage::Over(Err(error)));
    }

    /// The queue that a request for several keys waits in, for the first key for which it has no
    /// turn yet.
    pub fn first_queue_of(&self, op: Op) -> Option<u32> {
        let set = self.records.get(self.ops.gathers_for(op)?).set()?;
        (0..set.len()).find(|&key| set.is_waited_for(key)).and_then(|key| set.place_of(key))
    }

    /// Opens a request for several keys that ends immediately: it may not wait, but the record
    /// `current_record` has this key.
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

    /// The record gave up its keys, so that the next request in each queue has its turn.
    #[cold]
    pub(in crate::proto::locks) fn vacate_set(&mut self, id: RecordId) {
        let record = self.records.get_mut(id);
        let queues = record.set_mut().map_or_else(Vec::new, |set| set.take_queues());
        let vacated = queues.into_iter().map(|queue| WaitEvent::Vacated { queue });
        self.waits.extend(vacated);
    }

    /// Begins another round of an attempt of a set. The deadline counts from the start of this
    /// round.
    pub(in crate::proto::locks) fn ask_anew(&mut self, id: RecordId, now: Instant) {
        let ballot = self.cluster.ballot();
        self.change_set(id, SetOfKeys::begin_round);
        let record = self.records.get_mut(id);
        let ttl = record.ttl;
        record.round.follow(Purpose::Acquire, ballot, now, ttl);
        record.deadline = ttl.deadline(now);
        // This round may ask for more keys than the last one. A node that it does not reach may
        // lack them, so no proof stands.
        record.proof = Proof::default();
        self.begin_attempt(id, now);
    }

    /// Notes the key that a node named when it refused a set.
    pub(in crate::proto::locks) fn note_named(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
    ) {
        if matches!(reply, NodeReply::Held | NodeReply::Absent) {
            let key = self.cluster.named_key(node);
            let in_round = self.records.get(ask.record).round.number == ask.round;
            self.change_set(ask.record, |set| {
                set.set_named(key);
                if in_round {
                    set.note_refusal(node, key);
                }
            });
        }
    }
}

/// Makes the report of this error name this key. `keys` is how many there are.
fn name_key(error: &mut Error, key: &[u8], keys: usize) {
    if let Error::Contended(report) | Error::NoQuorum(report) = error {
        report.key = key.into();
        report.set = Some(ReportedSet { keys, named: true });
    }
}
