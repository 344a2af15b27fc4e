//! The blocking door: a client without a thread of its own, and the guard of a lock.
//!
//! It drives its engine only inside its calls. Between them nothing is read, written or renewed,
//! which costs nothing and loses nothing: what the kernel holds is read before any timeout is
//! believed.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use mio::{Events, Poll, Token};

use crate::config::{Config, LockOptions};
use crate::net::clock;
use crate::net::engine::Engine;
use crate::net::names::Names;
use crate::proto::coordinator::Event;
use crate::proto::error::{Cause, ConfigError, Error};
use crate::proto::lock::{self, Lock};
use crate::proto::node::NodeId;
use crate::proto::ops::{Op, Outcome};
use crate::proto::round::Released;
use crate::proto::standing::Standing;
use crate::proto::stats::Stats;
use crate::proto::time::Instant;

/// How long [`Client::lock`] waits unless told.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

const EVENTS: usize = 64;

/// Distributed locks, blocking.
///
/// After `fork` it belongs to the parent: in the child every call ends as [`Error::Config`], and
/// dropping it or a guard does nothing to the parent's locks.
///
/// It is `Send` and not `Sync`: one thread uses it at a time, and may hold several locks at once.
///
/// ```no_run
/// use std::time::Duration;
/// use redlatch::{Client, Config};
///
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let client = Client::connect(config)?;
/// let mut guard = client.lock("invoice:42", Duration::from_secs(10))?;
/// // ... and before each side effect:
/// guard.check()?;
/// guard.extend(Duration::from_secs(10))?;
/// guard.release()?;
/// # Ok::<(), redlatch::Error>(())
/// ```
#[derive(Debug)]
pub struct Client {
    inner: RefCell<Inner>,
}

#[derive(Debug)]
struct Inner {
    engine: Engine,
    poll: Poll,
    events: Events,
    /// When the sockets were looked at last.
    looked_at: Instant,
    names: Names,
    /// Key buffers of guards that are gone.
    spare_keys: Vec<Vec<u8>>,
}

impl Client {
    /// Connects to the nodes. It needs none of them to be up: it waits until a quorum is ready and
    /// the others have had one node timeout, or until every node has failed once, and at most for
    /// the connect timeout. Nodes that come later join by themselves.
    ///
    /// # Errors
    /// Only what cannot work as it is configured: settings, or two addresses that lead to one
    /// server.
    pub fn connect(mut config: Config) -> Result<Client, Error> {
        // Between calls nobody reads.
        config.settings.attended = false;
        let node_timeout = config.settings.node_timeout;
        let connect_timeout = config.settings.connect_timeout;
        let system = |error: io::Error| {
            let problem = format!("no poller: {error}").into();
            Error::Config(ConfigError::System { problem })
        };
        let poll = Poll::new().map_err(system)?;
        let engine = Engine::new(config, poll.registry(), Token(0))?;
        let events = Events::with_capacity(EVENTS);
        let (looked_at, spare_keys) = (clock::now(), Vec::new());
        let mut inner = Inner { engine, poll, events, looked_at, names: Names::new(), spare_keys };
        inner.wait_for_nodes(node_timeout, connect_timeout)?;
        inner.refuse_one_server_twice()?;
        Ok(Client { inner: RefCell::new(inner) })
    }

