//! The requests of callers: an acquire with all its attempts, an extend, a release.
//!
//! One hazard is an outcome that reaches another caller than the one that asked. So an [`Op`]
//! carries a generation: the op of a request that was cancelled or fetched finds no other request
//! in its place.
//!
//! The other hazard is a request that pauses without a timer, and never goes on. A request has one
//! timer at most, which is cleared when its stage changes. The caller of
//! [`interrupt`](Ops::interrupt) has to set a new timer, or to begin the attempt.

use slab::Slab;

use crate::proto::error::Error;
use crate::proto::fifo::Fifo;
use crate::proto::ids::{Op, OpGeneration, RecordId, ShortOp, TaskId};
use crate::proto::lock::Lock;
use crate::proto::locks::AcquireParams;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::owners::{OwnerId, Owners};
use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::surplus::{make_room, shrink_slab};
use crate::proto::time::{Instant, Ttl};
use crate::proto::timers::{Timer, Timers};
use crate::proto::waiting::Waiting;

/// The stage of a request.
#[derive(Debug)]
pub enum Stage {
    /// The request asks no node before the first handshakes are over.
    Starting {
        /// The record of the attempt to come.
        record: RecordId,
    },
    /// A round of this record is in flight, or about to begin.
    Running {
        /// The record.
        record: RecordId,
    },
    /// In the queue for the key, because earlier requests of this client wait for it or hold it.
    Queued {
        /// The queue.
        queue: u32,
        /// The ttl to ask for.
        ttl: Ttl,
        /// Whether to ask for a fencing number.
        fenced: bool,
    },
    /// A request for several keys, in the queue of each key that earlier requests of this client
    /// wait for or hold.
    Gathering {
        /// The record. Its request already has its turn for the other keys.
        record: RecordId,
    },
    /// Between two attempts, or between two rounds of an extend.
    Pausing {
        /// The record of the next attempt or round.
        record: RecordId,
        /// The error of the last attempt: the result if the time to wait is over.
        last: Error,
    },
    /// A task is in flight.
    Task {
        /// The task.
        task: TaskId,
    },
    /// The lock was granted, and its caller has not fetched it yet.
    Granted {
        /// The record that is held.
        record: RecordId,
    },
    /// The lock was extended, and its caller has not fetched the outcome yet. The lock may be lost
    /// before that.
    Extended {
        /// The lock, not its record: the outcome may stay unfetched for so long that another record
        /// has the same place and generation.
        lock: Lock,
    },
    /// The request has ended, and its caller has not fetched the outcome yet.
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
    /// From this moment on no attempt begins.
    pub give_up_at: Instant,
    /// What the request knows of a key that others hold.
    pub waiting: Option<Box<Waiting>>,
    /// How the lock is auto-extended from its hand-out on.
    pub auto_extend: Option<AutoExtend>,
    /// The owner that the token of each attempt names; `None`: that of the settings.
    pub owner: Option<OwnerId>,
    /// If an attempt is lost because other clients have the key, the request joins the line on the
    /// nodes.
    pub joins: bool,
    /// How often the request gave up the nodes that it had, for another waiter in line.
    pub yields: u32,
    /// The first digits of the token for which it did so last.
    pub yielded_to: u32,
    /// The caller is gone, and the request goes on to its end. No caller fetches its outcome, so it
    /// is closed at its end.
    pub abandoned: bool,
    /// The stage of the request.
    pub stage: Stage,
    /// Ends the pause, or the wait in a queue.
    pub(super) timer: Option<Timer>,
}

/// The requests that go on, and those whose outcome was not fetched yet.
#[derive(Debug, Default)]
#[cfg_attr(feature = "testing", derive(Clone))]
pub struct Ops {
    slab: Slab<Request>,
    ready: Fifo<Op>,
    /// How many of the requests have begun to wait for a key that others hold.
    waiters: usize,
    next_generation: OpGeneration,
    timers: Timers<ShortOp>,
    /// The owners that requests name.
    pub owners: Owners,
}

impl Ops {
    /// `left` more generations are given before their lower half carries into the upper one.
    #[cfg(feature = "testing")]
    pub fn start_before_wrap(&mut self, left: u32) {
        self.next_generation = OpGeneration::before_carry(left);
    }

    /// Opens a request. If `stage` is an end, the request is queued to be fetched.
    #[inline]
    pub fn open(&mut self, data: u64, since: Instant, give_up_at: Instant, stage: Stage) -> Op {
        make_room(&mut self.slab);
        let generation = self.next_generation.advance();
        let ended = stage.ends();
        let request = Request {
            generation,
            data,
            since,
            give_up_at,
            waiting: None,
            auto_extend: None,
            owner: None,
            joins: false,
            yields: 0,
            yielded_to: 0,
            abandoned: false,
            stage,
            timer: None,
        };
        let op = Op { index: self.slab.insert(request) as u32, generation };
        if ended {
            self.ready.push(op);
        }
        op
    }

