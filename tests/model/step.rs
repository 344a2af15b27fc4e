//! One step of a run.

use std::fmt;

/// A step: what happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The next command that a client sent arrives at a node.
    ToNode { client: u8, node: u8 },
    /// The next bytes that a node sent arrive at a client.
    ToClient { client: u8, node: u8 },
    /// The next command arrives of a connection that its client has lost.
    Late { orphan: u8 },
    /// A client connects to a node, and the handshake goes through.
    Connect { client: u8, node: u8 },
    /// A client acts on its timers.
    Turn { client: u8 },
    /// Time passes up to the next moment at which something is due or a key expires.
    Time,
    /// Time passes while clients that have something due are stopped.
    Stall,
    /// All messages arrive and clients do what is due, before time passes. Only for the steps that
    /// a run begins with.
    Settle,
    /// A client asks for the lock.
    Acquire { client: u8 },
    /// A client cancels its acquire.
    Cancel { client: u8 },
    /// A holder extends its lock.
    Extend { client: u8 },
    /// A holder releases its lock.
    Release { client: u8 },
    /// A holder gives its lock away.
    HandOff { client: u8 },
    /// A client adopts the lock that was given away.
    Adopt { client: u8 },
    /// A connection breaks; its client notices.
    Cut { client: u8, node: u8 },
    /// A node restarts, without its keys or with them.
    Restart { node: u8, empty: bool },
    /// A node is killed, and starts again with the data that another node has at that moment.
    Copy { node: u8, from: u8 },
    /// A node is stopped: it executes nothing until it continues.
    Freeze { node: u8 },
    /// A stopped node continues.
    Thaw { node: u8 },
    /// An operator flushes a node.
    Flush { node: u8 },
    /// An operator deletes the key of the lock on a node.
    Delete { node: u8 },
    /// An operator flushes the scripts of a node.
    ForgetScripts { node: u8 },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::ToNode { client, node } => write!(f, "client {client} -> node {node}"),
            Step::ToClient { client, node } => write!(f, "client {client} <- node {node}"),
            Step::Late { orphan } => write!(f, "late, on lost connection {orphan}"),
            Step::Connect { client, node } => write!(f, "client {client} connects to node {node}"),
            Step::Turn { client } => write!(f, "client {client} does what is due"),
            Step::Time => f.write_str("time passes"),
            Step::Stall => f.write_str("time passes, and what is due has to wait"),
            Step::Settle => f.write_str("all messages arrive"),
            Step::Acquire { client } => write!(f, "client {client} asks for the lock"),
            Step::Cancel { client } => write!(f, "client {client} cancels"),
            Step::Extend { client } => write!(f, "client {client} extends"),
            Step::Release { client } => write!(f, "client {client} releases"),
            Step::HandOff { client } => write!(f, "client {client} gives its lock away"),
            Step::Adopt { client } => write!(f, "client {client} adopts the lock"),
            Step::Cut { client, node } => write!(f, "cut between client {client} and node {node}"),
            Step::Restart { node, empty: true } => write!(f, "node {node} restarts empty"),
            Step::Restart { node, empty: false } => write!(f, "node {node} restarts with its keys"),
            Step::Copy { node, from } => {
                write!(f, "node {node} comes back as a copy of node {from}")
            }
            Step::Freeze { node } => write!(f, "node {node} is stopped"),
            Step::Thaw { node } => write!(f, "node {node} goes on"),
            Step::Flush { node } => write!(f, "node {node} is flushed"),
            Step::Delete { node } => write!(f, "the key is deleted on node {node}"),
            Step::ForgetScripts { node } => write!(f, "node {node} forgets its scripts"),
        }
    }
}
