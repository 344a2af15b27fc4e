//! The course of a round: it begins, votes are cast, and it ends at a verdict, or when it takes too
//! long. A verdict goes into a queue. One loop acts on it, after the answer or the change that led
//! to it was handled. The votes themselves are in `state.rs`.
//!
//! The hazard is a verdict that stays in the queue: the next answer would find a decided round on
//! which no code has acted. So the queue is emptied before the next answer or change is handled,
//! and before a call of the coordinator returns.

use std::time::Duration;

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::fifo::Fifo;
use crate::proto::ids::RecordId;
use crate::proto::locks::record::records::Record;
use crate::proto::locks::round::state::Purpose;
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::Verdict;
use crate::proto::time::Instant;
use crate::proto::wire::ask::LockAsk;

/// How a node takes part in a round that begins.
#[derive(Debug, Clone, Copy)]
pub(in crate::proto::locks) enum Role {
    /// The node is asked, and votes by its answer.
    Asked,
    /// This vote is cast when the round begins, and the node is asked, too: its answer is no vote,
    /// but shows what it holds.
    VotesAndIsAsked(NodeReply),
    /// This vote is cast when the round begins, and the node is not asked.
    Votes(NodeReply),
}

impl Locks {
    /// Begins the round that the caller has put into the record. `role_of` says how each of these
    /// nodes takes part; the others were asked before. A node that cannot be asked counts as failed
    /// immediately. If the votes so far decide the round, no node is asked, because grants of a
    /// lost attempt would only have to be released. Otherwise `ask` writes the request to the nodes
    /// that are asked, and the round ends after `length` at the latest.
    #[inline]
    pub(in crate::proto::locks) fn begin_round(
        &mut self,
        id: RecordId,
        (nodes, length): (NodeSet, Duration),
        role_of: impl Fn(&mut Locks, NodeId) -> Role,
        ask: impl FnOnce(&mut Locks, NodeSet),
        now: Instant,
    ) {
        self.cluster.check_lists(now);
        let full = self.records.get(id).pending.full();
        let mut asked = NodeSet::EMPTY;
        for node in nodes.iter() {
            let vote = match role_of(self, node) {
                Role::Votes(reply) => reply,
                role => match (role, self.why_not_asked(node, full)) {
                    (Role::VotesAndIsAsked(reply), None) => {
                        asked.insert(node);
                        reply
                    }
                    (_, None) => {
                        asked.insert(node);
                        continue;
                    }
                    // The node said before that the key is gone, so that stays its vote.
                    (Role::VotesAndIsAsked(NodeReply::Absent), Some(_)) => NodeReply::Absent,
                    (_, Some(cause)) => NodeReply::Failed(cause),
                },
            };
            self.records.get_mut(id).round.cast(node, vote);
        }
        let record = self.records.get_mut(id);
        record.round.end_if_hopeless();
        self.timers.clear_in(&mut record.round_timer);
        if record.round.ballot().verdict() != Verdict::Undecided {
            self.verdicts.push(id);
            return;
        }
        let due = Due::Round { record: id };
        record.round_timer = Some(self.timers.set_after(now, length, due));
        ask(self, asked);
    }

    /// Why the node cannot be asked now; nothing if it can. `full` are the nodes with as many
    /// unanswered requests of this record as are allowed.
    #[inline]
    fn why_not_asked(&mut self, node: NodeId, full: NodeSet) -> Option<NodeError> {
        let cause = match self.cluster.may_ask(node) {
            Err(cause) => cause,
            Ok(()) if full.contains(node) => NodeError::Silent,
            Ok(()) => return None,
        };
        self.cluster.stats_mut().failed(node, cause);
        Some(cause)
    }

    /// Casts the reply of a node as its vote in the record's round, if that is still undecided.
    #[inline]
    pub(in crate::proto::locks) fn cast(&mut self, id: RecordId, node: NodeId, reply: NodeReply) {
        self.records.get_mut(id).cast((node, reply), id, &mut self.verdicts);
    }

