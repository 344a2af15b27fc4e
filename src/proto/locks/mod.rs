//! The locks: what the client knows of each attempt, its rounds and its deadline; the releases that
//! are pending after a lock is over; renewals; and giving a lock to another client by its token.
//!
//! The locks do not decide when a key is asked for again: the waits do. The locks report to them,
//! as a [`WaitEvent`], an attempt that was lost, and a key that is free for the next request of
//! this client. [`Locks`] owns the cluster, because half of its methods ask nodes: otherwise a
//! hundred signatures would need the cluster as an argument.
//!
//! The hazard is a verdict or an event that no code acts on. So the caller of any method here acts
//! on the verdicts ([`act_on_verdicts`](Locks::act_on_verdicts)) and takes the events out
//! ([`poll_wait`](Locks::poll_wait)) before it returns to the driver.
//!
//! Renewals have timers of their own, because the driver does them last in a turn. [`Ops`] has all
//! requests of callers, also those that wait for a key, so that a request changes its stage in one
//! place only. All random numbers come from one generator, so a simulated run can be repeated.

mod answers;
mod attempt;
mod changes;
mod closing;
pub mod completions;
#[cfg(feature = "testing")]
pub mod copies;
mod encoding;
pub mod fence;
#[cfg(feature = "testing")]
mod fingerprint;
mod flushes;
pub mod held;
pub mod line;
pub mod owners;
pub mod random;
pub mod record;
pub mod release;
pub mod renew;
mod reports;
pub mod requests;
pub mod round;
pub mod set;
pub mod task;
#[cfg(test)]
pub mod tests;
mod tidying;
mod turns;
pub mod writes;

use std::collections::VecDeque;

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::error::{Busy, ConfigError, Error};
use crate::proto::fifo::Fifo;
use crate::proto::ids::{Op, RecordId, TaskId};
use crate::proto::key::{KeyHash, KeyPrefix};
use crate::proto::lock::{Lock, LockToken};
use crate::proto::locks::attempt::again::Releases;
use crate::proto::locks::encoding::{
    Place, Question, encode, encode_all, encode_for_line, encode_for_lines, phase_of,
};
use crate::proto::locks::fence::counted::CountedKeys;
use crate::proto::locks::owners::OwnerId;
use crate::proto::locks::random::Random;
use crate::proto::locks::record::records::{Phase, Record, Records};
use crate::proto::locks::release::queue::PendingReleases;
use crate::proto::locks::renew::renewals::Renewals;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::requests::Ops;
use crate::proto::locks::task::tasks::Tasks;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::own_keys::ReservedKeys;
use crate::proto::settings::{LONGEST_KEY, Settings};
use crate::proto::time::{Instant, Ttl};
use crate::proto::timers::Timers;
use crate::proto::wire::ask::{Ask, Encoding, Kind, LockAsk, Names};
use crate::proto::wire::command::Form;
use crate::proto::wire::line::MarkKey;
use flushes::Flushes;
use held::updates::{PendingUpdate, Updates};
use tidying::Tidying;

/// What a timer does when it comes due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// The time of the round is over: a node that has not answered counts as silent.
    Round { record: RecordId },
    /// The time of the task is over.
    Task { task: TaskId },
    /// The lock's deadline.
    Deadline { record: RecordId },
    /// Warn the caller that its auto-extended or watched lock comes near its deadline.
    Warn { record: RecordId },
    /// Send the node its pending releases.
    PendingReleases { node: NodeId },
    /// Act on the flushes that the node reported since the last walk over the locks.
    Flushes { node: NodeId },
    /// Drop the pending releases of the node: it was not ready for too long.
    DropReleases { node: NodeId },
}

