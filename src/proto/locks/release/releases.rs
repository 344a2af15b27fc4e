//! Releases: written to a node, answered, refused, and sent again. The queue of those that are
//! pending is in `queue.rs`; `changes.rs` queues again the releases that a lost
//! connection took.
//!
//! The hazard is a `SET` of an earlier connection that the node executes after the release on the
//! new one. So the earlier connection is ended first. If the node refuses that, the release is sent
//! twice.

use std::time::Duration;

use crate::proto::cluster::NodeEvent;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::locks::encoding::Question;
use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::locks::release::queue::{GIVEN_UP_AFTER, PendingRelease};
use crate::proto::locks::round::state::Purpose;
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::{Instant, drift};
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::command::Form;
use crate::proto::wire::known_scripts::ScriptName;
use crate::proto::wire::line::LINE_TTL;

/// Whether a node refused a hand-over for a lasting reason: by its name, or by an error of a script
/// for a token that never joined a line.
fn may_not_use_lines(cause: NodeError, joined: bool) -> bool {
    cause == NodeError::NoPermission || (cause == NodeError::Other && !joined)
}

/// How long a line lives that no client renews, and a key that is handed over at its end.
fn longest_line(max_ttl: Duration) -> Duration {
    let line = LINE_TTL.saturating_add(drift(LINE_TTL));
    line.saturating_add(max_ttl).saturating_add(drift(max_ttl))
}

impl Locks {
    /// Writes the release of an ended record to these nodes, or queues it.
    pub(in crate::proto::locks) fn send_releases(
        &mut self,
        nodes: NodeSet,
        id: RecordId,
        form: Form,
        now: Instant,
    ) {
        let record = self.records.get(id);
        if record.waits_for_its_deadline() {
            return;
        }
        let (asked, nodes) = (record.pending.unanswered(), nodes.minus(record.pending.releasing()));
        // Nodes that get the same form are asked together.
        let (mut same, mut same_form) = (NodeSet::EMPTY, form);
        for node in nodes.iter() {
            let unanswered = asked.contains(node);
            if !self.cluster.may_release(node, unanswered) {
                self.queue_release(node, id, now);
                self.schedule_releases(node, now);
                continue;
            }
            let form = self.release_form(node, id, unanswered, form, now);
            if form != same_form {
                self.ask_to_release(same, id, same_form, now);
                (same, same_form) = (NodeSet::EMPTY, form);
            }
            same.insert(node);
        }
        self.ask_to_release(same, id, same_form, now);
    }

    /// How a release is sent to a node for which `form` would do.
    #[inline]
    fn release_form(
        &self,
        node: NodeId,
        id: RecordId,
        unanswered: bool,
        form: Form,
        now: Instant,
    ) -> Form {
        // If an answer is late, the answer to this release may never be read: a release by its
        // source does not need one. It is twice as long as one by its SHA1, and the server
        // hashes it, so a node that is only a little later than the majority does not get it.
        // A native command has one key, and hands nothing over.
        let record = self.records.get(id);
        let fits_native = record.set().is_none() && !record.fair;
        match self.cluster.native(node).filter(|_| fits_native) {
            Some(native) => Form::Native(native),
            None if unanswered && !self.cluster.is_prompt(node, now) => Form::Source,
            None if form == Form::Source && self.caller_waits_to_hand_over(id, node) => {
                self.cluster.form_of(node, ScriptName::HandOver)
            }
            None => form,
        }
    }

    /// Whether a caller waits until the key is handed over, so that the answers are read. The
    /// script is long: its source would be most of what a hand-over costs a node.
    #[inline]
    fn caller_waits_to_hand_over(&self, id: RecordId, node: NodeId) -> bool {
        let record = self.records.get(id);
        let waits = record.round.purpose == Purpose::Release && record.op.is_some();
        record.fair && waits && !record.plain().contains(node)
    }

    #[inline]
    pub(in crate::proto::locks) fn ask_to_release(
        &mut self,
        nodes: NodeSet,
        id: RecordId,
        form: Form,
        now: Instant,
    ) {
        if !nodes.is_empty() {
            self.ask_as(nodes, id, Question { form, ..Question::of(Kind::Release) }, now);
        }
    }

    /// Queues a release, to be sent from `not_before` on.
    pub(in crate::proto::locks) fn queue_release(
        &mut self,
        node: NodeId,
        id: RecordId,
        not_before: Instant,
    ) {
        self.pending_releases[node.index()].push(PendingRelease { record: id, not_before });
    }

