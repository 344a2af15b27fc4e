//! A TCP proxy in front of one node, which does to connections what a network does: it delays,
//! holds, cuts and splits them, and it vanishes.
//!
//! Each connection has four threads: one that reads and one that writes, in each direction. Between
//! these two lies a queue, on which the controls act. The one hazard: the sender counts what the
//! proxy has read as sent, so bytes that the proxy holds are in flight.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

use super::eventually;
use super::process::loopback;

/// More connections than a listener with a backlog of zero takes, so the next client finds no room.
const FILLERS: usize = 8;

const BACKLOG: i32 = 128;

/// Passes connections on to one address.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    listener: Arc<TcpListener>,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    /// Connections that fill the listener's backlog, so that no client gets in.
    fillers: Mutex<Vec<TcpStream>>,
}

/// The direction of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToNode = 0,
    ToClient = 1,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// An orderly end: bytes that were sent before it still arrive.
    Fin,
    /// A reset.
    Reset,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<SocketAddr>,
    state: Mutex<State>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    controls: Controls,
    ending: bool,
    /// The acceptor has to accept no more connections.
    vanished: bool,
    /// The acceptor has stopped accepting.
    stopped: bool,
    fillers: Vec<SocketAddr>,
    accepted: usize,
    open: Vec<Weak<Pair>>,
    pipes: Vec<[Pipe; 2]>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Controls {
    delay: [Duration; 2],
    holding: bool,
    /// The pause between two replies.
    trickle: Option<Duration>,
    in_bytes: bool,
    losing_pushes: bool,
}

/// Both ends of one connection.
#[derive(Debug)]
struct Pair {
    number: usize,
    client: TcpStream,
    /// Opened only once the proxy does not hold bytes back.
    node: OnceLock<TcpStream>,
}

/// The bytes in flight in one direction.
#[derive(Debug, Default)]
struct Pipe {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// The bytes that may leave now.
    head: Vec<u8>,
    end: Option<Cut>,
    not_before: Option<Instant>,
    /// The proxy itself ended the connection, by [`Proxy::cut`] or after a reset.
    cut: bool,
}

enum Step {
    Bytes(Vec<u8>),
    End(Cut),
    /// There is nothing to do before this moment, or before a control or the queue changes.
    Wait(Option<Instant>),
}

