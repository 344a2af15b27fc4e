//! The coordinator with its sockets, on the caller's poller: no thread, no poller and no waker of
//! its own.
//!
//! The order of a turn is what makes it right. It is written in `proto::turn`, which the simulation
//! runs, too; here is what its steps do with real sockets and the real clock.

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
use crate::proto::coordinator::{Action, Coordinator, NodeEvent};
use crate::proto::error::{ConfigError, Error};
use crate::proto::keeper::AutoExtend;
use crate::proto::lock::{self, Lock};
use crate::proto::node::{NodeId, NodeSet};
use crate::proto::ops::{Completion, Op};
use crate::proto::settings::Credentials;
use crate::proto::standing::NodeState;
use crate::proto::stats::Stats;
use crate::proto::time::Instant;
use crate::proto::turn::{self, Driver, Wake};

/// What is read at once. One for all sockets: it is empty again before the next one is read.
const SCRATCH_BYTES: usize = 64 * 1024;

/// How many full buffers are read from one node before the others have their turn: a node that
/// sends without end must not keep the loop.
const READS_A_TURN: usize = 4;

/// How many full buffers are read from one node at the end, so that the close is no reset. More
/// than any answer; one that sends without end is reset, and must not keep who drops the engine.
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
/// It is `Send` and `Sync`: it may be made on one thread and used on another, and whoever asks it
/// for something needs it mutably. Several live on one poller, each from a base token of its own,
/// as many tokens apart as there are nodes, and one. It blocks only in [`new`](Engine::new), where
/// names are looked up.
///
/// After `fork` it belongs to the parent: see [`check_fork`](Engine::is_ours).
///
/// No call of it waits, so no signal interrupts one. Your own wait it may: `mio::Poll::poll` then
/// returns [`Interrupted`](std::io::ErrorKind::Interrupted), and the loop turns once more, from
/// [`prepare`](Engine::prepare) on.
///
/// It calls nobody back but for what [`Config::credentials`] was given, and what
/// [`Config::resolver`] was, in `new`. A panic of the former does not go through the loop: that
/// node is not connected to, which is tried again, and everything else goes on.
///
/// Dropping it releases what it was asked for and did not hand out, as far as the sockets take it
/// without waiting. A lock that it did hand out stays until its ttl is over, unless it is released:
/// [`release_all`](Engine::let_all_go) does it for all of them. Whether your poller is dropped
/// before it or behind it makes no difference.
pub struct Engine {
    coordinator: Coordinator,
    registry: Registry,
    base: Token,
    sockets: Vec<Socket>,
    alarm: Alarm,
    /// Whoever drives it wants to be awake by then.
    wake_deadline: Option<Instant>,
    scratch: Box<[u8]>,
    /// Nodes that had more to read than their turn allowed.
    more: NodeSet,
    /// Nodes whose names may lead elsewhere by now; nobody was told yet.
    stale: NodeSet,
    credentials: Option<AskForCredentials>,
    /// Who we are by the URLs, where somebody is asked who may say so.
    by_url: Vec<Credentials>,
    /// The process that the sockets and what is held belong to.
    owner: u32,
}

#[derive(Debug)]
struct Socket {
    connector: Connector,
    stream: Option<Stream>,
    /// The connection is not known to be open yet.
    opening: bool,
    /// The kernel may take more. It is not asked again before the poller says so.
    writable: bool,
}

impl Engine {
    /// An engine whose sockets are registered with `registry`, under one token for each node from
    /// `base` on, and one more for a timer ([`owns`](Engine::owns) tells). It begins to connect
    /// with the first [`prepare`](Engine::prepare).
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

    /// Asks for `key`, and waits for it for 10 s, or as the options say. The completion brings
    /// `data` back. If the lock is to be kept, it is followed by those of [`keep`](Engine::keep),
    /// with the same `data`.
    ///
    /// It may be asked at once. While the nodes' first handshakes go on, the request is held until
    /// a quorum of nodes is connected, for the connect timeout at most. So an acquire on a new
    /// engine may take that much longer than its wait.
    ///
    /// # Errors
    /// Before anything is sent: a ttl or key that cannot be, or [`Error::Busy`].
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
    /// as far as `keep` allows. The completions are [`Outcome::Expiring`](crate::Outcome), whenever
    /// it comes near its deadline, and at last [`Error::Lost`], once, and before the deadline where
    /// the loop turns in time. A lock that is released or given away has no further completion.
    ///
    /// # Errors
    /// A `keep` that cannot be, or [`Error::Lost`].
    pub fn auto_extend(
        &mut self,
        lock: &Lock,
        keep: impl Into<AutoExtend>,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.auto_extend(lock, keep.into(), data, clock::now())
    }

    /// Gives a lock away: its token is for another to [`adopt`](Engine::adopt). It is not renewed
    /// any more and never released here; `None` where it was over. Questions about it that are not
    /// answered yet may still prolong it: away with a lock while an extend is under way is away
    /// with what that extend gives, too.
    pub fn into_token(&mut self, lock: Lock) -> Option<lock::LockToken> {
        self.coordinator.into_token(lock, clock::now())
    }

