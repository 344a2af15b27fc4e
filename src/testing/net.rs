//! A network inside the process: the cores of clients, in-process masters, the bytes that are on
//! their way between them, and a clock that moves only when the test says so. With it a test plays
//! a day of locks in a second, and the same seed always gives the same run.
//!
//! ```
//! use std::time::Duration;
//! use redlatch::proto::{NodeSettings, Settings};
//! use redlatch::testing::net::Net;
//! use redlatch::{LockOptions, Outcome};
//!
//! let mut net = Net::new(3, 42); // three masters; the seed of all that is drawn
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
//! net.freeze(2); // a minority, so nobody waits for it
//! let end = now.saturating_add(Duration::from_secs(1));
//! let winner = net.run(end).expect("one of them gets the lock");
//! let now = net.now();
//! let done = net.client_mut(winner).poll_completion(now).expect("it is told so");
//! assert!(matches!(done.result, Ok(Outcome::Acquired(_))));
//! assert_eq!(net.run(end), None, "the other one waits");
//! # Ok::<(), redlatch::Error>(())
//! ```
//!
//! # Time, or an order of your own
//!
//! [`run`](Net::run) and [`pass`](Net::pass) let time pass: each message arrives after its latency,
//! each timer fires at its moment, and a program that wakes reads what has arrived before its
//! timers count, as the event loop of this library does.
//!
//! To play one certain order of events instead, let no time pass, and move one thing at a time,
//! whatever the latency is: [`write`](Net::write), [`open`](Net::open),
//! [`deliver_to_node`](Net::deliver_to_node), [`deliver_to_client`](Net::deliver_to_client),
//! [`advance`](Net::advance), [`expire`](Net::expire). [`settle`](Net::settle) delivers all the
//! rest.
//!
//! # What goes wrong
//!
//! [`freeze`](Net::freeze), [`kill`](Net::kill) and [`restart`](Net::restart) are for nodes,
//! [`partition`](Net::partition) and [`cut`](Net::cut) for the network, [`stop`](Net::stop) and
//! [`replace`](Net::replace) for the process of a client; [`master_mut`](Net::master_mut) has the
//! troubles of a master. What was on its way to a node when its connection ended still arrives, as
//! on a real network.
//!
//! The programs at the ends of the network need not be clients of this library: any [`Endpoint`]
//! will do, such as a peer that a test compares.

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

/// The clock at the start of a net: late enough that nothing happened before the beginning of time.
const START: Instant = Instant::from_nanos(1_000_000_000_000);

/// How long the masters are up at the start, in seconds: longer than any ttl, so that clients trust
/// them.
const A_DAY: u32 = 24 * 60 * 60;

/// Masters, programs that are connected to them, and the time. See the [module](self).
///
/// It can be cloned, to go on from one state in several ways.
#[derive(Debug, Clone)]
pub struct Net<E = Coordinator> {
    now: Instant,
    rng: Xoshiro256PlusPlus,
    agenda: Agenda,
    nodes: Vec<Node>,
    clients: Vec<Client<E>>,
    /// Clients that may have something to write.
    touched: VecDeque<usize>,
    /// Clients that may have something for their callers.
    news: VecDeque<usize>,
    orphans: Vec<Orphan>,
    latency: RangeInclusive<Duration>,
    execution: Duration,
}

/// A master and its state in the network.
#[derive(Debug, Clone)]
struct Node {
    master: Master,
    /// Whose connection it is. Those that their clients have lost are not here.
    owners: BTreeMap<ConnectionId, usize>,
    frozen: bool,
    partitioned: bool,
    down: bool,
    /// When it is done with what it executes now.
    busy_until: Instant,
}

impl Node {
    /// Whether it executes what is sent to it.
    fn executes(&self) -> bool {
        !self.frozen && !self.partitioned
    }
}

/// A program and its connections.
#[derive(Debug, Clone)]
struct Client<E> {
    endpoint: E,
    wires: Vec<Wire>,
    stopped: bool,
    /// The moment for which its timer is set.
    due: Option<Instant>,
    /// The number of that timer: an earlier one counts no more.
    timer: u64,
    is_touched: bool,
    news: News,
}

/// What a client has for its caller, and whether [`Net::run`] has said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    None,
    Queued,
    /// It was said, and the caller may have left something.
    Told,
}

impl Net {
    /// A new client of this library, which begins to connect. Returns its number.
    ///
    /// # Panics
    /// If the settings cannot work, or are not for as many nodes as there are.
    pub fn client(&mut self, settings: Settings) -> usize {
        assert_eq!(settings.nodes.len(), self.nodes.len(), "settings for each node");
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        let core = Coordinator::new(settings, seed, self.now);
        self.add(core.unwrap_or_else(|error| panic!("{error}")))
    }
}

impl<E: Endpoint> Net<E> {
    /// Masters that have been up for a day, and nobody who is connected to them. The latency is
    /// zero at first: a message arrives as soon as time may pass.
    pub fn new(nodes: usize, seed: u64) -> Net<E> {
        Net::starting_at(START, nodes, seed)
    }

    /// As [`new`](Net::new), with this moment for its beginning.
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

    /// A new program at an end of the network. Returns its number.
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
        self.touch(number);
        number
    }

    /// How long a message is on its way, each way: drawn anew for each message, but none overtakes
    /// another one of its connection.
    pub fn set_latency(&mut self, latency: RangeInclusive<Duration>) {
        self.latency = latency;
    }

    /// How long a master executes what arrives at once. It executes one such message after another.
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

    /// This client, to ask it for something. What it writes is on its way as soon as time passes,
    /// or with the next [`write`](Net::write).
    pub fn client_mut(&mut self, client: usize) -> &mut E {
        self.touch(client);
        &mut self.clients[client].endpoint
    }

    /// This master.
    pub fn master(&self, node: usize) -> &Master {
        &self.nodes[node].master
    }

    /// This master, to change what it has or how it answers.
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
    /// lock that was lost) and returns its number; or until `until`, and returns `None`.
    ///
    /// Who leaves something of what a client has is told of that client again when something else
    /// happens to it.
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
            self.happen(event);
        }
    }

    /// Lets this much time pass. What clients have for their callers by then is kept for them.
    pub fn pass(&mut self, by: Duration) {
        let until = self.now.saturating_add(by);
        while self.run(until).is_some() {}
    }

    /// The clock moves on, and nothing else happens: as if every process were stopped, and every
    /// message held up, for that long.
    pub fn advance(&mut self, by: Duration) {
        self.now = self.now.saturating_add(by);
    }

    fn happen(&mut self, event: Event) {
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

    /// A program's loop wakes by its timer: it reads, writes, and then lets happen what is due.
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

    fn touch(&mut self, client: usize) {
        if !std::mem::replace(&mut self.clients[client].is_touched, true) {
            self.touched.push_back(client);
        }
    }

    fn take_news(&mut self) -> Option<usize> {
        loop {
            let client = self.news.pop_front()?;
            let it = &mut self.clients[client];
            // Its caller may have taken everything since.
            let has_news = it.endpoint.has_news();
            it.news = if has_news { News::Told } else { News::None };
            if has_news {
                return Some(client);
            }
        }
    }

    /// Something happened to a client: what its caller left lying there is news once more.
    fn note_event(&mut self, client: usize) {
        if self.clients[client].news == News::Told {
            self.clients[client].news = News::None;
        }
        self.touch(client);
    }

    /// How long the next message is on its way.
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
