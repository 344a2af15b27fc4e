//! What the locks ask of the cluster: whether a node may be asked, whether its grant counts, and to
//! write a question into its outbox.

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::cluster::node::Node;
use crate::proto::cluster::state::NodeState;
use crate::proto::error::{NodeError, NodeReply, NodeReport, Report};
use crate::proto::inspection::Value;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::Ballot;
use crate::proto::settings::{Credentials, Settings};
use crate::proto::stats::Stats;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command::{Form, Native};
use crate::proto::wire::known_scripts::ScriptName;

impl Cluster {
    /// The settings that the cluster was made with.
    #[inline]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The credentials for a node, from its next connection on.
    pub fn set_credentials(&mut self, node: NodeId, credentials: Credentials) {
        let entry = &mut self.settings.nodes[node.index()];
        (entry.user, entry.password) = (credentials.user, credentials.password);
    }

    /// From now on, the client may end before it reads an answer. Returns whether it read answers
    /// at all times until now.
    pub fn set_unattended(&mut self) -> bool {
        std::mem::replace(&mut self.settings.attended, false)
    }

    /// What was counted so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The counters, to count in.
    #[inline]
    pub fn stats_mut(&mut self) -> &mut Stats {
        &mut self.stats
    }

    /// All nodes that the client was made with.
    #[inline]
    pub fn all_nodes(&self) -> NodeSet {
        NodeSet::first(self.nodes.len())
    }

    /// How many nodes there are.
    #[inline]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes that vote: all but those that are known not to be in the list of masters.
    #[inline]
    pub fn voters(&self) -> NodeSet {
        self.voters
    }

    /// How many nodes of the list of masters are a majority.
    #[inline]
    pub fn quorum(&self) -> usize {
        self.quorum
    }

    /// How many voters may fail while the others still are a quorum.
    #[inline]
    pub fn spare_nodes(&self) -> usize {
        self.voters.len().saturating_sub(self.quorum)
    }

    /// A question to all voters that a majority of the list of masters decides.
    #[inline]
    pub fn ballot(&self) -> Ballot {
        Ballot::of_quorum(self.voters, self.quorum)
    }

    /// As [`ballot`](Cluster::ballot), for a question about the token of a lock that another client
    /// may hold: if more nodes lack it than [`may_lack`](Cluster::may_lack), it is gone, and the
    /// caller wants to know that.
    pub fn ballot_about_token(&self) -> Ballot {
        Ballot::that_waits_for_proof(self.voters, self.quorum, self.may_lack())
    }

    /// How many nodes may lack the token of a lock that another client may hold. The nodes of the
    /// list of masters that this client does not know count, too: they may have it.
    pub fn may_lack(&self) -> usize {
        let all = self.list.as_ref().map_or(self.voters.len(), |list| list.members().len());
        all.saturating_sub(self.quorum)
    }

    /// Whether the node became a member of the list after this moment, as far as this client knows.
    pub fn joined_since(&self, node: NodeId, moment: Instant) -> bool {
        self.nodes[node.index()].joined.is_some_and(|joined| joined >= moment)
    }

    /// The nodes that may be asked.
    pub fn askable(&self) -> NodeSet {
        self.all_nodes().iter().filter(|&node| self.may_ask(node).is_ok()).collect()
    }

    /// How many nodes may be asked.
    pub fn usable_nodes(&self) -> usize {
        self.nodes.iter().filter(|entry| entry.state.is_usable()).count()
    }

    /// How many nodes have not ended their first handshake yet, or have not answered yet which list
    /// of masters they have now.
    pub fn first_handshakes(&self) -> usize {
        // Several handshakes may end at once, and their nodes are admitted one after the other.
        let pending = |entry: &&Node| {
            entry.list_is_old && entry.state == NodeState::Suspect
                || entry.failures == 0
                    && (entry.known.is_none()
                        || entry.state == NodeState::Handshake && entry.is_past_the_list)
        };
        self.nodes.iter().filter(pending).count()
    }

    /// The state of a node.
    #[inline]
    pub fn node_state(&self, node: NodeId) -> NodeState {
        self.nodes[node.index()].state
    }

    /// Why a node could not be asked last.
    pub fn last_error(&self, node: NodeId) -> NodeError {
        self.nodes[node.index()].last_error
    }

    /// How often in a row a node could not be made ready.
    pub fn failures(&self, node: NodeId) -> u32 {
        self.nodes[node.index()].failures
    }

