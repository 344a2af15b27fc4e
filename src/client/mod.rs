//! The blocking client, which has no thread of its own, and the guard of its locks.
//!
//! The client drives its engine only inside its calls. Between them nothing is read, written or
//! renewed, so an auto-extended lock needs regular calls. Other locks do not, and no answer is
//! lost: the next call reads what the kernel has received before it lets a timeout take effect.

mod election;
mod guard;
mod inner;
mod notices;

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use crate::config::Config;
use crate::net::clock;
use crate::net::engine::Engine;
use crate::net::observe::{self, Verb};
use crate::proto::cluster::state::NodeState;
use crate::proto::coordinator::NodeEvent;
use crate::proto::error::{ClosedReason, Error, Report};
use crate::proto::ids::Op;
use crate::proto::inspection::Inspection;
use crate::proto::keys::{Keys, KeysRef};
use crate::proto::lock;
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::held::updates::LockUpdate;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::node_set::NodeId;
use crate::proto::stats::Stats;
use crate::proto::time::Instant;

pub use guard::Guard;
use inner::Inner;

/// Distributed locks, blocking.
///
/// # Threads, processes, signals
///
/// A client is `Send` and not `Sync`: one thread uses it at a time, and may hold several locks at
/// once. A guard borrows the client, so it stays on that thread, and ends before the client does.
/// For several threads use a [`SharedClient`](crate::SharedClient); a shared `&Client` does not
/// compile:
///
/// ```compile_fail,E0277
/// # fn f(client: &redlatch::Client) {
/// std::thread::scope(|scope| {
///     scope.spawn(|| client.nodes());
/// });
/// # }
/// ```
///
/// After `fork` the client belongs to the parent: in the child every call returns
/// [`Error::Closed`], and dropping the client or a guard does nothing to the parent's locks. The
/// client cannot notice a copy that has the same process number: see [`Engine::check_fork`].
///
/// A signal that interrupts a wait neither ends the call nor makes it longer. If a panic of yours
/// unwinds through guards and client, their drops write the releases, without waiting. After a
/// panic in a function of [`Config::credentials`] or [`Config::resolver`] only the attempt to
/// connect to that node fails.
///
/// Dropping the client writes the pending releases, as far as the sockets take them without
/// waiting; [`close`](Client::close) waits for the nodes. A node that is frozen at that moment
/// reads the releases later, when the connection is closed. Redis then executes at least the first
/// 16 KB of them, which is its buffer for one read. It may drop the rest, and their keys stay for
/// their ttl.
///
/// ```no_run
/// use std::time::Duration;
/// use redlatch::{Client, Config};
///
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let client = Client::connect(config)?;
/// let mut guard = client.lock("invoice:42", Duration::from_secs(30))?;
/// // ... and before each side effect:
/// guard.check()?;
/// guard.extend(Duration::from_secs(30))?;
/// guard.release()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    inner: RefCell<Inner>,
}

impl Client {
    /// Connects to the nodes, none of which needs to be up. The call waits until a quorum is ready,
    /// and then for the other nodes as long again (2 ms at least, a node timeout at most). It ends
    /// earlier if every node is ready or has failed once, and at the connect timeout in any case.
    /// Nodes that come up later join by themselves.
    ///
    /// # Errors
    /// Only if the configuration cannot work: because of a setting, or because two addresses turn
    /// out to lead to one server before this call returns. If that turns out later, the client
    /// rejects the second node.
    pub fn connect(config: Config) -> Result<Client, Error> {
        Ok(Client { inner: RefCell::new(Inner::connect(config)?) })
    }

