//! What the cluster keeps of one node: its connection, its state, and why its grants may not count.

use crate::proto::cluster::known::{Known, Sighting};
use crate::proto::cluster::line::Listening;
use crate::proto::cluster::restart_guard::QuarantineReason;
use crate::proto::cluster::state::{NodeState, Reading};
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::time::Instant;
use crate::proto::timers::Timer;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::connection::Connection;
use crate::proto::wire::handshake::{Handshake, Info, Vetted};
use crate::proto::wire::marker::Marking;
use crate::proto::wire::members::{MemberId, MembersState};

/// What the cluster keeps of one node.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) state: NodeState,
    pub(super) connection: Connection,
    /// Why the node could not be asked when that was tried last. While the node is not ready, this
    /// is its vote.
    pub(super) last_error: NodeError,
    /// The text of the last error, as the system or the node worded it.
    pub(super) words: Box<str>,
    /// Where the driver found the server last, if the URL does not say it.
    pub(super) found_at: Box<str>,
    /// When the present connection was begun.
    pub(super) connecting_since: Instant,
    /// Whether TLS is spoken on the present connection, from the TLS handshake on.
    pub(super) encrypting: bool,
    /// How often in a row the node could not be made ready.
    pub(super) failures: u32,
    /// What the handshake of the present connection found, while the node is ready.
    pub(super) vetted: Vetted,
    /// Whether the node sends this client messages on the present connection.
    pub(super) listening: Listening,
    /// Whether a proxy dropped the confirmation of a `SUBSCRIBE`. The client does not send that
    /// command to this node again.
    pub(super) drops_confirmations: bool,
    /// What the node reported when it was vetted last.
    pub(super) known: Option<Info>,
    /// When the client last saw the node marker that it knows. The marker is in `vetted`.
    pub(super) sighting: Option<Sighting>,
    /// When the client last saw that the node may evict keys, on the node's clock. `None` if it did
    /// not, or if the node has been judged for that since.
    pub(super) evicted: Option<u64>,
    /// The list of masters that the node has, on the present connection.
    pub(super) members: MembersState,
    /// The id with which the client first saw the node in a list.
    pub(super) member: Option<MemberId>,
    /// When the list was asked for that was read last on the present connection.
    pub(super) list_asked_at: Option<Instant>,
    /// The node is not asked until its list is read again.
    pub(super) list_is_old: bool,
    /// The node is known not to be in the list of masters.
    pub(super) is_outside: bool,
    /// When this client learned that the node was added to the list.
    pub(super) joined: Option<Instant>,
    /// Whether the client refused the node because of the list that it read there last.
    pub(super) has_other_list: bool,
    /// The list is being written by a command in flight.
    pub(super) listing: bool,
    /// The node has passed the handshake of the present connection, and waits until it is known
    /// whether there is a list.
    pub(super) awaits_list: bool,
    /// Where counters of fencing numbers start at least, if the list was ever changed: at the
    /// moment at which this client began to count by it.
    pub(super) list_floor: Option<u64>,
    /// The node has passed the check of its list in the present handshake.
    pub(super) is_past_the_list: bool,
    /// How the node marker is written by the command in flight.
    pub(super) marking: Option<Marking>,
    /// How the node marker still has to be written.
    pub(super) wants_marking: Option<Marking>,
    /// Whether an operator vouches for the node, and the node has forgotten nothing since the
    /// command for that was written.
    pub(super) vouching: bool,
    /// From when on the node's grants count, and why not before.
    pub(super) trusted_from: Option<(Instant, QuarantineReason)>,
    /// The last reading of the node's clock.
    pub(super) reading: Option<Reading>,
    /// The last reading on the present connection, by which its clock is compared with those of
    /// the other nodes.
    pub(super) clock: Option<Reading>,
    /// The numbers of earlier connections, newest first, from which the node may still execute
    /// something.
    pub(super) earlier: Vec<i64>,
    /// When the node became ready.
    pub(super) ready_since: Option<Instant>,
    pub(super) handshake: Handshake,
    /// Why the first refused step of the handshake was refused, and the text of the refusal.
    pub(super) refusal: Option<(NodeError, Box<str>)>,
    /// Ends the pause before the next connection, or the time to become ready.
    pub(super) connecting: Option<Timer>,
    /// Checks for silence.
    pub(super) silence: Option<Timer>,
    /// Gives the silent connection up.
    pub(super) reset: Option<Timer>,
    /// Asks the next probe.
    pub(super) probe: Option<Timer>,
    /// Ends the quarantine.
    pub(super) trust: Option<Timer>,
}

