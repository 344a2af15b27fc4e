//! Why a round that was not won failed: the one place that decides which error it ends with.
//!
//! The hazard is a lock that is given up while a majority may still hold it. So it counts as gone
//! only if more nodes say so than may fail.

use crate::proto::error::{ConfigError, Error, LostReason, NodeError, Report};
use crate::proto::locks::round::replies::Replies;
use crate::proto::quorum::Ballot;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tried {
    /// Keys that may be free.
    Acquire,
    /// Keys that a token holds.
    Adopt,
    /// To keep keys for longer.
    Extend,
}

/// How many nodes did not say yes, and why.
#[derive(Debug, Clone, Copy, Default)]
pub struct Refusals {
    /// How many nodes may fail while the others still are a quorum.
    pub spare: usize,
    /// Nodes that failed, for any cause.
    pub failed: usize,
    /// Nodes that failed for a cause that lasts.
    pub permanent: usize,
    /// Nodes that said no; for an extend, that the key is not ours any more.
    pub denied: usize,
    /// The deadline has passed.
    pub overdue: bool,
}

impl Refusals {
    /// As the nodes voted, and what they said.
    pub fn of(ballot: &Ballot, replies: &Replies, spare: usize, overdue: bool) -> Refusals {
        Refusals {
            spare,
            failed: ballot.errors().len(),
            permanent: replies.count_failed(NodeError::is_permanent),
            denied: ballot.denials().len(),
            overdue,
        }
    }
}

/// Why a round failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The lock that it was about is over.
    Lost(LostReason),
    /// Too many nodes refuse for a cause that lasts.
    Nodes,
    /// A majority may have granted, but the ttl had run out.
    Expired,
    /// Too few nodes gave a vote that counts.
    NoQuorum,
    /// Others hold the keys.
    Contended,
}

/// Why a round failed that no majority said yes to in time.
pub fn classify(tried: Tried, refusals: Refusals) -> Failure {
    let Refusals { spare, failed, permanent, denied, overdue } = refusals;
    match tried {
        // The lock was held until now, so the first question is whether it still is.
        Tried::Extend if denied > spare => Failure::Lost(LostReason::Gone),
        Tried::Extend if overdue => Failure::Lost(LostReason::Expired),
        _ if permanent > spare => Failure::Nodes,
        Tried::Extend => Failure::NoQuorum,
        Tried::Adopt if denied > spare => Failure::Lost(LostReason::Gone),
        _ if overdue && denied <= spare => Failure::Expired,
        _ if failed > spare => Failure::NoQuorum,
        _ => Failure::Contended,
    }
}

impl Failure {
    /// The error of a request that ends with it.
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
    fn failure_is_what_more_nodes_say_than_may_fail() {
        use Failure::{Contended, Expired, NoQuorum, Nodes};
        // Of four nodes one may fail: two of them can deny while the others fail.
        let of = |[failed, permanent, denied]: [usize; 3], overdue| Refusals {
            spare: 1,
            failed,
            permanent,
            denied,
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
            (of([1, 1, 1], false), [Contended, Contended, NoQuorum]),
            (of([0, 0, 0], true), [Expired, Expired, LATE]),
        ];
        for (refusals, expected) in cases {
            let tried = [Tried::Acquire, Tried::Adopt, Tried::Extend];
            assert_eq!(tried.map(|tried| classify(tried, refusals)), expected, "{refusals:?}");
        }
    }
}