    /// Takes the lock on these keys, one or several ([`Keys`]). Waits for the lock for 10 s, or as
    /// long as the options say. The nodes notify the client of a release, so it seldom polls them.
    ///
    /// Several keys are one lock: all of them or none, at most 64, in any order. Two clients that
    /// name the same keys in different orders do not wait for each other.
    ///
    /// If a guard of this client holds and renews one of the keys, the call does not wait, but
    /// returns [`Error::Contended`] after one attempt: while it waited, that guard could not be
    /// dropped.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn transfer(client: &redlatch::Client) -> Result<(), redlatch::Error> {
    /// let ttl = Duration::from_secs(30);
    /// let one = client.lock("invoice:42", ttl)?;
    /// let both = client.lock(["account:7", "account:9"], ttl)?;
    /// // ... and before each side effect:
    /// both.check()?;
    /// both.release()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of the last attempt, which names a key that is held. Before anything is sent:
    /// [`ConfigError::Keys`](crate::ConfigError::Keys) for no key or too many.
    pub fn lock(
        &self,
        keys: impl Keys,
        options: impl Into<LockOptions>,
    ) -> Result<Guard<'_>, Error> {
        self.acquire(keys.named()?.borrowed(), options.into())
    }

    /// Takes the lock on these keys, in one attempt, whatever wait the options have.
    ///
    /// # Errors
    /// As [`lock`](Client::lock).
    pub fn try_lock(
        &self,
        keys: impl Keys,
        options: impl Into<LockOptions>,
    ) -> Result<Guard<'_>, Error> {
        self.acquire(keys.named()?.borrowed(), options.into().wait(Duration::ZERO))
    }

    /// Takes over the lock on these keys that another client gave away with `token`
    /// ([`Guard::into_token`]), under a new token. If two clients try that with one token, at most
    /// one of them gets the lock. Makes one attempt, whatever wait the options have. A client that
    /// still holds the lock under the old token loses it, and its next extend reports that.
    ///
    /// Name all keys of the lock: one that is not named stays with the old token until its ttl is
    /// over.
    ///
    /// # Errors
    /// [`Error::Lost`] if the token does not hold all of the keys on enough nodes, for instance
    /// because the ttl was over or another client adopted the lock before; and the errors of an
    /// acquire.
    pub fn adopt(
        &self,
        keys: impl Keys,
        token: lock::LockToken,
        options: impl Into<LockOptions>,
    ) -> Result<Guard<'_>, Error> {
        let (named, options) = (keys.named()?, options.into());
        let keys = named.borrowed();
        observe::call(Verb::Adopt, keys.first(), || {
            let mut inner = self.inner.borrow_mut();
            inner.reconnect_after_pause()?;
            let number = inner.notices.next();
            let op = inner.engine.adopt(keys, token, options, number)?;
            self.guard_of(&mut inner, op, keys, number, options)
        })
    }

    /// For scripts: extends the keys, one or several, to at least `ttl` from now if they hold
    /// `token`, whichever client acquired them, and returns the new deadline. A node extends all
    /// keys or none. Nothing is released, whatever the result.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn prolong(client: &redlatch::Client, token: redlatch::LockToken)
    /// #     -> Result<(), redlatch::Error> {
    /// let both = ["account:7", "account:9"];
    /// let deadline = client.extend_token(both, token.clone(), Duration::from_secs(60))?;
    /// println!("{:?} left", deadline.saturating_since(redlatch::clock::now()));
    /// client.release_token(both, token)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lost`] if the token does not hold all keys on enough nodes; if there are several
    /// keys, its report names one that is lost. [`Error::NoQuorum`] if too few nodes answered.
    pub fn extend_token(
        &self,
        keys: impl Keys,
        token: lock::LockToken,
        ttl: Duration,
    ) -> Result<Instant, Error> {
        let named = keys.named()?;
        let keys = named.borrowed();
        observe::call(Verb::Extend, keys.first(), || {
            match self.ask(|engine| engine.extend_token(keys, token, ttl, 0))? {
                Outcome::Extended { deadline } => Ok(deadline),
                other => unreachable!("an extend ended as {other:?}"),
            }
        })
    }

    /// For scripts: releases the keys if they hold `token`, whichever client acquired them. A node
    /// releases each key that holds the token, even if another of the keys does not.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn release_token(
        &self,
        keys: impl Keys,
        token: lock::LockToken,
    ) -> Result<ReleaseOutcome, Error> {
        let named = keys.named()?;
        let keys = named.borrowed();
        observe::call(Verb::Release, keys.first(), || {
            match self.ask(|engine| engine.release_token(keys, token, 0))? {
                Outcome::Released(released) => Ok(released),
                other => unreachable!("a release ended as {other:?}"),
            }
        })
    }

    /// Reads what every node holds for `key`, and for how long. Changes nothing.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn inspect(&self, key: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        match self.ask(|engine| engine.inspect(key, 0))? {
            Outcome::Inspected(inspection) => Ok(*inspection),
            other => unreachable!("an inspection ended as {other:?}"),
        }
    }

    /// Ends the quarantine of every node that can be asked, and records that in the nodes' markers,
    /// so that later clients trust these nodes immediately, too. Returns what each node answered.
    ///
    /// The caller vouches that no client relies on a lock that one of these nodes forgot. For
    /// instance, this is true of nodes that no client has used yet.
    ///
    /// A node accepts this only if the client read its marker before, so with
    /// [`RestartGuard::Off`](crate::RestartGuard::Off) no node does.
    ///
    /// # Errors
    /// [`Error::NoQuorum`] if fewer than a quorum of nodes accepted it; before anything is sent
    /// [`Error::Busy`].
    pub fn vouch(&self) -> Result<Report, Error> {
        match self.ask(|engine| engine.vouch(0))? {
            Outcome::Vouched(report) => Ok(*report),
            other => unreachable!("vouching ended as {other:?}"),
        }
    }

    /// Deletes `key` on every node, whichever client holds it. This breaks what a lock promises:
    /// the holder relies on its lock until it notices the loss, and meanwhile another client can
    /// acquire the key. For an operator who knows that the holder is gone.
    ///
    /// The outcome is `Released` if a node had something at the key, and `AlreadyExpired` if none
    /// had.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn dangerously_force_release(
        &self,
        key: impl AsRef<[u8]>,
    ) -> Result<ReleaseOutcome, Error> {
        match self.ask(|engine| engine.dangerously_force_release(key, 0))? {
            Outcome::Released(released) => Ok(released),
            other => unreachable!("a release ended as {other:?}"),
        }
    }

    /// Deletes the inspected key on each node that still holds the value that `seen` found there,
    /// whichever client holds it. A node whose value has changed keeps the key. Like
    /// [`dangerously_force_release`](Client::dangerously_force_release), this breaks what a lock
    /// promises. Returns what each node answered: `Granted` if it deleted the key.
    ///
    /// An inspection keeps only the beginning of a long value, and only that is compared.
    ///
    /// ```no_run
    /// # fn break_lock(client: &redlatch::Client) -> Result<(), redlatch::Error> {
    /// let seen = client.inspect("deploy")?;
    /// println!("{seen}"); // an operator looks at it, and knows that this holder is gone
    /// let report = client.dangerously_force_release_seen(&seen)?;
    /// println!("{report}");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Before anything is sent: [`Error::Busy`].
    pub fn dangerously_force_release_seen(&self, seen: &Inspection) -> Result<Report, Error> {
        match self.ask(|engine| engine.dangerously_force_release_seen(seen, 0))? {
            Outcome::ForceReleased(report) => Ok(*report),
            other => unreachable!("a forced release ended as {other:?}"),
        }
    }

    /// Takes the lock, runs `act` while the lock is renewed, and releases it. The lock is held for
    /// 24 hours at most ([`DEFAULT_MAX_HOLD`](crate::DEFAULT_MAX_HOLD)) unless the options set
    /// another bound.
    ///
    /// The client has no thread of its own, so `act` has to call [`Guard::check`], or any call of
    /// the client, at least every third of the ttl: these calls renew the lock. `act` is not
    /// interrupted when the lock is lost, so it has to call `check` before each side effect. After
    /// an error or a panic in `act` the lock is released, and the error or panic propagates.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use redlatch::{Client, Error};
    /// # fn report(client: &Client) -> Result<(), Error> {
    /// // One `?` for the lock and for what `act` returns.
    /// let total = client.with_lock("report", Duration::from_secs(30), |guard| {
    ///     let mut total = 0;
    ///     for page in 1..=4 {
    ///         guard.check()?; // also renews the lock if that is due
    ///         total += page;
    ///     }
    ///     Ok::<_, Error>(total)
    /// })?;
    /// assert_eq!(total, 10);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of `act`, whose type has to be made from an [`Error`] by `From`; the error of
    /// [`lock`](Client::lock); or [`Error::Lost`] if the lock was over before `act` returned. In
    /// the last case the result of `act` is dropped.
    pub fn with_lock<T, E: From<Error>>(
        &self,
        keys: impl Keys,
        options: impl Into<LockOptions>,
        act: impl FnOnce(&Guard<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.lock(keys, options.into().auto_extended())?;
        let value = act(&guard)?;
        guard.check()?;
        // The lock was held to the end, so the result of the release does not matter to the
        // caller.
        let _ = guard.release();
        Ok(value)
    }

    /// Returns the next update of a lock: a loss, or, if the lock is renewed
    /// ([`Guard::auto_extend`]), an `Expiring` warning. The client notices updates inside its
    /// calls, and keeps the last 256. There are none for a lock that was released or given away,
    /// nor for a later deadline after a renewal: read that from the guard.
    pub fn poll_lock_update(&self) -> Option<LockUpdate> {
        let mut inner = self.inner.borrow_mut();
        // After a fork this drops the updates, which concern only the parent.
        inner.engine.check_fork();
        inner.take_completions();
        inner.notices.poll()
    }

    /// The state of each node, in the order of the list.
    pub fn nodes(&self) -> Vec<NodeState> {
        let engine = &self.inner.borrow().engine;
        let nodes = 0..engine.coordinator().settings().nodes.len();
        nodes.map(|index| engine.node_state(NodeId::new(index))).collect()
    }

    /// Returns the next event of a node, of the last 256. The client itself looks up a host name
    /// again when its node cannot be reached, and does not report that.
    pub fn poll_node_event(&self) -> Option<NodeEvent> {
        let mut inner = self.inner.borrow_mut();
        inner.look_up_names();
        inner.engine.poll_node_event()
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.inner.borrow().engine.stats().clone()
    }

    /// Drives the client until `limit` has passed: renews auto-extended locks, connects to nodes,
    /// sends pending releases, and reads answers that no call waits for. Returns earlier when there
    /// is a new update ([`poll_lock_update`](Client::poll_lock_update)) or a new standing of a
    /// candidate ([`poll_standing`](Client::poll_standing)), so that the caller can learn of a loss
    /// before the deadline, however long the limit is.
    ///
    /// Between its calls a client does none of this. If a node was not connected, or its connection
    /// was lost, this call or another call of the client sends the node's pending release. Without
    /// such a call the release is never sent, and the key stays there for its ttl.
    ///
    /// # Errors
    /// If the system's poller fails, and in a forked process.
    pub fn drive(&self, limit: Duration) -> io::Result<()> {
        let end = clock::now().saturating_add(limit);
        let mut inner = self.inner.borrow_mut();
        if !inner.engine.check_fork() {
            return Err(io::Error::other(ClosedReason::Forked.to_string()));
        }
        loop {
            inner.turn(end)?;
            if inner.take_completions() || clock::now() >= end {
                // Writes the requests that follow from the last answers now, and not with the next
                // call.
                inner.engine.flush();
                return Ok(());
            }
        }
    }

    /// Ends the client in order: releases every lock, also one whose guard was forgotten, and waits
    /// until every node has confirmed that, but for `timeout` at most. Returns how many keys may be
    /// left on some node until their ttl is over.
    ///
    /// A drop of the client, instead, only writes what the sockets take without waiting.
    #[must_use = "it returns how many keys may be left on some node"]
    pub fn close(self, timeout: Duration) -> usize {
        let end = clock::now().saturating_add(timeout);
        let mut inner = self.inner.into_inner();
        if !inner.engine.check_fork() {
            // In a forked child the locks belong to the parent, and stay.
            return 0;
        }
        inner.engine.release_all();
        // The first turn finds out which connections still live. A later turn sleeps for at most a
        // node timeout: some records end by a timer before the sleep, and then no event ends it.
        let step = inner.engine.coordinator().settings().node_timeout;
        let mut until = clock::now();
        loop {
            let turned = inner.turn(until);
            // Drops completions, which no call fetches any more: the loop does not sleep while any
            // is left.
            inner.take_completions();
            let (left, now) = (inner.engine.coordinator().open_records(), clock::now());
            if left == 0 || turned.is_err() || now >= end {
                return left;
            }
            until = now.saturating_add(step).min(end);
        }
    }

    fn acquire(&self, keys: KeysRef<'_>, mut options: LockOptions) -> Result<Guard<'_>, Error> {
        observe::call(Verb::Acquire, keys.first(), || {
            let mut inner = self.inner.borrow_mut();
            inner.reconnect_after_pause()?;
            let give_up_at = options.give_up_at(clock::now());
            let core = inner.engine.coordinator();
            if keys.iter().any(|key| core.auto_extends_beyond(key, give_up_at)) {
                // This thread is the only one that could release the lock, so it must not wait
                // here.
                options = options.wait(Duration::ZERO);
            }
            let number = inner.notices.next();
            let op = inner.engine.acquire(keys, options, number)?;
            self.guard_of(&mut inner, op, keys, number, options)
        })
    }

    /// Waits for a lock that was requested, and makes its guard.
    fn guard_of(
        &self,
        inner: &mut Inner,
        op: Op,
        keys: KeysRef<'_>,
        number: u64,
        options: LockOptions,
    ) -> Result<Guard<'_>, Error> {
        match inner.wait_for(op)? {
            Outcome::Acquired(lock) => {
                let mut key = inner.spare_keys.pop().unwrap_or_default();
                key.clear();
                key.extend_from_slice(keys.first());
                let set = keys.set().cloned();
                Ok(Guard::new(self, (key, set), lock, number, options.auto_extend.is_some()))
            }
            other => unreachable!("an acquire ended as {other:?}"),
        }
    }

    fn ask(&self, ask: impl FnOnce(&mut Engine) -> Result<Op, Error>) -> Result<Outcome, Error> {
        let mut inner = self.inner.borrow_mut();
        inner.reconnect_after_pause()?;
        let op = ask(&mut inner.engine)?;
        inner.wait_for(op)
    }
}
