//! The life of a node's connection: opened, lost, and opened again after a pause; and the ends of
//! earlier connections, which may have left a question unexecuted on the node.
//!
//! The hazard is a connection that is lost and forgotten: the node may execute what was written on
//! it for a long time. So the client keeps the number of such a connection, and has the node end
//! it.

use crate::proto::cluster::line::Listening;
use crate::proto::cluster::state::{self, NodeState};
use crate::proto::cluster::{Action, Change, Cluster, Due};
use crate::proto::error::NodeError;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;
use crate::proto::wire::connection::Fault;
use crate::proto::wire::members::MembersState;

/// How many times longer the pause is before the next connection to a node whose configuration has
/// to change before it may be used.
const PATIENCE: u32 = 10;

/// How many lost connections of a node the client remembers, to end them by `CLIENT KILL`. Each was
/// ready once, and was lost with an unanswered question that may create or extend a key. Beyond
/// this number the client forgets the oldest. Nothing then proves that the node executes nothing
/// more of it, so the client releases such keys twice.
const EARLIER_CONNECTIONS: usize = 8;

impl Cluster {
    /// Begins the handshake on the connection that was asked for and is now open.
    pub fn handle_connected(&mut self, node: NodeId, now: Instant) {
        if self.node_state(node) == NodeState::Connecting {
            self.set_node_state(node, NodeState::Handshake);
            self.begin_handshake(node, now);
        }
    }

