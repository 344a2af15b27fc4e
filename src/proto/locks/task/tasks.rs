//! The tasks: requests about keys that make no lock. These are an inspection, a forced release, an
//! extend by a token alone, and an operator's vouching for nodes.
//!
//! A task only decides: which nodes are asked what, what an answer means, when it is over, and its
//! outcome. `course.rs` writes the questions and acts.
//!
//! The hazard is a task that is treated as a lock: what it touched must not be renewed, healed or
//! released. So a task is no record, and has no phase and no pending release.

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
use crate::proto::locks::task::note::NoteText;
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
    /// Extends the keys where they hold a token. A majority decides.
    Extend(TokenExtend),
    /// Deletes the key on every node.
    Delete,
    /// Deletes the value that an inspection saw on each node.
    DeleteSeen(SeenValues),
    /// Writes a note beside the key.
    WriteNote(NoteText),
    /// Writes into the node markers that an operator vouches for the nodes.
    Vouch,
    /// The outcome is reported. Later answers do not change it.
    Done,
}

/// The keys of a task.
#[derive(Debug, Clone)]
enum OwnKeys {
    One(Box<[u8]>),
    /// Two keys at least, and the index of the one that a node named last.
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
    /// What each node answered, or why it was not asked.
    replies: Replies,
    /// The task waits for no answer beyond this moment, and an extend that is decided then or later
    /// is not won.
    deadline: Instant,
    /// Ends the task.
    timer: Option<Timer>,
    /// The time of the task is over: its outcome does not wait for further answers.
    timed_out: bool,
    work: Work,
}

/// What a task does when it begins.
#[derive(Debug, Default)]
pub struct Begun {
    /// The questions, in their order.
    pub asks: Vec<(NodeId, TaskAsk)>,
    /// The nodes that cannot be asked.
    pub failed: Vec<(NodeId, NodeError)>,
}

/// What `course.rs` has to do after an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    Nothing,
    /// Ask the node this.
    Ask(TaskAsk),
    /// Note that the key was written to: the node deleted it, and does not report that to this
    /// client.
    Wrote,
    /// Count the grants of the node from now on.
    Trust,
}

impl Work {
    /// The ttl that the keys get, if the work extends them.
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

    /// Notes the key that a node named in its reply, if the reply refuses because of that key.
    fn name(&mut self, reply: NodeReply, key: u64) {
        let in_way = matches!(reply, NodeReply::Held | NodeReply::Absent);
        if let (OwnKeys::Several(keys, named), true) = (self, in_way) {
            *named = usize::try_from(key).ok().filter(|&key| key < keys.len());
        }
    }

    /// The key that a report names, and what the report says if there are several.
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

    /// The timer that ends the task, to set it or to clear it.
    pub fn timer(&mut self) -> &mut Option<Timer> {
        &mut self.timer
    }

