//! What can be done with a token alone: extending a key. It makes no lock of this client.

use std::time::Duration;

use crate::proto::cluster::Cluster;
use crate::proto::error::{ConfigError, Error, LostReason, NodeError, NodeReply};
use crate::proto::ids::{Op, TaskId};
use crate::proto::lock::LockToken;
use crate::proto::locks::Locks;
use crate::proto::locks::requests::Outcome;
use crate::proto::locks::task::tasks::{TokenExtend, Work};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::{Ballot, Verdict};
use crate::proto::time::{Instant, Ttl};
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::command::{self, Form};
use crate::proto::wire::known_scripts::ScriptName;

impl TokenExtend {
    /// Whether the nodes have decided: by their votes, or because too many of `spare` say that the
    /// key is not there.
    pub(in crate::proto::locks) fn is_over(&self, spare: usize) -> bool {
        self.ballot.verdict() != Verdict::Undecided || self.absent.len() > spare
    }
}

impl Locks {
    /// Extends `key` to at least `ttl` from now on the nodes where it holds `token`, no matter
    /// which client acquired it. There is one round, and nothing is released after it.
    pub fn extend_token(
        &mut self,
        key: &[u8],
        token: LockToken,
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let ttl = Ttl::new(ttl, self.cluster.settings().max_ttl)?;
        self.check_key(key)?;
        self.check_room()?;
        let ballot = Ballot::of_majority(self.cluster.size());
        let (uncounted, absent) = (NodeSet::EMPTY, NodeSet::EMPTY);
        let work = Work::Extend(TokenExtend { token, ttl, ballot, uncounted, absent });
        let (id, op) = self.open_task(key, work, ttl.deadline(now), data, now)?;
        let askable = self.askable_for(id, Cluster::may_ask);
        for node in askable.iter().filter(|&node| !self.cluster.is_trusted(node)) {
            // The node is asked all the same, to extend the key that it has.
            let task = self.tasks.get_mut(id);
            task.doubt(node);
            task.cast(node, NodeReply::Failed(NodeError::Quarantined));
        }
        let spare = self.cluster.spare_nodes();
        if matches!(&self.tasks.get(id).work, Work::Extend(extend) if !extend.is_over(spare)) {
            askable.iter().for_each(|node| self.ask_to_extend(node, id, now));
        }
        self.on_task_asked(id, now);
        Ok(op)
    }

    fn ask_to_extend(&mut self, node: NodeId, id: TaskId, now: Instant) {
        let form = self.cluster.form_of(node, ScriptName::Extend);
        self.ask_for(node, id, TaskAsk::Extend(form), now, |task, key, out| {
            if let Work::Extend(extend) = &task.work {
                command::extend(out, form, key, &extend.token, extend.ttl);
            }
        });
    }

    /// A node answered an extend by a token.
    pub(in crate::proto::locks) fn on_token_extend(
        &mut self,
        node: NodeId,
        id: TaskId,
        form: Form,
        reply: NodeReply,
        now: Instant,
    ) {
        let task = self.tasks.get_mut(id);
        let deadline = task.deadline;
        let Work::Extend(extend) = &mut task.work else { return };
        if reply.asks_for_the_source() && form == Form::Sha {
            // There is no repeat at or past the deadline.
            if now < deadline {
                self.ask_to_extend(node, id, now);
            }
            return;
        }
        if matches!(reply, NodeReply::Held | NodeReply::Absent) {
            extend.absent.insert(node);
        }
        let uncounted = reply == NodeReply::Granted && extend.uncounted.contains(node);
        let reply = if uncounted { NodeReply::Failed(NodeError::Quarantined) } else { reply };
        task.cast(node, reply);
    }

    /// How an extend by a token ended.
    pub(in crate::proto::locks) fn outcome_of_extend(
        &self,
        id: TaskId,
        extend: &TokenExtend,
        now: Instant,
    ) -> Result<Outcome, Error> {
        let task = self.tasks.get(id);
        let (spare, deadline) = (self.cluster.spare_nodes(), task.deadline);
        let won = extend.ballot.verdict() == Verdict::Won;
        if won && now < deadline {
            return Ok(Outcome::Extended { deadline });
        }
        let report = self.report_of_task(id, now);
        if !won && extend.absent.len() > spare {
            Err(Error::Lost { reason: LostReason::Gone, report })
        } else if now >= deadline {
            Err(Error::Lost { reason: LostReason::Expired, report })
        } else if task.count_failed(NodeError::is_permanent) > spare {
            Err(Error::Config(ConfigError::Nodes(report)))
        } else {
            Err(Error::NoQuorum(report))
        }
    }
}
