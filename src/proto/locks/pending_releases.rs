//! Pending releases: each is sent at once if the node can be reached, else as the first thing on
//! its next connection.
//!
//! The queue is an order only: what is pending is decided by the record. An entry is skipped when
//! its turn comes if its record is gone, or if no release is pending for the node any more.
//!
//! The hazard is a `SET` of an earlier connection that the node executes after the release on the
//! new one. So the earlier connection is ended first. If the node refuses that, the release is sent
//! twice.

use crate::proto::cluster::NodeEvent;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::locks::round::Purpose;
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::timers::Timer;
use crate::proto::wire::command::{Form, Native};
use crate::proto::wire::connection::{Ask, Kind};
use std::collections::VecDeque;
use std::time::Duration;

/// How many times `max_ttl` a node may be away before its pending releases are dropped: by then
/// every key of ours on it has expired, unless its clock stands still.
pub const GIVEN_UP_AFTER: u32 = 10;

/// How long after its loss a connection may still deliver to the node what was written on it, if
/// nothing proves its end. Linux gives unacknowledged bytes up after 924.6 s (`tcp_retries2` is
/// 15). A proxy on the way does so by its own clock, whatever our socket is set to.
pub const GONE_AFTER: Duration = Duration::from_secs(16 * 60);

/// The shortest and the longest pause before releases are sent again to a node that refused them or
/// has no room.
pub const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// A pending release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingRelease {
    /// The record.
    pub record: u32,
    /// The record's generation: its place may be used again before the turn of the pending release
    /// comes.
    pub generation: u64,
    /// The release is not sent before this moment.
    pub not_before: Instant,
}

/// The pending releases of one node.
#[derive(Debug, Default)]
pub struct PendingReleases {
    queue: VecDeque<PendingRelease>,
    /// Releases for questions that were asked on earlier connections and not answered.
    pub unproven: Vec<PendingRelease>,
    /// Starts the next sending.
    pub payment: Option<Timer>,
    /// Drops the pending releases when the node was away too long.
    pub giving_up: Option<Timer>,
    /// How many releases in a row were refused.
    pub refused: u32,
}

impl PendingReleases {
    /// Queues a pending release.
    pub fn push(&mut self, pending_release: PendingRelease) {
        self.queue.push_back(pending_release);
    }

    /// Takes out the next pending release.
    pub fn pop(&mut self) -> Option<PendingRelease> {
        self.queue.pop_front()
    }

    /// How many releases are queued.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// The pause before releases are sent again.
    pub fn pause(&self) -> Duration {
        (PAUSES.0 * (1 << self.refused.min(8))).min(PAUSES.1)
    }
}

impl Locks {
    /// Writes the release of an ended record to a node, or queues it.
    pub(super) fn pay(&mut self, node: NodeId, number: u32, form: Form, now: Instant) {
        let record = self.records.get(number);
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
            self.ask(node, number, Kind::Release(form), now);
        } else {
            self.owe(node, number, now);
            self.plan_payment(node, now);
        }
    }

    /// Queues a release, to be sent from `not_before` on.
    pub(super) fn owe(&mut self, node: NodeId, number: u32, not_before: Instant) {
        let generation = self.records.get(number).generation;
        let pending_release = PendingRelease { record: number, generation, not_before };
        self.pending_releases[node.index()].push(pending_release);
    }

    /// A node answered a release.
    pub(super) fn release_answered(
        &mut self,
        node: NodeId,
        ask: Ask,
        form: Form,
        said: NodeReply,
        now: Instant,
    ) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
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
        self.finish(ask.record, generation);
    }

    /// A node answered whether the key is there, after a native release that did nothing.
    pub(super) fn exists_answered(
        &mut self,
        node: NodeId,
        ask: Ask,
        said: NodeReply,
        now: Instant,
    ) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        record.releasing.remove(node);
        // Even if this question failed, the node acknowledged the release itself.
        let said = if let NodeReply::Failed(_) = said { NodeReply::Absent } else { said };
        self.cast_release(node, ask, said, now);
        self.finish(ask.record, generation);
    }

    /// Whether the caller of a release still waits for the answer whose key it is.
    fn wants_to_know(&self, ask: Ask) -> bool {
        let record = self.records.get(ask.record);
        let current = record.round.number == ask.round && record.round.purpose == Purpose::Release;
        current && record.op.is_some()
    }

    pub(super) fn cast_release(&mut self, node: NodeId, ask: Ask, said: NodeReply, now: Instant) {
        let round = &self.records.get(ask.record).round;
        if round.purpose == Purpose::Release && round.number == ask.round {
            self.cast(ask.record, node, said, now);
        }
    }

    fn acknowledged(&mut self, node: NodeId, number: u32, now: Instant) {
        let record = self.records.get_mut(number);
        if record.unproven.remove(node) {
            // The `SET` of an earlier connection may still be executed: the release is sent once
            // more, later.
            record.note_answer(now);
            let later = now.saturating_add(self.cluster.settings().node_timeout);
            self.owe(node, number, later);
            self.plan_payment(node, now);
        } else {
            record.owed.remove(node);
        }
        self.pending_releases[node.index()].refused = 0;
    }

    /// Acts on the proof that no earlier connection will execute anything any more.
    pub(super) fn nothing_comes_late(&mut self, node: NodeId, now: Instant) {
        for pending_release in std::mem::take(&mut self.pending_releases[node.index()].unproven) {
            if self.records.is_open(pending_release.record, pending_release.generation) {
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
            if !self.records.is_open(pending_release.record, pending_release.generation) {
                continue;
            }
            let record = self.records.get_mut(pending_release.record);
            if !record.owed.contains(node) || record.releasing.contains(node) {
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
                self.finish(pending_release.record, pending_release.generation);
            } else {
                self.pay(node, pending_release.record, Form::Source, now);
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
            if !self.records.is_open(pending_release.record, pending_release.generation) {
                continue;
            }
            let record = self.records.get_mut(pending_release.record);
            record.unproven.remove(node);
            count += u64::from(record.owed.remove(node));
            self.finish(pending_release.record, pending_release.generation);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_sent_in_their_order_at_a_bounded_pace() {
        let mut pending_releases = PendingReleases::default();
        for record in 0..3 {
            pending_releases.push(PendingRelease {
                record,
                generation: 1,
                not_before: Instant::default(),
            });
        }
        assert_eq!(pending_releases.len(), 3);
        let order: Vec<u32> =
            std::iter::from_fn(|| pending_releases.pop()).map(|d| d.record).collect();
        assert_eq!(order, [0, 1, 2]);
        assert_eq!(pending_releases.pause(), PAUSES.0);
        pending_releases.refused = 1;
        assert_eq!(pending_releases.pause(), 2 * PAUSES.0);
        pending_releases.refused = u32::MAX;
        assert_eq!(pending_releases.pause(), PAUSES.1);
    }
}
