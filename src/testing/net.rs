//! A network inside the process: the cores of clients, in-process masters, the bytes in flight
//! between them, and a clock that only the test moves. With it a test simulates hours without a
//! sleep, and the same seed always gives the same run.
//!
//! ```
//! use std::time::Duration;
//! use redlatch::proto::{NodeSettings, Settings};
//! use redlatch::testing::net::Net;
//! use redlatch::{LockOptions, Outcome};
//!
//! let mut net = Net::new(3, 42); // three masters, and the seed of all random numbers
//! net.set_latency(Duration::from_micros(50)..=Duration::from_micros(150));
//! let nodes = (0..3).map(|node| NodeSettings::new(format!("n{node}"))).collect();
//! let settings = Settings::new(nodes);
//! let [alice, bob] = [net.client(settings.clone()), net.client(settings)];
//! net.pass(Duration::from_millis(10)); // they connect
//!
//! let (ttl, now) = (Duration::from_secs(10), net.now());
//! for client in [alice, bob] {
//!     net.client_mut(client).acquire("invoice:42", LockOptions::new(ttl), 0, now)?;
//! }
//! net.freeze(2); // a minority, so no client waits for it
//! let end = now.saturating_add(Duration::from_secs(1));
//! let winner = net.run(end).expect("one of them gets the lock");
//! let now = net.now();
//! let done = net.client_mut(winner).poll_completion(now).expect("a completion");
//! assert!(matches!(done.result, Ok(Outcome::Acquired(_))));
//! assert_eq!(net.run(end), None, "the other one waits");
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! # Time, or an order of your own
//!
//! [`run`](Net::run) and [`pass`](Net::pass) let time pass: each message arrives after its latency,
//! and each timer fires at its moment. A client that wakes reads what has arrived before it handles
//! its timers, as the event loop of this library does.
//!
//! To test one order of events instead, let no time pass, and make one step at a time, whatever the
//! latency is: [`write`](Net::write), [`open`](Net::open),
//! [`deliver_to_node`](Net::deliver_to_node), [`deliver_to_client`](Net::deliver_to_client),
//! [`advance`](Net::advance), [`expire`](Net::expire). [`settle`](Net::settle) delivers everything
//! that is left.
//!
//! # What goes wrong
//!
//! [`freeze`](Net::freeze), [`kill`](Net::kill) and [`restart`](Net::restart) are faults of nodes,
//! [`partition`](Net::partition) and [`cut`](Net::cut) of the network, [`stop`](Net::stop) and
//! [`replace`](Net::replace) of the process of a client. [`master_mut`](Net::master_mut) gives
//! access to the troubles of a master. Bytes that were in flight to a node when their connection
//! ended still arrive, as on a real network.
//!
//! The clients need not be those of this library: any [`Endpoint`] can be one, such as another
//! library that a test compares.

mod agenda;
mod deliver;
mod endpoint;
mod faults;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use self::agenda::{Agenda, Event};
use self::wire::{Orphan, Wire};
use super::master::{ConnectionId, Master};
use crate::proto::coordinator::Coordinator;
use crate::proto::node_set::NodeId;
use crate::proto::settings::Settings;
use crate::proto::time::Instant;

pub use self::endpoint::Endpoint;

/// The clock at the start of a net: not zero, so that a moment before the start can be expressed.
const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// The uptime of the masters at the start, in seconds: longer than any ttl, so that clients trust
/// the masters.
const A_DAY: u32 = 24 * 60 * 60;

/// Masters, clients that are connected to them, and the time. See the [module](self).
///
/// A clone goes on from the same state, for example with other events.
#[derive(Debug, Clone)]
pub struct Net<E = Coordinator> {
    now: Instant,
    rng: Xoshiro256PlusPlus,
    agenda: Agenda,
    nodes: Vec<Node>,
    clients: Vec<Client<E>>,
    /// Clients that may have something to write.
    touched: VecDeque<usize>,
    /// Clients that may have completions or updates for their callers.
    news: VecDeque<usize>,
    orphans: Vec<Orphan>,
    latency: RangeInclusive<Duration>,
    execution: Duration,
}