    /// Begins the task. `op` is the request that waits for its outcome.
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
                // A command that compares and sets could shorten the ttl that the holder relies on.
                Work::Extend(_) if !cluster.runs_scripts(node) => {
                    cluster.may_ask(node).and(Err(NodeError::NoLua))
                }
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
            // The vote of a node in quarantine is a failure, but the node is asked, too, so that it
            // extends the key if it has it.
            for node in cluster.untrusted(askable).iter() {
                self.doubt(node);
                self.cast(node, NodeReply::Failed(NodeError::Quarantined));
            }
        }
        if let Work::Extend(extend) = &mut self.work {
            extend.end_if_hopeless();
        }
        for node in askable.iter() {
            match &self.work {
                Work::Inspect(_) => {
                    begun.asks.extend([TaskAsk::ReadValue, TaskAsk::ReadTtl].map(|it| (node, it)));
                }
                Work::Extend(extend) if extend.is_over(cluster) => {}
                Work::Extend(_) => {
                    begun.asks.push((node, extend::ask(node, self.keys(), cluster)));
                }
                Work::Delete => begun.asks.push((node, TaskAsk::Delete)),
                Work::DeleteSeen(_) => {
                    let native = cluster.in_place_of_scripts(node);
                    begun
                        .asks
                        .push((node, native.map_or(TaskAsk::DeleteSeen, TaskAsk::DeleteSeenBy)));
                }
                Work::WriteNote(_) => begun.asks.push((node, TaskAsk::WriteNote)),
                Work::Vouch => begun.asks.push((node, TaskAsk::Vouch)),
                Work::Done => {}
            }
        }
        begun
    }

    /// A question to a node is about to be written.
    pub fn on_asked(&mut self, node: NodeId) {
        self.unanswered.add(node.into());
    }

    /// Encodes a question to a node, except that of vouching, which the cluster encodes.
    pub fn encode(&self, node: NodeId, ask: TaskAsk, prefix: &mut KeyPrefix, out: &mut BytesMut) {
        let (keys, key) = (self.keys(), self.keys().first());
        match &self.work {
            Work::Inspect(look) => look.encode(ask, prefix.put_before(key), out),
            Work::Extend(extend) => extend.encode(ask, keys, prefix, out),
            Work::Delete => delete::encode(prefix.put_before(key), out),
            Work::DeleteSeen(seen) => seen.encode(node, ask, prefix.put_before(key), out),
            Work::WriteNote(note) => note.encode(prefix.put_before(key), out),
            Work::Vouch | Work::Done => unreachable!("{ask:?} is not encoded here"),
        }
    }

    /// Takes an answer, and returns what has to be done next.
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
                // The node has its vote now, and the task does not wait for the line after its time
                // is over.
                self.cast(node, reply);
                if may_have_line && cluster.may_ask(node).is_ok() {
                    return Next::Ask(TaskAsk::ReadLine);
                }
            }
            // A node that does not know the script is asked once more, by its source, if the
            // deadline has not passed.
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
            // Whatever the work is: also if the outcome was reported before this answer.
            (_, TaskAnswer::Deleted(reply) | TaskAnswer::DeletedSeen(reply)) => {
                self.cast(node, reply);
                if reply == NodeReply::Granted {
                    return Next::Wrote;
                }
            }
            (_, TaskAnswer::NoteWritten(reply)) => self.cast(node, reply),
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

    /// The connection with this unanswered question was lost.
    pub fn on_ask_lost(&mut self, node: NodeId, cause: NodeError) {
        self.unanswered.take(node);
        if let Work::Inspect(look) = &mut self.work {
            look.on_failed(node, cause);
        }
        self.cast(node, NodeReply::Failed(cause));
    }

    /// The node may have forgotten keys just now: its grant of an extend does not count any more.
    pub fn doubt(&mut self, node: NodeId) {
        if let Work::Extend(extend) = &mut self.work {
            if extend.doubt(node) {
                self.replies.set(node, NodeReply::Failed(NodeError::Quarantined));
            }
        }
    }

    /// The time of the task is over. A question may have been written late: then the task waits for
    /// it until a node timeout after that, but not beyond its deadline. Returns that moment, if the
    /// task waits.
    pub fn waits_until(&self, cluster: &Cluster, now: Instant) -> Option<Instant> {
        let silent = self.silent(cluster);
        let written = silent.iter().filter_map(|node| cluster.oldest_ask(node)).max()?;
        let until = written.saturating_add(cluster.settings().node_timeout).min(self.deadline);
        (until > now).then_some(until)
    }

    /// Ends the wait for answers: a node that has not answered counts as silent. Returns these
    /// nodes.
    pub fn time_out(&mut self, cluster: &Cluster) -> NodeSet {
        let silent = self.silent(cluster);
        silent.iter().for_each(|node| self.cast(node, NodeReply::Failed(NodeError::Silent)));
        self.timed_out = true;
        silent
    }

    /// The caller does not wait for the outcome any more: the task goes on without a request.
    pub fn cancel(&mut self) {
        self.op = None;
    }

    /// Returns the outcome, and the request that waits for it, if it is known and was not returned
    /// before.
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
            Work::WriteNote(_) => Ok(Outcome::Noted(report(self))),
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
        let deadline = self.deadline;
        if extend.is_won() && now < deadline {
            return Ok(Outcome::Extended { deadline });
        }
        let refusals = extend.refused(&self.replies, cluster, now >= deadline);
        let mut report = self.report(cluster, now);
        report.by_token = true;
        Err(classify(Tried::Extend, refusals).error(report))
    }

    /// Whether the task can be closed: no question is in flight, and no request waits for its
    /// outcome.
    pub fn is_finished(&self) -> bool {
        self.op.is_none() && self.unanswered.is_empty()
    }

    fn is_over(&self, cluster: &Cluster) -> bool {
        self.timed_out
            || match &self.work {
                Work::Inspect(_) | Work::DeleteSeen(_) | Work::WriteNote(_) | Work::Vouch => {
                    self.unanswered.is_empty()
                }
                Work::Extend(extend) => extend.is_over(cluster),
                Work::Delete => delete::is_decided(&self.replies, cluster),
                Work::Done => false,
            }
    }

    /// Notes the reply of a node, and casts it as its vote, unless the node gave one before.
    fn cast(&mut self, node: NodeId, reply: NodeReply) {
        self.replies.put_first(node, reply);
        if let Work::Extend(extend) = &mut self.work {
            extend.cast(node, reply);
        }
    }

    /// The nodes without a reply.
    fn silent(&self, cluster: &Cluster) -> NodeSet {
        cluster.all_nodes().minus(self.replies.said_something())
    }

    /// A report of the reply of every node.
    fn report(&self, cluster: &Cluster, now: Instant) -> Box<Report> {
        let (key, set) = self.keys.shown();
        let mut report = cluster.report_of(key, |node| self.replies.of(node), now);
        report.set = set;
        report
    }
}

/// All tasks of a client.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    slab: Slab<Task>,
    next_generation: Generation,
}

impl Tasks {
    /// From now on `left` more generations are given before their number wraps.
    #[cfg(feature = "testing")]
    pub fn start_before_wrap(&mut self, left: u32) {
        self.next_generation = Generation::before_wrap(left);
    }

    /// Opens a task. The caller begins it.
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
    /// If it is closed, which it is not as long as a question or its request is open.
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
