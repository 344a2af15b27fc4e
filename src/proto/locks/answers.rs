//! What every answer about a lock goes through: it updates what is pending at the node, then a
//! request whose script the node did not know, or whose transaction gave no vote, is sent again if
//! it is still wanted, and any other answer goes to the handler of its verb.
//!
//! The hazard is a request that is sent again after the release of its lock: it could leave a key
//! that no client releases. So `is_still_wanted` alone decides about that, by the phase and the
//! round of the record.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::lock::{LONGEST_TOKEN, LockToken};
use crate::proto::locks::Locks;
use crate::proto::locks::encoding::{Question, phase_of};
use crate::proto::node_set::NodeId;
use crate::proto::quorum::Verdict;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Kind, LockAsk, Names};
use crate::proto::wire::command::Form;
use crate::proto::wire::effect::Effect;

impl Locks {
    /// As [`on_answer`](Locks::on_answer), for an acquire that a node granted. Nearly every such
    /// answer takes the shortcut here, with the record at hand.
    #[inline(always)]
    pub fn on_acquire_granted(&mut self, node: NodeId, ask: LockAsk, now: Instant) {
        let (record, reply) = (self.records.get_mut(ask.record), NodeReply::Granted);
        if ask.sent.names != Names::Key || record.uncounted.contains(node) {
            return self.on_answer(node, ask, reply, now);
        }
        record.on_answer(node, Effect::Written, now);
        record.prove_granted(node, ask);
        if record.awaits_grant(ask) {
            record.cast((node, reply), ask.record, &mut self.verdicts);
        }
        if record.is_finished() {
            self.finish(ask.record);
        }
    }

    /// As [`on_answer`](Locks::on_answer), for a release that deleted the key. Nearly every such
    /// answer takes the shortcut here, with the record at hand.
    #[inline(always)]
    pub fn on_release_granted(&mut self, node: NodeId, ask: LockAsk, now: Instant) {
        let is_watched = self.is_any_key_watched();
        let (record, reply) = (self.records.get_mut(ask.record), NodeReply::Granted);
        let is_late = record.pending.unproven().contains(node);
        if is_late || is_watched {
            return self.on_answer(node, ask, reply, now);
        }
        record.pending.on_release_over(node);
        // No other release has to follow, because no request of a lost connection is late.
        record.on_released(node, now);
        self.pending_releases[node.index()].on_acknowledged();
        if record.round.number == ask.round {
            record.cast((node, reply), ask.record, &mut self.verdicts);
        }
        if record.is_finished() {
            self.finish(ask.record);
        }
    }

    /// Takes the answer of a node to a question about a record.
    #[inline(never)]
    pub fn on_answer(&mut self, node: NodeId, ask: LockAsk, reply: NodeReply, now: Instant) {
        let compared = reply == NodeReply::Held && ask.is_replacement();
        let reply = if compared { self.judge_replacement(node, ask) } else { reply };
        let record = self.records.get_mut(ask.record);
        if ask.kind.may_create() {
            record.on_answer(node, Effect::of(ask, reply), now);
            if ask.kind == Kind::Acquire && reply == NodeReply::Granted {
                // `prove_granted` ignores the answer if it is to an earlier round of the attempt.
                record.prove_granted(node, ask);
            }
            if ask.sent.names.is_all_keys() {
                self.note_named(node, ask, reply);
            }
        } else {
            record.pending.on_release_over(node);
        }
        let by_transaction = ask.is_transaction();
        let reply = if by_transaction { self.judge_transaction(node, ask, reply) } else { reply };
        let failed = matches!(reply, NodeReply::Failed(_));
        let refused = failed
            && (by_transaction || ask.is_refused_by_sha1(reply) || self.lacks_scripts(node, ask));
        if refused && self.is_still_wanted(node, ask, now) {
            self.ask_again(node, ask, now);
        } else {
            self.pass_answer_on(node, ask, reply, now);
        }
        self.finish(ask.record);
    }

