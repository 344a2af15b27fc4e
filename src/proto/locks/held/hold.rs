//! A lock that is held: its extends, its deadline, its loss and its release.

use std::time::Duration;

use crate::proto::error::{Busy, ConfigError, Error, LostReason, NodeError, NodeReply};
use crate::proto::ids::{Op, RecordId};
use crate::proto::keys::KeysRef;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::held::updates::PendingUpdate;
use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::locks::renew::schedule::LOSS_BEFORE;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::round::course::Role;
use crate::proto::locks::round::failure::{Failure, Refusals, Tried, classify};
use crate::proto::locks::round::state::Purpose;
use crate::proto::locks::round::state::{ReleaseOutcome, Round};
use crate::proto::locks::{Due, Locks, busy, handle_of};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::Ballot;
use crate::proto::time::{Instant, InvalidTtl, Ttl};
use crate::proto::timers::Timers;
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::command::Form;

impl Locks {
    /// The deadline of the lock; `None` if the lock is over.
    pub fn deadline(&self, lock: &Lock) -> Option<Instant> {
        let record = self.records.get(self.records.find(lock)?);
        (record.phase == Phase::Held).then_some(record.deadline)
    }

    /// The key of a lock whose record is open.
    pub fn key_of(&self, lock: &Lock) -> Option<&[u8]> {
        Some(self.records.get(self.records.find(lock)?).first_key())
    }

    /// The time until the deadline of the lock; zero if the lock is over.
    pub fn remaining(&self, lock: &Lock, now: Instant) -> Duration {
        self.deadline(lock).map_or(Duration::ZERO, |deadline| deadline.saturating_since(now))
    }

    /// The nodes that are known to hold the key for this lock, and whose grant counts: a majority
    /// when the lock is handed out, and more when further nodes answer.
    pub fn holders(&self, lock: &Lock) -> NodeSet {
        let Some(id) = self.records.find(lock) else { return NodeSet::EMPTY };
        let record = self.records.get(id);
        let unknown = record.pending.unproven().union(record.uncounted);
        let adopted = record.taken_up().is_some();
        let proven = if adopted { NodeSet::EMPTY } else { record.proof.nodes_until_deadline() };
        let counts = |node| self.cluster.is_trusted(node) || proven.contains(node);
        // A release is pending also where the token only stands in line. So of a lock that stood in
        // line only nodes with a proof count.
        let in_line = record.line().is_some();
        let unconfirmed = self.cluster.all_nodes().minus(record.proof.nodes());
        let unknown = if in_line { unknown.union(unconfirmed) } else { unknown };
        // The release of several keys is pending also where one of them is gone, so these nodes are
        // left out.
        let known = record.pending.release_pending().minus(unknown).minus(record.absent()).iter();
        known.filter(|&node| !record.pending.is_asked(node) && counts(node)).collect()
    }

    /// Extends a lock to at least `ttl` from now. The deadline of an auto-extended lock is never
    /// later than its bound.
    pub fn extend(
        &mut self,
        lock: &Lock,
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let ttl = Ttl::new(ttl, self.cluster.settings().max_ttl)?;
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        let Some(id) = id else {
            return Err(self.not_held(lock, &[], now));
        };
        if let Some(former) = self.records.get(id).op {
            if self.ops.get(former).is_some_and(|request| !request.abandoned) {
                return Err(busy(Busy::Lock));
            }
            self.cancel(former, now);
        }
        let record = self.records.get_mut(id);
        let op = self.ops.open(data, now, record.deadline, Stage::Running { record: id });
        record.op = Some(op);
        record.ttl = ttl;
        if ttl.deadline(now) > record.deadline {
            record.caller_ttl = ttl;
        }
        record.longest = record.longest.max(ttl);
        self.renewals.on_extend_by_caller(record);
        self.begin_extend(id, ttl, now);
        Ok(op)
    }

