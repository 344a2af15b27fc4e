//! What a tool writes to a node in each part of a change of the list: the new value, made from the
//! value that the node has.
//!
//! The hazard is a vote that gets lost: a value for the same epoch keeps the ballots of the node.

use crate::proto::wire::members::{BallotNumber, Member, MemberId, MemberList, Membership, Stage};

impl Membership {
    /// A node that is bound to the list, and not a member yet.
    pub fn learner(id: MemberId, list: &MemberList) -> Membership {
        Membership::new(id, Stage::Learner, list.clone())
    }

    /// Whether the node may vote on the list after this one.
    pub fn has_vote_after(&self, list: &MemberList) -> bool {
        let votes = !matches!(self.stage, Stage::Returned | Stage::Learner);
        votes && self.list.is_same_as(list) && list.has(self.id)
    }

    /// The value after a promise to take part in no ballot with a smaller number; `None` if the
    /// node has promised a greater one.
    pub fn promise(&self, number: BallotNumber) -> Option<Membership> {
        let is_free = self.promised.is_none_or(|promised| promised <= number);
        is_free.then(|| Membership { promised: Some(number), ..self.clone() })
    }

    /// The value after a vote for these members; `None` if the node has promised a greater number.
    pub fn accept(&self, number: BallotNumber, members: &[Member]) -> Option<Membership> {
        let accepted = Some((number, members.to_vec()));
        self.promise(number).map(|promised| Membership { accepted, ..promised })
    }

    /// The value of a node that was told this list, which comes after `previous`. No other write
    /// has this mark.
    pub fn told(&self, list: &MemberList, previous: &[Member], mark: u64) -> Membership {
        let told = Membership::new(self.id, Stage::Told, list.clone());
        Membership { previous: previous.to_vec(), mark: Some(mark), ..told }
    }

    /// The value of a member after the wait for this list, which keeps the ballots about the next.
    pub fn settled(&self, list: &MemberList) -> Membership {
        if self.list.is_same_as(list) {
            let (list, previous) = (self.list.clone(), Vec::new());
            return Membership { stage: Stage::Agreed, list, previous, mark: None, ..self.clone() };
        }
        Membership::new(self.id, Stage::Agreed, list.clone())
    }
}
