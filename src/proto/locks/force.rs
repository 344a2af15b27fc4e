//! The forced release of what an inspection saw: an operator looked at a key, and decided that its
//! holder is gone.
//!
//! The hazard is a key that changed after the look: another client may hold it rightly by now. So
//! each node compares what it holds with what was seen there, and deletes nothing else.

use crate::proto::error::{Error, NodeError, NodeReply};
use crate::proto::ids::Op;
use crate::proto::inspection::{Inspection, KeyState, Value};
use crate::proto::locks::Locks;
use crate::proto::locks::ballot::Ballot;
use crate::proto::locks::requests::{Outcome, Stage};
use crate::proto::locks::round::Purpose;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::connection::{Ask, Kind};

impl Locks {
    /// Deletes the key that was inspected on each node that still holds the value that was seen
    /// there. A node that held nothing, or was not seen, is not asked.
    pub fn force_release_seen(
        &mut self,
        key: &[u8],
        seen: &Inspection,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let (number, op) = self.open_for_looking(key, data, now)?;
        let ballot = Ballot::of_majority(self.cluster.size());
        let values = |(index, node): (usize, _)| value_at(seen, index).map(|value| (node, value));
        let values: Vec<(NodeId, Value)> =
            self.cluster.all_nodes().iter().enumerate().filter_map(values).collect();
        let record = self.records.get_mut(number);
        let ttl = record.ttl;
        record.round.follow(Purpose::ForceRelease, ballot, now, ttl);
        for (index, node) in self.cluster.all_nodes().iter().enumerate() {
            let said = match seen.nodes.get(index).map(|node| node.sight) {
                Some(KeyState::Held { .. }) => self.cluster.may_ask(node).err(),
                Some(KeyState::Failed(cause)) => Some(cause),
                Some(KeyState::Absent) | None => None,
            };
            let absent = value_at(seen, index).is_none().then_some(NodeReply::Absent);
            if let Some(said) = said.map(NodeReply::Failed).or(absent) {
                self.records.get_mut(number).round.cast(node, said);
            }
        }
        self.arm_round(number, now);
        for (node, value) in values {
            if self.cluster.may_ask(node).is_ok() {
                self.records.get_mut(number).seen = Some(Box::new(value));
                self.ask(node, number, Kind::DeleteSeen, now);
            }
        }
        self.end_force_release_if_all_answered(number, now);
        Ok(op)
    }

    /// A node answered, or will not answer any more.
    pub(super) fn delete_seen_answered(
        &mut self,
        node: NodeId,
        ask: Ask,
        said: NodeReply,
        now: Instant,
    ) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        record.releasing.remove(node);
        record.round.cast(node, said);
        if said == NodeReply::Granted {
            self.we_wrote(node, ask.record, now);
        }
        self.end_force_release_if_all_answered(ask.record, now);
        self.finish(ask.record, generation);
    }

    fn end_force_release_if_all_answered(&mut self, number: u32, now: Instant) {
        if self.records.get(number).releasing.is_empty() {
            self.force_release_is_over(number, now);
        }
    }

    /// Every node has answered, or the node timeout has passed.
    pub(super) fn force_release_is_over(&mut self, number: u32, now: Instant) {
        let record = self.records.get_mut(number);
        self.timers.clear_in(&mut record.round_timer);
        let Some(op) = record.op.take() else { return };
        let generation = record.generation;
        for node in record.round.ballot().undecided().iter() {
            let record = self.records.get_mut(number);
            record.round.cast(node, NodeReply::Failed(NodeError::Silent));
        }
        let report = self.report(number, now);
        self.ops.move_to(op, Stage::Over(Ok(Outcome::ForceReleased(report))));
        self.finish(number, generation);
    }
}

/// The value that was seen on a node.
fn value_at(seen: &Inspection, index: usize) -> Option<Value> {
    match seen.nodes.get(index)?.sight {
        KeyState::Held { value, .. } => Some(value),
        KeyState::Absent | KeyState::Failed(_) => None,
    }
}
