//! The one way of an answer about a lock: it is taken off what is pending, a request that is still
//! wanted is repeated, and what is left is for the verb that was asked.
//!
//! The hazard is a repeat that follows a release: it could leave a key that no client releases. So
//! whether a request is still wanted is decided here, by the phase of the record and its round.

use crate::proto::error::NodeReply;
use crate::proto::locks::Locks;
use crate::proto::locks::encoding::{Question, phase_of};
use crate::proto::node_set::NodeId;
use crate::proto::quorum::Verdict;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::command::Form;
use crate::proto::wire::effect::Effect;

impl Locks {
    /// Gives an answer to the record it is about.
    #[inline]
    pub fn on_answer(&mut self, node: NodeId, ask: LockAsk, reply: NodeReply, now: Instant) {
        let record = self.records.get_mut(ask.record);
        if ask.kind.may_create() {
            record.on_answer(node, Effect::of(ask, reply), now);
            if ask.kind == Kind::Acquire && reply == NodeReply::Granted {
                // This proves nothing if it answers an earlier round of the attempt.
                record.prove_granted(node, ask);
            }
            if ask.sent.names.is_all_keys() {
                self.note_named(node, ask, reply);
            }
        } else {
            record.pending.on_release_over(node);
        }
        let failed = matches!(reply, NodeReply::Failed(_));
        let refused = failed && ask.is_refused_by_sha1(reply);
        match ask.kind {
            _ if refused && self.is_still_wanted(node, ask, now) => self.ask_again(node, ask, now),
            Kind::Acquire => self.on_grant(node, ask, reply, now),
            Kind::Release => self.on_release(node, ask, reply, now),
            Kind::Exists => self.on_exists(node, ask, reply),
            Kind::Extend => self.on_extend(node, ask, reply, now),
            Kind::Heal => self.on_heal(node, ask, reply),
            Kind::Adopt => self.on_adopt(node, ask, reply, now),
            // The node raised the counter, or does not have the key any more.
            Kind::WriteBack => self.cast_grant(node, ask, reply),
            Kind::Join => self.on_join(node, ask, reply, now),
            Kind::Claim => self.on_claim(node, ask, reply, now),
        }
        self.finish(ask.record);
    }

    /// Whether a request whose script the node did not run by its SHA1 is to be sent again.
    #[cold]
    fn is_still_wanted(&self, node: NodeId, ask: LockAsk, now: Instant) -> bool {
        let record = self.records.get(ask.record);
        let in_phase = record.phase == phase_of(ask.kind);
        let in_round = in_phase && record.round.number == ask.round;
        // The script would create a counter on a node that has just forgotten its counter.
        let may_count = !ask.sent.names.has_counters() || !record.uncounted.contains(node);
        let has_vote = may_count && (in_round || (in_phase && self.awaits_late_vote(ask)));
        match ask.kind {
            Kind::Release | Kind::Exists => true,
            // A waiter in line has no round.
            Kind::Join => in_phase,
            // An extend is repeated even after a majority agreed: this node's key has to be
            // extended, too, or healed.
            Kind::Extend => in_round && !record.is_overdue(now),
            Kind::Claim => {
                has_vote && record.op.is_some_and(|op| !self.ops.has_waited_enough(op, now))
            }
            // Heal and adopt are sent by their source from the start.
            Kind::Heal | Kind::Adopt => false,
            Kind::Acquire | Kind::WriteBack => {
                // A set that was refused keeps its round while it waits for the key in the way.
                let undecided = record.round.ballot().verdict() == Verdict::Undecided;
                has_vote && undecided && now < record.deadline
            }
        }
    }

    /// Sends a request again, by the source of its script.
    fn ask_again(&mut self, node: NodeId, ask: LockAsk, now: Instant) {
        let counts = ask.sent.names.has_counters();
        // A node that does not count for fences any more may keep its key, but create no counter.
        let drops_counter = ask.kind == Kind::Extend && self.cluster.refuses_fence(node).is_some();
        if counts && !drops_counter {
            self.ask_counting(node, ask.record, ask.kind, now);
        } else {
            // The node may have forgotten the script without counters, too.
            let question = Question { form: Form::Source, ..Question::of(ask.kind) };
            self.ask_as(node.into(), ask.record, question, now);
        }
    }
}
