//! Until when each node is known to have our key without a break, by what it answered.
//!
//! A yes proves the key until the moment at which its request was sent, plus the time that the
//! request gave the key, less drift: the node executed the request later, and keeps what it grants.
//! Until that moment no other client can have had the key there, whatever the node forgets
//! meanwhile. After it the key may have ended, another client may have had the node, and the node
//! may have forgotten that: then a copy of another node's data, or a late request of ours, stands
//! in the place of that client's key, and looks like ours.
//!
//! The hazard is a moment that is too late. So it is kept exactly where that costs nothing, and
//! else too early: the nodes whose proof reaches the deadline of the lock are one set, and all
//! other nodes with a proof share the earliest moment of theirs.

use std::time::Duration;

use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::locks::round::state::Purpose;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::wire::ask::LockAsk;

/// The end of a proof that is shorter than the lock is kept in steps of so long.
const STEP: Duration = Duration::from_millis(16);

/// The nodes that are known to have the key of one lock, and until when. Each lock has one, so it
/// is packed into ten bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(Rust, packed(2))]
pub struct Proof {
    /// Nodes that have the key until the deadline of the lock at least.
    whole: NodeSet,
    /// Nodes that have the key for a shorter time.
    part: NodeSet,
    /// How many steps before the deadline the proof of `part` ends, at most 17 minutes.
    part_ends_before: u16,
}

impl Proof {
    /// Whether the node has the key at `now`, for a lock with this deadline.
    #[inline]
    pub fn covers(&self, node: NodeId, deadline: Instant, now: Instant) -> bool {
        let (whole, part) = (self.whole.contains(node), self.part.contains(node));
        (whole && now < deadline) || (part && now < self.end_of_part(deadline))
    }

    /// The nodes that have the key until the deadline.
    #[inline]
    pub fn of_whole(&self) -> NodeSet {
        self.whole
    }

    /// The nodes that have the key for some time.
    pub fn nodes(&self) -> NodeSet {
        self.whole.union(self.part)
    }

    /// The node has the key until the deadline of the lock.
    #[inline]
    pub fn extend_to_deadline(&mut self, node: NodeId) {
        self.whole = self.whole.union(node.into());
        self.part = self.part.minus(node.into());
    }

    /// The node has the key until `until` at least, and the lock ends at `deadline`.
    #[inline]
    pub fn extend(&mut self, node: NodeId, until: Instant, deadline: Instant) {
        if until >= deadline {
            self.extend_to_deadline(node);
        } else if !self.covers_until(node, until, deadline) {
            self.add_to_part(node.into(), until, deadline);
        }
    }

    /// The node may lack the key, or has it in the place of another client's.
    pub fn end(&mut self, nodes: NodeSet) {
        self.whole = self.whole.minus(nodes);
        self.part = self.part.minus(nodes);
    }

    /// The lock ends at `deadline` instead of `before`, because `renewed` nodes have its key until
    /// then. A proof that has ended by `now` is left out.
    pub fn on_later_deadline(
        &mut self,
        renewed: NodeSet,
        before: Instant,
        deadline: Instant,
        now: Instant,
    ) {
        let end_of_part = self.end_of_part(before);
        let part = if now < end_of_part { self.part } else { NodeSet::EMPTY };
        let behind = self.whole.minus(renewed);
        *self = Proof { whole: self.whole.common(renewed), ..Proof::default() };
        self.add_to_part(part.minus(renewed), end_of_part, deadline);
        self.add_to_part(behind, before, deadline);
    }

    /// The lock ends at `deadline`, and each node that has the key has it until `until`.
    pub fn settle(&mut self, deadline: Instant, until: impl Fn(NodeId) -> Option<Instant>) {
        let nodes = self.nodes();
        *self = Proof::default();
        for node in nodes.iter() {
            if let Some(until) = until(node) {
                self.extend(node, until, deadline);
            }
        }
    }

