//! What an error tells: what every node said, or why it could not be asked.

use super::super::error::Report;
use super::*;

impl Locks {
    /// What every node said to the record's question.
    pub(super) fn report(&self, number: u32, now: Instant) -> Box<Report> {
        let record = self.records.get(number);
        let said = |node| record.round.said(node);
        self.cluster.report_of(&record.key, said, now)
    }

    /// The lock of the record is lost.
    pub(super) fn lost(&self, number: u32, reason: LostReason, now: Instant) -> Error {
        Error::Lost { reason, report: self.report(number, now) }
    }

    /// A lock is lost about which nobody was asked.
    pub fn lost_unasked(&self, reason: LostReason, key: &[u8], now: Instant) -> Error {
        Error::Lost { reason, report: self.report_unasked(key, now) }
    }

    /// A report of a key about which nobody was asked.
    pub fn report_unasked(&self, key: &[u8], now: Instant) -> Box<Report> {
        self.cluster.report_of(key, |_| NodeReply::Nothing, now)
    }
}
