//! The course of a task: opened, asked, answered by the nodes, and ended.
//!
//! The hazard is a task that stays open for ever. A question that is not answered ends with its
//! connection, and the caller has its outcome by the node timeout.

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::error::{Error, NodeError, NodeReply, Report};
use crate::proto::ids::{Op, TaskId};
use crate::proto::locks::requests::{Outcome, Stage};
use crate::proto::locks::task::tasks::{Task, Work};
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::wire::answers::TaskAnswer;
use crate::proto::wire::ask::{Ask, TaskAsk};

impl Locks {
    /// Opens a task and its request. It takes a place of the records until it is closed.
    pub(in crate::proto::locks) fn open_task(
        &mut self,
        key: &[u8],
        work: Work,
        deadline: Instant,
        data: u64,
        now: Instant,
    ) -> Result<(TaskId, Op), Error> {
        self.reserve_place()?;
        let task = self.tasks.open(key, work, deadline);
        let op = self.ops.open(data, now, now, Stage::Task { task });
        self.tasks.get_mut(task).op = Some(op);
        Ok((task, op))
    }

    /// The nodes that may be asked now, by this test. For each of the others the cause is cast.
    pub(in crate::proto::locks) fn askable_for(
        &mut self,
        id: TaskId,
        may_ask: impl Fn(&Cluster, NodeId) -> Result<(), NodeError>,
    ) -> NodeSet {
        let mut askable = NodeSet::EMPTY;
        for node in self.cluster.all_nodes().iter() {
            match may_ask(&self.cluster, node) {
                Ok(()) => drop(askable.insert(node)),
                Err(cause) => {
                    self.cluster.stats_mut().failed(node, cause);
                    self.tasks.get_mut(id).cast(node, NodeReply::Failed(cause));
                }
            }
        }
        askable
    }

    /// Writes a question of a task into a node's outbox.
    pub(in crate::proto::locks) fn ask_for(
        &mut self,
        node: NodeId,
        id: TaskId,
        kind: TaskAsk,
        now: Instant,
        encode: impl FnOnce(&Task, &[u8], &mut BytesMut),
    ) {
        let task = self.tasks.get_mut(id);
        task.unanswered.add(node.into());
        let key = self.key_prefix.put_before(&task.key);
        self.cluster.ask(node, Ask::Task(id, kind), now, |out| encode(task, key, out));
    }

    /// Called after the first questions: sets the timer, or ends the task if there is nothing to
    /// wait for.
    pub(in crate::proto::locks) fn on_task_asked(&mut self, id: TaskId, now: Instant) {
        let (length, due) = (self.cluster.settings().node_timeout, Due::Task { task: id });
        self.tasks.get_mut(id).timer = Some(self.timers.set_after(now, length, due));
        self.settle_task(id, now);
    }

    /// Gives an answer to the task it is for.
    pub fn on_task_answer(&mut self, node: NodeId, id: TaskId, answer: TaskAnswer, now: Instant) {
        self.tasks.get_mut(id).unanswered.take(node);
        match answer {
            TaskAnswer::Value(read) => self.on_value_read(node, id, read, now),
            TaskAnswer::Left(left) => self.on_ttl_read(node, id, left, now),
            TaskAnswer::Line => self.on_line_read(node, id),
            TaskAnswer::Extended(form, reply) => {
                self.on_token_extend(node, id, form, reply, now);
            }
            TaskAnswer::Deleted(reply) | TaskAnswer::DeletedSeen(reply) => {
                self.on_delete(node, id, reply, now);
            }
            TaskAnswer::Vouched(reply) => self.on_vouch(node, id, reply),
        }
        self.settle_task(id, now);
    }

