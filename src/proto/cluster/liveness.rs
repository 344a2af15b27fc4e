//! Whether a node still answers: the timer that finds its silence while questions are unanswered,
//! and the reset of a connection that stays silent. If nothing else is asked, the questions of the
//! probe show the silence.

use crate::proto::cluster::node::Node;
use crate::proto::cluster::state::{self, NodeState};
use crate::proto::cluster::{Action, Change, Cluster, Due};
use crate::proto::error::NodeError;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// An answer is late after the node timeout divided by this.
const LATE: u32 = 4;

impl Cluster {
    /// Sets the timer that checks for silence, if it is not set yet: a node timeout after `since`.
    pub(super) fn watch_for_silence(&mut self, node: NodeId, since: Instant) {
        let entry = &mut self.nodes[node.index()];
        if entry.silence.is_none() {
            let timeout = self.settings.node_timeout;
            entry.silence = Some(self.timers.set_after(since, timeout, Due::Silence(node)));
        }
    }

    pub(super) fn check_for_silence(&mut self, node: NodeId, now: Instant) {
        let entry = &mut self.nodes[node.index()];
        entry.silence = None;
        if entry.connection.oldest_ask().is_none() {
            return;
        }
        if !self.is_silent(node, now) {
            // Not a whole node timeout from now: a question is written some microseconds after it
            // was asked, so at this moment silence may be that short of the timeout.
            self.watch_for_silence(node, self.silent_since(node));
        } else if self.node_state(node).is_usable() {
            self.suspect(node, now);
        }
    }

    /// From now on the client asks the node nothing new, until the node has caught up or the client
    /// gives up the connection.
    pub(super) fn suspect(&mut self, node: NodeId, now: Instant) {
        self.set_node_state(node, NodeState::Suspect);
        let reset_after = self.settings.reset_after;
        let timer = self.timers.set_after(now, reset_after, Due::Reset(node));
        self.nodes[node.index()].reset = Some(timer);
    }

    /// Called after everything was read from the node. A suspect node that has caught up may be
    /// asked again.
    #[inline]
    pub fn on_all_received(&mut self, node: NodeId, now: Instant) {
        let is_held_back = |entry: &Node| entry.state != NodeState::Suspect || entry.list_is_old;
        if is_held_back(&self.nodes[node.index()]) || self.is_silent(node, now) {
            return;
        }
        let entry = &mut self.nodes[node.index()];
        self.timers.clear_in(&mut entry.reset);
        let unanswered = entry.connection.oldest_ask().is_some();
        self.set_node_state(node, self.usable_state(node, now));
        if unanswered {
            self.watch_for_silence(node, now);
        }
        self.mark_if_wanted(node, now);
        self.report(node, Change::CaughtUp);
    }

    /// Gives up the connection of a node that stays silent, because a new one may reach the node.
    /// What the silent connection may have left there becomes pending releases, which are sent on
    /// the new one.
    pub(super) fn on_reset_due(&mut self, node: NodeId, now: Instant) {
        self.nodes[node.index()].reset = None;
        self.actions.push_back(Action::Disconnect(node));
        let down = NodeState::Down(NodeError::Silent);
        self.lose_connection(node, down, NodeError::Silent, "", now);
        self.agree_on_members(now);
    }

    /// Whether the next answer of the node is expected in time: it may be asked, and none of its
    /// answers is late.
    #[inline]
    pub fn is_prompt(&self, node: NodeId, now: Instant) -> bool {
        let entry = &self.nodes[node.index()];
        let waiting = entry.connection.oldest_ask().map(|asked| now.saturating_since(asked));
        let late = self.settings.node_timeout / LATE;
        entry.state.is_usable() && waiting.is_none_or(|waiting| waiting < late)
    }

    /// Since when the node may have been silent: the last answer, or the oldest question if that
    /// was asked later.
    fn silent_since(&self, node: NodeId) -> Instant {
        let connection = &self.nodes[node.index()].connection;
        connection.oldest_ask().unwrap_or_default().max(connection.last_answer())
    }

    fn is_silent(&self, node: NodeId, now: Instant) -> bool {
        let connection = &self.nodes[node.index()].connection;
        let timeout = self.settings.node_timeout;
        state::is_silent(connection.oldest_ask(), connection.last_answer(), timeout, now)
    }
}
