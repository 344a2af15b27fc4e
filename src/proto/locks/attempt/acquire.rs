//! The course of an acquire: attempts follow each other, each with a record and a token of its own,
//! until one is won, the time to wait is over, or the caller cancels.

use std::time::Duration;

use crate::proto::error::{Busy, Error, LostReason, NodeError, NodeReply};
use crate::proto::ids::{Op, RecordId};
use crate::proto::key::KeyHash;
use crate::proto::keys::KeysRef;
use crate::proto::lock::Lock;
use crate::proto::locks::attempt::again::HowItWaits;
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::round::course::Role;
use crate::proto::locks::round::failure::{Refusals, Tried, classify};
use crate::proto::locks::round::state::Round;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::locks::{AcquireParams, Locks, WaitEvent, busy, handle_of};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::{Instant, Ttl};
use crate::proto::wire::ask::{Kind, LockAsk};

impl Locks {
    /// Returns the error of a request with invalid keys, ttl or terms, before anything is sent.
    #[inline]
    pub fn check_params(
        &self,
        keys: KeysRef<'_>,
        ttl: Duration,
        auto_extend: Option<AutoExtend>,
    ) -> Result<Ttl, Error> {
        let ttl = Ttl::new(ttl, self.cluster.settings().max_ttl)?;
        auto_extend.map_or(Ok(()), |auto_extend| auto_extend.check(ttl))?;
        self.check_keys(keys)?;
        Ok(ttl)
    }

    /// Opens a request for a key that no record of this client asks for or holds, and takes its
    /// first step. `has_line`: other clients stand in line for the key.
    #[inline]
    pub fn acquire(
        &mut self,
        key: &[u8],
        hash: KeyHash,
        params: AcquireParams,
        has_line: bool,
        now: Instant,
    ) -> Result<Op, Error> {
        self.check_room()?;
        let how = self.how_it_waits(&params, now);
        let first = Locks::first_step(how, has_line, self.asks_again(hash, now));
        let token = self.random_token(first.hands_over(), params.owner);
        let round = Round::acquire(self.cluster.ballot(), now, params.ttl);
        let id = self.records.open(key, token, round).ok_or(busy(Busy::Records))?;
        self.records.get_mut(id).fenced = params.fenced;
        self.records.index(id, hash);
        let op = self.ops.open(params.data, now, params.give_up_at, Stage::Running { record: id });
        self.ops.link(op, self.records.get_mut(id), params.auto_extend);
        self.ops.set_joins(op, how.joins);
        self.ops.set_owner(op, params.owner);
        self.begin_request(op, id, first, now);
        Ok(op)
    }

    /// How a new request may wait. Before the first handshakes are over it cannot join a line or
    /// pause, because it does not begin yet.
    #[inline]
    pub(in crate::proto::locks) fn how_it_waits(
        &self,
        params: &AcquireParams,
        now: Instant,
    ) -> HowItWaits {
        let may_wait = now < params.give_up_at && !self.starting;
        HowItWaits { joins: self.has_lines(now), may_wait }
    }

    /// The record that asks for `key`, or holds it.
    #[inline]
    pub fn current_record(&self, key: &[u8], hash: KeyHash) -> Option<RecordId> {
        self.records.current_record(key, hash)
    }

    /// Ends the lock of this record if its deadline has passed, although its timer has not fired
    /// yet. An auto-extended or watched lock stays, because the driver's turn has to report its
    /// loss. Returns whether it ended the lock.
    #[inline]
    pub fn end_if_overdue(&mut self, id: RecordId, now: Instant) -> bool {
        let record = self.records.get_mut(id);
        if record.phase != Phase::Held || now < record.deadline || record.auto_extended.is_some() {
            return false;
        }
        self.timers.clear_in(&mut record.deadline_timer);
        self.on_deadline(id, now);
        true
    }

