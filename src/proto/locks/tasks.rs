//! The tasks: requests about a key that make no lock. An inspection, a forced release, an extend by
//! a token alone, and an operator's vouching for the nodes.
//!
//! The hazard is a task that is taken for a lock: nothing of it is renewed, healed or released. So
//! a task is no record, and has no phase, no owner and no pending release.

use slab::Slab;

use crate::proto::error::NodeReply;
use crate::proto::ids::{Generation, Op, TaskId};
use crate::proto::inspection::Inspection;
use crate::proto::lock::LockToken;
use crate::proto::locks::round::Round;
use crate::proto::node_set::{MAX_NODES, NodeSet, Outstanding};
use crate::proto::time::Instant;
use crate::proto::timers::Timer;

/// A request about a key that makes no lock.
#[derive(Debug, Clone)]
pub struct Task {
    generation: Generation,
    /// The key.
    pub key: Box<[u8]>,
    /// The request that waits for the outcome.
    pub op: Option<Op>,
    /// Unanswered questions.
    pub unanswered: Outstanding,
    /// Nodes whose unanswered question the task does not wait for at its end.
    pub dispensable: NodeSet,
    /// The outcome is reported by then.
    pub deadline: Instant,
    /// Ends the task.
    pub timer: Option<Timer>,
    /// What is done.
    pub work: Work,
}

/// What a task does.
#[derive(Debug, Clone)]
pub enum Work {
    /// Reads what every node holds.
    Inspect(Box<Inspection>),
    /// Extends the key where it holds a token, in one round.
    Extend(TokenExtend),
    /// Deletes the key on every node: what each node said.
    Delete([NodeReply; MAX_NODES]),
    /// Deletes what an inspection saw: what each node said.
    DeleteSeen([NodeReply; MAX_NODES]),
    /// Writes that an operator vouches for the nodes: what each node said.
    Vouch([NodeReply; MAX_NODES]),
    /// The outcome is reported. Later answers change nothing.
    Done,
}

/// An extend by a token that another client may have drawn.
#[derive(Debug, Clone)]
pub struct TokenExtend {
    /// The token.
    pub token: LockToken,
    /// The round.
    pub round: Round,
    /// Nodes whose grant does not count: it is not known how the key was created there, and they
    /// were in quarantine when they were asked, or have been since.
    pub uncounted: NodeSet,
    /// Nodes that answered absent or another's.
    pub absent: NodeSet,
}

impl Task {
    /// Whether no question is in flight and no caller waits any more.
    pub fn is_finished(&self) -> bool {
        self.op.is_none() && self.unanswered.is_empty()
    }

    /// The round, if the task asks for votes that are counted.
    pub fn round_mut(&mut self) -> Option<&mut Round> {
        match &mut self.work {
            Work::Extend(extend) => Some(&mut extend.round),
            _ => None,
        }
    }
}

/// The tasks.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    slab: Slab<Task>,
    next_generation: Generation,
}

impl Tasks {
    /// From now on the generations are so close to their end.
    #[cfg(feature = "testing")]
    pub fn start_before_wrap(&mut self, left: u32) {
        self.next_generation = Generation::before_wrap(left);
    }

    /// Opens a task for a request that is opened next.
    pub fn open(&mut self, key: &[u8], work: Work, deadline: Instant) -> TaskId {
        let generation = self.next_generation.advance();
        let (unanswered, key) = (Outstanding::default(), key.into());
        let dispensable = NodeSet::EMPTY;
        let task = Task {
            generation,
            key,
            op: None,
            unanswered,
            dispensable,
            deadline,
            timer: None,
            work,
        };
        TaskId { index: self.slab.insert(task) as u32, generation }
    }

    /// The task.
    ///
    /// # Panics
    /// If it is closed: its questions and its request keep it open.
    pub fn get(&self, id: TaskId) -> &Task {
        let task = &self.slab[id.index as usize];
        assert!(task.generation == id.generation, "{id:?} is closed");
        task
    }

    /// The task, to change it.
    ///
    /// # Panics
    /// If it is closed.
    pub fn get_mut(&mut self, id: TaskId) -> &mut Task {
        let task = &mut self.slab[id.index as usize];
        assert!(task.generation == id.generation, "{id:?} is closed");
        task
    }

    /// Closes a task.
    pub fn close(&mut self, id: TaskId) {
        self.slab.remove(id.index as usize);
    }

    /// The open tasks.
    pub fn ids(&self) -> Vec<TaskId> {
        let id = |(index, task): (usize, &Task)| TaskId {
            index: index as u32,
            generation: task.generation,
        };
        self.slab.iter().map(id).collect()
    }

    /// How many tasks are open.
    pub fn count(&self) -> usize {
        self.slab.len()
    }
}
