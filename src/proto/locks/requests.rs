//! The requests of callers: an acquire with all its attempts, an extend, a release.
//!
//! The hazard is an answer for a caller that is gone. An [`Op`] carries a generation, and the op of
//! a request that was cancelled or answered finds nothing.
//!
//! The other one is a request that pauses without a timer. A request has one timer at most, which
//! goes with its stage; only a caller of [`interrupt`](Ops::interrupt) has to set another one, or
//! to begin the attempt.

use std::collections::VecDeque;

use slab::Slab;

use crate::proto::error::Error;
use crate::proto::ids::{Op, OpGeneration, RecordId, ShortOp, TaskId};
use crate::proto::lock::Lock;
use crate::proto::locks::AcquireParams;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::surplus::{insert, shrink_queue, shrink_slab};
use crate::proto::time::{Instant, Ttl};
use crate::proto::timers::{Timer, Timers};
use crate::proto::waiting::Waiting;

/// The stage of a request.
#[derive(Debug)]
pub enum Stage {
    /// Held until the first handshakes are over: no node was asked yet.
    Starting {
        /// The record of the attempt to come.
        record: RecordId,
    },
    /// A round of this record is in flight, or about to begin.
    Running {
        /// The record.
        record: RecordId,
    },
    /// In the queue after other requests of this client that wait for the key, or hold it.
    Queued {
        /// The queue.
        queue: u32,
        /// The ttl to ask for.
        ttl: Ttl,
        /// Whether to ask for a fencing number.
        fenced: bool,
    },
    /// In the queues of those of several keys that other requests of this client wait for, or hold.
    Gathering {
        /// The record, which has the other keys inside this client.
        record: RecordId,
    },
    /// Between two attempts, or two rounds.
    Pausing {
        /// The record of the next attempt or round.
        record: RecordId,
        /// The error of the last attempt: the result if the wait runs out.
        last: Error,
    },
    /// A task is in flight.
    Task {
        /// The task.
        task: TaskId,
    },
    /// The lock was granted, and was not fetched yet.
    Granted {
        /// The record that is held.
        record: RecordId,
    },
    /// The lock was extended, and the outcome was not fetched yet: the lock may be lost before
    /// that.
    Extended {
        /// The lock. The request may be left for so long that the record's generation comes again.
        lock: Lock,
    },
    /// The request has ended, and its outcome was not fetched yet.
    Over(Result<Outcome, Error>),
}

impl Stage {
    fn ends(&self) -> bool {
        matches!(self, Stage::Granted { .. } | Stage::Extended { .. } | Stage::Over(_))
    }
}

/// A request.
#[derive(Debug)]
#[cfg_attr(feature = "testing", derive(Clone))]
pub struct Request {
    pub(super) generation: OpGeneration,
    /// The data that the caller gave with the request.
    pub data: u64,
    /// When the caller made the request.
    pub since: Instant,
    /// No attempt is begun from this moment on.
    pub give_up_at: Instant,
    /// What the request knows of a key that others hold.
    pub waiting: Option<Box<Waiting>>,
    /// The terms of auto-extension, once the lock is handed out.
    pub auto_extend: Option<AutoExtend>,
    /// After an attempt that others were faster at, the request stands in line on the nodes.
    pub joins: bool,
    /// How often its waiter in line gave nodes up for another one.
    pub yields: u32,
    /// The caller is gone, and the request goes on: no code fetches its outcome.
    pub abandoned: bool,
    /// The stage of the request.
    pub stage: Stage,
    /// Ends the pause, or the wait for its turn.
    pub(super) timer: Option<Timer>,
}

/// The requests in flight, and those whose outcome was not fetched yet.
#[derive(Debug, Default)]
#[cfg_attr(feature = "testing", derive(Clone))]
pub struct Ops {
    slab: Slab<Request>,
    ready: VecDeque<Op>,
    /// How many of them have begun to wait for a key that others hold.
    waiters: usize,
    next_generation: OpGeneration,
    timers: Timers<ShortOp>,
}

impl Ops {
    /// From now on the generations are so close to the end of their lower half.
    #[cfg(feature = "testing")]
    pub fn start_before_wrap(&mut self, left: u32) {
        self.next_generation = OpGeneration::before_carry(left);
    }