    /// A node answered a release.
    #[inline]
    pub(in crate::proto::locks) fn on_release(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        let native = matches!(ask.sent.form, Some(Form::Native(_)));
        if let NodeReply::Failed(cause) = reply {
            if self.on_release_failed(node, ask.record, cause, native, now) {
                return;
            }
        } else {
            // The key is gone, another's, or was never there: nothing of ours is left on the node.
            // Of several keys some may be released, and others not ours.
            if reply == NodeReply::Granted || ask.sent.names.is_all_keys() {
                self.we_wrote(node, ask.record, now);
            }
            self.on_acknowledged(node, ask.record, now);
        }
        // While a second release is pending, its answer will say whose key it is.
        let is_settled = || !self.records.get(ask.record).pending.is_release_due(node);
        if native && reply == NodeReply::Absent && is_settled() && self.caller_waits_for(ask) {
            self.ask(node, ask.record, Kind::Exists, now);
            return;
        }
        self.cast_release(node, ask, reply, now);
    }

    /// A node refused a release. Returns whether the release is sent there once more at once, in
    /// another way. If not, it is queued.
    #[cold]
    fn on_release_failed(
        &mut self,
        node: NodeId,
        id: RecordId,
        cause: NodeError,
        native: bool,
        now: Instant,
    ) -> bool {
        let record = self.records.get_mut(id);
        let is_unknown = matches!(cause, NodeError::UnknownCommand | NodeError::NoPermission);
        let in_line = record.fair && !record.plain().contains(node);
        if native && is_unknown {
            self.cluster.forget_native(node);
        } else if in_line && may_not_use_lines(cause, record.line().is_some()) {
            // The user may not use the key of the line, or a command of the script. So nothing of
            // ours stands there: the key is deleted.
            record.trouble_mut().plain.insert(node);
        } else {
            if record.pending.is_release_due(node) {
                self.queue_release(node, id, now);
                self.on_release_refused(node, now);
            }
            return false;
        }
        self.ask_to_release(node.into(), id, Form::Source, now);
        true
    }

    /// A node answered whether the key is there, after a native release that did nothing.
    pub(in crate::proto::locks) fn on_exists(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        // Even if this question failed, the node acknowledged the release itself.
        let reply = if let NodeReply::Failed(_) = reply { NodeReply::Absent } else { reply };
        self.cast_release(node, ask, reply, now);
    }

    /// Whether the caller of a release still waits for the answer whose key it is.
    fn caller_waits_for(&self, ask: LockAsk) -> bool {
        let record = self.records.get(ask.record);
        let current = record.round.number == ask.round && record.round.purpose == Purpose::Release;
        current && record.op.is_some()
    }

    #[inline]
    pub(in crate::proto::locks) fn cast_release(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        let round = &self.records.get(ask.record).round;
        if round.purpose == Purpose::Release && round.number == ask.round {
            self.cast(ask.record, node, reply, now);
        }
    }

    #[inline]
    fn on_acknowledged(&mut self, node: NodeId, id: RecordId, now: Instant) {
        let record = self.records.get_mut(id);
        if record.on_released(node, now) {
            // The `SET` of an earlier connection may still be executed: the release is sent once
            // more, later.
            if let Some(line) = record.line_mut() {
                // So may a join: that release, too, takes the token out of the line.
                line.may_come_to_stand(node);
            }
            let later = now.saturating_add(self.cluster.settings().node_timeout);
            self.queue_release(node, id, later);
            self.schedule_releases(node, now);
        }
        self.pending_releases[node.index()].refused = 0;
    }

    /// Acts on the proof that no earlier connection will execute anything any more.
    pub(in crate::proto::locks) fn on_nothing_comes_late(&mut self, node: NodeId, now: Instant) {
        self.take_unproven(node, |record| {
            let expires_at = record.gone_if_executed(now);
            record.pending.on_proof(node, expires_at);
        });
    }

    /// Acts on the news that no such proof will come for the connections that were lost until now.
    pub(in crate::proto::locks) fn on_no_proof(&mut self, node: NodeId) {
        self.take_unproven(node, |record| record.pending.on_no_proof(node));
    }

    /// Acts on the proof that a process which is gone executes nothing any more.
    pub(in crate::proto::locks) fn on_other_process(&mut self, node: NodeId, now: Instant) {
        self.pending_releases[node.index()].unproven.clear();
        for id in self.records.ids() {
            let record = self.records.get_mut(id);
            let expires_at = record.gone_if_executed(now);
            record.pending.on_other_process(node, expires_at);
        }
    }

    /// For each record that expects a proof from the node, which it does not expect after this.
    fn take_unproven(&mut self, node: NodeId, mut act: impl FnMut(&mut Record)) {
        for pending_release in std::mem::take(&mut self.pending_releases[node.index()].unproven) {
            if self.records.is_open(pending_release.record) {
                act(self.records.get_mut(pending_release.record));
            }
        }
    }

    /// Sends the node its pending releases, in their order, as far as there is room. They are sent
    /// by their source: a new connection may lead to a node that forgot the scripts, and the client
    /// may end before it could repeat a release.
    pub(in crate::proto::locks) fn send_pending_releases(&mut self, node: NodeId, now: Instant) {
        let (sent, given_up) = self.send_while_there_is_room(node, now);
        if sent > 0 {
            self.cluster.stats_mut().node(node).pending_releases_sent += sent;
            self.cluster.report_event(NodeEvent::PendingReleasesSent { node, count: sent });
        }
        self.report_dropped_releases(node, given_up);
    }