    /// Cancels a request: no completion follows.
    pub fn cancel(&mut self, op: Op, now: Instant) {
        let Some(request) = self.ops.close(op) else { return };
        let id = match request.stage {
            Stage::Over(_) | Stage::Extended { .. } => return,
            Stage::Queued { queue, .. } => {
                self.records.give_up_reserved();
                self.waits.push_back(WaitEvent::Left { op, queue });
                return;
            }
            Stage::Gathering { record } => return self.stop_gathering(record, op, now),
            Stage::Task { task } => return self.cancel_task(task, now),
            Stage::Starting { record }
            | Stage::Running { record }
            | Stage::Granted { record }
            | Stage::Pausing { record, .. } => record,
        };
        let record = self.records.get_mut(id);
        record.op = None;
        if record.round.purpose.is_attempt() {
            self.end(id, now);
        }
        self.finish(id);
    }

    /// Cancels a request, unless it extends a lock that is held: such a request goes on to its end.
    pub fn abandon(&mut self, op: Op, now: Instant) {
        let extends = |id: RecordId| self.records.get(id).phase == Phase::Held;
        match self.ops.get(op).map(|request| &request.stage) {
            Some(&(Stage::Running { record } | Stage::Pausing { record, .. }))
                if extends(record) =>
            {
                if let Some(request) = self.ops.get_mut(op) {
                    request.abandoned = true;
                }
            }
            _ => self.cancel(op, now),
        }
    }

    /// Refuses a request with [`Busy::Nodes`] if it would have a quorum, but for nodes whose
    /// outboxes are full.
    pub(in crate::proto::locks) fn check_room(&self) -> Result<(), Error> {
        let (mut with_room, mut full, quorum) = (0, 0, self.cluster.quorum());
        for node in self.cluster.voters().iter() {
            match self.cluster.may_ask(node) {
                Ok(()) => with_room += 1,
                Err(NodeError::Full) => full += 1,
                Err(_) => {}
            }
            if with_room == quorum {
                return Ok(());
            }
        }
        if with_room + full >= quorum { Err(busy(Busy::Nodes)) } else { Ok(()) }
    }

    /// Begins an attempt: asks every node that may be asked for the key.
    ///
    /// Before the first handshakes are over it asks nothing: the attempt begins when they are.
    pub fn begin_attempt(&mut self, id: RecordId, now: Instant) {
        if self.hold_at_start(id, now) {
            return;
        }
        let record = self.records.get_mut(id);
        let is_set = record.set().is_some();
        debug_assert!(is_set || record.line().is_none(), "no `SET NX` carries a token in line");
        record.uncounted = NodeSet::EMPTY;
        // The round ends at the deadline at the latest, because a lock that is won later is of no
        // use.
        let length = record.ttl.usable_up_to(self.cluster.settings().node_timeout);
        let nodes = self.cluster.voters();
        let ask = |locks: &mut Locks, nodes| locks.ask_for_keys(nodes, id, now);
        if is_set || record.fenced {
            let role_of = |locks: &mut Locks, node| locks.role_with_scripts(node);
            self.begin_round(id, (nodes, length), role_of, ask, now);
            return;
        }
        self.begin_round(id, (nodes, length), |_, _| Role::Asked, ask, now);
    }

    /// How a node takes part in an attempt that needs scripts.
    fn role_with_scripts(&mut self, node: NodeId) -> Role {
        if self.cluster.may_ask(node).is_err() || self.cluster.runs_scripts(node) {
            return Role::Asked;
        }
        self.cluster.stats_mut().failed(node, NodeError::NoLua);
        Role::Votes(NodeReply::Failed(NodeError::NoLua))
    }

    /// Asks these nodes to grant the keys of an acquire, or of an adopt.
    fn ask_for_keys(&mut self, nodes: NodeSet, id: RecordId, now: Instant) {
        let untrusted = self.cluster.untrusted(nodes);
        let record = self.records.get_mut(id);
        if record.fenced && record.asks_for_all_keys() {
            self.ask_for_votes(id, nodes, Kind::Acquire, now);
            return;
        }
        record.uncounted = untrusted;
        let adopts = record.taken_up().is_some();
        let kind = if adopts { Kind::Adopt } else { Kind::Acquire };
        self.ask_all(nodes, id, kind, now);
    }

