//! The engine's sockets on io_uring. The ring receives, and in a loop of its own it also sends. The
//! poller serves the rest: connections that are being opened or encrypted, the alarm, the waker,
//! and the report that a full socket takes more.
//!
//! The hazards are two. An operation of the ring keeps a socket open: so a connection that is
//! broken off is disconnected, not only closed. And a ring belongs to one thread: if the engine
//! turns on another thread, its sockets go back to the poller first, with everything that arrived.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Token};
use redlatch_uring::{Event, Ring, Waiter};
use rustix::event::{EventfdFlags, eventfd};

use super::Engine;
use crate::net::clock;
use crate::net::socket::words;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;

/// The receive buffers of each node: how many, and how many bytes each has. A node has its own, so
/// one that sends without end does not keep the answers of the others out.
const BUFFERS: u16 = 8;
const BUFFER_BYTES: usize = 4096;

/// How often an engine may change its thread before it stays with epoll: each change costs a new
/// ring.
const MOST_RINGS: u32 = 8;

/// How often a turn asks the ring for more. A node that sends without end must not occupy the
/// loop.
const READS_A_TURN: usize = 4;

/// How a driver waits for a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingUse {
    /// One call submits and waits: no other thread uses the engine meanwhile.
    Loop,
    /// The driver waits while other threads use the engine: they write to the sockets themselves.
    Shared,
    /// The poller is waited for, and the ring is an eventfd in it.
    Nested(Token),
}

/// What serves the sockets of the nodes.
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
    used: Option<RingUse>,
    /// What the ring signals in the poller.
    signal: Option<OwnedFd>,
    held: NodeSet,
    /// How many rings there were.
    rings: u32,
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
        let ring = self.ring.as_mut()?;
        if self.used == Some(RingUse::Loop) && ring.is_here() {
            return Some(ring.send(node.index(), output));
        }
        ring.has_unsent(node.index()).then_some(false)
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

    /// The ring, on its own thread.
    fn here(&mut self) -> Option<&mut Ring> {
        self.ring.as_mut().filter(|ring| ring.is_here())
    }
}

impl Engine {
    /// What serves the sockets of the nodes, and why.
    pub fn socket_driver(&self) -> SocketDriver {
        if self.ring.ring.is_some() {
            return SocketDriver::IoUring;
        }
        let reason = self.ring.reason.clone();
        let reason = reason.unwrap_or_else(|| "io_uring: no turn has asked for it yet".into());
        SocketDriver::Poller { reason }
    }

    /// Makes sure that the sockets are served by a ring of this thread, if that is possible. To be
    /// called by a driver before its turns.
    #[inline]
    pub(crate) fn use_ring_here(&mut self, used: RingUse) {
        if self.ring.here().is_none() && self.ring.reason.is_none() {
            self.change_ring(used);
        }
    }

    fn change_ring(&mut self, used: RingUse) {
        self.leave_ring();
        if self.ring.rings == MOST_RINGS {
            let reason = format!(
                "io_uring: the client changed its thread {MOST_RINGS} times; \
                 use each client on one thread"
            );
            self.ring.reason = Some(reason.into());
        } else if let Err(error) = self.make_ring(used) {
            let reason = format!(
                "io_uring: the kernel refused a ring ({}); Linux 6.1 or newer is needed, \
                 and permission to call io_uring_setup",
                words(&error)
            );
            self.ring.reason = Some(reason.into());
        }
    }

    fn make_ring(&mut self, used: RingUse) -> io::Result<()> {
        let mut ring = Ring::new(self.sockets.len(), BUFFERS, BUFFER_BYTES)?;
        self.ring.rings += 1;
        match used {
            RingUse::Nested(token) => {
                let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                ring.signal(signal.as_fd())?;
                // The signal is edge-triggered, so it need not be read.
                let number = signal.as_raw_fd();
                self.registry.register(&mut SourceFd(&number), token, Interest::READABLE)?;
                self.ring.signal = Some(signal);
            }
            RingUse::Loop | RingUse::Shared => ring.watch(self.registry.as_fd())?,
        }
        if used == RingUse::Loop {
            self.alarm.leave_short_sleeps();
        }
        (self.ring.ring, self.ring.used) = (Some(ring), Some(used));
        for node in self.nodes().iter() {
            self.move_to_ring(node);
        }
        Ok(())
    }

