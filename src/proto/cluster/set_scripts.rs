//! How the scripts over several keys are sent to a node: the first time on a connection by their
//! source, so that the node knows them afterwards. Clients that take one key at a time load none.

use crate::proto::cluster::Cluster;
use crate::proto::node_set::NodeId;
use crate::proto::wire::command::Form;

/// The scripts over several keys that a node is asked often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetScript {
    /// [`ACQUIRE_SET`](crate::proto::wire::sets::ACQUIRE_SET).
    Acquire,
    /// [`EXTEND_SET`](crate::proto::wire::sets::EXTEND_SET).
    Extend,
    /// [`RELEASE_SET`](crate::proto::wire::sets::RELEASE_SET).
    Release,
}

impl Cluster {
    /// How a script over several keys is sent to the node.
    pub fn form_over_set(&mut self, node: NodeId, script: SetScript) -> Form {
        let sent = &mut self.nodes[node.index()].set_scripts_sent[script as usize];
        if std::mem::replace(sent, true) { Form::Sha } else { Form::Source }
    }

    /// The node refused a script over several keys, so it may not know it: the next one is sent by
    /// its source.
    pub fn may_not_know_set_scripts(&mut self, node: NodeId) {
        self.nodes[node.index()].set_scripts_sent = [false; 3];
    }

    /// The number of the key that the node named last, in an answer about all keys of a set.
    pub fn named_key(&self, node: NodeId) -> u64 {
        self.nodes[node.index()].connection.number()
    }
}
