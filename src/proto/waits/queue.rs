//! The waiters of one key inside this client. Only one request of the client asks the nodes for the
//! key, or holds it; when that is over, the next waiter has its turn.
//!
//! The hazard is a client that never gives the key to others: it releases the key and asks for it
//! again in one write. So a request whose turn has come joins the line if other clients stand in
//! it. And now and then the client takes a lock whose release hands the key over, or, if the nodes
//! refuse lines, pauses before it asks.

use std::collections::VecDeque;

use slab::Slab;

use crate::proto::error::Error;
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::key_set::KeySet;
use crate::proto::locks::{AcquireParams, Locks};
use crate::proto::time::Instant;
use crate::proto::waits::Waits;

/// The waiters of one key, after the request that asks the nodes, or holds it.
#[derive(Debug, Clone)]
pub struct Queue {
    /// The key.
    pub key: Vec<u8>,
    /// The requests, in the order of their turns.
    pub waiting: VecDeque<Op>,
    /// Why the last attempt for the key failed, unless others held it.
    pub no_quorum: Option<Error>,
}

/// The queues, by number.
pub type Queues = Slab<Queue>;

impl Queue {
    /// An empty queue for a key.
    pub fn new(key: &[u8]) -> Queue {
        Queue { key: key.to_vec(), waiting: VecDeque::new(), no_quorum: None }
    }

    /// Takes a request out. It is usually near the front, because the requests that came first
    /// usually leave first.
    pub fn leave(&mut self, op: Op) {
        if let Some(place) = self.waiting.iter().position(|&other| other == op) {
            self.waiting.remove(place);
        }
    }
}

impl Waits {
    /// Queues a request until the record `current_record` gives up this key, which it has or asks
    /// for.
    ///
    /// # Errors
    /// [`Error::Busy`] if no record is free for its turn.
    pub fn queue_up(
        &mut self,
        locks: &mut Locks,
        current_record: RecordId,
        key: &[u8],
        params: AcquireParams,
        now: Instant,
    ) -> Result<Op, Error> {
        if now >= params.give_up_at {
            return Ok(locks.refuse_to_wait(current_record, key, params, now));
        }
        locks.reserve_place()?;
        let queue = self.queue_for(locks, current_record, key);
        let joins = locks.has_lines(now);
        let op = locks.ops_mut().open_queued(queue, params, now);
        locks.ops_mut().set_joins(op, joins);
        self.queues[queue as usize].waiting.push_back(op);
        Ok(op)
    }

    /// Queues a request for several keys: in one step, in the queue of each key that another record
    /// of this client has. `current_records` has the index of each such key, and the record.
    ///
    /// # Errors
    /// [`Error::Busy`] if no record is free.
    pub fn queue_up_set(
        &mut self,
        locks: &mut Locks,
        keys: &KeySet,
        current_records: &[(usize, RecordId)],
        params: AcquireParams,
        now: Instant,
    ) -> Result<Op, Error> {
        let key = |index: usize| keys.iter().nth(index).unwrap_or_default();
        if let Some(&(index, record)) = current_records.first() {
            if now >= params.give_up_at {
                return Ok(locks.refuse_set(record, (key(index), keys.len()), params, now));
            }
        }
        // Checks that a record is free before a queue is opened.
        locks.reserve_place()?;
        locks.give_up_place();
        let mut waits_in = Vec::with_capacity(current_records.len());
        for &(index, record) in current_records {
            waits_in.push((index, self.queue_for(locks, record, key(index))));
        }
        let has_line = |key| self.has_line(KeyHash::of(key), now);
        let in_line = keys.iter().position(has_line).filter(|_| waits_in.is_empty());
        let op = locks.open_set(keys, &waits_in, in_line, params, now)?;
        for (_, queue) in waits_in {
            self.queues[queue as usize].waiting.push_back(op);
        }
        Ok(op)
    }

    /// The queue for this key, which the record has. Opens one if there is none.
    fn queue_for(&mut self, locks: &mut Locks, id: RecordId, key: &[u8]) -> u32 {
        let first = !locks.has_queue(id, key);
        let no_quorum = locks.no_quorum_of(id).filter(|_| first).cloned();
        let queues = &mut self.queues;
        locks.queue_for(id, key, |key| {
            let mut queue = Queue::new(key);
            queue.no_quorum = no_quorum;
            queues.insert(queue) as u32
        })
    }

    /// Ends a request whose wait is over before its turn came.
    pub(super) fn end_wait(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        if let Some(queue) = locks.first_queue_of(op) {
            let queue = &self.queues[queue as usize];
            locks.end_gathering(op, &queue.key, queue.no_quorum.as_ref(), now);
            return;
        }
        let Some(queue) = locks.ops().queue_of(op) else { return };
        let queue = &mut self.queues[queue as usize];
        queue.leave(op);
        locks.end_queued(op, &queue.key, queue.no_quorum.as_ref(), now);
    }

    /// Gives the next request its turn, because no record has the key any more.
    pub(super) fn hand_over(&mut self, locks: &mut Locks, queue: u32, now: Instant) {
        // A request whose wait is over, but whose timer has not fired yet, gets no turn any
        // more.
        while let Some(&op) = self.queues[queue as usize].waiting.front() {
            if locks.ops().get(op).is_some() && !locks.ops().has_waited_enough(op, now) {
                break;
            }
            self.end_wait(locks, op, now);
            // A request for several keys, or one that was cancelled, would leave only by a later
            // event.
            self.queues[queue as usize].leave(op);
        }
        let Some(op) = self.queues[queue as usize].waiting.pop_front() else {
            self.queues.remove(queue as usize);
            return;
        };
        let key = &self.queues[queue as usize].key;
        if locks.ops().gathers_for(op).is_some() {
            if let Some(id) = locks.take_key(op, queue, key) {
                let in_line = locks.first_key_where(id, |key| self.has_line(key, now));
                locks.begin_gathered(op, id, in_line, now);
            }
            return;
        }
        let in_line = self.has_line(KeyHash::of(key), now);
        locks.take_turn(op, (queue, key), in_line, now);
    }
}
