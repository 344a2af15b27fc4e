//! The course of a fenced acquire: the nodes vote for the fencing number. If their votes differ, a
//! second round follows.
//!
//! The client asks by a script that grants the key and raises the counter, or by a transaction if
//! it counted the key lately, so that the counter is probably there. If the votes of the
//! majority are equal, the lock has its number after one round trip. Otherwise the client writes
//! the number back to the nodes with a smaller vote, where the key still holds the token. The
//! attempt is won when a majority has the number before the deadline.
//!
//! The hazard is a counter that starts below a number that was given before: on a node that may
//! have forgotten its counters, or whose clock is wrong. The counters of such a node do not count:
//! the client asks it by a plain `SET`, which touches no counter, and its grant does not count.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::key::KeyHash;
use crate::proto::locks::Locks;
use crate::proto::locks::encoding::Question;
use crate::proto::locks::fence::number::counters_live;
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::round::course::Role;
use crate::proto::locks::round::state::Purpose;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Kind, LockAsk};
use crate::proto::wire::command::Form;

impl Locks {
    /// Asks these nodes for the keys of a fenced lock, and for their votes: by an acquire, or by a
    /// claim of a key that they handed over.
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
        let counting = nodes.minus(refusing);
        let at_once = if kind == Kind::Acquire {
            self.transacting(id, counting, now)
        } else {
            NodeSet::EMPTY
        };
        if !at_once.is_empty() {
            let form = Form::Transaction;
            let question = Question { with_counters: true, form, ..Question::of(kind) };
            self.ask_as(at_once, id, question, now);
        }
        self.ask_all_with_counters(counting.minus(at_once), id, kind, now);
    }

    /// Those of the nodes that are asked by a transaction in place of the script: none if the
    /// counter of the key may not be there, or if the lock has several keys.
    fn transacting(&self, id: RecordId, nodes: NodeSet, now: Instant) -> NodeSet {
        let record = self.records.get(id);
        let lives = counters_live(self.cluster.settings().max_ttl);
        let has = record.set().is_none() && self.counted.has(KeyHash::of(&record.key), lives, now);
        nodes.iter().filter(|&node| has && self.cluster.takes_transactions(node)).collect()
    }

    /// A node answered a transaction. Returns the answer, or an error if the vote comes from a
    /// counter that was not there or does not count: it has to be above the floor.
    pub(in crate::proto::locks) fn judge_transaction(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
    ) -> NodeReply {
        if reply == NodeReply::Granted {
            let floor = self.cluster.counter_floor(node);
            if self.cluster.votes(node).iter().all(|&vote| vote > floor) {
                return reply;
            }
        }
        // If others want the key, an attempt that is denied had better not count.
        self.counted.forget(KeyHash::of(&self.records.get(ask.record).key));
        if reply == NodeReply::Granted { NodeReply::Failed(NodeError::Garbage) } else { reply }
    }

    /// Asks these nodes by a script with counters.
    fn ask_all_with_counters(&mut self, nodes: NodeSet, id: RecordId, kind: Kind, now: Instant) {
        nodes.iter().for_each(|node| self.ask_with_counters(node, id, kind, now));
    }

    /// Asks a node about a fenced lock, by a script with counters. There a counter below the floor
    /// of this node counts as absent.
    pub(in crate::proto::locks) fn ask_with_counters(
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
        self.ask_as(node.into(), id, Question { with_counters: true, ..Question::of(kind) }, now);
    }

    /// Asks these nodes to extend the keys of a fenced lock, and to raise their counters to its
    /// numbers. A node whose counters do not count is asked to extend only the keys, because it
    /// could start a new counter too low.
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
        self.ask_all_with_counters(nodes.minus(refusing), id, Kind::Extend, now);
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
        let is_late = self.awaits_late_vote(ask);
        let votes = self.cluster.votes(node);
        let fencing = &mut self.records.get_mut(ask.record).trouble_mut().fencing;
        let of_round = fencing.as_mut().filter(|fencing| is_late || fencing.round() == ask.round);
        let granted = reply == NodeReply::Granted;
        let is_malformed = granted && of_round.is_some_and(|fencing| !fencing.put(node, votes));
        let reply = if is_malformed { NodeReply::Failed(NodeError::Garbage) } else { reply };
        if is_late {
            self.on_late_vote(node, ask.record, reply, now);
        } else {
            self.cast_grant(node, ask, reply);
        }
    }

    /// Whether the second round is in flight, and the answer to this question of the first round
    /// may still become a vote in it. If such a question was repeated since, it has the number of
    /// the second round.
    pub(in crate::proto::locks) fn awaits_late_vote(&self, ask: LockAsk) -> bool {
        let record = self.records.get(ask.record);
        let rounds = record.fencing().map(|fencing| [fencing.round(), record.round.number]);
        let votes = ask.asks_for_votes() && rounds.is_some_and(|it| it.contains(&ask.round));
        votes && record.phase == Phase::Asking && record.round.purpose == Purpose::WriteBack
    }

    /// A node answered the first round when the second was already in flight.
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
                    self.ask_with_counters(node, id, Kind::WriteBack, now);
                    return;
                }
            }
            reply => reply,
        };
        self.cast(id, node, reply);
    }

    /// A majority granted and voted. If enough of them have stored the number, the lock is won.
    /// Otherwise the number is written back first.
    pub(in crate::proto::locks) fn on_votes_in(&mut self, id: RecordId, now: Instant) {
        let needed = self.cluster.quorum();
        let record = self.records.get_mut(id);
        let grants = record.round.ballot().grants();
        let Some(fencing) = &mut record.trouble_mut().fencing else {
            unreachable!("a fenced round begins with its votes")
        };
        let is_known = fencing.count(grants, needed);
        let is_single = fencing.count_keys() == 1;
        let stored: NodeSet = grants.iter().filter(|&node| fencing.is_stored_at(node)).collect();
        if is_known && is_single {
            self.counted.note(KeyHash::of(&self.records.get(id).key), now);
        }
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

    /// Begins the second round. The nodes in `stored` have the number already, so they grant
    /// without a question. Nodes that have not answered the first round may still vote.
    fn write_back(&mut self, id: RecordId, stored: NodeSet, now: Instant) {
        let ballot = self.cluster.ballot();
        let record = self.records.get_mut(id);
        let (before, ttl) = (record.round, record.round.ttl);
        // The round keeps the start of the attempt, because the deadline counts from there.
        record.round.follow(Purpose::WriteBack, ballot, before.start, ttl);
        let left = record.deadline.saturating_since(now);
        let length = self.cluster.settings().node_timeout.min(left);
        let (granted, undecided) = (before.ballot().grants(), before.ballot().undecided());
        let role_of = |locks: &mut Locks, node| {
            let uncounted = locks.records.get(id).uncounted.contains(node);
            if stored.contains(node) {
                Role::Votes(NodeReply::Granted)
            } else if granted.contains(node) {
                Role::Asked
            } else if undecided.contains(node) && uncounted {
                Role::Votes(NodeReply::Failed(locks.why_uncounted(id, node)))
            } else {
                Role::Votes(before.reply_of(node))
            }
        };
        let ask = |locks: &mut Locks, nodes| {
            locks.ask_all_with_counters(nodes, id, Kind::WriteBack, now);
        };
        let nodes = self.cluster.voters();
        self.begin_round(id, (nodes, length), role_of, ask, now);
    }
}
