//! The coordinator with its sockets, on the caller's poller: no thread, no poller and no waker of
//! its own.
//!
//! The order of a turn is what makes it right. It is written in `proto::turn`, which the simulation
//! runs, too; here is what its steps do with real sockets and the real clock.

mod forced;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use mio::{Interest, Registry, Token};
use rand::TryRng;
use rand::rngs::SysRng;

use super::address::Lookup;
use super::alarm::Alarm;
use super::clock;
use super::connect::Connector;
use super::socket::Readiness;
use super::stream::Stream;
use crate::config::{AskForCredentials, Config, DEFAULT_WAIT, LockOptions};
use crate::proto::cluster::state::NodeState;
use crate::proto::coordinator::{Action, Coordinator, NodeEvent};
use crate::proto::error::{ConfigError, Error};
use crate::proto::ids::Op;
use crate::proto::lock::{self, Lock};
use crate::proto::locks::auto_extend::AutoExtend;
use crate::proto::locks::requests::Completion;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::settings::Credentials;
use crate::proto::stats::Stats;
use crate::proto::time::Instant;
use crate::proto::turn::{self, Driver, Wake};

/// How many bytes are read at once. One buffer serves all sockets: the engine empties it before it
/// reads the next one.
const SCRATCH_BYTES: usize = 64 * 1024;

/// How many full buffers are read from one node before the others have their turn. A node that
/// sends without end must not occupy the loop.
const READS_A_TURN: usize = 4;

/// How many full buffers are read from one node before its connection is closed, so that the close
/// is no reset. This is more than any answer takes. A node that sends without end is reset: it
/// must not delay the thread that drops the engine.
const LAST_READS: usize = 256;

/// Distributed locks on the caller's `mio::Poll`.
///
/// ```no_run
/// use std::time::Duration;
/// use mio::{Events, Poll, Token};
/// use redlatch::{Config, Engine, Outcome};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut poll = Poll::new()?;
/// let mut events = Events::with_capacity(64);
/// let config = Config::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
/// let mut engine = Engine::new(config, poll.registry(), Token(1000))?;
/// engine.acquire("invoice:42", Duration::from_secs(10), 7)?;
/// loop {
///     let timeout = engine.prepare();
///     match poll.poll(&mut events, timeout) {
///         Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
///         polled => polled?,
///     }
///     for event in &events {
///         if !engine.handle_event(event) {
///             // One of yours.
///         }
///     }
///     while let Some(done) = engine.poll_completion() {
///         match (done.data, done.result?) {
///             (7, Outcome::Acquired(lock)) => {
///                 println!("held for {:?} more", engine.remaining(&lock));
///                 engine.release(lock, 8);
///             }
///             (8, Outcome::Released(_)) => return Ok(()),
///             (data, other) => println!("{data}: {other:?}"),
///         }
///     }
/// }
/// # }
/// ```
///
/// # Threads, processes, signals
///
/// An engine is `Send` and `Sync`: it may be made on one thread and used on another, and every
/// request needs `&mut`. Several engines can share one poller. Give each a base token of its own;
/// two bases must differ by at least the number of nodes plus one. Only [`new`](Engine::new)
/// blocks, where names are looked up.
///
/// After `fork` the engine belongs to the parent: see [`check_fork`](Engine::check_fork).
///
/// No call of the engine waits, so no signal interrupts one. A signal may interrupt your own wait:
/// `mio::Poll::poll` then returns [`Interrupted`](std::io::ErrorKind::Interrupted), and the loop
/// begins its next turn with [`prepare`](Engine::prepare).
///
/// The engine calls two functions of yours: that of [`Config::credentials`], and in `new` that of
/// [`Config::resolver`]. A panic of the former does not unwind through the loop. The engine does
/// not connect to that node then, tries again later, and serves everything else as before.
///
/// Dropping the engine cancels every request, and releases each lock that it won or may yet win but
/// did not hand out, as far as the sockets take the releases without waiting. A lock that it did
/// hand out stays until its ttl is over, unless you release it:
/// [`release_all`](Engine::release_all) releases all of them. Your poller may be dropped before or
/// after the engine.
pub struct Engine {
    coordinator: Coordinator,
    registry: Registry,
    base: Token,
    sockets: Vec<Socket>,
    alarm: Alarm,
    /// The driver asked to be awake by this moment.
    wake_deadline: Option<Instant>,
    scratch: Box<[u8]>,
    /// Nodes that had more to read than one turn allows.
    more: NodeSet,
    /// Nodes whose names may lead elsewhere by now, and that were not reported yet.
    stale: NodeSet,
    credentials: Option<AskForCredentials>,
    /// The user and password of each URL, used if the function of [`Config::credentials`] returns
    /// `None`.
    by_url: Vec<Credentials>,
    /// The number of the process that owns the sockets and the locks.
    owner: u32,
}