    /// A node answered whether it grants the keys.
    #[inline(always)]
    pub(in crate::proto::locks) fn on_grant(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        if ask.asks_for_votes() {
            self.on_vote(node, ask, reply, now);
        } else {
            self.cast_grant(node, ask, reply);
        }
    }

    /// Casts the answer of a node in the present round of an attempt. A grant that does not count
    /// becomes a failure.
    #[inline(always)]
    pub(in crate::proto::locks) fn cast_grant(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
    ) {
        let record = self.records.get_mut(ask.record);
        if record.awaits_grant(ask) {
            let uncounted = record.uncounted.contains(node) && reply == NodeReply::Granted;
            if uncounted {
                let reply = self.note_uncounted(ask.record, node);
                self.cast(ask.record, node, reply);
            } else {
                record.cast((node, reply), ask.record, &mut self.verdicts);
            }
        }
    }

    /// Counts a grant that does not count as a failure of the node, and returns the failure.
    #[cold]
    fn note_uncounted(&mut self, id: RecordId, node: NodeId) -> NodeReply {
        let cause = self.why_uncounted(id, node);
        self.cluster.stats_mut().failed(node, cause);
        NodeReply::Failed(cause)
    }

    /// A majority granted. If the lock needs no further round, it belongs to the client until
    /// it is handed out.
    pub(in crate::proto::locks) fn on_attempt_won(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        if now >= record.deadline {
            self.on_attempt_lost(id, now);
            return;
        }
        if record.set().is_some() && self.wait_for_next_key(id, now) {
            return;
        }
        let record = self.records.get(id);
        if record.fenced && record.round.purpose.asks_for_votes() {
            self.on_votes_in(id, now);
        } else {
            self.begin_hold(id);
        }
    }

    /// The lock is won, and belongs to the client until its caller fetches it.
    pub(in crate::proto::locks) fn begin_hold(&mut self, id: RecordId) {
        let record = self.records.get_mut(id);
        record.phase = Phase::Held;
        let op = record.op;
        let waited =
            op.filter(|&op| self.ops.get(op).is_some_and(|request| request.waiting.is_some()));
        if let Some(op) = waited {
            let in_line = record.line().is_some();
            let key = KeyHash::of(if in_line { record.line_key() } else { &record.key });
            self.waits.push_back(WaitEvent::AttemptWon { op, key });
        }
        self.note_attempt(id, None);
        self.records.get_mut(id).arm_deadline(id, &mut self.timers);
        if let Some(op) = op {
            self.ops.move_to(op, Stage::Granted { record: id });
        }
    }

    /// Hands the lock to the caller, who gave this data.
    pub(in crate::proto::locks) fn hand_out(
        &mut self,
        id: RecordId,
        data: u64,
        since: Instant,
        now: Instant,
    ) -> Lock {
        let record = self.records.get_mut(id);
        record.op = None;
        record.note_handed_out(now, self.updates.are_of_all(), data);
        self.cluster.stats_mut().handed_out(now.saturating_since(since));
        handle_of(id, record)
    }

    /// The attempt failed: ends its record, so that its keys are released, and opens the record of
    /// the next attempt, or ends the request.
    pub(in crate::proto::locks) fn on_attempt_lost(&mut self, id: RecordId, now: Instant) {
        let error = self.refusal(id, now);
        self.cluster.stats_mut().note_lost_attempt(&error);
        self.note_attempt(id, Some(&error));
        if self.keep_keys_after_refusal(id, &error, now) {
            return;
        }
        let record = self.records.get_mut(id);
        let op = record.op.take();
        let next = op.and_then(|op| self.next_attempt(id, op, &error, now));
        self.end(id, now);
        match (op, next) {
            // Reported after the releases are written, so that the questions of the next attempt
            // reach the nodes after them.
            (Some(op), Some(next)) => {
                self.waits.push_back(WaitEvent::AttemptLost { op, next, last: error });
            }
            (Some(op), None) => {
                let error = self.with_time_left(op, error, now);
                self.ops.move_to(op, Stage::Over(Err(error)));
            }
            (None, _) => {}
        }
    }

