//! Vouching: an operator says that no lock is live on these nodes, so their grants count at once.
//!
//! The hazard is a node that forgets something after the operator has vouched: what was found out
//! since then is not covered.

use crate::proto::error::{Error, NodeError, NodeReply, Report};
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::round::replies::Replies;

/// What counts of a node's answer. `still_true`: nothing was found out since the operator vouched.
pub fn counted(reply: NodeReply, still_true: bool) -> NodeReply {
    match reply {
        NodeReply::Granted if !still_true => NodeReply::Failed(NodeError::Quarantined),
        reply => reply,
    }
}

/// Every node has answered, or the node timeout has passed.
pub fn outcome(replies: &Replies, quorum: usize, report: Box<Report>) -> Result<Outcome, Error> {
    if replies.that_are(NodeReply::Granted).len() >= quorum {
        Ok(Outcome::Vouched(report))
    } else {
        Err(Error::NoQuorum(report))
    }
}
