//! The rounds of the records: votes are cast, a verdict is acted on, and a round that takes too long
//! ends. What a round is, and what its votes say, is in `round.rs`.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::locks::round::Purpose;
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::NodeId;
use crate::proto::quorum::Verdict;
use crate::proto::time::Instant;

impl Locks {
    /// Casts what a node said in the record's round, and acts on the verdict if there is one.
    #[inline]
    pub(super) fn cast(&mut self, id: RecordId, node: NodeId, reply: NodeReply, now: Instant) {
        let record = self.records.get_mut(id);
        let open = record.is_deciding() && record.round.ballot().verdict() == Verdict::Undecided;
        if open && record.round.cast(node, reply) != Verdict::Undecided {
            self.settle(id, now);
        }
    }

    /// Acts on a verdict: the one function that hands out, retries, extends or ends.
    pub(super) fn settle(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get_mut(id);
        self.timers.clear_in(&mut record.round_timer);
        match (record.round.purpose, record.round.ballot().verdict()) {
            (Purpose::Extend, Verdict::Won) => self.extend_is_won(id, now),
            (Purpose::Extend, _) => self.extend_is_lost(id, now),
            (Purpose::Release, _) => self.release_is_over(id),
            (Purpose::Claim, Verdict::Won) => self.claim_is_won(id, now),
            (Purpose::Claim, _) => self.claim_is_lost(id, now),
            (Purpose::Fenced, Verdict::Won) => self.votes_are_in(id, now),
            (_, Verdict::Won) => self.attempt_is_won(id, now),
            (_, _) => self.attempt_is_lost(id, now),
        }
    }

    /// Ends the round: a node that has not answered by now is silent.
    pub(super) fn round_is_over(&mut self, id: RecordId, now: Instant) {
        let timeout = self.cluster.settings().node_timeout;
        let record = self.records.get_mut(id);
        record.round_timer = None;
        // Questions that were written late have not been unanswered for a node timeout: the round
        // waits for them, though not beyond the deadline.
        let undecided = record.round.ballot().undecided();
        let written = undecided.iter().filter_map(|node| self.cluster.oldest_ask(node));
        let until = written.max().map_or(now, |written| written.saturating_add(timeout));
        let until = until.min(record.deadline);
        if until > now {
            record.round_timer = Some(self.timers.set_at(until, Due::Round { record: id }));
            return;
        }
        for node in record.round.ballot().undecided().iter() {
            if self.records.is_open(id) {
                self.cluster.stats_mut().failed(node, NodeError::Silent);
                // A node that is asked `EXISTS` has acknowledged the release.
                let reply = if self.records.get(id).pending.is_asked_exists(node) {
                    NodeReply::Absent
                } else {
                    NodeReply::Failed(NodeError::Silent)
                };
                self.cast(id, node, reply, now);
            }
        }
    }
}
