//! The cluster: the connections to the nodes, the handshake, and the state of each node: ready, in
//! quarantine, silent, rejected or gone. It puts the questions of the locks into the outboxes and
//! gives their answers back.
//!
//! The cluster sees no record, no deadline and no round. An [`Ask`] carries the id of a record
//! through the cluster, and nothing here uses that id.
//!
//! What the locks have to know of a node comes out as [`Received`] and as [`Change`]s, in the order
//! in which it happened. The hazard is a change that is acted on late. So the caller of
//! [`receive`](Cluster::receive), [`handle_timeout`](Cluster::handle_timeout) or
//! [`handle_disconnected`](Cluster::handle_disconnected) takes all changes out before it does
//! anything else.
//!
//! The cluster has timers of its own, apart from those of the locks. It also holds all counters,
//! because [`Stats`] is read as a whole and the cluster is the lowest layer that counts. The
//! cluster draws nothing at random: its caller draws the number for the pause before a reconnect.

mod admission;
mod connections;
pub mod counting_nodes;
mod events;
#[cfg(feature = "testing")]
mod fingerprint;
pub mod known;
mod line;
mod liveness;
mod members;
mod node;
mod probes;
mod quarantine;
mod questions;
pub mod restart_guard;
pub mod state;
#[cfg(test)]
pub mod tests;

use std::collections::VecDeque;

use crate::proto::cluster::restart_guard::QuarantineReason;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::{RecordId, TaskId};
use crate::proto::key::KeyHash;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::majority;
use crate::proto::settings::Settings;
use crate::proto::stats::Stats;
use crate::proto::time::Instant;
use crate::proto::timers::Timers;
use crate::proto::waiting::NEVER;
use crate::proto::wire::answers::{NodeAnswer, TaskAnswer};
use crate::proto::wire::ask::{Ask, Kind, LockAsk};
use crate::proto::wire::connection::{Incoming, PlainAnswers};
use crate::proto::wire::line::Channel;
use crate::proto::wire::marker::Marking;
use crate::proto::wire::members::MemberList;

use events::Events;
pub use events::NodeEvent;
use node::Node;

/// What the driver, which owns the sockets, has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Open a connection to the node. The driver reports the outcome by
    /// [`handle_connected`](crate::proto::coordinator::Coordinator::handle_connected) or
    /// [`handle_disconnected`](crate::proto::coordinator::Coordinator::handle_disconnected).
    Connect(NodeId),
    /// Close the node's connection, or the one that is being opened. The driver need not report
    /// that it did.
    Disconnect(NodeId),
}

/// What a node sent, for the locks to act on. Changes are rare, and are reported separately. This
/// enum is moved on the hot path, so it has to be small and must own nothing that needs a drop.
#[derive(Debug, Clone, Copy)]
pub enum Received {
    /// The answer to a question about a lock.
    Lock(LockAsk, NodeReply),
    /// The answer to the registration of a record's key: as in [`Incoming::Registered`].
    Registered(RecordId, Option<i64>),
    /// The answer to a question of a task.
    Task(TaskId, TaskAnswer),
    /// Another client wrote to a key with this hash, or the node forgot that the key was
    /// registered.
    Written(KeyHash),
    /// The node handed a key over to a waiter of this client:
    /// [`take_handed_over`](Cluster::take_handed_over) has what it said.
    HandedOver,
    /// The node was flushed. If that put it into quarantine, [`Change::Distrusted`] is queued.
    Flushed,
    /// Nothing but changes, which are queued.
    Changes,
}

/// What changed about a node, for the locks to act on.
#[derive(Debug, Clone)]
pub enum Change {
    /// The node may have forgotten keys just now, and was trusted before.
    Distrusted(QuarantineReason),
    /// The earlier connections that could be ended are ended: the node executes nothing more from
    /// them.
    NothingComesLate,
    /// Another process answers for the node, so nothing more is executed from any earlier
    /// connection.
    OtherProcess,
    /// Nothing can prove any more that the node executes nothing from an earlier connection that
    /// left questions unanswered.
    NoProof,
    /// The handshake is over, and it is known what the node may have forgotten. The caller has to
    /// [`admit`](Cluster::admit) it, to send it the pending releases, and to
    /// [`start_probing`](Cluster::start_probing).
    Vetted,
    /// The client now knows whether the node notifies it of hand-overs.
    Listens,
    /// The node was silent, and answers again.
    CaughtUp,
    /// The node's connection is gone, or could not be made. The caller has to call
    /// [`plan_reconnect`](Cluster::plan_reconnect). The node will not answer the questions in
    /// `asks` any more.
    Lost {
        /// The cause of the votes that these questions get instead of an answer.
        cause: NodeError,
        /// The questions, oldest first.
        asks: VecDeque<Ask>,
        /// Whether [`Change::NothingComesLate`] or [`Change::NoProof`] follows later.
        provable: bool,
    },
}

