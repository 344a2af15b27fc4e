//! All that has to do with a majority: how many nodes it takes, the votes on one question and its
//! verdict, and the value that a quorum agrees on.
//!
//! The hazard is a vote that counts twice, or a verdict that changes: here a node votes once and
//! the first verdict stands, whatever is cast later.

use crate::proto::node_set::{NodeId, NodeSet};

/// How many of `nodes` are a majority.
pub const fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The greatest value that at least `quorum` of `values` reach: the `quorum`-th greatest. `None` if
/// there are fewer values than that.
pub fn reached_by<T: Ord + Copy>(quorum: usize, values: &mut [T]) -> Option<T> {
    values.sort_unstable();
    let place = values.len().checked_sub(quorum)?;
    values.get(place).copied()
}

/// The smallest value that at least `quorum` of `values` do not exceed: the `quorum`-th smallest.
/// `None` if there are fewer values than that.
pub fn not_exceeded_by<T: Ord + Copy>(quorum: usize, values: &mut [T]) -> Option<T> {
    values.sort_unstable();
    values.get(quorum.checked_sub(1)?).copied()
}

/// How a node votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vote {
    /// The node grants what was asked.
    Grant,
    /// The node answered, and refuses.
    Deny,
    /// No vote that counts: the node failed, or could not be asked.
    Error,
}

/// The verdict on a question, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The question can still be won or lost, or it stays open for another reason.
    Undecided,
    /// Enough grants.
    Won,
    /// Too few nodes are left to reach the grants that are needed.
    Lost,
}

/// The votes on one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ballot {
    electors: NodeSet,
    grants: NodeSet,
    denials: NodeSet,
    errors: NodeSet,
    /// How many grants are missing to win the question.
    missing: u8,
    /// How many more electors may refuse while the question can still be won. Below 0, it cannot be
    /// won any more.
    spare: i8,
    verdict: Verdict,
    lost: Lost,
}

/// When a question that cannot be won any more is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// At once.
    Unwinnable,
    /// When more nodes than may fail have denied it, which proves that it is lost, or when too few
    /// votes are missing for such a proof.
    Proven { may_fail: u8 },
    /// When all electors have voted.
    Counted,
}

impl Ballot {
    /// A question to all of `nodes` nodes that a majority of them decides.
    #[cfg(test)]
    pub fn of_majority(nodes: usize) -> Ballot {
        Ballot::of_quorum(NodeSet::first(nodes), majority(nodes))
    }

    /// A question to `electors` that `needed` grants win.
    #[inline]
    pub fn of_quorum(electors: NodeSet, needed: usize) -> Ballot {
        Ballot::new(electors, needed, Lost::Unwinnable)
    }

    /// A question to `electors` that `needed` grants win, and that is proven to be lost once more
    /// than `may_fail` nodes deny it. If it cannot be won any more, it takes votes until it is
    /// proven, or until that cannot happen any more.
    pub fn that_waits_for_proof(electors: NodeSet, needed: usize, may_fail: usize) -> Ballot {
        let may_fail = u8::try_from(may_fail).unwrap_or(u8::MAX);
        Ballot::new(electors, needed, Lost::Proven { may_fail })
    }

    /// A question to `electors` that `needed` grants win, and whose refusals matter, too. Even when
    /// it cannot be won any more, it takes votes until all electors have voted or it is closed.
    pub fn that_stays_open(electors: NodeSet, needed: usize) -> Ballot {
        Ballot::new(electors, needed, Lost::Counted)
    }

    /// The question is lost from the start if there are fewer electors than grants are needed, and
    /// won if no grant is needed.
    fn new(electors: NodeSet, needed: usize, lost: Lost) -> Ballot {
        // There are at most `MAX_NODES` electors, so their number fits into an `i8`.
        let (most, missing) = (electors.len() as i8, u8::try_from(needed).unwrap_or(u8::MAX));
        let mut ballot = Ballot {
            electors,
            grants: NodeSet::EMPTY,
            denials: NodeSet::EMPTY,
            errors: NodeSet::EMPTY,
            missing,
            spare: most.saturating_sub_unsigned(missing),
            verdict: Verdict::Undecided,
            lost,
        };
        ballot.verdict = ballot.judge();
        ballot
    }

