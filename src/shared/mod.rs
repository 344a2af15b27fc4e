//! The client for many threads and for any async runtime: one engine, protected by a mutex, and one
//! driver.
//!
//! A call makes its request on the calling thread. If the driver sleeps, that thread also writes
//! the request; if the driver is awake, it writes the request at the end of its turn, together with
//! those of other calls. The driver waits for the sockets without the mutex. A thread that waits
//! for its own call can drive the client instead of the driver's thread: see the module `driving`.

mod bell;
mod call;
mod campaigns;
mod driving;
mod election;
mod guard;
mod inner;
mod lock_state;
mod open;
mod park;
mod requests;
mod thread;
#[cfg(feature = "tokio")]
mod tokio;
mod watcher;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use call::{Call, Question};
pub use election::{
    Campaign, Changed, Election, Look, Observed, Observer, Request, Resign, Standing, Term,
};
pub use guard::{Extend, Release, SharedGuard};
use requests::Kept;
pub use requests::{
    Acquire, Adopt, ExtendToken, ForceRelease, ForceReleaseSeen, Inspect, ReleaseToken, Vouch,
};
pub use watcher::{Expiring, LockWatcher, Lost};

use crate::config::Config;
use crate::net::clock;
use crate::proto::cluster::state::NodeState;
use crate::proto::coordinator::NodeEvent;
use crate::proto::error::{ClosedReason, Error};
use crate::proto::inspection::Inspection;
use crate::proto::keys::Keys;
use crate::proto::lock;
use crate::proto::lock_options::LockOptions;
use crate::proto::node_set::NodeId;
use crate::proto::stats::Stats;
use crate::proto::time::Instant;
use inner::Inner;

/// Distributed locks for many threads and for any async runtime.
///
/// ```no_run
/// use std::time::Duration;
/// use redlatch::{Config, Error, LockOptions, SharedClient};
///
/// async fn pay(locks: SharedClient) -> Result<(), Error> {
///     let guard = locks.lock("invoice:42", Duration::from_secs(30)).await?;
///     // ... and before each side effect:
///     guard.check()?;
///     guard.release().await?;
///     Ok(())
/// }
///
/// # fn main() -> Result<(), Error> {
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let locks = SharedClient::connect_blocking(config)?;
/// // The same from a thread:
/// let options = LockOptions::new(Duration::from_secs(30)).auto_extend(Duration::from_secs(3600));
/// let guard = locks.lock("invoice:42", options).wait()?;
/// guard.check()?;
/// drop(guard);
///
/// // From several threads: each takes a clone, and all clones are one client.
/// let threads: Vec<_> = (0..4)
///     .map(|_| {
///         let locks = locks.clone();
///         std::thread::spawn(move || {
///             let guard = locks.lock("invoice:42", Duration::from_secs(30)).wait()?;
///             guard.check()
///         })
///     })
///     .collect();
/// for thread in threads {
///     thread.join().expect("it does not panic")?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// Its calls are lazy futures ([`Call`]): nothing is sent before they are polled, and dropping one
/// cancels its request. [`Limits::records`] bounds the calls in flight and the locks; a call above
/// the limit ends with [`Error::Busy`].
///
/// [`Limits::records`]: crate::proto::settings::Limits
///
/// # Threads, processes, signals
///
/// A shared client is `Clone`, `Send` and `Sync`: all clones are one client. Calls, guards and
/// futures keep it alive. When the last of them is dropped, the pending releases are written, as
/// far as the sockets take them, and the driver ends. None of this blocks.
/// [`close`](SharedClient::close) is the orderly end.
///
/// After `fork` the client belongs to the parent: in the child every call ends as
/// [`Error::Closed`], locks are over, and no drop touches the parent's locks. A copy with the same
/// process number is not noticed: see [`Engine::check_fork`](crate::Engine::check_fork). Signals
/// interrupt nothing: the driver repeats its wait. The driver's thread handles signals as any
/// thread does. If it should not, block them before you make the client.
///
/// A thread that waits for its call ([`Call::wait`]) drives the client itself if no other thread
/// does: a call then costs no wake-up of another thread. Meanwhile that thread does what the
/// driver's thread does for other calls: it renews locks, wakes futures, and may call the function
/// of [`Config::credentials`]. After it has its answer, the driver's thread takes over within
/// milliseconds, and at once if another call waits.
///
/// No code of yours runs under the client's mutex, so no panic of yours can break it: keys are read
/// before, wakers are called and dropped after, and a panic of a waker is ignored. The one
/// exception is the function of [`Config::credentials`]: it must not use the client, which would
/// wait for itself. If the driver panics all the same, or its runtime ends, every call and every
/// lock that is extended automatically ends as [`Error::Closed`].
#[derive(Debug, Clone)]
pub struct SharedClient {
    owner: Arc<Owner>,
}

