//! A holder's view of its lock: how long it may be believed in, whether it was lost, and a future
//! that ends with the lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::inner::Inner;
use super::lock_state::LockState;
use super::park;
use crate::net::clock;
use crate::proto::error::{ClosedReason, Error, LostReason};
use crate::proto::key_set::KeySet;
use crate::proto::lock::{self, Lock};
use crate::proto::time::Instant;

/// A view of a lock that a [`SharedGuard`](super::SharedGuard) holds.
///
/// It shows the sum of the updates of the lock ([`LockUpdate`](crate::LockUpdate)).
///
/// A watcher may outlive the guard: it neither keeps nor releases the lock. Once the lock is
/// released, given away or lost, it is over for all its watchers.
///
/// A watcher is `Clone`, `Send` and `Sync`: give it to any code that acts under the lock. All its
/// reads are local. In a forked process the lock is over.
pub struct LockWatcher {
    inner: Arc<Inner>,
    lock_state: Arc<LockState>,
    lock: Lock,
}

impl LockWatcher {
    pub(super) fn new(inner: Arc<Inner>, lock_state: Arc<LockState>, lock: Lock) -> LockWatcher {
        LockWatcher { inner, lock_state, lock }
    }

    /// The key. Of a lock over several keys the first one in the order of the bytes.
    pub fn key(&self) -> &[u8] {
        self.lock_state.key()
    }

    /// The keys, in the order of their bytes.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        let set = self.lock_state.set();
        let one = set.is_none().then(|| self.key());
        one.into_iter().chain(set.into_iter().flat_map(KeySet::iter))
    }

    /// The token that the key holds on the nodes that granted it.
    pub fn token(&self) -> lock::LockToken {
        self.lock.token()
    }

    /// The fencing number, if the lock was acquired with one
    /// ([`LockOptions::fenced`](crate::LockOptions::fenced)). It stays the same when the lock is
    /// extended, and after the lock is over. `None` for a lock over several keys: see
    /// [`fence_of`](Self::fence_of).
    pub fn fence(&self) -> Option<u64> {
        self.lock.fence()
    }

    /// The fencing number of this key, if the lock was acquired with one for each of its keys and
    /// this is one of them.
    pub fn fence_of(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        let key = key.as_ref();
        self.fences().find(|(own, _)| *own == key).map(|(_, fence)| fence)
    }

    /// Each key with its fencing number, in the order of the bytes of the keys; nothing if the lock
    /// was acquired without them.
    pub fn fences(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.keys().zip(self.lock.fences())
    }

    /// How long the lock may still be believed in; zero once it is over.
    pub fn remaining(&self) -> Duration {
        let deadline = self.deadline();
        deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_since(clock::now()))
    }

    /// When the lock ends, on the clock of [`clock::now`]; `None` once it was released or is known
    /// to be lost.
    pub fn deadline(&self) -> Option<Instant> {
        if self.inner.is_over() { None } else { self.lock_state.deadline() }
    }

    /// Whether the lock is still held: call it before each side effect.
    ///
    /// # Errors
    /// [`Error::Lost`] once the lock is over, with the reason if it is known; [`Error::Closed`] if
    /// the client is closed.
    pub fn check(&self) -> Result<(), Error> {
        if self.remaining().is_zero() {
            let error = if self.inner.is_ours() { self.lock_state.error() } else { None };
            return Err(error.unwrap_or_else(|| self.is_over()));
        }
        Ok(())
    }

    /// Whether the lock is auto-extended, comes near its deadline, and was not renewed yet: it is
    /// renewed still, or lost soon ([`AutoExtend::warn_before`](crate::AutoExtend::warn_before)).
    pub fn is_expiring(&self) -> bool {
        self.lock_state.was_warned()
    }

    /// A future that ends when the lock does, before the deadline, and returns why. A lock that is
    /// released or given away is over, too.
    ///
    /// The loss of a lock that is not renewed is reported in the same way, from the first call on.
    /// Such a lock is not extended.
    pub fn lost(&self) -> Lost {
        if self.lock_state.deadline().is_some() {
            // If the client is closed, the future says so.
            let _ = self.inner.with(|open| open.engine.watch(&self.lock));
        }
        Lost { watcher: self.clone(), slot: None }
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.inner
    }

    pub(super) fn lock_state(&self) -> &Arc<LockState> {
        &self.lock_state
    }

    pub(super) fn into_hold(self) -> Arc<LockState> {
        self.lock_state
    }

    /// The error for a lock that is over for no known reason.
    /// The line of `Debug`, for a type of this name.
    pub(super) fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, token) = (self.key().escape_ascii(), &self.lock.token);
        let remaining = self.remaining();
        write!(f, "{name} {{ key: \"{key}\", token: {token}, remaining: {remaining:?} }}")
    }

    fn is_over(&self) -> Error {
        let over = self.inner.with(|open| {
            open.engine.coordinator().lost_unasked(LostReason::Over, self.key(), clock::now())
        });
        over.unwrap_or_else(|closed| closed)
    }
}

impl Clone for LockWatcher {
    fn clone(&self) -> LockWatcher {
        LockWatcher::new(Arc::clone(&self.inner), Arc::clone(&self.lock_state), self.lock.alias())
    }
}

/// One line: key, token, and how long the lock may still be believed in.
impl fmt::Debug for LockWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("LockWatcher", f)
    }
}

/// The end of a lock, as a future: see [`LockWatcher::lost`]. Dropping it changes nothing.
#[derive(Debug)]
#[must_use = "it reports nothing unless it is awaited or waited for"]
pub struct Lost {
    watcher: LockWatcher,
    /// The slot of its waker.
    slot: Option<usize>,
}

impl Lost {
    /// Blocks the thread until the lock is over.
    pub fn wait(self) -> Error {
        park::wait(self)
    }
}

impl Future for Lost {
    /// Why the lock is over.
    type Output = Error;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Error> {
        let Lost { watcher, slot } = self.get_mut();
        if !watcher.inner.is_ours() {
            return Poll::Ready(Error::Closed(ClosedReason::Forked));
        }
        match watcher.lock_state.poll_end(slot, context.waker()) {
            Poll::Ready(Some(error)) => Poll::Ready(error),
            Poll::Ready(None) => Poll::Ready(watcher.is_over()),
            // No thread would wake this waiter any more.
            Poll::Pending if watcher.inner.is_over() => {
                let why = watcher.inner.with(|_| ()).err();
                Poll::Ready(why.unwrap_or(Error::Closed(ClosedReason::Asked)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.filter(|_| self.watcher.inner.is_ours()) {
            self.watcher.lock_state.forget_waker(slot);
        }
    }
}
