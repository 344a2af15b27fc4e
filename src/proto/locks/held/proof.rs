//! Until when it is proven that a node has our key and had it without a break.
//!
//! A grant proves the key until the moment at which its request was sent, plus the ttl of the
//! request, less drift. The node executed the request after that moment, and keeps the key for the
//! ttl. Until the proof ends, no other client can have had the key there, whatever the node
//! forgets. After that the key may have expired, another client may have had it, and the node may
//! have forgotten that. Then a key with our token, from a late request of ours or from a copy of
//! another node's data, may stand in the place of that client's key.
//!
//! The hazard is a proof that is believed for too long. So an end that is not exact is too early:
//! the nodes whose proof reaches the deadline of the lock are one set, and all other nodes with a
//! proof share the earliest end among them.

use std::time::Duration;

use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::locks::round::state::Purpose;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::Instant;
use crate::proto::wire::ask::LockAsk;

/// The end of a proof before the deadline is stored in steps of this length.
const STEP: Duration = Duration::from_millis(16);

/// The nodes that are proven to have the key of a lock, and until when. Each record has one, so it
/// is packed into ten bytes.
#[derive(Debug, Clone, Copy, Default)]
#[repr(Rust, packed(2))]
pub struct Proof {
    /// Nodes that have the key at least until the deadline of the lock.
    until_deadline: NodeSet,
    /// Nodes that have the key until an earlier moment, which they share.
    until_earlier: NodeSet,
    /// How many steps before the deadline that earlier moment is: 17 minutes at most.
    earlier_end_in_steps: u16,
}

impl Proof {
    /// Whether the node is proven to have the key at `now`. `deadline` is that of the lock.
    #[inline]
    pub fn covers(&self, node: NodeId, deadline: Instant, now: Instant) -> bool {
        let (whole, earlier) =
            (self.until_deadline.contains(node), self.until_earlier.contains(node));
        (whole && now < deadline) || (earlier && now < self.earlier_end(deadline))
    }

    /// The nodes that have the key at least until the deadline.
    #[inline]
    pub fn nodes_until_deadline(&self) -> NodeSet {
        self.until_deadline
    }

    /// The nodes with a proof, until whatever moment.
    pub fn nodes(&self) -> NodeSet {
        self.until_deadline.union(self.until_earlier)
    }

    /// The node has the key until the deadline of the lock.
    #[inline]
    pub fn extend_to_deadline(&mut self, node: NodeId) {
        self.until_deadline = self.until_deadline.union(node.into());
        self.until_earlier = self.until_earlier.minus(node.into());
    }

    /// The node has the key until `until` at least, and the lock ends at `deadline`.
    #[inline]
    pub fn extend(&mut self, node: NodeId, until: Instant, deadline: Instant) {
        if until >= deadline {
            self.extend_to_deadline(node);
        } else if !self.covers_until(node, until, deadline) {
            self.add_earlier(node.into(), until, deadline);
        }
    }

    /// Ends the proof of these nodes: they may lack the key, or have it in the place of another
    /// client's.
    pub fn end(&mut self, nodes: NodeSet) {
        self.until_deadline = self.until_deadline.minus(nodes);
        self.until_earlier = self.until_earlier.minus(nodes);
    }

    /// The lock ends at `deadline` instead of `before`, because the nodes in `renewed` extended its
    /// key. The proofs of the other nodes keep their ends. The shared end is dropped if it has
    /// passed by `now`.
    pub fn on_later_deadline(
        &mut self,
        renewed: NodeSet,
        before: Instant,
        deadline: Instant,
        now: Instant,
    ) {
        let earlier_end = self.earlier_end(before);
        let earlier = if now < earlier_end { self.until_earlier } else { NodeSet::EMPTY };
        let not_renewed = self.until_deadline.minus(renewed);
        *self = Proof { until_deadline: self.until_deadline.common(renewed), ..Proof::default() };
        self.add_earlier(earlier.minus(renewed), earlier_end, deadline);
        self.add_earlier(not_renewed, before, deadline);
    }

