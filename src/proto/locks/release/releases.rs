//! Releases: how they are written to a node, answered or refused, and sent again. `queue.rs` has
//! the queue of those that cannot be sent now. `changes.rs` queues a release again that was lost
//! with its connection.
//!
//! The hazard is a `SET` of an earlier connection that the node executes after the release on the
//! new one. So the client ends the earlier connection before it releases. If the node refuses that,
//! the client sends the release twice.

use std::time::Duration;

use crate::proto::cluster::NodeEvent;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::locks::Locks;
use crate::proto::locks::encoding::Question;
use crate::proto::locks::line::rest::LONGEST_LINE_TTL;
use crate::proto::locks::record::records::Record;
use crate::proto::locks::release::queue::Next;
use crate::proto::locks::round::state::Purpose;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::{Instant, drift};
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::command::{Form, Native};
use crate::proto::wire::known_scripts::ScriptName;

/// If a node is not ready for this many times `max_ttl`, its pending releases are dropped.
const GIVEN_UP_AFTER: u32 = 10;

/// Whether a node refused a hand-over because the user may not use lines. `Other`, the error of any
/// script, means so only if the token never joined a line.
fn may_not_use_lines(cause: NodeError, joined: bool) -> bool {
    let lasting = matches!(cause, NodeError::NoPermission | NodeError::NoLua);
    lasting || (cause == NodeError::Other && !joined)
}

/// How long a token in line may still get a key, and how long that key lives, if no client joins or
/// polls any more.
fn longest_line(max_ttl: Duration) -> Duration {
    let line = LONGEST_LINE_TTL.saturating_add(drift(LONGEST_LINE_TTL));
    line.saturating_add(max_ttl).saturating_add(drift(max_ttl))
}

