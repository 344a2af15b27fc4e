//! The ends of requests, as they are handed out: a lock only before its deadline.

use super::*;

impl Locks {
    /// The next request that came to its end.
    #[inline]
    pub fn pop_ended(&mut self) -> Option<Op> {
        self.ops.pop_ready()
    }

    /// The next request that came to its end, and its data, without the end itself: for those who
    /// are woken first and [`fetch`](Locks::fetch) it later.
    pub fn poll_ended(&mut self) -> Option<(Op, u64)> {
        let op = self.ops.pop_ready()?;
        let data = self.ops.get_mut(op)?.data;
        Some((op, data))
    }

    /// What a request came to. `None` where it goes on: also one whose end was told goes on where
    /// its lock is over by now, and the wait is not. `now` is read last of all.
    #[inline]
    pub fn fetch(&mut self, op: Op, now: Instant) -> Option<Completion> {
        if !self.ops.has_ended(op) {
            return None;
        }
        if let Some(&Stage::Granted { record }) = self.ops.get_mut(op).map(|r| &r.stage) {
            if now >= self.records.get(record).deadline {
                self.attempt_is_lost(record, now);
                return None;
            }
        }
        if let Some(completion) = self.told_of_kept(op, now) {
            return Some(completion);
        }
        let request = self.ops.close(op)?;
        let result = match request.stage {
            Stage::Granted { record } => Ok(Outcome::Acquired(self.hand_out(record))),
            Stage::Extended { record, generation } => self.told_of_extend(record, generation, now),
            // Fetched too late: what was prolonged by its token is over again.
            Stage::Over(Ok(Outcome::Extended { deadline })) if now >= deadline => {
                Err(self.lost_unasked(LostReason::Expired, &[], now))
            }
            Stage::Over(result) => result,
            stage => unreachable!("{stage:?} is no end"),
        };
        Some(Completion { op, data: request.data, result })
    }

    /// By which error a request came to its end, before that is fetched.
    pub fn error(&self, op: Op) -> Option<&Error> {
        match &self.ops.get(op)?.stage {
            Stage::Over(Err(error)) => Some(error),
            _ => None,
        }
    }

    /// Whether a request came to its end.
    pub fn has_completions(&self) -> bool {
        self.ops.has_ready()
    }

    /// Whether a request is under way or waits to be handed out.
    pub fn is_open(&self, op: Op) -> bool {
        self.ops.get(op).is_some()
    }

    /// How many requests are under way or wait to be handed out.
    pub fn open_ops(&self) -> usize {
        self.ops.len()
    }
}