    /// Takes the lock on `key`, trying again for 10 s, or for the wait of the options.
    ///
    /// # Errors
    /// Why there is no lock: the error of the last attempt.
    pub fn lock(
        &self,
        key: impl AsRef<[u8]>,
        options: impl Into<LockOptions>,
    ) -> Result<Guard<'_>, Error> {
        let mut options = options.into();
        options.wait = options.wait.or(Some(DEFAULT_WAIT));
        self.acquire(key.as_ref(), options)
    }

    /// Takes the lock on `key`, in one attempt.
    ///
    /// # Errors
    /// Why there is no lock.
    pub fn try_lock(&self, key: impl AsRef<[u8]>, ttl: Duration) -> Result<Guard<'_>, Error> {
        self.acquire(key.as_ref(), LockOptions::ttl(ttl).wait(Duration::ZERO))
    }

    /// The standing of each node, in the order of the list.
    pub fn nodes(&self) -> Vec<Standing> {
        let engine = &self.inner.borrow().engine;
        let nodes = 0..engine.coordinator().settings().nodes.len();
        nodes.map(|index| engine.standing(NodeId::new(index))).collect()
    }

    /// The next thing that happened to the nodes, of the last 256. Names that may lead elsewhere
    /// are looked up by the client itself, and not told.
    pub fn poll_event(&self) -> Option<Event> {
        let mut inner = self.inner.borrow_mut();
        inner.look_names_up();
        inner.engine.poll_event()
    }

    /// What was counted so far.
    pub fn stats(&self) -> Stats {
        self.inner.borrow().engine.stats().clone()
    }

    /// Reads and writes what there is to read and write until `limit` has passed: answers that
    /// nobody waits for, connections, what is owed.
    ///
    /// # Errors
    /// When the system's poller fails, and in a forked process.
    pub fn drive(&self, limit: Duration) -> io::Result<()> {
        let end = clock::now().saturating_add(limit);
        let mut inner = self.inner.borrow_mut();
        if !inner.engine.is_ours() {
            return Err(io::Error::other("the client belongs to the process before the fork"));
        }
        loop {
            inner.turn(end)?;
            // Nobody waits for these: whoever did gave up.
            while inner.engine.poll_completion().is_some() {}
            if clock::now() >= end {
                // Nothing that the last answers gave rise to waits for the next call.
                inner.engine.flush();
                return Ok(());
            }
        }
    }

    fn acquire(&self, key: &[u8], options: LockOptions) -> Result<Guard<'_>, Error> {
        let mut inner = self.inner.borrow_mut();
        inner.look_after_absence()?;
        let op = inner.engine.acquire(key, options, 0)?;
        match inner.wait_for(op)? {
            Outcome::Acquired(lock) => {
                let mut buffer = inner.spare_keys.pop().unwrap_or_default();
                buffer.clear();
                buffer.extend_from_slice(key);
                Ok(Guard { client: self, key: buffer, lock: Some(lock) })
            }
            other => unreachable!("an acquire ended as {other:?}"),
        }
    }
}

impl Inner {
    /// One turn of the loop, which sleeps no longer than until `end`.
    fn turn(&mut self, end: Instant) -> io::Result<()> {
        let left = end.saturating_since(clock::now());
        if !self.engine.is_ours() {
            return Ok(());
        }
        while let Some((node, addresses)) = self.names.found() {
            self.engine.set_address(node, addresses);
        }
        let timeout = self.engine.prepare().map_or(left, |timeout| timeout.min(left));
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        for event in &self.events {
            self.engine.handle_event(event);
        }
        self.looked_at = clock::now();
        self.look_names_up();
        Ok(())
    }

    fn look_names_up(&mut self) {
        while let Some(node) = self.engine.take_stale() {
            if let Some(lookup) = self.engine.lookup(node) {
                self.names.begin(node, lookup);
            }
        }
    }

    /// Between calls nobody looked: connections may have been closed meanwhile. Those that were
    /// are replaced first, for at most a node timeout, instead of losing the attempt to them.
    fn look_after_absence(&mut self) -> Result<(), Error> {
        if !self.engine.is_ours() {
            // To poll would take the parent's events from it.
            return Ok(());
        }
        let now = clock::now();
        let node_timeout = self.engine.coordinator().settings().node_timeout;
        if now.saturating_since(self.looked_at) < node_timeout {
            return Ok(());
        }
        let end = now.saturating_add(node_timeout);
        self.turn(now).map_err(|error| poller_failed(&error))?;
        while !self.engine.coordinator().coming_back().is_empty() && clock::now() < end {
            self.turn(end).map_err(|error| poller_failed(&error))?;
        }
        Ok(())
    }

    /// Found at the start, one server under two addresses is a mistake in the list.
    fn refuse_one_server_twice(&self) -> Result<(), Error> {
        let core = self.engine.coordinator();
        let mut nodes = (0..core.settings().nodes.len()).map(NodeId::new);
        if nodes.any(|node| core.trouble(node) == Cause::SameServer) {
            let report = core.report_standings(clock::now());
            return Err(Error::Config(ConfigError::Nodes(report)));
        }
        Ok(())
    }

