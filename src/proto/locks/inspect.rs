//! The inspection: reads a key on all nodes, and changes nothing.

use std::time::Duration;

use bytes::BytesMut;

use crate::proto::error::{Error, NodeError, NodeReply};
use crate::proto::ids::Op;
use crate::proto::inspection::{Inspection, KEPT, KeyState, NodeKeyState, Value};
use crate::proto::locks::Locks;
use crate::proto::locks::ballot::Ballot;
use crate::proto::locks::requests::{Outcome, Stage};
use crate::proto::locks::round::Purpose;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, Kind};
use crate::proto::wire::command;

/// `GETRANGE key 0 55`: the beginning of the value. `GET` would return all of it, and a value of a
/// megabyte is longer than a reply may be.
pub(super) fn ask_what_is_there(out: &mut BytesMut, key: &[u8]) {
    let last = (KEPT - 1).to_string();
    command::encode(out, &[b"GETRANGE", key, b"0", last.as_bytes()]);
}

/// How long a key lives by the answer to `PTTL`; `None`: for ever.
fn time_left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

impl Locks {
    /// Reads what every node holds at `key`, and for how long.
    pub fn inspect(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        let (number, op) = self.open_for_looking(key, data, now)?;
        let ballot = Ballot::of_majority(self.cluster.size());
        let record = self.records.get_mut(number);
        let ttl = record.ttl;
        record.round.follow(Purpose::Inspect, ballot, now, ttl);
        let nodes = self.cluster.all_nodes().iter().map(|node| self.not_seen(node, now)).collect();
        let seen = Box::new(Inspection { key: key.into(), quorum: self.cluster.quorum(), nodes });
        self.ops.move_to(op, Stage::Looking { record: number, seen });
        self.arm_round(number, now);
        for node in self.cluster.all_nodes().iter() {
            if self.cluster.may_ask(node).is_ok() {
                self.ask(node, number, Kind::Look, now);
                self.ask(node, number, Kind::LookLeft, now);
            }
        }
        self.look_whether_all_is_seen(number);
        Ok(op)
    }

    /// The report of a node that does not answer.
    fn not_seen(&self, node: NodeId, now: Instant) -> NodeKeyState {
        let cause = self.cluster.may_ask(node).err().unwrap_or(NodeError::Silent);
        let detail = self.cluster.detail(node, NodeReply::Failed(cause), now);
        let label = self.cluster.label(node);
        NodeKeyState { label, sight: KeyState::Failed(cause), detail, took: Duration::ZERO }
    }

    /// A node answered which value it holds.
    pub(super) fn value_seen(
        &mut self,
        node: NodeId,
        ask: Ask,
        told: Result<(), NodeError>,
        now: Instant,
    ) {
        let value = told.map(|()| self.cluster.seen(node));
        let sight = match value {
            Ok(Some(value)) if !value.as_bytes().is_empty() => {
                KeyState::Held { value, left: Some(Duration::ZERO) }
            }
            // The value may also be empty: the answer to `PTTL` decides.
            Ok(_) => KeyState::Absent,
            Err(cause) => KeyState::Failed(cause),
        };
        let said = value.err().map_or(NodeReply::Nothing, NodeReply::Failed);
        let detail = self.cluster.detail(node, said, now);
        let took = now.saturating_since(ask.asked_at);
        if let Some(seen) = self.seen_by(ask.record, node) {
            (seen.sight, seen.detail, seen.took) = (sight, detail, took);
        }
        self.look_answered(node, ask.record);
    }

    /// A node answered how long the key lives there.
    pub(super) fn left_seen(&mut self, node: NodeId, ask: Ask, left: Option<i64>) {
        if let Some(seen) = self.seen_by(ask.record, node) {
            match (&mut seen.sight, left) {
                // The key is absent, or expired between the two commands.
                (sight @ KeyState::Held { .. }, Some(-2)) => *sight = KeyState::Absent,
                (KeyState::Absent, Some(-2)) => {}
                (KeyState::Held { left, .. }, Some(millis)) => *left = time_left(millis),
                (sight @ KeyState::Absent, Some(millis)) => {
                    *sight = KeyState::Held { value: Value::of(b""), left: time_left(millis) };
                }
                _ => {}
            }
        }
        self.look_answered(node, ask.record);
    }

    /// Acts on an inspecting question that will not be answered any more.
    pub(super) fn look_is_lost(&mut self, node: NodeId, number: u32, cause: NodeError) {
        if let Some(seen) = self.seen_by(number, node) {
            seen.sight = KeyState::Failed(cause);
        }
        self.look_answered(node, number);
    }

    fn seen_by(&mut self, number: u32, node: NodeId) -> Option<&mut NodeKeyState> {
        let op = self.records.get(number).op?;
        match &mut self.ops.get_mut(op)?.stage {
            Stage::Looking { seen, .. } => seen.nodes.get_mut(node.index()),
            _ => None,
        }
    }

    fn look_answered(&mut self, node: NodeId, number: u32) {
        let record = self.records.get_mut(number);
        let generation = record.generation;
        record.asked.take(node);
        self.look_whether_all_is_seen(number);
        self.finish(number, generation);
    }

    fn look_whether_all_is_seen(&mut self, number: u32) {
        if self.records.get(number).asked.is_empty() {
            self.inspection_is_over(number);
        }
    }

    /// All nodes have answered, or the time is over.
    pub(super) fn inspection_is_over(&mut self, number: u32) {
        let record = self.records.get_mut(number);
        self.timers.clear_in(&mut record.round_timer);
        let generation = record.generation;
        let Some(op) = record.op.take() else { return };
        if let Some(request) = self.ops.get_mut(op) {
            let stage = std::mem::replace(&mut request.stage, Stage::Running { record: number });
            if let Stage::Looking { seen, .. } = stage {
                self.ops.move_to(op, Stage::Over(Ok(Outcome::Inspected(seen))));
            }
        }
        self.finish(number, generation);
    }
}