/// An event for the waits.
#[derive(Debug, Clone)]
pub enum WaitEvent {
    /// An attempt of this request was lost, and the record of its next attempt is open.
    AttemptLost {
        /// The request.
        op: Op,
        /// The record of its next attempt.
        next: RecordId,
        /// The error of the lost attempt.
        last: Error,
    },
    /// A request that had to wait for this key has won its lock.
    AttemptWon {
        /// The request.
        op: Op,
        /// Its key.
        key: KeyHash,
    },
    /// The requests in this queue wait for another request, and an attempt of that one has ended.
    Attempted {
        /// The queue.
        queue: u32,
        /// Its error, if too few nodes gave a vote that counts.
        no_quorum: Option<Error>,
    },
    /// The pause before the next attempt of this request is over.
    PauseOver {
        /// The request.
        op: Op,
    },
    /// The time that this request may wait is over before its turn came.
    GiveUp {
        /// The request.
        op: Op,
    },
    /// The caller cancelled this request, which was in a queue.
    Left {
        /// The request.
        op: Op,
        /// The queue.
        queue: u32,
    },
    /// The record that asked for the key of this queue, or held it, has given it up.
    Vacated {
        /// The queue.
        queue: u32,
    },
    /// On this node a client wrote to the key that the request waits for, or the key is gone.
    Written {
        /// The request.
        op: Op,
        /// The node.
        node: NodeId,
    },
}

/// What a caller of an acquire asked for.
#[derive(Debug, Clone, Copy)]
pub struct AcquireParams {
    /// The ttl of the lock.
    pub ttl: Ttl,
    /// From this moment on no attempt begins.
    pub give_up_at: Instant,
    /// How the lock is auto-extended.
    pub auto_extend: Option<AutoExtend>,
    /// Whether the lock gets a fencing number.
    pub fenced: bool,
    /// The owner that the tokens name; `None`: that of the settings.
    pub owner: Option<OwnerId>,
    /// The data that the completion returns.
    pub data: u64,
}

/// The locks of one client, over its cluster.
#[derive(Debug)]
#[cfg_attr(feature = "testing", derive(Clone))]
pub struct Locks {
    cluster: Cluster,
    /// The first handshakes are not over: until then no acquire asks the nodes.
    starting: bool,
    /// This is the copy of the client in a forked process: every request ends as an error.
    forked: bool,
    /// The pending releases of each node.
    pending_releases: Vec<PendingReleases>,
    /// The flushes that each node reported.
    flushes: Vec<Flushes>,
    /// The prefix of all keys, and a buffer for the key of the question that is being encoded.
    key_prefix: KeyPrefix,
    reserved_keys: ReservedKeys,
    records: Records,
    counted: CountedKeys,
    tasks: Tasks,
    ops: Ops,
    renewals: Renewals,
    /// The bytes of the question that is being asked: encoded once, and written to several nodes.
    command: BytesMut,
    timers: Timers<Due>,
    /// The records whose round was decided. Empty between two calls of the coordinator.
    verdicts: Fifo<RecordId>,
    /// Events for the waits. Empty between two calls of the coordinator.
    waits: VecDeque<WaitEvent>,
    updates: Updates,
    releases: Releases,
    tidying: Tidying,
    /// The secret from which the client makes its marks; nothing if it never stood in line.
    marks: Option<MarkKey>,
    /// Until this moment no request joins a line: too many nodes refused the scripts of the line to
    /// this user.
    no_lines_until: Instant,
    /// Tokens that stood in line and whose locks were given away: only the last ones.
    given_away: VecDeque<LockToken>,
    /// The node and the token of each key that a node handed over to no record, and that the client
    /// released there: only the last ones.
    given_back: VecDeque<(NodeId, LockToken)>,
    random: Random,
}