    fn wait_for(&mut self, op: Op) -> Result<Outcome, Error> {
        const FOR_EVER: Instant = Instant::from_nanos(u64::MAX);
        loop {
            while let Some(done) = self.engine.poll_completion() {
                if done.op == op {
                    // What a lost attempt left is released now, not with the next call.
                    self.engine.flush();
                    return done.result;
                }
            }
            if let Err(error) = self.turn(FOR_EVER) {
                self.engine.cancel(op);
                self.engine.flush();
                return Err(poller_failed(&error));
            }
        }
    }

    fn wait_for_nodes(&mut self, node_timeout: Duration, most: Duration) -> Result<(), Error> {
        let end = clock::now().saturating_add(most);
        let mut quorum_since = None;
        loop {
            let now = clock::now();
            let core = self.engine.coordinator();
            let nodes = core.settings().nodes.len();
            let ready = core.ready().len();
            let tried = (0..nodes)
                .map(NodeId::new)
                .filter(|&node| core.standing(node).is_usable() || core.failures(node) > 0);
            if tried.count() == nodes || now >= end {
                return Ok(());
            }
            let mut until = end;
            if ready > nodes / 2 {
                let since = *quorum_since.get_or_insert(now);
                until = since.saturating_add(node_timeout).min(end);
                if now >= until {
                    return Ok(());
                }
            }
            self.turn(until).map_err(|error| poller_failed(&error))?;
        }
    }
}

fn poller_failed(error: &io::Error) -> Error {
    let problem = format!("the system's poller failed: {error}").into();
    Error::Config(ConfigError::System { problem })
}

/// A lock that is held. Dropping it gives it back without waiting for an answer.
///
/// What it protects ends at its deadline, whoever still holds the guard: look at
/// [`check`](Guard::check) before each side effect.
#[derive(Debug)]
#[must_use = "a guard that is dropped gives its lock back"]
pub struct Guard<'a> {
    client: &'a Client,
    key: Vec<u8>,
    /// `None` once it was given back.
    lock: Option<Lock>,
}

impl Guard<'_> {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// What the key holds on the nodes that granted it.
    pub fn token(&self) -> lock::Token {
        self.lock().token()
    }

    /// How long the lock may still be believed in; zero once it is over. A local read.
    pub fn remaining(&self) -> Duration {
        self.client.inner.borrow().engine.remaining(self.lock())
    }

    /// When the lock ends, on the clock of [`clock::now`]; `None` once it is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.client.inner.borrow().engine.deadline(self.lock())
    }

    /// Whether the lock is still held. A local read.
    ///
    /// # Errors
    /// [`Error::Lost`] once it is over.
    pub fn check(&self) -> Result<(), Error> {
        let mut inner = self.client.inner.borrow_mut();
        if inner.engine.is_ours() && !inner.engine.remaining(self.lock()).is_zero() {
            return Ok(());
        }
        Err(Error::Lost(inner.engine.coordinator().report_unasked(&self.key, clock::now())))
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
    /// node timeout; what is owed then still goes out by itself.
    ///
    /// # Errors
    /// [`Error::Busy`] where there is no room to ask about a lock that was over before.
    pub fn release(mut self) -> Result<Released, Error> {
        let lock = self.lock.take().expect("it is taken only here and in drop");
        let mut inner = self.client.inner.borrow_mut();
        if let Err(error) = inner.look_after_absence() {
            inner.engine.let_go(&lock);
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

    fn lock(&self) -> &Lock {
        self.lock.as_ref().expect("it is taken only where the guard ends")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // A panic inside a call of the client leaves it borrowed: then the ttl ends the lock.
        let Ok(mut inner) = self.client.inner.try_borrow_mut() else { return };
        if let Some(lock) = self.lock.take() {
            inner.engine.let_go(&lock);
            inner.engine.flush();
        }
        if inner.spare_keys.len() < EVENTS {
            inner.spare_keys.push(std::mem::take(&mut self.key));
        }
    }
}
