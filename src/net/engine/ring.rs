//! The sockets of a `UringEngine` on io_uring. The ring receives and sends. The poller serves the
//! rest: connections that are being opened or encrypted, the alarm, and the report that a full
//! socket takes more.
//!
//! The hazard is that an operation of the ring keeps a socket open. So a connection that is broken
//! off is disconnected, not only closed.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use mio::{Interest, Token};
use redlatch_uring::{Event, Ring};

use super::Engine;
use crate::net::clock;
use crate::net::socket::words;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;

/// The receive buffers of each node: how many, and how many bytes each has. A node has its own, so
/// one that sends without end does not keep the answers of the others out.
const BUFFERS: u16 = 8;
const BUFFER_BYTES: usize = 4096;

/// How often a turn asks the ring for more. A node that sends without end must not occupy the
/// loop.
const READS_A_TURN: usize = 4;

/// What serves the sockets of a [`UringEngine`](crate::UringEngine).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketDriver {
    /// The poller of the system, which is epoll on Linux.
    Poller {
        /// Why it is not io_uring.
        reason: Box<str>,
    },
    /// io_uring. Connections that are being opened, and encrypted ones, are served by the poller.
    IoUring,
}

/// The sockets that a ring serves.
#[derive(Debug, Default)]
pub(super) struct RingSockets {
    ring: Option<Ring>,
    held: NodeSet,
    /// Why there is none.
    reason: Option<Box<str>>,
    /// The poller has events.
    watched: bool,
    /// The ring has more than the last turn took.
    rest: bool,
}

impl RingSockets {
    /// Whether the ring serves this node's socket.
    #[inline]
    pub(super) fn holds(&self, node: NodeId) -> bool {
        self.held.contains(node)
    }

    /// Whether there is something to do without waiting.
    #[inline]
    pub(super) fn has_rest(&self) -> bool {
        self.rest || self.watched
    }

    /// Takes the output of a node, to be submitted with the next call; `Some(false)`: earlier
    /// output comes first. `None`: the engine writes by itself.
    #[inline]
    pub(super) fn take(&mut self, node: NodeId, output: &[u8]) -> Option<bool> {
        if !self.held.contains(node) {
            return None;
        }
        Some(self.ring.as_mut()?.send(node.index(), output))
    }

    /// The node's socket may take more.
    pub(super) fn resume(&mut self, node: NodeId) {
        if let Some(ring) = self.ring.as_mut().filter(|_| self.held.contains(node)) {
            ring.resume(node.index());
        }
    }

    /// The node's connection is gone.
    pub(super) fn forget(&mut self, node: NodeId) {
        if let Some(ring) = self.ring.as_mut().filter(|_| self.held.contains(node)) {
            ring.detach(node.index());
        }
        self.held.remove(node);
    }

    /// In a forked process: closes the copies of the descriptors, and nothing else.
    pub(super) fn abandon(&mut self) {
        *self = RingSockets { reason: self.reason.take(), ..RingSockets::default() };
    }
}

impl Engine {
    /// What serves the sockets of the nodes, and why.
    pub(crate) fn socket_driver(&self) -> SocketDriver {
        match &self.ring.reason {
            Some(reason) => SocketDriver::Poller { reason: reason.clone() },
            None => SocketDriver::IoUring,
        }
    }

    /// From now on a ring of this thread serves the sockets, if the kernel allows it. To be called
    /// before the first turn.
    pub(crate) fn use_ring(&mut self) {
        match self.make_ring() {
            Ok(ring) => self.ring.ring = Some(ring),
            Err(error) => {
                let reason = format!(
                    "io_uring: the kernel refused a ring ({}); Linux 6.1 or newer is needed, \
                     and permission to call io_uring_setup",
                    words(&error)
                );
                self.ring.reason = Some(reason.into());
            }
        }
    }

    fn make_ring(&mut self) -> io::Result<Ring> {
        let mut ring = Ring::new(self.sockets.len(), BUFFERS, BUFFER_BYTES)?;
        ring.watch(self.registry.as_fd())?;
        self.alarm.leave_short_sleeps();
        Ok(ring)
    }