    /// If there is a ring of this thread, it receives from this node's open connection from now on.
    pub(super) fn move_to_ring(&mut self, node: NodeId) {
        let Some(ring) = self.ring.here() else { return };
        let socket = &mut self.sockets[node.index()];
        let opening = socket.opening;
        let Some(stream) = socket.stream.as_mut().filter(|_| !opening) else { return };
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

    /// Gives the sockets back to the poller.
    fn leave_ring(&mut self) {
        if self.ring.ring.is_none() {
            return;
        }
        // What arrived is in the ring's queue; nothing is received from here on.
        self.take_from_ring();
        let Some(mut ring) = self.ring.ring.take() else { return };
        if let Some(signal) = self.ring.signal.take() {
            let _ = self.registry.deregister(&mut SourceFd(&signal.as_raw_fd()));
        }
        for node in std::mem::take(&mut self.ring.held).iter() {
            let unsent = ring.has_unsent(node.index());
            ring.detach(node.index());
            let token = Token(self.base.0 + node.index());
            let socket = &mut self.sockets[node.index()];
            let Some(stream) = &mut socket.stream else { continue };
            let interest = Interest::READABLE | Interest::WRITABLE;
            let kept = match self.registry.reregister(stream, token, interest) {
                Ok(()) if unsent => Err(io::Error::other("the thread changed during a write")),
                kept => kept,
            };
            if let Err(error) = kept {
                let stream = self.drop_stream(node);
                self.coordinator.handle_disconnected(node, &words(&error), clock::now());
                stream.into_iter().for_each(|stream| stream.reset(true));
            }
        }
        self.ring.rest = false;
    }

    /// Waits for the ring from outside of a lock that protects the engine.
    pub(crate) fn ring_waiter(&self) -> Option<Waiter> {
        self.ring.ring.as_ref().map(Ring::waiter)
    }

    /// Whether [`sleep_in_ring`](Engine::sleep_in_ring) is the way to wait.
    #[inline]
    pub(crate) fn sleeps_in_ring(&self) -> bool {
        self.ring.ring.is_some() && self.ring.used == Some(RingUse::Loop)
    }

    /// Writes what was requested and waits, in one system call.
    pub(crate) fn sleep_in_ring(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match &mut self.ring.ring {
            Some(ring) => ring.submit_and_wait(timeout),
            None => Ok(()),
        }
    }

    /// Takes what the ring has; returns whether there was anything.
    pub(crate) fn take_from_ring(&mut self) -> bool {
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

    /// Whether the poller has events: the driver takes them now.
    pub(crate) fn poller_was_reported(&mut self) -> bool {
        std::mem::take(&mut self.ring.watched)
    }

    /// Reads everything that the sockets of the ring hold by now; returns whether there was
    /// anything.
    pub(crate) fn read_ring(&mut self) -> bool {
        self.ring.rest = false;
        for turn in 0..READS_A_TURN {
            let Some(ring) = self.ring.here() else { return turn > 0 };
            if let Err(error) = ring.submit() {
                self.ring_failed(&error);
                return true;
            }
            if !self.take_from_ring() {
                return turn > 0;
            }
        }
        self.ring.rest = true;
        true
    }

    /// Submits what is queued, without waiting.
    pub(super) fn submit_to_ring(&mut self) {
        let Some(ring) = self.ring.here().filter(|ring| ring.has_queued()) else { return };
        if let Err(error) = ring.submit() {
            self.ring_failed(&error);
        }
    }

    /// Before a sleep that does not submit: what is queued has to be in flight.
    #[inline]
    pub(super) fn arm_ring(&mut self) {
        if self.ring.used != Some(RingUse::Loop) {
            self.submit_to_ring();
        }
    }

    fn ring_failed(&mut self, error: &io::Error) {
        self.leave_ring();
        let reason = format!("io_uring: the ring failed ({}); make a new client", words(error));
        self.ring.reason = Some(reason.into());
    }
}
