//! The bytes of one connection: what is to be written, what came in and is not yet a whole reply,
//! and the unanswered questions in their order. The link knows no key, no quorum and no ttl.
//!
//! The hazard is a reply taken for the answer to another question. Replies come in the order of the
//! questions, so each consumes the oldest ask. A reply that its ask cannot have ends the
//! connection.

use std::collections::VecDeque;
use std::fmt;

use bytes::{Buf, BytesMut};

use crate::proto::error::{NodeError, NodeReply};
use crate::proto::inspection::Value;
use crate::proto::key::KeyHash;
use crate::proto::settings::{Limits, Secret};
use crate::proto::time::Instant;
use crate::proto::wire::command::Form;
use crate::proto::wire::handshake::{Fact, Step, time};
use crate::proto::wire::marker::Marker;
use crate::proto::wire::resp::{self, Elements, Malformed, Reply};

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
    /// The script that deletes a key if it holds what was seen there.
    DeleteSeen,
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
    /// To a step of the handshake, or to the writing of a marker: the content is in [`Link::fact`].
    Fact,
    /// To `TIME`: microseconds on the node's clock, if the node reported them.
    Time(Option<u64>),
    /// To a question whose answer is not used.
    Heard,
    /// To `GETRANGE`: what the node holds is in [`Link::seen`]; an error has its cause.
    Value(Result<(), NodeError>),
    /// To `PTTL`: milliseconds, -1 if the key has no expiry, -2 if there is no key; nothing if it
    /// was refused.
    Left(Option<i64>),
    /// To `CLIENT KILL`: whether the connection is known to be gone.
    Gone(bool),
}

/// What came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming {
    /// The answer to the oldest question.
    Answer(Ask, Answer),
    /// A push: a database of the node was flushed.
    Flushed,
    /// A push: another client wrote to a registered key with this hash, or the node forgot that the
    /// key was registered.
    Written(KeyHash),
}

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The bytes are not RESP, or are past a limit.
    Malformed(Malformed),
    /// A reply that the command cannot give.
    Impossible(Kind),
    /// A reply without a question; an error has its cause.
    Unasked(Option<NodeError>),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Malformed(malformed) => malformed.fmt(f),
            Fault::Impossible(kind) => write!(f, "a reply that {kind:?} cannot have"),
            Fault::Unasked(None) => f.write_str("a reply to nothing"),
            Fault::Unasked(Some(cause)) => cause.fmt(f),
        }
    }
}

/// How much of an error line is kept for reports.
const KEPT_ERROR: usize = 160;

/// The longest code of an error: `NOREPLICAS`, `MASTERDOWN`, `CLUSTERDOWN`.
const LONGEST_CODE: usize = 16;

/// The bytes of one connection.
#[derive(Default)]
pub struct Link {
    outbox: BytesMut,
    partial: BytesMut,
    asks: VecDeque<Ask>,
    /// How many of the asks are not written yet: always the youngest.
    unwritten: usize,
    /// The content of the last answer to a step of the handshake. It is kept apart from the
    /// answers, which are moved about on the hot path and have to be small.
    fact: Fact,
    /// The content of the last answer to `GETRANGE`, kept here for the same reason.
    seen: Option<Value>,
    /// The keys of a push that reported writes to several.
    written: Vec<KeyHash>,
    last_answer: Instant,
    last_error: String,
    /// A node or a proxy may repeat a secret that was sent to it: an error line that contains it is
    /// not kept.
    secret: Option<Secret>,
}

/// `Debug` does not show the bytes: credentials are among them.
impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("outbox", &self.outbox.len())
            .field("partial", &self.partial.len())
            .field("asks", &self.asks.len())
            .field("unwritten", &self.unwritten)
            .field("last_error", &self.last_error)
            .finish_non_exhaustive()
    }
}

