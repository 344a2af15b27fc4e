//! The least that any program has to do: the same bytes to the same nodes, answers counted by their
//! first byte, the next question at the majority.
//!
//! No timer, no token, no check of anything: an answer that is no grant is a panic. If a node will
//! be frozen, the floor gets only the other ones, which no client can know.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use bytes::BytesMut;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};
use redlatch::proto::command::{self, Form};
use redlatch::{LockToken, Ttl, majority};

use super::arrivals::Arrivals;
use super::delete::Delete;
use super::open_loop::{self, Done, Steps};
use super::support::Node;
use super::tally::Tally;
use super::{Contender, NODES, TTL};

/// As much as the engine reads at once.
const SCRATCH_BYTES: usize = 64 * 1024;

/// The number of answers that decide.
pub const QUORUM: u32 = majority(NODES) as u32;

/// Five sockets and what was asked on them.
pub struct Floor {
    poll: Poll,
    events: Events,
    wires: Vec<Wire>,
    slots: Vec<Slot>,
    scratch: Box<[u8]>,
    /// Keys whose question got its majority in this turn, in that order.
    decided: VecDeque<u32>,
}

struct Wire {
    stream: TcpStream,
    outbox: Vec<u8>,
    asks: VecDeque<Ask>,
    writable: bool,
    /// Bytes of an answer, counted already, that are still to come.
    rest: usize,
}

/// What the next answer of a node is about.
struct Ask {
    slot: u32,
    question: u32,
}

/// One key.
pub struct Slot {
    set: Vec<u8>,
    release: Vec<u8>,
    /// Counted up with each question: odd is a `SET`, even its release.
    question: u32,
    answers: u32,
    asked: Instant,
}

impl Floor {
    /// Connects to the nodes that will answer.
    pub fn connect(nodes: &[&Node], name: &str, most: usize, delete: Delete) -> Floor {
        let poll = Poll::new().expect("a poller");
        let mut wires = Vec::new();
        for node in nodes {
            load_script(node);
            let stream = std::net::TcpStream::connect(node.address()).expect("a running server");
            stream.set_nodelay(true).expect("an option of every socket");
            stream.set_nonblocking(true).expect("an option of every socket");
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut stream, Token(wires.len()), interest)
                .expect("a new socket can be polled");
            let (outbox, asks) = (Vec::new(), VecDeque::new());
            wires.push(Wire { stream, outbox, asks, writable: true, rest: 0 });
        }
        Floor {
            poll,
            events: Events::with_capacity(64),
            wires,
            slots: (0..most).map(|number| Slot::new(name, number, delete.form())).collect(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            decided: VecDeque::new(),
        }
    }

    /// Puts the next question about a key into every outbox.
    fn ask(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        let question = slot.next_question();
        let bytes = slot.bytes();
        for wire in &mut self.wires {
            wire.outbox.extend_from_slice(bytes);
            wire.asks.push_back(Ask { slot: number, question });
        }
    }

    fn turn(&mut self) {
        for wire in &mut self.wires {
            wire.write();
        }
        match self.poll.poll(&mut self.events, None) {
            // A signal of a debugger, or that of a stop, ended the call: the next turn goes on.
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            other => other.expect("the poller works"),
        }
        for event in &self.events {
            // The event of the open loop's timer belongs to no wire.
            let Some(wire) = self.wires.get_mut(event.token().0) else { continue };
            wire.writable |= event.is_writable();
            if event.is_readable() {
                wire.read(&mut self.scratch, |ask| {
                    let slot = &mut self.slots[ask.slot as usize];
                    if slot.answered(ask.question) == Some(QUORUM) {
                        self.decided.push_back(ask.slot);
                    }
                });
            }
        }
    }
}

impl Slot {
    /// The key with this number, and what is sent about it.
    pub fn new(name: &str, number: usize, form: Form) -> Slot {
        let ttl = Ttl::new(TTL, TTL).expect("a ttl");
        let token = LockToken::parse(&format!("{number:040x}")).expect("forty hex digits");
        let key = format!("{name}:{number:04}");
        let mut set = BytesMut::new();
        command::acquire(&mut set, key.as_bytes(), &token, ttl);
        let mut release = BytesMut::new();
        command::release(&mut release, form, key.as_bytes(), &token);
        let (set, release) = (set.to_vec(), release.to_vec());
        Slot { set, release, question: 0, answers: 0, asked: Instant::now() }
    }