    /// Takes up the lock on `key` that was given away with `token`, under a new token: of two who
    /// try with one token, one at most holds it. One attempt, whatever wait the options have.
    ///
    /// It ends as an acquire does, or as [`Error::Lost`] where the token does not hold the key on
    /// enough nodes. Where the giver still believes in the lock, it is lost to them, which they
    /// learn with their next extend: give it away first.
    ///
    /// # Errors
    /// Before anything is sent: what cannot be, or [`Error::Busy`].
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

    /// Prolongs `key` to at least `ttl` from now where it holds `token`, whoever took it: for
    /// scripts. One round; nothing is released, whatever comes of it.
    ///
    /// # Errors
    /// Before anything is sent: what cannot be, or [`Error::Busy`].
    pub fn extend_token(
        &mut self,
        key: impl AsRef<[u8]>,
        token: lock::LockToken,
        ttl: Duration,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.extend_token(key.as_ref(), token, ttl, data, clock::now())
    }

    /// Looks what every node holds at `key`, changing nothing. It ends when all answered, or at
    /// the node timeout.
    ///
    /// # Errors
    /// Before anything is sent: a key that cannot be, or [`Error::Busy`].
    pub fn inspect(&mut self, key: impl AsRef<[u8]>, data: u64) -> Result<Op, Error> {
        self.coordinator.inspect(key.as_ref(), data, clock::now())
    }

    /// Ends the quarantine of every node that can be asked, and writes it into their node markers,
    /// so that the next process trusts them at once, too. It ends as
    /// [`Outcome::Vouched`](crate::Outcome::Vouched) when all nodes have answered, or at the node
    /// timeout.
    ///
    /// The caller vouches that no client believes in a lock that one of these nodes forgot: on
    /// nodes that nobody has used yet, for instance.
    ///
    /// # Errors
    /// Before anything is sent: [`Error::Busy`].
    pub fn vouch(&mut self, data: u64) -> Result<Op, Error> {
        self.coordinator.vouch(data, clock::now())
    }

    /// Deletes `key` on every node, whoever holds it. A holder goes on believing in the lock until
    /// they notice, and meanwhile another can have it: this breaks what a lock promises. For an
    /// operator who knows that the holder is gone.
    ///
    /// # Errors
    /// Before anything is sent: a key that cannot be, or [`Error::Busy`].
    pub fn dangerously_force_release(
        &mut self,
        key: impl AsRef<[u8]>,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.force_release(key.as_ref(), data, clock::now())
    }

    /// Prolongs a lock to at least `ttl` from now. While too few nodes answer they are asked
    /// again, up to the deadline that is in force.
    ///
    /// # Errors
    /// Before anything is sent: a ttl that cannot be, [`Error::Lost`], or [`Error::Busy`] while it
    /// is being extended.
    pub fn extend(&mut self, lock: &Lock, ttl: Duration, data: u64) -> Result<Op, Error> {
        self.coordinator.extend(lock, ttl, data, clock::now())
    }

    /// Gives a lock back. Its completion comes when a majority let go of it, or at the node
    /// timeout; what is owed then still goes out by itself. A lock that was over before is
    /// `AlreadyExpired` without asking: [`release_token`](Engine::release_token) asks.
    pub fn release(&mut self, lock: Lock, data: u64) -> Op {
        self.coordinator.release(lock, data, clock::now())
    }

    /// Releases `key` where it holds `token`, whoever took it.
    ///
    /// # Errors
    /// Before anything is sent: a key that cannot be, or [`Error::Busy`].
    pub fn release_token(
        &mut self,
        key: impl AsRef<[u8]>,
        token: lock::LockToken,
        data: u64,
    ) -> Result<Op, Error> {
        self.coordinator.release_token(key.as_ref(), token, data, clock::now())
    }

    /// Gives a lock back without waiting for what comes of it. Follow it with
    /// [`flush`](Engine::flush) or [`prepare`](Engine::prepare).
    pub fn release_nowait(&mut self, lock: &Lock) {
        self.coordinator.release_nowait(lock, clock::now());
    }

    /// Takes every request back and gives every lock back, handed out or not: for an orderly end.
    /// Drive the engine on until [`Coordinator::open_records`] is zero, and nothing is left on any
    /// node; what it counts otherwise are keys that may be left on some node until their ttl ends.
    pub fn release_all(&mut self) {
        self.coordinator.release_all(clock::now());
    }

    /// Takes a request back: no completion follows, and what it won or may yet win is released.
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

    /// To be called before every sleep: does what is due, writes what was asked, one write for
    /// each node, and says how long to sleep at most (`None`: until an event).
    pub fn prepare(&mut self) -> Option<Duration> {
        if !self.check_fork() {
            return self.coordinator.has_completions().then_some(Duration::ZERO);
        }
        self.go_on();
        self.plan_sleep()
    }

    /// Does what is due and writes what was asked, in the process that made it, without planning
    /// the sleep behind it.
    pub(crate) fn go_on(&mut self) {
        turn::run(&mut Driving(self));
    }