    /// Returns how many pending releases were sent, and how many lapsed without proof that the node
    /// executes nothing of an earlier connection any more.
    fn send_while_there_is_room(&mut self, node: NodeId, now: Instant) -> (u64, u64) {
        let (mut sent, mut given_up) = (0, 0);
        let lined_up = self.pending_releases[node.index()].len();
        for _ in 0..lined_up {
            let room = self.cluster.has_room_for_release(node);
            if !room {
                self.schedule_releases(node, now);
                break;
            }
            let Some(pending_release) = self.pending_releases[node.index()].pop() else { break };
            if !self.records.is_open(pending_release.record) {
                continue;
            }
            let record = self.records.get_mut(pending_release.record);
            let over = record.phase == Phase::Ending;
            let is_sent = record.pending.releasing().contains(node);
            if !over || !record.pending.is_release_due(node) || is_sent {
                continue;
            }
            if record.waits_for_its_deadline() {
                // The deadline sends every pending release of the record.
                continue;
            }
            if now < pending_release.not_before {
                self.pending_releases[node.index()].push(pending_release);
                self.schedule_releases(node, now);
                continue;
            }
            if record.pending.has_lapsed(node, now) {
                let (_, unproven) = record.pending.give_up(node);
                given_up += u64::from(unproven);
                self.finish(pending_release.record);
            } else {
                self.send_releases(node.into(), pending_release.record, Form::Source, now);
                sent += 1;
            }
        }
        (sent, given_up)
    }

    /// Starts the pause before the next releases are sent, unless it runs, or the next connection
    /// sends them.
    pub(in crate::proto::locks) fn schedule_releases(&mut self, node: NodeId, now: Instant) {
        let pending_releases = &mut self.pending_releases[node.index()];
        if self.cluster.node_state(node).is_usable() && pending_releases.next_send.is_none() {
            let at = now.saturating_add(pending_releases.pause());
            pending_releases.next_send =
                Some(self.timers.set_at(at, Due::PendingReleases { node }));
        }
    }

    fn on_release_refused(&mut self, node: NodeId, now: Instant) {
        self.schedule_releases(node, now);
        let pending_releases = &mut self.pending_releases[node.index()];
        pending_releases.refused = pending_releases.refused.saturating_add(1);
    }

    pub(in crate::proto::locks) fn on_releases_due(&mut self, node: NodeId, now: Instant) {
        self.pending_releases[node.index()].next_send = None;
        if self.cluster.node_state(node).is_usable() {
            self.send_pending_releases(node, now);
        }
    }

    /// The node may be asked from now on, so its pending releases are not dropped for its absence.
    pub(in crate::proto::locks) fn stop_drop_timer(&mut self, node: NodeId) {
        let pending_releases = &mut self.pending_releases[node.index()];
        pending_releases.refused = 0;
        self.timers.clear_in(&mut pending_releases.drop_timer);
    }

    /// No release can be sent before the next connection of the node.
    pub(in crate::proto::locks) fn wait_for_reconnect(&mut self, node: NodeId, now: Instant) {
        self.timers.clear_in(&mut self.pending_releases[node.index()].next_send);
        self.start_drop_timer(node, now);
    }

    /// Sets the timer after which the pending releases of a node that is away are dropped.
    fn start_drop_timer(&mut self, node: NodeId, now: Instant) {
        let pending = &mut self.pending_releases[node.index()];
        if pending.drop_timer.is_none() {
            let max_ttl = self.cluster.settings().max_ttl;
            let mut away = max_ttl.saturating_mul(GIVEN_UP_AFTER);
            if self.cluster.is_listening() {
                // A token may stand in a line, which may live for longer than that.
                away = away.max(longest_line(max_ttl));
            }
            let at = now.saturating_add(away);
            pending.drop_timer = Some(self.timers.set_at(at, Due::DropReleases { node }));
        }
    }

    /// The node was away so long that every key of this client on it has expired.
    pub(in crate::proto::locks) fn drop_pending_releases(&mut self, node: NodeId, now: Instant) {
        self.pending_releases[node.index()].drop_timer = None;
        let mut count = 0;
        while let Some(pending_release) = self.pending_releases[node.index()].pop() {
            if !self.records.is_open(pending_release.record) {
                continue;
            }
            let record = self.records.get_mut(pending_release.record);
            let (pending, _) = record.pending.give_up(node);
            count += u64::from(pending);
            self.finish(pending_release.record);
        }
        self.report_dropped_releases(node, count);
        self.start_drop_timer(node, now);
    }

    fn report_dropped_releases(&mut self, node: NodeId, count: u64) {
        if count > 0 {
            self.cluster.stats_mut().node(node).pending_releases_dropped += count;
            self.cluster.report_event(NodeEvent::PendingReleasesDropped { node, count });
        }
    }
}
