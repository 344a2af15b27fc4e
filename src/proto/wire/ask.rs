//! What is asked on a connection. A question says what it concerns, so that a question of the
//! cluster's own cannot be taken for one about a record.
//!
//! Many thousand questions may be in flight, and each is moved about on the hot path. So a question
//! has 16 bytes, and the moments are kept once for each write (`Moments` in the connection).

use std::fmt;

use crate::proto::ids::{RecordId, TaskId};
use crate::proto::wire::command::Form;
use crate::proto::wire::handshake::Step;

/// A question in flight: one reply will consume it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// About the lock of a record.
    Lock(LockAsk),
    /// `PTTL`, which registers a key of a record, so that the node reports writes to it: the number
    /// of the key among those of the record, from 0 on. The record may be over when the answer
    /// comes.
    Register(RecordId, u8),
    /// For a task.
    Task(TaskId, TaskAsk),
    /// The cluster's own.
    Node(NodeAsk),
}

/// A question about the lock of a record. The record stays open until it is answered or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockAsk {
    /// The record.
    pub record: RecordId,
    /// The round of that record.
    pub round: u32,
    /// What was asked.
    pub kind: Kind,
}

/// What was asked about a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `SET NX PX`.
    Acquire,
    /// The extend script.
    Extend(Form),
    /// `SET NX PX` of a lock that is held, on a node that lost its key.
    Heal,
    /// The script that adopts a lock under a new token.
    Adopt,
    /// As `Acquire`, by the script that counts.
    AcquireFenced(Form),
    /// As `Extend`, by the script that also raises the counter to the fencing number.
    ExtendFenced(Form),
    /// As `Heal`, by the script that also raises the counter.
    HealFenced,
    /// Raises the counter of a lock that is being acquired: the second round of a fenced acquire.
    WriteBack(Form),
    /// As `Acquire`, by the script over all keys of a set.
    AcquireSet(Form),
    /// As `Extend`, over all keys.
    ExtendSet(Form),
    /// As `Heal`, over all keys.
    HealSet,
    /// As `Adopt`, over all keys.
    AdoptSet,
    /// As `Release`, over all keys.
    ReleaseSet(Form),
    /// As `AcquireFenced`, over all keys.
    AcquireFencedSet(Form),
    /// As `ExtendFenced`, over all keys.
    ExtendFencedSet(Form),
    /// As `HealFenced`, over all keys.
    HealFencedSet,
    /// As `WriteBack`, over all keys.
    WriteBackSet(Form),
    /// The release script.
    Release(Form),
    /// `EXISTS`: after a native release that answered 0, is the key gone or another's?
    Exists,
    /// The script that asks for the key or for a place in its line, and the same as a poll.
    Join(Form),
    /// The extend script, for a key that was handed to a waiter: before its lock is handed out.
    Claim(Form),
}

/// What was asked for a task. The task stays open until it is answered or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskAsk {
    /// `GETRANGE`: what does the node hold?
    ReadValue,
    /// `PTTL` after `GETRANGE`: for how long does the node hold it?
    ReadTtl,
    /// `ZRANGE` of the line beside the key: which waiters of fair locks stand there?
    ReadLine,
    /// `DEL`, even if another client holds the key.
    Delete,
    /// The script that deletes a key if it holds what was seen there.
    DeleteSeen,
    /// The extend script, for a token that another client may have drawn.
    Extend(Form),
    /// The script that writes the node marker by which an operator vouches for the node.
    Vouch,
}

/// What the cluster asks for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NodeAsk {
    /// A step of the handshake.
    Handshake(Step),
    /// A step of the handshake that is asked again and again while the node is connected: has its
    /// clock jumped, is the node marker still the known one, and may the node evict?
    Probe(Step),
    /// The script that writes the node marker, for the next process.
    Mark,
    /// A release that is repeated at the end of a client, which does not wait for its answer.
    LastWord,
    /// `CLIENT KILL ID` of an earlier connection of ours. They are asked, and answered, in the
    /// order in which the node's entry has them.
    Kill,
    /// `CLIENT CACHING YES`: asks the node to report writes to the next key that is read.
    Caching,
    /// `SUBSCRIBE` to the channel of this client. The answer is a push, or an error.
    Subscribe,
    /// `SCRIPT LOAD` of a script of the line. If refused, the script is sent by its source.
    LoadForLine,
}