/// A master and its state in the network.
#[derive(Debug, Clone)]
struct Node {
    master: Master,
    /// The client of each connection, without the connections that their clients have lost.
    owners: BTreeMap<ConnectionId, usize>,
    frozen: bool,
    partitioned: bool,
    down: bool,
    /// Until when the node executes the messages that have arrived.
    busy_until: Instant,
}

impl Node {
    /// Whether the node executes what arrives.
    fn executes(&self) -> bool {
        !self.frozen && !self.partitioned
    }
}

/// A client and its connections.
#[derive(Debug, Clone)]
struct Client<E> {
    endpoint: E,
    wires: Vec<Wire>,
    stopped: bool,
    /// The moment for which the client's timer is set.
    due: Option<Instant>,
    /// The number of that timer. An event of a timer with a lower number is ignored.
    timer: u64,
    is_touched: bool,
    news: News,
}

/// Whether a client has something for its caller, and whether [`Net::run`] has returned the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    None,
    Queued,
    /// `run` has returned the client, but its caller may not have fetched everything.
    Told,
}

impl Net {
    /// Adds a client of this library, which begins to connect. Returns its number.
    ///
    /// # Panics
    /// If the settings cannot work, or have another number of nodes than this net.
    pub fn client(&mut self, settings: Settings) -> usize {
        assert_eq!(settings.nodes.len(), self.nodes.len(), "settings for each node");
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        let core = Coordinator::new(settings, seed, self.now);
        self.add(core.unwrap_or_else(|error| panic!("{error}")))
    }
}

impl<E: Endpoint> Net<E> {
    /// Makes a net of masters that have been up for a day, without clients. The latency is zero at
    /// first: a message arrives in the next call that lets time pass.
    pub fn new(nodes: usize, seed: u64) -> Net<E> {
        Net::starting_at(START, nodes, seed)
    }

    /// As [`new`](Net::new), but the clock begins at this moment.
    pub fn starting_at(now: Instant, nodes: usize, seed: u64) -> Net<E> {
        let node = |number: usize| {
            let mut master = Master::new(number as u64, now);
            master.set_uptime(now, A_DAY);
            Node {
                master,
                owners: BTreeMap::new(),
                frozen: false,
                partitioned: false,
                down: false,
                busy_until: now,
            }
        };
        Net {
            now,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            agenda: Agenda::default(),
            nodes: (0..nodes).map(node).collect(),
            clients: Vec::new(),
            touched: VecDeque::new(),
            news: VecDeque::new(),
            orphans: Vec::new(),
            latency: Duration::ZERO..=Duration::ZERO,
            execution: Duration::ZERO,
        }
    }

    /// Adds a client, which may be any endpoint. Returns its number.
    pub fn add(&mut self, endpoint: E) -> usize {
        let number = self.clients.len();
        self.clients.push(Client {
            endpoint,
            wires: vec![Wire::default(); self.nodes.len()],
            stopped: false,
            due: None,
            timer: 0,
            is_touched: false,
            news: News::None,
        });
        self.mark_touched(number);
        number
    }

    /// Sets how long a message is in flight, in either direction. The latency of each message is
    /// random in this range, but no message overtakes another one of its connection.
    pub fn set_latency(&mut self, latency: RangeInclusive<Duration>) {
        self.latency = latency;
    }

    /// Sets how long a master executes one message. It executes one message after the other.
    pub fn set_execution_time(&mut self, execution: Duration) {
        self.execution = execution;
    }

    /// The time now, for the calls of a client's core.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// How many masters there are.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// How many clients were added.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// This client.
    pub fn get_client(&self, client: usize) -> &E {
        &self.clients[client].endpoint
    }

    /// This client, for requests. It writes them when time passes, or at the next
    /// [`write`](Net::write).
    pub fn client_mut(&mut self, client: usize) -> &mut E {
        self.mark_touched(client);
        &mut self.clients[client].endpoint
    }

