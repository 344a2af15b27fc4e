//! Why a lock is lost, why a request was refused for a limit, and why a client has ended.

use std::fmt;

/// Why a lock is not held any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The deadline came, and too few nodes had agreed to a later one.
    Expired,
    /// So many nodes say that the key is gone, or holds another token, that no majority can hold
    /// it.
    Gone,
    /// The lock was held for as long as it may be:
    /// [`AutoExtend::at_most`](crate::proto::locks::renew::schedule::AutoExtend::at_most).
    MaxHold,
    /// The lock was extended as often as it may be:
    /// [`AutoExtend::extensions`](crate::proto::locks::renew::schedule::AutoExtend::extensions).
    Extensions,
    /// The lock was over before the call: released, given away or lost.
    Over,
    /// Somebody asked this leader of an election to step down.
    AskedToResign,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LostReason::Expired => "its deadline passed",
            LostReason::Gone => "its key is gone on too many nodes",
            LostReason::MaxHold => "its longest hold time is over",
            LostReason::Extensions => "its extension limit is reached",
            LostReason::Over => "it was already released, given away or lost",
            LostReason::AskedToResign => "this leader was asked to resign",
        })
    }
}

/// Which limit of the client was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
            Busy::Records => {
                "busy: the limit of open locks is reached; release some, or raise limits.records"
            }
            Busy::Nodes => {
                "busy: too few nodes take requests; ask again later, or raise limits.asks and \
                 limits.outbox"
            }
            Busy::Lock => {
                "busy: another extend or release of this lock is in flight; wait for its outcome"
            }
        })
    }
}

/// Why a client has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
            ClosedReason::Asked => "client was closed: it sends nothing; create another one",
            ClosedReason::DriverGone => {
                "client lost its driver: its thread panicked or its runtime ended; create \
                 another one"
            }
            ClosedReason::Forked => "client was inherited across fork(); create one in the child",
        })
    }
}
