//! The guard of a lock that the blocking client holds.
//!
//! The hazard is a guard that outlives its lock: what it protects ends at the deadline, whoever
//! still holds the guard.

use std::cell::RefMut;
use std::time::Duration;

use super::{Client, EVENTS};
use crate::net::clock;
use crate::net::engine::Engine;
use crate::proto::error::{Error, LostReason};
use crate::proto::keeper::AutoExtend;
use crate::proto::lock::{self, Lock};
use crate::proto::ops::Outcome;
use crate::proto::round::ReleaseOutcome;
use crate::proto::time::Instant;

/// A lock that is held. Dropping it gives it back without waiting for an answer: the releases are
/// written, as far as the nodes are connected and the sockets take them. To a node that is not, or
/// whose connection is lost before it read its release, it goes out inside a later call of the
/// client ([`Client::drive`] is one that does nothing else), and where there is none the key stays
/// there for its ttl.
///
/// What it protects ends at its deadline, whoever still holds the guard: look at
/// [`check`](Guard::check) before each side effect.
///
/// It is neither `Send` nor `Sync`: it stays on the thread of its client, and ends before it, which
/// the borrow sees to. One that is forgotten (`std::mem::forget`) leaves its lock until the ttl is
/// over, or until [`Client::close`]. Dropped in unwinding it does what it always does. In a forked
/// process it is over, and its end does nothing.
#[derive(Debug)]
#[must_use = "a guard that is dropped gives its lock back"]
pub struct Guard<'a> {
    client: &'a Client,
    key: Vec<u8>,
    /// `None` once it was given back.
    lock: Option<Lock>,
    /// Under which number its notices come, where it is kept.
    kept: Option<u64>,
}

impl<'a> Guard<'a> {
    pub(super) fn new(client: &'a Client, key: Vec<u8>, lock: Lock, kept: Option<u64>) -> Self {
        Guard { client, key, lock: Some(lock), kept }
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// What the key holds on the nodes that granted it.
    pub fn token(&self) -> lock::LockToken {
        self.lock().token()
    }

    /// How long the lock may still be believed in; zero once it is over, and in a forked process.
    /// A local read.
    pub fn remaining(&self) -> Duration {
        self.engine_of_this_process().remaining(self.lock())
    }

    /// When the lock ends, on the clock of [`clock::now`]; `None` once it is over, and in a forked
    /// process.
    pub fn deadline(&self) -> Option<Instant> {
        self.engine_of_this_process().deadline(self.lock())
    }

    /// Whether the lock is still held. A local read; of a lock that is kept it also does what is
    /// due, reads what came in, and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Lost`] once it is over, with the reason where the lock was kept.
    pub fn check(&self) -> Result<(), Error> {
        let mut inner = self.client.inner.borrow_mut();
        let ours = inner.engine.check_fork();
        if ours && self.kept.is_some() {
            inner.look_after_kept()?;
        }
        if ours && !inner.engine.remaining(self.lock()).is_zero() {
            return Ok(());
        }
        Err(self.kept.and_then(|kept| inner.notices.loss(kept)).unwrap_or_else(|| {
            let core = inner.engine.coordinator();
            core.lost_unasked(LostReason::Over, &self.key, clock::now())
        }))
    }

    /// Renews the lock from now on, by its present ttl and at a third of it: until it is released
    /// or lost, or as far as `keep` allows; a plain [`Duration`] is the longest time that it may
    /// be held.
    ///
    /// The client has no thread of its own: it renews inside [`check`](Guard::check) and inside
    /// [`Client::drive`], and while any other call of it waits. Call one of them at least every
    /// third of the ttl. Warnings and the loss are told by [`Client::poll_lock_event`], the loss
    /// also by every `check`.
    ///
    /// # Errors
    /// A `keep` that cannot be, or [`Error::Lost`].
    pub fn auto_extend(&mut self, keep: impl Into<AutoExtend>) -> Result<(), Error> {
        let mut inner = self.client.inner.borrow_mut();
        // In a forked process the engine knows of no lock from here on.
        inner.engine.check_fork();
        let number = inner.notices.next();
        let lock = self.lock.as_ref().expect("it is taken only where the guard ends");
        inner.engine.auto_extend(lock, keep, number)?;
        if let Some(former) = self.kept.replace(number) {
            inner.notices.forget(former);
        }
        inner.notices.follow(number, &self.key, lock.token());
        inner.engine.flush();
        Ok(())
    }

    /// Gives the lock away: whoever has the token takes it up with [`Client::adopt`]. It is not
    /// renewed any more, and never released here. Hurry: the ttl runs.
    ///
    /// # Errors
    /// [`Error::Lost`] where it was over.
    pub fn into_token(mut self) -> Result<lock::LockToken, Error> {
        let lock = self.lock.take().expect("it is taken only where the guard ends");
        let mut inner = self.client.inner.borrow_mut();
        let token = if inner.engine.check_fork() { inner.engine.into_token(lock) } else { None };
        token.ok_or_else(|| {
            inner.engine.coordinator().lost_unasked(LostReason::Over, &self.key, clock::now())
        })
    }

    /// Prolongs the lock to at least `ttl` from now; never shortens it. While too few nodes answer
    /// they are asked again, up to the deadline that is in force.
    ///
    /// # Errors
    /// [`Error::Lost`] when it is over; a ttl that cannot be changes nothing.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), Error> {
        let mut inner = self.client.inner.borrow_mut();
        inner.look_after_absence()?;
        let op = inner.engine.extend(self.lock(), ttl, 0)?;
        inner.wait_for(op).map(|_| ())
    }

