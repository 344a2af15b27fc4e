//! What a reply means to the question that it answers.
//!
//! The hazard is a reply that is taken for what it is not. So a reply that the command cannot have
//! means nothing, and ends the connection. Each question has answers of its own type, so no reader
//! of an answer has to ask which question it belongs to.

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::inspection::Value;
use crate::proto::wire::ask::{Kind, LockAsk, Names, TaskAsk};
use crate::proto::wire::command::Form;
use crate::proto::wire::handshake::Step;
use crate::proto::wire::line::{self, Standing};
use crate::proto::wire::marker::MarkerState;
use crate::proto::wire::members::MembersState;
use crate::proto::wire::resp::Reply;
use crate::proto::wire::sets;

/// The answer to a question of a task. It borrows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskAnswer {
    /// The answer to `GETRANGE`: what the node holds is in `Connection::seen`; an error has its
    /// cause.
    Value(Result<(), NodeError>),
    /// The answer to `PTTL`: milliseconds, -1 if the key has no expiry, -2 if there is no key;
    /// `None` if the node refused the command.
    Left(Option<i64>),
    /// The answer to `ZRANGE`: `Connection::take_seen_line` returns the waiters; none if the node
    /// refused.
    Line,
    /// The answer to the extend script.
    Extended(Form, NodeReply),
    /// The answer to the extend script over a set, with the number of the key that is in the way,
    /// from 0 on.
    ExtendedAll(Form, NodeReply, u64),
    /// The answer to `DEL`.
    Deleted(NodeReply),
    /// The answer to the script that deletes what was seen.
    DeletedSeen(NodeReply),
    /// The answer to `SET` of a note.
    NoteWritten(NodeReply),
    /// The answer to the script that vouches for the node.
    Vouched(NodeReply),
}

/// The answer to a question of the cluster itself. It borrows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeAnswer {
    /// The answer to a step of the handshake: the content is in `Connection::fact`.
    Handshake(Step),
    /// The answer to the script that writes a marker: the content is in `Connection::fact`.
    Marked,
    /// The answer to the script that writes the list of masters: the content is in
    /// `Connection::fact` and `Connection::take_members`.
    ListWritten,
    /// The answer to a probe: the content is in `Connection::fact`.
    Probed(Step),
    /// The answer to `CLIENT KILL`: whether the connection is known to be gone.
    Gone(bool),
    /// The answer to `SUBSCRIBE`: whether messages come on this connection from now on.
    Subscribed(bool),
    /// The answer to a question whose answer is not used.
    Unused,
}

impl TaskAnswer {
    /// What the node said of the key, if that was the question.
    pub const fn reply(self) -> Option<NodeReply> {
        match self {
            TaskAnswer::Extended(_, answer)
            | TaskAnswer::ExtendedAll(_, answer, _)
            | TaskAnswer::Deleted(answer)
            | TaskAnswer::DeletedSeen(answer)
            | TaskAnswer::NoteWritten(answer)
            | TaskAnswer::Vouched(answer) => Some(answer),
            TaskAnswer::Value(_) | TaskAnswer::Left(_) | TaskAnswer::Line => None,
        }
    }
}

/// What the last answers about locks say in detail, besides yes and no.
#[derive(Debug, Clone, Default)]
pub(super) struct Details {
    /// From a join.
    pub standing: Standing,
    /// From `SET` with `IFEQ`: the value that the key had before; empty if it had none.
    pub before: Vec<u8>,
    /// From an answer about all keys: the number of the key that the node named, from 0 on.
    pub named: u64,
    /// The votes for the fencing numbers, one for each key.
    pub votes: Vec<u64>,
}