    /// The lock ends at `deadline`. `until` gives the end of the proof of each node that has one.
    pub fn settle(&mut self, deadline: Instant, until: impl Fn(NodeId) -> Option<Instant>) {
        let nodes = self.nodes();
        *self = Proof::default();
        for node in nodes.iter() {
            if let Some(until) = until(node) {
                self.extend(node, until, deadline);
            }
        }
    }

    /// What a fingerprint needs: the two sets, and the earlier moment.
    #[cfg(feature = "testing")]
    pub fn for_fingerprint(&self, deadline: Instant) -> (NodeSet, NodeSet, Instant) {
        let end = if self.until_earlier.is_empty() { deadline } else { self.earlier_end(deadline) };
        (self.until_deadline, self.until_earlier, end)
    }

    /// Whether the node is already proven until `until`, which is before the deadline.
    fn covers_until(&self, node: NodeId, until: Instant, deadline: Instant) -> bool {
        let in_earlier = self.until_earlier.contains(node);
        self.until_deadline.contains(node) || (in_earlier && until <= self.earlier_end(deadline))
    }

    fn earlier_end(&self, deadline: Instant) -> Instant {
        deadline.saturating_sub(STEP * u32::from(self.earlier_end_in_steps))
    }

    /// Adds nodes whose proof ends before the deadline. All such nodes then share the earliest end
    /// among them.
    fn add_earlier(&mut self, nodes: NodeSet, until: Instant, deadline: Instant) {
        let before = deadline.saturating_since(until).as_nanos().div_ceil(STEP.as_nanos());
        // A proof that ends too many steps before the deadline for the field is left out.
        let Ok(before) = u16::try_from(before) else { return };
        if nodes.is_empty() {
            return;
        }
        let alone = self.until_earlier.minus(nodes).is_empty();
        self.earlier_end_in_steps =
            if alone { before } else { before.max(self.earlier_end_in_steps) };
        self.until_earlier = self.until_earlier.union(nodes);
    }
}

impl Record {
    /// Whether a grant of the node proves anything: not while the node may still execute a request
    /// of a lost connection, which could create the key.
    #[inline]
    fn may_prove(&self, node: NodeId) -> bool {
        !self.pending.unproven().contains(node)
    }

    /// The node is proven to have our key until `until`. The caller has checked that the node is
    /// trusted, or that an earlier proof has not ended.
    #[inline]
    fn prove_until(&mut self, node: NodeId, until: Instant) {
        if self.may_prove(node) {
            self.proof.extend(node, until, self.deadline);
        }
    }

    /// The node granted an acquire. If that was in the present round, the key is proven until the
    /// deadline, which counts from the start of this round.
    #[inline]
    pub fn prove_granted(&mut self, node: NodeId, ask: LockAsk) {
        let counts = ask.round == self.round.number && !self.uncounted.contains(node);
        if counts && self.may_prove(node) {
            self.proof.extend_to_deadline(node);
        }
    }

    /// The node granted `ask`. If that was in the present round, the key is proven for the ttl of
    /// the round. Start and ttl of earlier rounds are not known any more, so they prove nothing.
    #[inline]
    pub fn prove(&mut self, node: NodeId, ask: LockAsk) {
        if ask.round == self.round.number {
            self.prove_until(node, self.round.ttl.deadline(self.round.start));
        }
    }

    /// The node granted a heal. The ttl of a heal is the time that was left until the deadline, in
    /// whole milliseconds, so the proof ends a little before the deadline.
    pub fn prove_healed(&mut self, node: NodeId, ask: LockAsk) {
        if ask.round == self.round.number {
            let uncertain = self.longest.drift().saturating_add(Duration::from_millis(1));
            self.prove_until(node, self.deadline.saturating_sub(uncertain));
        }
    }

