//! The inspection: reads a key on all nodes, and changes nothing.

use std::time::Duration;

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::error::{Error, NodeError, NodeReply};
use crate::proto::ids::{Op, TaskId};
use crate::proto::inspection::{
    Inspection, KeyState, LINE_SHOWN, NodeKeyState, VALUE_BYTES, Value,
};
use crate::proto::locks::Locks;
use crate::proto::locks::task::tasks::Work;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::{command, line};

/// `GETRANGE key 0 159`: the beginning of the value. `GET` would return all of it, and a value of a
/// megabyte is longer than a reply may be.
fn ask_what_is_there(out: &mut BytesMut, key: &[u8]) {
    let last = (VALUE_BYTES - 1).to_string();
    command::encode(out, &[b"GETRANGE", key, b"0", last.as_bytes()]);
}

/// How long a key lives by the answer to `PTTL`; `None`: for ever.
fn time_left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

impl Locks {
    /// Reads what every node holds at `key`, and for how long.
    pub fn inspect(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        self.check_length(key)?;
        self.check_room()?;
        let nodes = self.cluster.all_nodes().iter().map(|node| self.not_seen(node, now)).collect();
        let seen = Box::new(Inspection { key: key.into(), quorum: self.cluster.quorum(), nodes });
        let deadline = self.longest_ttl()?.deadline(now);
        let (id, op) = self.open_task(key, Work::Inspect(seen), deadline, data, now)?;
        for node in self.askable_for(id, Cluster::may_ask).iter() {
            self.ask_for(node, id, TaskAsk::ReadValue, now, |_, key, out| {
                ask_what_is_there(out, key);
            });
            self.ask_for(node, id, TaskAsk::ReadTtl, now, |_, key, out| {
                command::encode(out, &[b"PTTL", key]);
            });
        }
        self.on_task_asked(id, now);
        Ok(op)
    }

    /// The report of a node that does not answer.
    fn not_seen(&self, node: NodeId, now: Instant) -> NodeKeyState {
        let cause = self.cluster.may_ask(node).err().unwrap_or(NodeError::Silent);
        let detail = self.cluster.detail(node, NodeReply::Failed(cause), now);
        let label = self.cluster.label(node);
        let (state, took, line) = (KeyState::Failed(cause), Duration::ZERO, Vec::new());
        NodeKeyState { label, state, detail, took, line }
    }

    /// A node answered which value it holds.
    pub(in crate::proto::locks) fn on_value_read(
        &mut self,
        node: NodeId,
        id: TaskId,
        read: Result<(), NodeError>,
        now: Instant,
    ) {
        let value = read.map(|()| self.cluster.seen(node));
        let state = match value {
            Ok(Some(value)) if !value.as_bytes().is_empty() => {
                KeyState::Held { value, left: Some(Duration::ZERO) }
            }
            // The value may also be empty: the answer to `PTTL` decides.
            Ok(_) => KeyState::Absent,
            Err(cause) => KeyState::Failed(cause),
        };
        let reply = value.err().map_or(NodeReply::Nothing, NodeReply::Failed);
        let detail = self.cluster.detail(node, reply, now);
        let took = now.saturating_since(self.cluster.asked_at(node));
        if let Some(seen) = self.seen_by(id, node) {
            (seen.state, seen.detail, seen.took) = (state, detail, took);
        }
    }

    /// A node answered how long the key lives there.
    pub(in crate::proto::locks) fn on_ttl_read(
        &mut self,
        node: NodeId,
        id: TaskId,
        left: Option<i64>,
        now: Instant,
    ) {
        if let Some(seen) = self.seen_by(id, node) {
            match (&mut seen.state, left) {
                // The key is absent, or expired between the two commands.
                (state @ KeyState::Held { .. }, Some(-2)) => *state = KeyState::Absent,
                (KeyState::Absent, Some(-2)) => {}
                (KeyState::Held { left, .. }, Some(millis)) => *left = time_left(millis),
                (state @ KeyState::Absent, Some(millis)) => {
                    *state = KeyState::Held { value: Value::of(b""), left: time_left(millis) };
                }
                _ => {}
            }
            let reply = match seen.state {
                KeyState::Held { .. } => NodeReply::Held,
                KeyState::Absent => NodeReply::Absent,
                KeyState::Failed(cause) => NodeReply::Failed(cause),
            };
            let has_token =
                matches!(seen.state, KeyState::Held { value, .. } if value.token().is_some());
            // The task does not wait for the line beyond its time.
            self.tasks.get_mut(id).cast(node, reply);
            // Only a key that a client of this library holds has a line. So a user who may not read
            // lines is refused at such a key only.
            if has_token && self.cluster.may_ask(node).is_ok() {
                self.ask_for(node, id, TaskAsk::ReadLine, now, |_, key, out| {
                    line::read_line(out, key, LINE_SHOWN);
                });
            }
        }
    }

    /// A node answered which waiters stand in line for the key.
    pub(in crate::proto::locks) fn on_line_read(&mut self, node: NodeId, id: TaskId) {
        let line = self.cluster.take_seen_line(node);
        if let Some(seen) = self.seen_by(id, node) {
            seen.line = line;
        }
    }

    /// Acts on an inspecting question that will not be answered any more.
    pub(in crate::proto::locks) fn on_read_failed(
        &mut self,
        node: NodeId,
        id: TaskId,
        cause: NodeError,
    ) {
        if let Some(seen) = self.seen_by(id, node) {
            seen.state = KeyState::Failed(cause);
        }
        self.tasks.get_mut(id).cast(node, NodeReply::Failed(cause));
    }

    fn seen_by(&mut self, id: TaskId, node: NodeId) -> Option<&mut NodeKeyState> {
        match &mut self.tasks.get_mut(id).work {
            Work::Inspect(seen) => seen.nodes.get_mut(node.index()),
            _ => None,
        }
    }
}