impl Default for Node {
    fn default() -> Node {
        Node {
            state: NodeState::Connecting,
            connection: Connection::default(),
            last_error: NodeError::Unreachable,
            words: "".into(),
            found_at: "".into(),
            connecting_since: Instant::default(),
            encrypting: false,
            failures: 0,
            vetted: Vetted::default(),
            listening: Listening::No,
            drops_confirmations: false,
            known: None,
            sighting: None,
            evicted: None,
            members: MembersState::Unavailable,
            member: None,
            list_asked_at: None,
            list_is_old: false,
            is_outside: false,
            joined: None,
            has_other_list: false,
            listing: false,
            awaits_list: false,
            list_floor: None,
            is_past_the_list: false,
            marking: None,
            wants_marking: None,
            vouching: false,
            trusted_from: None,
            reading: None,
            clock: None,
            earlier: Vec::new(),
            ready_since: None,
            handshake: Handshake::default(),
            refusal: None,
            connecting: None,
            silence: None,
            reset: None,
            probe: None,
            trust: None,
        }
    }
}

impl Node {
    /// A node whose connection belongs to the process that this one was forked from.
    pub(super) fn of_another_process() -> Node {
        let (state, last_error) = (NodeState::Rejected(NodeError::Forked), NodeError::Forked);
        Node { state, last_error, failures: 1, ..Node::default() }
    }

    /// What the client knew of the node before its present handshake.
    pub(super) fn known(&self) -> Option<Known> {
        self.known.map(|info| Known { info, marker: self.vetted.marker, sighting: self.sighting })
    }

    /// What a report adds to `reply`: the node's own words, or how long its grants do not count.
    pub(super) fn detail(&self, reply: NodeReply, now: Instant) -> Option<Box<str>> {
        let NodeReply::Failed(cause) = reply else { return None };
        let last_error = self.connection.last_error();
        if let (NodeError::Quarantined, Some((from, why))) = (cause, self.trusted_from) {
            let left = from.saturating_since(now).as_secs_f64();
            Some(format!("restart guard: {why}; its grants count in {left:.1} s").into())
        } else if cause == self.last_error && !self.words.is_empty() {
            Some(self.words.clone())
        } else if let (NodeError::Unreachable, Some(step)) = (cause, self.awaited_step()) {
            let waited = now.saturating_since(self.connecting_since);
            Some(format!("waiting for {step} for {waited:.1?}").into())
        } else if !last_error.is_empty() && NodeError::of_error(last_error.as_bytes()) == cause {
            Some(last_error.into())
        } else {
            None
        }
    }

    /// What the connection that is being opened waits for.
    pub(super) fn awaited_step(&self) -> Option<&'static str> {
        match self.state {
            NodeState::Connecting if self.encrypting => Some("TLS"),
            NodeState::Connecting => Some("TCP"),
            NodeState::Handshake => match self.connection.oldest_question() {
                Some(Ask::Node(NodeAsk::Handshake(step))) => Some(step.command()),
                _ => Some("HELLO"),
            },
            _ => None,
        }
    }

    /// Whether the node's connection was lost a moment ago, and the next one is being opened
    /// without a pause.
    pub(super) fn is_reconnecting(&self) -> bool {
        self.failures == 0 && !self.state.is_usable() && self.state != NodeState::Suspect
    }
}