/// What a timer of a node does when it comes due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// Connect again after a pause.
    Reconnect(NodeId),
    /// Give up the connection if it is not ready within the connect timeout.
    Connecting(NodeId),
    /// Check whether the node is silent.
    Silence(NodeId),
    /// Give up the connection of a suspect node that stays silent.
    Reset(NodeId),
    /// Probe the node.
    Probe(NodeId),
    /// End the node's quarantine.
    Trust(NodeId),
}

/// The nodes and their connections.
#[derive(Debug, Clone)]
pub struct Cluster {
    settings: Settings,
    quorum: usize,
    voters: NodeSet,
    nodes: Vec<Node>,
    timers: Timers<Due>,
    actions: VecDeque<Action>,
    changes: VecDeque<(NodeId, Change)>,
    events: Events,
    /// The channel of this client, once it has stood in line.
    channel: Option<Channel>,
    /// The list of masters that all its members had, once one is known.
    list: Option<MemberList>,
    /// Until when the lists that were read from the usable nodes count.
    lists_until: Instant,
    /// Whether a node is held back until its list is read again.
    awaits_lists: bool,
    stats: Stats,
}

impl Cluster {
    /// The nodes of these settings, with an action to connect to each.
    pub fn new(settings: Settings, now: Instant) -> Cluster {
        let mut cluster = Cluster {
            quorum: majority(settings.nodes.len()),
            voters: NodeSet::first(settings.nodes.len()),
            nodes: settings.nodes.iter().map(|_| Node::default()).collect(),
            timers: Timers::new(),
            actions: VecDeque::new(),
            changes: VecDeque::new(),
            events: Events::default(),
            channel: None,
            list: None,
            lists_until: NEVER,
            awaits_lists: false,
            stats: Stats::of(settings.nodes.len()),
            settings,
        };
        for node in cluster.all_nodes().iter() {
            let (settings, patience) = (&cluster.settings, cluster.settings.replica_patience());
            let connection = &mut cluster.nodes[node.index()].connection;
            connection.set_key_prefix(&settings.key_prefix);
            connection.require_replicas(settings.replicas, patience);
            cluster.connect(node, now);
        }
        cluster
    }

    /// The next thing that the driver has to do with a socket.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Whether something has to be done with the sockets.
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// What is to be written to a node.
    #[inline]
    pub fn output(&self, node: NodeId) -> &[u8] {
        self.nodes[node.index()].connection.output()
    }

