//! The forced release: an operator decided that the holder of a key is gone. Either whatever is
//! there is deleted, or only what an inspection saw.
//!
//! The hazard is a key that changed after the look: another client may hold it rightly by now. So
//! each node compares what it holds with what was seen there, and deletes nothing else.

use crate::proto::cluster::Cluster;
use crate::proto::error::{Error, NodeReply};
use crate::proto::ids::{Op, TaskId};
use crate::proto::inspection::{Inspection, KeyState};
use crate::proto::key::KeyHash;
use crate::proto::locks::Locks;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::locks::task::tasks::{Task, Work};
use crate::proto::locks::writes::Writer;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::command;

impl Locks {
    /// Deletes `key` on every node, even if another client holds the lock.
    pub fn force_release(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        self.check_length(key)?;
        self.check_room()?;
        let deadline = self.longest_ttl()?.deadline(now);
        let (id, op) = self.open_task(key, Work::Delete, deadline, data, now)?;
        for node in self.askable_for(id, Cluster::may_ask).iter() {
            self.ask_for(node, id, TaskAsk::Delete, now, |_, key, out| {
                command::encode(out, &[b"DEL", key]);
            });
        }
        self.on_task_asked(id, now);
        Ok(op)
    }

    /// How the deletion of a key ended, by the answers until now.
    pub(in crate::proto::locks) fn outcome_of_deletion(&self, id: TaskId) -> ReleaseOutcome {
        let task = self.tasks.get(id);
        let [deleted, absent] =
            [NodeReply::Granted, NodeReply::Absent].map(|it| task.that_said(it));
        let nodes = self.cluster.all_nodes().minus(deleted).minus(absent);
        if nodes.len() > self.cluster.spare_nodes() {
            ReleaseOutcome::Unconfirmed { nodes }
        } else if deleted.is_empty() {
            ReleaseOutcome::AlreadyExpired
        } else {
            ReleaseOutcome::Released
        }
    }

    /// Whether no missing answer can change the outcome of a deletion: a majority holds nothing
    /// now, and something was there; or no majority can answer.
    pub(in crate::proto::locks) fn is_deletion_decided(&self, task: &Task) -> bool {
        let deleted = task.that_said(NodeReply::Granted);
        let clear = deleted.union(task.that_said(NodeReply::Absent));
        let missing = task.silent(self.cluster.all_nodes()).len();
        let quorum = self.cluster.quorum();
        let is_done = !deleted.is_empty() && clear.len() >= quorum;
        is_done || missing == 0 || clear.len() + missing < quorum
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
        let deadline = self.longest_ttl()?.deadline(now);
        let (id, op) = self.open_task(key, Work::DeleteSeen, deadline, data, now)?;
        for node in self.cluster.all_nodes().iter() {
            let state = seen.nodes.get(node.index()).map_or(KeyState::Absent, |seen| seen.state);
            let reply = match (state, self.cluster.may_ask(node)) {
                (KeyState::Absent, _) => NodeReply::Absent,
                (KeyState::Failed(cause), _) | (_, Err(cause)) => NodeReply::Failed(cause),
                (KeyState::Held { value, .. }, Ok(())) => {
                    self.ask_for(node, id, TaskAsk::DeleteSeen, now, |_, key, out| {
                        command::delete_seen(out, key, &value);
                    });
                    continue;
                }
            };
            self.tasks.get_mut(id).cast(node, reply);
        }
        self.on_task_asked(id, now);
        Ok(op)
    }

    /// A node answered, or will not answer any more.
    pub(in crate::proto::locks) fn on_delete(
        &mut self,
        node: NodeId,
        id: TaskId,
        reply: NodeReply,
        now: Instant,
    ) {
        if reply == NodeReply::Granted {
            let key = KeyHash::of(&self.tasks.get(id).key);
            self.on_write(node, key, Writer::Task, now);
        }
        self.tasks.get_mut(id).cast(node, reply);
    }
}
