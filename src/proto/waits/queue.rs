//! The waiters of one key inside this client: served in order, and only the first asks the nodes.
//!
//! The hazard is a client that never gives the key to others: a key that is handed over inside it
//! is never free. So the number of times in a row is bounded, and then other clients really get a
//! turn.

use std::time::Duration;

use super::super::error::Error;
use super::super::locks::{Locks, Wish};
use super::super::ops::Op;
use super::super::time::Instant;
use super::super::waiters::{self, Mode, Queue, Waiting};
use super::Waits;
use super::listening::name_it;

impl Waits {
    /// Queues a request until the record `occupant` gives up the key, which it has or asks for.
    ///
    /// # Errors
    /// [`Error::Busy`] if no record is free for its turn.
    pub fn queue_up(
        &mut self,
        locks: &mut Locks,
        occupant: u32,
        wish: Wish,
        now: Instant,
    ) -> Result<Op, Error> {
        if now >= wish.give_up_at {
            return Ok(locks.refuse_to_wait(occupant, wish, now));
        }
        locks.reserve_place()?;
        let first = !locks.has_queue(occupant);
        let no_quorum = locks.no_quorum_of(occupant).filter(|_| first).cloned();
        let queues = &mut self.queues;
        let queue = locks.queue_behind(occupant, |key| {
            let mut queue = Queue::new(key, now);
            queue.no_quorum = no_quorum;
            queues.insert(queue) as u32
        });
        let op = locks.open_queued(occupant, queue, wish);
        self.queues[queue as usize].waiting.push_back(op);
        Ok(op)
    }

    /// The wait of a request is over before its turn came.
    pub(super) fn turn_never_came(&mut self, locks: &mut Locks, op: Op, now: Instant) {
        let Some(queue) = locks.queue_of(op) else { return };
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
        // A request whose wait is over, but whose timer was not looked at yet, gets no turn any
        // more.
        while let Some(&op) = self.queues[queue as usize].waiting.front() {
            if !locks.has_waited_enough(op, now) {
                break;
            }
            self.turn_never_came(locks, op, now);
        }
        let line = &mut self.queues[queue as usize];
        let Some(op) = line.waiting.pop_front() else {
            self.queues.remove(queue as usize);
            return;
        };
        let number = locks.take_turn(op, queue, &line.key, now);
        if now < line.others_until {
            // The request that was leaving other clients a turn has given up meanwhile.
            self.leave_others_a_turn(locks, op, number, now);
        } else if !given_back {
            line.ends_streak(now);
            locks.begin_attempt(number, now);
        } else if line.hands_over(now) {
            let turn = waiters::turn_of_others(self.round_trip.usual());
            line.others_until = now.saturating_add(turn);
            self.leave_others_a_turn(locks, op, number, now);
        } else {
            locks.begin_attempt(number, now);
        }
    }

    /// The request begins to wait, though the key is free as far as this client knows.
    fn leave_others_a_turn(&mut self, locks: &mut Locks, op: Op, number: u32, now: Instant) {
        let nodes = locks.cluster().size();
        let begin = || Waiting::new(nodes, Duration::ZERO, now);
        if let Some(waiting) = locks.begin_waiting(op, begin) {
            *waiting = begin();
            waiting.mode = Mode::Yielding;
        }
        let last = Error::Contended(locks.report_unasked(locks.key(number), now));
        name_it(locks, op, number, now);
        let at = now.saturating_add(waiters::turn_of_others(self.round_trip.usual()));
        locks.pause(op, number, at, last);
    }
}