impl Proxy {
    /// A proxy in front of this address. At first it passes everything on as it comes.
    pub fn start(upstream: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback can be bound");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let listener = Arc::new(listener);
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            state: Mutex::default(),
            changed: Condvar::new(),
            threads: Mutex::default(),
        });
        let (own, accepting) = (Arc::clone(&shared), Arc::clone(&listener));
        let acceptor = Some(std::thread::spawn(move || accept(&accepting, &own)));
        Proxy { port, listener, shared, acceptor, fillers: Mutex::default() }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.state().accepted
    }

    /// How many connections to the proxy are being opened at this moment: SYNs without an answer.
    pub fn being_opened(&self) -> usize {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let port = format!(":{:04X}", self.port);
        let syn_sent = |line: &&str| {
            let mut words = line.split_whitespace().skip(2);
            words.next().is_some_and(|remote| remote.ends_with(&port)) && words.next() == Some("02")
        };
        table.lines().filter(syn_sent).count()
    }

    /// Bytes in this direction that the proxy reads from now on arrive that much later.
    pub fn delay(&self, way: Way, by: Duration) {
        self.control(|controls| controls.delay[way as usize] = by);
    }

    /// Keeps all bytes and passes none on. A client that connects is accepted, and gets no answer.
    pub fn hold(&self) {
        self.control(|controls| controls.holding = true);
    }

    /// Passes on the bytes that were kept, and those that come.
    pub fn heal(&self) {
        self.control(|controls| controls.holding = false);
    }

    /// Heals as a network that had lost packets. Of a connection that its client has reset
    /// meanwhile, only the first piece arrives, and after `late`: the client's machine never sent
    /// what was written after that piece.
    pub fn heal_with_stragglers(&self, late: Duration) {
        let reset = |[to_node, _]: &[Pipe; 2]| to_node.end == Some(Cut::Reset);
        eventually(Duration::from_secs(5), "a connection was reset by its client", || {
            self.shared.state().pipes.iter().any(reset)
        });
        let due = Instant::now() + late;
        {
            let mut state = self.shared.state();
            for [to_node, _] in &mut state.pipes {
                if to_node.end == Some(Cut::Reset) {
                    to_node.pieces.truncate(1);
                    to_node.pieces.iter_mut().for_each(|piece| piece.0 = due);
                }
            }
        }
        self.heal();
    }

    /// Connects new clients to this address from now on; open connections stay as they are.
    pub fn lead_to(&self, upstream: SocketAddr) {
        *held(&self.shared.upstream) = upstream;
    }

    /// Lets one reply through in each `interval`; with `None`, replies pass as they come.
    pub fn trickle(&self, interval: Option<Duration>) {
        self.control(|controls| controls.trickle = interval);
    }

    /// Writes every byte by itself, in both directions.
    pub fn split_into_bytes(&self) {
        self.control(|controls| controls.in_bytes = true);
    }

    /// Passes on every reply and no push, as if the network lost the pushes.
    pub fn lose_pushes(&self) {
        self.control(|controls| controls.losing_pushes = true);
    }

    /// Ends every connection, towards both sides, and returns when all of them are closed.
    pub fn cut(&self, how: Cut) {
        let open: Vec<Weak<Pair>> = {
            let mut state = self.shared.state();
            let open = std::mem::take(&mut state.open);
            for pair in open.iter().filter_map(Weak::upgrade) {
                state.pipes[pair.number].iter_mut().for_each(|pipe| pipe.cut = true);
                pair.end(how);
            }
            open
        };
        self.shared.changed.notify_all();
        eventually(Duration::from_secs(5), "the connections are closed", || {
            open.iter().all(|pair| pair.strong_count() == 0)
        });
    }

    /// Disappears without closing anything: no byte passes, and a client that connects gets no
    /// answer to its SYN.
    pub fn vanish(&self) {
        self.hold();
        self.shared.state().vanished = true;
        rustix::net::listen(&self.listener, 0).expect("a listener's queue can be shortened");
        let mut fillers = held(&self.fillers);
        for _ in 0..FILLERS {
            let address = loopback(self.port);
            // One of these connections wakes the acceptor, which then sees that it has to stop.
            let stopped = self.shared.state().stopped;
            let patience = Duration::from_millis(100);
            let Ok(filler) = TcpStream::connect_timeout(&address, patience) else {
                if stopped {
                    return;
                }
                continue;
            };
            let own = filler.local_addr().expect("a connected socket has an address");
            self.shared.state().fillers.push(own);
            fillers.push(filler);
        }
        panic!("a queue of length zero takes more than {FILLERS} connections");
    }

    /// The opposite of [`vanish`](Proxy::vanish).
    pub fn come_back(&self) {
        held(&self.fillers).clear();
        rustix::net::listen(&self.listener, BACKLOG).expect("a listener's queue can be changed");
        self.shared.state().vanished = false;
        self.heal();
    }

    fn control(&self, change: impl FnOnce(&mut Controls)) {
        change(&mut self.shared.state().controls);
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        held(&self.fillers).clear();
        let _ = rustix::net::listen(&self.listener, BACKLOG);
        self.shared.state().ending = true;
        self.shared.changed.notify_all();
        // One more connection wakes the acceptor, which looks at `ending` after each connection.
        let _ = TcpStream::connect_timeout(&loopback(self.port), Duration::from_secs(1));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for pair in self.shared.state().open.iter().filter_map(Weak::upgrade) {
            pair.end(Cut::Fin);
        }
        // A thread may have started others before it ended, so the loop asks for the list again
        // each time.
        loop {
            let Some(thread) = held(&self.shared.threads).pop() else { return };
            let _ = thread.join();
        }
    }
}

