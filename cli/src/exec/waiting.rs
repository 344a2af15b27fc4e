//! The way to the lock: one attempt at once, and then the wait. A signal ends it at any moment.
//! However it ends without the lock, nothing is left on a node that can be reached.

use redlatch::{
    AutoExtend, Completion, Error, Lock, LockOptions, Op, Outcome, clock, clock::Instant,
};
use rustix::process::Signal;

use super::Options;
use super::events;
use super::signals::{Caught, Signals};
use super::stderr_log::StderrLog;
use super::terminal::stop_ourselves;
use crate::event_loop::{EventLoop, Patience};
use crate::holder::Holder;
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
    options: &Options,
    keep: AutoExtend,
    log: &mut StderrLog,
) -> Result<Waited, Error> {
    let timing = &options.common.timing;
    let give_up_at = timing.longest_wait().map(|wait| clock::now().saturating_add(wait));
    let waited = gather_and_try(event_loop, signals, options, keep, give_up_at, log);
    if !matches!(waited, Ok(Waited::Held(_))) {
        event_loop.settle(timing.node_timeout)?;
    }
    waited
}

fn gather_and_try(
    event_loop: &mut EventLoop,
    signals: &mut Signals,
    options: &Options,
    keep: AutoExtend,
    give_up_at: Option<Instant>,
    log: &mut StderrLog,
) -> Result<Waited, Error> {
    let mut ended_by = None;
    event_loop.gather(Patience::Prompt, |_| {
        ended_by = ended_by.or_else(|| ending_signal(signals));
        ended_by.is_some()
    })?;
    if let Some(signal) = ended_by {
        return Ok(Waited::EndedBy(signal));
    }
    let lock_options = LockOptions::once(options.common.timing.ttl).auto_extend(keep);
    // The reason for the wait is reported, so the first attempt is a request of its own.
    let passing = match attempt(event_loop, signals, options, lock_options, log)? {
        Ok(waited) => return Ok(waited),
        Err(error) => error,
    };
    let passes = matches!(passing, Error::Contended(_) | Error::NoQuorum(_) | Error::Expired(_));
    let lock_options = match give_up_at {
        _ if !passes => return Err(passing),
        Some(moment) if clock::now() >= moment => return Err(passing),
        Some(moment) => lock_options.wait_until(moment),
        None => lock_options.wait_forever(),
    };
    let holder = Holder::of(event_loop, &options.key.key, &passing);
    events::waiting(log, &passing, holder);
    attempt(event_loop, signals, options, lock_options, log)?
}

/// Makes one request, with the wait of the options. The outer error is the system's.
fn attempt(
    event_loop: &mut EventLoop,
    signals: &mut Signals,
    options: &Options,
    lock_options: LockOptions,
    log: &mut StderrLog,
) -> Result<Result<Waited, Error>, Error> {
    let op = event_loop.engine.acquire(&options.key.key, lock_options, 0)?;
    loop {
        if let Some(result) = end_of(event_loop, op) {
            return Ok(match result {
                Ok(Outcome::Acquired(lock)) => Ok(Waited::Held(lock)),
                Ok(other) => unreachable!("an acquire ended as {other:?}"),
                Err(error) => Err(error),
            });
        }
        if let Some(signal) = ending_signal(signals) {
            event_loop.engine.cancel(op);
            return Ok(Ok(Waited::EndedBy(signal)));
        }
        event_loop.turn(None)?;
        node_events::lines(event_loop).iter().for_each(|line| log.mention(line));
    }
}

fn end_of(event_loop: &mut EventLoop, op: Op) -> Option<Result<Outcome, Error>> {
    let completions = std::iter::from_fn(|| event_loop.engine.poll_completion());
    completions.filter(|done| done.op == op).map(|Completion { result, .. }| result).next()
}

/// The signal that ends redlatch, if one came. A signal that stops redlatch stops it here.
fn ending_signal(signals: &mut Signals) -> Option<Signal> {
    let caught = signals.caught();
    if caught.iter().any(|caught| caught.signal == Signal::TSTP) {
        stop_ourselves();
    }
    caught.iter().find(|caught| Caught::ends(caught)).map(|caught| caught.signal)
}
