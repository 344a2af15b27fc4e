//! The floor on io_uring: multishot receive into provided buffers, and one system call that sends
//! to all nodes and waits. The same bytes and the same counting as on sockets.

use std::net::TcpStream;
use std::os::fd::AsFd;

use redlatch::majority;
use redlatch_uring::{Event, Ring};

use super::delete::Delete;
use super::floor::load_script;
use super::socket_floor::{Ask, Asks, Floor, Wires};
use super::support::Node;
use super::tally::Tally;
use super::{Contender, NODES};

/// Five sockets in a ring.
pub struct Rings {
    ring: Ring,
    wires: Vec<Wire>,
}

struct Wire {
    /// The socket, which has to stay open while the ring uses it.
    _stream: TcpStream,
    outbox: Vec<u8>,
    asks: Asks,
}

/// Connects to the nodes. Returns why there is no ring, if the kernel refuses it.
pub fn connect(nodes: &[&Node], most: usize, delete: Delete) -> std::io::Result<Floor<Rings>> {
    // The ring has as many buffers as the engine's.
    let mut ring = Ring::new(nodes.len(), 8, 4096)?;
    let mut wires = Vec::new();
    for (place, node) in nodes.iter().enumerate() {
        load_script(node);
        let stream = TcpStream::connect(node.address())?;
        stream.set_nodelay(true)?;
        ring.attach(place, stream.as_fd())?;
        wires.push(Wire { _stream: stream, outbox: Vec::new(), asks: Asks::default() });
    }
    let wires = Rings { ring, wires };
    Ok(Floor::on(wires, majority(NODES), "ring-floor", most, delete.form()))
}

impl Wires for Rings {
    fn ask(&mut self, bytes: &[u8], ask: Ask) {
        for wire in &mut self.wires {
            wire.outbox.extend_from_slice(bytes);
            wire.asks.push(ask);
        }
    }

    fn turn(&mut self, mut answered: impl FnMut(Ask)) {
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
            self.wires[place].asks.answered(bytes, &mut answered);
        }
    }

    fn is_open(&self) -> bool {
        self.wires.iter().any(|wire| wire.asks.is_open())
    }
}

impl Contender for Floor<Rings> {
    fn run(&mut self, in_flight: usize, tally: &mut Tally) {
        Floor::run(self, in_flight, tally);
    }
}