/// Clients, calls and guards share this: the client ends with the last of them.
#[derive(Debug)]
pub(crate) struct Owner {
    inner: Arc<Inner>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.inner.end(ClosedReason::Asked);
    }
}

impl SharedClient {
    /// Connects to the nodes, and starts the thread that drives the client. Waits for the nodes as
    /// [`Client::connect`](crate::Client::connect) does, on that thread: the caller's is not
    /// blocked. For any async runtime; `connect_tokio` needs no thread.
    ///
    /// Nothing happens before the first poll. If the future is dropped, the thread and its
    /// connections end, after the connect timeout at the latest.
    ///
    /// ```no_run
    /// # use redlatch::{Config, Error, SharedClient};
    /// # async fn run() -> Result<(), Error> {
    /// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let locks = SharedClient::connect(config).await?;
    /// # drop(locks);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Only for a configuration that cannot work, or if the system refuses a resource.
    pub async fn connect(config: Config) -> Result<SharedClient, Error> {
        thread::connect_there(config)?.await
    }

    /// As [`connect`](SharedClient::connect), but blocks the calling thread until there is a
    /// client: for a program without an async runtime, and before a runtime starts.
    ///
    /// # Errors
    /// As [`connect`](SharedClient::connect).
    pub fn connect_blocking(config: Config) -> Result<SharedClient, Error> {
        Ok(SharedClient::of(thread::connect(config)?))
    }

    fn of(inner: Arc<Inner>) -> SharedClient {
        SharedClient { owner: Arc::new(Owner { inner }) }
    }

    /// Takes the lock on these keys, one or several ([`Keys`]), waiting for it for 10 s, or as the
    /// options say. Several keys are one lock: all of them or none, at most 64, in any order. Two
    /// calls that name the same keys in different orders do not wait for each other.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn transfer(locks: redlatch::SharedClient) -> Result<(), redlatch::Error> {
    /// let ttl = Duration::from_secs(30);
    /// let one = locks.lock("invoice:42", ttl).await?;
    /// let both = locks.lock(["account:7", "account:9"], ttl).await?;
    /// // ... and before each side effect:
    /// both.check()?;
    /// both.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The call ends with why there is no lock: the error of the last attempt, which names a key
    /// that is held; without a request to the nodes with
    /// [`ConfigError::Keys`](crate::ConfigError::Keys) for no key or too many.
    pub fn lock<K: Keys>(&self, keys: K, options: impl Into<LockOptions>) -> Call<Acquire<K>> {
        self.acquire(keys, options.into())
    }

    /// Takes the lock on these keys, in one attempt, whatever wait the options have.
    ///
    /// # Errors
    /// As [`lock`](SharedClient::lock).
    pub fn try_lock<K: Keys>(&self, keys: K, options: impl Into<LockOptions>) -> Call<Acquire<K>> {
        self.acquire(keys, options.into().wait(Duration::ZERO))
    }

    fn acquire<K: Keys>(&self, keys: K, options: LockOptions) -> Call<Acquire<K>> {
        Call::new(&self.owner, Acquire { keys: Kept::new(keys), options })
    }

    /// Takes up the lock on these keys that was given away with `token`
    /// ([`SharedGuard::into_token`]), under a new token. If two clients try with one token, at most
    /// one of them gets the lock. Makes one attempt, whatever wait the options have.
    ///
    /// Name all keys of the lock: one that is not named stays with the old token until its ttl is
    /// over.
    ///
    /// # Errors
    /// The call ends with [`Error::Lost`] if the token does not hold all of the keys on enough
    /// nodes, and with the errors of an acquire.
    pub fn adopt<K: Keys>(
        &self,
        keys: K,
        token: lock::LockToken,
        options: impl Into<LockOptions>,
    ) -> Call<Adopt<K>> {
        let (keys, options) = (Kept::new(keys), options.into());
        Call::new(&self.owner, Adopt { keys, token, options })
    }

    /// Extends the keys, one or several, to at least `ttl` from now if they hold `token`, whichever
    /// client took them, and returns the new deadline. A node prolongs all keys or none. Nothing is
    /// released, whatever the result.
    ///
    /// # Errors
    /// The call ends with [`Error::Lost`] if the token does not hold all keys on enough nodes: of
    /// several keys, its report names one that is lost. It ends with [`Error::NoQuorum`] if too few
    /// nodes answered.
    pub fn extend_token<K: Keys>(
        &self,
        keys: K,
        token: lock::LockToken,
        ttl: Duration,
    ) -> Call<ExtendToken<K>> {
        Call::new(&self.owner, ExtendToken { keys: Kept::new(keys), token, ttl })
    }