    /// A pair begins at this moment.
    pub fn begin(&mut self, now: Instant) {
        self.asked = now;
    }

    /// The number of the next question.
    pub fn next_question(&mut self) -> u32 {
        self.question += 1;
        self.answers = 0;
        self.question
    }

    /// The bytes of the question.
    pub fn bytes(&self) -> &[u8] {
        if self.question % 2 == 1 { &self.set } else { &self.release }
    }

    /// Counts an answer; returns how many there are. `None`: it answers an earlier question.
    pub fn answered(&mut self, question: u32) -> Option<u32> {
        if self.question != question {
            return None;
        }
        self.answers += 1;
        Some(self.answers)
    }

    /// The last question got its majority. Returns whether another question follows for this key.
    pub fn go_on(&mut self, tally: &mut Tally) -> bool {
        if self.question % 2 == 1 {
            tally.acquired(self.asked);
            return true;
        }
        let Some(now) = tally.released() else { return false };
        self.asked = now;
        true
    }
}

/// Makes the node know the script of a release.
pub fn load_script(node: &Node) {
    let loaded = node.command(&["SCRIPT", "LOAD", command::RELEASE.source]);
    assert_eq!(loaded.text(), command::RELEASE.sha1);
}

/// The length of the answer that begins here. Panics if it is not a grant.
pub fn answer_length(bytes: &[u8]) -> usize {
    match bytes[0] {
        b'+' => "+OK\r\n".len(),
        b':' => ":1\r\n".len(),
        _ => panic!("{}", String::from_utf8_lossy(bytes)),
    }
}

impl Wire {
    fn write(&mut self) {
        if self.outbox.is_empty() || !self.writable {
            return;
        }
        match self.stream.write(&self.outbox) {
            Ok(count) => {
                self.writable = count == self.outbox.len();
                self.outbox.drain(..count);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
            Err(error) => panic!("a server that runs takes bytes: {error}"),
        }
    }

    /// Reads until the socket is drained, and gives each answer's ask to `answered`.
    fn read(&mut self, scratch: &mut [u8], mut answered: impl FnMut(Ask)) {
        loop {
            let count = match self.stream.read(scratch) {
                Ok(0) => panic!("a server closed"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("a server that runs answers: {error}"),
            };
            let mut at = self.rest;
            while at < count {
                at += answer_length(&scratch[at..count]);
                answered(self.asks.pop_front().expect("an answer has its question"));
            }
            self.rest = at - count;
            if count < scratch.len() {
                return;
            }
        }
    }
}

impl Contender for Floor {
    fn run(&mut self, in_flight: usize, tally: &mut Tally) {
        for slot in 0..in_flight {
            self.slots[slot].begin(Instant::now());
            self.ask(slot as u32);
        }
        let mut open = in_flight;
        while open > 0 {
            self.turn();
            while let Some(number) = self.decided.pop_front() {
                if self.slots[number as usize].go_on(tally) {
                    self.ask(number);
                } else {
                    open -= 1;
                }
            }
        }
        self.settle();
    }

    fn run_open(&mut self, arrivals: Arrivals, tally: &mut Tally) {
        open_loop::run(self, arrivals, tally);
    }
}

impl Steps for Floor {
    fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    fn acquire(&mut self, slot: usize) {
        self.ask(slot as u32);
    }

    fn turn(&mut self) {
        self.turn();
    }

    fn next_done(&mut self) -> Option<Done> {
        let number = self.decided.pop_front()?;
        if self.slots[number as usize].question % 2 == 1 {
            self.ask(number);
            Some(Done::Acquired(number as usize))
        } else {
            Some(Done::Released(number as usize))
        }
    }

    fn settle(&mut self) {
        while self.wires.iter().any(|wire| !wire.asks.is_empty()) {
            self.turn();
        }
    }
}
