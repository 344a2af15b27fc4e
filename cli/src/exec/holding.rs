//! What is done with a lock that is held, besides renewing it: it is reported, and given back.

use std::time::Duration;

use redlatch::{Lock, Outcome, ReleaseOutcome, clock, clock::Instant};

use super::events;
use super::log::Log;
use super::reports::Reports;
use crate::event_loop::EventLoop;
use crate::output::Refusal;

/// How long to wait for the answers of the nodes beyond the majority, which are only counted.
const STRAGGLERS: Duration = Duration::from_millis(10);

/// Reports a lock that was acquired. The acquire did not wait for the nodes beyond the majority;
/// the event says how many nodes hold the lock, so their answers may still come in.
pub fn report(
    event_loop: &mut EventLoop,
    lock: &Lock,
    begun: Instant,
    log: &mut Log,
) -> Result<(), Refusal> {
    event_loop.settle(STRAGGLERS)?;
    let core = event_loop.engine.coordinator();
    let won = events::Won {
        remaining: event_loop.engine.remaining(lock),
        elapsed: clock::now().saturating_since(begun),
        granted: core.holders(lock).len(),
        nodes: core.settings().nodes.len(),
    };
    events::acquired(log, lock, won);
    Ok(())
}

/// Releases the lock; takes at most one node timeout.
pub fn give_back(
    event_loop: &mut EventLoop,
    lock: Lock,
    reports: &mut Reports,
) -> Result<ReleaseOutcome, Refusal> {
    let node_timeout = event_loop.engine.coordinator().settings().node_timeout;
    let end = clock::now().saturating_add(node_timeout);
    reports.presence.not_held(event_loop);
    let op = event_loop.engine.release(lock, 0);
    let released = match event_loop.end_of(op)? {
        Outcome::Released(released) => released,
        other => unreachable!("a release ended as {other:?}"),
    };
    // Waits also for the nodes that were not needed to confirm the release.
    event_loop.settle(end.saturating_since(clock::now()))?;
    events::released(&mut reports.log, released, event_loop.engine.coordinator());
    reports.presence.count(event_loop);
    Ok(released)
}