impl Locks {
    /// The locks of a new client. The settings have to be valid. Tokens are drawn from the seed.
    pub fn new(settings: Settings, seed: [u8; 32], now: Instant) -> Locks {
        let nodes = settings.nodes.len();
        let cluster = Cluster::new(settings, now);
        let settings = cluster.settings();
        Locks {
            pending_releases: NodeSet::first(nodes).iter().map(PendingReleases::of).collect(),
            flushes: (0..nodes).map(|_| Flushes::default()).collect(),
            key_prefix: KeyPrefix::new(&settings.key_prefix),
            reserved_keys: ReservedKeys::new(&settings.key_prefix, settings.wanted_marker()),
            records: Records::new(settings.limits.records),
            counted: CountedKeys::default(),
            tasks: Tasks::default(),
            ops: Ops::default(),
            starting: true,
            forked: false,
            command: BytesMut::new(),
            timers: Timers::new(),
            verdicts: Fifo::default(),
            waits: VecDeque::new(),
            updates: Updates::default(),
            releases: Releases::default(),
            tidying: Tidying::default(),
            marks: None,
            no_lines_until: Instant::default(),
            given_away: VecDeque::new(),
            given_back: VecDeque::new(),
            random: Random::new(seed),
            renewals: Renewals::new(&cluster),
            cluster,
        }
    }

    /// The cluster, to read.
    #[inline]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cluster, for what the driver does to connections. The driver then calls
    /// [`act_on_changes`](Locks::act_on_changes), so that the locks act on what changed.
    #[inline]
    pub fn cluster_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// The requests, to read.
    #[inline]
    pub fn ops(&self) -> &Ops {
        &self.ops
    }

    /// The requests, for a change that concerns neither a record nor a node.
    #[inline]
    pub fn ops_mut(&mut self) -> &mut Ops {
        &mut self.ops
    }

    /// The generator of random numbers.
    pub fn random_mut(&mut self) -> &mut Random {
        &mut self.random
    }

