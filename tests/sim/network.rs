//! Connections: a stream of bytes in each direction, in order, in pieces, each in flight for a
//! while. If a connection is cut, what is in flight is lost, or still arrives, seconds later.

use std::collections::VecDeque;

use redlatch::testing::master::ConnectionId;

use crate::agenda::{Agenda, Event, MILLI, SECOND};
use crate::dice::Dice;

/// A piece of what comes out at one end of a connection.
#[derive(Debug)]
pub enum Piece {
    /// The connection is open. Only a client gets this piece.
    Opened,
    /// Bytes.
    Bytes(Vec<u8>),
    /// The connection has ended, or could not be opened, for this reason.
    End(&'static str),
}

/// In which pieces a client reads. (The masters are not under test, so they get each piece as it
/// comes.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    /// All bytes that are there.
    Whole,
    /// In pieces of any size.
    Pieces,
    /// Byte for byte.
    Bytes,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub struct Pipe {
    pieces: VecDeque<(u64, Piece)>,
    not_before: u64,
}

impl Pipe {
    /// Puts in a piece that is to arrive at `at`, or after the pieces before it; returns when.
    fn push(&mut self, at: u64, piece: Piece) -> u64 {
        self.not_before = self.not_before.max(at);
        self.pieces.push_back((self.not_before, piece));
        self.not_before
    }

    /// Takes out the next piece, if it has arrived.
    pub fn arrived(&mut self, now: u64) -> Option<Piece> {
        match self.pieces.front() {
            Some((at, _)) if *at <= now => self.pieces.pop_front().map(|(_, piece)| piece),
            _ => None,
        }
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Drops the bytes in flight.
    pub fn lose(&mut self) {
        self.pieces.clear();
    }

    /// Delays the bytes in flight, and all bytes after them.
    fn delay(&mut self, now: u64, by: u64) {
        for (at, _) in &mut self.pieces {
            *at += by;
        }
        self.not_before = self.not_before.max(now) + by;
    }

    /// Lets the bytes in flight arrive by that moment.
    fn hurry(&mut self, by: u64) {
        for (at, _) in &mut self.pieces {
            *at = (*at).min(by);
        }
        self.not_before = self.not_before.min(by);
    }
}

/// One connection, from the attempt to open it to its end.
#[derive(Debug)]
pub struct Wire {
    /// The client that opened it.
    pub client: usize,
    /// The node of this connection.
    pub node: usize,
    /// The client knows that it is open.
    pub open: bool,
    /// The client has closed or reset it.
    pub left: bool,
    /// Nothing more comes back from the node.
    pub cut: bool,
    /// The node has closed it, or never had it.
    pub ended: bool,
    /// The node's number for the connection, once the node has accepted it.
    pub connection: Option<ConnectionId>,
    /// The bytes in flight to the node.
    pub to_node: Pipe,
    /// The bytes in flight to the client.
    pub to_client: Pipe,
    /// The bytes that arrived while the node could not read.
    pub backlog: Vec<u8>,
    /// The end of the connection follows the backlog.
    pub backlog_ends: bool,
    /// The pieces that arrived at the client and are not read yet.
    pub inbox: VecDeque<Piece>,
    /// The client's kernel takes no bytes before this moment.
    pub full_until: u64,
    /// How the client reads.
    pub reads: Reads,
}

/// How long bytes are in flight.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// The shortest and the longest time in flight, unless a piece is late.
    pub latency: (u64, u64),
    /// How many pieces in a thousand are late, and by how much at most.
    pub late: (u64, u64),
    /// The far node, and how much longer bytes to it and from it are in flight.
    pub far: (usize, u64),
}

impl Weather {
    fn way(&self, dice: &mut Dice) -> u64 {
        let way = dice.between(self.latency.0, self.latency.1);
        if dice.chance(self.late.0) { way + dice.below(self.late.1) } else { way }
    }

    /// How long a piece is in flight between a client and this node.
    fn way_of(&self, node: usize, dice: &mut Dice) -> u64 {
        self.way(dice) + if node == self.far.0 { self.far.1 } else { 0 }
    }
}

/// All connections of the run.
#[derive(Debug)]
pub struct Network {
    /// By number of the connection.
    pub wires: Vec<Wire>,
    /// How long bytes are in flight.
    pub weather: Weather,
}

impl Network {
    /// Adds a connection from a client to a node; neither end knows yet that it is open.
    pub fn wire(&mut self, client: usize, node: usize, dice: &mut Dice) -> usize {
        self.wires.push(Wire {
            client,
            node,
            open: false,
            left: false,
            cut: false,
            ended: false,
            connection: None,
            to_node: Pipe::default(),
            to_client: Pipe::default(),
            backlog: Vec::new(),
            backlog_ends: false,
            inbox: VecDeque::new(),
            full_until: 0,
            reads: dice.weighted(&[(6, Reads::Whole), (3, Reads::Pieces), (1, Reads::Bytes)]),
        });
        self.wires.len() - 1
    }

    /// Sends a piece to the client, to arrive at `at` or later.
    pub fn tell(&mut self, wire: usize, at: u64, piece: Piece, agenda: &mut Agenda) {
        let at = self.wires[wire].to_client.push(at, piece);
        agenda.put(at, Event::ToClient { wire });
    }