    /// Releases a lock.
    #[inline]
    pub fn release(&mut self, lock: Lock, data: u64, now: Instant) -> Op {
        let held = self.records.find(&lock).filter(|&n| self.records.get(n).phase == Phase::Held);
        let Some(id) = held else {
            self.give_up_lost(&lock, now);
            let expired = Outcome::Released(ReleaseOutcome::AlreadyExpired);
            return self.ops.open(data, now, now, Stage::Over(Ok(expired)));
        };
        self.end_extend(id, LostReason::Over, now);
        let electors = self.records.get(id).pending.release_pending();
        self.begin_release(id, electors, data, now)
    }

    /// Releases each of these keys on the nodes where it holds `token`, no matter which client
    /// acquired the lock: for a lock without a record here, and for shell scripts.
    pub fn release_token(
        &mut self,
        keys: KeysRef<'_>,
        token: LockToken,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        self.check_keys(keys)?;
        let round = Round::acquire(self.cluster.ballot(), now, self.longest_ttl()?);
        let id = self.records.open_keys(keys, token, round).ok_or(busy(Busy::Records))?;
        // A release becomes pending only for nodes that can be asked now. It need not be kept for
        // the others, because this client did not write the key there.
        let reachable = self.cluster.askable();
        let record = self.records.get_mut(id);
        let expires_at = record.gone_if_executed(now);
        record.pending.note_possible_key(reachable, expires_at);
        for hash in self.records.get(id).hashes() {
            // Another client may have held the lock for long, so this counts as a long hold.
            self.releases.note(hash, Duration::MAX, now);
        }
        let electors = self.cluster.voters();
        Ok(self.begin_release(id, electors, data, now))
    }

    /// Releases a lock, and reports no outcome. The release is sent by its source, because the
    /// client may not read the answer.
    #[inline]
    pub fn release_nowait(&mut self, lock: &Lock, now: Instant) {
        let held = self.records.find(lock).filter(|&n| self.records.get(n).phase == Phase::Held);
        if let Some(id) = held {
            self.end_extend(id, LostReason::Over, now);
            self.end_as(id, Form::Source, None, now);
        } else {
            self.give_up_lost(lock, now);
        }
    }

    /// The caller gives up a lock that is over: its loss is not reported any more. Releases that
    /// wait for its deadline are sent now, because no holder believes in the lock any more.
    fn give_up_lost(&mut self, lock: &Lock, now: Instant) {
        self.updates.forget_loss(lock);
        if let Some(id) = self.records.find(lock) {
            if self.records.get(id).waits_for_its_deadline() {
                self.end_as(id, Form::Source, None, now);
            }
        }
    }

    /// Begins a round that extends the lock.
    pub(in crate::proto::locks) fn begin_extend(&mut self, id: RecordId, ttl: Ttl, now: Instant) {
        let Some(ttl) = self.renewals.capped_ttl(self.records.get(id), ttl, now) else {
            // The time up to the bound of auto-extension is too short for a ttl.
            if let Some(op) = self.records.get_mut(id).op.take() {
                let error = InvalidTtl::TooShort { asked: ttl.duration() };
                self.ops.move_to(op, Stage::Over(Err(Error::Config(ConfigError::Ttl(error)))));
            }
            return;
        };
        let ballot = self.cluster.ballot();
        let record = self.records.get_mut(id);
        record.longest = record.longest.max(ttl);
        record.round.follow(Purpose::Extend, ballot, now, ttl);
        self.renewals.on_extend_begun(record);
        let role_of = |locks: &mut Locks, node| match locks.judge_before_extend(node, id, now) {
            NodeReply::Granted => Role::Asked,
            // The vote of the node is known. The node is asked all the same, so that it extends the
            // key if it has it, and to learn whether it can be healed.
            vote => Role::VotesAndIsAsked(vote),
        };
        let ask = |locks: &mut Locks, nodes| locks.ask_to_extend_keys(nodes, id, now);
        let (nodes, length) = (self.cluster.voters(), self.cluster.settings().node_timeout);
        self.begin_round(id, (nodes, length), role_of, ask, now);
    }

    pub(in crate::proto::locks) fn ask_to_extend_keys(
        &mut self,
        nodes: NodeSet,
        id: RecordId,
        now: Instant,
    ) {
        if self.records.get(id).fence().is_some() {
            self.ask_to_extend_fenced(id, nodes, now);
        } else {
            self.ask_all(nodes, id, Kind::Extend, now);
        }
    }

