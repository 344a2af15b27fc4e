//! A connection, as the messages that are on their way.

use std::collections::VecDeque;

use crate::proto::time::Instant;
use crate::testing::master::ConnectionId;

/// The connection of a client to a node, from the attempt to open it to its end.
#[derive(Debug, Clone, Default)]
pub(super) struct Wire {
    /// The client has asked for a connection, which is not open yet.
    pub(super) opening: bool,
    /// The number that the node gave it.
    pub(super) connection: Option<ConnectionId>,
    pub(super) to_node: Pipe,
    pub(super) to_client: Pipe,
    /// The node has closed it. The client learns that after what the node sent before.
    pub(super) closed: bool,
}

/// A connection that its client has lost or closed, with what was on its way to the node.
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
    /// When the latest one arrives: no later one arrives before it.
    latest: Instant,
}

impl Pipe {
    /// Puts in a message that wants to arrive at `at`. Returns when it does.
    pub(super) fn push(&mut self, at: Instant, bytes: Vec<u8>) -> Instant {
        self.latest = self.latest.max(at);
        if !bytes.is_empty() {
            self.pieces.push_back((self.latest, bytes));
        }
        self.latest
    }

    /// Takes out what has arrived by now.
    pub(super) fn take_arrived(&mut self, now: Instant) -> Vec<u8> {
        let mut arrived = Vec::new();
        while self.pieces.front().is_some_and(|(at, _)| *at <= now) {
            append(&mut arrived, self.pieces.pop_front());
        }
        arrived
    }

    /// Takes out so many bytes at most, also those that have not arrived yet.
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

    /// When the latest message arrives.
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
