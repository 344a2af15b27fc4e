//! A round: a request to all nodes, its ballot, and the reply of each node. It is a plain value in
//! its record, and has no effect on anything else.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::locks::round::failure::Refusals;
use crate::proto::locks::round::replies::Replies;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::{Ballot, Verdict, Vote};
use crate::proto::time::{Instant, Ttl};

/// What a round asks the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Grant the key, or put a new token in the place of an adopted one. For a fenced lock the node
    /// also votes for the fencing number.
    Acquire,
    /// Extend the key that we hold.
    Extend,
    /// Release the key.
    Release,
    /// The second round of a fenced acquire: raise the counter to the fencing number.
    WriteBack,
    /// Extend the key that was handed over to us to the whole ttl. For a fenced lock the node also
    /// votes for the fencing number.
    Claim,
}

impl Purpose {
    /// Whether the nodes vote for the fencing number in such a round of a fenced lock.
    pub const fn asks_for_votes(self) -> bool {
        matches!(self, Purpose::Acquire | Purpose::Claim)
    }

    /// Whether such a round belongs to an attempt for a key, or to an adopt.
    pub const fn is_attempt(self) -> bool {
        match self {
            Purpose::Acquire | Purpose::WriteBack | Purpose::Claim => true,
            Purpose::Extend | Purpose::Release => false,
        }
    }
}

/// How a release ended. No variant will be added: a caller may match all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// A quorum of nodes held the key for us, and deleted it.
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

/// The vote that a reply is; nothing before the node has replied.
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
    /// What the round asks.
    pub purpose: Purpose,
    /// The number of the round in its record: a late answer to an earlier round has no vote in it.
    pub number: u32,
    /// The moment of the start: read before the first byte of the round was written.
    pub start: Instant,
    /// The ttl that the round asks for.
    pub ttl: Ttl,
    ballot: Ballot,
    replies: Replies,
}

impl Round {
    /// The first round of a record: an attempt.
    pub fn acquire(ballot: Ballot, start: Instant, ttl: Ttl) -> Round {
        Round::first(Purpose::Acquire, ballot, start, ttl)
    }

    /// The first round of a record.
    pub fn first(purpose: Purpose, ballot: Ballot, start: Instant, ttl: Ttl) -> Round {
        Round { purpose, number: 0, start, ttl, ballot, replies: Replies::default() }
    }

    /// The round with this number, as if earlier rounds had used the lower ones.
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

    /// Casts the reply of a node as its vote, and returns the verdict.
    #[inline(always)]
    pub fn cast(&mut self, node: NodeId, reply: NodeReply) -> Verdict {
        self.replies.put_first(node, reply);
        let Some(vote) = vote_of(reply) else { return self.ballot.verdict() };
        let verdict = self.ballot.cast(node, vote);
        // As long as no node refused, a release cannot be decided early.
        let open = verdict == Verdict::Undecided && self.ballot.has_refusals();
        if open && self.purpose == Purpose::Release && self.release_is_decided() {
            return self.ballot.close();
        }
        verdict
    }

    /// Whether the missing answers cannot change how the release ends.
    #[cold]
    fn release_is_decided(&self) -> bool {
        let (ballot, quorum) = (&self.ballot, self.ballot.needed());
        let (ours, failed) = (ballot.grants().len(), ballot.errors().len());
        let missing = ballot.undecided().len();
        if ours + missing >= quorum {
            return false;
        }
        if ours + failed + missing >= quorum {
            // A majority may have held the lock. If the failed answers alone leave that open, the
            // missing ones cannot settle it.
            return ours + failed >= quorum;
        }
        let (others, absent) = self.refusals();
        missing == 0 || absent >= quorum || (others > 0 && absent + missing < quorum)
    }

    /// How many nodes said that the key is another client's, and how many that it is absent.
    fn refusals(&self) -> (usize, usize) {
        let denials = self.ballot.denials();
        let absent = denials.common(self.replies.that_are(NodeReply::Absent)).len();
        (denials.len() - absent, absent)
    }

    /// Ends the round if it cannot be won any more: called before any node is asked.
    #[inline]
    pub fn end_if_hopeless(&mut self) {
        self.ballot.end_if_hopeless();
    }

    /// Takes back the grant of a node that may have forgotten the key.
    pub fn withdraw(&mut self, node: NodeId) -> Verdict {
        if self.ballot.grants().contains(node) && self.ballot.verdict() == Verdict::Undecided {
            self.replies.set(node, NodeReply::Failed(NodeError::Quarantined));
        }
        self.ballot.withdraw(node)
    }

    /// Whether enough nodes granted.
    pub fn is_won(&self) -> bool {
        self.ballot.verdict() == Verdict::Won
    }

    /// The votes.
    pub fn ballot(&self) -> &Ballot {
        &self.ballot
    }

    /// The reply of a node.
    pub fn reply_of(&self, node: NodeId) -> NodeReply {
        self.replies.of(node)
    }

    /// How many nodes did not grant, and why. `spare` nodes may fail.
    pub fn refused(&self, spare: usize, overdue: bool) -> Refusals {
        Refusals::of(&self.ballot, &self.replies, spare, overdue)
    }

    /// How a release ended, by the answers so far: the table of rule 17.
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
        let mut round = Round::acquire(Ballot::of_majority(nodes), Instant::default(), ttl);
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

    /// The round of a release that asks the first `asked` of the nodes.
    fn release(nodes: usize, asked: usize) -> Round {
        let mut round = round(Purpose::Acquire, nodes);
        let ballot = Ballot::that_stays_open(NodeSet::first(asked), majority(nodes));
        round.follow(Purpose::Release, ballot, Instant::default(), round.ttl);
        round
    }

    /// The replies that a node can give to a release.
    const SAID: [NodeReply; 4] =
        [NodeReply::Granted, NodeReply::Held, NodeReply::Absent, NodeReply::Failed(Silent)];

    /// How many nodes gave each reply of [`SAID`].
    type Counts = [usize; 4];

    /// The table of rule 17, written in another way than the code has it: by whether a count is
    /// more than half of all nodes.
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

    /// How the release ends, if every possible choice of the missing answers gives the same end.
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

    /// Lets the nodes in `open` answer in every order and with every reply. Checks that the release
    /// ends as soon as its outcome is certain, and not before. Returns how many ends were reached.
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
    fn answer_absent_refuses_an_extend_and_ends_a_release() {
        let absent = [NodeReply::Absent, NodeReply::Absent];
        assert_eq!(cast(&mut round(Purpose::Extend, 3), &absent), Verdict::Lost);
        let mut release = release(3, 3);
        cast(&mut release, &absent);
        assert_eq!(release.released(), ReleaseOutcome::AlreadyExpired);
    }

    #[test]
    fn release_on_healthy_nodes_ends_at_the_answer_that_makes_a_quorum() {
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
