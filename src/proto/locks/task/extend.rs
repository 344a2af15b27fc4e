//! An extend by a token alone, without a lock of this client.
//!
//! The hazard is a set of which only some keys are extended. So a node extends all keys or none,
//! and only a node that extended all of them grants.

use bytes::BytesMut;

use crate::proto::cluster::Cluster;
use crate::proto::error::{NodeError, NodeReply};
use crate::proto::key::KeyPrefix;
use crate::proto::keys::KeysRef;
use crate::proto::lock::LockToken;
use crate::proto::locks::round::failure::Refusals;
use crate::proto::locks::round::replies::Replies;
use crate::proto::locks::round::state::vote_of;
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::{Ballot, Verdict};
use crate::proto::time::Ttl;
use crate::proto::wire::ask::TaskAsk;
use crate::proto::wire::command;
use crate::proto::wire::counters::NO_COUNTERS;
use crate::proto::wire::known_scripts::ScriptName;
use crate::proto::wire::sets::{self, SetKeys};

/// An extend by a token that another client may have drawn. It has one round, and no release
/// follows.
#[derive(Debug, Clone)]
pub struct TokenExtend {
    token: LockToken,
    /// How long the keys are to live.
    ttl: Ttl,
    ballot: Ballot,
    /// Nodes whose grant does not count: they were in quarantine when they were asked, or have been
    /// since, and this client does not know how their keys were created.
    uncounted: NodeSet,
    /// Nodes that answered that a key is absent or another client's.
    absent: NodeSet,
}

/// The question to a node.
pub fn ask(node: NodeId, keys: KeysRef<'_>, cluster: &Cluster) -> TaskAsk {
    match keys {
        KeysRef::One(_) => TaskAsk::Extend(cluster.form_of(node, ScriptName::Extend)),
        KeysRef::Several(_) => TaskAsk::ExtendAll(cluster.form_of(node, ScriptName::ExtendSet)),
    }
}

impl TokenExtend {
    /// An extend of keys that hold `token` to at least `ttl`. This ballot decides.
    pub fn new(token: LockToken, ttl: Ttl, ballot: Ballot) -> TokenExtend {
        let (uncounted, absent) = (NodeSet::EMPTY, NodeSet::EMPTY);
        TokenExtend { token, ttl, ballot, uncounted, absent }
    }

    /// How long the keys are to live.
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// Encodes the question.
    pub fn encode(
        &self,
        ask: TaskAsk,
        keys: KeysRef<'_>,
        prefix: &mut KeyPrefix,
        out: &mut BytesMut,
    ) {
        let (token, ttl) = (&self.token, self.ttl);
        match (ask, keys) {
            (TaskAsk::Extend(form), KeysRef::One(key)) => {
                command::extend(out, form, prefix.put_before(key), token, ttl);
            }
            (TaskAsk::ExtendAll(form), KeysRef::Several(keys)) => {
                let (bytes, ends) = keys.as_parts();
                let (keys, what) = (SetKeys { prefix, bytes, ends }, (token, Some(ttl)));
                sets::extend(out, form, keys, what, NO_COUNTERS);
            }
            (other, _) => unreachable!("{other:?} does not extend {keys:?}"),
        }
    }

    /// Notes the answer of a node, and returns the reply that counts as its vote.
    pub fn counted(&mut self, node: NodeId, reply: NodeReply) -> NodeReply {
        match reply {
            NodeReply::Granted if self.uncounted.contains(node) => {
                NodeReply::Failed(NodeError::Quarantined)
            }
            NodeReply::Held | NodeReply::Absent => {
                self.absent.insert(node);
                reply
            }
            _ => reply,
        }
    }

    /// Casts the reply of a node as its vote.
    pub fn cast(&mut self, node: NodeId, reply: NodeReply) {
        if let Some(vote) = vote_of(reply) {
            self.ballot.cast(node, vote);
        }
    }

    /// From now on a grant of this node does not count. Returns whether one had counted, and was
    /// withdrawn.
    pub fn doubt(&mut self, node: NodeId) -> bool {
        self.uncounted.insert(node);
        let granted = self.ballot.grants().contains(node);
        let counted = granted && self.ballot.verdict() == Verdict::Undecided;
        if counted {
            self.ballot.withdraw(node);
        }
        counted
    }

    /// Whether a majority extended the keys.
    pub fn is_won(&self) -> bool {
        self.ballot.verdict() == Verdict::Won
    }

    /// How many nodes said that the token does not hold all keys, and vote.
    fn lacking(&self, cluster: &Cluster) -> usize {
        self.absent.common(cluster.voters()).len()
    }

    /// How many nodes did not extend the keys, and why.
    pub fn refused(&self, replies: &Replies, cluster: &Cluster, overdue: bool) -> Refusals {
        let voted = Refusals::of(&self.ballot, replies, cluster.spare_nodes(), overdue);
        Refusals { denied: self.lacking(cluster), may_lack: cluster.may_lack(), ..voted }
    }

    /// Ends the extend if it cannot be won any more: called before any node is asked.
    pub fn end_if_hopeless(&mut self) {
        self.ballot.end_if_hopeless();
    }

    /// Whether the extend is decided: by its votes, or because so many nodes lack the token that it
    /// is gone.
    pub fn is_over(&self, cluster: &Cluster) -> bool {
        let is_decided = self.ballot.verdict() != Verdict::Undecided;
        is_decided || self.lacking(cluster) > cluster.may_lack()
    }
}
