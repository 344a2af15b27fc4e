//! What the waits call: the next attempt of a request that pauses, and the turn of a request in a
//! queue. What concerns neither a record nor a node is in `requests.rs`.

use crate::proto::error::{Busy, Error};
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::locks::attempt::again::HowItWaits;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::round::state::Round;
use crate::proto::locks::{AcquireParams, Locks, WaitEvent, busy};
use crate::proto::time::Instant;

impl Locks {
    /// Begins the next attempt of a request that pauses. Nothing if it does not pause.
    pub fn attempt_again(&mut self, op: Op, now: Instant) {
        let Some(id) = self.ops.pauses_before(op) else { return };
        self.attempt_anew(op, id, now);
    }

    /// Begins an attempt with a record that is open: after a pause, or when the first handshakes
    /// are over.
    pub fn attempt_anew(&mut self, op: Op, id: RecordId, now: Instant) {
        self.ops.move_to(op, Stage::Running { record: id });
        if self.records.get(id).set().is_some() {
            // The attempt may have unanswered questions of an earlier round, so its next round gets
            // a new number.
            self.ask_anew(id, now);
            return;
        }
        let record = self.records.get_mut(id);
        let ttl = record.ttl;
        record.round = Round::acquire(self.cluster.ballot(), now, ttl);
        record.deadline = ttl.deadline(now);
        self.begin_attempt(id, now);
    }

    /// The attempt of a record has ended: reports to the queue of its key whether too few nodes
    /// gave a vote that counts. Then a request of that queue that gets no turn ends with this
    /// error.
    pub(super) fn note_attempt(&mut self, id: RecordId, error: Option<&Error>) {
        let record = self.records.get(id);
        let queues = match record.set() {
            None if record.queue().is_none() => return,
            None => record.queue().into_iter().collect(),
            Some(_) => self.own_queues(id),
        };
        for queue in queues {
            let no_quorum = error.filter(|error| matches!(error, Error::NoQuorum(_))).cloned();
            self.waits.push_back(WaitEvent::Attempted { queue, no_quorum });
        }
    }

    /// The error of the last attempt of the request with this record, if the request pauses and too
    /// few nodes gave a vote that counts.
    pub fn no_quorum_of(&self, current_record: RecordId) -> Option<&Error> {
        let request = self.ops.get(self.records.get(current_record).op?)?;
        match &request.stage {
            Stage::Pausing { last, .. } => {
                Some(last).filter(|error| matches!(error, Error::NoQuorum(_)))
            }
            _ => None,
        }
    }

    /// The error of a request for `key` that gets no turn. `no_quorum`: the error of the request
    /// before it, if that one lacked a quorum.
    pub(super) fn why_no_turn(&self, key: &[u8], no_quorum: Option<&Error>, now: Instant) -> Error {
        match no_quorum {
            Some(error) => error.clone(),
            None if self.starting => self.not_connected(key, now),
            None => match self.records.holder(key) {
                Some(id) => self.held_by_us(id, key, now),
                None => Error::Contended(self.report_unasked(key, now)),
            },
        }
    }

    /// Whether requests are queued for this key of a record.
    pub fn has_queue(&self, id: RecordId, key: &[u8]) -> bool {
        self.records.get(id).queue_at(key).is_some()
    }

    /// The queue for this key of a record. If there is none yet, `open` makes it.
    pub fn queue_for(&mut self, id: RecordId, key: &[u8], open: impl FnOnce(&[u8]) -> u32) -> u32 {
        let record = self.records.get_mut(id);
        if let Some(queue) = record.queue_at(key) {
            return queue;
        }
        let queue = open(key);
        let index = record.keys().position(|own| own == key).unwrap_or(0);
        match record.set_mut() {
            None => record.set_queue(Some(queue)),
            Some(set) => set.set_queue_of(index, queue),
        }
        queue
    }

    /// Reserves room for the record of a request that is about to be queued.
    ///
    /// # Errors
    /// [`Error::Busy`] if there is none.
    pub fn reserve_place(&mut self) -> Result<(), Error> {
        if self.records.reserve() { Ok(()) } else { Err(busy(Busy::Records)) }
    }

    /// Gives back the room that [`reserve_place`](Locks::reserve_place) reserved.
    pub fn give_up_place(&mut self) {
        self.records.give_up_reserved();
    }

    /// Opens a request that ends immediately: it would have to wait for the record
    /// `current_record`, and may not wait.
    pub fn refuse_to_wait(
        &mut self,
        current_record: RecordId,
        key: &[u8],
        params: AcquireParams,
        now: Instant,
    ) -> Op {
        let error = self.why_not_now(current_record, key, now);
        self.cluster.stats_mut().note_lost_attempt(&error);
        self.ops.open(params.data, now, params.give_up_at, Stage::Over(Err(error)))
    }

    /// The error of a request for this key that would have to wait for the record `current_record`.
    pub(super) fn why_not_now(&self, current_record: RecordId, key: &[u8], now: Instant) -> Error {
        match self.no_quorum_of(current_record) {
            None if !self.starting => self.held_by_us(current_record, key, now),
            error => self.why_no_turn(key, error, now),
        }
    }

    /// Ends a request that is queued for `key` and gets no turn any more.
    pub fn end_queued(&mut self, op: Op, key: &[u8], no_quorum: Option<&Error>, now: Instant) {
        self.records.give_up_reserved();
        let error = self.why_no_turn(key, no_quorum, now);
        self.ops.move_to(op, Stage::Over(Err(error)));
    }

    /// The turn of a request has come in the queue of its key: opens its record, and takes its
    /// first step. `has_line`: other clients stand in line for the key.
    pub fn take_turn(&mut self, op: Op, (queue, key): (u32, &[u8]), has_line: bool, now: Instant) {
        let Some(&Stage::Queued { ttl, fenced, .. }) = self.ops.get(op).map(|it| &it.stage) else {
            unreachable!("whoever gives up or is cancelled leaves the queue")
        };
        let hash = KeyHash::of(key);
        let how = HowItWaits { joins: self.ops.joins(op), may_wait: true };
        let first = Locks::first_step(how, has_line, self.asks_again(hash, now));
        let token = self.random_token(first.hands_over(), self.ops.owner(op));
        let round = Round::acquire(self.cluster.ballot(), now, ttl);
        self.records.give_up_reserved();
        let id = self.records.open(key, token, round).expect("its place was kept for it");
        self.records.index(id, hash);
        let record = self.records.get_mut(id);
        record.fenced = fenced;
        record.set_queue(Some(queue));
        self.ops.move_to(op, Stage::Running { record: id });
        let auto_extend = self.ops.get_mut(op).and_then(|request| request.auto_extend);
        self.ops.link(op, self.records.get_mut(id), auto_extend);
        self.begin_request(op, id, first, now);
    }

    /// The record gives up its key, so that the next request in the queue has its turn.
    pub(super) fn vacate(&mut self, id: RecordId) {
        if !self.records.unindex(id) {
            return;
        }
        if self.records.get(id).set().is_some() {
            self.vacate_set(id);
        } else if let Some(queue) = self.records.get_mut(id).take_queue() {
            self.waits.push_back(WaitEvent::Vacated { queue });
        }
    }
}
