//! A holder's view of its lock: how long it may be believed in, whether it was lost, and a future
//! that ends with the lock.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::inner::Inner;
use super::lock_state::{Awaited, LockState};
use super::open::Open;
use super::park;
use crate::net::clock;
use crate::proto::error::{ClosedReason, Error};
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
        self.left().map(|_| ())
    }

    /// Whether the client warned that the lock comes near its deadline and was not extended since:
    /// unless an extend still succeeds, it is lost soon. The client warns of a lock that is
    /// auto-extended
    /// ([`AutoExtend::warn_before`](crate::AutoExtend::warn_before)), and of any other from the
    /// first call of [`expiring`](LockWatcher::expiring) on. A lock that is over is not expiring.
    pub fn is_expiring(&self) -> bool {
        self.deadline().is_some() && self.lock_state.was_warned()
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
        Lost(Waiting { watcher: self.clone(), slot: None })
    }

    /// A future that is ready when the client warns that the lock comes near its deadline, and
    /// returns how long the lock may still be believed in, more than zero. If the lock ends before,
    /// the future returns why.
    ///
    /// The client warns at these moments, as the core does for
    /// [`LockUpdateKind::Expiring`](crate::LockUpdateKind::Expiring):
    ///
    /// * of a lock that is auto-extended, [`warn_before`](crate::AutoExtend::warn_before) the
    ///   deadline (a third of the ttl unless set), if no renewal succeeded until then: too few
    ///   nodes answer, or the bound of the auto-extension is reached. Renewals are still tried;
    /// * of any other lock, a third of its ttl before the deadline. This ttl is the one that was
    ///   asked for last before the first call of `expiring` or [`lost`](LockWatcher::lost).
    ///
    /// A lock that is renewed or extended in time has no warning. A later deadline takes a warning
    /// back: the futures wait for the next one, also a future that was woken and not polled yet. If
    /// an extend sets a deadline so near that its own warning would be due, there is no second
    /// warning. While a warning holds, each new future is ready at once.
    ///
    /// Dropping the future changes nothing, so it can stand in a `select!`. It is `Send`, works on
    /// any runtime, and does not keep the lock.
    ///
    /// ```no_run
    /// # async fn example(locks: redlatch::SharedClient) -> Result<(), redlatch::Error> {
    /// # use std::time::Duration;
    /// let mut guard = locks.lock("invoice:42", Duration::from_secs(30)).await?;
    /// let left = guard.expiring().await?; // about 10 s before the deadline
    /// println!("{left:?} are left");
    /// guard.extend(Duration::from_secs(30)).await?;
    /// guard.check()?;
    /// # Ok(())
    /// # }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// The future returns [`Error::Lost`] if the lock ended before a warning, released or given
    /// away included; [`Error::Closed`] if the client is closed, and in a forked process.
    pub fn expiring(&self) -> Expiring {
        if self.lock_state.deadline().is_some() {
            // If the client is closed, the future says so.
            let _ = self.inner.with(|open| open.engine.watch_with_warning(&self.lock));
        }
        Expiring(Waiting { watcher: self.clone(), slot: None })
    }

    /// How long the lock may still be believed in, more than zero; or why it is over.
    fn left(&self) -> Result<Duration, Error> {
        let left = self.remaining();
        if !left.is_zero() {
            return Ok(left);
        }
        // The driver may be about to pass on a later deadline.
        let again = self.inner.with(|open| {
            open.pass_on_results();
            let left = self.remaining();
            if left.is_zero() { Err(self.why_over(open)) } else { Ok(left) }
        });
        again.unwrap_or_else(|closed| Err(self.why_closed(closed)))
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// The lock, to name it to the engine.
    pub(super) fn lock(&self) -> &Lock {
        &self.lock
    }

    pub(super) fn lock_state(&self) -> &Arc<LockState> {
        &self.lock_state
    }

    pub(super) fn into_hold(self) -> Arc<LockState> {
        self.lock_state
    }

    /// The line of `Debug`, for a type of this name.
    pub(super) fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, token) = (self.key().escape_ascii(), &self.lock.token);
        let remaining = self.remaining();
        write!(f, "{name} {{ key: \"{key}\", token: {token}, remaining: {remaining:?} }}")
    }

    /// The error for a lock that is over.
    fn is_over(&self) -> Error {
        let error = self.inner.with(|open| self.why_over(open));
        error.unwrap_or_else(|closed| self.why_closed(closed))
    }

    /// The error for a lock of a closed client: what ended the lock before that stays its reason.
    fn why_closed(&self, closed: Error) -> Error {
        let known = if self.inner.is_ours() { self.lock_state.error() } else { None };
        known.unwrap_or(closed)
    }

    /// The error for a lock that is over. The client's mutex is locked: otherwise the driver could
    /// end the lock after the look at its state and before the look at its record.
    pub(super) fn why_over(&self, open: &mut Open<'_>) -> Error {
        open.pass_on_results();
        let core = open.engine.coordinator();
        let known = self.lock_state.error();
        known.unwrap_or_else(|| core.not_held(&self.lock, self.key(), clock::now()))
    }

    /// The result of a call that needs a lock that is held. If the lock is over, the error says
    /// why.
    pub(super) fn or_why_over<T>(
        &self,
        result: Result<T, Error>,
        open: &mut Open<'_>,
    ) -> Result<T, Error> {
        result.map_err(|error| match error {
            Error::Lost { .. } => self.why_over(open),
            error => error,
        })
    }
}