    /// Casts an answer as a vote, unless the record has begun another round since the question.
    #[inline]
    pub(in crate::proto::locks) fn cast_answer(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
    ) {
        let record = self.records.get_mut(ask.record);
        if record.round.number == ask.round {
            record.cast((node, reply), ask.record, &mut self.verdicts);
        }
    }

    /// Takes back the vote of a node that may have forgotten the key that it granted.
    pub(in crate::proto::locks) fn withdraw_vote(&mut self, id: RecordId, node: NodeId) {
        let round = &mut self.records.get_mut(id).round;
        let before = round.ballot().verdict();
        if before == Verdict::Undecided && round.withdraw(node) != before {
            self.verdicts.push(id);
        }
    }

    /// Acts on the verdicts in the queue, and on those that are added meanwhile.
    #[inline]
    pub fn act_on_verdicts(&mut self, now: Instant) {
        while let Some(id) = self.verdicts.pop() {
            self.on_verdict(id, now);
        }
    }

    /// Acts on the verdict of a record's round.
    fn on_verdict(&mut self, id: RecordId, now: Instant) {
        let Some(record) = self.records.get_open_mut(id) else { return };
        let verdict = record.round.ballot().verdict();
        debug_assert!(verdict != Verdict::Undecided, "no round begins before this is acted on");
        if !record.is_deciding() || verdict == Verdict::Undecided {
            // The round does not matter any more: for example, the answer that decided it also
            // showed that the lock is lost.
            return;
        }
        self.timers.clear_in(&mut record.round_timer);
        match (record.round.purpose, verdict) {
            (Purpose::Extend, Verdict::Won) => self.on_extend_won(id, now),
            (Purpose::Extend, _) => self.on_extend_lost(id, now),
            (Purpose::Release, _) => self.on_release_decided(id),
            (Purpose::Claim, Verdict::Won) => self.on_claim_won(id, now),
            (Purpose::Claim, _) => self.on_claim_lost(id, now),
            (Purpose::Acquire | Purpose::WriteBack, Verdict::Won) => self.on_attempt_won(id, now),
            (Purpose::Acquire | Purpose::WriteBack, _) => self.on_attempt_lost(id, now),
        }
    }

    /// The time of the round is over: a node that has not answered counts as silent.
    pub(in crate::proto::locks) fn on_round_timeout(&mut self, id: RecordId, now: Instant) {
        let timeout = self.cluster.settings().node_timeout;
        let record = self.records.get_mut(id);
        record.round_timer = None;
        // A request may have been written late, and so be in flight for less than a node timeout.
        // Then the round waits until a node timeout after that, but not beyond the deadline.
        let undecided = record.round.ballot().undecided();
        let written = undecided.iter().filter_map(|node| self.cluster.oldest_ask(node));
        let until = written.max().map_or(now, |written| written.saturating_add(timeout));
        let until = until.min(record.deadline);
        if until > now {
            record.round_timer = Some(self.timers.set_at(until, Due::Round { record: id }));
            return;
        }
        for node in record.round.ballot().undecided().iter() {
            self.cluster.stats_mut().failed(node, NodeError::Silent);
            // A node that is being asked `EXISTS` has acknowledged the release before: nothing of
            // ours is left there.
            let reply = if self.records.get(id).pending.is_clear(node) {
                NodeReply::Absent
            } else {
                NodeReply::Failed(NodeError::Silent)
            };
            self.cast(id, node, reply);
        }
    }
}

impl Record {
    /// Casts the reply of a node as its vote in the round, if that is still undecided. If the vote
    /// decides it, the record's `id` is put into the queue of `verdicts`.
    #[inline(always)]
    pub(in crate::proto::locks) fn cast(
        &mut self,
        (node, reply): (NodeId, NodeReply),
        id: RecordId,
        verdicts: &mut Fifo<RecordId>,
    ) {
        let open = self.round.ballot().verdict() == Verdict::Undecided && self.is_deciding();
        if open && self.round.cast(node, reply) != Verdict::Undecided {
            verdicts.push(id);
        }
    }
}