    /// Opens the record of the next attempt, which takes over the queue and the request of this
    /// one. Nothing if no attempt may follow.
    fn next_attempt(
        &mut self,
        id: RecordId,
        op: Op,
        error: &Error,
        now: Instant,
    ) -> Option<RecordId> {
        let request = self.ops.get_mut(op)?;
        let passing = matches!(error, Error::Contended(_) | Error::NoQuorum(_) | Error::Expired(_));
        if !passing || now >= request.give_up_at {
            return None;
        }
        // If the nodes refuse lines, or a quorum is lacking, the request does not join a line, but
        // asks again after pauses. So its token is not one for a line.
        let joins = request.joins && !matches!(error, Error::NoQuorum(_));
        let owner = request.owner;
        let token = self.random_token(joins, owner);
        let record = self.records.get(id);
        let (round, fenced) =
            (Round::acquire(self.cluster.ballot(), now, record.ttl), record.fenced);
        let next = self.records.open_again(id, token, round)?;
        if self.records.get(id).set().is_some() {
            let spare = self.cluster.spare_nodes();
            let blocking = self.records.get(id).set().map(|set| set.blocking_key(spare));
            let joins_for = blocking.filter(|_| joins);
            self.records.take_place_of_set(next, id, joins_for);
        } else {
            let hash = KeyHash::of(&self.records.get(next).key);
            self.records.unindex(id);
            self.records.index(next, hash);
        }
        let record = self.records.get_mut(id);
        let (tracked, queue) = (record.tracked, record.take_queue());
        let record = self.records.get_mut(next);
        (record.op, record.tracked, record.fenced) = (Some(op), tracked, fenced);
        record.set_queue(queue);
        Some(next)
    }

    /// The timer of a request came due: its pause is over, or the time that it may wait in a queue.
    pub(in crate::proto::locks) fn on_request_due(&mut self, op: Op, now: Instant) {
        match self.ops.get(op).map(|request| &request.stage) {
            Some(&Stage::Pausing { record, .. }) => self.on_pause_over(op, record, now),
            Some(Stage::Queued { .. } | Stage::Gathering { .. }) => {
                self.waits.push_back(WaitEvent::GiveUp { op });
            }
            other => unreachable!("{other:?} has no timer"),
        }
    }

    /// The pause before an attempt, or before a round of an extend, is over.
    fn on_pause_over(&mut self, op: Op, id: RecordId, now: Instant) {
        let give_up = self.ops.has_waited_enough(op, now);
        let record = self.records.get_mut(id);
        if record.phase == Phase::Asking && !give_up {
            self.waits.push_back(WaitEvent::PauseOver { op });
            return;
        }
        let last = self.ops.end_pause(op);
        if record.phase == Phase::Held && record.is_overdue(now) {
            self.lose(id, LostReason::Expired, now);
        } else if record.phase == Phase::Held {
            let ttl = record.ttl;
            self.begin_extend(id, ttl, now);
        } else if let Some(last) = last {
            record.op = None;
            let in_line = record.line().is_some();
            let last = if in_line { self.refusal_in_line(id, now) } else { last };
            let last = self.with_time_left(op, last, now);
            self.end(id, now);
            self.ops.move_to(op, Stage::Over(Err(last)));
        }
    }

    /// The error of an attempt that was not won.
    fn refusal(&self, id: RecordId, now: Instant) -> Error {
        let record = self.records.get(id);
        let asks = record.set().is_some_and(SetOfKeys::asks_after_line);
        if record.line().is_some() && record.phase == Phase::Asking && !asks {
            return self.refusal_in_line(id, now);
        }
        let tried = if record.taken_up().is_some() { Tried::Adopt } else { Tried::Acquire };
        let voted = record.round.refused(self.cluster.spare_nodes(), now >= record.deadline);
        let refusals = Refusals { may_lack: self.cluster.may_lack(), ..voted };
        let mut report = self.report(id, now);
        report.by_token = tried == Tried::Adopt;
        classify(tried, refusals).error(report)
    }
}