    /// Sends bytes to the node.
    pub fn send(&mut self, wire: usize, bytes: &[u8], agenda: &mut Agenda, dice: &mut Dice) {
        for part in split(bytes, dice) {
            let at = agenda.now() + self.weather.way_of(self.wires[wire].node, dice);
            let at = self.wires[wire].to_node.push(at, Piece::Bytes(part.to_vec()));
            agenda.put(at, Event::ToNode { wire });
        }
    }

    /// Sends bytes to the client.
    pub fn answer(&mut self, wire: usize, bytes: &[u8], agenda: &mut Agenda, dice: &mut Dice) {
        for part in split(bytes, dice) {
            let at = agenda.now() + self.weather.way_of(self.wires[wire].node, dice);
            self.tell(wire, at, Piece::Bytes(part.to_vec()), agenda);
        }
    }

    /// The node closes the connection, after what it has sent.
    pub fn close_by_node(&mut self, wire: usize, agenda: &mut Agenda, dice: &mut Dice) {
        let at = agenda.now() + self.weather.way(dice);
        let it = &mut self.wires[wire];
        it.ended = true;
        it.to_node.lose();
        it.backlog.clear();
        self.tell(wire, at, Piece::End("closed by the node"), agenda);
    }

    /// The client closes the connection in order: what it has written arrives, then the end.
    pub fn finish(&mut self, wire: usize, agenda: &mut Agenda, dice: &mut Dice) {
        let at = agenda.now() + self.weather.way(dice);
        let it = &mut self.wires[wire];
        it.left = true;
        it.inbox.clear();
        it.to_client.lose();
        let at = it.to_node.push(at, Piece::End(""));
        agenda.put(at, Event::ToNode { wire });
    }

    /// The client resets the connection. What it has written is lost, or still arrives.
    pub fn reset(&mut self, wire: usize, agenda: &mut Agenda, dice: &mut Dice) {
        self.wires[wire].left = true;
        self.cut(wire, agenda, dice);
        self.wires[wire].to_client.lose();
        self.wires[wire].inbox.clear();
    }

    /// Cuts a connection. What is in flight to the node is lost, or arrives in time, or seconds
    /// late; the client soon learns of the cut.
    pub fn cut(&mut self, wire: usize, agenda: &mut Agenda, dice: &mut Dice) {
        let now = agenda.now();
        let end = now + self.weather.way(dice);
        let it = &mut self.wires[wire];
        if it.cut {
            return;
        }
        it.cut = true;
        if dice.chance(500) {
            it.to_client.lose();
        }
        let (soon, later) = (dice.below(100 * MILLI), dice.below(3 * SECOND));
        let late = dice.weighted(&[(3, None), (3, Some(0)), (2, Some(soon)), (2, Some(later))]);
        match late {
            None => it.to_node.lose(),
            Some(by) => it.to_node.delay(now, by),
        }
        let gone = it.to_node.push(end, Piece::End(""));
        self.tell(wire, end, Piece::End("connection reset"), agenda);
        self.schedule(wire, agenda);
        agenda.put(gone, Event::ToNode { wire });
    }

    /// Delays all bytes of a connection in both directions.
    pub fn stall(&mut self, wire: usize, by: u64, agenda: &mut Agenda) {
        let it = &mut self.wires[wire];
        it.to_node.delay(agenda.now(), by);
        it.to_client.delay(agenda.now(), by);
        self.schedule(wire, agenda);
    }

    /// Lets all bytes in flight arrive by `at`.
    pub fn hurry(&mut self, at: u64, agenda: &mut Agenda) {
        for wire in 0..self.wires.len() {
            self.wires[wire].to_node.hurry(at);
            self.wires[wire].to_client.hurry(at);
            self.schedule(wire, agenda);
        }
    }

    /// Schedules the arrival of all that is in flight.
    fn schedule(&mut self, wire: usize, agenda: &mut Agenda) {
        let it = &self.wires[wire];
        for (at, _) in &it.to_node.pieces {
            agenda.put(*at, Event::ToNode { wire });
        }
        for (at, _) in &it.to_client.pieces {
            agenda.put(*at, Event::ToClient { wire });
        }
    }
}

/// Splits bytes as the network does: mostly not at all, sometimes into a few pieces.
fn split<'a>(bytes: &'a [u8], dice: &mut Dice) -> Vec<&'a [u8]> {
    let cuts = dice.weighted(&[(7, 0), (2, 1), (1, 3)]);
    pieces(bytes, cuts, dice)
}

/// Splits bytes at up to `cuts` random places.
fn pieces<'a>(bytes: &'a [u8], cuts: u64, dice: &mut Dice) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    for _ in 0..cuts {
        let (piece, after) = rest.split_at(dice.place(rest.len() + 1));
        if !piece.is_empty() {
            pieces.push(piece);
        }
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(rest);
    }
    pieces
}

/// Longer input is read in pieces and not byte for byte, to save time.
const BYTE_FOR_BYTE: usize = 120;

impl Reads {
    /// The pieces in which the client gets these bytes.
    pub fn portions<'a>(self, bytes: &'a [u8], dice: &mut Dice) -> Vec<&'a [u8]> {
        match self {
            Reads::Whole => pieces(bytes, 0, dice),
            Reads::Bytes if bytes.len() <= BYTE_FOR_BYTE => bytes.chunks(1).collect(),
            Reads::Pieces | Reads::Bytes => pieces(bytes, 6, dice),
        }
    }
}
