//! The least that any program has to do: the same bytes to the same nodes, answers counted by their
//! first byte, the next question at the majority.
//!
//! No timer, no token, no check of anything: an answer that is no grant is a panic. The module that
//! includes this file has a `tally`, which counts pairs and says when a run is over.

#![allow(dead_code, reason = "a test or a bench uses a part of this")]

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use bytes::BytesMut;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Registry, Token};
use redlatch::proto::command::{self, Form};
use redlatch::{LockToken, Ttl};

use super::TTL;
use super::tally::Tally;

/// As much as the engine reads at once.
const SCRATCH_BYTES: usize = 64 * 1024;

/// What the next answer of a node is about.
#[derive(Debug, Clone, Copy)]
struct Ask {
    slot: u32,
    question: u32,
}

/// Sockets, and the keys that are asked for on them.
pub struct Floor {
    sockets: Sockets,
    slots: Vec<Slot>,
    quorum: u32,
    /// Keys whose question got its majority, in that order.
    decided: VecDeque<u32>,
}

/// One key.
struct Slot {
    set: Vec<u8>,
    release: Vec<u8>,
    /// Counted up with each question: odd is a `SET`, even its release.
    question: u32,
    answers: u32,
    asked: Instant,
}

/// A pair has come so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Acquired,
    Released,
}

impl Floor {
    /// So many keys, on nodes that know the script.
    pub fn connect(
        addresses: &[String],
        quorum: usize,
        name: &str,
        most: usize,
        form: Form,
    ) -> Floor {
        let sockets = Sockets::connect(addresses);
        let slots = (0..most).map(|number| Slot::new(name, number, form)).collect();
        Floor { sockets, slots, quorum: quorum as u32, decided: VecDeque::new() }
    }

    /// The registry of the poller that has the sockets.
    pub fn registry(&self) -> &Registry {
        self.sockets.poll.registry()
    }

    /// Keeps `in_flight` keys in flight until the tally says that the run is over; returns when no
    /// answer is outstanding.
    pub fn run(&mut self, in_flight: usize, tally: &mut Tally) {
        for slot in 0..in_flight {
            self.begin(slot, Instant::now());
        }
        let mut open = in_flight;
        while open > 0 {
            self.turn();
            while let Some((slot, step)) = self.next_decided() {
                match step {
                    Step::Acquired => {
                        tally.acquired(self.slots[slot].asked);
                        self.ask(slot);
                    }
                    Step::Released => match tally.released() {
                        Some(now) => self.begin(slot, now),
                        None => open -= 1,
                    },
                }
            }
        }
        self.settle();
    }

    /// Begins a pair at this moment.
    pub fn begin(&mut self, slot: usize, now: Instant) {
        self.slots[slot].asked = now;
        self.ask(slot);
    }

    /// Puts the next question about a key into every outbox.
    pub fn ask(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        slot.question += 1;
        slot.answers = 0;
        let bytes = if slot.question % 2 == 1 { &slot.set } else { &slot.release };
        self.sockets.ask(bytes, Ask { slot: number as u32, question: slot.question });
    }

    pub fn turn(&mut self) {
        self.sockets.turn(|ask| {
            let slot = &mut self.slots[ask.slot as usize];
            if slot.question != ask.question {
                return;
            }
            slot.answers += 1;
            if slot.answers == self.quorum {
                self.decided.push_back(ask.slot);
            }
        });
    }

    /// The next key whose question got its majority.
    pub fn next_decided(&mut self) -> Option<(usize, Step)> {
        let slot = self.decided.pop_front()? as usize;
        let is_set = self.slots[slot].question % 2 == 1;
        Some((slot, if is_set { Step::Acquired } else { Step::Released }))
    }

    /// Waits for the answers after the majority.
    pub fn settle(&mut self) {
        while self.sockets.is_open() {
            self.turn();
        }
    }
}

impl Slot {
    fn new(name: &str, number: usize, form: Form) -> Slot {
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
}

/// Sockets on a poller.
struct Sockets {
    poll: Poll,
    events: Events,
    wires: Vec<Wire>,
    scratch: Box<[u8]>,
}

struct Wire {
    stream: TcpStream,
    outbox: Vec<u8>,
    writable: bool,
    /// The questions that are not answered yet.
    asks: VecDeque<Ask>,
    /// Bytes of an answer, counted already, that are still to come.
    rest: usize,
}

impl Sockets {
    fn connect(addresses: &[String]) -> Sockets {
        let poll = Poll::new().expect("a poller");
        let mut wires = Vec::new();
        for address in addresses {
            let stream = std::net::TcpStream::connect(address).expect("a running server");
            stream.set_nodelay(true).expect("an option of every socket");
            stream.set_nonblocking(true).expect("an option of every socket");
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut stream, Token(wires.len()), interest)
                .expect("a new socket can be polled");
            let (outbox, asks) = (Vec::new(), VecDeque::new());
            wires.push(Wire { stream, outbox, writable: true, asks, rest: 0 });
        }
        let events = Events::with_capacity(64);
        Sockets { poll, events, wires, scratch: vec![0; SCRATCH_BYTES].into() }
    }

    /// Puts a question into every outbox.
    fn ask(&mut self, bytes: &[u8], ask: Ask) {
        for wire in &mut self.wires {
            wire.outbox.extend_from_slice(bytes);
            wire.asks.push_back(ask);
        }
    }

    /// Writes, sleeps until there is an answer, and gives each answer's ask to `answered`.
    fn turn(&mut self, mut answered: impl FnMut(Ask)) {
        for wire in &mut self.wires {
            wire.write();
        }
        match self.poll.poll(&mut self.events, None) {
            // A signal of a debugger, or that of a stop, ended the call: the next turn goes on.
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            other => other.expect("the poller works"),
        }
        for event in &self.events {
            // The poller of an open loop also has a timer.
            let Some(wire) = self.wires.get_mut(event.token().0) else { continue };
            wire.writable |= event.is_writable();
            if event.is_readable() {
                wire.read(&mut self.scratch, &mut answered);
            }
        }
    }

    /// Whether an answer is still to come.
    fn is_open(&self) -> bool {
        self.wires.iter().any(|wire| !wire.asks.is_empty())
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

    /// Reads until the socket is drained.
    fn read(&mut self, scratch: &mut [u8], mut answered: impl FnMut(Ask)) {
        loop {
            let count = match self.stream.read(scratch) {
                Ok(0) => panic!("a server closed"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => panic!("a server that runs answers: {error}"),
            };
            self.count(&scratch[..count], &mut answered);
            if count < scratch.len() {
                return;
            }
        }
    }

    /// Gives the ask of each answer that begins in these bytes to `answered`. Panics if one of them
    /// is not a grant.
    fn count(&mut self, bytes: &[u8], mut answered: impl FnMut(Ask)) {
        let mut at = self.rest;
        while at < bytes.len() {
            at += match bytes[at] {
                b'+' => "+OK\r\n".len(),
                b':' => ":1\r\n".len(),
                _ => panic!("{}", String::from_utf8_lossy(&bytes[at..])),
            };
            answered(self.asks.pop_front().expect("an answer has its question"));
        }
        self.rest = at - bytes.len();
    }
}