    /// Ends a question that waits for proof if it cannot be won any more. Called before any node is
    /// asked: a request that cannot succeed must not change the nodes.
    #[inline]
    pub fn end_if_hopeless(&mut self) {
        if self.spare < 0 && matches!(self.lost, Lost::Proven { .. }) {
            self.close();
        }
    }

    /// Ends a question that stayed open: no further vote counts.
    pub fn close(&mut self) -> Verdict {
        if self.verdict == Verdict::Undecided {
            self.verdict = Verdict::Lost;
        }
        self.verdict
    }

    /// Takes a vote. Three kinds of votes change nothing: a node's second vote, the vote of a node
    /// that was not asked, and every vote after the verdict.
    #[inline]
    pub fn cast(&mut self, node: NodeId, vote: Vote) -> Verdict {
        if self.verdict == Verdict::Undecided && self.undecided().contains(node) {
            if vote == Vote::Grant {
                self.grants.insert(node);
                self.missing = self.missing.saturating_sub(1);
            } else {
                let refusals =
                    if vote == Vote::Deny { &mut self.denials } else { &mut self.errors };
                refusals.insert(node);
                self.spare = self.spare.saturating_sub(1);
            }
            self.verdict = self.judge();
        }
        self.verdict
    }

    /// Takes a grant back before the verdict: the node may have forgotten what it granted.
    pub fn withdraw(&mut self, node: NodeId) -> Verdict {
        if self.verdict == Verdict::Undecided && self.grants.remove(node) {
            self.errors.insert(node);
            self.missing += 1;
            self.spare = self.spare.saturating_sub(1);
            self.verdict = self.judge();
        }
        self.verdict
    }

    /// The verdict so far.
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// How many grants win the question.
    pub const fn needed(&self) -> usize {
        self.grants.len() + self.missing as usize
    }

    /// The nodes that said yes.
    pub const fn grants(&self) -> NodeSet {
        self.grants
    }

    /// The nodes that said no.
    pub const fn denials(&self) -> NodeSet {
        self.denials
    }

    /// The nodes that gave no vote that counts.
    pub const fn errors(&self) -> NodeSet {
        self.errors
    }

    /// Whether a node said no, or gave no vote that counts.
    #[inline]
    pub const fn has_refusals(&self) -> bool {
        !self.denials.union(self.errors).is_empty()
    }

    /// The nodes that were asked and have not voted.
    pub const fn undecided(&self) -> NodeSet {
        self.electors.minus(self.grants).minus(self.denials).minus(self.errors)
    }

    #[inline]
    fn judge(&self) -> Verdict {
        match self.missing {
            0 => Verdict::Won,
            _ if self.spare >= 0 => Verdict::Undecided,
            _ => self.judge_unwinnable(),
        }
    }