impl Clone for LockWatcher {
    fn clone(&self) -> LockWatcher {
        LockWatcher::new(Arc::clone(&self.inner), Arc::clone(&self.lock_state), self.lock.alias())
    }
}

/// One line with `{:?}`: key, token, and how long the lock may still be believed in.
impl fmt::Debug for LockWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_as("LockWatcher", f)
    }
}

/// The end of a lock, as a future: see [`LockWatcher::lost`]. Dropping it changes nothing.
#[derive(Debug)]
#[must_use = "it reports nothing unless it is awaited or waited for"]
pub struct Lost(Waiting);

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
        let ended = self.get_mut().0.poll(Awaited::End, context);
        ended.map(|ended| ended.expect_err("it waits for the end alone"))
    }
}

/// The warning before the end of a lock, as a future: see [`LockWatcher::expiring`]. Dropping it
/// changes nothing.
#[derive(Debug)]
#[must_use = "it reports nothing unless it is awaited or waited for"]
pub struct Expiring(Waiting);

impl Expiring {
    /// Blocks the thread until the warning, or until the lock is over.
    ///
    /// # Errors
    /// As [`LockWatcher::expiring`].
    pub fn wait(self) -> Result<Duration, Error> {
        park::wait(self)
    }
}

impl Future for Expiring {
    /// How long the lock may still be believed in, or why it is over.
    type Output = Result<Duration, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Duration, Error>> {
        let waiting = &mut self.get_mut().0;
        let warned = waiting.poll(Awaited::Warning, context);
        warned.map(|warned| warned.and_then(|()| waiting.watcher.left()))
    }
}

/// A future that waits for something to happen to its lock.
#[derive(Debug)]
struct Waiting {
    watcher: LockWatcher,
    /// The slot of its waker.
    slot: Option<usize>,
}

impl Waiting {
    /// Ready when what it waits for has come; with an error if the lock is over.
    fn poll(&mut self, what: Awaited, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Waiting { watcher, slot } = self;
        if !watcher.inner.is_ours() {
            return Poll::Ready(Err(Error::Closed(ClosedReason::Forked)));
        }
        match watcher.lock_state.poll(what, slot, context.waker()) {
            Poll::Ready(came) => {
                Poll::Ready(came.map_err(|error| error.unwrap_or_else(|| watcher.is_over())))
            }
            // No thread would wake this waiter any more.
            Poll::Pending if watcher.inner.is_over() => {
                let why = watcher.inner.with(|_| ()).err();
                Poll::Ready(Err(why.unwrap_or(Error::Closed(ClosedReason::Asked))))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.filter(|_| self.watcher.inner.is_ours()) {
            self.watcher.lock_state.forget_waker(slot);
        }
    }
}
