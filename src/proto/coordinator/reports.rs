//! What an error tells: what every node said, or why it could not be asked.

use super::super::error::{NodeReport, Report};
use super::*;

impl Coordinator {
    /// What every node said to the record's question.
    pub(super) fn report(&self, number: u32, now: Instant) -> Box<Report> {
        let record = self.records.get(number);
        let said = |node| record.round.said(node);
        self.report_of(&record.key, said, now)
    }

    /// The lock of the record is lost.
    pub(super) fn lost(&self, number: u32, reason: Loss, now: Instant) -> Error {
        Error::Lost { reason, report: self.report(number, now) }
    }

    /// A lock is lost about which nobody was asked.
    pub fn lost_unasked(&self, reason: Loss, key: &[u8], now: Instant) -> Error {
        Error::Lost { reason, report: self.report_unasked(key, now) }
    }

    /// A report of a key about which nobody was asked.
    pub fn report_unasked(&self, key: &[u8], now: Instant) -> Box<Report> {
        self.report_of(key, |_| Said::Nothing, now)
    }

    /// A report of what keeps each node from being asked.
    pub fn report_standings(&self, now: Instant) -> Box<Report> {
        let said = |node| self.may_ask(node).map_or_else(Said::Failed, |()| Said::Nothing);
        self.report_of(&[], said, now)
    }

    fn report_of(&self, key: &[u8], said: impl Fn(NodeId) -> Said, now: Instant) -> Box<Report> {
        let nodes = self.all_nodes().iter().map(|node| {
            let said = said(node);
            let label = self.settings.nodes[node.index()].label.clone();
            NodeReport { label, said, detail: self.nodes[node.index()].detail(said, now) }
        });
        Box::new(Report { key: key.into(), needed: self.quorum, nodes: nodes.collect() })
    }
}
