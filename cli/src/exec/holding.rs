//! Reports a lock that was acquired, and releases it after CMD. `watch.rs` renews it in between.

use std::time::Duration;

use redlatch::{Engine, Lock, NodeSet, Op, Outcome, ReleaseOutcome, clock, clock::Instant};

use super::events;
use super::log::Log;
use super::reports::Reports;
use crate::event_loop::EventLoop;
use crate::key_names::KeyNames;
use crate::output::Refusal;

/// How long to wait for the other nodes after a majority has granted the lock. Their grants only
/// make the reported number of nodes right.
const LATE_ANSWERS: Duration = Duration::from_millis(10);

/// How long redlatch may wait for the nodes after CMD ended, before it returns CMD's exit code.
pub const LAST_WAIT: Duration = Duration::from_millis(50);

/// Reports a lock that was acquired. The acquire did not wait for the nodes beyond the majority, so
/// this function waits for them a little: the event says how many nodes hold the lock.
pub fn report(
    event_loop: &mut EventLoop,
    (lock, keys): (&Lock, &KeyNames),
    begun: Instant,
    log: &mut Log,
) -> Result<(), Refusal> {
    event_loop.settle(LATE_ANSWERS)?;
    let core = event_loop.engine.coordinator();
    let won = events::Won {
        remaining: event_loop.engine.remaining(lock),
        elapsed: clock::now().saturating_since(begun),
        granted: core.holders(lock).len(),
        nodes: core.settings().nodes.len(),
    };
    events::acquired(log, (lock, keys), won);
    Ok(())
}

/// Releases the lock, and waits for the answers for at most [`LAST_WAIT`]. A node that comes back
/// in this time still gets its release.
pub fn release_and_report(
    event_loop: &mut EventLoop,
    lock: Lock,
    reports: &mut Reports,
) -> Result<ReleaseOutcome, Refusal> {
    let end = clock::now().saturating_add(LAST_WAIT);
    reports.presence.not_held(event_loop);
    let op = event_loop.engine.release(lock, 0);
    let mut outcome = None;
    event_loop.settle_until(end, |engine| {
        outcome = outcome.or_else(|| ended(engine, op));
        outcome.is_some()
    })?;
    let unsettled: NodeSet = event_loop.unsettled().collect();
    let released = outcome.unwrap_or(ReleaseOutcome::Unconfirmed { nodes: unsettled });
    let core = event_loop.engine.coordinator();
    events::released(&mut reports.log, released, unsettled, core);
    if was_lost(released) {
        reports.presence.lost(event_loop);
    }
    reports.presence.count(event_loop);
    Ok(released)
}

/// Whether the lock had ended before it was released, although no renewal had noticed the loss.
pub fn was_lost(released: ReleaseOutcome) -> bool {
    matches!(released, ReleaseOutcome::AlreadyExpired | ReleaseOutcome::TakenByOther)
}

/// The result of the release; `None` while it runs.
fn ended(engine: &mut Engine, op: Op) -> Option<ReleaseOutcome> {
    let done = std::iter::from_fn(|| engine.poll_completion()).find(|done| done.op == op)?;
    match done.result {
        Ok(Outcome::Released(released)) => Some(released),
        _ => None,
    }
}