    /// Opens a request. One that has ended already is queued to be fetched.
    pub fn open(&mut self, data: u64, since: Instant, give_up_at: Instant, stage: Stage) -> Op {
        let generation = self.next_generation.advance();
        let ended = stage.ends();
        let request = Request {
            generation,
            data,
            since,
            give_up_at,
            waiting: None,
            auto_extend: None,
            joins: false,
            yields: 0,
            abandoned: false,
            stage,
            timer: None,
        };
        let op = Op { index: insert(&mut self.slab, request) as u32, generation };
        if ended {
            self.ready.push_back(op);
        }
        op
    }

    /// Links a request with its new record, and notes whether the lock is to be auto-extended.
    #[inline]
    pub fn link(&mut self, op: Op, record: &mut Record, auto_extend: Option<AutoExtend>) {
        (record.op, record.tracked) = (Some(op), auto_extend.is_some());
        if let Some(request) = auto_extend.and_then(|_| self.get_mut(op)) {
            request.auto_extend = auto_extend;
        }
    }

    /// Sets whether a request stands in line after an attempt that others were faster at.
    pub fn set_joins(&mut self, op: Op, joins: bool) {
        if let Some(request) = self.get_mut(op) {
            request.joins = joins;
        }
    }

    /// The request, to look at, unless it was cancelled or answered.
    pub fn get(&self, op: Op) -> Option<&Request> {
        self.slab.get(op.index as usize).filter(|request| request.generation == op.generation)
    }

    /// The request, unless it was cancelled or answered.
    pub fn get_mut(&mut self, op: Op) -> Option<&mut Request> {
        self.slab.get_mut(op.index as usize).filter(|request| request.generation == op.generation)
    }

    /// The stage of a request, unless it was cancelled or answered.
    pub fn stage_mut(&mut self, op: Op) -> Option<&mut Stage> {
        self.get_mut(op).map(|request| &mut request.stage)
    }

    /// The moment at which a pause, or a wait for a turn, ends.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Takes out the next request whose pause or wait is over at `now`.
    ///
    /// # Panics
    /// If the request is closed: its timer is cleared before.
    pub fn pop_due(&mut self, now: Instant) -> Option<Op> {
        let op = self.timers.pop_due(now).map(|short| self.whole(short))?;
        self.slab[op.index as usize].timer = None;
        Some(op)
    }

    /// Whether the next timer is that of a waiter in line, which polls.
    pub fn next_is_a_poll_in_line(&self) -> bool {
        let Some((_, short)) = self.timers.first().filter(|_| self.waiters > 0) else {
            return false;
        };
        let polls = |request: &Request| request.waiting.as_ref().is_some_and(|it| it.is_in_line);
        self.pauses_before(self.whole(short)).is_some()
            && self.get(self.whole(short)).is_some_and(polls)
    }

    /// How many requests have a timer.
    pub fn open_timers(&self) -> usize {
        self.timers.len()
    }

    /// The timers, in no order.
    #[cfg(feature = "testing")]
    pub fn timers(&self) -> impl Iterator<Item = (Instant, ShortOp)> {
        self.timers.iter()
    }

    fn whole(&self, short: ShortOp) -> Op {
        let op = Op { index: short.index, generation: self.slab[short.index as usize].generation };
        assert!(op.short() == short, "{op:?} is closed, but has a timer");
        op
    }

    /// Opens a request in `queue`, which waits until the record of the key gives it up.
    pub fn open_queued(&mut self, queue: u32, params: AcquireParams) -> Op {
        let AcquireParams { ttl, since, give_up_at, auto_extend, fenced, data } = params;
        let op = self.open(data, since, give_up_at, Stage::Queued { queue, ttl, fenced });
        if let Some(request) = self.get_mut(op) {
            request.auto_extend = auto_extend;
        }
        self.limit_wait(op);
        op
    }

    /// From now on the wait of a request for its turn ends at the moment from which no attempt is
    /// begun.
    pub fn limit_wait(&mut self, op: Op) {
        let at = self.give_up_at(op).filter(|&at| at != Instant::from_nanos(u64::MAX));
        if let Some(at) = at {
            let timer = &mut self.slab[op.index as usize].timer;
            self.timers.clear_in(timer);
            *timer = Some(self.timers.set_at(at, op.short()));
        }
    }

    /// Lets a request pause from now on; `last` is the error of its last attempt.
    pub fn pause(&mut self, op: Op, record: RecordId, at: Instant, last: Error) {
        self.move_to(op, Stage::Pausing { record, last });
        self.pause_on(op, at);
    }

