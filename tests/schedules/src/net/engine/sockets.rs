//! Sockets whose connections open at once and stay open, and that take every byte.

use std::io;
use std::sync::Arc;

use super::super::clock;
use super::super::world::World;
use super::Engine;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

#[derive(Debug, Default)]
pub(super) struct Socket {
    pub(super) stream: Option<Stream>,
    pub(super) opening: bool,
    pub(super) writable: bool,
}

#[derive(Debug)]
pub(super) struct Stream {
    world: Arc<World>,
    node: usize,
}

impl Stream {
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<(usize, bool)> {
        self.world.write(self.node, bytes);
        Ok((bytes.len(), true))
    }

    pub(super) fn has_unsent(&self) -> bool {
        false
    }

    pub(super) fn reset(self) {
        unreachable!("no node is given up");
    }
}

impl Engine {
    pub(super) fn open(&mut self, node: NodeId) {
        let stream = Stream { world: Arc::clone(&self.world), node: node.index() };
        let socket = &mut self.sockets[node.index()];
        (socket.stream, socket.writable) = (Some(stream), true);
        self.coordinator.handle_connecting(node, clock::now());
        self.coordinator.handle_connected(node, clock::now());
    }

    pub(super) fn check_opening(&mut self, _: NodeId) {
        unreachable!("connections open at once");
    }

    /// No node has Sentinels.
    pub(super) fn take_masters(&mut self) {}

    pub(super) fn ask_sentinels_again(&mut self, _: Instant) {}

    pub(super) fn lost(&mut self, _: NodeId, _: &io::Error) {
        unreachable!("no connection is lost");
    }

    pub(super) fn drop_stream(&mut self, node: NodeId) -> Option<Stream> {
        self.sockets[node.index()].stream.take()
    }

    pub(super) fn read(&mut self, node: NodeId, _: bool) {
        self.read_all_of(node);
    }
}

/// An alarm that rings only if there is something to do at once: the clock stands still.
#[derive(Debug)]
pub(super) struct Alarm {
    world: Arc<World>,
    stands: bool,
    rung: bool,
}

impl Alarm {
    pub(super) fn new(world: &Arc<World>) -> Alarm {
        Alarm { world: Arc::clone(world), stands: true, rung: false }
    }

    pub(super) fn stand_for_every_timeout(&mut self) -> bool {
        true
    }

    pub(super) fn stands_for_every_timeout(&self) -> bool {
        self.stands
    }

    pub(super) fn ring(&mut self) {
        if !std::mem::replace(&mut self.rung, true) {
            self.world.ring(true);
        }
    }

    pub(super) fn disarm(&mut self) {
        if std::mem::take(&mut self.rung) {
            self.world.ring(false);
        }
    }

    pub(super) fn went_off(&mut self) {
        self.rung = false;
    }

    pub(super) fn wake_at(&mut self, due: Instant, now: Instant, _: bool) {
        if due <= now {
            return self.ring();
        }
        self.disarm();
    }

    pub(super) fn forget(&mut self) {
        self.stands = false;
    }
}