    /// Passes an answer on to the handler of its verb.
    fn pass_answer_on(&mut self, node: NodeId, ask: LockAsk, reply: NodeReply, now: Instant) {
        match ask.kind {
            Kind::Acquire => self.on_grant(node, ask, reply, now),
            Kind::Release => self.on_release(node, ask, reply, now),
            Kind::Exists => self.on_exists(node, ask, reply),
            Kind::Extend => self.on_extend(node, ask, reply, now),
            Kind::Heal => self.on_heal(node, ask, reply, now),
            Kind::Adopt => self.on_adopt(node, ask, reply, now),
            // A grant says that the node raised the counter, a refusal that it has not the key any
            // more.
            Kind::WriteBack => self.cast_grant(node, ask, reply),
            Kind::Join => self.on_join(node, ask, reply, now),
            Kind::Claim => self.on_claim(node, ask, reply, now),
        }
    }

    /// What the value that a key had before `SET` with `IFEQ` says.
    #[cold]
    fn judge_replacement(&self, node: NodeId, ask: LockAsk) -> NodeReply {
        let (record, before) = (self.records.get(ask.record), self.cluster.value_before(node));
        let is = |token: Option<&LockToken>| {
            token.is_some_and(|token| token.write_to(&mut [0; LONGEST_TOKEN]) == before)
        };
        match ask.kind {
            Kind::Adopt if is(record.taken_up()) => NodeReply::Granted,
            // An earlier request of this adopt gave the key its ttl, so the key may end early.
            Kind::Adopt if is(Some(&record.token)) => NodeReply::Failed(NodeError::Other),
            Kind::Extend | Kind::Claim if is(Some(&record.token)) => NodeReply::Granted,
            _ => NodeReply::Held,
        }
    }

    /// Whether the node refused a script, and has a command of its own in its place.
    #[cold]
    fn lacks_scripts(&self, node: NodeId, ask: LockAsk) -> bool {
        let by_source = ask.sent.form == Some(Form::Source);
        let question = Question { form: Form::Source, ..Question::of(ask.kind) };
        let has_command = question.has_command(ask.sent.names, self.records.get(ask.record));
        by_source && has_command && self.cluster.in_place_of_scripts(node).is_some()
    }

    /// Whether to send a request again whose script the node could not find by its SHA1, or whose
    /// transaction failed.
    #[cold]
    fn is_still_wanted(&self, node: NodeId, ask: LockAsk, now: Instant) -> bool {
        let record = self.records.get(ask.record);
        let in_phase = record.phase == phase_of(ask.kind);
        let in_round = in_phase && record.round.number == ask.round;
        // If the node has just forgotten its counters, the script would create one there.
        let may_count = !ask.sent.names.has_counters() || !record.uncounted.contains(node);
        let has_vote = may_count && (in_round || (in_phase && self.awaits_late_vote(ask)));
        match ask.kind {
            Kind::Release | Kind::Exists => true,
            // A waiter in line has no round.
            Kind::Join => in_phase,
            // An extend is sent again even after a majority agreed: the key on this node has to be
            // extended, too, or healed.
            Kind::Extend => in_round && !record.is_overdue(now),
            Kind::Claim => {
                has_vote && record.op.is_some_and(|op| !self.ops.has_waited_enough(op, now))
            }
            // A heal and an adopt always go by their source, so no node lacks their script.
            Kind::Heal | Kind::Adopt => false,
            Kind::Acquire | Kind::WriteBack => {
                // The round of a set stays the present one after its refusal, while the set waits
                // in line: so the verdict is checked, too.
                let undecided = record.round.ballot().verdict() == Verdict::Undecided;
                has_vote && undecided && now < record.deadline
            }
        }
    }

    /// Sends a request again, by the source of its script, or by the script in place of the
    /// transaction.
    fn ask_again(&mut self, node: NodeId, ask: LockAsk, now: Instant) {
        let counts = ask.sent.names.has_counters();
        // The counters of this node are not used any more. It is still asked to extend the key, but
        // without the script that could create a counter.
        let drops_counter = ask.kind == Kind::Extend && self.cluster.refuses_fence(node).is_some();
        if counts && !drops_counter {
            self.ask_with_counters(node, ask.record, ask.kind, now);
        } else {
            // By its source, because the node may have forgotten the script without counters, too.
            let question = Question { form: Form::Source, ..Question::of(ask.kind) };
            self.ask_as(node.into(), ask.record, question, now);
        }
    }
}