    /// A node answered an extend.
    pub(in crate::proto::locks) fn on_extend(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        let trusted = self.cluster.is_trusted(node);
        // This has to be computed first, because `note_absent` below ends the proof that the node
        // had the key. A node that had the key and lost it is not new.
        let lacks = matches!(reply, NodeReply::Held | NodeReply::Absent);
        let is_new = lacks && self.is_new_to(node, ask.record);
        let record = self.records.get_mut(ask.record);
        // `SET` with `IFEQ` gives the key a new expiry. A request of a lost connection that the
        // node executes after this one may give it an earlier one.
        let may_shorten = ask.is_replacement() && record.pending.unproven().contains(node);
        let reply = match reply {
            NodeReply::Granted if may_shorten => NodeReply::Failed(NodeError::Lost),
            reply => reply,
        };
        let current = record.phase == Phase::Held && record.round.number == ask.round;
        if lacks {
            record.note_absent(node, reply, is_new);
        }
        let granted = reply == NodeReply::Granted;
        let proven = record.is_proven(node, now);
        let uncounted = granted && !proven && !trusted;
        if granted && (trusted || proven) {
            // The key is this client's own. It does not stand in the place of a forgotten key:
            // either the node is not in quarantine, or the key is older than the quarantine.
            record.prove(node, ask);
        }
        let was_won = record.round.is_won();
        // A node that was added to the list gets the key first, and votes after that.
        if current && is_new && reply == NodeReply::Absent {
            self.heal_at(node.into(), ask.record, now);
        }
        let gone = self.absent_voters(self.records.get(ask.record)).len();
        let joins = current && is_new && self.records.get(ask.record).healing().contains(node);
        if current && !joins {
            let reply = if uncounted { NodeReply::Failed(NodeError::Quarantined) } else { reply };
            self.cast(ask.record, node, reply);
        }
        if self.is_held(ask.record) {
            if gone > self.cluster.spare_nodes() {
                self.lose(ask.record, LostReason::Gone, now);
            } else if current && was_won {
                // The round was won before this answer, and `on_extend_won` healed the nodes that
                // had answered by then.
                self.heal(ask.record, now);
            }
        }
    }

    pub(in crate::proto::locks) fn on_extend_won(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get_mut(id);
        if now >= record.deadline {
            // The majority granted the extend after the deadline, from which on no holder may
            // believe in the lock. So the lock is lost all the same.
            self.lose(id, LostReason::Expired, now);
            return;
        }
        let (start, ttl) = (record.round.start, record.round.ttl);
        let agreed = self.renewals.capped_deadline(record, ttl.deadline(start));
        let before = record.deadline;
        let deadline = before.max(agreed);
        let moved = deadline > before;
        if moved {
            let renewed = record.round.ballot().grants();
            record.proof.on_later_deadline(renewed, before, deadline, now);
            record.deadline = deadline;
        }
        if let Some(op) = record.op.take() {
            let lock = handle_of(id, record);
            self.cluster.stats_mut().extended += 1;
            self.ops.move_to(op, Stage::Extended { lock });
        }
        record.arm_deadline(id, &mut self.timers);
        if moved {
            self.updates.report(id, record, PendingUpdate::Extended);
        }
        self.heal(id, now);
        let record = self.records.get_mut(id);
        if self.renewals.on_extend_won(record, moved, now, &mut self.timers) {
            self.cluster.stats_mut().renewed += 1;
        }
    }

    /// The outcome of an extend that was won, at the moment when the caller fetches it: since the
    /// extend was won, the lock may have been lost or released.
    pub(in crate::proto::locks) fn extend_outcome(
        &self,
        lock: &Lock,
        now: Instant,
    ) -> Result<Outcome, Error> {
        match self.deadline(lock).filter(|&deadline| now < deadline) {
            Some(deadline) => Ok(Outcome::Extended { deadline }),
            None => Err(self.not_held(lock, &[], now)),
        }
    }