    /// Gives the lock back, and tells what became of it. It waits for a majority, at most for the
    /// node timeout.
    ///
    /// What is owed to the other nodes then goes out inside later calls of the client, whichever
    /// they are: it has no thread of its own. A client that is not called again leaves the key on
    /// a node that was away, or whose connection was lost in the meantime, until its ttl is over;
    /// give it a [`Client::drive`] of a node timeout where that matters.
    ///
    /// # Errors
    /// [`Error::Busy`] where there is no room to ask about a lock that was over before.
    pub fn release(mut self) -> Result<ReleaseOutcome, Error> {
        let lock = self.lock.take().expect("it is taken only here and in drop");
        let mut inner = self.client.inner.borrow_mut();
        if let Err(error) = inner.look_after_absence() {
            inner.engine.release_nowait(&lock);
            return Err(error);
        }
        let op = match inner.engine.deadline(&lock) {
            Some(_) => inner.engine.release(lock, 0),
            // Its record is over, and with it the lock: whose key is it now?
            None => inner.engine.release_token(&self.key, lock.token(), 0)?,
        };
        match inner.wait_for(op)? {
            Outcome::Released(released) => Ok(released),
            other => unreachable!("a release ended as {other:?}"),
        }
    }

    /// The engine; in a forked process it has found out by now that it knows of no lock.
    fn engine_of_this_process(&self) -> RefMut<'_, Engine> {
        let mut engine = RefMut::map(self.client.inner.borrow_mut(), |inner| &mut inner.engine);
        engine.check_fork();
        engine
    }

    fn lock(&self) -> &Lock {
        self.lock.as_ref().expect("it is taken only where the guard ends")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // A panic inside a call of the client leaves it borrowed: then the ttl ends the lock.
        let Ok(mut inner) = self.client.inner.try_borrow_mut() else { return };
        if let Some(lock) = self.lock.take() {
            inner.engine.release_nowait(&lock);
            inner.engine.flush();
        }
        if let Some(kept) = self.kept {
            inner.notices.forget(kept);
        }
        if inner.spare_keys.len() < EVENTS {
            inner.spare_keys.push(std::mem::take(&mut self.key));
        }
    }
}