    /// Whether there is an event for the waits.
    #[inline]
    pub fn has_waits(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Acts on every verdict, and takes out the next event for the waits.
    pub fn poll_wait(&mut self, now: Instant) -> Option<WaitEvent> {
        self.act_on_verdicts(now);
        self.waits.pop_front()
    }

    /// The earliest moment at which something is due.
    #[inline]
    pub fn next_timeout(&self) -> Option<Instant> {
        let at_nodes = self.cluster.next_timeout();
        let (timers, renewals) = (self.timers.next(), self.renewals.next_due());
        let requests = self.ops.next_timeout();
        Instant::first_of([at_nodes, timers, requests, renewals, self.tidying.due])
    }

    /// Whether the earliest timer is a poll of a waiter in line. The driver may fire such a timer a
    /// millisecond late, because usually the message of a hand-over comes before the poll.
    pub fn next_is_a_poll_in_line(&self, next: Instant) -> bool {
        let first = self.ops.next_timeout() == Some(next) && self.timers.next() != Some(next);
        first && self.ops.next_is_a_poll_in_line()
    }

    /// Fires the earliest timer that is due, except those of renewals. Returns whether one was due.
    pub fn do_next_due(&mut self, now: Instant) -> bool {
        let (at_a_node, of_request) = (self.cluster.next_timeout(), self.ops.next_timeout());
        let rest = Instant::first_of([of_request, self.timers.next()]);
        if at_a_node.is_some_and(|at| at <= now && rest.is_none_or(|rest| at < rest)) {
            self.cluster.handle_timeout(now);
            self.act_on_changes(now);
            return true;
        }
        if of_request.is_some_and(|at| self.timers.next().is_none_or(|due| at < due)) {
            if let Some(op) = self.ops.pop_due(now) {
                self.on_request_due(op, now);
                return true;
            }
        }
        let Some(due) = self.timers.pop_due(now) else { return self.tidy_if_due(now) };
        match due {
            Due::Round { record } => self.on_round_timeout(record, now),
            Due::Task { task } => self.on_task_due(task, now),
            Due::Deadline { record } => self.on_deadline(record, now),
            Due::Warn { record: id } => {
                let record = self.records.get_mut(id);
                self.renewals.on_warning_due(record);
                self.updates.report(id, record, PendingUpdate::Expiring);
            }
            Due::PendingReleases { node } => self.on_releases_due(node, now),
            Due::Flushes { node } => self.walk_over(node, now),
            Due::DropReleases { node } => self.drop_pending_releases(node, now),
        }
        true
    }

    /// How many timers are set, of every kind.
    pub fn open_timers(&self) -> usize {
        let of_nodes = self.cluster.open_timers();
        of_nodes + self.ops.open_timers() + self.timers.len() + self.renewals.open_timers()
    }

    /// How many records and tasks are open.
    pub fn open_records(&self) -> usize {
        self.records.len() + self.tasks.count()
    }

    /// How many locks are auto-extended or watched.
    pub fn auto_extended_locks(&self) -> usize {
        self.renewals.len()
    }

    /// How many releases wait in the queue of a node.
    pub fn pending_releases(&self, node: NodeId) -> usize {
        self.pending_releases[node.index()].len()
    }

    /// Refuses a key that cannot be locked.
    pub fn check_key(&self, key: &[u8]) -> Result<(), Error> {
        let (given, most) = (self.key_prefix.as_bytes().len() + key.len(), LONGEST_KEY);
        if given > most {
            return Err(ConfigError::KeyTooLong { given, most }.into());
        }
        Ok(self.reserved_keys.check(key)?)
    }

    /// Draws the token of an attempt. `hands_over`: the release of its lock hands the key over to
    /// the next one in line. `owner`: the one that its request names.
    #[inline]
    fn random_token(&mut self, hands_over: bool, owner: Option<OwnerId>) -> LockToken {
        if let Some(owner) = owner {
            return self.random_token_of(hands_over, owner);
        }
        let token = self.random.token(hands_over);
        match &self.cluster.settings().owner {
            None => token,
            owner => token.with_owner(owner.as_ref()),
        }
    }

    #[cold]
    fn random_token_of(&mut self, hands_over: bool, owner: OwnerId) -> LockToken {
        let own = self.ops.owners.get(owner).or(self.cluster.settings().owner.as_ref());
        self.random.token(hands_over).with_owner(own)
    }

    /// The longest ttl that the settings allow.
    fn longest_ttl(&self) -> Result<Ttl, Error> {
        let longest = self.cluster.settings().max_ttl;
        Ok(Ttl::new(longest, longest)?)
    }

    /// Writes a question about a lock into a node's outbox.
    fn ask(&mut self, node: NodeId, id: RecordId, kind: Kind, now: Instant) {
        self.ask_all(node.into(), id, kind, now);
    }

    /// Writes a question about a lock into the outboxes of these nodes.
    #[inline]
    fn ask_all(&mut self, nodes: NodeSet, id: RecordId, kind: Kind, now: Instant) {
        self.ask_as(nodes, id, Question::of(kind), now);
    }

    /// As `ask_all`, for a caller that also chooses the form of the script, or one that has
    /// counters.
    ///
    /// Each question that [`Pending`](release::pending::Pending) counts goes through here, so that
    /// the phase of its record is checked. The last commands of a client that ends do not: their
    /// answers are not read.
    fn ask_as(&mut self, nodes: NodeSet, id: RecordId, question: Question, now: Instant) {
        let record = self.records.get_mut(id);
        let kind = question.kind;
        if record.hands_over() && kind == Kind::Release && record.line().is_none() {
            // The token stands in no line, and such a node cannot hand the key over. A token that
            // stood in line may have joined while the node still ran scripts, or runs them again.
            let without = self.cluster.without_scripts(nodes).minus(record.plain());
            if !without.is_empty() {
                record.trouble_mut().plain = record.plain().union(without);
            }
        }
        if record.hands_over() && kind.names_the_line() && nodes.len() != 1 {
            let (plain, in_line) = (nodes.common(record.plain()), record.line().is_some());
            if in_line {
                // A member in line has the channel and the mark of its node, so each node gets
                // other bytes.
                nodes.iter().for_each(|node| self.ask_as(node.into(), id, question, now));
                return;
            }
            if !plain.is_empty() && plain != nodes {
                self.ask_as(plain, id, question, now);
                self.ask_as(nodes.minus(plain), id, question, now);
                return;
            }
        }
        let names = question.names(record, nodes);
        let (form, unknowing) = question.forms(names, nodes, record, &self.cluster);
        if !unknowing.is_empty() {
            return self.ask_apart((nodes, unknowing), id, question, now);
        }
        let sent = Encoding { form, names };
        let phase = phase_of(kind);
        assert!(record.phase == phase, "{kind:?} in {:?}", record.phase);
        let is_early = phase != Phase::Held || now < record.deadline;
        debug_assert!(is_early, "{kind:?} at or past the deadline");
        if kind.may_create() {
            record.pending.on_asked(nodes);
            if kind.creates() {
                record.proof.end(nodes);
            }
        } else {
            record.pending.on_release_asked(nodes);
        }
        self.encode(nodes, id, kind, sent, now);
        let record = self.records.get(id);
        let ask = Ask::Lock(LockAsk { record: id, round: record.round.number, kind, sent });
        let names_it = record.tracked && kind.may_create() && kind != Kind::Join;
        self.cluster.ask_all(nodes, ask, now, &self.command);
        if names_it {
            // A write of this client ends the registration of the key at the node, so the client
            // registers it again after each write.
            self.register_at(id, nodes, now);
        }
    }

    /// Asks the nodes that do not know the script by its source, or by their own command if they
    /// run no scripts, and then the others.
    #[cold]
    fn ask_apart(
        &mut self,
        (nodes, unknowing): (NodeSet, NodeSet),
        id: RecordId,
        question: Question,
        now: Instant,
    ) {
        let record = self.records.get(id);
        let has_command = question.has_command(question.names(record, unknowing), record);
        let mut by_source = unknowing;
        for node in unknowing.iter().filter(|_| has_command) {
            if let Some(native) = self.cluster.in_place_of_scripts(node) {
                by_source.remove(node);
                let form = Form::Native(native);
                self.ask_as(node.into(), id, Question { form, ..question }, now);
            }
        }
        if !by_source.is_empty() {
            self.ask_as(by_source, id, Question { form: Form::Source, ..question }, now);
        }
        if nodes != unknowing {
            self.ask_as(nodes.minus(unknowing), id, question, now);
        }
    }

    /// Encodes a question about a lock to these nodes into `self.command`.
    fn encode(
        &mut self,
        nodes: NodeSet,
        id: RecordId,
        kind: Kind,
        Encoding { form, names }: Encoding,
        now: Instant,
    ) {
        let record = self.records.get(id);
        self.command.clear();
        let (out, prefix) = (&mut self.command, &mut self.key_prefix);
        let what = (kind, form.unwrap_or(Form::Source));
        match names {
            Names::Key => encode(out, prefix.put_before(&record.key), record, what, now),
            Names::KeyAndLine => {
                let node = nodes.iter().next();
                let (cluster, marks) = (&self.cluster, self.marks.as_ref());
                let place = node.and_then(|node| Place::of(record, node, cluster, marks));
                encode_for_line(out, prefix.put_before(record.line_key()), record, what, place);
            }
            Names::AllKeysAndLines => {
                let node = nodes.iter().next();
                let (cluster, marks) = (&self.cluster, self.marks.as_ref());
                let place = node.and_then(|node| Place::of(record, node, cluster, marks));
                encode_for_lines(out, prefix, record, what.1, place);
            }
            Names::AllKeys | Names::AllKeysAndCounters => {
                encode_all(out, prefix, record, what, names.has_counters(), now);
            }
        }
    }

    /// Closes the record if it is over, and nothing of it is in flight or pending.
    #[inline]
    fn finish(&mut self, id: RecordId) {
        let Some(record) = self.records.get_open_mut(id) else { return };
        if record.is_finished() {
            self.timers.clear_in(&mut record.round_timer);
            self.timers.clear_in(&mut record.deadline_timer);
            self.records.close(id);
        }
    }
}

fn busy(busy: Busy) -> Error {
    Error::Busy(busy)
}

fn handle_of(id: RecordId, record: &Record) -> Lock {
    Lock { record: id, token: record.token.clone(), fence: record.fence_of_handle() }
}