impl Link {
    /// Forgets everything of a connection that is gone. Returns the unanswered questions, oldest
    /// first.
    pub fn reset(&mut self) -> VecDeque<Ask> {
        self.outbox.clear();
        self.partial.clear();
        self.written.clear();
        self.unwritten = 0;
        std::mem::take(&mut self.asks)
    }

    /// From now on, no error that repeats this secret is kept.
    pub fn hide(&mut self, secret: Option<Secret>) {
        self.secret = secret;
    }

    /// Puts a question into the outbox.
    pub fn ask(&mut self, ask: Ask, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.outbox);
        self.asks.push_back(ask);
        self.unwritten += 1;
    }

    /// Whether something new may be asked: half of the room is kept for releases.
    pub fn has_room(&self, limits: &Limits) -> bool {
        self.asks.len() < limits.asks / 2 && self.outbox.len() < limits.outbox / 2
    }

    /// Whether a release may be asked.
    pub fn has_room_for_release(&self, limits: &Limits) -> bool {
        self.asks.len() < limits.asks && self.outbox.len() < limits.outbox
    }

    /// What is to be written.
    pub fn output(&self) -> &[u8] {
        &self.outbox
    }

    /// Takes note that the first `count` bytes of the output were written. The silence of a node
    /// counts from when its question was written, not from when it was put into the outbox.
    pub fn sent(&mut self, count: usize, now: Instant) {
        self.outbox.advance(count);
        if self.outbox.is_empty() {
            let written = self.asks.len() - self.unwritten.min(self.asks.len());
            self.asks.iter_mut().skip(written).for_each(|ask| ask.written_at = now);
            self.unwritten = 0;
        }
    }

    /// How many questions are unanswered.
    pub fn unanswered(&self) -> usize {
        self.asks.len()
    }

    /// When the oldest unanswered question was written.
    pub fn oldest_ask(&self) -> Option<Instant> {
        self.asks.front().map(|ask| ask.written_at)
    }

    /// The content of the last answer to a step of the handshake.
    pub fn fact(&self) -> Fact {
        self.fact
    }

    /// The content of the last answer to `GETRANGE`: what the node holds.
    pub fn seen(&self) -> Option<Value> {
        self.seen
    }

    /// When the last answer came.
    pub fn last_answer(&self) -> Instant {
        self.last_answer
    }

    /// The last error line, shortened and made printable; empty if there was none.
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// The next event in the bytes that were read: `input` is consumed.
    ///
    /// # Errors
    /// [`Fault`] when the connection cannot go on.
    pub fn next_incoming(
        &mut self,
        input: &mut &[u8],
        now: Instant,
    ) -> Result<Option<Incoming>, Fault> {
        loop {
            if let Some(key) = self.written.pop() {
                return Ok(Some(Incoming::Written(key)));
            }
            let kept = !self.partial.is_empty();
            if kept {
                self.partial.extend_from_slice(input);
                *input = &[];
            }
            let bytes: &[u8] = if kept { &self.partial } else { input };
            let step = resp::decode(bytes, &resp::Limits::default()).map_err(Fault::Malformed)?;
            let resp::Step::Complete { reply, consumed } = step else {
                if !kept {
                    self.partial.extend_from_slice(input);
                    *input = &[];
                }
                return Ok(None);
            };
            if let Reply::Error(line) = reply {
                self.last_error.clear();
                let kind = self.asks.front().map(|ask| ask.kind);
                let kept = kept_of_error(line, kind, self.secret.as_ref());
                self.last_error.extend(kept.escape_ascii().map(char::from));
            }
            let incoming = match reply {
                Reply::Push(elements) => told(elements, &mut self.written),
                _ => Some(take(&mut self.asks, (&mut self.fact, &mut self.seen), &reply)?),
            };
            if kept {
                self.partial.advance(consumed);
            } else {
                *input = &input[consumed..];
            }
            if incoming.is_some() {
                self.last_answer = now;
                return Ok(incoming);
            }
        }
    }
}

