//! The sockets of the nodes: they are opened, reported by the poller, read, and closed.

use std::io;
use std::panic::{self, AssertUnwindSafe};

use mio::{Interest, Token};

use super::Engine;
use super::masters::Asking;
use crate::net::clock;
use crate::net::connect::Connector;
use crate::net::socket::{Readiness, error_text};
use crate::net::stream::Stream;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// How many full buffers are read from one node before the others have their turn. A node that
/// sends without end must not occupy the loop.
const READS_A_TURN: usize = 4;

/// How many full buffers are read from one node before its connection is closed, so that the close
/// is no reset. This is more than any answer takes. A node that sends without end is reset: it
/// must not delay the thread that drops the engine.
const LAST_READS: usize = 256;

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) connector: Connector,
    pub(super) stream: Option<Stream>,
    /// The look-up of the node's master, while it goes on.
    pub(super) asking: Option<Asking>,
    /// When that look-up, or the last one, began.
    pub(super) asked_at: Instant,
    /// The connection is not known to be open yet.
    pub(super) opening: bool,
    /// The kernel may take more. Once it is full, the engine writes again only after the poller
    /// reports the socket.
    pub(super) writable: bool,
}

impl Socket {
    pub(super) fn new(connector: Connector) -> Socket {
        let (stream, asking, asked_at) = (None, None, Instant::default());
        Socket { connector, stream, asking, asked_at, opening: false, writable: false }
    }
}

impl Engine {
    /// Handles an event of the poller; returns `false` if it is not one of this engine's.
    pub fn handle_event(&mut self, event: &mio::event::Event) -> bool {
        let Some(node) = self.node_of(event.token()) else {
            let ours = self.owns(event.token());
            if ours {
                self.alarm.went_off();
            }
            return ours;
        };
        self.take_master(node);
        let socket = &mut self.sockets[node.index()];
        if socket.opening {
            self.check_opening(node);
        } else {
            socket.writable |= event.is_writable();
        }
        let readable = event.is_readable() || event.is_read_closed() || event.is_error();
        if readable {
            self.read(node, event.is_read_closed());
        }
        true
    }

    pub(super) fn open(&mut self, node: NodeId) {
        if self.sockets[node.index()].connector.master_lookup().is_some() {
            self.look_up_master(node);
        } else {
            self.open_socket(node);
        }
    }

    pub(super) fn open_socket(&mut self, node: NodeId) {
        let token = Token(self.base.0 + node.index());
        let failures = self.coordinator.failures(node);
        while let Some((late, found)) = self.first_lookups.next_result() {
            self.sockets[late.index()].connector.take_found(found);
        }
        let socket = &mut self.sockets[node.index()];
        if socket.connector.is_stale(failures) && !self.first_lookups.is_under_way(node) {
            self.stale.insert(node);
        }
        let opened = socket.connector.open().and_then(|mut stream| {
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.registry.register(&mut stream, token, interest)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                socket.stream = Some(stream);
                (socket.opening, socket.writable) = (true, false);
                self.coordinator.handle_connecting(node, clock::now());
            }
            Err(error) => {
                self.coordinator.handle_disconnected(node, &error_text(&error), clock::now())
            }
        }
    }

    /// Whether the connection attempt has ended.
    pub(super) fn check_opening(&mut self, node: NodeId) {
        let socket = &mut self.sockets[node.index()];
        let Some(stream) = &mut socket.stream else { return };
        match stream.go_on() {
            Ok(false) if stream.is_encrypting() => self.coordinator.handle_encrypting(node),
            Ok(false) => {}
            Ok(true) => {
                // The TLS handshake may have begun and ended since the last call.
                if stream.is_encrypting() {
                    self.coordinator.handle_encrypting(node);
                }
                if stream.may_hold_input() {
                    self.more.insert(node);
                }
                (socket.opening, socket.writable) = (false, true);
                if let Err(error) = self.ask_for_credentials(node) {
                    return self.lost(node, &error);
                }
                self.coordinator.handle_connected(node, clock::now());
            }
            Err(error) => self.lost(node, &error),
        }
    }

    /// # Errors
    /// If the caller's function panics. Then only that node fails. The panic is caught, because it
    /// would end the turn half-way, and the poller would not report the other sockets again.
    fn ask_for_credentials(&mut self, node: NodeId) -> io::Result<()> {
        let Some(ask) = &self.credentials else { return Ok(()) };
        let label = &self.coordinator.settings().nodes[node.index()].label;
        let asked = panic::catch_unwind(AssertUnwindSafe(|| (ask.0)(label)));
        let given = asked.map_err(|_| {
            io::Error::other(
                "Config::credentials: the function panicked; the client tries again later",
            )
        })?;
        let credentials = given.unwrap_or_else(|| self.by_url[node.index()].clone());
        self.coordinator.set_credentials(node, credentials);
        Ok(())
    }

    pub(super) fn lost(&mut self, node: NodeId, error: &io::Error) {
        self.drop_stream(node);
        self.coordinator.handle_disconnected(node, &error_text(error), clock::now());
    }

    pub(super) fn drop_stream(&mut self, node: NodeId) -> Option<Stream> {
        let socket = &mut self.sockets[node.index()];
        (socket.opening, socket.writable) = (false, false);
        self.more.remove(node);
        let mut stream = socket.stream.take()?;
        let _ = self.registry.deregister(&mut stream);
        Some(stream)
    }

    pub(super) fn read(&mut self, node: NodeId, read_closed: bool) {
        for _ in 0..READS_A_TURN {
            let socket = &mut self.sockets[node.index()];
            // A connection that proto has broken off is closed with the next actions.
            let connected = self.coordinator.node_state(node).is_connected();
            let Some(stream) = socket.stream.as_mut().filter(|_| connected) else { return };
            let (count, readiness) = stream.read(&mut self.scratch, read_closed);
            if count > 0 {
                let bytes = &self.scratch[..count];
                self.coordinator.handle_bytes(node, bytes, clock::now());
            }
            match readiness {
                Readiness::Drained => return,
                Readiness::More => {}
                Readiness::Closed(error) => return self.lost(node, &error),
            }
        }
        self.more.insert(node);
    }

    /// Closes every socket, after what was written before is sent.
    pub(super) fn close_sockets(&mut self) {
        // A close with unread input is a reset, which would discard what was just written.
        for socket in &mut self.sockets {
            let Some(stream) = &mut socket.stream else { continue };
            for _ in 0..LAST_READS {
                let (1.., Readiness::More) = stream.read(&mut self.scratch, false) else { break };
            }
        }
        for node in self.nodes().iter() {
            self.end_look_up(node);
            if let Some(stream) = self.drop_stream(node) {
                stream.finish();
            }
        }
    }
}