/// Reads the reply to a question about a lock; `None` if the command cannot have such a reply. What
/// the reply says in detail is kept in `details`.
pub(super) fn about_lock(
    ask: LockAsk,
    reply: &Reply<'_>,
    details: &mut Details,
) -> Option<NodeReply> {
    let acquires = matches!(ask.kind, Kind::Acquire | Kind::Heal);
    let read = match ask.sent.names {
        Names::Key if ask.is_replacement() => return replaced(reply, &mut details.before),
        Names::Key | Names::KeyAndLine => {
            return about_key(ask.kind, reply, &mut details.standing);
        }
        Names::AllKeys if acquires => sets::acquire_answer(reply),
        Names::AllKeysAndCounters if acquires => sets::acquire_votes(reply, &mut details.votes),
        Names::AllKeysAndCounters if ask.kind == Kind::Claim => {
            sets::claim_votes(reply, &mut details.votes)
        }
        Names::AllKeys | Names::AllKeysAndLines | Names::AllKeysAndCounters => sets::answer(reply),
    };
    match read {
        Some((said, named)) => {
            details.named = named;
            Some(said)
        }
        // A value of another type is no denial here: it may be that of a counter, which says
        // nothing of the keys.
        None => failed(reply),
    }
}

/// Reads the reply to a question about one key without its counter.
fn about_key(kind: Kind, reply: &Reply<'_>, standing: &mut Standing) -> Option<NodeReply> {
    match kind {
        Kind::Acquire | Kind::Heal => match *reply {
            Reply::Simple(b"OK") => Some(NodeReply::Granted),
            Reply::Null => Some(NodeReply::Held),
            _ => refused(reply),
        },
        Kind::Join => match Standing::read(reply) {
            Some((mine, read)) => {
                *standing = read;
                Some(if mine { NodeReply::Granted } else { NodeReply::Held })
            }
            None => failed(reply),
        },
        Kind::Exists => by_count(reply, NodeReply::Held),
        _ => by_script(reply),
    }
}

/// Reads the reply to `SET` with `IFEQ` and `GET`, which is the value before. The token is not
/// known here, so a value counts as another client's until it is compared.
fn replaced(reply: &Reply<'_>, before: &mut Vec<u8>) -> Option<NodeReply> {
    before.clear();
    match *reply {
        Reply::Null => Some(NodeReply::Absent),
        Reply::Bulk(value) => {
            before.extend_from_slice(value);
            Some(NodeReply::Held)
        }
        _ => refused(reply),
    }
}

/// Reads a reply straight from the bytes, if it is one of the few plain ones that nearly all
/// questions about locks get. Returns its length, too. Any other reply is for the decoder.
#[inline]
pub(super) fn plain(ask: &LockAsk, bytes: &[u8]) -> Option<(NodeReply, usize)> {
    match ask.kind {
        _ if !may_be_plain(ask) => None,
        Kind::Acquire | Kind::Heal if bytes.starts_with(b"+OK\r\n") => {
            Some((NodeReply::Granted, 5))
        }
        Kind::Acquire | Kind::Heal => bytes.starts_with(b"_\r\n").then_some((NodeReply::Held, 3)),
        Kind::Extend | Kind::Release if bytes.starts_with(b":1\r\n") => {
            Some((NodeReply::Granted, 4))
        }
        Kind::Extend | Kind::Release => {
            bytes.starts_with(b":0\r\n").then_some((NodeReply::Absent, 4))
        }
        Kind::WriteBack | Kind::Adopt | Kind::Exists | Kind::Join | Kind::Claim => None,
    }
}

/// Whether an answer to this question may be a plain one.
#[inline]
pub(super) fn may_be_plain(ask: &LockAsk) -> bool {
    let of_key = matches!(ask.sent.names, Names::Key | Names::KeyAndLine);
    of_key && !(ask.kind == Kind::Extend && ask.is_replacement())
}

/// What the last answers to an inspection say.
#[derive(Debug, Clone, Default)]
pub(super) struct Seen {
    /// The value that `GETRANGE` returned.
    pub value: Option<Value>,
    /// The waiters that `ZRANGE` returned.
    pub line: Vec<Value>,
    /// The list of masters that the node has.
    pub members: MembersState,
}

