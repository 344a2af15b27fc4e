//! The reports in errors: what every node answered, or why it was not asked.

use crate::proto::error::{ClosedReason, Error, HeldFor, LostReason, NodeReply};
use crate::proto::error::{Report, ReportedSet};
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::lock::Lock;
use crate::proto::locks::Locks;
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

impl Locks {
    /// A report of what every node answered in the present round of the record.
    pub(super) fn report(&self, id: RecordId, now: Instant) -> Box<Report> {
        let record = self.records.get(id);
        self.report_of_record(id, |node| record.round.reply_of(node), now)
    }

    /// A report about the keys of a record. `reply` gives the answer of each node.
    pub(super) fn report_of_record(
        &self,
        id: RecordId,
        reply: impl Fn(NodeId) -> NodeReply,
        now: Instant,
    ) -> Box<Report> {
        let record = self.records.get(id);
        let mut report = self.cluster.report_of(record.shown_key(), reply, now);
        let named = |set: &SetOfKeys| ReportedSet { keys: set.len(), named: set.named().is_some() };
        report.set = record.set().map(named);
        report
    }

    /// The error of a record whose lock is lost.
    pub(super) fn lost(&self, id: RecordId, reason: LostReason, now: Instant) -> Error {
        Error::Lost { reason, report: self.report(id, now) }
    }

    /// The error of a lost lock about which no node was asked. In a forked process it says so,
    /// because every lock is the parent's.
    pub fn lost_unasked(&self, reason: LostReason, key: &[u8], now: Instant) -> Error {
        if self.forked {
            return Error::Closed(ClosedReason::Forked);
        }
        Error::Lost { reason, report: self.report_unasked(key, now) }
    }

    /// The error of a lock that is not held any more, and of whose end no report is kept. Its
    /// deadline may have passed without a turn that noticed it.
    pub fn not_held(&self, lock: &Lock, key: &[u8], now: Instant) -> Error {
        let record = self.records.find(lock).map(|id| self.records.get(id));
        let overdue = record.filter(|it| it.phase == Phase::Held && now >= it.deadline);
        let reason = overdue.map_or(LostReason::Over, |record| {
            self.renewals.reason_of_loss(record, LostReason::Expired)
        });
        self.lost_unasked(reason, key, now)
    }

    /// A report about a key for which no node was asked.
    pub fn report_unasked(&self, key: &[u8], now: Instant) -> Box<Report> {
        self.cluster.report_of(key, |_| NodeReply::NotAsked, now)
    }

    /// Adds to a contended error how long others hold the key, as the nodes reported it while the
    /// request waited.
    pub(super) fn with_time_left(&self, op: Op, mut error: Error, now: Instant) -> Error {
        let waiting = self.ops.get(op).and_then(|request| request.waiting.as_ref());
        if let (Error::Contended(report), Some(waiting)) = (&mut error, waiting) {
            report.held = waiting.held_for(self.cluster.quorum(), now);
        }
        error
    }

    /// The contended error of a request for a key that this client itself holds, in this record.
    pub(super) fn held_by_us(&self, id: RecordId, key: &[u8], now: Instant) -> Error {
        let record = self.records.get(id);
        let mut report = self.report_unasked(key, now);
        if record.phase == Phase::Held {
            let left = record.deadline.saturating_since(now);
            report.held = Some(HeldFor::Ours { left, auto_extended: self.renewals.renews(record) });
        }
        Error::Contended(report)
    }

    /// Whether this client holds the key and renews the lock beyond `moment`.
    pub fn auto_extends_beyond(&self, key: &[u8], moment: Instant) -> bool {
        let current_record = self.records.current_record(key, KeyHash::of(key));
        let record = current_record.map(|id| self.records.get(id));
        let held = record.filter(|record| record.phase == Phase::Held);
        held.is_some_and(|record| self.renewals.may_last_beyond(record, moment))
    }
}
