//! What is asked on a connection, and what a reply can mean to it.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::time::Instant;
use crate::proto::wire::command::Form;
use crate::proto::wire::handshake::Step;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `SET NX PX`.
    Acquire,
    /// The extend script.
    Extend(Form),
    /// `SET NX PX` of a lock that is held, on a node that lost its key.
    Heal,
    /// The script that adopts a lock under a new token.
    Adopt,
    /// The release script.
    Release(Form),
    /// `EXISTS`: after a native release that answered 0, is the key gone or another's?
    Exists,
    /// `DEL`, even if another client holds the key.
    Delete,
    /// `GETRANGE`: what does the node hold?
    Look,
    /// `PTTL` after `GETRANGE`: for how long does the node hold it?
    LookLeft,
    /// `CLIENT CACHING YES`: asks the node to report writes to the next key that is read. It
    /// belongs to no record.
    Caching,
    /// `PTTL`, which registers the key, so that the node reports writes to it. It belongs to no
    /// record: the record that sent it may be over when the answer comes.
    Register,
    /// A step of the handshake; it belongs to no record.
    Handshake(Step),
    /// `TIME`: does the node answer, and has its clock jumped? It belongs to no record.
    Probe,
    /// The script that writes the node marker, for the next process. It belongs to no record.
    Mark,
    /// The script that writes the node marker by which an operator vouches for the node.
    Vouch,
    /// A release that is repeated at the end of a client, which does not wait for its answer. It
    /// belongs to no record.
    LastWord,
    /// `CLIENT KILL ID` of an earlier connection of ours. It belongs to no record.
    Kill {
        /// The earlier connection's number on the node.
        client_id: i64,
    },
}

impl Kind {
    /// Whether the question is about a record.
    pub const fn is_about_a_record(self) -> bool {
        !matches!(
            self,
            Kind::Handshake(_)
                | Kind::Probe
                | Kind::Mark
                | Kind::LastWord
                | Kind::Kill { .. }
                | Kind::Caching
                | Kind::Register
        )
    }

    /// Whether the question may create the key, or write a new token to it.
    pub const fn creates(self) -> bool {
        matches!(self, Kind::Acquire | Kind::Heal | Kind::Adopt)
    }

    /// Whether the question may create the key, or extend it. Such a question has to be followed by
    /// a release.
    pub const fn may_create(self) -> bool {
        matches!(self, Kind::Acquire | Kind::Extend(_) | Kind::Heal | Kind::Adopt)
    }
}

/// A question in flight: one reply will consume it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The record that the question is about.
    pub record: u32,
    /// The round of that record.
    pub round: u32,
    /// What was asked.
    pub kind: Kind,
    /// When the question was put into the outbox.
    pub asked_at: Instant,
    /// When the question was written; until then, when it was put into the outbox.
    pub written_at: Instant,
}

impl Ask {
    /// A question that is asked now.
    pub const fn new(record: u32, round: u32, kind: Kind, now: Instant) -> Ask {
        Ask { record, round, kind, asked_at: now, written_at: now }
    }
}

/// What a reply means to the question it answers. It borrows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// To a question about a key.
    NodeReply(NodeReply),
    /// To a step of the handshake, or to the writing of a marker: the content is in `Link::fact`.
    Fact,
    /// To `TIME`: microseconds on the node's clock, if the node reported them.
    Time(Option<u64>),
    /// To a question whose answer is not used.
    Heard,
    /// To `GETRANGE`: what the node holds is in `Link::seen`; an error has its cause.
    Value(Result<(), NodeError>),
    /// To `PTTL`: milliseconds, -1 if the key has no expiry, -2 if there is no key; nothing if it
    /// was refused.
    Left(Option<i64>),
    /// To `CLIENT KILL`: whether the connection is known to be gone.
    Gone(bool),
}