impl Locks {
    /// Writes the release of an ended record to these nodes, or queues it where that is not
    /// possible now.
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
        let hands_over = record.hands_over();
        // Nearly always, all nodes get the release in the form that the caller wants.
        let mut usual = NodeSet::EMPTY;
        // To the others, the release is encoded once for all nodes in a row that get it in the same
        // form.
        let (mut same, mut same_form) = (NodeSet::EMPTY, form);
        for node in nodes.iter() {
            let unanswered = asked.contains(node);
            if !self.cluster.may_release(node, unanswered) {
                self.pending_releases[node.index()].push(id, now);
                self.schedule_releases(node, now);
                continue;
            }
            // The first test is a shortcut: the form of such a node is the wanted one.
            let is_plain = !unanswered && !hands_over && self.cluster.native(node).is_none();
            let other =
                if is_plain { form } else { self.release_form(node, id, unanswered, form, now) };
            if is_plain || other == form {
                usual.insert(node);
                continue;
            }
            if other != same_form {
                self.ask_to_release(same, id, same_form, now);
                (same, same_form) = (NodeSet::EMPTY, other);
            }
            same.insert(node);
        }
        self.ask_to_release(same, id, same_form, now);
        self.ask_to_release(usual, id, form, now);
    }

    /// The form in which a release is sent to a node, if the caller wants `form`.
    #[inline]
    fn release_form(
        &self,
        node: NodeId,
        id: RecordId,
        unanswered: bool,
        form: Form,
        now: Instant,
    ) -> Form {
        // If the node is late with an answer, the client may never read the answer to this release.
        // So it goes by its source, which cannot fail because of a forgotten script. Not to a node
        // that is only a little later than the majority: the source is twice as long as the SHA1,
        // and the server has to hash it.
        match self.native_release(node, id) {
            Some(native) => Form::Native(native),
            None if unanswered && !self.cluster.is_prompt(node, now) => Form::Source,
            None if form == Form::Source && self.caller_waits_to_hand_over(id, node) => {
                self.cluster.form_of(node, ScriptName::HandOver)
            }
            None => form,
        }
    }

    /// The node's own compare-and-delete command, if it has one that can be used: not for several
    /// keys, and not where the key is handed over.
    #[inline]
    pub(in crate::proto::locks) fn native_release(
        &self,
        node: NodeId,
        id: RecordId,
    ) -> Option<Native> {
        let native = self.cluster.native(node)?;
        let record = self.records.get(id);
        (record.set().is_none() && !record.hands_over_at(node)).then_some(native)
    }

    /// Whether a caller waits for the outcome of a release that hands the key over, so that the
    /// client reads the answers. Then the SHA1 is enough. The source of this script is long: it
    /// would be most of the cost of a hand-over.
    #[inline]
    fn caller_waits_to_hand_over(&self, id: RecordId, node: NodeId) -> bool {
        let record = self.records.get(id);
        let waits = record.round.purpose == Purpose::Release && record.op.is_some();
        record.hands_over_at(node) && waits
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

    /// A node answered a release.
    #[inline(always)]
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
            // Nothing of this client is left on the node: the key is gone, or another client's. If
            // the lock has several keys, some may have been deleted even without a grant.
            if reply == NodeReply::Granted || ask.sent.names.is_all_keys() {
                self.on_own_write(node, ask.record, now);
            }
            self.on_acknowledged(node, ask.record, now);
        }
        // If a second release is pending, its answer will show whether the key is another client's.
        let is_settled = || !self.records.get(ask.record).pending.is_release_pending(node);
        if native && reply == NodeReply::Absent && is_settled() && self.caller_waits_for(ask) {
            self.ask(node, ask.record, Kind::Exists, now);
            return;
        }
        self.cast_answer(node, ask, reply);
    }

    /// A node refused a release. Sends it once more in another way, and returns true, if the node
    /// may accept that. Otherwise queues the release.
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
        let in_line = record.hands_over_at(node);
        if native && is_unknown {
            self.cluster.forget_native(node);
        } else if in_line && may_not_use_lines(cause, record.line().is_some()) {
            // The user may not use the key of the line, or a command of the script. So no token of
            // this client stands in a line there, and a plain release is enough.
            record.trouble_mut().plain.insert(node);
            if is_unknown {
                self.note_no_lines(now);
            }
        } else {
            if record.pending.is_release_pending(node) {
                self.pending_releases[node.index()].push(id, now);
                self.schedule_releases(node, now);
                self.pending_releases[node.index()].on_refused();
            }
            return false;
        }
        let form = self.native_release(node, id).map_or(Form::Source, Form::Native);
        self.ask_to_release(node.into(), id, form, now);
        true
    }

    /// A node answered whether the key is there, after a native command that deleted nothing.
    pub(in crate::proto::locks) fn on_exists(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
    ) {
        // If `EXISTS` failed, the key counts as absent: the node has acknowledged the release
        // itself.
        let reply = if let NodeReply::Failed(_) = reply { NodeReply::Absent } else { reply };
        self.cast_answer(node, ask, reply);
    }

    /// Whether the caller of a release still waits for the answer to this question.
    fn caller_waits_for(&self, ask: LockAsk) -> bool {
        let record = self.records.get(ask.record);
        let current = record.round.number == ask.round && record.round.purpose == Purpose::Release;
        current && record.op.is_some()
    }

    #[inline(always)]
    fn on_acknowledged(&mut self, node: NodeId, id: RecordId, now: Instant) {
        let record = self.records.get_mut(id);
        if record.on_released(node, now) {
            // The node may still execute the `SET` of an earlier connection, so the release is sent
            // once more after a node timeout.
            if let Some(line) = record.line_mut() {
                // The node may also execute a late join, so the second release has to take the
                // token out of the line, too.
                line.note_possible_place(node);
            }
            let later = now.saturating_add(self.cluster.settings().node_timeout);
            self.pending_releases[node.index()].push(id, later);
            self.schedule_releases(node, now);
        }
        self.pending_releases[node.index()].on_acknowledged();
    }

    /// Another process answers for the node: the process before executes nothing any more.
    pub(in crate::proto::locks) fn on_other_process(&mut self, node: NodeId, now: Instant) {
        self.pending_releases[node.index()].take_unproven();
        for id in self.records.ids() {
            let record = self.records.get_mut(id);
            let expires_at = record.gone_if_executed(now);
            record.pending.on_other_process(node, expires_at);
        }
    }

    /// Calls `act` for each record that waits for the proof that the node executes none of its lost
    /// requests any more. After this call no record waits for it.
    pub(in crate::proto::locks) fn take_unproven(
        &mut self,
        node: NodeId,
        mut act: impl FnMut(&mut Record),
    ) {
        for id in self.pending_releases[node.index()].take_unproven() {
            if let Some(record) = self.records.get_open_mut(id) {
                act(record);
            }
        }
    }

    /// Sends the node its pending releases in their order, as long as its outbox has room. They are
    /// sent by their source, because the node may have forgotten the scripts, and the client may
    /// end before it can repeat a release.
    pub(in crate::proto::locks) fn send_pending_releases(&mut self, node: NodeId, now: Instant) {
        let (sent, given_up) = self.send_while_there_is_room(node, now);
        if sent > 0 {
            self.cluster.stats_mut().node(node).pending_releases_sent += sent;
            self.cluster.report_event(NodeEvent::PendingReleasesSent { node, count: sent });
        }
        self.report_dropped_releases(node, given_up);
    }

    /// Sends pending releases until the outbox is full. Returns how many it sent, and how many
    /// lapsed although the node may still execute a request of a lost connection.
    fn send_while_there_is_room(&mut self, node: NodeId, now: Instant) -> (u64, u64) {
        let (mut sent, mut given_up) = (0, 0);
        for _ in 0..self.pending_releases[node.index()].len() {
            if !self.cluster.has_room_for_release(node) {
                self.schedule_releases(node, now);
                break;
            }
            match self.pending_releases[node.index()].next(&mut self.records, now) {
                Next::Skip => {}
                Next::Later => self.schedule_releases(node, now),
                Next::Send(id) => {
                    self.send_releases(node.into(), id, Form::Source, now);
                    sent += 1;
                }
                Next::Lapsed { record, unproven } => {
                    given_up += u64::from(unproven);
                    self.finish(record);
                }
            }
        }
        (sent, given_up)
    }

    /// Starts the pause before the next releases are sent, unless it runs already. A node that is
    /// not ready needs none: its releases are sent when it is admitted.
    pub(in crate::proto::locks) fn schedule_releases(&mut self, node: NodeId, now: Instant) {
        if self.cluster.node_state(node).is_usable() {
            self.pending_releases[node.index()].schedule(&mut self.timers, now);
        }
    }

    pub(in crate::proto::locks) fn on_releases_due(&mut self, node: NodeId, now: Instant) {
        self.pending_releases[node.index()].on_pause_over();
        if self.cluster.node_state(node).is_usable() {
            self.send_pending_releases(node, now);
        }
    }

    /// How long a node may not be ready before its pending releases are dropped. By then every key
    /// of ours on it has expired, unless its clock stands still.
    pub(in crate::proto::locks) fn longest_absence(&self) -> Duration {
        let max_ttl = self.cluster.settings().max_ttl;
        let away = max_ttl.saturating_mul(GIVEN_UP_AFTER);
        // A token in line may get a key later than that.
        if self.cluster.is_listening() { away.max(longest_line(max_ttl)) } else { away }
    }

    /// The node was not ready for the longest absence: drops its pending releases.
    pub(in crate::proto::locks) fn drop_pending_releases(&mut self, node: NodeId, now: Instant) {
        let (away, records) = (self.longest_absence(), &mut self.records);
        let pending = &mut self.pending_releases[node.index()];
        let (count, dropped) = pending.drop_all(records, away, &mut self.timers, now);
        dropped.into_iter().for_each(|id| self.finish(id));
        self.report_dropped_releases(node, count);
    }

    fn report_dropped_releases(&mut self, node: NodeId, count: u64) {
        if count > 0 {
            self.cluster.stats_mut().node(node).pending_releases_dropped += count;
            self.cluster.report_event(NodeEvent::PendingReleasesDropped { node, count });
        }
    }
}
