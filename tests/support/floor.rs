//! The least that a program has to do for a lock: it sends the same bytes as the library to the
//! same nodes, counts answers by their first byte, and sends the next request once a majority has
//! answered. A bench compares the library with it.
//!
//! The loop has no timer and checks no token; an answer that is no grant is a panic.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use bytes::BytesMut;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use redlatch::proto::command::{self, Form};
use redlatch::{LockToken, Ttl};

use super::tally::Tally;
use super::{Contender, TTL};

/// The engine reads as many bytes with one system call.
const SCRATCH_BYTES: usize = 64 * 1024;

/// The sockets to the nodes, and what was asked on them.
pub struct Floor {
    poll: Poll,
    events: Events,
    wires: Vec<Wire>,
    slots: Vec<Slot>,
    quorum: u32,
    scratch: Box<[u8]>,
    /// Slots whose question a majority has answered in this turn, in the order of those answers.
    decided: VecDeque<u32>,
}

struct Wire {
    stream: TcpStream,
    outbox: Vec<u8>,
    asks: VecDeque<Ask>,
    writable: bool,
    /// How many bytes of the answer that was counted last have not arrived yet.
    rest: usize,
}

/// An unanswered question on a connection: its key, and its number.
struct Ask {
    slot: u32,
    question: u32,
}

/// One key, with the bytes of its two commands.
struct Slot {
    set: Vec<u8>,
    release: Vec<u8>,
    /// The number of the latest question: an odd one is a `SET`, the next one its release.
    question: u32,
    answers: u32,
    asked: Instant,
}

impl Floor {
    /// Connects to these nodes, which have the release script loaded.
    pub fn on(addresses: &[String], most: usize, quorum: usize) -> Floor {
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
            wires.push(Wire { stream, outbox, asks, writable: true, rest: 0 });
        }
        Floor {
            poll,
            events: Events::with_capacity(64),
            wires,
            slots: (0..most).map(Slot::new).collect(),
            quorum: quorum as u32,
            scratch: vec![0; SCRATCH_BYTES].into(),
            decided: VecDeque::new(),
        }
    }

    /// Puts the next question about a key into every outbox.
    fn ask(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        slot.question += 1;
        slot.answers = 0;
        let question = slot.question;
        let bytes = if question % 2 == 1 { &slot.set } else { &slot.release };
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
            // A signal interrupted the call, such as that of a debugger; the next turn polls again.
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            other => other.expect("the poller works"),
        }
        for event in &self.events {
            let wire = &mut self.wires[event.token().0];
            wire.writable |= event.is_writable();
            if event.is_readable() {
                wire.read(&mut self.scratch, |ask| {
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
        }
    }
}

impl Slot {
    fn new(number: usize) -> Slot {
        let ttl = Ttl::new(TTL, TTL).expect("a ttl");
        let token = LockToken::parse(&format!("{number:040x}")).expect("forty hex digits");
        let key = format!("bare:{number:04}");
        let mut set = BytesMut::new();
        command::acquire(&mut set, key.as_bytes(), &token, ttl);
        let mut release = BytesMut::new();
        command::release(&mut release, Form::Sha, key.as_bytes(), &token);
        let (set, release) = (set.to_vec(), release.to_vec());
        Slot { set, release, question: 0, answers: 0, asked: Instant::now() }
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

    /// Reads until the socket is drained, and passes the question of each answer to `answered`.
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
                at += match scratch[at] {
                    b'+' => "+OK\r\n".len(),
                    b':' => ":1\r\n".len(),
                    _ => panic!("{}", String::from_utf8_lossy(&scratch[at..count])),
                };
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
            self.slots[slot].asked = Instant::now();
            self.ask(slot as u32);
        }
        let mut open = in_flight;
        while open > 0 {
            self.turn();
            while let Some(number) = self.decided.pop_front() {
                let slot = &mut self.slots[number as usize];
                if slot.question % 2 == 1 {
                    tally.acquired(slot.asked);
                    self.ask(number);
                } else if let Some(now) = tally.released() {
                    slot.asked = now;
                    self.ask(number);
                } else {
                    open -= 1;
                }
            }
        }
        while self.wires.iter().any(|wire| !wire.asks.is_empty()) {
            self.turn();
        }
    }
}
