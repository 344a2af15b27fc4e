//! The requests of callers: an acquire with all its attempts, an extend, a release.
//!
//! The hazard is an answer for a caller that is gone. An [`Op`] carries a generation, and the op of
//! a request that was cancelled or answered finds nothing.

use std::collections::VecDeque;

use slab::Slab;

use crate::proto::error::{Error, Report};
use crate::proto::ids::{Op, OpGeneration, RecordId, ShortOp, TaskId};
use crate::proto::inspection::Inspection;
use crate::proto::lock::Lock;
use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::surplus::{insert, shrink_queue, shrink_slab};
use crate::proto::time::{Instant, Ttl};
use crate::proto::timers::Timer;
use crate::proto::waiting::Waiting;

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The lock is held.
    Acquired(Lock),
    /// The lock was extended to this deadline.
    Extended {
        /// The new deadline.
        deadline: Instant,
    },
    /// The lock is released.
    Released(ReleaseOutcome),
    /// What the nodes hold.
    Inspected(Box<Inspection>),
    /// The grants of the nodes that accepted this count from now on.
    Vouched(Box<Report>),
    /// What each node said to the forced release of what was seen there: granted (deleted), absent
    /// (nothing was seen, or it is gone), held (it holds something else by now), or an error.
    ForceReleased(Box<Report>),
}

/// The end of a request: each request has one. What happens to its lock afterwards is a
/// [`LockUpdate`](crate::proto::locks::held::updates::LockUpdate).
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The request.
    pub op: Op,
    /// The data that the caller gave with the request.
    pub data: u64,
    /// The outcome, or the error.
    pub result: Result<Outcome, Error>,
}

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
        /// Ends the wait.
        timer: Option<Timer>,
    },
    /// In the queues of those of several keys that other requests of this client wait for, or hold.
    Gathering {
        /// The record, which has the other keys inside this client.
        record: RecordId,
        /// Ends the wait.
        timer: Option<Timer>,
    },
    /// Between two attempts, or two rounds.
    Pausing {
        /// The record of the next attempt or round.
        record: RecordId,
        /// Ends the pause.
        timer: Timer,
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
    /// The caller asked for a fair lock.
    pub fair: bool,
    /// How often its waiter in line gave nodes up for another one.
    pub yields: u32,
    /// The caller is gone, and the request goes on: no code fetches its outcome.
    pub abandoned: bool,
    /// The stage of the request.
    pub stage: Stage,
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
            fair: false,
            yields: 0,
            abandoned: false,
            stage,
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

    /// The whole handle of a request whose timer came due.
    ///
    /// # Panics
    /// If the request is closed: its timers are cleared before.
    pub fn whole(&self, short: ShortOp) -> Op {
        let op = Op { index: short.index, generation: self.slab[short.index as usize].generation };
        assert!(op.short() == short, "{op:?} is closed, but has a timer");
        op
    }

    /// Gives back the places that were not in use since `most` were.
    pub fn shrink(&mut self, most: usize) {
        shrink_slab(&mut self.slab, most);
        shrink_queue(&mut self.ready, most);
    }

    /// For how many requests there are places.
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// Moves a request on to `stage`. If the request ends there, it is queued to be fetched, or
    /// closed if its caller is gone.
    pub fn move_to(&mut self, op: Op, stage: Stage) {
        if let Some(request) = self.get_mut(op) {
            request.stage = stage;
            match (request.stage.ends(), request.abandoned) {
                (false, _) => {}
                (true, false) => self.ready.push_back(op),
                (true, true) => drop(self.close(op)),
            }
        }
    }

    /// The next request that has ended. It leaves the queue of ended requests, and stays open until
    /// it is closed.
    pub fn pop_ready(&mut self) -> Option<Op> {
        loop {
            let op = self.ready.pop_front()?;
            // A request that was cancelled, or goes on after all, may still have a place in this
            // queue.
            if self.has_ended(op) {
                return Some(op);
            }
        }
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

    /// Whether `test` holds for all requests.
    pub fn all_are(&self, test: impl Fn(&Request) -> bool) -> bool {
        self.slab.iter().all(|(_, request)| test(request))
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
    pub fn close(&mut self, op: Op) -> Option<Request> {
        self.get_mut(op)?;
        let request = self.slab.remove(op.index as usize);
        self.waiters -= usize::from(request.waiting.is_some());
        Some(request)
    }

    /// What a request knows of a key that others hold; `begin` makes it when the request begins to
    /// wait.
    pub fn waiter(&mut self, op: Op, begin: impl FnOnce() -> Waiting) -> Option<&mut Waiting> {
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

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
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
        assert!(ops.is_empty());
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
