//! The inspection: reads a key on all nodes, and changes nothing.

use std::time::Duration;

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::inspection::{
    Inspection, KeyState, LINE_SHOWN, NodeKeyState, VALUE_BYTES, Value,
};
use crate::proto::node_set::NodeId;
use crate::proto::own_keys::Note;
use crate::proto::time::Instant;
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::{command, line};

/// How long a key lives, by the answer to `PTTL`; `None` if it does not expire.
fn time_left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// What an inspection has seen so far.
#[derive(Debug, Clone)]
pub struct Inspecting {
    seen: Box<Inspection>,
    /// The note beside the key that is read, in place of the key.
    note: Option<Note>,
}

impl Inspecting {
    /// An inspection that has seen nothing yet: each node counts as failed.
    pub fn new(key: &[u8], cluster: &Cluster, now: Instant) -> Inspecting {
        let not_seen = |node| {
            let cause = cluster.may_ask(node).err().unwrap_or(NodeError::Silent);
            let detail = cluster.detail(node, NodeReply::Failed(cause), now);
            let label = cluster.label(node);
            let (state, took, line) = (KeyState::Failed(cause), Duration::ZERO, Vec::new());
            NodeKeyState { label, state, detail, took, line }
        };
        let nodes = cluster.all_nodes().iter().map(not_seen).collect();
        let seen = Inspection { key: key.into(), quorum: cluster.quorum(), nodes };
        Inspecting { seen: Box::new(seen), note: None }
    }

    /// As [`new`](Inspecting::new), of a note of the lock whose key is sent as `key`.
    pub fn of_note(note: Note, key: &[u8], cluster: &Cluster, now: Instant) -> Inspecting {
        Inspecting { note: Some(note), ..Inspecting::new(&note.key(key), cluster, now) }
    }

    /// Encodes a question. `key` is the key of the lock, with the prefix of the client.
    pub fn encode(&self, ask: TaskAsk, key: &[u8], out: &mut BytesMut) {
        let note = self.note.map(|note| note.key(key));
        let key = note.as_deref().unwrap_or(key);
        match ask {
            // `GETRANGE` reads the beginning of the value. `GET` would return all of it, and a
            // value of a megabyte is longer than a reply may be.
            TaskAsk::ReadValue => {
                let last = (VALUE_BYTES - 1).to_string();
                command::encode(out, &[b"GETRANGE", key, b"0", last.as_bytes()]);
            }
            TaskAsk::ReadTtl => command::encode(out, &[b"PTTL", key]),
            TaskAsk::ReadLine => line::read_line(out, key, LINE_SHOWN),
            other => unreachable!("{other:?} reads nothing"),
        }
    }

    /// A node answered which value it holds.
    pub fn on_value(
        &mut self,
        node: NodeId,
        read: Result<(), NodeError>,
        cluster: &Cluster,
        now: Instant,
    ) {
        let value = read.map(|()| cluster.seen(node));
        let state = match value {
            Ok(Some(value)) if !value.as_bytes().is_empty() => {
                KeyState::Held { value, left: Some(Duration::ZERO) }
            }
            // The key is absent, or its value is empty: the answer to `PTTL` decides.
            Ok(_) => KeyState::Absent,
            Err(cause) => KeyState::Failed(cause),
        };
        let reply = value.err().map_or(NodeReply::Nothing, NodeReply::Failed);
        let seen = self.at(node);
        seen.state = state;
        seen.detail = cluster.detail(node, reply, now);
        seen.took = now.saturating_since(cluster.asked_at(node));
    }

    /// A node answered how long the key lives there. Returns its reply, and whether the value is a
    /// token of this library. Only such a key has a line, so only then the line is read: some users
    /// may not read lines.
    pub fn on_ttl(&mut self, node: NodeId, left: Option<i64>) -> (NodeReply, bool) {
        let state = &mut self.seen.nodes[node.index()].state;
        match (&mut *state, left) {
            // The key is absent, or expired between the two commands.
            (KeyState::Held { .. }, Some(-2)) => *state = KeyState::Absent,
            (KeyState::Absent, Some(-2)) => {}
            (KeyState::Held { left, .. }, Some(millis)) => *left = time_left(millis),
            (KeyState::Absent, Some(millis)) => {
                *state = KeyState::Held { value: Value::of(b""), left: time_left(millis) };
            }
            _ => {}
        }
        match *state {
            KeyState::Held { value, .. } => {
                (NodeReply::Held, self.note.is_none() && value.token().is_some())
            }
            KeyState::Absent => (NodeReply::Absent, false),
            KeyState::Failed(cause) => (NodeReply::Failed(cause), false),
        }
    }

    /// A node answered which waiters stand in line for the key.
    pub fn on_line(&mut self, node: NodeId, line: Vec<Value>) {
        self.at(node).line = line;
    }

    /// The connection with an unanswered question to this node was lost.
    pub fn on_failed(&mut self, node: NodeId, cause: NodeError) {
        self.at(node).state = KeyState::Failed(cause);
    }

    /// What the inspection saw.
    pub fn into_seen(self) -> Box<Inspection> {
        self.seen
    }

    fn at(&mut self, node: NodeId) -> &mut NodeKeyState {
        &mut self.seen.nodes[node.index()]
    }
}
