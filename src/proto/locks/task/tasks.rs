//! The tasks: requests about keys that make no lock. An inspection, a forced release, an extend by
//! a token alone, and an operator's vouching for the nodes.
//!
//! A task decides and does not act: it says which nodes are asked what, what an answer means,
//! whether it is over, and its outcome. `course.rs` carries that out.
//!
//! The hazard is a task that is taken for a lock: nothing of it is renewed, healed or released. So
//! a task is no record, and has no phase, no owner and no pending release.

use bytes::BytesMut;
use slab::Slab;

use crate::proto::cluster::Cluster;
use crate::proto::error::{Error, NodeError, NodeReply, Report, ReportedSet};
use crate::proto::ids::{Generation, Op, TaskId};
use crate::proto::inspection::Value;
use crate::proto::key::KeyPrefix;
use crate::proto::key_set::KeySet;
use crate::proto::keys::KeysRef;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::round::failure::{Tried, classify};
use crate::proto::locks::round::replies::Replies;
use crate::proto::locks::task::delete::{self, SeenValues};
use crate::proto::locks::task::extend::{self, TokenExtend};
use crate::proto::locks::task::inspect::Inspecting;
use crate::proto::locks::task::vouch;
use crate::proto::node_set::{NodeId, NodeSet, Outstanding};
use crate::proto::time::{Instant, Ttl};
use crate::proto::timers::Timer;
use crate::proto::wire::answers::TaskAnswer;
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::command::Form;

/// What a task does.
#[derive(Debug, Clone)]
pub enum Work {
    /// Reads what every node holds.
    Inspect(Inspecting),
    /// Extends the keys where they hold a token, if a majority agrees.
    Extend(TokenExtend),
    /// Deletes the key on every node.
    Delete,
    /// Deletes what an inspection saw.
    DeleteSeen(SeenValues),
    /// Writes that an operator vouches for the nodes.
    Vouch,
    /// The outcome is reported. Later answers do not change it.
    Done,
}

/// The keys of a task.
#[derive(Debug, Clone)]
enum OwnKeys {
    One(Box<[u8]>),
    /// Two keys at least, and the number of the one that a node named last.
    Several(KeySet, Option<usize>),
}

/// A request about keys that makes no lock.
#[derive(Debug, Clone)]
pub struct Task {
    generation: Generation,
    keys: OwnKeys,
    /// The request that waits for the outcome.
    op: Option<Op>,
    unanswered: Outstanding,
    /// What each node said, or why it was not asked.
    replies: Replies,
    /// The outcome is reported by then.
    deadline: Instant,
    /// Ends the task.
    timer: Option<Timer>,
    /// The task does not wait for an answer any more.
    timed_out: bool,
    work: Work,
}

/// How a task begins.
#[derive(Debug, Default)]
pub struct Begun {
    /// The questions, in their order.
    pub asks: Vec<(NodeId, TaskAsk)>,
    /// The nodes that cannot be asked.
    pub failed: Vec<(NodeId, NodeError)>,
}

/// What follows an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// The node is asked this.
    Ask(TaskAsk),
    /// The node deleted the key, which it does not report to this client.
    Wrote,
    /// The grants of the node count from now on.
    Trust,
}

impl Work {
    /// The ttl that the keys get, if the work extends it.
    pub fn ttl(&self) -> Option<Ttl> {
        if let Work::Extend(extend) = self { Some(extend.ttl()) } else { None }
    }
}

impl OwnKeys {
    fn borrowed(&self) -> KeysRef<'_> {
        match self {
            OwnKeys::One(key) => KeysRef::One(key),
            OwnKeys::Several(keys, _) => KeysRef::Several(keys),
        }
    }

    /// A node answered this, and named a key: it is in the way unless the node granted all.
    fn name(&mut self, reply: NodeReply, key: u64) {
        let in_way = matches!(reply, NodeReply::Held | NodeReply::Absent);
        if let (OwnKeys::Several(keys, named), true) = (self, in_way) {
            *named = usize::try_from(key).ok().filter(|&key| key < keys.len());
        }
    }

    /// The key that stands for all of them, and what a report says of several.
    fn shown(&self) -> (&[u8], Option<ReportedSet>) {
        match self {
            OwnKeys::One(key) => (key, None),
            OwnKeys::Several(keys, named) => {
                let shown = keys.iter().nth(named.unwrap_or(0)).unwrap_or(keys.first());
                (shown, Some(ReportedSet { keys: keys.len(), named: named.is_some() }))
            }
        }
    }
}

