//! The reports in errors: what every node said, or why it could not be asked.

use crate::proto::error::Report;
use crate::proto::error::{Error, LostReason, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::locks::Locks;
use crate::proto::time::Instant;

impl Locks {
    /// What every node said to the record's question.
    pub(super) fn report(&self, id: RecordId, now: Instant) -> Box<Report> {
        let record = self.records.get(id);
        let said = |node| record.round.said(node);
        self.cluster.report_of(&record.key, said, now)
    }

    /// The error for the lost lock of the record.
    pub(super) fn lost(&self, id: RecordId, reason: LostReason, now: Instant) -> Error {
        Error::Lost { reason, report: self.report(id, now) }
    }

    /// The error of a lost lock about which no node was asked.
    pub fn lost_unasked(&self, reason: LostReason, key: &[u8], now: Instant) -> Error {
        Error::Lost { reason, report: self.report_unasked(key, now) }
    }

    /// A report about a key for which no node was asked.
    pub fn report_unasked(&self, key: &[u8], now: Instant) -> Box<Report> {
        self.cluster.report_of(key, |_| NodeReply::Nothing, now)
    }
}