impl Kind {
    /// Whether the question may create the key, or write a new token to it, now or later.
    pub const fn creates(self) -> bool {
        matches!(
            self,
            Kind::Acquire
                | Kind::Heal
                | Kind::Adopt
                | Kind::AcquireFenced(_)
                | Kind::HealFenced
                | Kind::Join(_)
                | Kind::AcquireSet(_)
                | Kind::HealSet
                | Kind::AdoptSet
                | Kind::AcquireFencedSet(_)
                | Kind::HealFencedSet
        )
    }

    /// Whether the question may create the key, or extend it. Such a question has to be followed by
    /// a release. A write-back does neither, but it is only sent where the key may be.
    pub const fn may_create(self) -> bool {
        !matches!(self, Kind::Release(_) | Kind::ReleaseSet(_) | Kind::Exists)
    }

    /// The same question, with the whole source of its script.
    #[must_use]
    pub const fn by_source(self) -> Kind {
        match self {
            Kind::Extend(_) => Kind::Extend(Form::Source),
            Kind::Release(_) => Kind::Release(Form::Source),
            Kind::AcquireFenced(_) => Kind::AcquireFenced(Form::Source),
            Kind::ExtendFenced(_) => Kind::ExtendFenced(Form::Source),
            Kind::WriteBack(_) => Kind::WriteBack(Form::Source),
            Kind::Join(_) => Kind::Join(Form::Source),
            Kind::Claim(_) => Kind::Claim(Form::Source),
            Kind::AcquireSet(_) => Kind::AcquireSet(Form::Source),
            Kind::ExtendSet(_) => Kind::ExtendSet(Form::Source),
            Kind::ReleaseSet(_) => Kind::ReleaseSet(Form::Source),
            Kind::AcquireFencedSet(_) => Kind::AcquireFencedSet(Form::Source),
            Kind::ExtendFencedSet(_) => Kind::ExtendFencedSet(Form::Source),
            Kind::WriteBackSet(_) => Kind::WriteBackSet(Form::Source),
            other => other,
        }
    }

    /// Whether the question is about all keys of a set.
    #[inline]
    pub const fn is_of_set(self) -> bool {
        let asks = matches!(self, Kind::AcquireSet(_) | Kind::ExtendSet(_) | Kind::ReleaseSet(_));
        asks || matches!(self, Kind::HealSet | Kind::AdoptSet) || self.is_of_fenced_set()
    }

    /// Whether the question is about all keys of a set and their counters.
    #[inline]
    pub const fn is_of_fenced_set(self) -> bool {
        let votes = matches!(self, Kind::AcquireFencedSet(_) | Kind::HealFencedSet);
        votes || matches!(self, Kind::ExtendFencedSet(_) | Kind::WriteBackSet(_))
    }

    /// Whether the answer has the votes for fencing numbers.
    pub const fn asks_for_votes(self) -> bool {
        matches!(self, Kind::AcquireFenced(_) | Kind::AcquireFencedSet(_))
    }

    /// Whether the question is `SET NX PX`, and no script.
    pub const fn is_plain_set(self) -> bool {
        matches!(self, Kind::Acquire | Kind::Heal)
    }

    /// Whether the question extends keys and raises their counters.
    pub const fn extends_fenced(self) -> bool {
        matches!(self, Kind::ExtendFenced(_) | Kind::ExtendFencedSet(_))
    }

    /// Whether the question asks for a key that no client holds.
    pub const fn acquires(self) -> bool {
        matches!(self, Kind::Acquire | Kind::AcquireSet(_)) || self.asks_for_votes()
    }

    /// Whether a fair lock asks this by a script that names the line of its key.
    pub const fn names_the_line(self) -> bool {
        matches!(self, Kind::Join(_) | Kind::Release(_))
    }
}

impl Ask {
    /// Whether the node may create or extend a key when it executes the question late.
    pub const fn may_create(self) -> bool {
        match self {
            Ask::Lock(ask) => ask.kind.may_create(),
            Ask::Task(_, kind) => matches!(kind, TaskAsk::Extend(_)),
            Ask::Register(..) | Ask::Node(_) => false,
        }
    }
}

/// What was asked, without what it concerns.
impl fmt::Display for Ask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ask::Lock(ask) => write!(f, "{:?}", ask.kind),
            Ask::Register(..) => f.write_str("Register"),
            Ask::Task(_, kind) => write!(f, "{kind:?}"),
            Ask::Node(kind) => write!(f, "{kind:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_in_flight_has_sixteen_bytes() {
        assert!(size_of::<Ask>() <= 16, "{} bytes", size_of::<Ask>());
    }
}