#[derive(Debug)]
struct Socket {
    connector: Connector,
    stream: Option<Stream>,
    /// The connection is not known to be open yet.
    opening: bool,
    /// The kernel may take more. Once it is full, the engine writes again only after the poller
    /// reports the socket.
    writable: bool,
}

impl Engine {
    /// An engine whose sockets are registered with `registry`. Each node has one token, from
    /// `base` on, and the timer has the next one ([`owns`](Engine::owns) recognizes them). The
    /// engine begins to connect with the first [`prepare`](Engine::prepare).
    ///
    /// Names are looked up here, which may block.
    ///
    /// # Errors
    /// A setting that cannot work, or the system refuses what is needed.
    pub fn new(config: Config, registry: &Registry, base: Token) -> Result<Engine, ConfigError> {
        let system = |what: &str, error: &dyn std::fmt::Display| ConfigError::System {
            problem: format!("{what}: {error}").into(),
        };
        let mut seed = [0; 32];
        SysRng.try_fill_bytes(&mut seed).map_err(|e| system("no randomness", &e))?;
        let registry = registry.try_clone().map_err(|e| system("no poller", &e))?;
        config.settings.validate()?;
        let connectors = config.addresses.iter().map(|address| Connector::new(address, &config));
        let sockets = connectors.map(|connector| {
            Ok(Socket { connector: connector?, stream: None, opening: false, writable: false })
        });
        let sockets = sockets.collect::<Result<Vec<_>, ConfigError>>()?;
        let by_url = config
            .settings
            .nodes
            .iter()
            .map(|node| Credentials { user: node.user.clone(), password: node.password.clone() });
        let by_url = by_url.collect();
        let Some(timer) = base.0.checked_add(sockets.len()) else {
            return Err(system("no tokens", &"there are too few behind the base"));
        };
        // Made last: the time to connect runs from here.
        let coordinator = Coordinator::new(config.settings, seed, clock::now())?;
        Ok(Engine {
            coordinator,
            alarm: Alarm::new(&registry, Token(timer)),
            wake_deadline: None,
            registry,
            base,
            sockets,
            scratch: vec![0; SCRATCH_BYTES].into(),
            more: NodeSet::EMPTY,
            stale: NodeSet::EMPTY,
            credentials: config.credentials,
            by_url,
            owner: std::process::id(),
        })
    }

    /// Asks for the lock on `key`, and waits for it for 10 s, or as the options say. The
    /// completion brings `data` back. If the options renew the lock, the completions of
    /// [`auto_extend`](Engine::auto_extend) follow, with the same `data`.
    ///
    /// An acquire may be requested at once. While the nodes' first handshakes are in flight, the
    /// engine holds the request until a quorum of nodes is connected, for the connect timeout at
    /// most. So an acquire on a new engine may take that much longer than its wait.
    ///
    /// # Errors
    /// Before anything is sent: an invalid ttl or key, or [`Error::Busy`].
    pub fn acquire(
        &mut self,
        key: impl AsRef<[u8]>,
        options: impl Into<LockOptions>,
        data: u64,
    ) -> Result<Op, Error> {
        let LockOptions { ttl, wait, keep } = options.into();
        let wait = wait.unwrap_or(DEFAULT_WAIT);
        self.coordinator.acquire_and_auto_extend(key.as_ref(), ttl, wait, keep, data, clock::now())
    }