    /// The verdict on a question that cannot be won any more.
    #[cold]
    fn judge_unwinnable(&self) -> Verdict {
        let open = match self.lost {
            Lost::Unwinnable => false,
            Lost::Proven { may_fail } => {
                let (denied, open) = (self.denials.len(), self.undecided().len());
                let may_fail = usize::from(may_fail);
                denied <= may_fail && denied + open > may_fail
            }
            Lost::Counted => !self.undecided().is_empty(),
        };
        if open { Verdict::Undecided } else { Verdict::Lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOTES: [Vote; 3] = [Vote::Grant, Vote::Deny, Vote::Error];

    /// The verdict that these votes have to give, computed in another way than the code does.
    fn expected(nodes: usize, votes: &[Vote]) -> Verdict {
        let yes = votes.iter().filter(|&&v| v == Vote::Grant).count();
        let open = nodes - votes.len();
        if 2 * yes > nodes {
            Verdict::Won
        } else if 2 * (yes + open) <= nodes {
            Verdict::Lost
        } else {
            Verdict::Undecided
        }
    }

    /// Every order of `nodes` nodes, by Heap's algorithm.
    fn orders(nodes: usize) -> Vec<Vec<usize>> {
        fn heap(k: usize, order: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
            if k <= 1 {
                all.push(order.clone());
                return;
            }
            for i in 0..k {
                heap(k - 1, order, all);
                order.swap(if k % 2 == 0 { i } else { 0 }, k - 1);
            }
        }
        let mut all = Vec::new();
        heap(nodes, &mut (0..nodes).collect(), &mut all);
        all
    }

    #[test]
    fn values_that_a_quorum_reaches_or_does_not_exceed_are_found() {
        let reached = |quorum| reached_by(quorum, &mut [3, 9, 1, 7]);
        assert_eq!([1, 2, 3, 4, 5].map(reached), [Some(9), Some(7), Some(3), Some(1), None]);
        let not_exceeded = |quorum| not_exceeded_by(quorum, &mut [3, 9, 1, 7]);
        assert_eq!([1, 2, 3, 4, 5].map(not_exceeded), [Some(1), Some(3), Some(7), Some(9), None]);
        assert_eq!((reached(0), not_exceeded(0)), (None, None), "no nodes are no quorum");
        // If all nodes have the same value, both functions return it.
        assert_eq!(reached_by(2, &mut [5, 5]), not_exceeded_by(2, &mut [5, 5]));
    }

    #[test]
    fn all_answers_in_all_orders_up_to_five_nodes() {
        let mut seen = 0;
        for nodes in 1..=5 {
            let orders = orders(nodes);
            for answers in 0..3_usize.pow(nodes as u32) {
                for order in &orders {
                    let mut ballot = Ballot::of_majority(nodes);
                    let mut verdict = ballot.verdict();
                    let mut votes = Vec::new();
                    for &node in order {
                        let vote = VOTES[answers / 3_usize.pow(node as u32) % 3];
                        votes.push(vote);
                        let now = ballot.cast(NodeId::new(node), vote);
                        if verdict == Verdict::Undecided {
                            assert_eq!(now, expected(nodes, &votes), "{nodes} nodes, {votes:?}");
                        } else {
                            assert_eq!(now, verdict, "a verdict changed: {votes:?}");
                        }
                        verdict = now;
                    }
                    assert_ne!(verdict, Verdict::Undecided);
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 3 + 9 * 2 + 27 * 6 + 81 * 24 + 243 * 120);
    }

    #[test]
    fn the_thresholds_up_to_nine_nodes() {
        for nodes in 1..=9_usize {
            let quorum = [1, 2, 2, 3, 3, 4, 4, 5, 5][nodes - 1];
            assert_eq!(majority(nodes), quorum);
            let mut ballot = Ballot::of_majority(nodes);
            for node in 0..quorum {
                assert_eq!(ballot.verdict(), Verdict::Undecided, "{nodes} nodes, {node} grants");
                ballot.cast(NodeId::new(node), Vote::Grant);
            }
            assert_eq!(ballot.verdict(), Verdict::Won);
            for no in [Vote::Deny, Vote::Error] {
                let mut ballot = Ballot::of_majority(nodes);
                for node in 0..=nodes - quorum {
                    assert_eq!(ballot.verdict(), Verdict::Undecided, "{nodes} nodes, {node} no");
                    ballot.cast(NodeId::new(node), no);
                }
                assert_eq!(ballot.verdict(), Verdict::Lost, "{nodes} nodes");
            }
        }
    }

    #[test]
    fn a_node_votes_once() {
        let mut ballot = Ballot::of_majority(3);
        for _ in 0..3 {
            assert_eq!(ballot.cast(NodeId::new(0), Vote::Grant), Verdict::Undecided);
        }
        ballot.cast(NodeId::new(0), Vote::Deny);
        assert_eq!(ballot.grants().len(), 1);
        assert!(ballot.denials().is_empty());
    }

    #[test]
    fn a_grant_is_withdrawn_before_the_verdict_and_not_after_it() {
        let mut ballot = Ballot::of_majority(3);
        ballot.cast(NodeId::new(0), Vote::Grant);
        assert_eq!(ballot.withdraw(NodeId::new(0)), Verdict::Undecided);
        assert_eq!(ballot.cast(NodeId::new(0), Vote::Grant), Verdict::Undecided);
        assert_eq!(ballot.cast(NodeId::new(1), Vote::Grant), Verdict::Undecided);
        assert_eq!(ballot.cast(NodeId::new(2), Vote::Grant), Verdict::Won);
        assert_eq!(ballot.withdraw(NodeId::new(2)), Verdict::Won);
        let mut ballot = Ballot::of_majority(3);
        ballot.cast(NodeId::new(0), Vote::Deny);
        ballot.cast(NodeId::new(1), Vote::Grant);
        assert_eq!(ballot.withdraw(NodeId::new(1)), Verdict::Lost);
    }

    #[test]
    fn a_node_that_was_not_asked_has_no_vote() {
        let mut ballot = Ballot::of_quorum(NodeSet::first(2), 2);
        ballot.cast(NodeId::new(5), Vote::Grant);
        assert_eq!(ballot.cast(NodeId::new(0), Vote::Grant), Verdict::Undecided);
        assert_eq!(ballot.cast(NodeId::new(1), Vote::Grant), Verdict::Won);
        assert_eq!(Ballot::of_quorum(NodeSet::EMPTY, 0).verdict(), Verdict::Won);
        assert_eq!(Ballot::of_quorum(NodeSet::first(1), 2).verdict(), Verdict::Lost);
    }

    /// For all votes of five nodes, in every order: it ends as soon as the end cannot change, and
    /// with that end.
    #[test]
    fn ballot_that_waits_for_proof_ends_when_its_denials_decide() {
        for mut code in 0..3_usize.pow(5) {
            let votes = [(); 5].map(|()| {
                let vote = VOTES[code % 3];
                code /= 3;
                vote
            });
            let mut ballot = Ballot::that_waits_for_proof(NodeSet::first(5), 3, 2);
            for (index, &vote) in votes.iter().enumerate() {
                let verdict = ballot.cast(NodeId::new(index), vote);
                let count = |of: Vote| votes[..=index].iter().filter(|&&it| it == of).count();
                let (open, denied) = (4 - index, count(Vote::Deny));
                let winnable = count(Vote::Grant) + open >= 3;
                let provable = denied < 3 && denied + open >= 3;
                let expected = match count(Vote::Grant) {
                    3.. => Verdict::Won,
                    _ if winnable || provable => Verdict::Undecided,
                    _ => Verdict::Lost,
                };
                assert_eq!(verdict, expected, "{votes:?}, {index}");
                if verdict != Verdict::Undecided {
                    break;
                }
            }
        }
    }

    #[test]
    fn ballot_that_stays_open_takes_votes_until_it_is_closed_or_all_have_voted() {
        let node = NodeId::new;
        let open = || Ballot::that_stays_open(NodeSet::first(3), 2);
        let mut ballot = open();
        ballot.cast(node(0), Vote::Grant);
        assert_eq!(ballot.cast(node(1), Vote::Grant), Verdict::Won);
        assert_eq!(ballot.close(), Verdict::Won);
        let mut ballot = open();
        ballot.cast(node(0), Vote::Deny);
        assert_eq!(ballot.cast(node(1), Vote::Error), Verdict::Undecided);
        assert_eq!((ballot.denials().len(), ballot.errors().len()), (1, 1));
        let mut closed = ballot;
        assert_eq!(closed.close(), Verdict::Lost);
        closed.cast(node(2), Vote::Deny);
        assert_eq!(closed.denials().len(), 1);
        assert_eq!(ballot.cast(node(2), Vote::Grant), Verdict::Lost);
        assert_eq!(Ballot::that_stays_open(NodeSet::EMPTY, 2).verdict(), Verdict::Lost);
    }
}
