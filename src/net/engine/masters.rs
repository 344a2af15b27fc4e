//! The masters of nodes whose URLs have Sentinels: the engine asks the Sentinels before each
//! connection, and again while one is open.
//!
//! Each look-up has a thread of its own, and a socket pair with which the thread wakes the poller.
//! That socket has the token of the node. The hazard is a look-up that is late: its result may come
//! when the connection that it was for was given up. So the state of the node decides what a result
//! is used for.

use std::io::{self, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::sync::{Mutex, PoisonError};
use std::thread;

use mio::net::UnixStream;
use mio::{Interest, Token};

use super::Engine;
use crate::net::clock;
use crate::net::sentinels::{Master, MasterLookup};
use crate::net::socket::words;
use crate::proto::cluster::state::NodeState;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// A look-up in flight.
#[derive(Debug)]
pub(super) struct Asking {
    /// Readable after the result was sent.
    wake: UnixStream,
    /// The mutex only makes the type `Sync`. It is never locked, because all uses have `&mut`.
    found: Mutex<Receiver<io::Result<Master>>>,
}

impl Asking {
    fn begin(lookup: MasterLookup, first: usize) -> io::Result<Asking> {
        let (wake, mut other_end) = UnixStream::pair()?;
        let (sender, found) = mpsc::channel();
        let look_up = move || {
            // If the caller's resolver panics, this look-up fails.
            let found = panic::catch_unwind(AssertUnwindSafe(|| lookup.run(first)));
            let found =
                found.unwrap_or_else(|_| Err(io::Error::other("Config::resolver: it panicked")));
            // If the engine is gone, the result is dropped.
            let _ = sender.send(found);
            // A byte, because a forked process may keep a copy of this end open.
            let _ = other_end.write(&[0]);
        };
        thread::Builder::new().name("redlatch-master".into()).spawn(look_up)?;
        Ok(Asking { wake, found: Mutex::new(found) })
    }

    /// The result; `None` while the look-up goes on.
    fn result(&mut self) -> Option<io::Result<Master>> {
        // Empties the socket, so that the poller reports it only once.
        let _ = self.wake.read(&mut [0]);
        let found = self.found.get_mut().unwrap_or_else(PoisonError::into_inner);
        match found.try_recv() {
            Ok(found) => Some(found),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other("the look-up ended"))),
        }
    }
}

impl Engine {
    /// Begins to ask the Sentinels of a node that is to be connected to, or waits for the answer if
    /// they are being asked.
    pub(super) fn look_up_master(&mut self, node: NodeId) {
        self.coordinator.handle_found(node, "");
        match self.ask_sentinels(node, clock::now()) {
            Ok(()) => self.coordinator.handle_connecting(node, clock::now()),
            Err(error) => self.coordinator.handle_disconnected(node, &words(&error), clock::now()),
        }
    }

    fn ask_sentinels(&mut self, node: NodeId, now: Instant) -> io::Result<()> {
        let first = self.coordinator.failures(node) as usize;
        let socket = &mut self.sockets[node.index()];
        let (None, Some(lookup)) = (&socket.asking, socket.connector.master_lookup()) else {
            return Ok(());
        };
        let mut asking = Asking::begin(lookup.clone(), first)?;
        let token = Token(self.base.0 + node.index());
        self.registry.register(&mut asking.wake, token, Interest::READABLE)?;
        (socket.asking, socket.asked_at) = (Some(asking), now);
        Ok(())
    }

    /// Asks the Sentinels of connected nodes again, each once in a probe interval.
    pub(super) fn ask_sentinels_again(&mut self, now: Instant) {
        let interval = self.coordinator.settings().probe_interval;
        for node in self.nodes().iter() {
            let socket = &self.sockets[node.index()];
            let is_due = now.saturating_since(socket.asked_at) >= interval;
            if is_due && socket.stream.is_some() && socket.connector.master_lookup().is_some() {
                // If this fails, it is tried again in the next turn.
                let _ = self.ask_sentinels(node, now);
            }
        }
    }

    /// Takes the results of all look-ups that have ended.
    pub(super) fn take_masters(&mut self) {
        for node in self.nodes().iter() {
            self.take_master(node);
        }
    }

    /// Takes the result of the node's look-up, if it has ended. Connects to the master, or leaves
    /// the present server if a majority of the Sentinels names another.
    pub(super) fn take_master(&mut self, node: NodeId) {
        let socket = &mut self.sockets[node.index()];
        let Some(found) = socket.asking.as_mut().and_then(Asking::result) else { return };
        self.end_look_up(node);
        let socket = &mut self.sockets[node.index()];
        let is_wanted = self.coordinator.node_state(node) == NodeState::Connecting;
        match (found, &socket.stream) {
            (Ok(master), None) if is_wanted => self.connect_to(node, master),
            (Err(error), None) if is_wanted => self.lost(node, &error),
            (Ok(master), Some(_)) if master.by_majority => self.leave_unless_at(node, &master),
            _ => {}
        }
    }

    /// Forgets the node's look-up. Its thread goes on to its end.
    pub(super) fn end_look_up(&mut self, node: NodeId) {
        if let Some(mut asking) = self.sockets[node.index()].asking.take() {
            let _ = self.registry.deregister(&mut asking.wake);
        }
    }

    fn connect_to(&mut self, node: NodeId, master: Master) {
        let place = format!("at {}, which the Sentinels name", master.text());
        self.coordinator.handle_found(node, &place);
        match self.sockets[node.index()].connector.set_master(master) {
            Ok(()) => self.open_socket(node),
            Err(error) => self.lost(node, &error),
        }
    }

    fn leave_unless_at(&mut self, node: NodeId, master: &Master) {
        let present = self.sockets[node.index()].connector.last_opened();
        if present.is_none_or(|address| master.addresses.contains(&address)) {
            return;
        }
        let was = present.map(|address| address.to_string()).unwrap_or_default();
        let moved = format!("it was at {was}, but the Sentinels name {} now", master.text());
        self.coordinator.handle_found(node, "");
        if let Some(stream) = self.drop_stream(node) {
            // The pending releases of this node go out on its next connection.
            stream.reset();
        }
        self.coordinator.handle_disconnected(node, &moved, clock::now());
    }
}