    /// Acts on a question of a task that will not be answered any more.
    pub(in crate::proto::locks) fn on_task_ask_lost(
        &mut self,
        node: NodeId,
        (id, kind): (TaskId, TaskAsk),
        cause: NodeError,
        now: Instant,
    ) {
        self.tasks.get_mut(id).unanswered.take(node);
        match kind {
            TaskAsk::ReadValue | TaskAsk::ReadTtl | TaskAsk::ReadLine => {
                self.on_read_failed(node, id, cause)
            }
            TaskAsk::Delete | TaskAsk::DeleteSeen => {
                self.on_delete(node, id, NodeReply::Failed(cause), now);
            }
            TaskAsk::Vouch => self.on_vouch(node, id, NodeReply::Failed(cause)),
            TaskAsk::Extend(_) => self.tasks.get_mut(id).cast(node, NodeReply::Failed(cause)),
        }
        self.settle_task(id, now);
    }

    /// The node may have forgotten keys just now: its grants do not count any more.
    pub(in crate::proto::locks) fn doubt_tasks(&mut self, node: NodeId, now: Instant) {
        for id in self.tasks.ids() {
            self.tasks.get_mut(id).doubt(node);
            self.settle_task(id, now);
        }
    }

    /// The time of a task is over: a node that has not answered is silent. Questions that were
    /// written late have not been unanswered for a node timeout: the task waits for them, though
    /// not beyond its deadline.
    pub(in crate::proto::locks) fn on_task_due(&mut self, id: TaskId, now: Instant) {
        let timeout = self.cluster.settings().node_timeout;
        let nodes = self.cluster.all_nodes();
        let task = self.tasks.get_mut(id);
        task.timer = None;
        let silent = task.silent(nodes);
        let written = silent.iter().filter_map(|node| self.cluster.oldest_ask(node)).max();
        let until = written.map_or(now, |written| written.saturating_add(timeout));
        let until = until.min(task.deadline);
        if until > now {
            task.timer = Some(self.timers.set_at(until, Due::Task { task: id }));
            return;
        }
        for node in silent.iter() {
            self.cluster.stats_mut().failed(node, NodeError::Silent);
            task.cast(node, NodeReply::Failed(NodeError::Silent));
        }
        self.end_task(id, now);
    }

    /// Ends a task whose outcome is known. Closes it if nothing of it is in flight any more.
    fn settle_task(&mut self, id: TaskId, now: Instant) {
        let spare = self.cluster.spare_nodes();
        let task = self.tasks.get(id);
        let over = match &task.work {
            Work::Inspect(_) | Work::Vouch | Work::DeleteSeen => task.unanswered.is_empty(),
            Work::Extend(extend) => extend.is_over(spare),
            Work::Delete => self.is_deletion_decided(task),
            Work::Done => false,
        };
        if over { self.end_task(id, now) } else { self.finish_task(id) }
    }

    fn end_task(&mut self, id: TaskId, now: Instant) {
        let task = self.tasks.get_mut(id);
        self.timers.clear_in(&mut task.timer);
        let work = std::mem::replace(&mut task.work, Work::Done);
        if let Some(op) = task.op.take() {
            let result = match work {
                Work::Inspect(seen) => Ok(Outcome::Inspected(seen)),
                Work::Extend(extend) => self.outcome_of_extend(id, &extend, now),
                Work::Delete => Ok(Outcome::Released(self.outcome_of_deletion(id))),
                Work::DeleteSeen => Ok(Outcome::ForceReleased(self.report_of_task(id, now))),
                Work::Vouch => self.outcome_of_vouching(id, now),
                Work::Done => return,
            };
            self.ops.move_to(op, Stage::Over(result));
        }
        self.finish_task(id);
    }

    /// What every node said to the task.
    pub(in crate::proto::locks) fn report_of_task(&self, id: TaskId, now: Instant) -> Box<Report> {
        let task = self.tasks.get(id);
        self.cluster.report_of(&task.key, |node| task.reply_of(node), now)
    }

    /// The caller does not wait for the outcome any more.
    pub(in crate::proto::locks) fn cancel_task(&mut self, id: TaskId) {
        self.tasks.get_mut(id).op = None;
        self.finish_task(id);
    }

    fn finish_task(&mut self, id: TaskId) {
        let task = self.tasks.get_mut(id);
        if task.is_finished() {
            self.timers.clear_in(&mut task.timer);
            self.tasks.close(id);
            self.records.give_up_reserved();
        }
    }
}