    /// Renews a lock from now on, by its present ttl, until it is released, given away or lost, or
    /// as far as `keep` allows. Whenever the lock comes near its deadline,
    /// [`Outcome::Expiring`](crate::Outcome) is reported. The last completion is [`Error::Lost`],
    /// once, and before the deadline if the loop turns in time. A lock that is released or given
    /// away has no further completion.
    ///
    /// # Errors
    /// An invalid `keep`, or [`Error::Lost`].
    pub fn auto_extend(
        &mut self,
        lock: &Lock,
        keep: impl Into<AutoExtend>,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.auto_extend(lock, keep.into(), data, clock::now())
    }

    /// Gives a lock away: returns its token, with which another client can
    /// [`adopt`](Engine::adopt) it. This engine neither renews nor releases it any more. Returns
    /// `None` if the lock was over. If an extend is in flight, the new owner also gets the time it
    /// adds.
    pub fn into_token(&mut self, lock: Lock) -> Option<lock::LockToken> {
        self.coordinator.into_token(lock, clock::now())
    }

    /// Takes up the lock on `key` that was given away with `token`, under a new token. If two
    /// clients try with one token, at most one of them gets the lock. Makes one attempt, whatever
    /// wait the options have.
    ///
    /// The request ends as an acquire does, or as [`Error::Lost`] if the token does not hold the
    /// key on enough nodes. If the giver still believes in the lock, it loses it, and learns of
    /// that with its next extend: so give the lock away first.
    ///
    /// # Errors
    /// Before anything is sent: an invalid argument, or [`Error::Busy`].
    pub fn adopt(
        &mut self,
        key: impl AsRef<[u8]>,
        token: lock::LockToken,
        options: impl Into<LockOptions>,
        data: u64,
    ) -> Result<Op, Error> {
        let LockOptions { ttl, keep, .. } = options.into();
        self.coordinator.adopt(key.as_ref(), token, ttl, keep, data, clock::now())
    }

    /// Extends `key` to at least `ttl` from now if it holds `token`, whichever client took it: for
    /// scripts. Makes one round. Nothing is released, whatever the result.
    ///
    /// # Errors
    /// Before anything is sent: an invalid argument, or [`Error::Busy`].
    pub fn extend_token(
        &mut self,
        key: impl AsRef<[u8]>,
        token: lock::LockToken,
        ttl: Duration,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.extend_token(key.as_ref(), token, ttl, data, clock::now())
    }