    /// Takes note that the connection is gone, or could not be opened; `words` is the text of the
    /// system's error.
    pub fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        let cause = match self.node_state(node) {
            NodeState::Down(_) | NodeState::Rejected(_) => return,
            NodeState::Connecting => NodeError::Unreachable,
            // A node that ends the connection during the handshake may have said why.
            NodeState::Handshake => {
                self.nodes[node.index()].handshake.error().unwrap_or(NodeError::Unreachable)
            }
            _ => NodeError::Lost,
        };
        // At its port for TLS, Redis 7.0.15 closes a connection without TLS in this way: it sends
        // no alert.
        let entry = &self.nodes[node.index()];
        let is_first = entry.state == NodeState::Handshake && entry.awaited_step() == Some("HELLO");
        let is_plain = is_first && !entry.encrypting && cause == NodeError::Unreachable;
        let hint =
            if is_plain { ", in place of any answer; a port for TLS needs rediss://" } else { "" };
        let words = format!("{words}{hint}");
        self.lose_connection(node, NodeState::Down(cause), cause, &words, now);
        self.agree_on_members(now);
    }

    pub(super) fn connect(&mut self, node: NodeId, now: Instant) {
        let timeout = self.settings.connect_timeout;
        let timer = self.timers.set_after(now, timeout, Due::Connecting(node));
        let entry = &mut self.nodes[node.index()];
        entry.connecting = Some(timer);
        (entry.connecting_since, entry.encrypting) = (now, false);
        self.set_node_state(node, NodeState::Connecting);
        self.actions.push_back(Action::Connect(node));
    }

    /// Counts the connect timeout from now, because the driver begins only now to open the
    /// connection.
    pub fn handle_connecting(&mut self, node: NodeId, now: Instant) {
        if self.node_state(node) == NodeState::Connecting {
            let timeout = self.settings.connect_timeout;
            let entry = &mut self.nodes[node.index()];
            self.timers.clear_in(&mut entry.connecting);
            entry.connecting_since = now;
            entry.connecting = Some(self.timers.set_after(now, timeout, Due::Connecting(node)));
        }
    }

    /// Takes note of where the driver found the server of a node whose URL does not say it.
    pub fn handle_found(&mut self, node: NodeId, place: &str) {
        self.nodes[node.index()].found_at = place.into();
    }

    /// Takes note that the TCP connection is open, and that TLS is spoken on it.
    pub fn handle_encrypting(&mut self, node: NodeId) {
        self.nodes[node.index()].encrypting = true;
    }

    pub(super) fn on_connect_timeout(&mut self, node: NodeId, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        entry.connecting = None;
        // If the process did not run for a while, the handshake was written late, and may still be
        // answered.
        let asked_at =
            entry.connection.oldest_ask().filter(|_| entry.state == NodeState::Handshake);
        let until = asked_at.map_or(now, |at| at.saturating_add(self.settings.node_timeout));
        if until > now {
            entry.connecting = Some(self.timers.set_at(until, Due::Connecting(node)));
            return;
        }
        if entry.awaits_list && asked_at.is_none() {
            if self.nodes.iter().any(|it| it.listing || it.is_in_first_attempt()) {
                let again = self.settings.node_timeout;
                let timer = self.timers.set_after(now, again, Due::Connecting(node));
                self.nodes[node.index()].connecting = Some(timer);
                return;
            }
            self.stop_waiting_for_the_list(node, now);
            return;
        }
        self.actions.push_back(Action::Disconnect(node));
        let entry = &self.nodes[node.index()];
        let (step, timeout) =
            (entry.awaited_step().unwrap_or("TCP"), self.settings.connect_timeout);
        let words = format!("no answer to {step} within the connect timeout of {timeout:?}");
        let cause = NodeError::Unreachable;
        self.lose_connection(node, NodeState::Down(cause), cause, &words, now);
        self.agree_on_members(now);
    }

    /// Closes the connection after a fault: nothing that follows on it can be understood.
    pub(super) fn on_fault(&mut self, node: NodeId, fault: Fault, now: Instant) {
        let cause = match fault {
            Fault::Unasked(Some(cause)) => cause,
            _ => NodeError::Garbage,
        };
        if fault == Fault::Impossible(Ask::Node(NodeAsk::Subscribe)) {
            self.nodes[node.index()].drops_confirmations = true;
        }
        self.actions.push_back(Action::Disconnect(node));
        self.lose_connection(node, NodeState::Down(cause), cause, &fault.to_string(), now);
        self.agree_on_members(now);
    }

    /// Takes note that the connection is lost. Its unanswered questions count as votes against
    /// their requests; pending releases wait for the next connection.
    pub(super) fn lose_connection(
        &mut self,
        node: NodeId,
        state: NodeState,
        cause: NodeError,
        words: &str,
        now: Instant,
    ) {
        self.set_node_state(node, state);
        self.stats.node(node).failures += 1;
        let entry = &mut self.nodes[node.index()];
        entry.last_error = cause;
        entry.words = match (&*entry.found_at, words) {
            ("", words) => words.into(),
            (place, "") => place.into(),
            (place, words) => format!("{place}: {words}").into(),
        };
        // A connection that was ready for long enough is replaced immediately. One that is lost
        // again and again is replaced after a growing pause.
        let (_, longest) = self.settings.reconnect;
        let good =
            entry.ready_since.take().is_some_and(|since| now.saturating_since(since) >= longest);
        entry.failures = if good { 0 } else { entry.failures.saturating_add(1) };
        for timer in [&mut entry.connecting, &mut entry.silence, &mut entry.reset, &mut entry.probe]
        {
            self.timers.clear_in(timer);
        }
        (entry.marking, entry.vouching) = (None, false);
        entry.members = MembersState::Unavailable;
        (entry.list_asked_at, entry.list_is_old) = (None, false);
        (entry.listing, entry.awaits_list, entry.is_past_the_list) = (false, false, false);
        entry.listening = Listening::No;
        let mut asks = entry.connection.reset();
        asks.retain(|ask| matches!(ask, Ask::Lock(_) | Ask::Task(..)));
        let unproven = asks.iter().any(|ask| ask.may_create());
        let provable = self.remember_connection(node, unproven);
        self.count_leases();
        self.report(node, Change::Lost { cause, asks, provable });
    }

    /// Starts the pause before the next connection to a node whose connection was lost. `random` is
    /// any number, uniformly drawn.
    pub fn plan_reconnect(&mut self, node: NodeId, random: u32, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        let mut range = self.settings.reconnect;
        if matches!(entry.state, NodeState::Rejected(cause) if cause.is_permanent()) {
            // The node stays unusable until an operator changes its configuration.
            range = (range.1, range.1.saturating_mul(PATIENCE));
        }
        let pause = state::backoff(range, entry.failures, random);
        entry.connecting =
            Some(self.timers.set_at(now.saturating_add(pause), Due::Reconnect(node)));
    }

    /// Remembers a connection that was ready and is gone. `unproven`: it left questions unanswered
    /// that the node may still execute. Returns whether its end can be proved later, by its number.
    fn remember_connection(&mut self, node: NodeId, unproven: bool) -> bool {
        let entry = &mut self.nodes[node.index()];
        match entry.vetted.client_id.take().filter(|_| unproven) {
            Some(client_id) => {
                let forgotten = entry.earlier.len() == EARLIER_CONNECTIONS;
                entry.earlier.truncate(EARLIER_CONNECTIONS - 1);
                entry.earlier.insert(0, client_id);
                if forgotten {
                    self.report(node, Change::NoProof);
                }
                true
            }
            None => {
                // The connection has no number, so it cannot be ended. The end of another
                // connection does not prove the end of this one either.
                if unproven {
                    self.report(node, Change::NoProof);
                }
                false
            }
        }
    }

    /// Asks the node to end its earlier connections. These are the first commands after the
    /// handshake.
    pub(super) fn end_earlier_connections(&mut self, node: NodeId, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        for &client_id in &entry.earlier {
            entry.connection.ask(Ask::Node(NodeAsk::Kill), now, |out| {
                let digits = client_id.to_string();
                command::encode(out, &[b"CLIENT", b"KILL", b"ID", digits.as_bytes()]);
            });
        }
    }

    /// Acts on a node's answer to the command that ends an earlier connection; `gone`: that
    /// connection is gone.
    pub(super) fn on_kill_answer(&mut self, node: NodeId, gone: bool) {
        let entry = &mut self.nodes[node.index()];
        // The connections were named in the order of this list.
        entry.earlier.remove(0);
        let last = entry.earlier.is_empty();
        if !gone {
            // Nothing will prove that the requests on that connection are over: its keys are
            // released twice.
            self.report(node, Change::NoProof);
        }
        if last {
            self.report(node, Change::NothingComesLate);
        }
    }
}
