//! The waiters of one key inside this client: served in order, and only the first asks the nodes.
//!
//! The hazard is a client that never gives the key to others: a key that is handed over inside it
//! is never free. So the number of times in a row is bounded, and then other clients really get a
//! turn.

use std::collections::VecDeque;
use std::time::Duration;

use slab::Slab;

use crate::proto::error::Error;
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::key_set::KeySet;
use crate::proto::locks::{AcquireParams, Locks};
use crate::proto::time::Instant;
use crate::proto::waiting::{Mode, Waiting};
use crate::proto::waits::Waits;
use crate::proto::waits::contention::turn_of_others;
use crate::proto::waits::subscription::register_key;

/// How many times in a row a key is handed over inside one client before other clients get a turn.
const STREAK: u32 = 1000;
/// For how long at most it is handed over inside one client.
const STREAK_TIME: Duration = Duration::from_millis(200);

/// The waiters of one key, after the request that asks the nodes, or holds it.
#[derive(Debug, Clone)]
pub struct Queue {
    /// The key.
    pub key: Vec<u8>,
    /// In the order of their turns.
    pub waiting: VecDeque<Op>,
    /// How often the key was handed over in a row, and since when.
    streak: (u32, Instant),
    /// The moment up to which other clients have a turn.
    pub others_until: Instant,
    /// Why the last attempt for the key failed, unless others held it.
    pub no_quorum: Option<Error>,
}

/// The queues, by number.
pub type Queues = Slab<Queue>;

impl Queue {
    /// An empty queue for a key.
    pub fn new(key: &[u8], now: Instant) -> Queue {
        Queue {
            key: key.to_vec(),
            waiting: VecDeque::new(),
            streak: (0, now),
            others_until: Instant::default(),
            no_quorum: None,
        }
    }

    /// The key is handed over once more. Returns whether the next request has to leave other
    /// clients a turn first.
    pub fn hands_over(&mut self, now: Instant) -> bool {
        let (count, since) = self.streak;
        if count == 0 {
            // The first hand-over is always allowed.
            self.streak = (1, now);
            return false;
        }
        let over = count >= STREAK || now.saturating_since(since) >= STREAK_TIME;
        self.streak = if over { (0, now) } else { (count + 1, since) };
        over
    }

    /// Takes a request out. It is usually near the front, because the requests that came first
    /// usually leave first.
    pub fn leave(&mut self, op: Op) {
        if let Some(place) = self.waiting.iter().position(|&other| other == op) {
            self.waiting.remove(place);
        }
    }

    /// The next request got the key in another way than a hand-over.
    pub fn ends_streak(&mut self, now: Instant) {
        self.streak = (0, now);
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
        let queue = self.queue_for(locks, current_record, key, now);
        let joins = locks.has_lines(now);
        let op = locks.ops_mut().open_queued(queue, params);
        locks.ops_mut().set_joins(op, joins);
        self.queues[queue as usize].waiting.push_back(op);
        Ok(op)
    }