/// Reads the reply to a question of a task, and keeps what was read of a key in `seen`.
pub(super) fn of_task(kind: TaskAsk, reply: &Reply<'_>, seen: &mut Seen) -> Option<TaskAnswer> {
    match kind {
        TaskAsk::ReadValue => {
            value(reply).map(|read| TaskAnswer::Value(read.map(|value| seen.value = value)))
        }
        TaskAsk::ReadLine => line::members(reply, &mut seen.line).map(|()| TaskAnswer::Line),
        TaskAsk::ReadTtl => left(reply).map(TaskAnswer::Left),
        TaskAsk::Extend(form) => by_script(reply).map(|answer| TaskAnswer::Extended(form, answer)),
        TaskAsk::ExtendAll(form) => {
            let read = sets::answer(reply).or_else(|| failed(reply).map(|said| (said, 0)));
            read.map(|(said, key)| TaskAnswer::ExtendedAll(form, said, key))
        }
        TaskAsk::Delete => by_count(reply, NodeReply::Granted).map(TaskAnswer::Deleted),
        TaskAsk::DeleteSeen => by_script(reply).map(TaskAnswer::DeletedSeen),
        TaskAsk::DeleteSeenBy(_) => {
            // 0 says of a key that is absent, too, that it has not what was seen there.
            let read = by_count(reply, NodeReply::Granted)?;
            let kept = read == NodeReply::Absent;
            Some(TaskAnswer::DeletedSeen(if kept { NodeReply::Held } else { read }))
        }
        TaskAsk::WriteNote => match *reply {
            Reply::Simple(b"OK") => Some(TaskAnswer::NoteWritten(NodeReply::Granted)),
            _ => failed(reply).map(TaskAnswer::NoteWritten),
        },
        TaskAsk::Vouch => vouched(reply).map(TaskAnswer::Vouched),
    }
}

/// Reads the reply of a script: done, absent, or another's.
fn by_script(reply: &Reply<'_>) -> Option<NodeReply> {
    match *reply {
        Reply::Integer(1) => Some(NodeReply::Granted),
        Reply::Integer(0) => Some(NodeReply::Absent),
        Reply::Integer(-1) => Some(NodeReply::Held),
        _ => refused(reply),
    }
}

/// Reads an error in reply to a command that looks at the value of a key.
fn refused(reply: &Reply<'_>) -> Option<NodeReply> {
    match failed(reply)? {
        // The script found a key that is no string: it belongs to another program.
        NodeReply::Failed(NodeError::WrongType) => Some(NodeReply::Held),
        answer => Some(answer),
    }
}

fn failed(reply: &Reply<'_>) -> Option<NodeReply> {
    match *reply {
        Reply::Error(line) => Some(NodeReply::Failed(NodeError::of_error(line))),
        _ => None,
    }
}

/// Reads how many keys there were: 0 means `Absent`, and 1 means `one`.
fn by_count(reply: &Reply<'_>, one: NodeReply) -> Option<NodeReply> {
    match *reply {
        Reply::Integer(0) => Some(NodeReply::Absent),
        Reply::Integer(1) => Some(one),
        _ => failed(reply),
    }
}

/// Reads the reply of the script that vouches for a node.
fn vouched(reply: &Reply<'_>) -> Option<NodeReply> {
    match *reply {
        Reply::Bulk(value) => Some(match MarkerState::read(value) {
            MarkerState::Present(marker) if marker.vouched => NodeReply::Granted,
            // Another program uses the key.
            MarkerState::Unavailable => NodeReply::Failed(NodeError::WrongType),
            _ => NodeReply::Failed(NodeError::Quarantined),
        }),
        // The marker changed while the command was in flight: the node forgot something.
        Reply::Null => Some(NodeReply::Failed(NodeError::Quarantined)),
        _ => failed(reply),
    }
}

/// Reads the reply to `CLIENT KILL`.
pub(super) fn killed(reply: &Reply<'_>) -> Option<bool> {
    match *reply {
        // An old node reports by an error that it refused, or that there is no such client.
        // Neither proves that the connection is gone.
        Reply::Error(_) => Some(false),
        Reply::Integer(_) | Reply::Simple(b"OK") => Some(true),
        _ => None,
    }
}

