//! The bytes of one connection: what is to be written, what came in and is not yet a whole reply,
//! and what was asked, in order. It knows no key, no quorum and no ttl.
//!
//! The hazard is a reply taken for the answer to another question: replies come in the order of
//! the questions, so each consumes the oldest ask, and one that its ask cannot have is the end of
//! the connection.

use std::collections::VecDeque;
use std::fmt;

use bytes::{Buf, BytesMut};

use super::command::Form;
use super::error::{Cause, Said};
use super::greeting::{Fact, Step};
use super::resp::{self, Malformed, Reply};
use super::settings::Limits;
use super::time::Instant;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `SET NX PX`.
    Acquire,
    /// The extend script.
    Extend(Form),
    /// The release script.
    Release(Form),
    /// A step of the greeting; it belongs to no record.
    Greet(Step),
}

/// A question on its way: one reply will consume it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The record it is about.
    pub record: u32,
    /// The round of that record.
    pub round: u32,
    /// What was asked.
    pub kind: Kind,
    /// When it was put into the outbox.
    pub asked_at: Instant,
}

/// What a reply means to the question it answers. Borrows nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// To a question about a key.
    Said(Said),
    /// To a step of the greeting.
    Fact(Fact),
}

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// What came is not RESP, or is past a limit.
    Malformed(Malformed),
    /// A reply that the command cannot give.
    Impossible(Kind),
    /// A reply to nothing; an error has its cause.
    Unasked(Option<Cause>),
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

/// The bytes of one connection.
#[derive(Debug, Default)]
pub struct Link {
    outbox: BytesMut,
    partial: BytesMut,
    asks: VecDeque<Ask>,
    last_answer: Instant,
    last_error: String,
}

impl Link {
    /// Forgets everything of a connection that is gone. What was asked and not answered is handed
    /// back, oldest first.
    pub fn reset(&mut self) -> VecDeque<Ask> {
        self.outbox.clear();
        self.partial.clear();
        std::mem::take(&mut self.asks)
    }

    /// Puts a question into the outbox.
    pub fn ask(&mut self, ask: Ask, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.outbox);
        self.asks.push_back(ask);
    }

    /// Whether something new may be asked: half of the place is kept for releases.
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

    /// Takes note that the first `count` bytes of the output were written.
    pub fn sent(&mut self, count: usize) {
        self.outbox.advance(count);
    }

    /// How many questions are unanswered.
    pub fn unanswered(&self) -> usize {
        self.asks.len()
    }

    /// When the oldest unanswered question was asked.
    pub fn oldest_ask(&self) -> Option<Instant> {
        self.asks.front().map(|ask| ask.asked_at)
    }

    /// When the last answer came.
    pub fn last_answer(&self) -> Instant {
        self.last_answer
    }

    /// The last error line, shortened and made printable; empty where there was none.
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// The next answer in what came in: `input` is what was read, and is consumed.
    ///
    /// # Errors
    /// [`Fault`] when the connection cannot go on.
    pub fn next_answer(
        &mut self,
        input: &mut &[u8],
        now: Instant,
    ) -> Result<Option<(Ask, Answer)>, Fault> {
        loop {
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
                keep_error(&mut self.last_error, line);
            }
            let answer = match reply {
                Reply::Push(_) => None,
                _ => Some(take(&mut self.asks, &reply)?),
            };
            if kept {
                self.partial.advance(consumed);
            } else {
                *input = &input[consumed..];
            }
            if answer.is_some() {
                self.last_answer = now;
                return Ok(answer);
            }
        }
    }
}

/// Gives the reply to the oldest question. One that it cannot have leaves the question unanswered:
/// whoever asked it is told so with the others, when the connection ends.
fn take(asks: &mut VecDeque<Ask>, reply: &Reply<'_>) -> Result<(Ask, Answer), Fault> {
    let Some(&ask) = asks.front() else {
        let cause = match reply {
            Reply::Error(line) => Some(Cause::of_error(line)),
            _ => None,
        };
        return Err(Fault::Unasked(cause));
    };
    let answer = match ask.kind {
        Kind::Greet(step) => step.read(reply).map(Answer::Fact),
        kind => said(kind, reply).map(Answer::Said),
    };
    let answer = answer.ok_or(Fault::Impossible(ask.kind))?;
    asks.pop_front();
    Ok((ask, answer))
}

/// What a reply says of the key; `None` where the command cannot give it.
fn said(kind: Kind, reply: &Reply<'_>) -> Option<Said> {
    let script = matches!(kind, Kind::Extend(_) | Kind::Release(_));
    match *reply {
        Reply::Simple(b"OK") if !script => Some(Said::Granted),
        Reply::Null if !script => Some(Said::Held),
        Reply::Integer(1) if script => Some(Said::Granted),
        Reply::Integer(0) if script => Some(Said::Absent),
        Reply::Integer(-1) if script => Some(Said::Held),
        Reply::Error(line) => Some(match Cause::of_error(line) {
            // The scripts meet a key that is no string: it is another's.
            Cause::WrongType => Said::Held,
            cause => Said::Failed(cause),
        }),
        _ => None,
    }
}

fn keep_error(kept: &mut String, line: &[u8]) {
    kept.clear();
    let line = &line[..line.len().min(KEPT_ERROR)];
    kept.extend(line.escape_ascii().map(char::from));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(7);

    fn link(kinds: &[Kind]) -> Link {
        let mut link = Link::default();
        for (index, &kind) in kinds.iter().enumerate() {
            let ask = Ask { record: index as u32, round: 0, kind, asked_at: Instant::default() };
            link.ask(ask, |_| {});
        }
        link
    }

    fn answers(link: &mut Link, mut input: &[u8]) -> Result<Vec<(u32, Answer)>, Fault> {
        let mut answers = Vec::new();
        while let Some((ask, answer)) = link.next_answer(&mut input, NOW)? {
            answers.push((ask.record, answer));
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
                Answer::Said(Said::Granted),
                Answer::Said(Said::Held),
                Answer::Said(Said::Granted),
                Answer::Said(Said::Failed(Cause::OutOfMemory)),
                Answer::Said(Said::Held),
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
        assert_eq!(full, Err(Fault::Unasked(Some(Cause::TooManyClients))));
        let push = b">2\r\n$10\r\ninvalidate\r\n_\r\n+OK\r\n";
        let answers = answers(&mut link(&[Kind::Acquire]), push).unwrap();
        assert_eq!(answers, [(0, Answer::Said(Said::Granted))]);
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
        link.sent(60);
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
}