    /// The words that a fingerprint needs: the two sets, and the end of the second.
    #[cfg(feature = "testing")]
    pub fn parts(&self, deadline: Instant) -> (NodeSet, NodeSet, Instant) {
        let end = if self.part.is_empty() { deadline } else { self.end_of_part(deadline) };
        (self.whole, self.part, end)
    }

    /// Whether `until`, which is before the deadline, adds nothing for this node.
    fn covers_until(&self, node: NodeId, until: Instant, deadline: Instant) -> bool {
        let in_part = self.part.contains(node);
        self.whole.contains(node) || (in_part && until <= self.end_of_part(deadline))
    }

    fn end_of_part(&self, deadline: Instant) -> Instant {
        deadline.saturating_sub(STEP * u32::from(self.part_ends_before))
    }

    /// All nodes whose proof ends before the deadline share the earliest end.
    fn add_to_part(&mut self, nodes: NodeSet, until: Instant, deadline: Instant) {
        let before = deadline.saturating_since(until).as_nanos().div_ceil(STEP.as_nanos());
        // A proof that ends so long before the deadline that it cannot be written is left out.
        let Ok(before) = u16::try_from(before) else { return };
        if nodes.is_empty() {
            return;
        }
        let alone = self.part.minus(nodes).is_empty();
        self.part_ends_before = if alone { before } else { before.max(self.part_ends_before) };
        self.part = self.part.union(nodes);
    }
}

impl Record {
    /// Whether a yes of the node proves anything: not while an ask of a lost connection may still
    /// create the key.
    #[inline]
    fn may_prove(&self, node: NodeId) -> bool {
        !self.pending.unproven().contains(node)
    }

    /// The node has our key until `until`: it said so while it was trusted, or while an earlier
    /// proof held.
    #[inline]
    fn prove_until(&mut self, node: NodeId, until: Instant) {
        if self.may_prove(node) {
            self.proof.extend(node, until, self.deadline);
        }
    }

    /// The node granted the key in the present attempt: the deadline counts from its start.
    #[inline]
    pub fn prove_granted(&mut self, node: NodeId, ask: LockAsk) {
        let counts = ask.round == self.round.number && !self.uncounted.contains(node);
        if counts && self.may_prove(node) {
            self.proof.extend_to_deadline(node);
        }
    }

    /// The node said yes to `ask`, which gave the key the ttl of the present round. What an earlier
    /// round gave is not known any more.
    #[inline]
    pub fn prove(&mut self, node: NodeId, ask: LockAsk) {
        if ask.round == self.round.number {
            self.prove_until(node, self.round.ttl.deadline(self.round.start));
        }
    }

    /// The node said yes to a heal of the present round. A heal gives the key what was left of the
    /// lock, in whole milliseconds.
    pub fn prove_healed(&mut self, node: NodeId, ask: LockAsk) {
        if ask.round == self.round.number {
            let uncertain = self.longest.drift().saturating_add(Duration::from_millis(1));
            self.prove_until(node, self.deadline.saturating_sub(uncertain));
        }
    }

    /// The key of a waiter in line is there, if no join is in flight: that may create the key, too.
    /// Until when is settled when the lock is won. Afterwards it is what the line says, also while
    /// the fencing number of a lock that was won is written back.
    pub fn prove_in_line(&mut self, node: NodeId) {
        // A line hands over one key of several.
        if self.pending.is_asked(node) || self.set().is_some() {
            return;
        }
        let in_line = self.line().and_then(|line| line.until_at(node));
        let is_settled = self.phase != Phase::Asking || self.round.purpose == Purpose::WriteBack;
        let until = if is_settled { in_line } else { Some(self.deadline) };
        if let Some(until) = until {
            self.prove_until(node, until);
        }
    }

    /// The lock was won in line: each node has its key for as long as the line says, or until the
    /// deadline if the lock was won by a claim that the node granted.
    pub fn settle_proof(&mut self, claimed: NodeSet) {
        let (mut proof, deadline) = (self.proof, self.deadline);
        proof.settle(deadline, |node| {
            let in_line = self.line().and_then(|line| line.until_at(node));
            if claimed.contains(node) { Some(deadline) } else { in_line }
        });
        self.proof = proof;
    }

