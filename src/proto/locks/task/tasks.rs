//! The tasks: requests about a key that make no lock. An inspection, a forced release, an extend by
//! a token alone, and an operator's vouching for the nodes.
//!
//! The hazard is a task that is taken for a lock: nothing of it is renewed, healed or released. So
//! a task is no record, and has no phase, no owner and no pending release.

use slab::Slab;

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::{Generation, Op, TaskId};
use crate::proto::inspection::Inspection;
use crate::proto::lock::LockToken;
use crate::proto::locks::round::replies::Replies;
use crate::proto::locks::round::state::vote_of;
use crate::proto::node_set::{NodeId, NodeSet, Outstanding};
use crate::proto::quorum::{Ballot, Verdict};
use crate::proto::time::{Instant, Ttl};
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
    /// What each node said, or why it was not asked.
    replies: Replies,
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
    /// Extends the key where it holds a token, if a majority agrees.
    Extend(TokenExtend),
    /// Deletes the key on every node.
    Delete,
    /// Deletes what an inspection saw.
    DeleteSeen,
    /// Writes that an operator vouches for the nodes.
    Vouch,
    /// The outcome is reported. Later answers change nothing.
    Done,
}

/// An extend by a token that another client may have drawn.
#[derive(Debug, Clone)]
pub struct TokenExtend {
    /// The token.
    pub token: LockToken,
    /// How long the key is to live.
    pub ttl: Ttl,
    /// The votes.
    pub ballot: Ballot,
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

    /// Takes what a node said, unless it said something before.
    pub fn cast(&mut self, node: NodeId, reply: NodeReply) {
        self.replies.put_first(node, reply);
        if let (Work::Extend(extend), Some(vote)) = (&mut self.work, vote_of(reply)) {
            extend.ballot.cast(node, vote);
        }
    }

    /// What a node said.
    pub fn reply_of(&self, node: NodeId) -> NodeReply {
        self.replies.of(node)
    }

    /// Those of these nodes that said nothing yet.
    pub fn silent(&self, nodes: NodeSet) -> NodeSet {
        nodes.minus(self.replies.said_something())
    }

    /// The nodes that said this.
    pub fn that_said(&self, reply: NodeReply) -> NodeSet {
        self.replies.that_are(reply)
    }

    /// How many nodes failed with a cause for which `test` holds.
    pub fn count_failed(&self, test: impl Fn(NodeError) -> bool) -> usize {
        self.replies.count_failed(test)
    }

    /// The node may have forgotten keys just now: its grant does not count any more.
    pub fn doubt(&mut self, node: NodeId) {
        let Work::Extend(extend) = &mut self.work else { return };
        extend.uncounted.insert(node);
        let counted = extend.ballot.grants().contains(node);
        if counted && extend.ballot.verdict() == Verdict::Undecided {
            extend.ballot.withdraw(node);
            self.replies.set(node, NodeReply::Failed(NodeError::Quarantined));
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
        let task = Task {
            generation,
            key,
            op: None,
            unanswered,
            replies: Replies::default(),
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
