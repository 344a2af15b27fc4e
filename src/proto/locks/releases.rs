//! Releases: written to a node, answered, refused, and sent again. The queue of those that are
//! pending is in `pending_releases.rs`; `changes.rs` queues again the releases that a lost
//! connection took.
//!
//! The hazard is a `SET` of an earlier connection that the node executes after the release on the
//! new one. So the earlier connection is ended first. If the node refuses that, the release is sent
//! twice.

use crate::proto::cluster::NodeEvent;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::locks::pending_releases::{GIVEN_UP_AFTER, PendingRelease};
use crate::proto::locks::records::Phase;
use crate::proto::locks::round::Purpose;
use crate::proto::locks::{Command, Due, Locks};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::command::{Form, Native};

impl Locks {
    /// Writes the release of an ended record to a node, or queues it.
    pub(super) fn pay(
        &mut self,
        node: NodeId,
        id: RecordId,
        form: Form,
        command: &mut Command,
        now: Instant,
    ) {
        let record = self.records.get(id);
        let unanswered = record.asked.contains(node);
        if record.releasing.contains(node) {
            return;
        }
        if self.cluster.may_release(node, unanswered) {
            // If an answer is overdue, the answer to this release may never be read: a release by
            // its source does not need one.
            let form = match self.cluster.native(node) {
                Some(native) => Form::Native(native),
                None if unanswered => Form::Source,
                None => form,
            };
            self.ask_again(node, id, Kind::Release(form), command, now);
        } else {
            self.owe(node, id, now);
            self.plan_payment(node, now);
        }
    }

    /// Queues a release, to be sent from `not_before` on.
    pub(super) fn owe(&mut self, node: NodeId, id: RecordId, not_before: Instant) {
        self.pending_releases[node.index()].push(PendingRelease { record: id, not_before });
    }

    /// A node answered a release.
    pub(super) fn release_answered(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        form: Form,
        said: NodeReply,
        now: Instant,
    ) {
        let record = self.records.get_mut(ask.record);
        record.releasing.remove(node);
        match (said, form) {
            (said, Form::Sha) if said.asks_for_the_source() => {
                self.ask(node, ask.record, Kind::Release(Form::Source), now);
                return;
            }
            (
                NodeReply::Failed(NodeError::UnknownCommand | NodeError::NoPermission),
                Form::Native(_),
            ) => {
                self.cluster.forget_native(node);
                self.ask(node, ask.record, Kind::Release(Form::Source), now);
                return;
            }
            (NodeReply::Failed(_), _) if record.owed.contains(node) => {
                self.owe(node, ask.record, now);
                self.payment_was_refused(node, now);
            }
            (NodeReply::Failed(_), _) => {}
            // The key is gone, another's, or was never there: nothing of ours is left on the node.
            _ => {
                if said == NodeReply::Granted {
                    self.we_wrote(node, ask.record, now);
                }
                self.acknowledged(node, ask.record, now);
            }
        }
        let native = matches!(form, Form::Native(Native::Delifeq | Native::Delex));
        // While a second release is pending, its answer will say whose key it is.
        let settled = !self.records.get(ask.record).owed.contains(node);
        if native && said == NodeReply::Absent && settled && self.wants_to_know(ask) {
            self.ask(node, ask.record, Kind::Exists, now);
            return;
        }
        self.cast_release(node, ask, said, now);
        self.finish(ask.record);
    }

    /// A node answered whether the key is there, after a native release that did nothing.
    pub(super) fn exists_answered(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        said: NodeReply,
        now: Instant,
    ) {
        let record = self.records.get_mut(ask.record);
        record.releasing.remove(node);
        // Even if this question failed, the node acknowledged the release itself.
        let said = if let NodeReply::Failed(_) = said { NodeReply::Absent } else { said };
        self.cast_release(node, ask, said, now);
        self.finish(ask.record);
    }

    /// Whether the caller of a release still waits for the answer whose key it is.
    fn wants_to_know(&self, ask: LockAsk) -> bool {
        let record = self.records.get(ask.record);
        let current = record.round.number == ask.round && record.round.purpose == Purpose::Release;
        current && record.op.is_some()
    }

    pub(super) fn cast_release(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        said: NodeReply,
        now: Instant,
    ) {
        let round = &self.records.get(ask.record).round;
        if round.purpose == Purpose::Release && round.number == ask.round {
            self.cast(ask.record, node, said, now);
        }
    }

    fn acknowledged(&mut self, node: NodeId, id: RecordId, now: Instant) {
        let record = self.records.get_mut(id);
        if record.unproven.remove(node) {
            // The `SET` of an earlier connection may still be executed: the release is sent once
            // more, later.
            record.note_answer(now);
            let later = now.saturating_add(self.cluster.settings().node_timeout);
            self.owe(node, id, later);
            self.plan_payment(node, now);
        } else {
            record.owed.remove(node);
        }
        self.pending_releases[node.index()].refused = 0;
    }

    /// Acts on the proof that no earlier connection will execute anything any more.
    pub(super) fn nothing_comes_late(&mut self, node: NodeId, now: Instant) {
        for pending_release in std::mem::take(&mut self.pending_releases[node.index()].unproven) {
            if self.records.is_open(pending_release.record) {
                let record = self.records.get_mut(pending_release.record);
                record.unproven.remove(node);
                record.note_answer(now);
            }
        }
    }

