//! The guard of a lock that the blocking client holds.
//!
//! The hazard is a guard that outlives its lock: the lock ends at its deadline, even if the caller
//! still has the guard.

use std::cell::RefMut;
use std::fmt;
use std::time::Duration;

use super::Client;
use super::inner::{Inner, SPARE_KEYS};
use crate::net::clock;
use crate::net::engine::Engine;
use crate::net::observe::{self, Ended, Verb, Watch};
use crate::proto::error::{Error, LostReason};
use crate::proto::key_set::KeySet;
use crate::proto::lock::{self, Lock};
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::time::Instant;

/// A lock that is held. Dropping the guard releases the lock without waiting for an answer.
///
/// The drop writes the releases to the nodes that are connected, as far as their sockets take them.
/// If a node is not connected, or its connection breaks before the node has read its release, the
/// release is pending: a later call of the client sends it ([`Client::drive`] does nothing else).
/// If no call follows, the key stays on that node for its ttl.
///
/// The lock ends at its deadline, even if you still have the guard: call [`check`](Guard::check)
/// before each side effect.
///
/// A guard is neither `Send` nor `Sync`: it stays on the thread of its client, and because it
/// borrows the client, it ends before the client does. If a guard is forgotten
/// (`std::mem::forget`), its lock stays until the ttl is over, or until [`Client::close`]. A drop
/// during unwinding releases the lock, too. In a forked process the guard has no lock, and dropping
/// it does nothing.
#[must_use = "a guard that is dropped gives its lock back"]
pub struct Guard<'a> {
    client: &'a Client,
    key: Vec<u8>,
    /// The keys, if there are several.
    keys: Option<KeySet>,
    /// `None` once the lock was released.
    lock: Option<Lock>,
    /// The number under which the client records the loss of this lock.
    number: u64,
    /// The lock is or was auto-extended.
    auto_extended: bool,
}

impl<'a> Guard<'a> {
    pub(super) fn new(
        client: &'a Client,
        (key, keys): (Vec<u8>, Option<KeySet>),
        lock: Lock,
        number: u64,
        auto_extended: bool,
    ) -> Self {
        Guard { client, key, keys, lock: Some(lock), number, auto_extended }
    }

