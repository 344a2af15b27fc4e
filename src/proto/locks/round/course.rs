//! The rounds of the records: they begin, votes are cast, and a round that takes too long ends. A
//! verdict goes into a queue, and one loop acts on it after the answer or the change that led to
//! it. What a round is, and what its votes say, is in `state.rs`.
//!
//! The hazard is a verdict that is left in the queue: the next answer would find a round that is
//! decided and goes on. So every call of the coordinator empties it before it ends, and the next
//! answer or change is looked at only afterwards.

use std::time::Duration;

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::locks::round::state::Purpose;
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::Verdict;
use crate::proto::time::Instant;
use crate::proto::wire::ask::LockAsk;

/// The part of a node in a round that begins.
#[derive(Debug, Clone, Copy)]
pub(in crate::proto::locks) enum Part {
    /// The node is asked, and votes by its answer.
    Asked,
    /// This vote is cast at once, and the node is asked, too: its answer shows what it holds.
    AskedBesides(NodeReply),
    /// This vote is cast at once, and the node is not asked.
    Votes(NodeReply),
}

impl Locks {
    /// Begins the round that stands in the record. Each of these nodes has a part in it; the others
    /// were asked before. A node that cannot be asked votes at once. If that decides the round, no
    /// node is asked: the grants of a minority, say, would only have to be released. Otherwise
    /// `ask` writes the request to those that are asked, and the round ends after `length` at the
    /// latest.
    #[inline]
    pub(in crate::proto::locks) fn begin_round(
        &mut self,
        id: RecordId,
        (nodes, length): (NodeSet, Duration),
        part_of: impl Fn(&mut Locks, NodeId) -> Part,
        ask: impl FnOnce(&mut Locks, NodeSet),
        now: Instant,
    ) {
        let full = self.records.get(id).pending.full();
        let mut asked = NodeSet::EMPTY;
        for node in nodes.iter() {
            let vote = match part_of(self, node) {
                Part::Votes(reply) => reply,
                part => match (part, self.why_not_asked(node, full)) {
                    (Part::AskedBesides(reply), None) => {
                        asked.insert(node);
                        reply
                    }
                    (_, None) => {
                        asked.insert(node);
                        continue;
                    }
                    // It is known that the key is gone there, whatever the node would answer.
                    (Part::AskedBesides(NodeReply::Absent), Some(_)) => NodeReply::Absent,
                    (_, Some(cause)) => NodeReply::Failed(cause),
                },
            };
            self.records.get_mut(id).round.cast(node, vote);
        }
        let record = self.records.get_mut(id);
        self.timers.clear_in(&mut record.round_timer);
        if record.round.ballot().verdict() != Verdict::Undecided {
            self.verdicts.push_back(id);
            return;
        }
        let due = Due::Round { record: id };
        record.round_timer = Some(self.timers.set_after(now, length, due));
        ask(self, asked);
    }

    /// Why the node cannot be asked now; nothing if it can be. `full` are the nodes that have not
    /// answered as many requests as they may be sent.
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

    /// Casts what a node said in the record's round.
    #[inline]
    pub(in crate::proto::locks) fn cast(&mut self, id: RecordId, node: NodeId, reply: NodeReply) {
        let record = self.records.get_mut(id);
        let open = record.is_deciding() && record.round.ballot().verdict() == Verdict::Undecided;
        if open && record.round.cast(node, reply) != Verdict::Undecided {
            self.verdicts.push_back(id);
        }
    }

    /// Casts an answer in the round in which it was asked for, unless another one has begun since.
    #[inline]
    pub(in crate::proto::locks) fn cast_answer(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
    ) {
        if self.records.get(ask.record).round.number == ask.round {
            self.cast(ask.record, node, reply);
        }
    }

    /// Takes back the vote of a node that may have forgotten what it rests on.
    pub(in crate::proto::locks) fn withdraw_vote(&mut self, id: RecordId, node: NodeId) {
        let round = &mut self.records.get_mut(id).round;
        let before = round.ballot().verdict();
        if before == Verdict::Undecided && round.withdraw(node) != before {
            self.verdicts.push_back(id);
        }
    }

    /// Acts on the verdicts in the queue, and on those that follow from them.
    #[inline]
    pub fn act_on_verdicts(&mut self, now: Instant) {
        while let Some(id) = self.verdicts.pop_front() {
            self.on_verdict(id, now);
        }
    }

    /// Acts on a verdict: the one function that wins, retries, extends or ends.
    fn on_verdict(&mut self, id: RecordId, now: Instant) {
        let Some(record) = self.records.get_open_mut(id) else { return };
        let verdict = record.round.ballot().verdict();
        debug_assert!(verdict != Verdict::Undecided, "no round begins before this is acted on");
        if !record.is_deciding() || verdict == Verdict::Undecided {
            // For example, the same answer showed that the lock is lost.
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

    /// Ends the round: a node that has not answered by now is silent.
    pub(in crate::proto::locks) fn on_round_timeout(&mut self, id: RecordId, now: Instant) {
        let timeout = self.cluster.settings().node_timeout;
        let record = self.records.get_mut(id);
        record.round_timer = None;
        // Requests that were written late have been in flight for less than a node timeout: the
        // round waits for their answers, though not beyond the deadline.
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
            // For example, a node that is asked `EXISTS` has acknowledged the release.
            let reply = if self.records.get(id).pending.is_clear(node) {
                NodeReply::Absent
            } else {
                NodeReply::Failed(NodeError::Silent)
            };
            self.cast(id, node, reply);
        }
    }
}
