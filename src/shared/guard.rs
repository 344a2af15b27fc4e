//! The guard of a lock that a shared client holds.
//!
//! The hazard is a guard that outlives its lock: the protection ends at the deadline, even if the
//! holder still has the guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Owner;
use super::call::{Answering, Call, Question, sealed};
use super::lock_state::LockState;
use super::open::Open;
use super::watcher::{Expiring, LockWatcher, Lost};
use crate::net::clock;
use crate::net::observe::{Ended, Verb, Watch};
use crate::proto::error::{Error, LostReason};
use crate::proto::ids::Op;
use crate::proto::key_set::KeySet;
use crate::proto::lock::{self, Lock};
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::time::Instant;

/// A lock that is held. Dropping the guard releases the lock and never blocks.
///
/// The releases are written. Those that the sockets do not take now, and those to a node that is
/// not connected, the driver sends later, as long as there is a client.
///
/// The state of the lock can be read here, and through any number of
/// [`watchers`](SharedGuard::watcher), which do not hold the lock.
///
/// A guard is `Send` and `Sync`, and keeps its client alive. If a panic unwinds through it, the
/// lock is released. In a forked process a guard does nothing to the parent's lock.
#[must_use = "a guard that is dropped gives its lock back"]
pub struct SharedGuard {
    owner: Arc<Owner>,
    /// `None` once its state was put back for the next guard.
    watcher: Option<LockWatcher>,
    /// The lock was not given away.
    holds: bool,
}

impl SharedGuard {
    /// The guard of a lock that a call was granted. It keeps the place of the call.
    pub(super) fn of(
        at: Answering<'_, '_>,
        keys: (&[u8], Option<&KeySet>),
        lock: Lock,
    ) -> SharedGuard {
        let Answering { owner, open, place } = at;
        let lock_state = open.hold(place, keys, &lock);
        let watcher = LockWatcher::new(Arc::clone(&owner.inner), lock_state, lock);
        SharedGuard { owner: Arc::clone(owner), watcher: Some(watcher), holds: true }
    }

    /// The guard of the lock of a leader's term.
    pub(super) fn of_term(owner: &Arc<Owner>, lock_state: Arc<LockState>, lock: Lock) -> Self {
        let watcher = LockWatcher::new(Arc::clone(&owner.inner), lock_state, lock);
        SharedGuard { owner: Arc::clone(owner), watcher: Some(watcher), holds: true }
    }

    /// What the handles of its client share.
    pub(super) fn owner(&self) -> &Arc<Owner> {
        &self.owner
    }

    /// A view of the lock, for any code that acts under it.
    pub fn watcher(&self) -> LockWatcher {
        self.view().clone()
    }

    /// Renews the lock from now on, by its present ttl and at a third of it, until it is released
    /// or lost, or as far as `auto_extend` allows. A plain [`Duration`] is the longest time that
    /// the lock may be held. The driver renews it. [`check`](LockWatcher::check) and
    /// [`lost`](LockWatcher::lost) report a loss.
    ///
    /// # Errors
    /// Invalid terms, [`Error::Lost`], or [`Error::Closed`].
    pub fn auto_extend(&mut self, auto_extend: impl Into<AutoExtend>) -> Result<(), Error> {
        let (view, auto_extend) = (self.view(), auto_extend.into());
        view.inner().with(|open| {
            let begun = open.auto_extend(view.lock(), auto_extend, view.lock_state());
            view.or_why_over(begun, open)
        })?
    }

    /// Extends the lock to at least `ttl` from now; never shortens it. While too few nodes answer,
    /// the client asks them again, up to the deadline that is in force.
    ///
    /// # Errors
    /// The call ends with [`Error::Lost`] if the lock is over. An invalid ttl changes nothing.
    pub fn extend(&mut self, ttl: Duration) -> Call<Extend<'_>> {
        Call::new(&Arc::clone(&self.owner), Extend { guard: self, ttl })
    }

    /// Releases the lock, and returns the result when a majority has released it, or at the node
    /// timeout. The driver sends the pending releases to the other nodes.
    ///
    /// A lock that was lost before is no error: the outcome is then
    /// [`AlreadyExpired`](ReleaseOutcome::AlreadyExpired) or
    /// [`TakenByOther`](ReleaseOutcome::TakenByOther).
    ///
    /// # Errors
    /// The call ends with [`Error::Busy`] if the lock was over before and there is no room for the
    /// request that asks the nodes, and with [`Error::Closed`].
    pub fn release(self) -> Call<Release> {
        Call::new(&Arc::clone(&self.owner), Release { guard: self, shared: None })
    }

    /// Gives the lock away: another client takes it up with the token and
    /// [`adopt`](super::SharedClient::adopt). This client neither renews nor releases it any more.
    /// The ttl goes on running, so hand the token over quickly.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was over, [`Error::Closed`] if the client was closed.
    pub fn into_token(mut self) -> Result<lock::LockToken, Error> {
        self.holds = false;
        let view = self.view();
        view.inner().with(|open| {
            let lock = view.lock().alias();
            // Only the record of the lock knows the reason, and `into_token` ends it.
            let is_over = open.engine.remaining(&lock).is_zero();
            let error = is_over.then(|| view.why_over(open));
            let token = open.engine.into_token(lock);
            open.end_lock(view.lock_state());
            // The deadline may pass between `remaining` and `into_token`.
            let expired = || {
                let core = open.engine.coordinator();
                core.lost_unasked(LostReason::Expired, view.key(), clock::now())
            };
            token.ok_or_else(|| error.unwrap_or_else(expired))
        })?
    }
}

/// The reads of the lock, which its [`LockWatcher`] has, too.
impl SharedGuard {
    /// The key. Of a lock over several keys the first one in the order of the bytes.
    pub fn key(&self) -> &[u8] {
        self.view().key()
    }

