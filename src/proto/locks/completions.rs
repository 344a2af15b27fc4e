//! The outcomes of requests, as callers fetch them: a lock only before its deadline.

use crate::proto::error::{ClosedReason, Error, LostReason, Report};
use crate::proto::ids::{Op, RecordId};
use crate::proto::inspection::Inspection;
use crate::proto::lock::Lock;
use crate::proto::locks::Locks;
use crate::proto::locks::requests::{Request, Stage};
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::time::Instant;

/// The outcome of a request.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The caller holds this lock.
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
    /// What each node answered to the forced release of the value that an inspection saw there:
    /// granted (deleted), absent (nothing was seen, or it is gone), held (the key has another value
    /// by now), or an error.
    ForceReleased(Box<Report>),
    /// What each node answered to the write of a note beside a lock's key: granted (written), or an
    /// error.
    Noted(Box<Report>),
}

/// The end of a request: each request has one, unless it is cancelled. What happens to its lock
/// afterwards is a [`LockUpdate`](crate::proto::locks::held::updates::LockUpdate).
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

impl Locks {
    /// Takes out the next request that has ended, if it is a release. In a forked process it takes
    /// out none, because only [`fetch`](Locks::fetch) turns an outcome into the error of the fork.
    #[inline]
    pub fn poll_released(&mut self) -> Option<Completion> {
        if self.forked {
            return None;
        }
        let (op, data, released) = self.ops.pop_released()?;
        Some(Completion { op, data, result: Ok(Outcome::Released(released)) })
    }

    /// Closes a request and returns its outcome; `None` if it goes on. It also goes on if its lock
    /// has expired since its end was reported, and it may still wait for another one. `now` is read
    /// after everything else: no lock is returned after its deadline.
    #[inline]
    pub fn fetch(&mut self, op: Op, now: Instant) -> Option<Completion> {
        if !self.ops.has_ended(op) {
            return None;
        }
        if let Some(&Stage::Granted { record }) = self.ops.get(op).map(|r| &r.stage) {
            if now >= self.records.get(record).deadline {
                self.on_attempt_lost(record, now);
                return None;
            }
            return self.fetch_granted(op, record, now);
        }
        let request = self.ops.close(op)?;
        let result = match request.stage {
            Stage::Extended { lock } => self.extend_outcome(&lock, now),
            // The lock that was extended by its token has expired before this fetch.
            Stage::Over(Ok(Outcome::Extended { deadline })) if now >= deadline => {
                Err(self.lost_unasked(LostReason::Expired, &[], now))
            }
            // A request that the child process made after the fork.
            Stage::Over(_) if self.forked => Err(Error::Closed(ClosedReason::Forked)),
            Stage::Over(result) => result,
            stage => unreachable!("{stage:?} is no end"),
        };
        Some(Completion { op, data: request.data, result })
    }

    /// Closes a request whose lock was granted, and hands the lock out.
    #[inline]
    fn fetch_granted(&mut self, op: Op, id: RecordId, now: Instant) -> Option<Completion> {
        let &Request { data, since, auto_extend, .. } = self.ops.get(op)?;
        self.ops.close(op);
        let lock = self.hand_out(id, data, since, now);
        if let Some(terms) = auto_extend {
            let record = self.records.get_mut(id);
            self.renewals.begin(id, record, Some(terms), now, &mut self.timers);
        }
        Some(Completion { op, data, result: Ok(Outcome::Acquired(lock)) })
    }
}