    /// Reads what every node holds at `key`, and changes nothing. The request ends when all nodes
    /// have answered, or at the node timeout.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn inspect(&mut self, key: impl AsRef<[u8]>, data: u64) -> Result<Op, Error> {
        self.coordinator.inspect(key.as_ref(), data, clock::now())
    }

    /// Ends the quarantine of every node that can be asked, and records that in the nodes'
    /// markers, so that the next process trusts them at once, too. The request ends as
    /// [`Outcome::Vouched`](crate::Outcome::Vouched) when all nodes have answered, or at the node
    /// timeout.
    ///
    /// The caller vouches that no client believes in a lock that one of these nodes forgot. That
    /// is so, for instance, on nodes that no client has used yet.
    ///
    /// # Errors
    /// Before anything is sent: [`Error::Busy`].
    pub fn vouch(&mut self, data: u64) -> Result<Op, Error> {
        self.coordinator.vouch(data, clock::now())
    }

    /// Extends a lock to at least `ttl` from now. While too few nodes answer, the engine asks them
    /// again, up to the deadline that is in force.
    ///
    /// # Errors
    /// Before anything is sent: an invalid ttl, [`Error::Lost`], or [`Error::Busy`] while another
    /// extend of the lock is in flight.
    pub fn extend(&mut self, lock: &Lock, ttl: Duration, data: u64) -> Result<Op, Error> {
        self.coordinator.extend(lock, ttl, data, clock::now())
    }

    /// Releases a lock. The completion comes when a majority of nodes has released it, or at the
    /// node timeout; the engine sends the pending releases afterwards by itself. A lock that was
    /// over before ends as `AlreadyExpired` without a request to the nodes;
    /// [`release_token`](Engine::release_token) asks them.
    pub fn release(&mut self, lock: Lock, data: u64) -> Op {
        self.coordinator.release(lock, data, clock::now())
    }

    /// Releases `key` if it holds `token`, whichever client took it.
    ///
    /// # Errors
    /// Before anything is sent: an invalid key, or [`Error::Busy`].
    pub fn release_token(
        &mut self,
        key: impl AsRef<[u8]>,
        token: lock::LockToken,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.release_token(key.as_ref(), token, data, clock::now())
    }

    /// Releases a lock without a completion. Follow it with [`flush`](Engine::flush) or
    /// [`prepare`](Engine::prepare).
    pub fn release_nowait(&mut self, lock: &Lock) {
        self.coordinator.release_nowait(lock, clock::now());
    }

    /// Cancels every request and releases every lock, handed out or not: for an orderly end. Drive
    /// the engine on until [`Coordinator::open_records`] is zero: then no key is left on any node.
    /// If you stop earlier, it counts the keys that may be left on some node until their ttl ends.
    pub fn release_all(&mut self) {
        self.coordinator.release_all(clock::now());
    }

    /// Cancels a request: no completion follows, and a lock that it won or may yet win is
    /// released.
    pub fn cancel(&mut self, op: Op) {
        self.coordinator.cancel(op, clock::now());
    }

    /// How long the lock may still be believed in; zero once it is over. A local read.
    pub fn remaining(&self, lock: &Lock) -> Duration {
        self.coordinator.remaining(lock, clock::now())
    }

    /// When the lock ends, on the clock of [`clock::now`]; `None` once it is over.
    pub fn deadline(&self, lock: &Lock) -> Option<Instant> {
        self.coordinator.deadline(lock)
    }

    /// Call it before every sleep. Does what is due, writes what was requested, with one write for
    /// each node, and returns how long to sleep at most (`None`: until an event).
    pub fn prepare(&mut self) -> Option<Duration> {
        if !self.check_fork() {
            return self.coordinator.has_completions().then_some(Duration::ZERO);
        }
        self.go_on();
        self.plan_sleep()
    }

    /// Does what is due and writes what was requested, but does not plan the sleep that follows.
    /// For the process that made the engine.
    pub(crate) fn go_on(&mut self) {
        turn::run(&mut Driving(self));
    }

    /// Whether the driver can sleep without a timeout, because the alarm wakes it.
    pub(crate) fn has_alarm(&self) -> bool {
        self.alarm.stands_for_every_timeout()
    }

    /// Writes what was requested and sets the alarm, for drivers that sleep without a timeout.
    /// What is due is left to the next turn. In a forked process this does nothing, because the
    /// timer, too, is the parent's.
    pub(crate) fn end_turn(&mut self) {
        if self.check_fork() {
            self.write_out();
            self.plan_sleep();
        }
    }

    /// Makes sure that a sleep ends by that moment, even if nothing is due then.
    pub(crate) fn wake_by(&mut self, moment: Option<Instant>) {
        self.wake_deadline = moment;
    }

    /// How long to sleep at most. Sets the alarm.
    pub(crate) fn plan_sleep(&mut self) -> Option<Duration> {
        let due = match turn::wake(&mut Driving(self)) {
            Wake::AtOnce => {
                self.alarm.ring();
                return Some(Duration::ZERO);
            }
            Wake::OnEvent => {
                self.alarm.disarm();
                return None;
            }
            Wake::At(due) => due,
        };
        let now = clock::now();
        // The holder of a kept lock has to learn of a loss in time, also when the machine was
        // suspended.
        self.alarm.wake_at(due, now, self.coordinator.kept_locks() > 0);
        Some(due.saturating_since(now))
    }

    /// From now on the driver sleeps without a timeout. In return, [`end_turn`](Engine::end_turn)
    /// or [`prepare`](Engine::prepare) has to follow every request. Returns `false` if the system
    /// has no timer for that.
    pub(crate) fn needs_no_timeout(&mut self) -> bool {
        self.alarm.stand_for_every_timeout()
    }

    /// Sets how many bytes are read at once. A small number makes a test meet what is rare
    /// otherwise: a turn that leaves bytes unread.
    #[cfg(test)]
    pub(crate) fn read_at_once(&mut self, bytes: usize) {
        self.scratch = vec![0; bytes].into();
    }

    /// Writes what was requested, without doing what is due. Never waits.
    pub fn flush(&mut self) {
        let idle = !self.has_output() && !self.coordinator.has_actions();
        if idle || self.check_fork() {
            self.write_out();
        }
    }

    fn write_out(&mut self) {
        turn::write_out(&mut Driving(self));
    }

    /// Whether this is the process that made the engine. The copy in a forked process can do
    /// nothing: its requests end as [`Error::Config`], and neither it nor its drop touches a
    /// socket or a lock of the parent. The copy notices the fork here, in
    /// [`prepare`](Engine::prepare), and in every [`flush`](Engine::flush) that has something to
    /// write. So a loop that goes on in the child has to begin with one of them, not with events
    /// of the turn in which it forked.
    ///
    /// The engine compares process numbers, so it takes a copy with the same number for the
    /// original. A plain `fork` never makes such a copy. These may: a fork into a new namespace of
    /// process numbers, if parent and child both have the number 1; a checkpoint that is restored
    /// beside the original; and a virtual machine that is cloned. Such a copy writes to the
    /// parent's connections and draws the parent's tokens. In the child of such a fork, become
    /// another program (`exec`) before any part of the engine is used or dropped.
    pub fn check_fork(&mut self) -> bool {
        if std::process::id() == self.owner {
            return true;
        }
        self.coordinator.disown(clock::now());
        for socket in &mut self.sockets {
            // Closed, and nothing else: a shutdown, or deregistering from the poller, would act on
            // the parent's.
            socket.stream = None;
        }
        self.alarm.forget();
        self.more = NodeSet::EMPTY;
        false
    }

    fn has_output(&self) -> bool {
        self.nodes().iter().any(|node| !self.coordinator.output(node).is_empty())
    }

    /// Handles an event of the poller; returns `false` if it is not one of this engine's.
    pub fn handle_event(&mut self, event: &mio::event::Event) -> bool {
        let Some(node) = self.node_of(event.token()) else {
            let ours = self.owns(event.token());
            if ours {
                self.alarm.went_off();
            }
            return ours;
        };
        let socket = &mut self.sockets[node.index()];
        if socket.opening {
            self.look_whether_open(node);
        } else {
            socket.writable |= event.is_writable();
        }
        let readable = event.is_readable() || event.is_read_closed() || event.is_error();
        if readable {
            self.read(node, event.is_read_closed());
        }
        true
    }

    /// Whether events under `token` belong to this engine.
    pub fn owns(&self, token: Token) -> bool {
        token.0.checked_sub(self.base.0).is_some_and(|index| index <= self.sockets.len())
    }

    /// The next request that ended. A lock is handed out only before its deadline.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if !self.coordinator.has_completions() {
            return None;
        }
        // A lock that was granted before a fork is the parent's alone.
        self.check_fork();
        turn::hand_out(&mut Driving(self))
    }

    /// The next request that ended, without its result: [`fetch`](Engine::fetch) returns that
    /// later.
    pub(crate) fn poll_ended(&mut self) -> Option<(Op, u64)> {
        self.coordinator.poll_ended()
    }

    /// The result of a request, as of now; `None` while it goes on.
    pub(crate) fn fetch(&mut self, op: Op) -> Option<Completion> {
        turn::fetch(&mut Driving(self), op)
    }

    /// The next event of a node.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.coordinator.poll_node_event().or_else(|| {
            let node = self.take_stale()?;
            Some(NodeEvent::AddressStale { node })
        })
    }

    /// The node's name, to be looked up on a thread that may block; `None` if its URL has an
    /// address or a path. Call it after [`NodeEvent::AddressStale`].
    pub fn lookup(&self, node: NodeId) -> Option<Lookup> {
        self.sockets.get(node.index())?.connector.lookup().cloned()
    }

    /// Sets the addresses that the node's name leads to now. The node's next connection uses them;
    /// one that is open stays. An empty list changes nothing. A node without a name stays as it
    /// is.
    pub fn set_address(&mut self, node: NodeId, addresses: Vec<SocketAddr>) {
        if let Some(socket) = self.sockets.get_mut(node.index()) {
            if socket.connector.lookup().is_some() {
                socket.connector.set_addresses(addresses);
            }
        }
    }

    /// The next node whose name may lead elsewhere by now.
    pub(crate) fn take_stale(&mut self) -> Option<NodeId> {
        let node = self.stale.iter().next()?;
        self.stale.remove(node);
        Some(node)
    }

    /// The counters so far.
    pub fn stats(&self) -> &Stats {
        self.coordinator.stats()
    }

    /// The present state of a node.
    pub fn standing(&self, node: NodeId) -> NodeState {
        self.coordinator.standing(node)
    }

    /// The core, read-only.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    fn node_of(&self, token: Token) -> Option<NodeId> {
        let index = token.0.checked_sub(self.base.0)?;
        (index < self.sockets.len()).then(|| NodeId::new(index))
    }

    fn nodes(&self) -> NodeSet {
        NodeSet::first(self.sockets.len())
    }

    fn open(&mut self, node: NodeId) {
        let token = Token(self.base.0 + node.index());
        let failures = self.coordinator.failures(node);
        let socket = &mut self.sockets[node.index()];
        if socket.connector.is_stale(failures) {
            self.stale.insert(node);
        }
        let opened = socket.connector.open().and_then(|mut stream| {
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.registry.register(&mut stream, token, interest)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                socket.stream = Some(stream);
                (socket.opening, socket.writable) = (true, false);
                self.coordinator.handle_connecting(node, clock::now());
            }
            Err(error) => self.coordinator.handle_disconnected(node, &words(&error), clock::now()),
        }
    }

    /// Whether the connection attempt has ended.
    fn look_whether_open(&mut self, node: NodeId) {
        let socket = &mut self.sockets[node.index()];
        let Some(stream) = &mut socket.stream else { return };
        match stream.go_on() {
            Ok(false) => {}
            Ok(true) => {
                if stream.may_hold_input() {
                    self.more.insert(node);
                }
                (socket.opening, socket.writable) = (false, true);
                if let Err(error) = self.ask_for_credentials(node) {
                    return self.lost(node, &error);
                }
                self.coordinator.handle_connected(node, clock::now());
            }
            Err(error) => self.lost(node, &error),
        }
    }

    /// # Errors
    /// If the caller's function panics. Only that node fails: if the panic left the turn in its
    /// middle, the poller would not report the other sockets again.
    fn ask_for_credentials(&mut self, node: NodeId) -> io::Result<()> {
        let Some(ask) = &self.credentials else { return Ok(()) };
        let label = &self.coordinator.settings().nodes[node.index()].label;
        let asked = panic::catch_unwind(AssertUnwindSafe(|| (ask.0)(label)));
        let said = asked.map_err(|_| io::Error::other("who asks for credentials panicked"))?;
        let credentials = said.unwrap_or_else(|| self.by_url[node.index()].clone());
        self.coordinator.set_credentials(node, credentials);
        Ok(())
    }

    fn lost(&mut self, node: NodeId, error: &io::Error) {
        self.drop_stream(node);
        self.coordinator.handle_disconnected(node, &words(error), clock::now());
    }

    fn drop_stream(&mut self, node: NodeId) -> Option<Stream> {
        let socket = &mut self.sockets[node.index()];
        (socket.opening, socket.writable) = (false, false);
        self.more.remove(node);
        let mut stream = socket.stream.take()?;
        let _ = self.registry.deregister(&mut stream);
        Some(stream)
    }

    fn read(&mut self, node: NodeId, read_closed: bool) {
        for _ in 0..READS_A_TURN {
            let socket = &mut self.sockets[node.index()];
            // A connection that proto has broken off is closed with the next actions.
            let connected = self.coordinator.standing(node).is_connected();
            let Some(stream) = socket.stream.as_mut().filter(|_| connected) else { return };
            let (count, readiness) = stream.read(&mut self.scratch, read_closed);
            if count > 0 {
                let bytes = &self.scratch[..count];
                self.coordinator.handle_bytes(node, bytes, clock::now());
            }
            match readiness {
                Readiness::Drained => return,
                Readiness::More => {}
                Readiness::Closed(error) => return self.lost(node, &error),
            }
        }
        self.more.insert(node);
    }
}

