//! The way to the lock: one attempt at once, and then the wait. A signal ends it at any moment, and
//! whatever way it ends but with the lock, nothing is left on a node that can be told.

use redlatch::{Completion, Error, Instant, Keep, Lock, LockOptions, Op, Outcome, clock};
use rustix::process::Signal;

use super::Options;
use super::events;
use super::signals::{Caught, Signals};
use super::terminal::stop_ourselves;
use super::voice::Voice;
use crate::news;
use crate::turning::Turning;

/// What the wait came to.
#[derive(Debug)]
pub enum Waited {
    Held(Lock),
    /// A signal ended it.
    EndedBy(Signal),
}

/// Gets the lock.
pub fn wait_for_lock(
    turning: &mut Turning,
    signals: &mut Signals,
    options: &Options,
    keep: Keep,
    voice: &mut Voice,
) -> Result<Waited, Error> {
    let timing = &options.timing;
    let give_up_at = timing.longest_wait().map(|wait| clock::now().saturating_add(wait));
    let waited = gather_and_try(turning, signals, options, keep, give_up_at, voice);
    if !matches!(waited, Ok(Waited::Held(_))) {
        turning.settle(timing.node_timeout)?;
    }
    waited
}

fn gather_and_try(
    turning: &mut Turning,
    signals: &mut Signals,
    options: &Options,
    keep: Keep,
    give_up_at: Option<Instant>,
    voice: &mut Voice,
) -> Result<Waited, Error> {
    let mut ended_by = None;
    turning.gather(|_| {
        ended_by = ended_by.or_else(|| ending_signal(signals));
        ended_by.is_some()
    })?;
    if let Some(signal) = ended_by {
        return Ok(Waited::EndedBy(signal));
    }
    let lock_options = LockOptions::once(options.timing.ttl).keep(keep);
    // What keeps us waiting is told, so the first attempt is one of its own.
    let passing = match attempt(turning, signals, options, lock_options, voice)? {
        Ok(waited) => return Ok(waited),
        Err(error) => error,
    };
    let passes = matches!(passing, Error::Contended(_) | Error::NoQuorum(_) | Error::Expired(_));
    let lock_options = match give_up_at {
        _ if !passes => return Err(passing),
        Some(moment) if clock::now() >= moment => return Err(passing),
        Some(moment) => lock_options.wait_until(moment),
        None => lock_options.wait_for_ever(),
    };
    events::waiting(voice, &passing);
    attempt(turning, signals, options, lock_options, voice)?
}

/// Asks once, with the wait of the options: the outer error is the system's.
fn attempt(
    turning: &mut Turning,
    signals: &mut Signals,
    options: &Options,
    lock_options: LockOptions,
    voice: &mut Voice,
) -> Result<Result<Waited, Error>, Error> {
    let op = turning.engine.acquire(&options.key.key, lock_options, 0)?;
    loop {
        if let Some(result) = end_of(turning, op) {
            return Ok(match result {
                Ok(Outcome::Acquired(lock)) => Ok(Waited::Held(lock)),
                Ok(other) => unreachable!("an acquire ended as {other:?}"),
                Err(error) => Err(error),
            });
        }
        if let Some(signal) = ending_signal(signals) {
            turning.engine.cancel(op);
            return Ok(Ok(Waited::EndedBy(signal)));
        }
        turning.turn(None)?;
        news::lines(turning).iter().for_each(|line| voice.mention(line));
    }
}

fn end_of(turning: &mut Turning, op: Op) -> Option<Result<Outcome, Error>> {
    let completions = std::iter::from_fn(|| turning.engine.poll_completion());
    completions.filter(|done| done.op == op).map(|Completion { result, .. }| result).next()
}

/// The signal that ends redlatch, if one came. One that stops it does so here.
fn ending_signal(signals: &mut Signals) -> Option<Signal> {
    let caught = signals.caught();
    if caught.iter().any(|caught| caught.signal == Signal::TSTP) {
        stop_ourselves();
    }
    caught.iter().find(|caught| Caught::ends(caught)).map(|caught| caught.signal)
}
