//! Vouching: an operator says that no lock is live on these nodes, so their grants count at once.
//!
//! The hazard is a node that forgets something after the operator has vouched: what was found out
//! since then is not covered.

use crate::proto::cluster::Cluster;
use crate::proto::error::{Error, NodeError, NodeReply};
use crate::proto::ids::{Op, TaskId};
use crate::proto::locks::Locks;
use crate::proto::locks::requests::Outcome;
use crate::proto::locks::task::tasks::Work;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, TaskAsk};

impl Locks {
    /// Ends the quarantine of every node that can be asked, and writes it into their node markers,
    /// for the next process.
    pub fn vouch(&mut self, data: u64, now: Instant) -> Result<Op, Error> {
        let key = self.cluster.settings().node_marker.clone();
        self.check_length(key.as_bytes())?;
        self.check_room()?;
        let deadline = self.longest_ttl()?.deadline(now);
        let (id, op) = self.open_task(key.as_bytes(), Work::Vouch, deadline, data, now)?;
        for node in self.askable_for(id, Cluster::may_vouch_for).iter() {
            self.tasks.get_mut(id).unanswered.add(node.into());
            self.cluster.vouch(node, Ask::Task(id, TaskAsk::Vouch), now);
        }
        self.on_task_asked(id, now);
        Ok(op)
    }

    /// A node answered, or will not answer any more.
    pub(in crate::proto::locks) fn on_vouch(&mut self, node: NodeId, id: TaskId, reply: NodeReply) {
        let still_true = self.cluster.is_still_vouched_for(node);
        let reply = match reply {
            NodeReply::Granted if !still_true => NodeReply::Failed(NodeError::Quarantined),
            reply => reply,
        };
        if reply == NodeReply::Granted {
            self.cluster.trust_at_once(node);
        }
        self.tasks.get_mut(id).cast(node, reply);
    }

    /// Every node has answered, or the node timeout has passed.
    pub(in crate::proto::locks) fn outcome_of_vouching(
        &self,
        id: TaskId,
        now: Instant,
    ) -> Result<Outcome, Error> {
        let report = self.report_of_task(id, now);
        let granted = self.tasks.get(id).that_said(NodeReply::Granted);
        if granted.len() >= self.cluster.quorum() {
            Ok(Outcome::Vouched(report))
        } else {
            Err(Error::NoQuorum(report))
        }
    }
}