impl Pair {
    fn side(&self, way: Way) -> Option<&TcpStream> {
        match way {
            Way::ToClient => Some(&self.client),
            Way::ToNode => self.node.get(),
        }
    }

    fn end(&self, how: Cut) {
        for stream in [Way::ToClient, Way::ToNode].into_iter().filter_map(|way| self.side(way)) {
            let _ = match how {
                Cut::Fin => stream.shutdown(Shutdown::Both),
                Cut::Reset => {
                    // The kernel sends the RST when the last thread drops the socket. Ending the
                    // reads wakes the threads and sends nothing.
                    let _ = set_socket_linger(stream, Some(Duration::ZERO));
                    stream.shutdown(Shutdown::Read)
                }
            };
        }
    }
}

impl Pipe {
    fn step(&mut self, way: Way, controls: &Controls, now: Instant) -> Step {
        if controls.holding {
            return Step::Wait(None);
        }
        while self.pieces.front().is_some_and(|(due, _)| *due <= now) {
            let (_, bytes) = self.pieces.pop_front().expect("it was just looked at");
            self.head.extend(bytes);
        }
        let losing = controls.losing_pushes && way == Way::ToClient;
        let replies = if losing { self.replies() } else { Vec::new() };
        if !replies.is_empty() {
            return Step::Bytes(replies);
        }
        // While pushes are lost, only a part of a reply can be left here.
        if self.head.is_empty() || losing {
            return match (self.pieces.front(), self.end) {
                (Some((due, _)), _) => Step::Wait(Some(*due)),
                (None, Some(end)) => Step::End(end),
                (None, None) => Step::Wait(None),
            };
        }
        let (Some(interval), Way::ToClient) = (controls.trickle, way) else {
            return Step::Bytes(std::mem::take(&mut self.head));
        };
        let wait_until = self.not_before.filter(|&moment| moment > now);
        match (wait_until, reply_length(&self.head)) {
            (Some(moment), _) => Step::Wait(Some(moment)),
            (None, None) => Step::Wait(self.pieces.front().map(|(due, _)| *due)),
            (None, Some(length)) => {
                self.not_before = Some(now + interval);
                Step::Bytes(self.head.drain(..length).collect())
            }
        }
    }

    /// Takes all complete replies out of the bytes, and drops the pushes among them.
    fn replies(&mut self) -> Vec<u8> {
        let mut replies = Vec::new();
        while let Some(length) = reply_length(&self.head) {
            let reply = self.head.drain(..length);
            if reply.as_slice()[0] == b'>' {
                drop(reply);
            } else {
                replies.extend(reply);
            }
        }
        replies
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        held(&self.state)
    }

