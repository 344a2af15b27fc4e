//! Healing: after an extend that was won, a node that lost the key of the lock gets it again.
//!
//! The hazard is a heal that undoes an operator's deletion, or whose key takes the place of another
//! client's key that the node forgot. So a heal is sent only after a majority extended the lock,
//! and never where another token holds the key. A heal on a node in quarantine proves nothing.
//!
//! A node that was added to the list of masters after the lock was acquired never had the key. It
//! is healed in the extend that finds this, and then votes in that extend: else a lock whose other
//! nodes are away could not be extended. If another client has the key there, the lock is not lost
//! before its deadline: the nodes that had the key may still have it.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::ids::RecordId;
use crate::proto::locks::Locks;
use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::locks::round::state::Purpose;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Kind, LockAsk};

impl Locks {
    /// How a grant of the node will count in the extend that is about to begin. It counts as absent
    /// if the node answered absent before, and was not healed since. It counts as a failure if the
    /// node is in quarantine, and our key there may stand in the place of another client's.
    pub(in crate::proto::locks) fn judge_before_extend(
        &mut self,
        node: NodeId,
        id: RecordId,
        now: Instant,
    ) -> NodeReply {
        let trusted = self.cluster.is_trusted(node);
        self.records.get_mut(id).uncounted.remove(node);
        let record = self.records.get(id);
        if record.absent().contains(node) && !self.is_new_to(node, id) {
            return NodeReply::Absent;
        }
        let doubtful = !trusted && !record.is_proven(node, now);
        if doubtful {
            self.records.get_mut(id).uncounted.insert(node);
            return NodeReply::Failed(NodeError::Quarantined);
        }
        NodeReply::Granted
    }

    /// Whether the node was added to the list of masters after the lock was acquired, and is not
    /// known to have had its key since.
    pub(in crate::proto::locks) fn is_new_to(&self, node: NodeId, id: RecordId) -> bool {
        let record = self.records.get(id);
        self.cluster.joined_since(node, record.held_since()) && !record.proof.nodes().contains(node)
    }

    /// The nodes of the list of masters that lost the key.
    pub(in crate::proto::locks) fn absent_voters(&self, record: &Record) -> NodeSet {
        record.absent().common(self.cluster.voters())
    }

    /// Asks the nodes that lost the key of a held lock to set it again.
    pub(in crate::proto::locks) fn heal(&mut self, id: RecordId, now: Instant) {
        let absent = self.absent_voters(self.records.get(id));
        self.heal_at(absent, id, now);
    }

    /// Asks these nodes, which do not have the key of a held lock, to set it.
    pub(in crate::proto::locks) fn heal_at(&mut self, nodes: NodeSet, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        let absent = nodes.minus(record.taken()).minus(record.healing());
        if absent.is_empty() || record.ttl_left(now).is_none() {
            return;
        }
        for node in absent.iter() {
            if self.cluster.may_ask(node).is_err() || self.records.get(id).pending.is_full(node) {
                continue;
            }
            let record = self.records.get_mut(id);
            let trouble = record.trouble_mut();
            trouble.absent.remove(node);
            trouble.healing.insert(node);
            let fenced = self.records.get(id).fence().is_some();
            // A node whose counters do not count may not create one.
            let counts = fenced && self.cluster.refuses_fence(node).is_none();
            if counts {
                self.ask_with_counters(node, id, Kind::Heal, now);
            } else {
                self.ask(node, id, Kind::Heal, now);
            }
        }
    }

    /// A node answered a heal. If the heal failed, the key counts as absent as before. Otherwise
    /// the next extend shows whether the key is there.
    pub(in crate::proto::locks) fn on_heal(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        let trusted = self.cluster.is_trusted(node);
        let is_new = self.is_new_to(node, ask.record);
        let record = self.records.get_mut(ask.record);
        record.end_heal(node);
        if reply == NodeReply::Granted && trusted {
            record.prove_healed(node, ask);
        }
        match reply {
            NodeReply::Granted if record.phase == Phase::Held => {
                self.cluster.stats_mut().healed += 1
            }
            NodeReply::Failed(_) if !is_new => {
                record.trouble_mut().absent.insert(node);
            }
            _ => {}
        }
        let record = self.records.get(ask.record);
        let waits = record.phase == Phase::Held
            && record.round.purpose == Purpose::Extend
            && record.round.number == ask.round
            && record.round.ballot().undecided().contains(node);
        if !is_new || !waits {
            return;
        }
        // The extend waits for the vote of the node, which has the key until the deadline now.
        match reply {
            NodeReply::Granted => self.ask_to_extend_keys(node.into(), ask.record, now),
            reply => self.cast(ask.record, node, reply),
        }
    }
}
