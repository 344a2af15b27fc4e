//! The course of a task: it is opened, nodes are asked and answer, and it ends. The task itself
//! decides what is asked and what an answer means.
//!
//! The hazard is a task that stays open for ever. So a question without an answer ends with its
//! connection, and the timer of the task ends the caller's wait.

use crate::proto::error::{Error, NodeError};
use crate::proto::ids::{Op, TaskId};
use crate::proto::key::KeyHash;
use crate::proto::keys::KeysRef;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::task::tasks::{Next, Work};
use crate::proto::locks::writes::Writer;
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::answers::TaskAnswer;
use crate::proto::wire::ask::{Ask, TaskAsk};

impl Locks {
    /// Opens a task about these keys and its request, and asks the nodes. Until it is closed, the
    /// task takes room that the limit of records counts.
    pub fn begin_task(
        &mut self,
        keys: KeysRef<'_>,
        work: Work,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        // No other task counts a majority for a lock.
        if matches!(work, Work::Extend(_)) {
            self.cluster.check_lists(now);
        }
        // Vouching is about the node marker, not about the key of a lock, so its key is not
        // checked.
        if !matches!(work, Work::Vouch) {
            self.check_keys(keys)?;
        }
        let ttl = work.ttl().map_or_else(|| self.longest_ttl(), Ok)?;
        self.check_room()?;
        self.reserve_place()?;
        let id = self.tasks.open(keys, work, ttl.deadline(now));
        let op = self.ops.open(data, now, now, Stage::Task { task: id });
        let begun = self.tasks.get_mut(id).begin(op, &self.cluster);
        for (node, cause) in begun.failed {
            self.cluster.stats_mut().failed(node, cause);
        }
        for (node, ask) in begun.asks {
            self.ask_for(id, node, ask, now);
        }
        let (length, due) = (self.cluster.settings().node_timeout, Due::Task { task: id });
        *self.tasks.get_mut(id).timer() = Some(self.timers.set_after(now, length, due));
        self.settle_task(id, now);
        Ok(op)
    }

    /// Writes a question of a task into a node's outbox.
    fn ask_for(&mut self, id: TaskId, node: NodeId, ask: TaskAsk, now: Instant) {
        let (task, prefix) = (self.tasks.get_mut(id), &mut self.key_prefix);
        task.on_asked(node);
        match ask {
            TaskAsk::Vouch => self.cluster.vouch(node, Ask::Task(id, ask), now),
            _ => self.cluster.ask(node, Ask::Task(id, ask), now, |out| {
                task.encode(node, ask, prefix, out);
            }),
        }
    }

    /// Takes the answer of a node to a question of a task.
    pub fn on_task_answer(&mut self, node: NodeId, id: TaskId, answer: TaskAnswer, now: Instant) {
        let task = self.tasks.get_mut(id);
        if answer == TaskAnswer::Line {
            task.on_line(node, self.cluster.take_seen_line(node));
        }
        match task.on_answer(node, answer, &self.cluster, now) {
            Next::Nothing => {}
            Next::Ask(ask) => self.ask_for(id, node, ask, now),
            Next::Wrote => {
                let key = KeyHash::of(self.tasks.get(id).keys().first());
                self.on_write(node, key, Writer::Task, now);
            }
            Next::Trust => self.cluster.trust_at_once(node),
        }
        self.settle_task(id, now);
    }

    /// The connection with this unanswered question of a task was lost.
    pub(in crate::proto::locks) fn on_task_ask_lost(
        &mut self,
        node: NodeId,
        id: TaskId,
        cause: NodeError,
        now: Instant,
    ) {
        self.tasks.get_mut(id).on_ask_lost(node, cause);
        self.settle_task(id, now);
    }

    /// The node may have forgotten keys just now: its grants of extends by token do not count any
    /// more.
    pub(in crate::proto::locks) fn doubt_tasks(&mut self, node: NodeId, now: Instant) {
        for id in self.tasks.ids() {
            self.tasks.get_mut(id).doubt(node);
            self.settle_task(id, now);
        }
    }

    /// The time of a task is over.
    pub(in crate::proto::locks) fn on_task_due(&mut self, id: TaskId, now: Instant) {
        let task = self.tasks.get_mut(id);
        let until = task.waits_until(&self.cluster, now);
        *task.timer() = until.map(|at| self.timers.set_at(at, Due::Task { task: id }));
        if until.is_none() {
            for node in task.time_out(&self.cluster).iter() {
                self.cluster.stats_mut().failed(node, NodeError::Silent);
            }
            self.settle_task(id, now);
        }
    }

    /// The caller does not wait for the outcome any more.
    pub(in crate::proto::locks) fn cancel_task(&mut self, id: TaskId, now: Instant) {
        self.tasks.get_mut(id).cancel();
        self.settle_task(id, now);
    }

    /// If the outcome of a task is known now, ends its request. Closes the task if no question of
    /// it is in flight.
    fn settle_task(&mut self, id: TaskId, now: Instant) {
        let task = self.tasks.get_mut(id);
        let ended = task.end_if_over(&self.cluster, now);
        if ended.is_some() || task.is_finished() {
            self.timers.clear_in(task.timer());
        }
        if task.is_finished() {
            self.tasks.close(id);
            self.records.give_up_reserved();
        }
        if let Some((Some(op), result)) = ended {
            self.ops.move_to(op, Stage::Over(result));
        }
    }
}
