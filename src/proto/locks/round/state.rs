//! A round: a request to all nodes, its ballot, and what each node said. It is a plain value in
//! its record: it writes nothing and acts on nothing.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::locks::round::failure::Refusals;
use crate::proto::locks::round::replies::Replies;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::{Ballot, Verdict, Vote};
use crate::proto::time::{Instant, Ttl};

/// What is asked in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// May we have the key, or adopt it under a new token? Of a fenced lock also: what is the vote
    /// for its fencing number?
    Acquire,
    /// May we keep it longer?
    Extend,
    /// The lock is released.
    Release,
    /// The second round of a fenced acquire: is the number at a majority?
    WriteBack,
    /// May we have the key that was handed over to us, for the whole ttl? Of a fenced lock also:
    /// what is the vote for its fencing number?
    Claim,
}

impl Purpose {
    /// Whether the nodes vote in such a round for the fencing number of a lock that has one.
    pub const fn asks_for_votes(self) -> bool {
        matches!(self, Purpose::Acquire | Purpose::Claim)
    }

    /// Whether an attempt for a key is in its round, or an adopt.
    pub const fn is_attempt(self) -> bool {
        match self {
            Purpose::Acquire | Purpose::WriteBack | Purpose::Claim => true,
            Purpose::Extend | Purpose::Release => false,
        }
    }
}

/// How a release ended. This list is complete: a caller may match all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The key was ours on a quorum of nodes, and is gone there.
    Released,
    /// The lock was lost before it was released: fewer than a quorum of nodes held it, and a quorum
    /// holds nothing, or no node was seen with another client's key.
    AlreadyExpired,
    /// The lock was lost before it was released: fewer than a quorum of nodes held it, and another
    /// client's key was seen. That key is untouched.
    TakenByOther,
    /// Too few nodes answered in time to know whether the lock was still held. The releases stay
    /// pending, and go out by themselves as long as the client is driven.
    Unconfirmed {
        /// The nodes that are not known to have released the key.
        nodes: NodeSet,
    },
}

/// The vote that a reply stands for; nothing before the node replied.
#[inline]
pub const fn vote_of(reply: NodeReply) -> Option<Vote> {
    match reply {
        NodeReply::Nothing | NodeReply::NotAsked => None,
        NodeReply::Failed(_) => Some(Vote::Error),
        NodeReply::Granted => Some(Vote::Grant),
        NodeReply::Held | NodeReply::Absent => Some(Vote::Deny),
    }
}

/// One round.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// What is asked.
    pub purpose: Purpose,
    /// The number of the round in its record: a late answer to an earlier round has no vote in it.
    pub number: u32,
    /// The time, read before the first byte of the round was written.
    pub start: Instant,
    /// The ttl it asks for.
    pub ttl: Ttl,
    ballot: Ballot,
    replies: Replies,
}

impl Round {
    /// The first round of a record: an attempt on `nodes` nodes.
    pub fn acquire(nodes: usize, start: Instant, ttl: Ttl) -> Round {
        Round::first(Purpose::Acquire, Ballot::of_majority(nodes), start, ttl)
    }

    /// The first round of a record.
    pub fn first(purpose: Purpose, ballot: Ballot, start: Instant, ttl: Ttl) -> Round {
        Round { purpose, number: 0, start, ttl, ballot, replies: Replies::default() }
    }

