//! Vouching: an operator says that no lock is live on these nodes, so their grants count at once.
//!
//! The hazard is a node that forgets something after the operator has vouched: what was found out
//! since then is not covered.

use crate::proto::error::{Error, NodeError, NodeReply};
use crate::proto::ids::Op;
use crate::proto::locks::Locks;
use crate::proto::locks::ballot::Ballot;
use crate::proto::locks::requests::{Outcome, Stage};
use crate::proto::locks::round::Purpose;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, Kind};

impl Locks {
    /// Ends the quarantine of every node that can be asked, and writes it into their node markers,
    /// for the next process.
    pub fn vouch(&mut self, data: u64, now: Instant) -> Result<Op, Error> {
        let key = self.cluster.settings().node_marker.clone();
        let (number, op) = self.open_for_looking(key.as_bytes(), data, now)?;
        let ballot = Ballot::of_majority(self.cluster.size());
        let record = self.records.get_mut(number);
        let ttl = record.ttl;
        record.round.follow(Purpose::Vouch, ballot, now, ttl);
        self.arm_round(number, now);
        for node in self.cluster.all_nodes().iter() {
            match self.cluster.may_vouch_for(node) {
                Ok(()) => self.ask_to_vouch(node, number, now),
                Err(cause) => {
                    self.records.get_mut(number).round.cast(node, NodeReply::Failed(cause));
                }
            }
        }
        self.end_vouching_if_all_answered(number, now);
        Ok(op)
    }

    fn ask_to_vouch(&mut self, node: NodeId, number: u32, now: Instant) {
        let record = self.records.get_mut(number);
        record.releasing.insert(node);
        let ask = Ask::new(number, record.round.number, Kind::Vouch, now);
        self.cluster.vouch(node, ask, now);
    }

    /// A node answered, or will not answer any more.
    pub(super) fn vouch_answered(&mut self, node: NodeId, ask: Ask, said: NodeReply, now: Instant) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        record.releasing.remove(node);
        let still_true = self.cluster.is_still_vouched_for(node);
        let said = match said {
            NodeReply::Granted if !still_true => NodeReply::Failed(NodeError::Quarantined),
            said => said,
        };
        if said == NodeReply::Granted {
            self.cluster.trust_at_once(node);
        }
        self.records.get_mut(ask.record).round.cast(node, said);
        self.end_vouching_if_all_answered(ask.record, now);
        self.finish(ask.record, generation);
    }

    fn end_vouching_if_all_answered(&mut self, number: u32, now: Instant) {
        if self.records.get(number).releasing.is_empty() {
            self.vouching_is_over(number, now);
        }
    }

    /// Every node has answered, or the node timeout has passed.
    pub(super) fn vouching_is_over(&mut self, number: u32, now: Instant) {
        let record = self.records.get_mut(number);
        self.timers.clear_in(&mut record.round_timer);
        let Some(op) = record.op.take() else { return };
        let generation = record.generation;
        for node in record.round.ballot().undecided().iter() {
            let record = self.records.get_mut(number);
            record.round.cast(node, NodeReply::Failed(NodeError::Silent));
        }
        let report = self.report(number, now);
        let granted = report.nodes.iter().filter(|node| node.said == NodeReply::Granted).count();
        let result = if granted >= self.cluster.quorum() {
            Ok(Outcome::Vouched(report))
        } else {
            Err(Error::NoQuorum(report))
        };
        self.ops.move_to(op, Stage::Over(result));
        self.finish(number, generation);
    }
}
