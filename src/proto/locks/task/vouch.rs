//! Vouching: an operator declares that no lock is live on these nodes, so that their grants count
//! without the rest of the quarantine.
//!
//! The hazard is a node that forgets keys after the operator has vouched. So its grants count only
//! if the client has found no further reason for quarantine since then.

use crate::proto::error::{Error, NodeError, NodeReply, Report};
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::round::replies::Replies;

/// How the answer of a node counts. `still_true`: the client has found no further reason for
/// quarantine since the operator vouched.
pub fn counted(reply: NodeReply, still_true: bool) -> NodeReply {
    match reply {
        NodeReply::Granted if !still_true => NodeReply::Failed(NodeError::Quarantined),
        reply => reply,
    }
}

/// The outcome, when every node has answered, or the time of the task is over.
pub fn outcome(replies: &Replies, quorum: usize, report: Box<Report>) -> Result<Outcome, Error> {
    if replies.that_are(NodeReply::Granted).len() >= quorum {
        Ok(Outcome::Vouched(report))
    } else {
        Err(Error::NoQuorum(report))
    }
}
