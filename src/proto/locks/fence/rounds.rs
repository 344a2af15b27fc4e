//! The course of a fenced acquire: the votes, and the second round where they differ.
//!
//! Each node that counts for fences is asked by a script that grants and counts. If the votes of
//! the majority are equal, the lock has its number after one round trip. Otherwise the number is
//! written back to the nodes with a smaller vote, where the key still holds the token. The attempt
//! is won when a majority has the number, before the deadline.
//!
//! The hazard is a counter that is created in a node that may have forgotten it, or whose clock is
//! wrong: it could start below a number that was given before. Such a node is asked by a plain
//! `SET`, which touches no counter, and its grant does not count.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::locks::Locks;
use crate::proto::locks::encoding::Question;
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::round::course::Part;
use crate::proto::locks::round::state::Purpose;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::Ballot;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Kind, LockAsk};

impl Locks {
    /// Asks these nodes for the key of a fenced lock, or for all of its keys, and for their votes:
    /// by an acquire, or by a claim of what they handed over.
    pub(in crate::proto::locks) fn ask_for_votes(
        &mut self,
        id: RecordId,
        nodes: NodeSet,
        kind: Kind,
        now: Instant,
    ) {
        let max_ttl = self.cluster.settings().max_ttl;
        self.records.begin_fencing(id, max_ttl);
        let refuses = |&node: &NodeId| self.cluster.refuses_fence(node).is_some();
        let refusing: NodeSet = nodes.iter().filter(refuses).collect();
        self.records.get_mut(id).uncounted = refusing;
        if !refusing.is_empty() {
            self.ask_all(refusing, id, kind, now);
        }
        self.ask_all_counting(nodes.minus(refusing), id, kind, now);
    }

    /// Asks these nodes by a script that counts.
    fn ask_all_counting(&mut self, nodes: NodeSet, id: RecordId, kind: Kind, now: Instant) {
        nodes.iter().for_each(|node| self.ask_counting(node, id, kind, now));
    }

    /// Asks a node about a fenced lock. Its counter counts only from the floor of this node on.
    pub(in crate::proto::locks) fn ask_counting(
        &mut self,
        node: NodeId,
        id: RecordId,
        kind: Kind,
        now: Instant,
    ) {
        let floor = self.cluster.counter_floor(node);
        if let Some(fencing) = &mut self.records.get_mut(id).trouble_mut().fencing {
            fencing.set_floor(floor);
        }
        self.ask_as(node.into(), id, Question { counts: true, ..Question::of(kind) }, now);
    }

    /// Asks these nodes to extend the key of a fenced lock, and to raise their counters. A node
    /// that does not count for fences is asked to extend the key alone: it could create a counter
    /// from a wrong clock, or too early.
    pub(in crate::proto::locks) fn ask_to_extend_fenced(
        &mut self,
        id: RecordId,
        nodes: NodeSet,
        now: Instant,
    ) {
        let refuses = |&node: &NodeId| self.cluster.refuses_fence(node).is_some();
        let refusing: NodeSet = nodes.iter().filter(refuses).collect();
        if !refusing.is_empty() {
            self.ask_all(refusing, id, Kind::Extend, now);
        }
        self.ask_all_counting(nodes.minus(refusing), id, Kind::Extend, now);
    }

    /// Why the grant of a node does not count in the present round.
    pub(in crate::proto::locks) fn why_uncounted(&self, id: RecordId, node: NodeId) -> NodeError {
        let fenced = self.records.get(id).fencing().is_some();
        let refused = self.cluster.refuses_fence(node).filter(|_| fenced);
        refused.unwrap_or(NodeError::Quarantined)
    }

    /// A node answered whether it grants the keys, with its votes for their fencing numbers.
    pub(in crate::proto::locks) fn on_vote(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        let votes = self.cluster.votes(node);
        let fencing = &mut self.records.get_mut(ask.record).trouble_mut().fencing;
        let of_round = fencing.as_mut().filter(|fencing| fencing.round() == ask.round);
        let granted = reply == NodeReply::Granted;
        let is_odd = granted && of_round.is_some_and(|fencing| !fencing.put(node, votes));
        let reply = if is_odd { NodeReply::Failed(NodeError::Garbage) } else { reply };
        if self.awaits_late_vote(ask) {
            self.on_late_vote(node, ask.record, reply, now);
        } else {
            self.cast_grant(node, ask, reply);
        }
    }