/// The engine while it runs a turn. A type of its own, so that the steps of a turn are no methods
/// that users of the engine could call.
struct Driving<'a>(&'a mut Engine);

impl Driver for Driving<'_> {
    fn core(&mut self) -> &mut Coordinator {
        &mut self.0.coordinator
    }

    fn now(&mut self) -> Instant {
        clock::now()
    }

    fn has_rest(&mut self) -> bool {
        !self.0.more.is_empty()
    }

    fn read_rest(&mut self) {
        for node in std::mem::take(&mut self.0.more).iter() {
            self.0.read(node, false);
        }
    }

    fn read_all(&mut self) {
        for node in self.0.nodes().iter() {
            if self.0.sockets[node.index()].opening {
                self.0.look_whether_open(node);
            }
            if self.0.coordinator.unanswered(node) > 0 {
                self.0.read(node, false);
            }
        }
        // By now the kernel may take what it did not take last time.
        for socket in &mut self.0.sockets {
            socket.writable |= socket.stream.is_some() && !socket.opening;
        }
    }

    fn expire(&mut self, now: Instant) {
        self.0.coordinator.handle_timeout(now);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Connect(node) => self.0.open(node),
            Action::Disconnect(node) => {
                if let Some(stream) = self.0.drop_stream(node) {
                    // The pending releases of this node go out on its next connection.
                    stream.reset();
                }
            }
        }
    }

    fn write_all(&mut self) -> bool {
        let engine = &mut *self.0;
        let mut lost = false;
        for node in engine.nodes().iter() {
            let socket = &mut engine.sockets[node.index()];
            let output = engine.coordinator.output(node);
            let Some(stream) = socket.stream.as_mut().filter(|_| socket.writable) else { continue };
            if output.is_empty() && !stream.has_unsent() {
                continue;
            }
            match stream.write(output) {
                Ok((count, all)) => {
                    socket.writable = all;
                    engine.coordinator.handle_sent(node, count, clock::now());
                }
                Err(error) => {
                    engine.lost(node, &error);
                    lost = true;
                }
            }
        }
        lost
    }

    fn wake_deadline(&mut self) -> Option<Instant> {
        self.0.wake_deadline
    }
}

impl fmt::Debug for Engine {
    /// Shows the state of each node and how much is open, but no bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<NodeState> = self.nodes().iter().map(|node| self.standing(node)).collect();
        f.debug_struct("Engine")
            .field("nodes", &nodes)
            .field("open_records", &self.coordinator.open_records())
            .field("open_ops", &self.coordinator.open_ops())
            .finish_non_exhaustive()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.check_fork() {
            return;
        }
        self.coordinator.close(clock::now());
        self.write_out();
        // A close with unread input is a reset, which would discard what was just written.
        for socket in &mut self.sockets {
            let Some(stream) = &mut socket.stream else { continue };
            for _ in 0..LAST_READS {
                let (1.., Readiness::More) = stream.read(&mut self.scratch, false) else { break };
            }
        }
        for node in self.nodes().iter() {
            if let Some(stream) = self.drop_stream(node) {
                stream.finish();
            }
        }
        self.alarm.leave(&self.registry);
    }
}

/// The system's error text, without the number that it ends with.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}