    /// This master.
    pub fn master(&self, node: usize) -> &Master {
        &self.nodes[node].master
    }

    /// This master, to change its keys or how it answers.
    pub fn master_mut(&mut self, node: usize) -> &mut Master {
        &mut self.nodes[node].master
    }

    /// Lets a master execute a command, as an operator or another program would, also if it is
    /// frozen. Returns the reply.
    pub fn command(&mut self, node: usize, words: &[&[u8]]) -> Vec<u8> {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend(format!("${}\r\n", word.len()).bytes());
            command.extend_from_slice(word);
            command.extend(b"\r\n");
        }
        let now = self.now;
        let master = self.master_mut(node);
        let operator = master.connect();
        master.handle_bytes(now, operator, &command);
        let reply = self.collect_and_find(node, Some(operator));
        self.master_mut(node).disconnect(operator);
        reply
    }

    /// Lets time pass until a client may have something for its caller (a request that ended, a
    /// lock that was lost), and returns the number of that client. Returns `None` at `until`.
    ///
    /// If the caller does not fetch everything from the client, `run` returns that client again
    /// only after another event of the client.
    pub fn run(&mut self, until: Instant) -> Option<usize> {
        loop {
            self.write_touched();
            if let Some(client) = self.take_news() {
                return Some(client);
            }
            let Some((at, event)) = self.agenda.next(until) else {
                self.now = self.now.max(until);
                return None;
            };
            self.now = self.now.max(at);
            self.handle_event(event);
        }
    }

    /// Lets this much time pass. Clients keep what they have for their callers.
    pub fn pass(&mut self, by: Duration) {
        let until = self.now.saturating_add(by);
        while self.run(until).is_some() {}
    }

    /// Advances the clock, and does nothing else: as if every process were stopped, and every
    /// message delayed, for that long.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now.saturating_add(by);
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Open { client, node } => {
                if !self.nodes[node].partitioned {
                    self.open(client, node);
                }
            }
            Event::ToNode { client, node } => self.arrive_at_node(client, node),
            Event::ToClient { client, node } => {
                self.arrive_at_client(client, node);
            }
            Event::Timer { client, timer } => {
                if self.clients[client].timer == timer {
                    self.clients[client].due = None;
                    self.wake(client);
                }
            }
            Event::Late { node, connection } => self.arrive_late(node, connection),
        }
    }

    /// Handles a client's timer as an event loop does: reads, writes, and then handles the timers.
    fn wake(&mut self, client: usize) {
        if self.clients[client].stopped {
            return;
        }
        for node in 0..self.nodes.len() {
            self.arrive_at_client(client, node);
        }
        self.write(client);
        self.expire(client);
    }

    fn mark_touched(&mut self, client: usize) {
        if !std::mem::replace(&mut self.clients[client].is_touched, true) {
            self.touched.push_back(client);
        }
    }

    fn take_news(&mut self) -> Option<usize> {
        loop {
            let client = self.news.pop_front()?;
            let it = &mut self.clients[client];
            // The caller may have fetched everything since.
            let has_news = it.endpoint.has_news();
            it.news = if has_news { News::Told } else { News::None };
            if has_news {
                return Some(client);
            }
        }
    }

    /// Records an event of a client, so that `run` returns the client again if it has something for
    /// its caller.
    fn note_event(&mut self, client: usize) {
        if self.clients[client].news == News::Told {
            self.clients[client].news = News::None;
        }
        self.mark_touched(client);
    }

    /// Draws the latency of the next message.
    fn draw_latency(&mut self) -> Duration {
        let (shortest, longest) = (*self.latency.start(), *self.latency.end());
        let range = longest.saturating_sub(shortest).as_nanos() + 1;
        let more = (u128::from(self.rng.next_u64()) * range) >> 64;
        shortest + Duration::from_nanos(more as u64)
    }

    fn node_ids(&self) -> impl Iterator<Item = NodeId> + use<E> {
        (0..self.nodes.len()).map(NodeId::new)
    }
}