    /// Whether those who sleep need no timeout: the alarm wakes them.
    pub(crate) fn has_alarm(&self) -> bool {
        self.alarm.stands_for_every_timeout()
    }

    /// Writes what was asked and sets the alarm, for those who need no timeout. Nothing that is due
    /// is done. In a forked process the timer, too, is the parent's.
    pub(crate) fn end_turn(&mut self) {
        if self.check_fork() {
            self.write_out();
            self.plan_sleep();
        }
    }

    /// Sees to it that a sleep is over at that moment, whatever is due by itself.
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
        // Who keeps a lock is told of its loss in time: also when the machine was suspended.
        self.alarm.wake_at(due, now, self.coordinator.kept_locks() > 0);
        Some(due.saturating_since(now))
    }

    /// Whoever drives it sleeps without a timeout from now on, as long as everything that is asked
    /// is followed by [`end_turn`](Engine::end_turn) or [`prepare`](Engine::prepare); `false` where
    /// the system has no timer for that.
    pub(crate) fn needs_no_timeout(&mut self) -> bool {
        self.alarm.stand_for_every_timeout()
    }

    /// Reads so few bytes at once from now on: what a turn leaves unread is a rare thing otherwise.
    #[cfg(test)]
    pub(crate) fn read_at_once(&mut self, bytes: usize) {
        self.scratch = vec![0; bytes].into();
    }

    /// Writes what was asked, without doing what is due. It never waits.
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
    /// nothing: its requests end as [`Error::Config`], and neither it nor its end touches a socket
    /// or a lock of the parent. It finds out here, in [`prepare`](Engine::prepare), and in every
    /// [`flush`](Engine::flush) that has something to write: a loop that goes on in the child
    /// begins with one of them, not with events of the turn in which it forked.
    ///
    /// Processes are told apart by their number, so a copy with the same number is taken for the
    /// original. A plain `fork` never makes one. These may: a fork into a new namespace of process
    /// numbers, where the child of a process with the number 1 has the number 1, too; a checkpoint
    /// that is restored beside the original; and a virtual machine that is cloned. Such a copy
    /// writes to the parent's connections and draws the parent's tokens. In the child of such a
    /// fork, become another program (`exec`) before anything of this is used or dropped.
    pub fn check_fork(&mut self) -> bool {
        if std::process::id() == self.owner {
            return true;
        }
        self.coordinator.disown(clock::now());
        for socket in &mut self.sockets {
            // Closed, and nothing else: a shutdown, or leaving the poller, would be the parent's.
            socket.stream = None;
        }
        self.alarm.forget();
        self.more = NodeSet::EMPTY;
        false
    }

    fn has_output(&self) -> bool {
        self.nodes().iter().any(|node| !self.coordinator.output(node).is_empty())
    }

    /// Takes an event of the poller; `false` where it is not one of ours.
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

    /// Whether events under `token` are ours.
    pub fn owns(&self, token: Token) -> bool {
        token.0.checked_sub(self.base.0).is_some_and(|index| index <= self.sockets.len())
    }

    /// The next request that came to its end. A lock is handed out only before its deadline.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if !self.coordinator.has_completions() {
            return None;
        }
        // A lock that was granted before a fork is the parent's alone.
        self.check_fork();
        turn::hand_out(&mut Driving(self))
    }

    /// The next request that came to its end, without the end: it is fetched later.
    pub(crate) fn poll_ended(&mut self) -> Option<(Op, u64)> {
        self.coordinator.poll_ended()
    }

    /// What a request came to, as of now; `None` where it goes on.
    pub(crate) fn fetch(&mut self, op: Op) -> Option<Completion> {
        turn::fetch(&mut Driving(self), op)
    }

    /// The next thing that happened to a node.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.coordinator.poll_node_event().or_else(|| {
            let node = self.take_stale()?;
            Some(NodeEvent::AddressStale { node })
        })
    }

    /// The node's name, to be looked up on a thread that may wait for it; `None` where its URL has
    /// an address or a path. Behind [`NodeEvent::AddressStale`].
    pub fn lookup(&self, node: NodeId) -> Option<Lookup> {
        self.sockets.get(node.index())?.connector.lookup().cloned()
    }

    /// Where the node's name leads now. Its next connection goes there; one that is open stays.
    /// None at all change nothing, and neither does anything for a node without a name.
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

    /// What was counted so far.
    pub fn stats(&self) -> &Stats {
        self.coordinator.stats()
    }

    /// What a node is to us at the moment.
    pub fn standing(&self, node: NodeId) -> NodeState {
        self.coordinator.standing(node)
    }

    /// The core, to look at.
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

    /// Whether the connection that was begun came to something.
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
    /// Where the caller's function panics. It is the trouble of that node: were the turn left in
    /// its middle, the poller would not tell of the other sockets again.
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
            // One that proto has broken off is closed with the next actions.
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
/// of the engine that its users could call.
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
        // The kernel may take by now what it did not when it was asked last.
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
                    // What is owed there is paid on the next connection.
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
    /// What each node is to us, and how much is open: the bytes are nobody's business.
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
        // A close with unread input is a reset, which would throw away what was just written.
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

/// What the system says, without the number it ends with.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_string()
}