/// Gives the reply to the oldest question. A reply that the question cannot have leaves the
/// question unanswered: it is reported as lost with the others, when the connection ends.
fn take(
    asks: &mut VecDeque<Ask>,
    (fact, seen): (&mut Fact, &mut Option<Value>),
    reply: &Reply<'_>,
) -> Result<Incoming, Fault> {
    let Some(&ask) = asks.front() else {
        let cause = match reply {
            Reply::Error(line) => Some(NodeError::of_error(line)),
            _ => None,
        };
        return Err(Fault::Unasked(cause));
    };
    let answer = match ask.kind {
        Kind::Handshake(step) => step.read(reply).map(|told| {
            *fact = told;
            Answer::Fact
        }),
        Kind::Probe => time(reply).map(Answer::Time),
        Kind::LastWord | Kind::Caching => Some(Answer::Heard),
        Kind::Mark => Step::Mark.read(reply).map(|told| {
            *fact = told;
            Answer::Fact
        }),
        Kind::Look => value(reply).map(|told| Answer::Value(told.map(|value| *seen = value))),
        Kind::LookLeft | Kind::Register => left(reply).map(Answer::Left),
        Kind::Kill { .. } => match reply {
            // An old node reports by an error that it refused, or that there is no such client.
            // Neither proves that the connection is gone.
            Reply::Error(_) => Some(Answer::Gone(false)),
            Reply::Integer(_) | Reply::Simple(b"OK") => Some(Answer::Gone(true)),
            _ => None,
        },
        kind => said(kind, reply).map(Answer::NodeReply),
    };
    let answer = answer.ok_or(Fault::Impossible(ask.kind))?;
    asks.pop_front();
    Ok(Incoming::Answer(ask, answer))
}

/// Reads a push: `invalidate` with the keys that were written to, or with nothing if a database was
/// flushed. Pushes of other kinds are ignored.
fn told(push: Elements<'_>, written: &mut Vec<KeyHash>) -> Option<Incoming> {
    let mut elements = push.iter();
    if elements.next() != Some(Reply::Bulk(b"invalidate")) {
        return None;
    }
    match elements.next()? {
        Reply::Null => Some(Incoming::Flushed),
        Reply::Array(keys) => {
            written.extend(keys.iter().filter_map(|key| match key {
                Reply::Bulk(key) => Some(KeyHash::of(key)),
                _ => None,
            }));
            written.pop().map(Incoming::Written)
        }
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
fn left(reply: &Reply<'_>) -> Option<Option<i64>> {
    match *reply {
        Reply::Integer(millis) => Some(Some(millis)),
        Reply::Error(_) => Some(None),
        _ => None,
    }
}

/// What a reply says of the key; `None` if the command cannot have such a reply.
fn said(kind: Kind, reply: &Reply<'_>) -> Option<NodeReply> {
    if kind == Kind::Vouch {
        return match *reply {
            Reply::Bulk(value) => Some(match Marker::parse(value) {
                Some(marker) if marker.vouched => NodeReply::Granted,
                Some(_) => NodeReply::Failed(NodeError::Quarantined),
                // Another program uses the key.
                None => NodeReply::Failed(NodeError::WrongType),
            }),
            // The marker changed while the command was in flight: the node forgot something.
            Reply::Null => Some(NodeReply::Failed(NodeError::Quarantined)),
            Reply::Error(line) => Some(NodeReply::Failed(NodeError::of_error(line))),
            _ => None,
        };
    }
    let script =
        matches!(kind, Kind::Extend(_) | Kind::Release(_) | Kind::Adopt | Kind::DeleteSeen);
    if kind == Kind::Exists {
        return match *reply {
            Reply::Integer(0) => Some(NodeReply::Absent),
            Reply::Integer(1) => Some(NodeReply::Held),
            Reply::Error(line) => Some(NodeReply::Failed(NodeError::of_error(line))),
            _ => None,
        };
    }
    if kind == Kind::Delete {
        return match *reply {
            Reply::Integer(0) => Some(NodeReply::Absent),
            Reply::Integer(1) => Some(NodeReply::Granted),
            Reply::Error(line) => Some(NodeReply::Failed(NodeError::of_error(line))),
            _ => None,
        };
    }
    match *reply {
        Reply::Simple(b"OK") if !script => Some(NodeReply::Granted),
        Reply::Null if !script => Some(NodeReply::Held),
        Reply::Integer(1) if script => Some(NodeReply::Granted),
        Reply::Integer(0) if script => Some(NodeReply::Absent),
        Reply::Integer(-1) if script => Some(NodeReply::Held),
        Reply::Error(line) => Some(match NodeError::of_error(line) {
            // The script found a key that is no string: it belongs to another program.
            NodeError::WrongType => NodeReply::Held,
            cause => NodeReply::Failed(cause),
        }),
        _ => None,
    }
}

/// What may be kept of an error line.
///
/// A node repeats an unknown command with as many of its arguments as it likes, and with spaces for
/// the ends of lines. So the text of an error that answers the credentials is always dropped. Of
/// any other error that repeats the secret only the code is kept.
fn kept_of_error<'a>(line: &'a [u8], kind: Option<Kind>, secret: Option<&Secret>) -> &'a [u8] {
    let secret = secret.map_or(&[][..], |secret| secret.reveal().as_bytes());
    let is_same = |(&told, &ours): (&u8, &u8)| {
        told == ours || (told == b' ' && matches!(ours, b'\r' | b'\n'))
    };
    let repeats = |line: &[u8]| {
        let mut parts = line.windows(secret.len().max(1));
        !secret.is_empty() && parts.any(|part| part.iter().zip(secret).all(is_same))
    };
    let has_credentials = matches!(kind, Some(Kind::Handshake(Step::Hello | Step::Auth)));
    if has_credentials || repeats(line) { code(line) } else { &line[..line.len().min(KEPT_ERROR)] }
}