    /// No majority extended the lock. If too many nodes said that the key is not ours, the lock is
    /// lost. Otherwise the deadline stays as it is, and the nodes are asked again before it.
    pub(in crate::proto::locks) fn on_extend_lost(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        let voted = record.round.refused(self.cluster.spare_nodes(), now >= record.deadline);
        let refusals = Refusals { denied: self.absent_voters(record).len(), ..voted };
        match classify(Tried::Extend, refusals) {
            Failure::Lost(reason) => self.lose(id, reason, now),
            failure => {
                self.renewals.on_extend_lost(self.records.get(id), now);
                self.report_or_pause(id, failure, now);
            }
        }
    }

    /// After a round that was not won: if the error is permanent, ends the caller's extend with it.
    /// Otherwise starts the pause before the next round.
    fn report_or_pause(&mut self, id: RecordId, failure: Failure, now: Instant) {
        let Some(op) = self.records.get(id).op else { return };
        let last = failure.error(self.report(id, now));
        let record = self.records.get_mut(id);
        if !last.is_retryable() {
            record.op = None;
            self.ops.move_to(op, Stage::Over(Err(last)));
            return;
        }
        // A pause until the deadline is followed by no round, because then the lock is over.
        let pause = self.cluster.settings().extend_again_after();
        let at = now.saturating_add(pause).min(record.deadline);
        self.ops.pause(op, id, at, last);
    }

    /// The timer of the deadline came due: the lock is lost, or its releases are sent if its loss
    /// was reported before.
    pub(in crate::proto::locks) fn on_deadline(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get_mut(id);
        record.deadline_timer = None;
        if record.phase == Phase::Ending {
            // The loss was reported a little before the deadline, and the releases waited for it.
            let (pending, form) = (record.pending.release_pending(), self.default_form());
            self.send_releases(pending, id, form, now);
            self.finish(id);
            return;
        }
        let op = record.op;
        let stage = op.and_then(|op| self.ops.get_mut(op)).map(|request| &request.stage);
        if matches!(stage, Some(Stage::Granted { .. })) {
            self.on_attempt_lost(id, now);
        } else {
            self.lose(id, LostReason::Expired, now);
        }
    }

    /// The lock is lost: reports its loss, and sends its releases. If the deadline is near, the
    /// releases are sent at the deadline: until then a holder that has not read the report may
    /// believe in the lock.
    pub(in crate::proto::locks) fn lose(&mut self, id: RecordId, reason: LostReason, now: Instant) {
        self.end_extend(id, reason, now);
        let record = self.records.get(id);
        debug_assert_eq!(record.phase, Phase::Held);
        if record.update != PendingUpdate::Unreported {
            let error = self.lost(id, self.renewals.reason_of_loss(record, reason), now);
            self.updates.report_loss(record, error);
        }
        if self.end_hold(id, now) {
            self.cluster.stats_mut().lost += 1;
        }
        let deadline = self.records.get(id).deadline;
        let is_near = now < deadline && deadline.saturating_since(now) <= LOSS_BEFORE;
        self.end_as(id, self.default_form(), is_near.then_some(deadline), now);
    }

    /// The holder does not hold the lock any more: notes how long it did, and withdraws the updates
    /// of the lock. Returns whether the lock was handed out and held until now.
    pub(in crate::proto::locks) fn end_hold(&mut self, id: RecordId, now: Instant) -> bool {
        let record = self.records.get_mut(id);
        let Some(since) = record.end_hold() else { return false };
        let held = now.saturating_since(since);
        for hash in record.hashes() {
            self.releases.note(hash, held, now);
        }
        self.updates.withdraw(id, &mut self.records);
        self.cluster.stats_mut().note_hold(held);
        true
    }

    /// Ends the caller's extend, if one is in progress, because the lock is over.
    pub(in crate::proto::locks) fn end_extend(
        &mut self,
        id: RecordId,
        reason: LostReason,
        now: Instant,
    ) {
        let Some(op) = self.records.get_mut(id).op.take() else { return };
        let error = self.lost(id, reason, now);
        self.ops.move_to(op, Stage::Over(Err(error)));
    }