    /// Queues a request for several keys in the queues of those that other records of this client
    /// have, all in one step. `current_records` are the numbers of these keys, and the records.
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
        // No queue is opened if there is no record.
        locks.reserve_place()?;
        locks.give_up_place();
        let mut waits_in = Vec::with_capacity(current_records.len());
        for &(index, record) in current_records {
            waits_in.push((index, self.queue_for(locks, record, key(index), now)));
        }
        let has_line = |key| self.has_line(KeyHash::of(key), now);
        let in_line = keys.iter().position(has_line).filter(|_| waits_in.is_empty());
        let op = locks.open_set(keys, &waits_in, in_line, params, now)?;
        for (_, queue) in waits_in {
            self.queues[queue as usize].waiting.push_back(op);
        }
        Ok(op)
    }

    /// The queue for this key, which the record has.
    fn queue_for(&mut self, locks: &mut Locks, id: RecordId, key: &[u8], now: Instant) -> u32 {
        let first = !locks.has_queue(id, key);
        let no_quorum = locks.no_quorum_of(id).filter(|_| first).cloned();
        let queues = &mut self.queues;
        locks.queue_for(id, key, |key| {
            let mut queue = Queue::new(key, now);
            queue.no_quorum = no_quorum;
            queues.insert(queue) as u32
        })
    }

    /// The wait of a request is over before its turn came.
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

    /// No record has the key any more: the next request has its turn. `given_back`: the holder
    /// released the key.
    pub(super) fn hand_over(
        &mut self,
        locks: &mut Locks,
        queue: u32,
        given_back: bool,
        now: Instant,
    ) {
        // A request whose wait is over, but whose timer has not fired yet, gets no turn any
        // more.
        while let Some(&op) = self.queues[queue as usize].waiting.front() {
            if locks.ops().get(op).is_some() && !locks.ops().has_waited_enough(op, now) {
                break;
            }
            self.end_wait(locks, op, now);
            // A request for several keys leaves by an event, and a cancelled one is in the queue
            // until then.
            self.queues[queue as usize].leave(op);
        }
        let line = &mut self.queues[queue as usize];
        let Some(op) = line.waiting.pop_front() else {
            self.queues.remove(queue as usize);
            return;
        };
        if locks.ops().gathers_for(op).is_some() {
            self.take_key(locks, op, queue, given_back, now);
            return;
        }
        let line = &self.queues[queue as usize];
        let in_line = locks.ops().joins(op) && self.has_line(KeyHash::of(&line.key), now);
        let id = locks.take_turn(op, (queue, &line.key), in_line, now);
        let line = &mut self.queues[queue as usize];
        if in_line {
            // The line leaves the others their turns.
            line.ends_streak(now);
            locks.begin_first_attempt(op, id, in_line, now);
        } else if now < line.others_until {
            // The request that was leaving other clients a turn has given up meanwhile.
            self.leave_others_a_turn(locks, op, id, now);
        } else if !given_back {
            line.ends_streak(now);
            locks.begin_attempt(id, now);
        } else if line.hands_over(now) {
            let turn = turn_of_others(self.round_trip.usual());
            line.others_until = now.saturating_add(turn);
            self.leave_others_a_turn(locks, op, id, now);
        } else {
            locks.begin_attempt(id, now);
        }
    }

    /// The turn of a request for several keys has come in this queue. It asks the nodes when it has
    /// all keys inside this client, and none of them has to be left to other clients first.
    fn take_key(&mut self, locks: &mut Locks, op: Op, queue: u32, given_back: bool, now: Instant) {
        let line = &mut self.queues[queue as usize];
        if !given_back {
            line.ends_streak(now);
        } else if line.hands_over(now) {
            line.others_until = now.saturating_add(turn_of_others(self.round_trip.usual()));
        }
        let Some(id) = locks.take_key(op, queue, &line.key) else { return };
        let others = |&queue: &u32| now < self.queues[queue as usize].others_until;
        if locks.own_queues(id).iter().any(others) {
            self.leave_others_a_turn(locks, op, id, now);
        } else {
            locks.attempt_anew(op, id, now);
        }
    }

    /// The request begins to wait, though the key is free as far as this client knows.
    fn leave_others_a_turn(&mut self, locks: &mut Locks, op: Op, id: RecordId, now: Instant) {
        let nodes = locks.cluster().size();
        let keys = locks.count_keys(id);
        let begin = || Waiting::new(nodes, keys, now);
        if let Some(waiting) = locks.ops_mut().begin_waiting(op, begin) {
            *waiting = begin();
            waiting.mode = Mode::Yielding;
        }
        let last = Error::Contended(locks.report_unasked_of(id, now));
        register_key(locks, op, id, now);
        let at = now.saturating_add(turn_of_others(self.round_trip.usual()));
        locks.ops_mut().pause(op, id, at, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_streak_is_bounded_by_its_length_and_by_its_time() {
        let mut queue = Queue::new(b"k", at(0));
        assert!((0..STREAK).all(|_| !queue.hands_over(at(1))));
        assert!(queue.hands_over(at(1)));
        assert!(!queue.hands_over(at(1)), "a new one begins");
        assert!(queue.hands_over(at(201)));
        assert!(!queue.hands_over(at(500)), "one hand-over is always had");
        queue.ends_streak(at(500));
        assert!(!queue.hands_over(at(5_000)));
    }
}
