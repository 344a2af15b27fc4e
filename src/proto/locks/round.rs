//! A round: a question to all nodes, its ballot, and what each node said. It is a plain value in
//! its record: it writes nothing and acts on nothing.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::locks::ballot::{Ballot, Verdict, Vote};
use crate::proto::locks::replies::Replies;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::time::{Instant, Ttl};

/// What is asked in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// May we have the key?
    Acquire,
    /// May we keep it longer?
    Extend,
    /// May we adopt it, under a new token?
    Adopt,
    /// The lock is released.
    Release,
    /// May we have the key, and what is the vote for its fencing number?
    Fenced,
    /// The second round of a fenced acquire: is the number at a majority?
    WriteBack,
    /// May we have the key that was handed over to us, for the whole ttl?
    Claim,
}

impl Purpose {
    /// Whether an attempt for a key is in its round, or an adopt.
    pub const fn is_attempt(self) -> bool {
        !matches!(self, Purpose::Extend | Purpose::Release)
    }
}

/// How a release ended. This list is complete: a caller may match all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReleaseOutcome {
    /// The key was ours, and is gone.
    Released,
    /// The key was gone before the release.
    AlreadyExpired,
    /// Another client holds the key: the lock was lost before it was released. The other client's
    /// key is untouched.
    TakenByOther,
    /// Fewer than a quorum answered in time. The releases stay pending, and go out by themselves as
    /// long as the client is driven.
    Unconfirmed {
        /// The nodes that are not known to have released the key.
        nodes: NodeSet,
    },
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

    /// The first round of a record or of a task.
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
        let vote = match (self.purpose, reply) {
            (_, NodeReply::Nothing) => return self.ballot.verdict(),
            (_, NodeReply::Failed(_)) => Vote::Error,
            (_, NodeReply::Granted) => Vote::Grant,
            // The key is gone or another's: either way the node holds nothing of ours, as the
            // release wanted.
            (Purpose::Release, NodeReply::Held | NodeReply::Absent) => Vote::Grant,
            (_, NodeReply::Held | NodeReply::Absent) => Vote::Deny,
        };
        self.ballot.cast(node, vote)
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

    /// How many nodes failed with a cause for which `test` holds.
    pub fn count_failed(&self, test: impl Fn(NodeError) -> bool) -> usize {
        self.replies.count_failed(test)
    }

    /// How a release ended, by the answers until now.
    pub fn released(&self) -> ReleaseOutcome {
        if self.ballot.verdict() != Verdict::Won {
            let nodes = self.ballot.undecided().union(self.ballot.errors());
            return ReleaseOutcome::Unconfirmed { nodes };
        }
        if self.replies.contain(NodeReply::Granted) {
            ReleaseOutcome::Released
        } else if self.replies.contain(NodeReply::Held) {
            ReleaseOutcome::TakenByOther
        } else {
            ReleaseOutcome::AlreadyExpired
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn absent_is_no_to_an_extend_and_an_acknowledgement_to_a_release() {
        let absent = [NodeReply::Absent, NodeReply::Absent];
        assert_eq!(cast(&mut round(Purpose::Extend, 3), &absent), Verdict::Lost);
        assert_eq!(cast(&mut round(Purpose::Release, 3), &absent), Verdict::Won);
    }

    #[test]
    fn release_reports_the_replies_of_the_nodes() {
        use NodeReply::{Absent, Failed, Granted, Held};
        let silent = Failed(NodeError::Silent);
        let only_third: NodeSet = [NodeId::new(2)].into_iter().collect();
        let all_but_first = NodeSet::first(3).minus(NodeSet::first(1));
        let cases: [(&[NodeReply], ReleaseOutcome); 6] = [
            (&[Granted, Granted], ReleaseOutcome::Released),
            (&[Absent, Granted], ReleaseOutcome::Released),
            (&[Held, Absent], ReleaseOutcome::TakenByOther),
            (&[Absent, Absent], ReleaseOutcome::AlreadyExpired),
            (&[Granted, silent, silent], ReleaseOutcome::Unconfirmed { nodes: all_but_first }),
            (&[Granted, Granted, silent], ReleaseOutcome::Released),
        ];
        for (replies, released) in cases {
            let mut round = round(Purpose::Release, 3);
            cast(&mut round, replies);
            assert_eq!(round.released(), released, "{replies:?}");
        }
        let mut waiting = round(Purpose::Release, 3);
        waiting.cast(NodeId::new(0), Granted);
        waiting.cast(NodeId::new(1), silent);
        let third = only_third.iter().next().unwrap();
        let released = waiting.released();
        assert!(matches!(released, ReleaseOutcome::Unconfirmed { nodes } if nodes.contains(third)));
    }

    #[test]
    fn round_reports_the_first_reply_of_each_node() {
        let mut round = round(Purpose::Acquire, 3);
        let node = NodeId::new(1);
        round.cast(node, NodeReply::Failed(NodeError::Silent));
        round.cast(node, NodeReply::Granted);
        assert_eq!(round.reply_of(node), NodeReply::Failed(NodeError::Silent));
        assert!(round.ballot().grants().is_empty());
        assert_eq!(round.count_failed(|cause| cause == NodeError::Silent), 1);
    }
}
