//! What is asked on a connection. A question says what it concerns, so that a question of the
//! cluster itself cannot be taken for one about a record.
//!
//! Many thousand questions may be in flight, and each is moved about on the hot path. So a question
//! has 16 bytes, and the moments are kept once for each write (`Moments` in the connection).

use std::fmt;

use crate::proto::error::NodeReply;
use crate::proto::ids::{RecordId, TaskId};
use crate::proto::wire::command::{Form, Native};
use crate::proto::wire::handshake::Step;
use crate::proto::wire::known_scripts::ScriptName;

/// A question in flight: one reply will consume it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// About the lock of a record.
    Lock(LockAsk),
    /// `PTTL`, which registers a key of a record, so that the node reports writes to it. The record
    /// may be over when the answer comes.
    Register(RecordId),
    /// A question for a task.
    Task(TaskId, TaskAsk),
    /// A question of the cluster itself.
    Node(NodeAsk),
}

/// A question about the lock of a record. The record stays open until the question is answered or
/// lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockAsk {
    /// The record.
    pub record: RecordId,
    /// The round of that record.
    pub round: u32,
    /// What was asked.
    pub kind: Kind,
    /// How the question was put into bytes.
    pub sent: Encoding,
}

/// What was asked about a lock: the verb. The record says which keys it concerns; how it was sent
/// is in [`Encoding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Asks for the keys. With counters, also for the votes for fencing numbers.
    Acquire,
    /// Prolongs the keys. With counters, it also raises them to the fencing numbers.
    Extend,
    /// Asks for the keys of a lock that is held, on a node that lost them.
    Heal,
    /// Adopts a lock under a new token.
    Adopt,
    /// Raises the counters of a lock that is being acquired: the second round of a fenced acquire.
    WriteBack,
    /// Gives the keys up.
    Release,
    /// Asks, after a native release that answered 0, whether the key is gone or another's.
    Exists,
    /// Asks for the key or for a place in its line; also as a poll.
    Join,
    /// Prolongs a key that was handed to a waiter, before its lock is handed out. With counters, it
    /// also asks for the vote for the fencing number.
    Claim,
}

/// How a question about a lock was put into bytes. The connection needs this to read the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Encoding {
    /// How the script was sent, or the native command or transaction that took its place. `None`
    /// for `SET` and `EXISTS`.
    pub form: Option<Form>,
    /// Which keys of the node the command names.
    pub names: Names,
}

/// Which keys of a node a command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Names {
    /// The key of the lock.
    Key,
    /// The key and its line.
    KeyAndLine,
    /// All keys of the lock. Also for a single key, if its answer has the form that names a key.
    AllKeys,
    /// All keys of the lock and the line of each.
    AllKeysAndLines,
    /// All keys of the lock and their fencing counters.
    AllKeysAndCounters,
}

impl Names {
    /// Whether these are all keys of the lock.
    #[inline]
    pub const fn is_all_keys(self) -> bool {
        matches!(self, Names::AllKeys | Names::AllKeysAndLines | Names::AllKeysAndCounters)
    }

    /// Whether fencing counters are among them.
    #[inline]
    pub const fn has_counters(self) -> bool {
        matches!(self, Names::AllKeysAndCounters)
    }
}

/// What was asked for a task. The task stays open until the question is answered or lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskAsk {
    /// `GETRANGE`: what does the node hold?
    ReadValue,
    /// `PTTL` after `GETRANGE`: for how long does the node hold it?
    ReadTtl,
    /// `ZRANGE` of the line beside the key: which waiters stand there?
    ReadLine,
    /// `DEL`, even if another client holds the key.
    Delete,
    /// The script that deletes a key if it holds what was seen there.
    DeleteSeen,
    /// The native command in the place of that script.
    DeleteSeenBy(Native),
    /// The extend script, for a token that another client may have drawn.
    Extend(Form),
    /// The same for all keys of a set.
    ExtendAll(Form),
    /// `SET` of a note beside the key.
    WriteNote,
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
    /// The script that writes the node marker, for later clients.
    Mark,
    /// The script that writes the list of masters.
    Members,
    /// The first of two commands on a node that runs no scripts. The answer to the second one says
    /// what both did.
    Unread,
    /// A command at the end of a client, which does not wait for the answer.
    LastWord,
    /// `CLIENT KILL ID` of an earlier connection of ours. These commands are sent, and answered, in
    /// the order in which the cluster keeps the connections' numbers.
    Kill,
    /// `CLIENT CACHING YES`: asks the node to report writes to the next key that is read.
    Caching,
    /// `SUBSCRIBE` to the channel of this client. The answer is a push, or an error.
    Subscribe,
    /// `SCRIPT LOAD`. If refused, the script is sent by its source.
    Load(ScriptName),
}