    /// If there is a ring, it serves this node's open connection from now on.
    pub(super) fn move_to_ring(&mut self, node: NodeId) {
        let Some(ring) = &mut self.ring.ring else { return };
        let Some(stream) = &mut self.sockets[node.index()].stream else { return };
        let Some(plain) = stream.plain() else { return };
        // If the system has no descriptor left for it, the poller serves this socket.
        if ring.attach(node.index(), plain).is_err() {
            return;
        }
        self.ring.held.insert(node);
        self.more.remove(node);
        let token = Token(self.base.0 + node.index());
        if let Err(error) = self.registry.reregister(stream, token, Interest::WRITABLE) {
            self.lost(node, &error);
        }
    }

    /// As [`check_fork`](Engine::check_fork). With a ring it costs no system call.
    pub(crate) fn check_fork_by_ring(&mut self) -> bool {
        self.ring.ring.as_ref().is_some_and(|ring| !ring.is_a_copy()) || self.check_fork()
    }

    /// Whether [`turn_ring`](Engine::turn_ring) is the way to wait.
    pub(crate) fn has_ring(&self) -> bool {
        self.ring.ring.is_some()
    }

    /// Writes what was requested and waits, in one system call, and takes what the ring has then.
    /// Returns whether the poller has events, too.
    pub(crate) fn turn_ring(&mut self, timeout: Option<Duration>) -> bool {
        let Some(ring) = &mut self.ring.ring else { return true };
        if let Err(error) = ring.submit_and_wait(timeout) {
            self.ring_failed(&error);
            return true;
        }
        self.take_from_ring();
        std::mem::take(&mut self.ring.watched)
    }

    /// Takes what the ring has; returns whether there was anything.
    fn take_from_ring(&mut self) -> bool {
        let mut since: Option<Instant> = None;
        while let Some(event) = self.ring.ring.as_mut().and_then(Ring::next_event) {
            let now = *since.get_or_insert_with(clock::now);
            match event {
                Event::Received { place, bytes } => {
                    self.coordinator.handle_bytes(NodeId::new(place), bytes, now);
                }
                Event::Ended { place, error } if error.kind() == io::ErrorKind::UnexpectedEof => {
                    let closed = io::Error::new(error.kind(), "closed by the node");
                    self.lost(NodeId::new(place), &closed);
                }
                Event::Ended { place, error } => self.lost(NodeId::new(place), &error),
                Event::Watched => self.ring.watched = true,
            }
        }
        since.is_some()
    }

    /// Reads everything that the sockets of the ring hold by now.
    pub(super) fn read_ring(&mut self) {
        self.ring.rest = false;
        for _ in 0..READS_A_TURN {
            let Some(ring) = &mut self.ring.ring else { return };
            if let Err(error) = ring.submit() {
                return self.ring_failed(&error);
            }
            if !self.take_from_ring() {
                return;
            }
        }
        self.ring.rest = true;
    }

    /// Submits what is queued, without waiting.
    pub(super) fn submit_to_ring(&mut self) {
        let Some(ring) = &mut self.ring.ring else { return };
        if ring.has_queued() {
            if let Err(error) = ring.submit() {
                self.ring_failed(&error);
            }
        }
    }

    /// Gives the sockets back to the poller.
    fn ring_failed(&mut self, error: &io::Error) {
        // What arrived is in the ring's queue; nothing is received from here on.
        self.take_from_ring();
        let Some(mut ring) = self.ring.ring.take() else { return };
        let reason = format!("io_uring: the ring failed ({}); make a new engine", words(error));
        self.ring.reason = Some(reason.into());
        (self.ring.rest, self.ring.watched) = (false, false);
        for node in std::mem::take(&mut self.ring.held).iter() {
            let unsent = ring.has_unsent(node.index());
            ring.detach(node.index());
            let token = Token(self.base.0 + node.index());
            let socket = &mut self.sockets[node.index()];
            let Some(stream) = &mut socket.stream else { continue };
            let interest = Interest::READABLE | Interest::WRITABLE;
            let kept = match self.registry.reregister(stream, token, interest) {
                Ok(()) if unsent => Err(io::Error::other("the ring failed during a write")),
                kept => kept,
            };
            if let Err(error) = kept {
                let stream = self.drop_stream(node);
                self.coordinator.handle_disconnected(node, &words(&error), clock::now());
                stream.into_iter().for_each(|stream| stream.reset(true));
            }
        }
    }
}