    /// Releases the keys if they hold `token`, whichever client took them. Of several keys each is
    /// released by itself.
    ///
    /// # Errors
    /// The call ends with an error for an invalid key, or with [`Error::Busy`].
    pub fn release_token<K: Keys>(&self, keys: K, token: lock::LockToken) -> Call<ReleaseToken<K>> {
        Call::new(&self.owner, ReleaseToken { keys: Kept::new(keys), token })
    }

    /// Reads what every node holds at `key`, and for how long; changes nothing. It takes one key:
    /// an [`Inspection`] says what each node holds at it.
    ///
    /// # Errors
    /// The call ends with an error for an invalid key, or with [`Error::Busy`].
    pub fn inspect<K: AsRef<[u8]>>(&self, key: K) -> Call<Inspect<K>> {
        Call::new(&self.owner, Inspect { key })
    }

    /// Deletes `key` on every node, whichever client holds it. This breaks what a lock promises:
    /// the holder believes in its lock until it notices, and meanwhile another client can take it.
    /// For an operator who knows that the holder is gone. It takes one key, because
    /// its outcome says whether that key was there.
    ///
    /// # Errors
    /// The call ends with an error for an invalid key, or with [`Error::Busy`].
    pub fn dangerously_force_release<K: AsRef<[u8]>>(&self, key: K) -> Call<ForceRelease<K>> {
        Call::new(&self.owner, ForceRelease { key })
    }

    /// Deletes the key that was inspected on each node that still holds what `seen` found there,
    /// whichever client holds it: what changed since then stays. Like
    /// [`dangerously_force_release`](SharedClient::dangerously_force_release), this breaks what a
    /// lock promises. Returns what each node answered: `Granted` if it deleted the key.
    ///
    /// A value that is longer than what an inspection keeps of it is compared as far as it was
    /// kept.
    ///
    /// ```no_run
    /// # async fn break_lock(locks: redlatch::SharedClient) -> Result<(), redlatch::Error> {
    /// let seen = locks.inspect("deploy").await?;
    /// println!("{seen}"); // an operator looks at it, and knows that this holder is gone
    /// let report = locks.dangerously_force_release_seen(&seen).await?;
    /// println!("{report}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The call ends with [`Error::Busy`].
    pub fn dangerously_force_release_seen<'a>(
        &self,
        seen: &'a Inspection,
    ) -> Call<ForceReleaseSeen<'a>> {
        Call::new(&self.owner, ForceReleaseSeen { seen })
    }

    /// Ends the quarantine of every node that can be asked, and records that in the nodes'
    /// markers, so that the next process trusts them at once, too. Returns what each node
    /// answered.
    ///
    /// The caller vouches that no client believes in a lock that one of these nodes forgot. For
    /// instance, this is true of nodes that no client has used yet.
    ///
    /// A node counts only if this client saw its marker before: with
    /// [`RestartGuard::Off`](crate::RestartGuard::Off) no node does.
    ///
    /// ```no_run
    /// # async fn begin(locks: redlatch::SharedClient) -> Result<(), redlatch::Error> {
    /// println!("{}", locks.vouch().await?); // these nodes are new
    /// let guard = locks.lock("deploy", std::time::Duration::from_secs(30)).await?;
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The call ends with [`Error::NoQuorum`] if fewer than a quorum of nodes accepted it, and with
    /// [`Error::Busy`].
    pub fn vouch(&self) -> Call<Vouch> {
        Call::new(&self.owner, Vouch)
    }

    /// Takes the lock, runs `act` on this thread while the lock is renewed, and releases it. The
    /// lock is held for 24 hours at most ([`DEFAULT_MAX_HOLD`](crate::DEFAULT_MAX_HOLD)) unless the
    /// options set another bound.
    ///
    /// `act` is not interrupted when the lock is lost: it has to call [`LockWatcher::check`]
    /// before each side effect. An error or a panic in it releases the lock, and then propagates.
    ///
    /// ```no_run
    /// # use redlatch::{Config, Error, SharedClient};
    /// # use std::time::Duration;
    /// # let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// # let locks = SharedClient::connect_blocking(config)?;
    /// // One `?` for the lock and for what `act` returns.
    /// let total = locks.with_lock("report", Duration::from_secs(30), |watcher| {
    ///     watcher.check()?;
    ///     Ok::<_, Error>(3 * 4)
    /// })?;
    /// assert_eq!(total, 12);
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// The error of `act`, of any type that an [`Error`] can become; why there is no lock; or
    /// [`Error::Lost`] if the lock was over before `act` returned. In the last case the result of
    /// `act` is dropped.
    pub fn with_lock<K: Keys, T, E: From<Error>>(
        &self,
        keys: K,
        options: impl Into<LockOptions>,
        act: impl FnOnce(&LockWatcher) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.lock(keys, options.into().auto_extended()).wait()?;
        let value = act(guard.view())?;
        guard.check()?;
        // The lock was held to the end, so the result of the release does not matter to the
        // caller.
        let _ = guard.release().wait();
        Ok(value)
    }

    /// As [`with_lock`](SharedClient::with_lock), for a closure that makes a future. The future is
    /// not dropped when the lock is lost: it can wait for [`LockWatcher::lost`] beside its work.
    ///
    /// # Errors
    /// As for [`with_lock`](SharedClient::with_lock).
    pub async fn with_lock_async<K, T, E, F>(
        &self,
        keys: K,
        options: impl Into<LockOptions>,
        act: impl FnOnce(LockWatcher) -> F,
    ) -> Result<T, E>
    where
        K: Keys,
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let guard = self.lock(keys, options.into().auto_extended()).await?;
        let value = act(guard.watcher()).await?;
        guard.check()?;
        let _ = guard.release().await;
        Ok(value)
    }

    /// The state of each node, in the order of the list; empty once the client is closed.
    pub fn nodes(&self) -> Vec<NodeState> {
        let nodes = self.owner.inner.with(|open| {
            let nodes = 0..open.engine.coordinator().settings().nodes.len();
            nodes.map(|index| open.engine.node_state(NodeId::new(index))).collect()
        });
        nodes.unwrap_or_default()
    }

    /// The next event of the nodes, of the last 256. The client itself resolves host names again
    /// when their node cannot be reached, and does not report them.
    pub fn poll_node_event(&self) -> Option<NodeEvent> {
        let event = self.owner.inner.with(|open| {
            // The engine would report the stale name here instead, and then nothing would look it
            // up.
            open.look_up_names();
            open.engine.poll_node_event()
        });
        event.ok().flatten()
    }

    /// The counters so far; zero once the client is closed.
    pub fn stats(&self) -> Stats {
        self.owner.inner.with(|open| open.engine.stats().clone()).unwrap_or_default()
    }

    /// How many calls wait, how many locks are open in the engine (requested, held, or not yet
    /// released everywhere), and how many requests to nodes are unanswered: to watch for what
    /// grows.
    pub fn gauges(&self) -> Gauges {
        self.owner.inner.with(|open| open.count()).unwrap_or_default()
    }

    /// Ends the client for all its handles: calls that wait end as [`Error::Closed`], and locks are
    /// over and released. Waits until the releases have reached every connected node, for `timeout`
    /// at most. Returns how many keys may be left on some node until their ttl is over: those of a
    /// node that is not connected, or too slow.
    ///
    /// If several handles close it, the shortest `timeout` holds for all.
    pub fn close(&self, timeout: Duration) -> Closing {
        Closing { owner: Arc::clone(&self.owner), timeout, until: None, slot: None }
    }
}