impl Kind {
    /// Whether the question may create the key, or write a new token to it, now or later.
    pub const fn creates(self) -> bool {
        matches!(self, Kind::Acquire | Kind::Heal | Kind::Adopt | Kind::Join)
    }

    /// Whether the question may create the key, or extend it. Such a question has to be followed by
    /// a release. A write-back does neither, but counts too, because it is only sent where the key
    /// may be.
    pub const fn may_create(self) -> bool {
        match self {
            Kind::Acquire | Kind::Extend | Kind::Heal | Kind::Adopt => true,
            Kind::WriteBack | Kind::Join | Kind::Claim => true,
            Kind::Release | Kind::Exists => false,
        }
    }

    /// Whether the script for this verb names the line of the key, if the lock is handed over when
    /// it is released.
    pub const fn names_the_line(self) -> bool {
        matches!(self, Kind::Join | Kind::Release)
    }
}

impl LockAsk {
    /// Whether the answer has the votes for fencing numbers.
    pub fn asks_for_votes(&self) -> bool {
        matches!(self.kind, Kind::Acquire | Kind::Claim) && self.sent.names.has_counters()
    }

    /// Whether the question is a transaction in place of a script.
    #[inline]
    pub fn is_transaction(&self) -> bool {
        self.sent.form == Some(Form::Transaction)
    }

    /// Whether the question is a `SET` with `IFEQ` in place of a script.
    #[inline]
    pub fn is_replacement(&self) -> bool {
        let native = matches!(self.sent.form, Some(Form::Native(_)));
        native && matches!(self.kind, Kind::Extend | Kind::Claim | Kind::Adopt)
    }

    /// Whether the node refused to run the script by its SHA1, and may run it by its source.
    #[inline]
    pub fn is_refused_by_sha1(&self, reply: NodeReply) -> bool {
        reply.asks_for_the_source() && self.sent.form == Some(Form::Sha)
    }
}

impl Ask {
    /// The script of the question and how it is sent, if it is one of which the connection notes
    /// whether the node knows it.
    pub fn script(&self) -> Option<(ScriptName, Form)> {
        match *self {
            Ask::Lock(LockAsk { kind, sent, .. }) => match sent.form? {
                form @ (Form::Sha | Form::Source) => {
                    ScriptName::of(kind, sent.names).map(|name| (name, form))
                }
                Form::Native(_) | Form::Transaction => None,
            },
            Ask::Task(_, TaskAsk::Extend(form)) => Some((ScriptName::Extend, form)),
            Ask::Task(_, TaskAsk::ExtendAll(form)) => Some((ScriptName::ExtendSet, form)),
            Ask::Node(NodeAsk::Load(name) | NodeAsk::Handshake(Step::Load(name))) => {
                Some((name, Form::Source))
            }
            Ask::Register(..) | Ask::Task(..) | Ask::Node(_) => None,
        }
    }

    /// Whether this is a question about a lock that is sent without the source of a script, as
    /// nearly all are.
    #[inline]
    pub const fn is_without_source(&self) -> bool {
        matches!(self, Ask::Lock(ask) if !matches!(ask.sent.form, Some(Form::Source)))
    }

    /// Whether the replicas of the node have to confirm a grant, where that is required. A waiter
    /// that has the key by a join claims it before it believes that.
    pub const fn is_confirmed_by_replicas(self) -> bool {
        match self {
            Ask::Lock(ask) => ask.kind.may_create() && !matches!(ask.kind, Kind::Join),
            Ask::Task(..) | Ask::Register(..) | Ask::Node(_) => self.may_create(),
        }
    }

    /// Whether the node may create or extend a key when it executes the question late.
    pub const fn may_create(self) -> bool {
        match self {
            Ask::Lock(ask) => ask.kind.may_create(),
            Ask::Task(_, kind) => matches!(kind, TaskAsk::Extend(_) | TaskAsk::ExtendAll(_)),
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