    /// Whether our key on the node cannot stand in the place of another client's key, even if the
    /// node has forgotten keys. For a lock that another client handed on, it is not known how its
    /// keys were created.
    #[inline]
    pub fn is_proven(&self, node: NodeId, now: Instant) -> bool {
        self.taken_up().is_none() && self.proof.covers(node, self.deadline, now)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::proto::error::NodeReply;
    use crate::proto::lock::LockToken;
    use crate::proto::locks::line::votes::Line;
    use crate::proto::locks::record::records::Records;
    use crate::proto::locks::round::state::Round;
    use crate::proto::time::Ttl;
    use crate::proto::wire::line::Standing;

    /// A moment, in steps: so the end of each proof is exact.
    fn at(steps: u64) -> Instant {
        Instant::from_nanos(steps * STEP.as_nanos() as u64)
    }

    fn node(index: usize) -> NodeId {
        NodeId::new(index)
    }

    /// Until which step the proof of a node holds, for a lock that ends at `deadline`.
    fn end_of(proof: &Proof, index: usize, deadline: u64) -> u64 {
        let covered = |&step: &u64| proof.covers(node(index), at(deadline), at(step));
        (0..=deadline + 5).find(|step| !covered(step)).unwrap()
    }

    #[test]
    fn proof_ends_at_the_latest_moment_that_a_yes_gave() {
        let mut proof = Proof::default();
        assert_eq!(end_of(&proof, 0, 100), 0);
        proof.extend(node(0), at(60), at(100));
        assert_eq!(end_of(&proof, 0, 100), 60);
        proof.extend(node(0), at(40), at(100));
        assert_eq!(end_of(&proof, 0, 100), 60, "an earlier moment takes nothing away");
        proof.extend(node(0), at(80), at(100));
        assert_eq!(end_of(&proof, 0, 100), 80);
        proof.extend(node(0), at(120), at(100));
        assert_eq!(end_of(&proof, 0, 100), 100, "the lock is over then");
        proof.extend(node(0), at(80), at(100));
        assert_eq!(end_of(&proof, 0, 100), 100);
    }

    #[test]
    fn proof_of_a_node_that_did_not_renew_keeps_its_end() {
        let mut proof = Proof::default();
        (0..3).for_each(|index| proof.extend(node(index), at(100), at(100)));
        let renewed = [node(0), node(1)].into_iter().collect();
        proof.on_later_deadline(renewed, at(100), at(150), at(50));
        assert_eq!([0, 1, 2].map(|index| end_of(&proof, index, 150)), [150, 150, 100]);
        // Node 2 misses the next renewal, too, and node 1 with it.
        proof.on_later_deadline(node(0).into(), at(150), at(200), at(99));
        assert_eq!([0, 1, 2].map(|index| end_of(&proof, index, 200)), [200, 100, 100]);
        // A proof that is over is not carried on, and does not make others end early.
        proof.extend(node(1), at(200), at(200));
        proof.on_later_deadline(node(0).into(), at(200), at(250), at(100));
        assert_eq!([0, 1, 2].map(|index| end_of(&proof, index, 250)), [250, 200, 0]);
    }

    #[test]
    fn proof_is_never_longer_than_what_each_node_gave() {
        // Every sequence of four events on three nodes, beside a moment for each node.
        for seed in 0..7_u64.pow(4) {
            let (mut proof, mut deadline) = (Proof::default(), 100);
            let mut given = [0_u64; 3];
            for step in 0..4 {
                let (event, now) = (seed / 7_u64.pow(step) % 7, u64::from(step) * 30);
                match event {
                    0..=2 => {
                        let until = deadline - 20 + 20 * event;
                        proof.extend(node(event as usize), at(until), at(deadline));
                        given[event as usize] = given[event as usize].max(until);
                    }
                    3 => {
                        proof.end(node(1).into());
                        given[1] = 0;
                    }
                    _ => {
                        let answered = [[true, true, false], [false, true, true], [false; 3]];
                        let answered = answered[event as usize - 4];
                        let renewed = (0..3).filter(|&index| answered[index]).map(node).collect();
                        for index in (0..3).filter(|&index| answered[index]) {
                            // Only a node with a proof takes part in a renewal here.
                            given[index] = if given[index] == 0 { 0 } else { deadline + 50 };
                        }
                        proof.on_later_deadline(renewed, at(deadline), at(deadline + 50), at(now));
                        deadline += 50;
                    }
                }
                for (index, &until) in given.iter().enumerate() {
                    let end = end_of(&proof, index, deadline);
                    assert!(end <= until.min(deadline), "{seed}: node {index}, {end} > {until}");
                }
            }
        }
    }

    #[test]
    fn proof_ends_at_a_step_before_what_was_given() {
        let (mut proof, deadline) = (Proof::default(), at(100));
        let until = at(60).saturating_add(Duration::from_millis(1));
        proof.extend(node(0), until, deadline);
        assert_eq!(end_of(&proof, 0, 100), 60);
        let mut proof = Proof::default();
        let deadline = 100 + u64::from(u16::MAX);
        proof.extend(node(0), at(100), at(deadline));
        proof.extend(node(1), at(99), at(deadline));
        assert!(proof.covers(node(0), at(deadline), at(99)));
        assert!(!proof.covers(node(1), at(deadline), at(0)), "too long before the deadline");
    }

    #[test]
    fn settled_proof_has_each_nodes_own_end_or_an_earlier_one() {
        let mut proof = Proof::default();
        (0..4).for_each(|index| proof.extend(node(index), at(100), at(100)));
        let ends = [Some(90), Some(80), Some(70), None];
        proof.settle(at(80), |node| ends[node.index()].map(at));
        assert_eq!([0, 1, 2, 3].map(|index| end_of(&proof, index, 80)), [80, 80, 70, 0]);
        proof.end(node(0).into());
        assert_eq!(end_of(&proof, 0, 80), 0);
    }

    /// A record of an attempt, in which all of three nodes have said yes.
    fn proven(records: &mut Records) -> &mut Record {
        let ttl = Ttl::new(STEP * 100, Duration::from_secs(60)).unwrap();
        let token = LockToken::random(&mut StdRng::from_seed([1; 32]));
        let id = records.open(b"k", token, Round::acquire(3, at(0), ttl)).unwrap();
        let record = records.get_mut(id);
        record.trouble_mut().line = Some(Box::new(Line::new(3, (ttl, ttl), 0)));
        (0..3).for_each(|index| record.prove_in_line(node(index)));
        record
    }

    #[test]
    fn absence_ends_the_proof_also_if_the_node_hands_the_key_over_again() {
        let mut records = Records::new(1);
        let record = proven(&mut records);
        record.note_absent(node(1), NodeReply::Absent);
        record.note_return_of(node(1));
        assert_eq!([0, 1, 2].map(|it| record.is_proven(node(it), at(1))), [true, false, true]);
    }

    #[test]
    fn won_in_line_a_lock_is_proven_on_each_node_for_what_its_line_says() {
        let mut records = Records::new(1);
        let record = proven(&mut records);
        let line = record.line_mut().unwrap();
        line.begin_poll(NodeSet::first(3), NodeSet::EMPTY, at(0));
        for (index, steps) in [(0, 90), (1, 40)] {
            let left = i64::try_from((STEP * steps).as_millis()).unwrap();
            let mine = Standing { left, ..Standing::default() };
            line.note_standing(node(index), true, &mine, at(0), true);
        }
        record.deadline = at(80);
        record.settle_proof(NodeSet::EMPTY);
        let at_step = |step| [0, 1, 2].map(|index| record.is_proven(node(index), at(step)));
        assert_eq!(at_step(30), [true, true, false], "node 2 does not say that the key is there");
        assert_eq!(at_step(60), [true, false, false]);
        record.settle_proof(node(1).into());
        let record_is_proven = |index, step| record.is_proven(node(index), at(step));
        assert!(record_is_proven(1, 79) && !record_is_proven(1, 80), "it granted the claim");
    }
}