impl Task {
    /// The keys.
    pub fn keys(&self) -> KeysRef<'_> {
        self.keys.borrowed()
    }

    /// The place of the timer that ends the task.
    pub fn timer(&mut self) -> &mut Option<Timer> {
        &mut self.timer
    }

    /// Begins the task: `op` waits for its outcome.
    pub fn begin(&mut self, op: Op, cluster: &Cluster) -> Begun {
        self.op = Some(op);
        let (mut begun, mut askable) = (Begun::default(), NodeSet::EMPTY);
        for node in cluster.all_nodes().iter() {
            let known = match &self.work {
                Work::DeleteSeen(seen) => seen.reply_of(node),
                _ => None,
            };
            let may_ask = match &self.work {
                Work::Vouch => cluster.may_vouch_for(node),
                _ => cluster.may_ask(node),
            };
            match (known, may_ask) {
                (Some(reply), _) => self.cast(node, reply),
                (None, Ok(())) => drop(askable.insert(node)),
                (None, Err(cause)) => {
                    begun.failed.push((node, cause));
                    self.cast(node, NodeReply::Failed(cause));
                }
            }
        }
        if let Work::Extend(_) = self.work {
            // A node in quarantine is asked, too, so that it extends the key that it has.
            for node in cluster.untrusted(askable).iter() {
                self.doubt(node);
                self.cast(node, NodeReply::Failed(NodeError::Quarantined));
            }
        }
        for node in askable.iter() {
            match &self.work {
                Work::Inspect(_) => {
                    begun.asks.extend([TaskAsk::ReadValue, TaskAsk::ReadTtl].map(|it| (node, it)));
                }
                Work::Extend(extend) if extend.is_over(cluster.spare_nodes()) => {}
                Work::Extend(_) => {
                    begun.asks.push((node, extend::ask(node, self.keys(), cluster)));
                }
                Work::Delete => begun.asks.push((node, TaskAsk::Delete)),
                Work::DeleteSeen(_) => begun.asks.push((node, TaskAsk::DeleteSeen)),
                Work::Vouch => begun.asks.push((node, TaskAsk::Vouch)),
                Work::Done => {}
            }
        }
        begun
    }

    /// A question to a node is being written.
    pub fn on_asked(&mut self, node: NodeId) {
        self.unanswered.add(node.into());
    }

    /// Encodes a question to a node. The cluster encodes what vouches for a node.
    pub fn encode(&self, node: NodeId, ask: TaskAsk, prefix: &mut KeyPrefix, out: &mut BytesMut) {
        let (keys, key) = (self.keys(), self.keys().first());
        match &self.work {
            Work::Inspect(_) => Inspecting::encode(ask, prefix.put_before(key), out),
            Work::Extend(extend) => extend.encode(ask, keys, prefix, out),
            Work::Delete => delete::encode(prefix.put_before(key), out),
            Work::DeleteSeen(seen) => seen.encode(node, prefix.put_before(key), out),
            Work::Vouch | Work::Done => unreachable!("{ask:?} is not encoded here"),
        }
    }

    /// Takes an answer.
    pub fn on_answer(
        &mut self,
        node: NodeId,
        answer: TaskAnswer,
        cluster: &Cluster,
        now: Instant,
    ) -> Next {
        self.unanswered.take(node);
        match (&mut self.work, answer) {
            (Work::Inspect(look), TaskAnswer::Value(read)) => {
                look.on_value(node, read, cluster, now);
            }
            (Work::Inspect(look), TaskAnswer::Left(left)) => {
                let (reply, may_have_line) = look.on_ttl(node, left);
                // The task does not wait for the line beyond its time.
                self.cast(node, reply);
                if may_have_line && cluster.may_ask(node).is_ok() {
                    return Next::Ask(TaskAsk::ReadLine);
                }
            }
            // A node that does not know the script is asked again, before the deadline.
            (
                Work::Extend(_),
                TaskAnswer::Extended(Form::Sha, reply)
                | TaskAnswer::ExtendedAll(Form::Sha, reply, _),
            ) if reply.asks_for_the_source() => {
                let in_time = now < self.deadline;
                let again = in_time.then(|| extend::ask(node, self.keys(), cluster));
                return again.map_or(Next::Nothing, Next::Ask);
            }
            (Work::Extend(extend), TaskAnswer::Extended(_, reply)) => {
                let reply = extend.counted(node, reply);
                self.cast(node, reply);
            }
            (Work::Extend(extend), TaskAnswer::ExtendedAll(_, reply, key)) => {
                self.keys.name(reply, key);
                let reply = extend.counted(node, reply);
                self.cast(node, reply);
            }
            // A late answer is handled in the same way.
            (_, TaskAnswer::Deleted(reply) | TaskAnswer::DeletedSeen(reply)) => {
                self.cast(node, reply);
                if reply == NodeReply::Granted {
                    return Next::Wrote;
                }
            }
            (_, TaskAnswer::Vouched(reply)) => {
                let reply = vouch::counted(reply, cluster.is_still_vouched_for(node));
                self.cast(node, reply);
                if reply == NodeReply::Granted {
                    return Next::Trust;
                }
            }
            _ => {}
        }
        Next::Nothing
    }

    /// A node answered which waiters stand in line for the key.
    pub fn on_line(&mut self, node: NodeId, line: Vec<Value>) {
        if let Work::Inspect(look) = &mut self.work {
            look.on_line(node, line);
        }
    }

    /// A question will not be answered any more.
    pub fn on_ask_lost(&mut self, node: NodeId, cause: NodeError) {
        self.unanswered.take(node);
        if let Work::Inspect(look) = &mut self.work {
            look.on_failed(node, cause);
        }
        self.cast(node, NodeReply::Failed(cause));
    }

    /// The node may have forgotten keys just now: its grant does not count any more.
    pub fn doubt(&mut self, node: NodeId) {
        if let Work::Extend(extend) = &mut self.work {
            if extend.doubt(node) {
                self.replies.set(node, NodeReply::Failed(NodeError::Quarantined));
            }
        }
    }

    /// The time of the task is over. Questions that were written late have not been unanswered for
    /// a node timeout: the task waits for them until this moment, though not beyond its deadline.
    pub fn waits_until(&self, cluster: &Cluster, now: Instant) -> Option<Instant> {
        let silent = self.silent(cluster);
        let written = silent.iter().filter_map(|node| cluster.oldest_ask(node)).max()?;
        let until = written.saturating_add(cluster.settings().node_timeout).min(self.deadline);
        (until > now).then_some(until)
    }

    /// A node that has not answered by now is silent. Returns these nodes.
    pub fn time_out(&mut self, cluster: &Cluster) -> NodeSet {
        let silent = self.silent(cluster);
        silent.iter().for_each(|node| self.cast(node, NodeReply::Failed(NodeError::Silent)));
        self.timed_out = true;
        silent
    }

    /// The caller does not wait for the outcome any more.
    pub fn cancel(&mut self) {
        self.op = None;
    }

    /// If the outcome is known, it is returned once, with the request that waits for it.
    pub fn end_if_over(
        &mut self,
        cluster: &Cluster,
        now: Instant,
    ) -> Option<(Option<Op>, Result<Outcome, Error>)> {
        if !self.is_over(cluster) {
            return None;
        }
        let report = |task: &Task| task.report(cluster, now);
        let result = match std::mem::replace(&mut self.work, Work::Done) {
            Work::Inspect(look) => Ok(Outcome::Inspected(look.into_seen())),
            Work::Extend(extend) => self.outcome_of(&extend, cluster, now),
            Work::Delete => Ok(Outcome::Released(delete::outcome(&self.replies, cluster))),
            Work::DeleteSeen(_) => Ok(Outcome::ForceReleased(report(self))),
            Work::Vouch => vouch::outcome(&self.replies, cluster.quorum(), report(self)),
            Work::Done => return None,
        };
        Some((self.op.take(), result))
    }

    fn outcome_of(
        &self,
        extend: &TokenExtend,
        cluster: &Cluster,
        now: Instant,
    ) -> Result<Outcome, Error> {
        let (spare, deadline) = (cluster.spare_nodes(), self.deadline);
        if extend.is_won() && now < deadline {
            return Ok(Outcome::Extended { deadline });
        }
        let refusals = extend.refused(&self.replies, spare, now >= deadline);
        let mut report = self.report(cluster, now);
        report.by_token = true;
        Err(classify(Tried::Extend, refusals).error(report))
    }

    /// Whether no question is in flight and no caller waits any more.
    pub fn is_finished(&self) -> bool {
        self.op.is_none() && self.unanswered.is_empty()
    }

    fn is_over(&self, cluster: &Cluster) -> bool {
        self.timed_out
            || match &self.work {
                Work::Inspect(_) | Work::DeleteSeen(_) | Work::Vouch => self.unanswered.is_empty(),
                Work::Extend(extend) => extend.is_over(cluster.spare_nodes()),
                Work::Delete => delete::is_decided(&self.replies, cluster),
                Work::Done => false,
            }
    }

    /// Takes what a node said, unless it said something before.
    fn cast(&mut self, node: NodeId, reply: NodeReply) {
        self.replies.put_first(node, reply);
        if let Work::Extend(extend) = &mut self.work {
            extend.cast(node, reply);
        }
    }

    /// The nodes that said nothing yet.
    fn silent(&self, cluster: &Cluster) -> NodeSet {
        cluster.all_nodes().minus(self.replies.said_something())
    }

    /// What every node said.
    fn report(&self, cluster: &Cluster, now: Instant) -> Box<Report> {
        let (key, set) = self.keys.shown();
        let mut report = cluster.report_of(key, |node| self.replies.of(node), now);
        report.set = set;
        report
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

    /// Opens a task, which begins next.
    pub fn open(&mut self, keys: KeysRef<'_>, work: Work, deadline: Instant) -> TaskId {
        let generation = self.next_generation.advance();
        let task = Task {
            generation,
            keys: match keys {
                KeysRef::One(key) => OwnKeys::One(key.into()),
                KeysRef::Several(keys) => OwnKeys::Several(keys.clone(), None),
            },
            op: None,
            unanswered: Outstanding::default(),
            replies: Replies::default(),
            deadline,
            timer: None,
            timed_out: false,
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