    /// The round with this number, as if others were before it.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn numbered_from(mut self, first: u32) -> Round {
        self.number = first;
        self
    }

    /// Replaces this round by the next one, with a ballot of its own.
    pub fn follow(&mut self, purpose: Purpose, ballot: Ballot, start: Instant, ttl: Ttl) {
        let number = self.number.wrapping_add(1);
        *self = Round { purpose, number, start, ttl, ballot, replies: Replies::default() };
    }

    /// Takes what a node said as its vote. Returns the verdict, and acts on nothing.
    #[inline]
    pub fn cast(&mut self, node: NodeId, reply: NodeReply) -> Verdict {
        self.replies.put_first(node, reply);
        let Some(vote) = vote_of(reply) else { return self.ballot.verdict() };
        let verdict = self.ballot.cast(node, vote);
        // Without a refusal the verdict depends on the missing answers.
        let open = verdict == Verdict::Undecided && self.ballot.has_refusals();
        if open && self.purpose == Purpose::Release && self.release_is_decided() {
            return self.ballot.close();
        }
        verdict
    }

    /// Whether no answer that is missing can change how the release ended.
    #[cold]
    fn release_is_decided(&self) -> bool {
        let (ballot, quorum) = (&self.ballot, self.ballot.needed());
        let (ours, failed) = (ballot.grants().len(), ballot.errors().len());
        let missing = ballot.undecided().len();
        if ours + missing >= quorum {
            return false;
        }
        if ours + failed + missing >= quorum {
            // It is not known whether a majority held the lock. If the failed answers are reason
            // enough, it never will be.
            return ours + failed >= quorum;
        }
        let (others, absent) = self.refusals();
        missing == 0 || absent >= quorum || (others > 0 && absent + missing < quorum)
    }

    /// How many nodes said that the key is another's, and how many that it is absent.
    fn refusals(&self) -> (usize, usize) {
        let denials = self.ballot.denials();
        let absent = denials.common(self.replies.that_are(NodeReply::Absent)).len();
        (denials.len() - absent, absent)
    }

    /// Takes back the grant of a node that may have forgotten it.
    pub fn withdraw(&mut self, node: NodeId) -> Verdict {
        if self.ballot.grants().contains(node) && self.ballot.verdict() == Verdict::Undecided {
            self.replies.set(node, NodeReply::Failed(NodeError::Quarantined));
        }
        self.ballot.withdraw(node)
    }

    /// Whether enough nodes said yes.
    pub fn is_won(&self) -> bool {
        self.ballot.verdict() == Verdict::Won
    }

    /// The votes.
    pub fn ballot(&self) -> &Ballot {
        &self.ballot
    }

    /// What a node said.
    pub fn reply_of(&self, node: NodeId) -> NodeReply {
        self.replies.of(node)
    }

    /// How many nodes did not say yes, and why. `spare` nodes may fail.
    pub fn refused(&self, spare: usize, overdue: bool) -> Refusals {
        Refusals::of(&self.ballot, &self.replies, spare, overdue)
    }

    /// How a release ended, by the answers until now: the table of rule 17.
    pub fn released(&self) -> ReleaseOutcome {
        if self.is_won() {
            return ReleaseOutcome::Released;
        }
        let (ballot, quorum) = (&self.ballot, self.ballot.needed());
        let nodes = ballot.undecided().union(ballot.errors());
        if ballot.grants().len() + nodes.len() >= quorum {
            return ReleaseOutcome::Unconfirmed { nodes };
        }
        match self.refusals() {
            (others, absent) if others > 0 && absent < quorum => ReleaseOutcome::TakenByOther,
            _ => ReleaseOutcome::AlreadyExpired,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::error::NodeError::Silent;
    use crate::proto::quorum::majority;
    use std::time::Duration;

    fn round(purpose: Purpose, nodes: usize) -> Round {
        let ttl = Ttl::new(Duration::from_secs(1), Duration::from_secs(60)).unwrap();
        let mut round = Round::acquire(nodes, Instant::default(), ttl);
        round.follow(purpose, Ballot::of_majority(nodes), Instant::default(), ttl);
        round
    }

    fn cast(round: &mut Round, replies: &[NodeReply]) -> Verdict {
        let mut verdict = round.ballot().verdict();
        for (index, &reply) in replies.iter().enumerate() {
            verdict = round.cast(NodeId::new(index), reply);
        }
        verdict
    }

    /// A release that asks the first so many nodes.
    fn release(nodes: usize, asked: usize) -> Round {
        let mut round = round(Purpose::Acquire, nodes);
        let ballot = Ballot::that_stays_open(NodeSet::first(asked), majority(nodes));
        round.follow(Purpose::Release, ballot, Instant::default(), round.ttl);
        round
    }

    /// What nodes can say to a release.
    const SAID: [NodeReply; 4] =
        [NodeReply::Granted, NodeReply::Held, NodeReply::Absent, NodeReply::Failed(Silent)];

    /// How many nodes said each of [`SAID`].
    type Counts = [usize; 4];

    /// The table of rule 17, written another way than the code: in halves of all nodes.
    fn expected(nodes: usize, [ours, others, absent, failed]: Counts) -> &'static str {
        let is_most = |count: usize| count * 2 > nodes;
        match () {
            () if is_most(ours) => "released",
            () if is_most(others) => "taken by other",
            () if is_most(absent) => "already expired",
            () if is_most(ours + failed) => "unconfirmed",
            () if others > 0 => "taken by other",
            () => "already expired",
        }
    }

    /// How the release ends, if that is the same whatever the missing answers are.
    fn decided(nodes: usize, counts: Counts, missing: usize) -> Option<&'static str> {
        if missing == 0 {
            return Some(expected(nodes, counts));
        }
        let ends = (0..4).map(|said| {
            let mut more = counts;
            more[said] += 1;
            decided(nodes, more, missing - 1)
        });
        ends.reduce(|one, other| if one == other { one } else { None }).flatten()
    }

    fn in_words(released: ReleaseOutcome) -> &'static str {
        match released {
            ReleaseOutcome::Released => "released",
            ReleaseOutcome::AlreadyExpired => "already expired",
            ReleaseOutcome::TakenByOther => "taken by other",
            ReleaseOutcome::Unconfirmed { .. } => "unconfirmed",
        }
    }

    /// Each node that was asked answers next, in every order and with every answer. The release has
    /// to end as soon as its outcome is certain, and not before. Returns how many ends were seen.
    fn play(nodes: usize, asked: usize, round: Round, open: NodeSet, counts: Counts) -> usize {
        let certain = decided(nodes, counts, open.len());
        let over = round.ballot().verdict() != Verdict::Undecided;
        assert_eq!(over, certain.is_some(), "{nodes} nodes, {asked} asked, {counts:?}");
        if let Some(expected) = certain {
            let released = round.released();
            assert_eq!(in_words(released), expected, "{nodes} nodes, {asked} asked, {counts:?}");
            if let ReleaseOutcome::Unconfirmed { nodes } = released {
                let failed = |&node: &NodeId| round.reply_of(node) == SAID[3];
                let silent = NodeSet::first(asked).iter().filter(failed).collect();
                assert_eq!(nodes, open.union(silent));
            }
            return 1;
        }
        let mut seen = 0;
        for node in open.iter() {
            for (said, reply) in SAID.into_iter().enumerate() {
                let (mut round, mut counts) = (round, counts);
                round.cast(node, reply);
                counts[said] += 1;
                seen += play(nodes, asked, round, open.minus(node.into()), counts);
            }
        }
        seen
    }

    #[test]
    fn release_ends_the_same_in_every_order_of_all_answers_up_to_five_nodes() {
        let mut seen = 0;
        for nodes in 1..=5 {
            for asked in 0..=nodes {
                let open = NodeSet::first(asked);
                seen += play(nodes, asked, release(nodes, asked), open, [0; 4]);
            }
        }
        assert!(seen > 10_000, "{seen}");
    }

    #[test]
    fn absent_is_no_to_an_extend_and_ends_a_release() {
        let absent = [NodeReply::Absent, NodeReply::Absent];
        assert_eq!(cast(&mut round(Purpose::Extend, 3), &absent), Verdict::Lost);
        let mut release = release(3, 3);
        cast(&mut release, &absent);
        assert_eq!(release.released(), ReleaseOutcome::AlreadyExpired);
    }

    #[test]
    fn release_that_is_healthy_ends_at_the_answer_that_makes_a_quorum() {
        for nodes in 1..=9 {
            let mut release = release(nodes, nodes);
            for node in 0..nodes / 2 + 1 {
                assert_eq!(release.ballot().verdict(), Verdict::Undecided, "{nodes} nodes");
                release.cast(NodeId::new(node), NodeReply::Granted);
            }
            assert_eq!(release.ballot().verdict(), Verdict::Won, "{nodes} nodes");
            assert_eq!(release.released(), ReleaseOutcome::Released);
        }
    }

    #[test]
    fn round_reports_the_first_reply_of_each_node() {
        let mut round = round(Purpose::Acquire, 3);
        let node = NodeId::new(1);
        round.cast(node, NodeReply::Failed(NodeError::Silent));
        round.cast(node, NodeReply::Granted);
        assert_eq!(round.reply_of(node), NodeReply::Failed(NodeError::Silent));
        assert!(round.ballot().grants().is_empty());
        assert_eq!(round.refused(0, false).failed, 1);
    }
}