/// Reads the reply to `GETRANGE`.
fn value(reply: &Reply<'_>) -> Option<Result<Option<Value>, NodeError>> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ids::RecordId;
    use crate::proto::wire::ask::Encoding;
    use crate::proto::wire::command::Native;

    #[test]
    fn extend_by_token_of_a_set_reads_which_key_is_in_the_way() {
        let ask = TaskAsk::ExtendAll(Form::Sha);
        let read = |reply: &Reply<'_>| of_task(ask, reply, &mut Seen::default());
        let answer = |reply, key| Some(TaskAnswer::ExtendedAll(Form::Sha, reply, key));
        assert_eq!(read(&Reply::Integer(1)), answer(NodeReply::Granted, 0));
        assert_eq!(read(&Reply::Integer(-4)), answer(NodeReply::Absent, 1));
        assert_eq!(read(&Reply::Integer(-7)), answer(NodeReply::Held, 2));
        let refused = answer(NodeReply::Failed(NodeError::NoScript), 0);
        assert_eq!(read(&Reply::Error(b"NOSCRIPT no")), refused);
        assert_eq!([0, 2, -1].map(|number| read(&Reply::Integer(number))), [None; 3]);
    }

    #[test]
    fn value_before_a_replacement_is_no_grant_until_it_is_compared() {
        for kind in [Kind::Extend, Kind::Claim, Kind::Adopt] {
            let form = Some(Form::Native(Native::Delex));
            let sent = Encoding { form, names: Names::Key };
            let ask = LockAsk { record: RecordId::of(0), round: 0, kind, sent };
            let mut details = Details::default();
            let mut read =
                |reply: &Reply<'_>| (about_lock(ask, reply, &mut details), details.before.clone());
            assert_eq!(read(&Reply::Bulk(b"t")), (Some(NodeReply::Held), b"t".to_vec()));
            assert_eq!(read(&Reply::Null), (Some(NodeReply::Absent), Vec::new()));
            assert_eq!(read(&Reply::Bulk(b"t")).1, b"t");
            let wrong_type = read(&Reply::Error(b"WRONGTYPE no"));
            assert_eq!(
                wrong_type,
                (Some(NodeReply::Held), Vec::new()),
                "an old value is forgotten"
            );
            let full = Some(NodeReply::Failed(NodeError::OutOfMemory));
            assert_eq!(read(&Reply::Error(b"OOM no")).0, full);
            for impossible in [Reply::Integer(1), Reply::Simple(b"OK")] {
                assert_eq!(read(&impossible).0, None, "{kind:?}");
            }
            for text in [":1\r\n", ":0\r\n", "+OK\r\n", "_\r\n"] {
                assert_eq!(plain(&ask, text.as_bytes()), None, "{kind:?} {text:?}");
            }
        }
    }

    #[test]
    fn usual_answers_are_read_without_the_decoder_and_no_others() {
        let (set, script) = ((Kind::Acquire, None), (Kind::Release, Some(Form::Sha)));
        let cases = [
            (set, "+OK\r\n", Some((NodeReply::Granted, 5))),
            ((Kind::Heal, None), "+OK\r\n+OK\r\n", Some((NodeReply::Granted, 5))),
            (set, "_\r\n", Some((NodeReply::Held, 3))),
            (script, ":1\r\n", Some((NodeReply::Granted, 4))),
            ((Kind::Extend, Some(Form::Source)), ":0\r\n:1\r\n", Some((NodeReply::Absent, 4))),
            (script, ":-1\r\n", None),
            (set, "+OK\r", None),
            (set, ":1\r\n", None),
            ((Kind::Adopt, Some(Form::Source)), ":1\r\n", None),
            ((Kind::Exists, None), ":1\r\n", None),
        ];
        for ((kind, form), text, expected) in cases {
            let about = |names| {
                let sent = Encoding { form, names };
                LockAsk { record: RecordId::of(0), round: 0, kind, sent }
            };
            assert_eq!(plain(&about(Names::Key), text.as_bytes()), expected, "{text:?}");
            for names in [Names::AllKeys, Names::AllKeysAndLines, Names::AllKeysAndCounters] {
                assert_eq!(plain(&about(names), text.as_bytes()), None, "{text:?} of {names:?}");
            }
        }
    }
}