/// What is open in a shared client: see [`SharedClient::gauges`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Gauges {
    /// Calls that wait, and locks that are extended automatically or watched
    /// ([`LockWatcher::lost`]).
    pub calls: usize,
    /// Requests in the engine.
    pub requests: usize,
    /// Locks that were requested, are held, or are not released everywhere.
    pub records: usize,
    /// Timers of any kind.
    pub timers: usize,
    /// Requests to nodes that are not answered.
    pub unanswered: usize,
    /// Releases that wait to be sent.
    pub pending_releases: usize,
}

/// The end of a shared client: see [`SharedClient::close`]. After the first poll the client closes
/// even if this future is dropped.
#[derive(Debug)]
#[must_use = "nothing is closed unless it is awaited or waited for"]
pub struct Closing {
    owner: Arc<Owner>,
    timeout: Duration,
    until: Option<Instant>,
    /// The slot of its waker.
    slot: Option<usize>,
}

impl Closing {
    /// Blocks the thread until the client is closed, for the timeout at most. That also holds if
    /// the client's driver is a task on a tokio runtime that does not run meanwhile, so that no
    /// answer is read.
    pub fn wait(self) -> usize {
        // The driver also keeps the time, and may be stuck.
        park::wait_in_steps(self, |it| it.until.map(|until| until.saturating_since(clock::now())))
    }
}

impl Future for Closing {
    /// How many keys may be left on some node.
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<usize> {
        let timeout = self.timeout;
        let until = *self.until.get_or_insert_with(|| clock::now().saturating_add(timeout));
        let Closing { owner, slot, .. } = &mut *self;
        match owner.inner.close(until, slot, context.waker()) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(left) => Poll::Ready(left),
        }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.owner.inner.forget_closing(slot);
        }
    }
}
