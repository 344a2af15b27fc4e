//! The floor on io_uring: multishot receive into provided buffers, and one system call that sends
//! to all nodes and waits. The same bytes and the same counting as [`Floor`](super::floor::Floor).

use std::collections::VecDeque;
use std::net::TcpStream;
use std::os::fd::AsFd;

use redlatch_uring::{Event, Ring};

use super::Contender;
use super::arrivals::Arrivals;
use super::delete::Delete;
use super::floor::{QUORUM, Slot, answer_length, load_script};
use super::support::Node;
use super::tally::Tally;

/// Five sockets in a ring and what was asked on them.
pub struct RingFloor {
    ring: Ring,
    wires: Vec<Wire>,
    slots: Vec<Slot>,
    /// Keys whose question got its majority in this turn, in that order.
    decided: VecDeque<u32>,
}

struct Wire {
    /// The socket, which has to stay open while the ring uses it.
    _stream: TcpStream,
    outbox: Vec<u8>,
    /// Key and number of each question that is not answered yet.
    asks: VecDeque<(u32, u32)>,
    /// Bytes of an answer, counted already, that are still to come.
    rest: usize,
}

impl RingFloor {
    /// Connects to the nodes. Returns why there is no ring, if the kernel refuses it.
    pub fn connect(nodes: &[&Node], most: usize, delete: Delete) -> std::io::Result<RingFloor> {
        // The ring has as many buffers as the engine's.
        let mut ring = Ring::new(nodes.len(), 8, 4096)?;
        let mut wires = Vec::new();
        for (place, node) in nodes.iter().enumerate() {
            load_script(node);
            let stream = TcpStream::connect(node.address())?;
            stream.set_nodelay(true)?;
            ring.attach(place, stream.as_fd())?;
            let (outbox, asks) = (Vec::new(), VecDeque::new());
            wires.push(Wire { _stream: stream, outbox, asks, rest: 0 });
        }
        let slot = |number| Slot::new("ring-floor", number, delete.form());
        let slots = (0..most).map(slot).collect();
        Ok(RingFloor { ring, wires, slots, decided: VecDeque::new() })
    }

    /// Puts the next question about a key into every outbox.
    fn ask(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        let question = slot.next_question();
        let bytes = slot.bytes();
        for wire in &mut self.wires {
            wire.outbox.extend_from_slice(bytes);
            wire.asks.push_back((number, question));
        }
    }

    fn turn(&mut self) {
        for (place, wire) in self.wires.iter_mut().enumerate() {
            if !wire.outbox.is_empty() && self.ring.send(place, &wire.outbox) {
                wire.outbox.clear();
            } else {
                self.ring.resume(place);
            }
        }
        self.ring.submit_and_wait(None).expect("the ring works");
        while let Some(event) = self.ring.next_event() {
            let Event::Received { place, bytes } = event else { panic!("a server closed") };
            let wire = &mut self.wires[place];
            let mut at = wire.rest;
            while at < bytes.len() {
                at += answer_length(&bytes[at..]);
                let (number, question) = wire.asks.pop_front().expect("an answer has its question");
                if self.slots[number as usize].answered(question) == Some(QUORUM) {
                    self.decided.push_back(number);
                }
            }
            wire.rest = at - bytes.len();
        }
    }
}

impl Contender for RingFloor {
    fn run(&mut self, in_flight: usize, tally: &mut Tally) {
        for slot in 0..in_flight {
            self.slots[slot].begin(std::time::Instant::now());
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
        while self.wires.iter().any(|wire| !wire.asks.is_empty()) {
            self.turn();
        }
    }

    fn run_open(&mut self, _: Arrivals, _: &mut Tally) {
        panic!("the open loop has no ring");
    }
}
