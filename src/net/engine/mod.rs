//! The coordinator with its sockets, on the caller's poller: no thread, no poller and no waker of
//! its own.
//!
//! Correctness depends on the order of steps in a turn. The order is written in `proto::turn`,
//! which the simulation runs, too; here is what its steps do with real sockets and the real clock.

mod elections;
mod fork;
mod masters;
mod requests;
mod sockets;
mod turn;
mod updates;

use std::fmt;
use std::net::SocketAddr;

use mio::{Registry, Token};
use rand::TryRng;
use rand::rngs::SysRng;

use super::address::Lookup;
use super::alarm::Alarm;
use super::clock;
use super::connect::Connector;
use super::names::Names;
use super::observe::{Interface, Observer};
use crate::config::{AskForCredentials, Config};
use crate::proto::cluster::state::NodeState;
use crate::proto::coordinator::{Coordinator, NodeEvent};
use crate::proto::error::ConfigError;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::settings::Credentials;
use crate::proto::stats::Stats;
use crate::proto::time::Instant;
use sockets::Socket;

/// How many bytes are read at once. One buffer serves all sockets: the engine empties it before it
/// reads the next one.
const SCRATCH_BYTES: usize = 64 * 1024;

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
/// engine.acquire("invoice:42", Duration::from_secs(30), 7)?;
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
/// The engine calls two functions of yours: that of [`Config::credentials`], and on threads of its
/// own that of [`Config::resolver`]. A panic in them does not unwind through the loop. The engine
/// does not connect to that node then, tries again later, and serves everything else as before.
///
/// Dropping the engine cancels every request, and releases each lock that was granted, or may be
/// granted later, and was not returned to the caller, as far as the sockets take the releases
/// without waiting. A lock that it did hand out stays until its ttl is over, unless you release it:
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
    /// The first lookups, as far as they were late.
    first_lookups: Names,
    credentials: Option<AskForCredentials>,
    /// The user and password of each URL, used if the function of [`Config::credentials`] returns
    /// `None`.
    by_url: Vec<Credentials>,
    /// What is reported to `tracing`.
    observer: Observer,
    /// The number of the process that owns the sockets and the locks.
    owner: u32,
}

impl Engine {
    /// An engine whose sockets are registered with `registry`. Each node has one token, from
    /// `base` on, and the timer has the next one ([`owns`](Engine::owns) recognizes them). The
    /// engine begins to connect with the first [`prepare`](Engine::prepare).
    ///
    /// Names are looked up here, side by side, each on a short-lived thread. The call blocks until
    /// the addresses of a quorum are known and the others had as long again (20 ms at least), for
    /// the connect timeout at most. A node whose name is found later than that joins later.
    ///
    /// # Errors
    /// A setting that cannot work, or the system refuses what is needed.
    pub fn new(config: Config, registry: &Registry, base: Token) -> Result<Engine, ConfigError> {
        let system = |what: &str, error: &dyn std::fmt::Display| ConfigError::System {
            problem: format!("{what}: {error}").into(),
        };
        let mut seed = [0; 32];
        SysRng.try_fill_bytes(&mut seed).map_err(|e| system("no randomness", &e))?;
        let registry =
            registry.try_clone().map_err(|e| system("poller: cannot clone the registry", &e))?;
        config.settings.validate()?;
        let connectors = config.addresses.iter().map(|address| Connector::new(address, &config));
        let sockets = connectors.map(|connector| connector.map(Socket::new));
        let mut sockets = sockets.collect::<Result<Vec<Socket>, ConfigError>>()?;
        let lookups = sockets.iter().map(|it| it.connector.lookup().cloned()).collect();
        let timeout = config.settings.connect_timeout;
        let first_lookups = Names::of_new_engine(lookups, timeout, |node, found| {
            sockets[node.index()].connector.take_found(found);
        });
        let by_url = config
            .settings
            .nodes
            .iter()
            .map(|node| Credentials { user: node.user.clone(), password: node.password.clone() });
        let by_url = by_url.collect();
        let Some(timer) = base.0.checked_add(sockets.len()) else {
            let fact = "base + number of nodes overflows; choose a smaller base";
            return Err(system("base token", &fact));
        };
        // Created last, because the connect timeout starts here.
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
            first_lookups,
            credentials: config.credentials,
            by_url,
            observer: Observer::new(Interface::Engine),
            owner: std::process::id(),
        })
    }

    /// Whether events under `token` belong to this engine.
    pub fn owns(&self, token: Token) -> bool {
        token.0.checked_sub(self.base.0).is_some_and(|index| index <= self.sockets.len())
    }

    /// The next event of a node.
    pub fn poll_node_event(&mut self) -> Option<NodeEvent> {
        self.observer.next_node_event(&mut self.coordinator).or_else(|| {
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

    /// The master to which a node is connected whose URL has Sentinels; `None` while it is not, and
    /// for any other node.
    pub fn master_address(&self, node: NodeId) -> Option<SocketAddr> {
        let socket = self.sockets.get(node.index())?;
        let is_open = socket.stream.is_some() && !socket.opening;
        socket
            .connector
            .last_opened()
            .filter(|_| is_open && socket.connector.master_lookup().is_some())
    }

    /// The next node whose name may lead elsewhere by now.
    pub(crate) fn take_stale(&mut self) -> Option<NodeId> {
        let node = self.stale.iter().next()?;
        self.stale.remove(node);
        Some(node)
    }

    /// What the engine reports to `tracing`.
    pub(crate) fn observer(&mut self) -> &mut Observer {
        &mut self.observer
    }

    /// The counters so far.
    pub fn stats(&self) -> &Stats {
        self.coordinator.stats()
    }

    /// The present state of a node.
    pub fn node_state(&self, node: NodeId) -> NodeState {
        self.coordinator.node_state(node)
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
}

impl fmt::Debug for Engine {
    /// Shows the state of each node and how much is open, but no bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<NodeState> = self.nodes().iter().map(|node| self.node_state(node)).collect();
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
        self.close_sockets();
        self.alarm.leave(&self.registry);
    }
}
