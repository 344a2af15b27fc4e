//! The way to the lock: one attempt at once, and then the wait. A signal ends it at any moment.
//! However it ends without the lock, nothing is left on a node that can be reached.

use redlatch::{AutoExtend, Error, Lock, LockOptions, clock};
use rustix::process::Signal;

use super::events;
use super::signals::{Caught, Signals};
use super::stderr_log::StderrLog;
use super::terminal::stop_ourselves;
use crate::arguments::Timing;
use crate::event_loop::EventLoop;
use crate::lock_wait::{Patience, for_lock};
use crate::node_events;

/// How the wait ended.
#[derive(Debug)]
pub enum Waited {
    Held(Lock),
    /// A signal ended it.
    EndedBy(Signal),
}

/// Acquires the lock.
pub fn wait_for_lock(
    event_loop: &mut EventLoop,
    signals: &mut Signals,
    (key, timing): (&str, &Timing),
    keep: AutoExtend,
    log: &mut StderrLog,
) -> Result<Waited, Error> {
    let waited = gather_and_try(event_loop, signals, (key, timing), keep, log);
    if !matches!(waited, Ok(Waited::Held(_))) {
        event_loop.settle(timing.node_timeout)?;
    }
    waited
}

fn gather_and_try(
    event_loop: &mut EventLoop,
    signals: &mut Signals,
    (key, timing): (&str, &Timing),
    keep: AutoExtend,
    log: &mut StderrLog,
) -> Result<Waited, Error> {
    let give_up_at = timing.longest_wait().map(|wait| clock::now().saturating_add(wait));
    let mut ended_by = None;
    event_loop.gather(|_| {
        ended_by = ended_by.or_else(|| ending_signal(signals));
        ended_by.is_some()
    })?;
    if let Some(signal) = ended_by {
        return Ok(Waited::EndedBy(signal));
    }
    let once = LockOptions::once(timing.ttl).auto_extend(keep);
    let mut patience = Patience::new(timing.no_quorum_wait);
    let mut wait = |event_loop: &mut EventLoop, until, log: &mut StderrLog| {
        let waited = for_lock(event_loop, key, once, until, &mut patience, |event_loop| {
            node_events::lines(event_loop).iter().for_each(|line| log.mention(line));
            ending_signal(signals).map_or(Ok(None), Err)
        });
        waited.map(|held| held.map_or_else(Waited::EndedBy, Waited::Held))
    };
    // The reason for the wait is reported, so the first attempt is a request of its own.
    let passing = match wait(event_loop, Some(clock::now()), log) {
        Ok(waited) => return Ok(waited),
        Err(error) => error,
    };
    let passes = matches!(passing, Error::Contended(_) | Error::NoQuorum(_) | Error::Expired(_));
    let is_over = give_up_at.is_some_and(|moment| clock::now() >= moment);
    if !passes || is_over {
        return Err(passing);
    }
    events::waiting(log, &passing);
    wait(event_loop, give_up_at, log)
}

/// The signal that ends redlatch, if one came. A signal that stops redlatch stops it here.
fn ending_signal(signals: &mut Signals) -> Option<Signal> {
    let caught = signals.caught();
    if caught.iter().any(|caught| caught.signal == Signal::TSTP) {
        stop_ourselves();
    }
    caught.iter().find(|caught| Caught::ends(caught)).map(|caught| caught.signal)
}
