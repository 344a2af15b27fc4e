//! The forced release: an operator decided that the holder of a key is gone. It deletes the key
//! whatever it holds, or only if it holds the value that an inspection saw.
//!
//! The hazard is a key that changed after the inspection: another client may hold it by now. So
//! each node compares the value with the one that was seen there, and deletes no other.

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::error::NodeReply;
use crate::proto::inspection::{Inspection, KeyState};
use crate::proto::locks::round::replies::Replies;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::node_set::NodeId;
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::command;

/// Encodes the deletion of the key, whatever it holds.
pub fn encode(key: &[u8], out: &mut BytesMut) {
    command::encode(out, &[b"DEL", key]);
}

/// How the deletion of a key ended, by the answers so far.
pub fn outcome(replies: &Replies, cluster: &Cluster) -> ReleaseOutcome {
    let [deleted, absent] = [NodeReply::Granted, NodeReply::Absent].map(|it| replies.that_are(it));
    let nodes = cluster.voters().minus(deleted).minus(absent);
    if nodes.len() > cluster.spare_nodes() {
        ReleaseOutcome::Unconfirmed { nodes }
    } else if deleted.is_empty() {
        ReleaseOutcome::AlreadyExpired
    } else {
        ReleaseOutcome::Released
    }
}

/// Whether the outcome of a deletion is known: a majority holds nothing now, and a node had the
/// key; or all nodes have answered; or the missing answers cannot make that a majority.
pub fn is_decided(replies: &Replies, cluster: &Cluster) -> bool {
    let deleted = replies.that_are(NodeReply::Granted);
    let clear = deleted.union(replies.that_are(NodeReply::Absent));
    let missing = cluster.voters().minus(replies.said_something()).len();
    let quorum = cluster.quorum();
    let is_done = !deleted.is_empty() && clear.len() >= quorum;
    is_done || missing == 0 || clear.len() + missing < quorum
}

/// What an inspection saw at a key on each node. The key is deleted only where it still has that
/// value.
#[derive(Debug, Clone)]
pub struct SeenValues(Box<[KeyState]>);

impl SeenValues {
    /// What this inspection saw.
    pub fn of(seen: &Inspection) -> SeenValues {
        SeenValues(seen.nodes.iter().map(|node| node.state).collect())
    }

    fn at(&self, node: NodeId) -> KeyState {
        self.0.get(node.index()).copied().unwrap_or(KeyState::Absent)
    }

    /// The reply that counts for a node that is not asked: the inspection saw no key there, or
    /// failed.
    pub fn reply_of(&self, node: NodeId) -> Option<NodeReply> {
        match self.at(node) {
            KeyState::Absent => Some(NodeReply::Absent),
            KeyState::Failed(cause) => Some(NodeReply::Failed(cause)),
            KeyState::Held { .. } => None,
        }
    }

    /// Encodes the deletion of the value that was seen on this node.
    pub fn encode(&self, node: NodeId, ask: TaskAsk, key: &[u8], out: &mut BytesMut) {
        let KeyState::Held { value, .. } = self.at(node) else { return };
        match ask {
            TaskAsk::DeleteSeenBy(native) => {
                command::delete_if_equal(out, native, key, value.as_bytes());
            }
            _ => command::delete_seen(out, key, &value),
        }
    }
}