    /// Links a request and its record, and notes in both whether the lock is to be auto-extended.
    #[inline]
    pub fn link(&mut self, op: Op, record: &mut Record, auto_extend: Option<AutoExtend>) {
        (record.op, record.tracked) = (Some(op), auto_extend.is_some());
        if let Some(request) = auto_extend.and_then(|_| self.get_mut(op)) {
            request.auto_extend = auto_extend;
        }
    }

    /// Sets whether a request joins the line if other clients have the key.
    pub fn set_joins(&mut self, op: Op, joins: bool) {
        if let Some(request) = self.get_mut(op) {
            request.joins = joins;
        }
    }

    /// Sets the owner that the tokens of a request name. There is none yet.
    #[inline]
    pub fn set_owner(&mut self, op: Op, owner: Option<OwnerId>) {
        if let Some(request) = owner.and_then(|_| self.get_mut(op)) {
            request.owner = owner;
        }
    }

    /// The owner that the tokens of a request name, if they do not name that of the settings.
    pub fn owner(&self, op: Op) -> Option<OwnerId> {
        self.get(op).and_then(|request| request.owner)
    }

    /// The request, to read, unless it was cancelled or fetched.
    pub fn get(&self, op: Op) -> Option<&Request> {
        self.slab.get(op.index as usize).filter(|request| request.generation == op.generation)
    }

    /// The request, to change it, unless it was cancelled or fetched.
    pub fn get_mut(&mut self, op: Op) -> Option<&mut Request> {
        self.slab.get_mut(op.index as usize).filter(|request| request.generation == op.generation)
    }

    /// The stage of a request, to change it, unless the request was cancelled or fetched.
    pub fn stage_mut(&mut self, op: Op) -> Option<&mut Stage> {
        self.get_mut(op).map(|request| &mut request.stage)
    }

    /// The earliest moment at which a pause, or a wait in a queue, ends.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Takes out the timer that was the first to come due by `now`, and returns its request.
    ///
    /// # Panics
    /// If the request is closed, which cannot be: closing a request clears its timer.
    pub fn pop_due(&mut self, now: Instant) -> Option<Op> {
        let op = self.timers.pop_due(now).map(|short| self.op_of(short))?;
        self.slab[op.index as usize].timer = None;
        Some(op)
    }

