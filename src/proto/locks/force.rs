//! The forced release of what an inspection saw: an operator looked at a key, and decided that its
//! holder is gone.
//!
//! The hazard is a key that changed after the look: another client may hold it rightly by now. So
//! each node compares what it holds with what was seen there, and deletes nothing else.

use crate::proto::error::{Error, NodeError, NodeReply};
use crate::proto::ids::{Op, TaskId};
use crate::proto::inspection::{Inspection, KeyState};
use crate::proto::locks::Locks;
use crate::proto::locks::requests::Outcome;
use crate::proto::locks::tasks::Work;
use crate::proto::node_set::{MAX_NODES, NodeId};
use crate::proto::time::Instant;
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::command;

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
    pub(super) fn delete_seen_answered(
        &mut self,
        node: NodeId,
        id: TaskId,
        reply: NodeReply,
        now: Instant,
    ) {
        if reply == NodeReply::Granted {
            self.task_wrote(node, id, now);
        }
        if let Work::DeleteSeen(all) = &mut self.tasks.get_mut(id).work {
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
