//! A connection, with the messages that are in flight on it.

use std::collections::VecDeque;

use crate::proto::time::Instant;
use crate::testing::master::ConnectionId;

/// The connection of a client to a node, from the attempt to open it to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Wire {
    /// The client has begun to open a connection, which is not open yet.
    pub(super) opening: bool,
    /// The id of the connection on the node.
    pub(super) connection: Option<ConnectionId>,
    pub(super) to_node: Pipe,
    pub(super) to_client: Pipe,
    /// The node has closed the connection. The client learns that after what the node sent before.
    pub(super) closed: bool,
}

/// A connection that its client has lost or closed, with the bytes that are in flight to the node.
#[derive(Debug, Clone)]
pub(super) struct Orphan {
    pub(super) node: usize,
    pub(super) connection: ConnectionId,
    pub(super) to_node: Pipe,
}

/// One direction of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Pipe {
    pieces: VecDeque<(Instant, Vec<u8>)>,
    /// When the last message arrives. A later message does not arrive before that.
    latest: Instant,
}

impl Pipe {
    /// Puts in a message that arrives at `at`, or later if one before it does. Returns when.
    pub(super) fn push(&mut self, at: Instant, bytes: Vec<u8>) -> Instant {
        self.latest = self.latest.max(at);
        if !bytes.is_empty() {
            self.pieces.push_back((self.latest, bytes));
        }
        self.latest
    }

    /// Takes out the bytes that have arrived at `now`.
    pub(super) fn take_arrived(&mut self, now: Instant) -> Vec<u8> {
        let mut arrived = Vec::new();
        while self.pieces.front().is_some_and(|(at, _)| *at <= now) {
            append(&mut arrived, self.pieces.pop_front());
        }
        arrived
    }

    /// Takes out at most this number of bytes, also those that have not arrived yet.
    pub(super) fn take(&mut self, most: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        while let Some((_, piece)) = self.pieces.front_mut() {
            let left = most - taken.len();
            if piece.len() > left {
                taken.extend(piece.drain(..left));
                break;
            }
            append(&mut taken, self.pieces.pop_front());
        }
        taken
    }

    pub(super) fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.pieces.iter().flat_map(|(_, bytes)| bytes.iter().copied())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// When the last message arrives.
    pub(super) fn latest(&self) -> Instant {
        self.latest
    }
}

fn append(bytes: &mut Vec<u8>, piece: Option<(Instant, Vec<u8>)>) {
    let Some((_, piece)) = piece else { return };
    if bytes.is_empty() {
        *bytes = piece;
    } else {
        bytes.extend(piece);
    }
}