    /// Sets a new timer for a request that goes on with its pause.
    pub fn pause_on(&mut self, op: Op, at: Instant) {
        if self.pauses_before(op).is_none() {
            return;
        }
        let request = &mut self.slab[op.index as usize];
        self.timers.clear_in(&mut request.timer);
        request.timer = Some(self.timers.set_at(at.min(request.give_up_at), op.short()));
    }

    /// Clears the timer of a request that pauses. Returns whether the request pauses.
    pub fn interrupt(&mut self, op: Op) -> bool {
        let pauses = self.pauses_before(op).is_some();
        if pauses {
            self.timers.clear_in(&mut self.slab[op.index as usize].timer);
        }
        pauses
    }

    /// The record of the attempt that a request pauses before.
    pub fn pauses_before(&self, op: Op) -> Option<RecordId> {
        match self.get(op)?.stage {
            Stage::Pausing { record, .. } => Some(record),
            _ => None,
        }
    }

    /// The record of the attempt that a request makes, or pauses before.
    pub fn attempt_of(&self, op: Op) -> Option<RecordId> {
        match self.get(op)?.stage {
            Stage::Pausing { record, .. } | Stage::Running { record } => Some(record),
            _ => None,
        }
    }

    /// The queue that a request is in.
    pub fn queue_of(&self, op: Op) -> Option<u32> {
        match self.get(op)?.stage {
            Stage::Queued { queue, .. } => Some(queue),
            _ => None,
        }
    }

    /// The record of a request that waits for some of its keys inside this client.
    pub fn gathers_for(&self, op: Op) -> Option<RecordId> {
        match self.get(op)?.stage {
            Stage::Gathering { record } => Some(record),
            _ => None,
        }
    }

    /// The moment from which no attempt of a request is begun.
    pub fn give_up_at(&self, op: Op) -> Option<Instant> {
        self.get(op).map(|request| request.give_up_at)
    }

    /// Whether the wait of a request is over, though its timer may not have been looked at yet.
    pub fn has_waited_enough(&self, op: Op, now: Instant) -> bool {
        self.get(op).is_some_and(|request| request.give_up_at <= now)
    }

    /// Whether a request stands in line after an attempt that others were faster at.
    pub fn joins(&self, op: Op) -> bool {
        self.get(op).is_some_and(|request| request.joins)
    }

    /// What a request that has begun to wait knows of its key.
    pub fn waiting_mut(&mut self, op: Op) -> Option<&mut Waiting> {
        self.get_mut(op)?.waiting.as_deref_mut()
    }

    /// The error that a request ended with, before the outcome is fetched.
    pub fn error(&self, op: Op) -> Option<&Error> {
        match &self.get(op)?.stage {
            Stage::Over(Err(error)) => Some(error),
            _ => None,
        }
    }

    /// Gives back the places that were not in use since `most` were.
    pub fn shrink(&mut self, most: usize) {
        shrink_slab(&mut self.slab, most);
        shrink_queue(&mut self.ready, most);
        self.timers.shrink(most);
    }

    /// For how many requests, or timers of theirs, there are places.
    pub fn capacity(&self) -> usize {
        self.slab.capacity().max(self.timers.capacity())
    }

    /// Moves a request on to `stage`, without a timer. If the request ends there, it is queued to
    /// be fetched, or closed if its caller is gone.
    pub fn move_to(&mut self, op: Op, stage: Stage) {
        let Some(request) = self.slab.get_mut(op.index as usize) else { return };
        if request.generation != op.generation {
            return;
        }
        self.timers.clear_in(&mut request.timer);
        request.stage = stage;
        match (request.stage.ends(), request.abandoned) {
            (false, _) => {}
            (true, false) => self.ready.push_back(op),
            (true, true) => drop(self.close(op)),
        }
    }

    /// Ends the pause of a request, whose next attempt or round is in this record. Returns the
    /// error of its last attempt.
    pub fn end_pause(&mut self, op: Op) -> Option<Error> {
        let record = self.pauses_before(op)?;
        self.interrupt(op);
        let request = self.get_mut(op)?;
        match std::mem::replace(&mut request.stage, Stage::Running { record }) {
            Stage::Pausing { last, .. } => Some(last),
            _ => None,
        }
    }

    /// The next request that has ended. It leaves the queue of ended requests, and stays open until
    /// it is closed.
    pub fn pop_ready(&mut self) -> Option<Op> {
        loop {
            let op = self.ready.pop_front()?;
            // The request may have been cancelled, or have gone on, since it was queued here.
            if self.has_ended(op) {
                return Some(op);
            }
        }
    }