    /// The node said that it has the key for this waiter in line. That proves nothing while a join
    /// is in flight, which may create the key anew. As long as the waiter waits, its proofs have no
    /// exact end: [`settle_proof`](Record::settle_proof) sets it when the lock is won. From then
    /// on, also during a write-back, the line says until when the key is there.
    pub fn prove_in_line(&mut self, node: NodeId) {
        // A hand-over is about one key of a set, so it does not prove the others.
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

    /// The lock was won in line: the proof of each node ends when the line says, or at the deadline
    /// if the node is one of those that granted the claim (`claimed`).
    pub fn settle_proof(&mut self, claimed: NodeSet) {
        let (mut proof, deadline) = (self.proof, self.deadline);
        proof.settle(deadline, |node| {
            let in_line = self.line().and_then(|line| line.until_at(node));
            if claimed.contains(node) { Some(deadline) } else { in_line }
        });
        self.proof = proof;
    }

    /// Whether our key on the node cannot stand in the place of another client's key, even if the
    /// node has forgotten keys. Never so for an adopted lock, because this client does not know how
    /// its keys were created.
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
    use crate::proto::quorum::Ballot;
    use crate::proto::time::Ttl;
    use crate::proto::wire::line::Standing;

    /// A moment that is a whole number of steps, so that no end of a proof is rounded.
    fn at(steps: u64) -> Instant {
        Instant::from_nanos(steps * STEP.as_nanos() as u64)
    }

    fn node(index: usize) -> NodeId {
        NodeId::new(index)
    }

    /// The step at which the proof of a node ends, for a lock that ends at `deadline`.
    fn end_of(proof: &Proof, index: usize, deadline: u64) -> u64 {
        let covered = |&step: &u64| proof.covers(node(index), at(deadline), at(step));
        (0..=deadline + 5).find(|step| !covered(step)).unwrap()
    }

    #[test]
    fn proof_ends_at_the_latest_moment_that_a_grant_gave() {
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
        // Nodes 1 and 2 miss the next renewal, so they share the end of node 2.
        proof.on_later_deadline(node(0).into(), at(150), at(200), at(99));
        assert_eq!([0, 1, 2].map(|index| end_of(&proof, index, 200)), [200, 100, 100]);
        // The proof of node 2 has ended by now, so node 1 does not share its end.
        proof.extend(node(1), at(200), at(200));
        proof.on_later_deadline(node(0).into(), at(200), at(250), at(100));
        assert_eq!([0, 1, 2].map(|index| end_of(&proof, index, 250)), [250, 200, 0]);
    }

    #[test]
    fn proof_is_never_longer_than_what_each_node_gave() {
        // Runs every sequence of four events on three nodes, and keeps the exact end for each node
        // in `given`.
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
                            // In this test a renewal counts only for a node with a proof.
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

    /// A record of a waiter in line. All of its three nodes said that they have the key for it.
    fn proven(records: &mut Records) -> &mut Record {
        let ttl = Ttl::new(STEP * 100, Duration::from_secs(60)).unwrap();
        let token = LockToken::random(&mut StdRng::from_seed([1; 32]));
        let id =
            records.open(b"k", token, Round::acquire(Ballot::of_majority(3), at(0), ttl)).unwrap();
        let record = records.get_mut(id);
        record.trouble_mut().line = Some(Box::new(Line::new(3, (ttl, ttl), 0)));
        (0..3).for_each(|index| record.prove_in_line(node(index)));
        record
    }

    #[test]
    fn absence_ends_the_proof_also_if_the_node_hands_the_key_over_again() {
        let mut records = Records::new(1);
        let record = proven(&mut records);
        record.note_absent(node(1), NodeReply::Absent, false);
        record.note_return_of(node(1));
        assert_eq!([0, 1, 2].map(|it| record.is_proven(node(it), at(1))), [true, false, true]);
    }

    #[test]
    fn lock_won_in_line_is_proven_on_each_node_for_as_long_as_its_line_says() {
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