    /// Runs `work` on a thread that the proxy waits for when it is dropped.
    fn spawn(self: &Arc<Self>, work: impl FnOnce(&Arc<Shared>) + Send + 'static) {
        let own = Arc::clone(self);
        let thread = std::thread::spawn(move || work(&own));
        let mut threads = held(&self.threads);
        // The stack of a thread that ended stays mapped as long as its handle is kept.
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    /// Waits until bytes may pass; false if the proxy or the connection ends before that.
    fn wait_until_open(&self, number: usize) -> bool {
        let mut state = self.state();
        loop {
            if state.ending || state.pipes[number][0].cut {
                return false;
            }
            if !state.controls.holding {
                return true;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The next step of one direction of a connection; `None` if the connection was cut.
    fn next(&self, number: usize, way: Way) -> Option<Step> {
        let mut state = self.state();
        loop {
            let State { controls, ending, pipes, .. } = &mut *state;
            let pipe = &mut pipes[number][way as usize];
            if *ending || pipe.cut {
                return None;
            }
            let now = Instant::now();
            state = match pipe.step(way, controls, now) {
                Step::Wait(None) => {
                    self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
                Step::Wait(Some(moment)) => {
                    let left = moment.saturating_duration_since(now);
                    let waited = self.changed.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                step => return Some(step),
            };
        }
    }

    fn push(&self, number: usize, way: Way, bytes: &[u8]) {
        let mut state = self.state();
        let due = Instant::now() + state.controls.delay[way as usize];
        state.pipes[number][way as usize].pieces.push_back((due, bytes.to_vec()));
        drop(state);
        self.changed.notify_all();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((client, from)) = listener.accept() {
        let mut state = shared.state();
        while state.vanished && !state.ending {
            state.stopped = true;
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.stopped = false;
        if state.ending {
            return;
        }
        if state.fillers.contains(&from) {
            continue;
        }
        let _ = client.set_nodelay(true);
        state.accepted += 1;
        let number = state.pipes.len();
        state.pipes.push(<[Pipe; 2]>::default());
        let pair = Arc::new(Pair { number, client, node: OnceLock::new() });
        state.open.retain(|pair| pair.strong_count() > 0);
        state.open.push(Arc::downgrade(&pair));
        drop(state);
        shared.spawn(move |shared| connect(shared, pair));
    }
}

/// Connects to the node, and starts the threads that pass bytes on in both directions.
fn connect(shared: &Arc<Shared>, pair: Arc<Pair>) {
    if !shared.wait_until_open(pair.number) {
        return;
    }
    // If no server listens, this drops the pair, which closes the client's half.
    let Ok(node) = TcpStream::connect(*held(&shared.upstream)) else { return };
    let _ = node.set_nodelay(true);
    let _ = pair.node.set(node);
    for way in [Way::ToNode, Way::ToClient] {
        let (reading, writing) = (Arc::clone(&pair), Arc::clone(&pair));
        shared.spawn(move |shared| read(shared, &reading, way));
        shared.spawn(move |shared| write(shared, &writing, way));
    }
}

fn read(shared: &Shared, pair: &Pair, way: Way) {
    let from = if way == Way::ToNode { Some(&pair.client) } else { pair.node.get() };
    let mut from = from.expect("both halves are open");
    let mut buffer = [0; 16 * 1024];
    let end = loop {
        match from.read(&mut buffer) {
            Ok(0) => break Cut::Fin,
            Err(_) => break Cut::Reset,
            Ok(count) => shared.push(pair.number, way, &buffer[..count]),
        }
    };
    shared.state().pipes[pair.number][way as usize].end = Some(end);
    shared.changed.notify_all();
}

fn write(shared: &Shared, pair: &Pair, way: Way) {
    let mut to = pair.side(way).expect("both halves are open");
    while let Some(step) = shared.next(pair.number, way) {
        let written = match step {
            Step::Bytes(bytes) if shared.state().controls.in_bytes => {
                bytes.iter().try_for_each(|byte| {
                    // Lets the reading thread run, so that it may read each byte by itself. No
                    // sleep is needed.
                    std::thread::yield_now();
                    to.write_all(&[*byte])
                })
            }
            Step::Bytes(bytes) => to.write_all(&bytes),
            Step::End(Cut::Fin) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Step::End(Cut::Reset) => {
                shared.state().pipes[pair.number].iter_mut().for_each(|pipe| pipe.cut = true);
                shared.changed.notify_all();
                pair.end(Cut::Reset);
                return;
            }
            Step::Wait(_) => Ok(()),
        };
        if written.is_err() {
            return;
        }
    }
}

/// The length of the first reply in `bytes`; `None` if it is not complete.
fn reply_length(bytes: &[u8]) -> Option<usize> {
    let line = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..line - 2]).ok()?.parse::<i64>().ok();
    let items = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let length = number().and_then(|length| usize::try_from(length).ok());
            let end = length.map_or(line, |length| line + length + 2);
            return (bytes.len() >= end).then_some(end);
        }
        b'*' | b'~' | b'>' => number()?.max(0),
        b'%' | b'|' => 2 * number()?,
        _ => 0,
    };
    let mut end = line;
    for _ in 0..items {
        end += reply_length(bytes.get(end..)?)?;
    }
    Some(end)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