/// The code that an error line begins with: one short word of capitals. Empty if the line begins
/// otherwise.
fn code(line: &[u8]) -> &[u8] {
    let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
    let word = &line[..end];
    let is_code = end <= LONGEST_CODE && word.iter().all(u8::is_ascii_uppercase);
    if is_code { word } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(7);

    fn link(kinds: &[Kind]) -> Link {
        let mut link = Link::default();
        for (index, &kind) in kinds.iter().enumerate() {
            let ask = Ask::new(index as u32, 0, kind, Instant::default());
            link.ask(ask, |_| {});
        }
        link
    }

    fn answers(link: &mut Link, mut input: &[u8]) -> Result<Vec<(u32, Answer)>, Fault> {
        let mut answers = Vec::new();
        while let Some(incoming) = link.next_incoming(&mut input, NOW)? {
            if let Incoming::Answer(ask, answer) = incoming {
                answers.push((ask.record, answer));
            }
        }
        assert!(input.is_empty());
        Ok(answers)
    }

    const RELEASE: Kind = Kind::Release(Form::Sha);

    #[test]
    fn answers_come_in_the_order_of_the_questions_however_they_are_split() {
        let kinds = [Kind::Acquire, Kind::Acquire, RELEASE, Kind::Extend(Form::Sha), RELEASE];
        let stream = b"+OK\r\n$-1\r\n:1\r\n-OOM full\r\n:-1\r\n";
        let whole = answers(&mut link(&kinds), stream).unwrap();
        assert_eq!(
            whole.iter().map(|a| a.1).collect::<Vec<_>>(),
            [
                Answer::NodeReply(NodeReply::Granted),
                Answer::NodeReply(NodeReply::Held),
                Answer::NodeReply(NodeReply::Granted),
                Answer::NodeReply(NodeReply::Failed(NodeError::OutOfMemory)),
                Answer::NodeReply(NodeReply::Held),
            ]
        );
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let mut link = link(&kinds);
                let parts = [&stream[..first], &stream[first..second], &stream[second..]];
                let mut split = Vec::new();
                for part in parts {
                    split.extend(answers(&mut link, part).unwrap());
                }
                assert_eq!(split, whole, "split at {first} and {second}");
                assert_eq!(link.unanswered(), 0);
            }
        }
    }

    #[test]
    fn a_reply_that_the_command_cannot_give_ends_the_connection() {
        let cases: [(Kind, &[u8]); 7] = [
            (Kind::Acquire, b":1\r\n"),
            (Kind::Acquire, b"+QUEUED\r\n"),
            (Kind::Acquire, b"$2\r\nOK\r\n"),
            (RELEASE, b"+OK\r\n"),
            (RELEASE, b":2\r\n"),
            (RELEASE, b"_\r\n"),
            (Kind::Extend(Form::Source), b"*0\r\n"),
        ];
        for (kind, reply) in cases {
            let mut link = link(&[kind]);
            assert_eq!(answers(&mut link, reply), Err(Fault::Impossible(kind)));
            assert_eq!(link.unanswered(), 1, "whoever asked has to hear of the end");
        }
        let malformed = answers(&mut link(&[RELEASE]), b"HTTP/1.1 400 Bad Request\r\n");
        assert!(matches!(malformed, Err(Fault::Malformed(_))));
    }

    #[test]
    fn a_reply_to_nothing_ends_the_connection_and_a_push_does_not() {
        assert_eq!(answers(&mut link(&[]), b"+OK\r\n"), Err(Fault::Unasked(None)));
        let full = answers(&mut link(&[]), b"-ERR max number of clients reached\r\n");
        assert_eq!(full, Err(Fault::Unasked(Some(NodeError::TooManyClients))));
        let push = b">2\r\n$10\r\ninvalidate\r\n_\r\n+OK\r\n";
        let answers = answers(&mut link(&[Kind::Acquire]), push).unwrap();
        assert_eq!(answers, [(0, Answer::NodeReply(NodeReply::Granted))]);
    }

    #[test]
    fn a_flush_is_told_without_being_asked_for() {
        let mut link = link(&[]);
        let mut input: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";
        assert_eq!(link.next_incoming(&mut input, NOW), Ok(Some(Incoming::Flushed)));
        let mut input: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
        let written = |key: &[u8]| Ok(Some(Incoming::Written(KeyHash::of(key))));
        assert_eq!(link.next_incoming(&mut input, NOW), written(b"k"));
        let mut input: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n";
        assert_eq!(link.next_incoming(&mut input, NOW), written(b"b"));
        assert_eq!(link.next_incoming(&mut input, NOW), written(b"a"));
        let mut input: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*0\r\n>1\r\n$4\r\nelse\r\n";
        assert_eq!(link.next_incoming(&mut input, NOW), Ok(None));
    }

    #[test]
    fn what_belongs_to_no_record_is_read_too() {
        let kill = Kind::Kill { client_id: 3 };
        let mut link = link(&[Kind::Probe, kill, kill, Kind::Exists, Kind::Probe]);
        let time = b"*2\r\n$10\r\n1700000000\r\n$6\r\n000042\r\n";
        let rest = b":1\r\n-NOPERM no\r\n:1\r\n-NOPERM no\r\n";
        let told = answers(&mut link, &[&time[..], rest].concat()).unwrap();
        assert_eq!(
            told.iter().map(|answer| answer.1).collect::<Vec<_>>(),
            [
                Answer::Time(Some(1_700_000_000_000_042)),
                Answer::Gone(true),
                Answer::Gone(false),
                Answer::NodeReply(NodeReply::Held),
                Answer::Time(None),
            ]
        );
    }

    #[test]
    fn silence_counts_from_when_a_question_was_written() {
        let mut link = link(&[]);
        let ask = Ask::new(0, 0, RELEASE, Instant::default());
        link.ask(ask, |out| out.extend_from_slice(b"abc"));
        link.sent(2, Instant::from_nanos(3));
        assert_eq!(link.oldest_ask(), Some(Instant::default()), "it is not written yet");
        link.sent(1, Instant::from_nanos(5));
        assert_eq!(link.oldest_ask(), Some(Instant::from_nanos(5)));
        link.ask(ask, |out| out.extend_from_slice(b"abc"));
        link.sent(3, Instant::from_nanos(9));
        assert_eq!(link.oldest_ask(), Some(Instant::from_nanos(5)), "the first was written before");
    }

    #[test]
    fn half_of_the_place_is_kept_for_releases() {
        let limits = Limits { records: 1, asks: 4, outbox: 100 };
        let mut link = link(&[Kind::Acquire]);
        assert!(link.has_room(&limits));
        link.ask(Ask { kind: RELEASE, ..link.asks[0] }, |_| {});
        assert!(!link.has_room(&limits) && link.has_room_for_release(&limits));
        link.ask(Ask { kind: RELEASE, ..link.asks[0] }, |out| out.extend_from_slice(&[0; 100]));
        assert!(!link.has_room_for_release(&limits));
        link.sent(60, NOW);
        assert!(link.has_room_for_release(&limits));
    }

    #[test]
    fn an_error_line_is_kept_short_and_printable() {
        let mut link = link(&[Kind::Acquire]);
        let mut line = b"-ERR \x1b[31m".to_vec();
        line.extend([b'x'; 5000]);
        line.extend(b"\r\n");
        answers(&mut link, &line).unwrap();
        assert!(link.last_error().starts_with("ERR \\x1b[31mxxx"));
        assert!(link.last_error().len() < 2 * KEPT_ERROR);
    }

    #[test]
    fn a_password_is_neither_shown_nor_kept() {
        let mut link = link(&[]);
        link.hide(Some(Secret::new("hunter2")));
        let ask = Ask::new(0, 0, RELEASE, NOW);
        link.ask(ask, |out| out.extend_from_slice(b"AUTH hunter2"));
        let padding = "x".repeat(KEPT_ERROR);
        for line in ["args beginning with: 'hunter2'", &format!("{padding}hunter2")] {
            link.asks.push_back(ask);
            answers(&mut link, format!("-ERR {line}\r\n").as_bytes()).unwrap();
            link.partial.extend_from_slice(b"hunter2");
            assert_eq!(link.last_error(), "ERR");
            assert!(!format!("{link:?}").contains("hunter2"));
            link.partial.clear();
        }
        // A server writes the ends of lines as spaces.
        link.hide(Some(Secret::new("hunter2\n")));
        link.asks.push_back(ask);
        answers(&mut link, b"-ERR it was hunter2 that was said\r\n").unwrap();
        assert_eq!(link.last_error(), "ERR");
    }

    #[test]
    fn of_an_error_to_hello_or_auth_only_the_code_is_kept() {
        let long: String = ('a'..='z').cycle().take(193).collect();
        let asks = [Step::Hello, Step::Auth].map(Kind::Handshake);
        for password in [long.as_str(), "first-half\nsecond-half"] {
            for kind in asks {
                let mut link = link(&[kind; 3]);
                link.hide(Some(Secret::new(password)));
                // A server repeats as much as it likes of it, with spaces for the ends of lines.
                let told: String = password.replace('\n', " ").chars().take(100).collect();
                let line = format!("-ERR unknown command 'AUTH', beginning with: '{told}'\r\n");
                assert_eq!(answers(&mut link, line.as_bytes()).unwrap(), [(0, Answer::Fact)]);
                assert_eq!(link.fact(), Fact::Refused(NodeError::UnknownCommand));
                assert_eq!(link.last_error(), "ERR");
                // Some node or proxy may begin with it, too.
                answers(&mut link, format!("-{told}\r\n").as_bytes()).unwrap();
                assert_eq!(link.last_error(), "");
                answers(&mut link, b"-WRONGPASS invalid username-password pair\r\n").unwrap();
                assert_eq!(link.last_error(), "WRONGPASS");
            }
        }
    }
}