    /// Whether the node's connection was lost a moment ago, and the next one is being opened
    /// without a pause.
    pub fn is_reconnecting(&self, node: NodeId) -> bool {
        self.nodes[node.index()].is_reconnecting()
    }

    /// How many questions to a node are unanswered.
    pub fn unanswered(&self, node: NodeId) -> usize {
        self.nodes[node.index()].connection.unanswered()
    }

    /// The unanswered questions to a node, oldest first.
    pub fn asks(&self, node: NodeId) -> impl Iterator<Item = &Ask> {
        self.nodes[node.index()].connection.asks()
    }

    /// When the oldest unanswered question to a node was written.
    pub fn oldest_ask(&self, node: NodeId) -> Option<Instant> {
        self.nodes[node.index()].connection.oldest_ask()
    }

    /// Whether a node may be asked something new, or why not.
    #[inline]
    pub fn may_ask(&self, node: NodeId) -> Result<(), NodeError> {
        let node = &self.nodes[node.index()];
        match node.state {
            NodeState::Ready | NodeState::Quarantined(_) => {
                if node.connection.has_room(&self.settings.limits) {
                    Ok(())
                } else {
                    Err(NodeError::Full)
                }
            }
            NodeState::Suspect => Err(NodeError::Silent),
            _ => Err(node.last_error),
        }
    }

    /// Whether a release may be written to a node now. A suspect node gets only the release of what
    /// is `unanswered` on its connection.
    #[inline]
    pub fn may_release(&self, node: NodeId, unanswered: bool) -> bool {
        self.takes_releases(node, unanswered) && self.has_room_for_release(node)
    }

    /// Whether a release could be sent to the node if there is room in its outbox.
    pub fn takes_releases(&self, node: NodeId, unanswered: bool) -> bool {
        let state = self.node_state(node);
        state.is_usable() || (state == NodeState::Suspect && unanswered)
    }

    /// Whether there is room for a release in a node's outbox.
    #[inline]
    pub fn has_room_for_release(&self, node: NodeId) -> bool {
        self.nodes[node.index()].connection.has_room_for_release(&self.settings.limits)
    }

    /// The node's native compare-and-delete command, if it has one.
    #[inline]
    pub fn native(&self, node: NodeId) -> Option<Native> {
        self.nodes[node.index()].vetted.native
    }

    /// Uses scripts from now on, because the node refused its native command.
    pub fn forget_native(&mut self, node: NodeId) {
        self.nodes[node.index()].vetted.native = None;
    }

    /// Whether the node runs scripts for this user, as far as it has said on this connection.
    pub fn runs_scripts(&self, node: NodeId) -> bool {
        self.nodes[node.index()].connection.runs_scripts()
    }

    /// The native command of a node that runs no scripts.
    pub fn in_place_of_scripts(&self, node: NodeId) -> Option<Native> {
        if self.runs_scripts(node) { None } else { self.native(node) }
    }

    /// The nodes among these that run no scripts, and have a native command.
    pub fn without_scripts(&self, nodes: NodeSet) -> NodeSet {
        nodes.iter().filter(|&node| self.in_place_of_scripts(node).is_some()).collect()
    }

    /// The value that the key had before the last command that compares and sets.
    pub fn value_before(&self, node: NodeId) -> &[u8] {
        self.nodes[node.index()].connection.value_before()
    }

    /// How a script is sent to the node if its answer is read.
    #[inline]
    pub fn form_of(&self, node: NodeId, name: ScriptName) -> Form {
        self.nodes[node.index()].connection.form_of(name)
    }

    /// The nodes among these that get the source of a script, because they may not know its SHA1.
    #[inline]
    pub fn unknowing(&self, nodes: NodeSet, name: ScriptName) -> NodeSet {
        let mut unknowing = NodeSet::EMPTY;
        for node in nodes.iter() {
            if self.form_of(node, name) == Form::Source {
                unknowing.insert(node);
            }
        }
        unknowing
    }

    /// Whether a node may be asked, and reports writes to registered keys.
    pub fn reports_writes(&self, node: NodeId) -> bool {
        self.nodes[node.index()].vetted.tracks && self.may_ask(node).is_ok()
    }

    /// Whether a key can be registered at a node now. Half of the outbox is kept for releases.
    pub fn may_name_a_key(&self, node: NodeId) -> bool {
        let entry = &self.nodes[node.index()];
        entry.vetted.tracks && entry.connection.has_room(&self.settings.limits)
    }

