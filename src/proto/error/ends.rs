//! Why a lock is lost, why a request was refused for a limit, and why a client has ended.

use std::fmt;

/// Why a lock is not held any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// The deadline came, and too few nodes had agreed to a later one.
    Expired,
    /// So many nodes say that the key is gone, or holds another token, that no majority can hold
    /// it.
    Gone,
    /// The lock was held for as long as it may be:
    /// [`AutoExtend::at_most`](crate::proto::locks::auto_extend::AutoExtend::at_most).
    MaxHold,
    /// The lock was extended as often as it may be:
    /// [`AutoExtend::extensions`](crate::proto::locks::auto_extend::AutoExtend::extensions).
    Extensions,
    /// The lock was over before: released, given away or lost.
    Over,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostReason::Expired => "its deadline came",
            LostReason::Gone => "its key is gone on too many nodes",
            LostReason::MaxHold => "it was held for as long as it may be",
            LostReason::Extensions => "it was extended as often as it may be",
            LostReason::Over => "it was over before",
        })
    }
}

/// Which limit of the client was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Busy {
    /// As many records are open as `limits.records` allows.
    Records,
    /// So much waits to be sent that fewer than a quorum of the nodes can be asked.
    Nodes,
    /// An extend or a release of the lock is in flight already.
    Lock,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Busy::Records => "busy: as many locks are open as the limit allows",
            Busy::Nodes => "busy: too much waits for the nodes to ask a quorum of them",
            Busy::Lock => "busy: this lock is already being extended or released",
        })
    }
}

/// Why a client has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClosedReason {
    /// The program closed the client.
    Asked,
    /// The driver of the client is gone: its thread panicked, or the runtime of its task ended.
    DriverGone,
    /// The client belongs to the process that this one was forked from.
    Forked,
}

impl fmt::Display for ClosedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ClosedReason::Asked => "the client was closed",
            ClosedReason::DriverGone => {
                "the client is not driven any more: its thread or runtime ended"
            }
            ClosedReason::Forked => "the client belongs to the process before the fork",
        })
    }
}