    /// The keys, in the order of their bytes.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.view().keys()
    }

    /// The token that the key holds on the nodes that granted it.
    pub fn token(&self) -> lock::LockToken {
        self.view().token()
    }

    /// The fencing number: see [`LockWatcher::fence`].
    pub fn fence(&self) -> Option<u64> {
        self.view().fence()
    }

    /// The fencing number of this key: see [`LockWatcher::fence_of`].
    pub fn fence_of(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        self.view().fence_of(key)
    }

    /// Each key with its fencing number: see [`LockWatcher::fences`].
    pub fn fences(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.view().fences()
    }

    /// How long the lock may still be believed in; zero once it is over.
    pub fn remaining(&self) -> Duration {
        self.view().remaining()
    }

    /// When the lock ends: see [`LockWatcher::deadline`].
    pub fn deadline(&self) -> Option<Instant> {
        self.view().deadline()
    }

    /// Whether the lock is still held: call it before each side effect. A local read.
    ///
    /// # Errors
    /// As [`LockWatcher::check`].
    pub fn check(&self) -> Result<(), Error> {
        self.view().check()
    }

    /// Whether the lock is lost soon, unless it is extended: see [`LockWatcher::is_expiring`].
    pub fn is_expiring(&self) -> bool {
        self.view().is_expiring()
    }

    /// A future that ends when the lock does, and returns why: see [`LockWatcher::lost`].
    pub fn lost(&self) -> Lost {
        self.view().lost()
    }

    /// A future that is ready when the lock comes near its deadline, and returns how long the lock
    /// may still be believed in: see [`LockWatcher::expiring`].
    ///
    /// # Errors
    /// As [`LockWatcher::expiring`].
    pub fn expiring(&self) -> Expiring {
        self.view().expiring()
    }

    /// The guard's own view of the lock.
    pub(super) fn view(&self) -> &LockWatcher {
        self.watcher.as_ref().expect("it is taken only where the guard ends")
    }

    /// The guard is over: its lock is released if it holds one. What this returns has to be dropped
    /// after the client's mutex is unlocked.
    #[must_use]
    fn retire(&mut self, open: &mut Open<'_>) -> Option<Arc<LockState>> {
        let watcher = self.watcher.take()?;
        if self.holds {
            open.engine.release_nowait(watcher.lock());
        }
        let lock_state = watcher.into_hold();
        open.end_lock(&lock_state);
        open.put_back(lock_state)
    }
}

/// One line with `{:?}`: key, token, and how long the lock may still be believed in.
impl fmt::Debug for SharedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt_as("SharedGuard", f)
    }
}

impl Ended for SharedGuard {
    fn word(&self) -> &'static str {
        "acquired"
    }
}

impl Drop for SharedGuard {
    fn drop(&mut self) {
        let Some(watcher) = &self.watcher else { return };
        let lock_state = watcher.lock_state();
        // A lock that was released has no deadline any more.
        let held = self.holds && lock_state.deadline().is_some();
        let watch = held.then(|| Watch::begin(Verb::Release, lock_state.key()));
        let owner = Arc::clone(&self.owner);
        // Once the client is closed, its locks are over.
        let _ = owner.inner.with(|open| self.retire(open));
        if let Some(watch) = watch {
            watch.ends_as_sent();
        }
    }
}

/// The call of [`SharedGuard::extend`].
#[derive(Debug)]
pub struct Extend<'a> {
    guard: &'a SharedGuard,
    ttl: Duration,
}

impl Question for Extend<'_> {}

impl sealed::Asked for Extend<'_> {
    const VERB: Option<Verb> = Some(Verb::Extend);

    type Answer = ();

    fn key(&self) -> &[u8] {
        self.guard.key()
    }

    fn ask(&self, _: &[u8], open: &mut Open<'_>, data: u64) -> Result<Op, Error> {
        let asked = open.engine.extend(self.guard.view().lock(), self.ttl, data);
        self.guard.view().or_why_over(asked, open)
    }

    fn answer(&self, _: Answering<'_, '_>, outcome: Outcome) {
        // The new deadline is an update of the lock, which has reached the state before.
        match outcome {
            Outcome::Extended { .. } => {}
            other => unreachable!("an extend ended as {other:?}"),
        }
    }
}

/// The call of [`SharedGuard::release`].
#[derive(Debug)]
pub struct Release {
    guard: SharedGuard,
    /// The state of the lock, if others use it, too: it may hold wakers of the user's.
    shared: Option<Arc<LockState>>,
}

impl Question for Release {}

impl sealed::Asked for Release {
    const VERB: Option<Verb> = Some(Verb::Release);

    type Answer = ReleaseOutcome;

    fn key(&self) -> &[u8] {
        self.guard.key()
    }

    fn ask(&self, key: &[u8], open: &mut Open<'_>, data: u64) -> Result<Op, Error> {
        let lock = self.guard.view().lock();
        open.end_lock(self.guard.view().lock_state());
        match open.engine.deadline(lock) {
            Some(_) => Ok(open.engine.release(lock.alias(), data)),
            // The client has no record of the lock any more: the nodes are asked whether the key
            // still holds this token.
            None => match self.guard.view().lock_state().set() {
                None => open.engine.release_token(key, lock.token(), data),
                Some(keys) => open.engine.release_token(keys, lock.token(), data),
            },
        }
    }

    fn answer(&self, _: Answering<'_, '_>, outcome: Outcome) -> ReleaseOutcome {
        match outcome {
            Outcome::Released(released) => released,
            other => unreachable!("a release ended as {other:?}"),
        }
    }

    fn retire(&mut self, open: &mut Open<'_>) {
        self.shared = self.guard.retire(open);
    }
}