    /// Writes a question into a node's outbox. Its answer comes as
    /// [`Received`](crate::proto::cluster::Received).
    #[inline]
    pub fn ask(
        &mut self,
        node: NodeId,
        ask: Ask,
        now: Instant,
        encode: impl FnOnce(&mut BytesMut),
    ) {
        let entry = &mut self.nodes[node.index()];
        entry.connection.ask(ask, now, encode);
        if entry.silence.is_none() {
            self.watch_for_silence(node, now);
        }
    }

    /// Writes a question that is encoded already into the outboxes of these nodes.
    #[inline]
    pub fn ask_all(&mut self, nodes: NodeSet, ask: Ask, now: Instant, bytes: &[u8]) {
        for node in nodes.iter() {
            self.ask(node, ask, now, |out| out.extend_from_slice(bytes));
        }
    }

    /// Writes a release once more into a node's outbox, at the end of a client, which does not wait
    /// for its answer. A native command needs no repeat; `by_script`: the release is a script.
    pub fn repeat_release(&mut self, node: NodeId, by_script: bool, now: Instant, bytes: &[u8]) {
        let entry = &mut self.nodes[node.index()];
        if by_script || entry.vetted.native.is_none() {
            let ask = Ask::Node(NodeAsk::LastWord);
            entry.connection.ask(ask, now, |out| out.extend_from_slice(bytes));
        }
    }

    /// Writes a command into a node's outbox whose answer the client does not wait for.
    pub fn say_last_word(&mut self, node: NodeId, now: Instant, bytes: &[u8]) {
        self.ask_all(node.into(), Ask::Node(NodeAsk::LastWord), now, bytes);
    }

    /// The number of the key that the node named last, in an answer about all keys of a lock.
    pub fn named_key(&self, node: NodeId) -> u64 {
        self.nodes[node.index()].connection.named_key()
    }

    /// What the last answer to `GETRANGE` showed of a value on the node.
    pub fn seen(&self, node: NodeId) -> Option<Value> {
        self.nodes[node.index()].connection.seen()
    }

    /// Takes out what the last answer to `ZRANGE` said of the line on the node.
    pub fn take_seen_line(&mut self, node: NodeId) -> Vec<Value> {
        self.nodes[node.index()].connection.take_seen_line()
    }

    /// The name of a node in reports.
    pub fn label(&self, node: NodeId) -> Box<str> {
        self.settings.nodes[node.index()].label.clone()
    }

    /// What a report adds to a node's `reply`.
    pub fn detail(&self, node: NodeId, reply: NodeReply, now: Instant) -> Option<Box<str>> {
        self.nodes[node.index()].detail(reply, now)
    }

    /// A report about `key` of what every node said.
    pub fn report_of(
        &self,
        key: &[u8],
        reply: impl Fn(NodeId) -> NodeReply,
        now: Instant,
    ) -> Box<Report> {
        let nodes = self.all_nodes().iter().map(|node| {
            let reply = match self.voters.contains(node) {
                true => self.with_cause(node, reply(node)),
                false => NodeReply::Failed(self.last_error(node)),
            };
            let detail = self.detail(node, reply, now);
            let quarantine = self.quarantine_of(node, now);
            NodeReport { label: self.label(node), reply, detail, quarantine }
        });
        Box::new(Report {
            key: key.into(),
            set: None,
            needed: self.quorum,
            nodes: nodes.collect(),
            held: None,
            by_token: false,
        })
    }

    /// The reply of the node, or its likely cause: a node that did not answer may be waiting for
    /// replicas that it lacks.
    fn with_cause(&self, node: NodeId, reply: NodeReply) -> NodeReply {
        match reply {
            NodeReply::Nothing | NodeReply::NotAsked if self.lacks_replicas(node) => {
                NodeReply::Failed(NodeError::NoReplicas)
            }
            reply => reply,
        }
    }

    /// Whether the last grant of the node was not confirmed by its replicas.
    pub fn lacks_replicas(&self, node: NodeId) -> bool {
        self.nodes[node.index()].connection.lacks_replicas()
    }

    /// A report of what keeps each node from being asked, or its answers from counting.
    pub fn report_node_states(&self, now: Instant) -> Box<Report> {
        let reply =
            |node| self.may_ask(node).map_or_else(NodeReply::Failed, |()| NodeReply::NotAsked);
        self.report_of(&[], reply, now)
    }
}