    /// Ends a record: its releases become due. They are sent immediately to nodes that can be
    /// asked.
    pub(in crate::proto::locks) fn end(&mut self, id: RecordId, now: Instant) {
        self.end_as(id, self.default_form(), None, now);
    }

    /// The form of a release: by its SHA1 if the client reads answers, else by its source.
    fn default_form(&self) -> Form {
        if self.cluster.settings().attended { Form::Sha } else { Form::Source }
    }

    /// Ends a record. Its releases are sent at `release_at`, or immediately.
    pub(in crate::proto::locks) fn end_as(
        &mut self,
        id: RecordId,
        form: Form,
        release_at: Option<Instant>,
        now: Instant,
    ) {
        self.renewals.end(self.records.get_mut(id), &mut self.timers);
        if self.end_hold(id, now) {
            // A lost lock is not counted here: `lose` ends the hold before it calls this.
            self.cluster.stats_mut().released += 1;
        }
        let record = self.records.get_mut(id);
        record.phase = Phase::Ending;
        self.timers.clear_in(&mut record.round_timer);
        self.timers.clear_in(&mut record.deadline_timer);
        let release_pending = record.pending.release_pending();
        if let Some(at) = release_at {
            let due = Due::Deadline { record: id };
            record.deadline_timer = Some(self.timers.set_at(at, due));
        }
        self.send_releases(release_pending, id, form, now);
        // The next request in the queue begins only now: its question follows the releases, in one
        // write with them.
        self.vacate(id);
        self.finish(id);
    }

    /// Starts the round of a release, in which `electors` vote. Releases go to the nodes that may
    /// hold the key.
    pub(in crate::proto::locks) fn begin_release(
        &mut self,
        id: RecordId,
        electors: NodeSet,
        data: u64,
        now: Instant,
    ) -> Op {
        let op = self.ops.open(data, now, now, Stage::Running { record: id });
        let ballot = Ballot::that_stays_open(electors, self.cluster.quorum());
        let record = self.records.get_mut(id);
        record.op = Some(op);
        let ttl = record.ttl;
        record.round.follow(Purpose::Release, ballot, now, ttl);
        self.end(id, now);
        let pending = &self.records.get(id).pending;
        let (length, due) = (self.cluster.settings().node_timeout, pending.release_pending());
        // If the next connection of a node is being opened, its release may still be answered in
        // time. So the node does not vote yet.
        let may_come = |&node: &NodeId| due.contains(node) && self.cluster.is_reconnecting(node);
        let unasked = electors.minus(pending.releasing());
        let nodes: NodeSet = unasked.iter().filter(|node| !may_come(node)).collect();
        let role_of = |locks: &mut Locks, node| {
            let cause = locks.cluster.may_ask(node).err().unwrap_or(NodeError::Full);
            Role::Votes(NodeReply::Failed(cause))
        };
        self.begin_round(id, (nodes, length), role_of, |_, _| {}, now);
        self.finish(id);
        op
    }

    /// The round of a release has a verdict: its outcome is known, or will not be known in time.
    pub(in crate::proto::locks) fn on_release_decided(&mut self, id: RecordId) {
        let record = self.records.get_mut(id);
        let released = record.round.released();
        if let Some(op) = record.op.take() {
            self.ops.move_to(op, Stage::Over(Ok(Outcome::Released(released))));
        }
        self.finish(id);
    }

    pub(in crate::proto::locks) fn is_held(&self, id: RecordId) -> bool {
        self.records.is_open(id) && self.records.get(id).phase == Phase::Held
    }
}

impl Record {
    /// Sets the timer of the deadline: for an auto-extended or watched lock a little before it, so
    /// that its holder is notified in time.
    pub(in crate::proto::locks) fn arm_deadline(&mut self, id: RecordId, timers: &mut Timers<Due>) {
        timers.clear_in(&mut self.deadline_timer);
        let start = self.round.start.min(self.deadline);
        let length = self.deadline.saturating_since(start).saturating_sub(self.lost_before());
        self.deadline_timer = Some(timers.set_after(start, length, Due::Deadline { record: id }));
    }
}
