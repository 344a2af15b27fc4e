//! Acquires the lock: makes one attempt immediately, and then waits. A signal can end the wait at
//! any moment. If the wait ends without the lock, the releases of what was granted are sent, so no
//! node that can be reached keeps a key.

use redlatch::{Error, KeySet, Lock, LockOptions, clock};

use super::events;
use super::reports::Reports;
use crate::arguments::Timing;
use crate::event_loop::{EventLoop, Patience};
use crate::holder::Holder;
use crate::lock_wait::{QuorumPatience, for_lock};

/// How the wait ended.
#[derive(Debug)]
pub enum Waited<S> {
    Held(Lock),
    /// The caller's `stop` ended the wait: because of a signal, for example.
    Stopped(S),
}

/// Acquires the lock, each attempt with the options `once`, until `stop` returns a reason to end.
pub fn wait_for_lock<S>(
    event_loop: &mut EventLoop,
    stop: &mut impl FnMut() -> Option<S>,
    (keys, timing, once): (&KeySet, &Timing, LockOptions),
    reports: &mut Reports,
) -> Result<Waited<S>, Error> {
    let waited = gather_and_try(event_loop, stop, (keys, timing, once), reports);
    if !matches!(waited, Ok(Waited::Held(_))) {
        event_loop.settle(timing.node_timeout)?;
        reports.presence.count(event_loop);
    }
    waited
}

fn gather_and_try<S>(
    event_loop: &mut EventLoop,
    stop: &mut impl FnMut() -> Option<S>,
    (keys, timing, once): (&KeySet, &Timing, LockOptions),
    reports: &mut Reports,
) -> Result<Waited<S>, Error> {
    let give_up_at = timing.longest_wait().map(|wait| clock::now().saturating_add(wait));
    let mut stopped = None;
    event_loop.gather(Patience::Prompt, |_| {
        stopped = stop();
        stopped.is_some()
    })?;
    if let Some(reason) = stopped {
        return Ok(Waited::Stopped(reason));
    }
    let mut patience = QuorumPatience::new(timing.no_quorum_wait);
    let mut wait = |event_loop: &mut EventLoop, until, reports: &mut Reports| {
        let waited = for_lock(event_loop, keys, once, until, &mut patience, |event_loop| {
            let wakes_at = reports.turn(event_loop);
            stop().map_or(Ok(wakes_at), Err)
        });
        waited.map(|held| held.map_or_else(Waited::Stopped, Waited::Held))
    };
    // The first attempt is a request of its own, so that the reason why it failed can be reported
    // before the wait.
    let passing = match wait(event_loop, Some(clock::now()), reports) {
        Ok(waited) => return Ok(waited),
        Err(error) => error,
    };
    let passes = matches!(passing, Error::Contended(_) | Error::NoQuorum(_) | Error::Expired(_));
    let is_over = give_up_at.is_some_and(|moment| clock::now() >= moment);
    if !passes || is_over {
        return Err(passing);
    }
    let holder = Holder::of(event_loop, &passing);
    events::waiting(&mut reports.log, &passing, holder);
    reports.presence.waiting();
    wait(event_loop, give_up_at, reports)
}
