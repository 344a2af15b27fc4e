//! Connections: a stream of bytes each way, in order, in pieces, each piece on its way for a while.
//! What is on its way when a connection is cut is lost, or arrives all the same, seconds later.

use std::collections::VecDeque;

use redlatch::testing::master::ConnectionId;

use crate::agenda::{Agenda, Event, MILLI, SECOND};
use crate::dice::Dice;

/// A part of what comes out at one end of a wire.
#[derive(Debug)]
pub enum Piece {
    /// The connection is open. Only to the client.
    Opened,
    /// Bytes.
    Bytes(Vec<u8>),
    /// The connection is gone, or could not be opened; these are the system's words.
    End(&'static str),
}

/// How a client gets to see what it reads. (The master is no part of what is tested here: it gets
/// each piece as it comes.)
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
    /// Puts a piece in that wants to arrive at `at`; returns when it does.
    fn push(&mut self, at: u64, piece: Piece) -> u64 {
        self.not_before = self.not_before.max(at);
        self.pieces.push_back((self.not_before, piece));
        self.not_before
    }

    /// Takes out what has arrived.
    pub fn arrived(&mut self, now: u64) -> Option<Piece> {
        match self.pieces.front() {
            Some((at, _)) if *at <= now => self.pieces.pop_front().map(|(_, piece)| piece),
            _ => None,
        }
    }

    /// Whether nothing is on its way.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The bytes in flight never arrive.
    pub fn lose(&mut self) {
        self.pieces.clear();
    }

    /// The bytes in flight, and all bytes after them, arrive this much later.
    fn delay(&mut self, now: u64, by: u64) {
        for (at, _) in &mut self.pieces {
            *at += by;
        }
        self.not_before = self.not_before.max(now) + by;
    }

    /// The bytes in flight arrive soon.
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
    /// The client has dropped it.
    pub left: bool,
    /// Nothing comes back from the node any more.
    pub cut: bool,
    /// The node has closed it, or never had it.
    pub ended: bool,
    /// The number that the node gives it, once it has accepted it.
    pub connection: Option<ConnectionId>,
    /// The bytes in flight to the node.
    pub to_node: Pipe,
    /// The bytes in flight to the client.
    pub to_client: Pipe,
    /// The bytes that arrived at the node while it could not read.
    pub backlog: Vec<u8>,
    /// An end follows the backlog.
    pub backlog_ends: bool,
    /// The bytes that arrived at the client and were not read.
    pub inbox: VecDeque<Piece>,
    /// The client's kernel takes nothing up to this moment.
    pub full_until: u64,
    /// How the client reads.
    pub reads: Reads,
}

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    /// The shortest and the longest way, as a rule.
    pub latency: (u64, u64),
    /// How many pieces in a thousand are late, and by how much at most.
    pub late: (u64, u64),
    /// A node, and how much longer each way to it and from it is.
    pub far: (usize, u64),
}

impl Weather {
    fn way(&self, dice: &mut Dice) -> u64 {
        let way = dice.between(self.latency.0, self.latency.1);
        if dice.chance(self.late.0) { way + dice.below(self.late.1) } else { way }
    }

    /// A way between clients and this node.
    fn way_of(&self, node: usize, dice: &mut Dice) -> u64 {
        self.way(dice) + if node == self.far.0 { self.far.1 } else { 0 }
    }
}

/// All connections of the run.
#[derive(Debug)]
pub struct Network {
    /// By number.
    pub wires: Vec<Wire>,
    /// How long things take.
    pub weather: Weather,
}

impl Network {
    /// A wire from a client to a node. Neither end knows it yet.
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

    /// Sends something of a wire to the client, for `at` or later.
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

    /// The node closes the wire, after what it has sent.
    pub fn close_by_node(&mut self, wire: usize, agenda: &mut Agenda, dice: &mut Dice) {
        let at = agenda.now() + self.weather.way(dice);
        let it = &mut self.wires[wire];
        it.ended = true;
        it.to_node.lose();
        it.backlog.clear();
        self.tell(wire, at, Piece::End("closed by the node"), agenda);
    }

    /// The client closes the wire in an orderly way: what it has written arrives, then the end.
    pub fn finish(&mut self, wire: usize, agenda: &mut Agenda, dice: &mut Dice) {
        let at = agenda.now() + self.weather.way(dice);
        let it = &mut self.wires[wire];
        it.left = true;
        it.inbox.clear();
        it.to_client.lose();
        let at = it.to_node.push(at, Piece::End(""));
        agenda.put(at, Event::ToNode { wire });
    }

    /// The client resets the wire, and knows it no more. What it has written is lost, or arrives.
    pub fn reset(&mut self, wire: usize, agenda: &mut Agenda, dice: &mut Dice) {
        self.wires[wire].left = true;
        self.cut(wire, agenda, dice);
        self.wires[wire].to_client.lose();
        self.wires[wire].inbox.clear();
    }

    /// Cuts a wire. What is on its way to the node is lost, or arrives at its time, or seconds
    /// later; the client learns of the cut soon.
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

    /// Nothing arrives on a wire for a while; then everything does.
    pub fn stall(&mut self, wire: usize, by: u64, agenda: &mut Agenda) {
        let it = &mut self.wires[wire];
        it.to_node.delay(agenda.now(), by);
        it.to_client.delay(agenda.now(), by);
        self.schedule(wire, agenda);
    }

    /// The bytes in flight arrive at `at` at the latest.
    pub fn hurry(&mut self, at: u64, agenda: &mut Agenda) {
        for wire in 0..self.wires.len() {
            self.wires[wire].to_node.hurry(at);
            self.wires[wire].to_client.hurry(at);
            self.schedule(wire, agenda);
        }
    }

    /// Puts down when what is on its way arrives.
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

/// Bytes as the network carries them: mostly as they were written, sometimes in a few pieces.
fn split<'a>(bytes: &'a [u8], dice: &mut Dice) -> Vec<&'a [u8]> {
    let cuts = dice.weighted(&[(7, 0), (2, 1), (1, 3)]);
    pieces(bytes, cuts, dice)
}

/// Bytes in so many pieces, or fewer, and one more.
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

/// Up to this length input is read byte for byte; longer input in pieces, to save time.
const BYTE_FOR_BYTE: usize = 120;

impl Reads {
    /// Bytes as their reader gets them.
    pub fn portions<'a>(self, bytes: &'a [u8], dice: &mut Dice) -> Vec<&'a [u8]> {
        match self {
            Reads::Whole => pieces(bytes, 0, dice),
            Reads::Bytes if bytes.len() <= BYTE_FOR_BYTE => bytes.chunks(1).collect(),
            Reads::Pieces | Reads::Bytes => pieces(bytes, 6, dice),
        }
    }
}