    /// Takes note that the first `count` bytes of the output were written.
    #[inline]
    pub fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        self.nodes[node.index()].connection.sent(count, now);
    }

    /// Gives back the memory that no connection has used since the last call.
    pub fn shrink(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.connection.shrink());
    }

    /// Takes the next answers from what was read, if they are some of the few plain ones that
    /// nearly all questions about locks get. Such an answer changes no node. Everything else is for
    /// [`receive`](Cluster::receive). The caller then takes out as many questions by
    /// [`take_answered`](Cluster::take_answered), before it receives anything else.
    #[inline]
    pub fn receive_plain(
        &mut self,
        node: NodeId,
        input: &mut &[u8],
        now: Instant,
    ) -> Option<PlainAnswers> {
        let entry = &mut self.nodes[node.index()];
        debug_assert!(self.changes.is_empty(), "changes are acted on before answers");
        if !entry.state.is_connected() {
            return None;
        }
        let stats = self.stats.node(node);
        let took = |nanos, count| stats.round_trips.add_micros(nanos / 1000, count as u64);
        let answers = entry.connection.plain_answers(input, now, took)?;
        stats.note_replies(answers.kind == Kind::Acquire, answers.reply, answers.count as u64);
        Some(answers)
    }

    /// Takes out the oldest question to the node, which was answered by a plain answer.
    #[inline]
    pub fn take_answered(&mut self, node: NodeId) -> Option<LockAsk> {
        self.nodes[node.index()].connection.take_answered()
    }

    /// Takes what was read from a node, up to the next event for the locks. The caller takes the
    /// changes out before it calls again, and before it acts on an answer. The caller repeats the
    /// call until it returns `None`.
    #[inline]
    pub fn receive(&mut self, node: NodeId, input: &mut &[u8], now: Instant) -> Option<Received> {
        loop {
            let entry = &mut self.nodes[node.index()];
            if !entry.state.is_connected() {
                return None;
            }
            match entry.connection.next_incoming(input, now) {
                Ok(Some(Incoming::Lock(ask, reply))) => {
                    let took = now.saturating_since(entry.connection.asked_at());
                    self.stats.answered(node, ask.kind == Kind::Acquire, reply, took);
                    return Some(Received::Lock(ask, reply));
                }
                Ok(Some(Incoming::Node(answer))) => self.on_answered(node, answer, now),
                Ok(Some(Incoming::Registered(record, left))) => {
                    return Some(Received::Registered(record, left));
                }
                Ok(Some(Incoming::Task(task, answer))) => {
                    if let Some(reply) = answer.reply() {
                        let took = now.saturating_since(entry.connection.asked_at());
                        self.stats.answered(node, false, reply, took);
                    }
                    return Some(Received::Task(task, answer));
                }
                Ok(Some(Incoming::Flushed)) => {
                    let how = Some(Marking::IfMissing);
                    self.distrust(node, QuarantineReason::Flushed, how, now);
                    self.on_members_flushed(node, now);
                    return Some(Received::Flushed);
                }
                Ok(Some(Incoming::Written(key))) => return Some(Received::Written(key)),
                Ok(Some(Incoming::HandedOver)) => return Some(Received::HandedOver),
                Ok(None) => return None,
                Err(fault) => self.on_fault(node, fault, now),
            }
            if !self.changes.is_empty() {
                return Some(Received::Changes);
            }
        }
    }

    /// Acts on the answer to a question of the cluster itself.
    fn on_answered(&mut self, node: NodeId, answer: NodeAnswer, now: Instant) {
        match answer {
            NodeAnswer::Handshake(step) => self.on_handshake_answer(node, step, now),
            NodeAnswer::Marked => self.on_marked(node, now),
            NodeAnswer::ListWritten => self.on_list_written(node, now),
            NodeAnswer::Probed(step) => self.on_probe_answered(node, step, now),
            NodeAnswer::Gone(gone) => self.on_kill_answer(node, gone),
            NodeAnswer::Subscribed(listens) => self.on_listening_answer(node, listens),
            NodeAnswer::Unused => {}
        }
    }

    /// When the question was asked that a node answered last.
    #[inline]
    pub fn asked_at(&self, node: NodeId) -> Instant {
        self.nodes[node.index()].connection.asked_at()
    }

    /// Whether there are changes.
    #[inline]
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The next change of a node.
    pub fn poll_change(&mut self) -> Option<(NodeId, Change)> {
        self.changes.pop_front()
    }

    /// The earliest moment at which something is due.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Handles the earliest timer that is due. Returns whether there was one.
    pub fn handle_timeout(&mut self, now: Instant) -> bool {
        let Some(due) = self.timers.pop_due(now) else { return false };
        match due {
            Due::Reconnect(node) => self.connect(node, now),
            Due::Connecting(node) => self.on_connect_timeout(node, now),
            Due::Silence(node) => self.check_for_silence(node, now),
            Due::Reset(node) => self.on_reset_due(node, now),
            Due::Probe(node) => self.on_probe_due(node, now),
            Due::Trust(node) => self.on_trust_due(node),
        }
        true
    }

    /// How many timers are set.
    pub fn open_timers(&self) -> usize {
        self.timers.len()
    }

    /// Called in a forked process: the connections are the parent's. No node can be asked any more,
    /// and nothing is written.
    pub fn abandon_after_fork(&mut self) {
        self.timers = Timers::new();
        self.actions.clear();
        self.changes.clear();
        self.nodes.iter_mut().for_each(|node| *node = Node::of_another_process());
    }

    fn report(&mut self, node: NodeId, change: Change) {
        self.changes.push_back((node, change));
    }
}