    /// Whether the next timer is that of a waiter in line, which polls.
    pub fn next_is_a_poll_in_line(&self) -> bool {
        let Some((_, short)) = self.timers.first().filter(|_| self.waiters > 0) else {
            return false;
        };
        let polls = |request: &Request| request.waiting.as_ref().is_some_and(|it| it.is_in_line);
        self.pauses_before(self.op_of(short)).is_some()
            && self.get(self.op_of(short)).is_some_and(polls)
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

    fn op_of(&self, short: ShortOp) -> Op {
        let op = Op { index: short.index, generation: self.slab[short.index as usize].generation };
        assert!(op.short() == short, "{op:?} is closed, but has a timer");
        op
    }

    /// Opens a request that waits in `queue` until the record which has the key gives it up.
    pub fn open_queued(&mut self, queue: u32, params: AcquireParams, now: Instant) -> Op {
        let AcquireParams { ttl, give_up_at, auto_extend, fenced, owner, data } = params;
        let op = self.open(data, now, give_up_at, Stage::Queued { queue, ttl, fenced });
        if let Some(request) = self.get_mut(op) {
            (request.auto_extend, request.owner) = (auto_extend, owner);
        }
        self.limit_wait(op);
        op
    }

    /// Sets the timer that ends the wait of a request in its queues: at the moment from which none
    /// of its attempts may begin.
    pub fn limit_wait(&mut self, op: Op) {
        let at = self.give_up_at(op).filter(|&at| at != Instant::from_nanos(u64::MAX));
        if let Some(at) = at {
            let timer = &mut self.slab[op.index as usize].timer;
            self.timers.clear_in(timer);
            *timer = Some(self.timers.set_at(at, op.short()));
        }
    }

    /// Lets a request pause until `at`; `last` is the error of its last attempt.
    pub fn pause(&mut self, op: Op, record: RecordId, at: Instant, last: Error) {
        self.move_to(op, Stage::Pausing { record, last });
        self.pause_on(op, at);
    }

    /// Replaces the timer of a request that pauses, so that its pause ends at `at`.
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

    /// If a request pauses: the record of its next attempt.
    pub fn pauses_before(&self, op: Op) -> Option<RecordId> {
        match self.get(op)?.stage {
            Stage::Pausing { record, .. } => Some(record),
            _ => None,
        }
    }

    /// The record of the attempt of a request: the present one, or the next one if the request
    /// pauses.
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

    /// The record of a request for several keys that waits in the queue of one of them.
    pub fn gathers_for(&self, op: Op) -> Option<RecordId> {
        match self.get(op)?.stage {
            Stage::Gathering { record } => Some(record),
            _ => None,
        }
    }

    /// The moment from which no attempt of a request may begin.
    pub fn give_up_at(&self, op: Op) -> Option<Instant> {
        self.get(op).map(|request| request.give_up_at)
    }

    /// Whether the time that a request may wait is over. Its timer may still be set.
    pub fn has_waited_enough(&self, op: Op, now: Instant) -> bool {
        self.get(op).is_some_and(|request| request.give_up_at <= now)
    }

    /// Whether a request joins the line if other clients have the key.
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

    /// Gives back the memory that was not needed: at most `most` requests were open in the last
    /// interval.
    pub fn shrink(&mut self, most: usize) {
        shrink_slab(&mut self.slab, most);
        self.ready.shrink(most);
        self.timers.shrink(most);
    }

    /// For how many requests, or for how many of their timers, there is room: the greater one.
    pub fn capacity(&self) -> usize {
        self.slab.capacity().max(self.timers.capacity())
    }

    /// Moves a request on to `stage`, and clears its timer. If `stage` is an end, the request is
    /// queued to be fetched, or closed if its caller is gone.
    pub fn move_to(&mut self, op: Op, stage: Stage) {
        let Some(request) = self.slab.get_mut(op.index as usize) else { return };
        if request.generation != op.generation {
            return;
        }
        self.timers.clear_in(&mut request.timer);
        request.stage = stage;
        match (request.stage.ends(), request.abandoned) {
            (false, _) => {}
            (true, false) => self.ready.push(op),
            (true, true) => drop(self.close(op)),
        }
    }

    /// Ends the pause of a request: it runs from now on. Returns the error of its last attempt.
    pub fn end_pause(&mut self, op: Op) -> Option<Error> {
        let record = self.pauses_before(op)?;
        self.interrupt(op);
        let request = self.get_mut(op)?;
        match std::mem::replace(&mut request.stage, Stage::Running { record }) {
            Stage::Pausing { last, .. } => Some(last),
            _ => None,
        }
    }

    /// Takes the next request that has ended out of the queue. The request stays open until its
    /// outcome is fetched.
    pub fn pop_ready(&mut self) -> Option<Op> {
        loop {
            let op = self.ready.pop()?;
            // Since it was queued, the request may have been cancelled, or begun another attempt.
            if self.has_ended(op) {
                return Some(op);
            }
        }
    }

    /// Takes the next request that has ended out of the queue, and returns its data, too. The
    /// outcome is fetched later.
    pub fn poll_ended(&mut self) -> Option<(Op, u64)> {
        let op = self.pop_ready()?;
        Some((op, self.get(op)?.data))
    }

    /// If the next request that has ended is a release, closes it, and returns its data and its
    /// outcome.
    #[inline]
    pub fn pop_released(&mut self) -> Option<(Op, u64, ReleaseOutcome)> {
        let op = self.ready.front()?;
        let request = self.get(op)?;
        let Stage::Over(Ok(Outcome::Released(outcome))) = request.stage else { return None };
        let data = request.data;
        self.ready.pop();
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

    /// The records of the next attempts of all requests that pause because others hold their key.
    pub fn waiting(&self) -> impl Iterator<Item = RecordId> {
        self.slab.iter().filter_map(|(_, request)| match request.stage {
            Stage::Pausing { record, .. } if request.waiting.is_some() => Some(record),
            _ => None,
        })
    }

    /// Whether the queue of ended requests has any entry.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Closes a request and returns it; `None` if it was cancelled or fetched.
    #[inline]
    pub fn close(&mut self, op: Op) -> Option<Request> {
        self.get(op)?;
        self.timers.clear_in(&mut self.slab[op.index as usize].timer);
        let request = self.slab.remove(op.index as usize);
        self.waiters -= usize::from(request.waiting.is_some());
        Some(request)
    }

    /// What a request knows of a key that others hold. If the request only begins to wait, `begin`
    /// makes it.
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

    /// The request of a record that asks for its key, if that request has begun to wait for others.
    pub fn waiter_of(&self, record: &Record) -> Option<Op> {
        let op = record.op.filter(|_| record.phase == Phase::Asking)?;
        self.get(op)?.waiting.is_some().then_some(op)
    }

    /// Whether no request has begun to wait for a key that others hold.
    pub fn has_no_waiters(&self) -> bool {
        self.waiters == 0
    }

    /// How many requests wait now for a key that others hold.
    pub fn waiters(&self) -> usize {
        self.waiters
    }

    /// How many requests are open.
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
    fn requests_are_fetched_in_the_order_in_which_they_ended() {
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
    fn request_that_was_cancelled_is_not_fetched() {
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
