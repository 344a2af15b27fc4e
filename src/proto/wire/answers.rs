//! What a reply means to the question that it answers.
//!
//! The hazard is a reply that is bent to fit: a reply that the command cannot have means nothing,
//! and ends the connection.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::inspection::Value;
use crate::proto::wire::ask::Kind;
use crate::proto::wire::marker::Marker;
use crate::proto::wire::resp::Reply;

/// Reads the reply to `GETRANGE`.
pub(super) fn value(reply: &Reply<'_>) -> Option<Result<Option<Value>, NodeError>> {
    match *reply {
        Reply::Bulk(bytes) => Some(Ok(Some(Value::of(bytes)))),
        Reply::Null => Some(Ok(None)),
        Reply::Error(line) => Some(Err(NodeError::of_error(line))),
        _ => None,
    }
}

/// Reads the reply to `PTTL`.
pub(super) fn left(reply: &Reply<'_>) -> Option<Option<i64>> {
    match *reply {
        Reply::Integer(millis) => Some(Some(millis)),
        Reply::Error(_) => Some(None),
        _ => None,
    }
}

/// What a reply says of the key; `None` if the command cannot have such a reply.
pub(super) fn said(kind: Kind, reply: &Reply<'_>) -> Option<NodeReply> {
    if kind == Kind::Vouch {
        return match *reply {
            Reply::Bulk(value) => Some(match Marker::parse(value) {
                Some(marker) if marker.vouched => NodeReply::Granted,
                Some(_) => NodeReply::Failed(NodeError::Quarantined),
                // Another program uses the key.
                None => NodeReply::Failed(NodeError::WrongType),
            }),
            // The marker changed while the command was in flight: the node forgot something.
            Reply::Null => Some(NodeReply::Failed(NodeError::Quarantined)),
            Reply::Error(line) => Some(NodeReply::Failed(NodeError::of_error(line))),
            _ => None,
        };
    }
    let script = matches!(kind, Kind::Extend(_) | Kind::Release(_) | Kind::Adopt);
    if kind == Kind::Exists {
        return match *reply {
            Reply::Integer(0) => Some(NodeReply::Absent),
            Reply::Integer(1) => Some(NodeReply::Held),
            Reply::Error(line) => Some(NodeReply::Failed(NodeError::of_error(line))),
            _ => None,
        };
    }
    if kind == Kind::Delete {
        return match *reply {
            Reply::Integer(0) => Some(NodeReply::Absent),
            Reply::Integer(1) => Some(NodeReply::Granted),
            Reply::Error(line) => Some(NodeReply::Failed(NodeError::of_error(line))),
            _ => None,
        };
    }
    match *reply {
        Reply::Simple(b"OK") if !script => Some(NodeReply::Granted),
        Reply::Null if !script => Some(NodeReply::Held),
        Reply::Integer(1) if script => Some(NodeReply::Granted),
        Reply::Integer(0) if script => Some(NodeReply::Absent),
        Reply::Integer(-1) if script => Some(NodeReply::Held),
        Reply::Error(line) => Some(match NodeError::of_error(line) {
            // The script found a key that is no string: it belongs to another program.
            NodeError::WrongType => NodeReply::Held,
            cause => NodeReply::Failed(cause),
        }),
        _ => None,
    }
}
