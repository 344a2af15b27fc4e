//! Waits for a lock, for `exec`, `hold` and `acquire`. Limits the time in which no quorum of nodes
//! can be asked.
//!
//! The hazard is a wait for ever. If cron starts a job every minute while the nodes are down, jobs
//! that wait without a limit pile up. But a lock that another client holds for hours is no reason
//! to give up. So only the time without a quorum is limited, and it starts again at zero after each
//! time that a quorum answers.

use std::time::Duration;

use redlatch::proto::Coordinator;
use redlatch::{
    Completion, Error, KeySet, Lock, LockOptions, NodeId, NodeState, Op, Outcome, Stats, clock,
    clock::Instant, majority,
};

use crate::event_loop::EventLoop;

/// The time limit of `--no-quorum-wait`.
#[derive(Debug)]
pub struct QuorumPatience {
    limit: Duration,
    /// Since when no quorum can be asked; `None` if one can.
    since: Option<Instant>,
    /// How many attempts had ended without a quorum, and how many as contended, at the last check.
    seen: (u64, u64),
    /// The last attempt ended without a quorum.
    refused: bool,
}

impl QuorumPatience {
    pub fn new(limit: Duration) -> QuorumPatience {
        QuorumPatience { limit, since: None, seen: (0, 0), refused: false }
    }

    /// When to give up; `None` while a quorum can be asked.
    ///
    /// Nodes in quarantine do not start the limit, because they can be asked and their quarantine
    /// ends by itself. Nodes that can be asked but refuse (because they are out of memory, for
    /// example) do.
    pub fn ends_at(&mut self, core: &Coordinator, now: Instant) -> Option<Instant> {
        self.update(core.stats());
        let nodes = core.settings().nodes.len();
        let node_states = (0..nodes).map(|index| core.node_state(NodeId::new(index)));
        let is_quarantined = |state| matches!(state, NodeState::Quarantined(_));
        let refused = self.refused && !node_states.into_iter().any(is_quarantined);
        let none = core.ready().len() < majority(nodes) || refused;
        self.since = none.then(|| self.since.unwrap_or(now));
        self.since.map(|since| since.saturating_add(self.limit))
    }

    fn update(&mut self, stats: &Stats) {
        let now = (stats.no_quorum + stats.expired, stats.contended);
        if now.1 > self.seen.1 {
            self.refused = false;
        } else if now.0 > self.seen.0 {
            self.refused = true;
        }
        self.seen = now;
    }

    /// Starts the time again at zero, because a quorum answered.
    fn restart(&mut self) {
        (self.since, self.refused) = (None, false);
    }
}

/// Waits for the lock until `give_up_at`, or for ever. Calls `each_turn` in every turn, which
/// returns when to wake up at the latest, or the inner error, which ends the wait. The outer error
/// says why the lock could not be acquired.
pub fn for_lock<S>(
    event_loop: &mut EventLoop,
    keys: &KeySet,
    once: LockOptions,
    give_up_at: Option<Instant>,
    patience: &mut QuorumPatience,
    mut each_turn: impl FnMut(&mut EventLoop) -> Result<Option<Instant>, S>,
) -> Result<Result<Lock, S>, Error> {
    let mut last = false;
    loop {
        let options = match give_up_at {
            _ if last => once,
            Some(moment) => once.wait_until(moment),
            None => once.wait_forever(),
        };
        let op = event_loop.engine.acquire(keys, options, 0)?;
        // The last attempt needs no limit, because it ends at the node timeout.
        let ended = ended(event_loop, op, (!last).then_some(&mut *patience), &mut each_turn)?;
        match ended {
            Ended::Stopped(stop) => return Ok(Err(stop)),
            Ended::OutOfPatience => last = true,
            Ended::With(Err(Error::Contended(_))) if last => {
                patience.restart();
                last = false;
            }
            Ended::With(result) => {
                return match result? {
                    Outcome::Acquired(lock) => Ok(Ok(lock)),
                    other => unreachable!("an acquire ended as {other:?}"),
                };
            }
        }
    }
}

enum Ended<S> {
    With(Result<Outcome, Error>),
    Stopped(S),
    OutOfPatience,
}

fn ended<S>(
    event_loop: &mut EventLoop,
    op: Op,
    mut patience: Option<&mut QuorumPatience>,
    each_turn: &mut impl FnMut(&mut EventLoop) -> Result<Option<Instant>, S>,
) -> Result<Ended<S>, Error> {
    loop {
        if let Some(result) = end_of(event_loop, op) {
            return Ok(Ended::With(result));
        }
        let until = match each_turn(event_loop) {
            Ok(until) => until,
            Err(stop) => {
                event_loop.engine.cancel(op);
                return Ok(Ended::Stopped(stop));
            }
        };
        let (now, core) = (clock::now(), event_loop.engine.coordinator());
        let ends = patience.as_mut().and_then(|patience| patience.ends_at(core, now));
        if ends.is_some_and(|ends| ends <= now) {
            event_loop.engine.cancel(op);
            return Ok(Ended::OutOfPatience);
        }
        event_loop.turn(until.into_iter().chain(ends).min())?;
    }
}

fn end_of(event_loop: &mut EventLoop, op: Op) -> Option<Result<Outcome, Error>> {
    let completions = std::iter::from_fn(|| event_loop.engine.poll_completion());
    completions.filter(|done| done.op == op).map(|Completion { result, .. }| result).next()
}