    /// The key. If the lock has several keys, the first one in the order of their bytes.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The keys, in the order of their bytes.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let one = self.keys.is_none().then_some(&self.key[..]);
        one.into_iter().chain(self.keys.iter().flat_map(|keys| keys.iter()))
    }

    /// The token that the key holds on the nodes that granted it.
    pub fn token(&self) -> lock::LockToken {
        self.lock().token()
    }

    /// The fencing number, if the lock was acquired with one
    /// ([`LockOptions::fenced`](crate::LockOptions::fenced)). It stays the same when the lock is
    /// extended, and after the lock is over. `None` for a lock over several keys: see
    /// [`fence_of`](Self::fence_of).
    pub fn fence(&self) -> Option<u64> {
        self.lock().fence()
    }

    /// The fencing number of `key`, if `key` belongs to this lock and the lock was acquired with
    /// fencing numbers.
    pub fn fence_of(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        let key = key.as_ref();
        self.fences().find(|(own, _)| *own == key).map(|(_, fence)| fence)
    }

    /// Each key with its fencing number, in the order of the bytes of the keys. Empty if the lock
    /// was acquired without fencing numbers.
    pub fn fences(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.keys().zip(self.lock().fences())
    }

    /// How much time is left until the deadline; zero once the lock is over, and in a forked
    /// process. Asks no node.
    pub fn remaining(&self) -> Duration {
        self.engine_of_this_process().remaining(self.lock())
    }

    /// When the lock ends, on the clock of [`clock::now`]; `None` once it is over, and in a forked
    /// process.
    pub fn deadline(&self) -> Option<Instant> {
        self.engine_of_this_process().deadline(self.lock())
    }

    /// Whether the lock is still held, as far as this client knows. Compares the deadline with the
    /// clock of this machine ([`clock::now`]), and returns a loss that the client already knows of.
    /// Never waits for a node. How early the client knows of a loss depends on the lock:
    ///
    /// * If it is not auto-extended, `check` reads no socket, and no node reports a write to its
    ///   key. So if another program deletes the key, or flushes the masters, `check` returns `Ok`
    ///   up to the deadline, unless an [`extend`](Guard::extend) finds the loss before.
    /// * If it is auto-extended, `check` first sends renewals that are due and reads the answers
    ///   that have arrived, at most once per millisecond. If a node reports a write to the key, the
    ///   client asks that node what the key holds, and the next `check` that finds the answer
    ///   returns the loss. So the first `check` after the write still returns `Ok`.
    ///
    /// # Errors
    /// [`Error::Lost`] once the lock is over, with the reason if the client has noticed the loss.
    pub fn check(&self) -> Result<(), Error> {
        let mut inner = self.client.inner.borrow_mut();
        let ours = inner.engine.check_fork();
        if ours && self.auto_extended {
            inner.turn_for_auto_extend()?;
        }
        if ours && !inner.engine.remaining(self.lock()).is_zero() {
            return Ok(());
        }
        Err(self.why_over(&mut inner, self.lock()))
    }

    /// The error for a lock that is over.
    fn why_over(&self, inner: &mut Inner, lock: &Lock) -> Error {
        if inner.engine.check_fork() {
            // An earlier call may have found the loss without recording it in `notices`.
            inner.take_completions();
        }
        let core = inner.engine.coordinator();
        let known = inner.notices.loss(self.number);
        known.unwrap_or_else(|| core.not_held(lock, &self.key, clock::now()))
    }

    /// Whether the lock is held and near its deadline: less time is left than a third of the ttl
    /// that was requested last, or, if the lock is auto-extended, than [`AutoExtend::warn_before`].
    /// Reads no socket: if the lock is auto-extended, call [`check`](Guard::check) first, which
    /// sends renewals that are due.
    ///
    /// To wait for that moment, call [`Client::drive`]: it returns at the warning of an
    /// auto-extended lock ([`Client::poll_lock_update`]).
    pub fn is_expiring(&self) -> bool {
        let engine = self.engine_of_this_process();
        engine.coordinator().is_expiring(self.lock(), clock::now())
    }

    /// Renews the lock from now on, each time by its present ttl, when a third of that has passed,
    /// until the lock is released or lost, or as far as `auto_extend` allows. A plain [`Duration`]
    /// is the longest time that the lock may be held.
    ///
    /// The client has no thread of its own. It renews only inside [`check`](Guard::check), inside
    /// [`Client::drive`], and while another of its calls waits. Call one of them at least every
    /// third of the ttl. [`Client::poll_lock_update`] reports warnings and the loss; every `check`
    /// also reports the loss.
    ///
    /// # Errors
    /// Invalid terms, or [`Error::Lost`].
    pub fn auto_extend(&mut self, auto_extend: impl Into<AutoExtend>) -> Result<(), Error> {
        let mut inner = self.client.inner.borrow_mut();
        // In a forked process this call makes the engine forget its locks.
        inner.engine.check_fork();
        if inner.engine.remaining(self.lock()).is_zero() {
            return Err(self.why_over(&mut inner, self.lock()));
        }
        let lock = self.lock.as_ref().expect("it is taken only where the guard ends");
        inner.engine.auto_extend(lock, auto_extend)?;
        self.auto_extended = true;
        inner.engine.flush();
        Ok(())
    }

    /// Gives the lock away: another client takes it over with the token and [`Client::adopt`]. This
    /// client neither renews nor releases the lock any more. The lock still ends by its ttl, so
    /// pass on the token quickly.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was over.
    pub fn into_token(mut self) -> Result<lock::LockToken, Error> {
        let lock = self.lock.take().expect("it is taken only where the guard ends");
        let mut inner = self.client.inner.borrow_mut();
        let ours = inner.engine.check_fork();
        let is_over = !ours || inner.engine.remaining(&lock).is_zero();
        let error = is_over.then(|| self.why_over(&mut inner, &lock));
        let token = if ours { inner.engine.into_token(lock) } else { None };
        // The deadline may pass between the two.
        let expired = || {
            let core = inner.engine.coordinator();
            core.lost_unasked(LostReason::Expired, &self.key, clock::now())
        };
        token.ok_or_else(|| error.unwrap_or_else(expired))
    }

    /// Extends the lock to at least `ttl` from now, and never shortens it. While too few nodes
    /// answer, the client asks them again, until the present deadline.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is over. An invalid ttl changes nothing.
    pub fn extend(&mut self, ttl: Duration) -> Result<(), Error> {
        observe::call(Verb::Extend, &self.key, || {
            let mut inner = self.client.inner.borrow_mut();
            inner.reconnect_after_pause()?;
            if inner.engine.remaining(self.lock()).is_zero() {
                return Err(self.why_over(&mut inner, self.lock()));
            }
            let op = inner.engine.extend(self.lock(), ttl, 0)?;
            inner.wait_for(op).map(|_| ())
        })
    }

    /// Releases the lock, and returns the outcome. Waits for the answers of a majority, but for at
    /// most the node timeout.
    ///
    /// A lock that was lost before is no error: the outcome is then
    /// [`AlreadyExpired`](ReleaseOutcome::AlreadyExpired) or
    /// [`TakenByOther`](ReleaseOutcome::TakenByOther).
    ///
    /// The client has no thread of its own, so only its later calls, of any kind, send the pending
    /// releases to the other nodes. If no call follows, a node that was not connected, or whose
    /// connection was lost in the meantime, keeps the key until its ttl is over. If that matters,
    /// call [`Client::drive`] for a node timeout.
    ///
    /// # Errors
    /// [`Error::Busy`] if the lock was over before the call, and too many requests are in flight to
    /// ask the nodes about it.
    pub fn release(mut self) -> Result<ReleaseOutcome, Error> {
        let lock = self.lock.take().expect("it is taken only here and in drop");
        observe::call(Verb::Release, &self.key, || {
            let mut inner = self.client.inner.borrow_mut();
            if let Err(error) = inner.reconnect_after_pause() {
                inner.engine.release_nowait(&lock);
                return Err(error);
            }
            let op = match inner.engine.deadline(&lock) {
                Some(_) => inner.engine.release(lock, 0),
                // The client has no record of the lock any more, so it releases by the token, and
                // the nodes answer whether the key still holds it.
                None => match &self.keys {
                    None => inner.engine.release_token(&self.key, lock.token(), 0)?,
                    Some(keys) => inner.engine.release_token(keys, lock.token(), 0)?,
                },
            };
            match inner.wait_for(op)? {
                Outcome::Released(released) => Ok(released),
                other => unreachable!("a release ended as {other:?}"),
            }
        })
    }

    /// The engine, after it has checked for a fork: in a forked process it then has no locks.
    fn engine_of_this_process(&self) -> RefMut<'_, Engine> {
        let mut engine = RefMut::map(self.client.inner.borrow_mut(), |inner| &mut inner.engine);
        engine.check_fork();
        engine
    }

    fn lock(&self) -> &Lock {
        self.lock.as_ref().expect("it is taken only where the guard ends")
    }
}

/// One line with `{:?}`: key, token, and the time until the deadline.
impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, token) = (self.key.escape_ascii(), &self.lock().token);
        let remaining = self.remaining();
        write!(f, "Guard {{ key: \"{key}\", token: {token}, remaining: {remaining:?} }}")
    }
}

impl Ended for Guard<'_> {
    fn word(&self) -> &'static str {
        "acquired"
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // If a call of the client panicked, `inner` stays borrowed. Then nothing is released, and
        // the lock ends by its ttl.
        let watch = self.lock.is_some().then(|| Watch::begin(Verb::Release, &self.key));
        let Ok(mut inner) = self.client.inner.try_borrow_mut() else { return };
        if let Some(lock) = self.lock.take() {
            inner.engine.release_nowait(&lock);
            inner.engine.flush();
        }
        inner.notices.forget(self.number);
        if inner.spare_keys.len() < SPARE_KEYS {
            inner.spare_keys.push(std::mem::take(&mut self.key));
        }
        drop(inner);
        if let Some(watch) = watch {
            watch.ends_as_sent();
        }
    }
}
