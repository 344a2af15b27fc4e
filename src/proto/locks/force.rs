//! The forced release: an operator decided that the holder of a key is gone. Either whatever is
//! there is deleted, or only what an inspection saw.
//!
//! The hazard is a key that changed after the look: another client may hold it rightly by now. So
//! each node compares what it holds with what was seen there, and deletes nothing else.

use crate::proto::error::{Error, NodeError, NodeReply};
use crate::proto::ids::{Op, TaskId};
use crate::proto::inspection::{Inspection, KeyState};
use crate::proto::locks::Locks;
use crate::proto::locks::requests::Outcome;
use crate::proto::locks::round::ReleaseOutcome;
use crate::proto::locks::tasks::Work;
use crate::proto::node_set::{MAX_NODES, NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::command;

impl Locks {
    /// Deletes `key` on every node, even if another client holds the lock.
    pub fn force_release(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        self.check_length(key)?;
        self.check_room()?;
        let (mut reply, mut askable) = ([NodeReply::Nothing; MAX_NODES], NodeSet::EMPTY);
        for node in self.cluster.all_nodes().iter() {
            match self.cluster.may_ask(node) {
                Ok(()) => drop(askable.insert(node)),
                Err(cause) => reply[node.index()] = NodeReply::Failed(cause),
            }
        }
        let deadline = self.longest_ttl()?.deadline(now);
        let (id, op) = self.open_task(key, Work::Delete(reply), deadline, data, now)?;
        for node in askable.iter() {
            self.ask_for(node, id, TaskAsk::Delete, now, |_, key, out| {
                command::encode(out, &[b"DEL", key]);
            });
        }
        self.task_is_asked(id, now);
        Ok(op)
    }

    /// How the deletion of a key ended, by the answers until now.
    pub(super) fn outcome_of_deletion(&self, reply: &[NodeReply; MAX_NODES]) -> ReleaseOutcome {
        let (deleted, absent) = self.deleted_and_absent(reply);
        let nodes = self.cluster.all_nodes().minus(deleted).minus(absent);
        if nodes.len() > self.cluster.spare_nodes() {
            ReleaseOutcome::Unconfirmed { nodes }
        } else if deleted.is_empty() {
            ReleaseOutcome::AlreadyExpired
        } else {
            ReleaseOutcome::Released
        }
    }

    /// Whether no answer that is missing can change that: a majority holds nothing now, and
    /// something was there; or no majority can answer.
    pub(super) fn is_deletion_decided(&self, reply: &[NodeReply; MAX_NODES]) -> bool {
        let (deleted, absent) = self.deleted_and_absent(reply);
        let clear = deleted.union(absent);
        let is_missing = |node: &NodeId| reply[node.index()] == NodeReply::Nothing;
        let missing = self.cluster.all_nodes().iter().filter(is_missing).count();
        let quorum = self.cluster.quorum();
        let is_done = !deleted.is_empty() && clear.len() >= quorum;
        is_done || missing == 0 || clear.len() + missing < quorum
    }

    fn deleted_and_absent(&self, reply: &[NodeReply; MAX_NODES]) -> (NodeSet, NodeSet) {
        let all = || self.cluster.all_nodes().iter();
        let that_are = |said| all().filter(|node| reply[node.index()] == said).collect();
        (that_are(NodeReply::Granted), that_are(NodeReply::Absent))
    }

    /// Deletes the key that was inspected on each node that still holds the value that was seen
    /// there. A node that held nothing, or was not seen, is not asked.
    pub fn force_release_seen(
        &mut self,
        key: &[u8],
        seen: &Inspection,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        self.check_length(key)?;
        self.check_room()?;
        let (mut reply, mut values) = ([NodeReply::Absent; MAX_NODES], Vec::new());
        for (node, seen) in self.cluster.all_nodes().iter().zip(&seen.nodes) {
            reply[node.index()] = match (seen.state, self.cluster.may_ask(node)) {
                (KeyState::Absent, _) => NodeReply::Absent,
                (KeyState::Failed(cause), _) | (_, Err(cause)) => NodeReply::Failed(cause),
                (KeyState::Held { value, .. }, Ok(())) => {
                    values.push((node, value));
                    NodeReply::Nothing
                }
            };
        }
        let deadline = self.longest_ttl()?.deadline(now);
        let (id, op) = self.open_task(key, Work::DeleteSeen(reply), deadline, data, now)?;
        for (node, value) in values {
            self.ask_for(node, id, TaskAsk::DeleteSeen, now, |_, key, out| {
                command::delete_seen(out, key, &value);
            });
        }
        self.task_is_asked(id, now);
        Ok(op)
    }

    /// A node answered, or will not answer any more.
    pub(super) fn delete_answered(
        &mut self,
        node: NodeId,
        id: TaskId,
        reply: NodeReply,
        now: Instant,
    ) {
        if reply == NodeReply::Granted {
            self.task_wrote(node, id, now);
        }
        if let Work::Delete(all) | Work::DeleteSeen(all) = &mut self.tasks.get_mut(id).work {
            all[node.index()] = reply;
        }
    }

    /// Every node has answered, or the node timeout has passed.
    pub(super) fn outcome_of_forced_release(
        &self,
        id: TaskId,
        reply: [NodeReply; MAX_NODES],
        now: Instant,
    ) -> Outcome {
        let reply = |node: NodeId| match reply[node.index()] {
            NodeReply::Nothing => NodeReply::Failed(NodeError::Silent),
            reply => reply,
        };
        Outcome::ForceReleased(self.cluster.report_of(&self.tasks.get(id).key, reply, now))
    }
}
