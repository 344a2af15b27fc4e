//! The blocking client: it has no thread of its own. Also the guard of a lock.
//!
//! The client drives its engine only inside its calls. Between them nothing is read, written or
//! renewed. Only locks that are extended automatically suffer from that. No answer is lost: what
//! the kernel holds is read before a timeout takes effect.

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
/// After `fork` the client belongs to the parent: in the child every call ends as
/// [`Error::Closed`], and dropping the client or a guard does nothing to the parent's locks. A copy
/// with the same process number is not noticed: see [`Engine::check_fork`].
///
/// A signal that interrupts a wait neither ends the call nor makes it longer. If a panic of yours
/// unwinds through guards and client, they are dropped as at any other end of their scopes: the
/// releases are written, without waiting. A panic in a function of [`Config::credentials`] or
/// [`Config::resolver`] only fails the attempt at that node.
///
/// Dropping the client writes the pending releases, as far as the sockets take them without
/// waiting; [`close`](Client::close) waits for the nodes. A node that is frozen at that moment
/// reads the releases later. Redis executes at least the first 16 KB of them, its buffer for one
/// read, even after the connection is closed. It may drop the rest, and their keys stay for their
/// ttl.
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
    /// Connects to the nodes. None of them needs to be up. The call waits until a quorum is ready
    /// and the others have had as long again (2 ms at least, a node timeout at most), or until
    /// every node has failed once, for the connect timeout at most. Nodes that come up later join
    /// by themselves.
    ///
    /// # Errors
    /// Only for a configuration that cannot work: a setting, or two addresses that are found to
    /// lead to one server before this call returns. If that is found later, the second node is
    /// rejected.
    pub fn connect(config: Config) -> Result<Client, Error> {
        Ok(Client { inner: RefCell::new(Inner::connect(config)?) })
    }

    /// Takes the lock on these keys, one or several ([`Keys`]), waiting for it for 10 s, or as the
    /// options say. The nodes notify the client of a release, so it does not have to poll them all
    /// the time.
    ///
    /// Several keys are one lock: all of them or none, at most 64, in any order. Two clients that
    /// name the same keys in different orders do not wait for each other.
    ///
    /// A key that a guard of this client holds and renews is refused at once
    /// ([`Error::Contended`]): while this call waits, the guard cannot be dropped.
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
    /// Why there is no lock: the error of the last attempt, which names a key that is held. Before
    /// anything is sent: [`ConfigError::Keys`](crate::ConfigError::Keys) for no key or too many.
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

    /// Takes up the lock on these keys that was given away with `token` ([`Guard::into_token`]),
    /// under a new token. If two clients try with one token, at most one of them gets the lock.
    /// Makes one attempt, whatever wait the options have. The previous holder loses the lock; its
    /// next extend reports it.
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

    /// Extends the keys, one or several, to at least `ttl` from now if they hold `token`, whichever
    /// client took them, and returns the new deadline: for scripts. A node prolongs all keys or
    /// none. Nothing is released, whatever the result.
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
    /// [`Error::Lost`] if the token does not hold all keys on enough nodes: of several keys, its
    /// report names one that is lost. [`Error::NoQuorum`] if too few nodes answered.
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

    /// Releases the keys if they hold `token`, whichever client took them: for scripts. Of several
    /// keys each is released by itself.
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

    /// Reads what every node holds at `key`, and for how long; changes nothing. It takes one key:
    /// an [`Inspection`] says what each node holds at it.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn inspect(&self, key: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        match self.ask(|engine| engine.inspect(key, 0))? {
            Outcome::Inspected(inspection) => Ok(*inspection),
            other => unreachable!("an inspection ended as {other:?}"),
        }
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
    /// the holder believes in its lock until it notices, and meanwhile another client can take it.
    /// For an operator who knows that the holder is gone. It takes one key, because
    /// its outcome says whether that key was there.
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

    /// Deletes the key that was inspected on each node that still holds what `seen` found there,
    /// whichever client holds it: what changed since then stays. Like
    /// [`dangerously_force_release`](Client::dangerously_force_release), this breaks what a lock
    /// promises. Returns what each node answered: `Granted` if it deleted the key.
    ///
    /// A value that is longer than what an inspection keeps of it is compared as far as it was
    /// kept.
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
    /// The client has no thread of its own: it renews the lock where `act` calls
    /// [`Guard::check`], or any call of the client, at least every third of the ttl. `act` is not
    /// interrupted when the lock is lost: it has to call `check` before each side effect. An error
    /// or a panic in it releases the lock, and then propagates.
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
    /// The error of `act`, of any type that an [`Error`] can become; why there is no lock; or
    /// [`Error::Lost`] if the lock was over before `act` returned. In the last case the result of
    /// `act` is dropped.
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

    /// The next update of the locks, of the last 256: a loss, or, if a lock is renewed
    /// ([`Guard::auto_extend`]), an `Expiring` warning. The client notices them inside its calls. A
    /// lock that was released or given away has none. A later deadline is no update here: read it
    /// from the guard.
    pub fn poll_lock_update(&self) -> Option<LockUpdate> {
        let mut inner = self.inner.borrow_mut();
        // What happened to a lock before a fork concerns the parent alone.
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

    /// The next event of the nodes, of the last 256. The client itself resolves host names again
    /// when their node cannot be reached, and does not report them.
    pub fn poll_node_event(&self) -> Option<NodeEvent> {
        let mut inner = self.inner.borrow_mut();
        inner.look_up_names();
        inner.engine.poll_node_event()
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.inner.borrow().engine.stats().clone()
    }

    /// Reads and writes until `limit` has passed: renewals of the locks that are extended
    /// automatically, answers that no call waits for, connections, pending releases. It returns
    /// earlier when there is a new update ([`poll_lock_update`](Client::poll_lock_update)), so that
    /// the caller learns of a loss before the deadline, however long the limit is.
    ///
    /// Between its calls a client does none of this. If a node was not connected, or its
    /// connection was lost, its pending release is written here or in the next call of another
    /// kind. If there is no such call, it is never written, and the key stays there for its ttl.
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
                // Requests that follow from the last answers are written now, not with the next
                // call.
                inner.engine.flush();
                return Ok(());
            }
        }
    }

    /// The orderly end: releases every lock, also one whose guard was forgotten. Then it reads and
    /// writes until every node has confirmed, for `timeout` at most. Returns how many keys may be
    /// left on some node until their ttl is over; zero: none.
    ///
    /// Dropping the client instead writes what the sockets take at this moment, and does not wait.
    #[must_use = "it returns how many keys may be left on some node"]
    pub fn close(self, timeout: Duration) -> usize {
        let end = clock::now().saturating_add(timeout);
        let mut inner = self.inner.into_inner();
        if !inner.engine.check_fork() {
            // In a forked child the locks belong to the parent, and stay.
            return 0;
        }
        inner.engine.release_all();
        // At least one turn has to find out which connections still live. Some records end by a
        // timer before a turn sleeps, so no turn sleeps very long.
        let step = inner.engine.coordinator().settings().node_timeout;
        let mut until = clock::now();
        loop {
            let turned = inner.turn(until);
            // No caller polls completions any more, and while any is left the loop does not sleep.
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
                // The only thread that could release the lock would wait here.
                options = options.wait(Duration::ZERO);
            }
            let number = inner.notices.next();
            let op = inner.engine.acquire(keys, options, number)?;
            self.guard_of(&mut inner, op, keys, number, options)
        })
    }

    /// Waits for a lock that was requested.
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
