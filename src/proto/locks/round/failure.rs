//! Which error a round that was not won ends with.
//!
//! The hazard is a lock that is given up while a majority may still hold it. So the lock counts as
//! gone only if more nodes say so than may fail.

use crate::proto::error::{ConfigError, Error, LostReason, NodeError, Report};
use crate::proto::locks::round::replies::Replies;
use crate::proto::quorum::Ballot;

/// What the round asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// To acquire keys, which may be free.
    Acquire,
    /// To adopt keys that a token holds.
    Adopt,
    /// To extend keys that we hold.
    Extend,
}

/// How many nodes did not grant, and why.
#[derive(Debug, Clone, Copy, Default)]
pub struct Refusals {
    /// How many nodes may fail while the others are still a quorum.
    pub spare: usize,
    /// Nodes that failed, for any cause.
    pub failed: usize,
    /// Nodes that failed for a cause that lasts.
    pub permanent: usize,
    /// Nodes that refused. Of an extend: that said that the key is not ours any more.
    pub denied: usize,
    /// How many nodes may refuse an extend or an adopt whose lock is not lost.
    pub may_lack: usize,
    /// The deadline has passed.
    pub overdue: bool,
}

impl Refusals {
    /// Counts the votes, and the replies that gave a cause.
    pub fn of(ballot: &Ballot, replies: &Replies, spare: usize, overdue: bool) -> Refusals {
        Refusals {
            spare,
            failed: ballot.errors().len(),
            permanent: replies.count_failed(NodeError::is_permanent),
            denied: ballot.denials().len(),
            may_lack: spare,
            overdue,
        }
    }
}

/// Why a round failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The lock is over for this reason.
    Lost(LostReason),
    /// Too many nodes refuse for a cause that lasts.
    Nodes,
    /// A majority may have granted, but after the deadline.
    Expired,
    /// Too few nodes gave a vote that counts.
    NoQuorum,
    /// Others hold the keys.
    Contended,
}

/// Why a round failed in which no majority granted in time.
pub fn classify(tried: Tried, refusals: Refusals) -> Failure {
    let Refusals { spare, failed, permanent, denied, may_lack, overdue } = refusals;
    match tried {
        // The lock was held until now: whether it is over comes before everything else.
        Tried::Extend if denied > may_lack => Failure::Lost(LostReason::Gone),
        Tried::Extend if overdue => Failure::Lost(LostReason::Expired),
        _ if permanent > spare => Failure::Nodes,
        Tried::Extend => Failure::NoQuorum,
        Tried::Adopt if denied > may_lack => Failure::Lost(LostReason::Gone),
        _ if overdue && denied <= spare => Failure::Expired,
        // An adopt asks only for keys of its own token, so a denial does not name another holder.
        Tried::Adopt => Failure::NoQuorum,
        _ if failed > spare => Failure::NoQuorum,
        _ => Failure::Contended,
    }
}

impl Failure {
    /// The error of a request that ends with this failure.
    pub fn error(self, report: Box<Report>) -> Error {
        match self {
            Failure::Lost(reason) => Error::Lost { reason, report },
            Failure::Nodes => Error::Config(ConfigError::Nodes(report)),
            Failure::Expired => Error::Expired(report),
            Failure::NoQuorum => Error::NoQuorum(report),
            Failure::Contended => Error::Contended(report),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GONE: Failure = Failure::Lost(LostReason::Gone);
    const LATE: Failure = Failure::Lost(LostReason::Expired);

    #[test]
    fn failure_is_the_cause_that_more_nodes_give_than_may_fail() {
        use Failure::{Contended, Expired, NoQuorum, Nodes};
        // Four nodes, of which one may fail: so two can deny while the other two fail.
        let of = |[failed, permanent, denied]: [usize; 3], overdue| Refusals {
            spare: 1,
            failed,
            permanent,
            denied,
            may_lack: 1,
            overdue,
        };
        let cases = [
            (of([0, 0, 2], false), [Contended, GONE, GONE]),
            (of([0, 0, 2], true), [Contended, GONE, GONE]),
            (of([2, 0, 2], false), [NoQuorum, GONE, GONE]),
            (of([2, 2, 2], false), [Nodes, Nodes, GONE]),
            (of([2, 2, 0], true), [Nodes, Nodes, LATE]),
            (of([2, 2, 1], false), [Nodes, Nodes, Nodes]),
            (of([2, 1, 1], false), [NoQuorum, NoQuorum, NoQuorum]),
            (of([2, 1, 1], true), [Expired, Expired, LATE]),
            (of([1, 1, 1], false), [Contended, NoQuorum, NoQuorum]),
            (of([0, 0, 0], true), [Expired, Expired, LATE]),
        ];
        for (refusals, expected) in cases {
            let tried = [Tried::Acquire, Tried::Adopt, Tried::Extend];
            assert_eq!(tried.map(|tried| classify(tried, refusals)), expected, "{refusals:?}");
        }
    }
}