    /// The next request that has ended, and its data, without the outcome.
    pub fn poll_ended(&mut self) -> Option<(Op, u64)> {
        let op = self.pop_ready()?;
        Some((op, self.get(op)?.data))
    }

    /// Takes out the next request that has ended, if it is a release: it is closed, too. Returns
    /// its data and its outcome.
    #[inline]
    pub fn pop_released(&mut self) -> Option<(Op, u64, ReleaseOutcome)> {
        let op = *self.ready.front()?;
        let request = self.get(op)?;
        let Stage::Over(Ok(Outcome::Released(outcome))) = request.stage else { return None };
        let data = request.data;
        self.ready.pop_front();
        self.close(op);
        Some((op, data, outcome))
    }

    /// Whether the request is open, and has an outcome to fetch.
    pub fn has_ended(&self, op: Op) -> bool {
        self.get(op).is_some_and(|request| request.stage.ends())
    }

    /// The handles of all requests.
    pub fn all(&self) -> Vec<Op> {
        let handle = |(index, request): (usize, &Request)| Op {
            index: index as u32,
            generation: request.generation,
        };
        self.slab.iter().map(handle).collect()
    }

    /// The records of the requests that wait for a key between two attempts.
    pub fn waiting(&self) -> impl Iterator<Item = RecordId> {
        self.slab.iter().filter_map(|(_, request)| match request.stage {
            Stage::Pausing { record, .. } if request.waiting.is_some() => Some(record),
            _ => None,
        })
    }

    /// Whether an outcome may wait to be fetched.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes a request out; `None` if it was cancelled or answered.
    #[inline]
    pub fn close(&mut self, op: Op) -> Option<Request> {
        self.get(op)?;
        self.timers.clear_in(&mut self.slab[op.index as usize].timer);
        let request = self.slab.remove(op.index as usize);
        self.waiters -= usize::from(request.waiting.is_some());
        Some(request)
    }

    /// What a request knows of a key that others hold; `begin` makes it when the request begins to
    /// wait.
    pub fn begin_waiting(
        &mut self,
        op: Op,
        begin: impl FnOnce() -> Waiting,
    ) -> Option<&mut Waiting> {
        let request = self.slab.get_mut(op.index as usize)?;
        if request.generation != op.generation {
            return None;
        }
        self.waiters += usize::from(request.waiting.is_none());
        Some(request.waiting.get_or_insert_with(|| Box::new(begin())))
    }

    /// The request that waits between two attempts, and asks for this record next.
    pub fn waiter_of(&self, record: &Record) -> Option<Op> {
        let op = record.op.filter(|_| record.phase == Phase::Asking)?;
        self.get(op)?.waiting.is_some().then_some(op)
    }

    /// Whether no request has begun to wait for a key that others hold.
    pub fn has_no_waiters(&self) -> bool {
        self.waiters == 0
    }

    /// How many requests are in flight, or wait for their outcome to be fetched.
    pub fn len(&self) -> usize {
        self.slab.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::error::Busy;
    use crate::proto::ids::Generation;

    const TASK: TaskId = TaskId { index: 0, generation: Generation::FIRST };

    const START: Instant = Instant::from_nanos(0);

    fn over() -> Stage {
        Stage::Over(Err(Error::Busy(Busy::Lock)))
    }

    #[test]
    fn ends_are_handed_out_in_their_order() {
        let mut ops = Ops::default();
        let [a, b, c] =
            [1, 2, 3].map(|data| ops.open(data, START, START, Stage::Task { task: TASK }));
        for op in [b, a, c] {
            ops.move_to(op, over());
        }
        let order: Vec<Op> = std::iter::from_fn(|| ops.pop_ready()).collect();
        assert_eq!(order, [b, a, c]);
        assert!(!ops.has_ready());
        let data = order.into_iter().map(|op| ops.close(op).unwrap().data);
        assert_eq!(data.collect::<Vec<_>>(), [2, 1, 3]);
        assert!(ops.slab.is_empty());
    }

    #[test]
    fn a_request_that_was_cancelled_has_no_end() {
        let mut ops = Ops::default();
        let op = ops.open(1, START, START, over());
        assert!(ops.close(op).is_some());
        assert!(ops.close(op).is_none());
        let next = ops.open(2, START, START, Stage::Task { task: TASK });
        assert_eq!(next.index, op.index, "the place is used again");
        assert!(ops.get_mut(op).is_none());
        assert!(ops.pop_ready().is_none());
        ops.move_to(op, over());
        assert!(!ops.has_ready(), "an old handle lines nothing up");
    }
}