    /// Whether this question of the first round has a vote in the second round, which is in
    /// flight.
    pub(in crate::proto::locks) fn awaits_late_vote(&self, ask: LockAsk) -> bool {
        let record = self.records.get(ask.record);
        let votes = ask.asks_for_votes()
            && record.fencing().is_some_and(|fencing| fencing.round() == ask.round);
        votes && record.phase == Phase::Asking && record.round.purpose == Purpose::WriteBack
    }

    /// A node voted in the first round after a majority had.
    fn on_late_vote(&mut self, node: NodeId, id: RecordId, reply: NodeReply, now: Instant) {
        let record = self.records.get(id);
        let undecided = record.round.ballot().undecided().contains(node);
        let uncounted = record.uncounted.contains(node);
        let stored = record.fencing().is_some_and(|fencing| fencing.is_stored_at(node));
        let reply = match reply {
            NodeReply::Granted if uncounted => NodeReply::Failed(self.why_uncounted(id, node)),
            NodeReply::Granted if undecided && !stored => {
                if let Err(cause) = self.cluster.may_ask(node) {
                    NodeReply::Failed(cause)
                } else {
                    self.ask_counting(node, id, Kind::WriteBack, now);
                    return;
                }
            }
            reply => reply,
        };
        self.cast(id, node, reply);
    }

    /// A majority granted and voted. If its votes are equal, the lock is won; otherwise the number
    /// is written back first.
    pub(in crate::proto::locks) fn on_votes_in(&mut self, id: RecordId, now: Instant) {
        let needed = self.cluster.quorum();
        let record = self.records.get_mut(id);
        let grants = record.round.ballot().grants();
        let Some(fencing) = &mut record.trouble_mut().fencing else {
            unreachable!("a fenced round begins with its votes")
        };
        let is_known = fencing.count(grants, needed);
        let stored: NodeSet = grants.iter().filter(|&node| fencing.is_stored_at(node)).collect();
        if !is_known {
            self.on_attempt_lost(id, now);
        } else if stored.len() >= needed {
            self.cluster.stats_mut().fenced += 1;
            self.begin_hold(id);
        } else {
            self.cluster.stats_mut().fenced += 1;
            self.cluster.stats_mut().written_back += 1;
            self.write_back(id, stored, now);
        }
    }

    /// Begins the second round. `stored` are the nodes whose counters are at the number already.
    /// Nodes that have not voted yet may still do so.
    fn write_back(&mut self, id: RecordId, stored: NodeSet, now: Instant) {
        let ballot = Ballot::of_majority(self.cluster.size());
        let record = self.records.get_mut(id);
        let (before, ttl) = (record.round, record.round.ttl);
        // The start stays that of the attempt: the deadline counts from it.
        record.round.follow(Purpose::WriteBack, ballot, before.start, ttl);
        let left = record.deadline.saturating_since(now);
        let length = self.cluster.settings().node_timeout.min(left);
        let (granted, undecided) = (before.ballot().grants(), before.ballot().undecided());
        let part_of = |locks: &mut Locks, node| {
            let uncounted = locks.records.get(id).uncounted.contains(node);
            if stored.contains(node) {
                Part::Votes(NodeReply::Granted)
            } else if granted.contains(node) {
                Part::Asked
            } else if undecided.contains(node) && uncounted {
                Part::Votes(NodeReply::Failed(locks.why_uncounted(id, node)))
            } else {
                Part::Votes(before.reply_of(node))
            }
        };
        let ask = |locks: &mut Locks, nodes| {
            locks.ask_all_counting(nodes, id, Kind::WriteBack, now);
        };
        let nodes = self.cluster.all_nodes();
        self.begin_round(id, (nodes, length), part_of, ask, now);
    }
}