    /// Sends the node its pending releases, in their order, as far as there is room. They are sent
    /// by their source: a new connection may lead to a node that forgot the scripts, and the client
    /// may end before it could repeat a release.
    pub(super) fn send_pending_releases(&mut self, node: NodeId, now: Instant) {
        let (paid, given_up) = self.pay_as_far_as_there_is_room(node, now);
        if paid > 0 {
            self.cluster.stats_mut().node(node).pending_releases_sent += paid;
            self.cluster.tell(NodeEvent::PendingReleasesSent { node, count: paid });
        }
        self.debts_are_given_up(node, given_up);
    }

    /// Returns how many pending releases were sent, and how many lapsed without proof that the node
    /// executes nothing of an earlier connection any more.
    fn pay_as_far_as_there_is_room(&mut self, node: NodeId, now: Instant) -> (u64, u64) {
        let (mut paid, mut given_up) = (0, 0);
        let lined_up = self.pending_releases[node.index()].len();
        for _ in 0..lined_up {
            let room = self.cluster.has_room_for_release(node);
            if !room {
                self.plan_payment(node, now);
                break;
            }
            let Some(pending_release) = self.pending_releases[node.index()].pop() else { break };
            if !self.records.is_open(pending_release.record) {
                continue;
            }
            let record = self.records.get_mut(pending_release.record);
            let over = record.phase == Phase::Ending;
            if !over || !record.owed.contains(node) || record.releasing.contains(node) {
                continue;
            }
            if now < pending_release.not_before {
                self.pending_releases[node.index()].push(pending_release);
                self.plan_payment(node, now);
                continue;
            }
            if record.has_lapsed(node, now) {
                given_up += u64::from(record.unproven.remove(node));
                record.owed.remove(node);
                self.finish(pending_release.record);
            } else {
                let mut command = self.next_command();
                self.pay(node, pending_release.record, Form::Source, &mut command, now);
                self.command = command;
                paid += 1;
            }
        }
        (paid, given_up)
    }

    /// Starts the pause before the next releases are sent, unless it runs, or the next connection
    /// sends them.
    pub(super) fn plan_payment(&mut self, node: NodeId, now: Instant) {
        let pending_releases = &mut self.pending_releases[node.index()];
        if self.cluster.standing(node).is_usable() && pending_releases.payment.is_none() {
            let at = now.saturating_add(pending_releases.pause());
            pending_releases.payment = Some(self.timers.set_at(at, Due::Payment { node }));
        }
    }

    fn payment_was_refused(&mut self, node: NodeId, now: Instant) {
        self.plan_payment(node, now);
        let pending_releases = &mut self.pending_releases[node.index()];
        pending_releases.refused = pending_releases.refused.saturating_add(1);
    }

    pub(super) fn payment_is_due(&mut self, node: NodeId, now: Instant) {
        self.pending_releases[node.index()].payment = None;
        if self.cluster.standing(node).is_usable() {
            self.send_pending_releases(node, now);
        }
    }

    /// The node may be asked from now on, so its pending releases are not dropped for its absence.
    pub(super) fn owes_a_ready_node(&mut self, node: NodeId) {
        let pending_releases = &mut self.pending_releases[node.index()];
        pending_releases.refused = 0;
        self.timers.clear_in(&mut pending_releases.giving_up);
    }

    /// No release can be sent before the next connection of the node.
    pub(super) fn owes_a_node_that_is_away(&mut self, node: NodeId, now: Instant) {
        self.timers.clear_in(&mut self.pending_releases[node.index()].payment);
        self.plan_giving_up(node, now);
    }

    /// Sets the timer after which the pending releases of a node that is away are dropped.
    fn plan_giving_up(&mut self, node: NodeId, now: Instant) {
        let owed = &mut self.pending_releases[node.index()];
        if owed.giving_up.is_none() {
            let away = self.cluster.settings().max_ttl.saturating_mul(GIVEN_UP_AFTER);
            let at = now.saturating_add(away);
            owed.giving_up = Some(self.timers.set_at(at, Due::GivingUp { node }));
        }
    }

    /// The node was away so long that every key of this client on it has expired.
    pub(super) fn drop_pending_releases(&mut self, node: NodeId, now: Instant) {
        self.pending_releases[node.index()].giving_up = None;
        let mut count = 0;
        while let Some(pending_release) = self.pending_releases[node.index()].pop() {
            if !self.records.is_open(pending_release.record) {
                continue;
            }
            let record = self.records.get_mut(pending_release.record);
            record.unproven.remove(node);
            count += u64::from(record.owed.remove(node));
            self.finish(pending_release.record);
        }
        self.debts_are_given_up(node, count);
        self.plan_giving_up(node, now);
    }

    fn debts_are_given_up(&mut self, node: NodeId, count: u64) {
        if count > 0 {
            self.cluster.stats_mut().node(node).pending_releases_dropped += count;
            self.cluster.tell(NodeEvent::PendingReleasesDropped { node, count });
        }
    }
}
