//! The bytes of one connection: what is to be written, what came in and is not yet a whole reply,
//! and the unanswered questions in their order. The connection knows no key, no quorum and no ttl.
//!
//! The hazard is a reply taken for the answer to another question. Replies come in the order of the
//! questions, so each answers the oldest question. A reply that this question cannot have ends the
//! connection.

#[cfg(feature = "testing")]
mod fingerprint;
mod plain;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::{Buf, BytesMut};

use crate::proto::error::NodeError;
use crate::proto::error::NodeReply;
use crate::proto::ids::{RecordId, TaskId};
use crate::proto::inspection::Value;
use crate::proto::key::{KeyHash, KeyPrefix};
use crate::proto::settings::{Limits, Secret};
use crate::proto::surplus::{shrink_bytes, shrink_list, shrink_queue};
use crate::proto::time::Instant;
use crate::proto::wire::answers::{self, Details, NodeAnswer, Seen, TaskAnswer};
use crate::proto::wire::ask::{Ask, LockAsk, NodeAsk};
use crate::proto::wire::command::Form;
use crate::proto::wire::error_line::storable_part;
use crate::proto::wire::handshake::{Fact, Step};
use crate::proto::wire::known_scripts::{KnownScripts, ScriptName};
use crate::proto::wire::line::{HandedOver, Skipping, Standing, TooLong, is_subscribed};
use crate::proto::wire::members::MembersState;
use crate::proto::wire::resp::{self, Elements, Malformed, Reply};
use crate::proto::wire::transaction::Reading;

pub use plain::PlainAnswers;

/// What a node sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Incoming {
    /// The answer to a question about a lock.
    Lock(LockAsk, NodeReply),
    /// The answer to the registration of a record's key: milliseconds as in `PTTL`; `None` if the
    /// node refused it.
    Registered(RecordId, Option<i64>),
    /// The answer to a question of a task.
    Task(TaskId, TaskAnswer),
    /// The answer to a question of the cluster itself.
    Node(NodeAnswer),
    /// A push: a database of the node was flushed.
    Flushed,
    /// A push: another client wrote to a registered key with this hash, or the node forgot that the
    /// key was registered.
    Written(KeyHash),
    /// A push: a message, by which the node may have handed a key over to a waiter of this client.
    /// [`Connection::take_handed_over`] has what it says, if it makes sense.
    HandedOver,
}

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The bytes are not RESP, or are past a limit.
    Malformed(Malformed),
    /// A reply that the command cannot give.
    Impossible(Ask),
    /// A reply without a question; an error has its cause.
    Unasked(Option<NodeError>),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Malformed(malformed) => malformed.fmt(f),
            Fault::Impossible(ask) => write!(f, "a reply that {ask} cannot have"),
            Fault::Unasked(None) => f.write_str("a reply to nothing"),
            Fault::Unasked(Some(cause)) => cause.fmt(f),
        }
    }
}

/// Questions that are put into the outbox within this time, and are written together, share their
/// moments. So no measured time is wrong by more than this.
const SAME_MOMENT: Duration = Duration::from_micros(10);

/// The moments of questions that follow each other within [`SAME_MOMENT`], and are written
/// together.
#[derive(Debug, Clone)]
struct Moments {
    /// When the first of them was put into the outbox.
    asked_at: Instant,
    /// When they were written; until then the same as `asked_at`.
    written_at: Instant,
    /// How many of them are unanswered.
    count: usize,
}

/// The bytes of one connection.
#[derive(Clone, Default)]
pub struct Connection {
    outbox: BytesMut,
    partial: BytesMut,
    /// What is still to come of a message that is too long.
    skipping: Skipping,
    asks: VecDeque<Ask>,
    scripts: KnownScripts,
    /// The moments of the asks, in their order.
    moments: VecDeque<Moments>,
    /// How many of the moments are those of questions that are not written yet: the last ones.
    unwritten: usize,
    /// When the question was asked that was answered last.
    asked_at: Instant,
    /// The content of the last answer to a step of the handshake. It is kept apart from the
    /// answers, which are moved about on the hot path and have to be small.
    fact: Fact,
    /// The content of the last answers to an inspection, kept here for the same reason.
    seen: Seen,
    /// How far the replies to the oldest question were read, if that is a transaction.
    reading: Reading,
    /// The content of the last answers about locks, and of the last hand-over.
    details: Details,
    handed_over: Option<HandedOver>,
    /// The keys that a push reported as written, and that were not returned yet.
    written: Vec<KeyHash>,
    last_answer: Instant,
    /// The most bytes and questions since the connection was last shrunk.
    most: (usize, usize),
    last_error: String,
    /// A node or a proxy may repeat a secret that was sent to it: an error line that contains it is
    /// not kept.
    secret: Option<Secret>,
    key_prefix: KeyPrefix,
}

/// `Debug` does not show the bytes: credentials are among them.
impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("outbox", &self.outbox.len())
            .field("partial", &self.partial.len())
            .field("asks", &self.asks.len())
            .field("unwritten", &self.unwritten)
            .field("last_error", &self.last_error)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Forgets everything of a connection that is gone. Returns the unanswered questions, oldest
    /// first.
    pub fn reset(&mut self) -> VecDeque<Ask> {
        self.outbox.clear();
        self.partial.clear();
        self.skipping = Skipping::default();
        self.written.clear();
        self.handed_over = None;
        self.reading = Reading::default();
        self.scripts = KnownScripts::default();
        self.moments.clear();
        self.unwritten = 0;
        std::mem::take(&mut self.asks)
    }

    /// Sets the prefix that keys have on the node.
    pub fn set_key_prefix(&mut self, prefix: &str) {
        self.key_prefix = KeyPrefix::new(prefix);
    }

    /// From now on, no error that repeats this secret is kept.
    pub fn hide(&mut self, secret: Option<Secret>) {
        self.secret = secret;
    }

    /// Puts a question into the outbox.
    #[inline]
    pub fn ask(&mut self, ask: Ask, now: Instant, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.outbox);
        if !ask.is_without_source() {
            self.note_source_sent(&ask);
        }
        self.asks.push_back(ask);
        match self.moments.back_mut() {
            Some(last)
                if self.unwritten > 0 && now <= last.asked_at.saturating_add(SAME_MOMENT) =>
            {
                last.count += 1;
            }
            _ => {
                self.moments.push_back(Moments { asked_at: now, written_at: now, count: 1 });
                self.unwritten += 1;
            }
        }
    }

    #[cold]
    fn note_source_sent(&mut self, ask: &Ask) {
        if let Some((name, Form::Source)) = ask.script() {
            self.scripts.note_source_sent(name);
        }
    }

    /// How a script is sent on this connection if its answer is read.
    #[inline]
    pub fn form_of(&self, name: ScriptName) -> Form {
        self.scripts.form_of(name)
    }

    /// Whether the node refuses transactions, so that it has to be asked by a script.
    #[inline]
    pub fn refuses_transactions(&self) -> bool {
        self.scripts.refuses_transactions()
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
        let (bytes, asks) = self.most;
        self.most = (bytes.max(self.outbox.len()), asks.max(self.asks.len()));
        if count < self.outbox.len() {
            self.outbox.advance(count);
            return;
        }
        assert_eq!(count, self.outbox.len(), "more was written than there was");
        // The next bytes go to the beginning of the buffer again.
        self.outbox.clear();
        let unwritten = self.moments.iter_mut().rev().take(self.unwritten);
        unwritten.for_each(|moments| moments.written_at = now);
        self.unwritten = 0;
    }

    /// Gives back the memory that was not used since the last call.
    pub fn shrink(&mut self) {
        let (bytes, asks) = std::mem::replace(&mut self.most, (0, self.asks.len()));
        shrink_bytes(&mut self.outbox, bytes);
        shrink_bytes(&mut self.partial, bytes);
        shrink_queue(&mut self.asks, asks);
        shrink_queue(&mut self.moments, asks);
        shrink_list(&mut self.written, asks);
    }

    /// How many questions are unanswered.
    pub fn unanswered(&self) -> usize {
        self.asks.len()
    }

    /// The unanswered questions, oldest first.
    pub fn asks(&self) -> impl Iterator<Item = &Ask> {
        self.asks.iter()
    }

    /// When the oldest unanswered question was written.
    pub fn oldest_ask(&self) -> Option<Instant> {
        self.moments.front().map(|moments| moments.written_at)
    }

    /// When the question that was answered last was put into the outbox.
    #[inline]
    pub fn asked_at(&self) -> Instant {
        self.asked_at
    }

    /// The oldest unanswered question.
    pub fn oldest_question(&self) -> Option<Ask> {
        self.asks.front().copied()
    }

    /// The content of the last answer to a step of the handshake.
    pub fn fact(&self) -> Fact {
        self.fact
    }

    /// The content of the last answer to `GETRANGE`: what the node holds.
    pub fn seen(&self) -> Option<Value> {
        self.seen.value
    }

    /// Takes out the content of the last answer to `ZRANGE`: the tokens in line.
    pub fn take_seen_line(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.seen.line)
    }

    /// Takes out the list of masters that the last answer about it returned.
    pub fn take_members(&mut self) -> MembersState {
        std::mem::take(&mut self.seen.members)
    }

    /// The number of the key that the last answer about all keys named.
    pub fn named_key(&self) -> u64 {
        self.details.named
    }

    /// The last votes for fencing numbers, one for each key.
    pub fn votes(&self) -> &[u64] {
        &self.details.votes
    }

    /// What the last answer to a join says.
    pub fn standing(&self) -> &Standing {
        &self.details.standing
    }

    /// Takes out the message of the hand-over that was reported last; `None` if it made no sense.
    pub fn take_handed_over(&mut self) -> Option<HandedOver> {
        self.handed_over.take()
    }

    /// When the last answer came.
    pub fn last_answer(&self) -> Instant {
        self.last_answer
    }

    /// The last error line, shortened and made printable; empty if there was none.
    pub fn last_error(&self) -> &str {
        &self.last_error
    }

    /// The next event in the bytes that were read. Its bytes are taken out of `input`.
    ///
    /// # Errors
    /// [`Fault`] when the connection cannot go on.
    pub fn next_incoming(
        &mut self,
        input: &mut &[u8],
        now: Instant,
    ) -> Result<Option<Incoming>, Fault> {
        if input.is_empty() && self.partial.is_empty() && self.written.is_empty() {
            return Ok(None);
        }
        loop {
            if let Some(key) = self.written.pop() {
                return Ok(Some(Incoming::Written(key)));
            }
            if self.skipping.is_going_on() {
                return self.skip(input);
            }
            let stored = !self.partial.is_empty();
            if stored {
                self.partial.extend_from_slice(input);
                *input = &[];
            }
            let bytes: &[u8] = if stored { &self.partial } else { input };
            let (reply, consumed) = match decode(bytes)? {
                Decoded::Reply(reply, consumed) => (reply, consumed),
                Decoded::TooLong(head, length) => {
                    return self.begin_skipping((head, length), stored, input);
                }
                Decoded::Partial => {
                    if !stored {
                        self.partial.extend_from_slice(input);
                        *input = &[];
                    }
                    return Ok(None);
                }
            };
            if let Reply::Error(line) = reply {
                let kept = (&mut self.last_error, &mut self.scripts);
                note_error(kept, line, self.asks.front().copied(), self.secret.as_ref());
            }
            let moments = (&mut self.moments, &mut self.unwritten, &mut self.asked_at);
            let incoming = match reply {
                Reply::Push(elements) if is_subscribed(&elements) => {
                    // Only this push answers `SUBSCRIBE`. It is ignored if the oldest question is
                    // another one.
                    let asked = self.asks.front() == Some(&Ask::Node(NodeAsk::Subscribe));
                    let taken = asked.then(|| take_question(&mut self.asks, moments));
                    taken.map(|()| Incoming::Node(NodeAnswer::Subscribed(true)))
                }
                Reply::Push(elements) => {
                    let found = (&mut self.written, &mut self.handed_over);
                    read_push(elements, &self.key_prefix, found)
                }
                _ if transaction_of(self.asks.front()).is_some() => {
                    let kept = (&mut self.reading, &mut self.details);
                    read_of_transaction((&mut self.asks, moments), kept, &reply)?
                }
                _ => {
                    if lacks_confirmation(&self.asks, &reply) {
                        // The reply itself is read by the next call.
                        take_question(&mut self.asks, moments);
                        self.last_answer = now;
                        return Ok(Some(Incoming::Node(NodeAnswer::Subscribed(false))));
                    }
                    let kept = (&mut self.fact, &mut self.seen, &mut self.details);
                    let incoming = read_answer(&self.asks, kept, &reply)?;
                    take_question(&mut self.asks, moments);
                    Some(incoming)
                }
            };
            if stored {
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

impl Connection {
    /// Begins to skip a message that is too long. Its text begins after `head` bytes of the stored
    /// bytes, or of the input.
    fn begin_skipping(
        &mut self,
        (head, length): (usize, usize),
        stored: bool,
        input: &mut &[u8],
    ) -> Result<Option<Incoming>, Fault> {
        self.skipping = Skipping::of(length);
        if !stored {
            *input = &input[head..];
            return self.skip(input);
        }
        let bytes = std::mem::take(&mut self.partial);
        let mut rest = &bytes[head..];
        let incoming = self.skip(&mut rest);
        self.partial.extend_from_slice(rest);
        incoming
    }

    /// Skips what has come of the message. Its end is reported as a message without content.
    fn skip(&mut self, input: &mut &[u8]) -> Result<Option<Incoming>, Fault> {
        self.handed_over = None;
        self.skipping.skip(input).map_err(Fault::Malformed)?;
        Ok((!self.skipping.is_going_on()).then_some(Incoming::HandedOver))
    }
}

/// What the bytes of a connection begin with.
enum Decoded<'a> {
    /// A reply, and how many bytes it has.
    Reply(Reply<'a>, usize),
    /// A message that is too long: where its text begins, and how long it is.
    TooLong(usize, usize),
    /// The beginning of a reply.
    Partial,
}

fn decode(bytes: &[u8]) -> Result<Decoded<'_>, Fault> {
    match resp::decode(bytes, &resp::Limits::default()) {
        Ok(resp::Step::Complete { reply, consumed }) => Ok(Decoded::Reply(reply, consumed)),
        Ok(resp::Step::Partial) => Ok(Decoded::Partial),
        Err(Malformed::BulkTooLong) => match TooLong::of(bytes) {
            Some(TooLong::Text(head, length)) => Ok(Decoded::TooLong(head, length)),
            Some(TooLong::Unknown) => Ok(Decoded::Partial),
            None => Err(Fault::Malformed(Malformed::BulkTooLong)),
        },
        Err(malformed) => Err(Fault::Malformed(malformed)),
    }
}

/// Where a connection keeps the content of the last answers that have one.
type Kept<'a> = (&'a mut Fact, &'a mut Seen, &'a mut Details);

/// Reads the reply to the oldest question. A reply that the question cannot have leaves the
/// question unanswered: it is reported as lost with the others when the connection ends.
#[inline]
fn read_answer(
    asks: &VecDeque<Ask>,
    (fact, seen, details): Kept<'_>,
    reply: &Reply<'_>,
) -> Result<Incoming, Fault> {
    let Some(&ask) = asks.front() else {
        let cause = match reply {
            Reply::Error(line) => Some(NodeError::of_error(line)),
            _ => None,
        };
        return Err(Fault::Unasked(cause));
    };
    let incoming = match ask {
        Ask::Lock(ask) => {
            let lock_reply = answers::about_lock(ask, reply, details);
            lock_reply.map(|lock_reply| Incoming::Lock(ask, lock_reply))
        }
        Ask::Register(record) => {
            answers::left(reply).map(|left| Incoming::Registered(record, left))
        }
        Ask::Task(task, kind) => {
            answers::of_task(kind, reply, seen).map(|answer| Incoming::Task(task, answer))
        }
        Ask::Node(kind) => of_node(kind, reply, fact, seen).map(Incoming::Node),
    };
    incoming.ok_or(Fault::Impossible(ask))
}

/// Whether this is the reply to `SCRIPT LOAD`, and the push that confirms the `SUBSCRIBE` before it
/// did not come, because a proxy dropped it.
fn lacks_confirmation(asks: &VecDeque<Ask>, reply: &Reply<'_>) -> bool {
    let next = asks.iter().take(2);
    let asked =
        next.eq([&Ask::Node(NodeAsk::Subscribe), &Ask::Node(NodeAsk::Load(ScriptName::Join))]);
    asked && matches!(reply, Reply::Bulk(hash) if hash.len() == 40)
}

/// The question, if it is a transaction.
fn transaction_of(ask: Option<&Ask>) -> Option<LockAsk> {
    match ask {
        Some(&Ask::Lock(ask)) if ask.is_transaction() => Some(ask),
        _ => None,
    }
}

/// Reads one of the replies to the oldest question, which is a transaction. After the last one
/// takes out the question, and returns its answer.
#[cold]
fn read_of_transaction(
    (asks, moments): (&mut VecDeque<Ask>, KeptMoments<'_>),
    (reading, details): (&mut Reading, &mut Details),
    reply: &Reply<'_>,
) -> Result<Option<Incoming>, Fault> {
    let Some(ask) = transaction_of(asks.front()) else { return Ok(None) };
    let read = reading.read(reply, &mut details.votes);
    let answer = read.map_err(|_| Fault::Impossible(Ask::Lock(ask)))?;
    Ok(answer.map(|answer| {
        details.named = 0;
        take_question(asks, moments);
        Incoming::Lock(ask, answer)
    }))
}

/// Reads the reply to a question of the cluster itself, and keeps what a step found in `fact`, and
/// a list of masters in `seen`.
fn of_node(
    kind: NodeAsk,
    reply: &Reply<'_>,
    fact: &mut Fact,
    seen: &mut Seen,
) -> Option<NodeAnswer> {
    let mut store = |step: Step| {
        if step == Step::Members {
            seen.members = members_in(reply);
        }
        step.read(reply).map(|read| *fact = read)
    };
    match kind {
        NodeAsk::Handshake(step) => store(step).map(|()| NodeAnswer::Handshake(step)),
        NodeAsk::Mark => store(Step::Mark).map(|()| NodeAnswer::Marked),
        NodeAsk::Members => store(Step::Members).map(|()| NodeAnswer::ListWritten),
        NodeAsk::Probe(step) => store(step).map(|()| NodeAnswer::Probed(step)),
        NodeAsk::Kill => answers::killed(reply).map(NodeAnswer::Gone),
        // The answer is a push, unless the node refuses.
        NodeAsk::Subscribe => refuses_channel(reply).then_some(NodeAnswer::Subscribed(false)),
        NodeAsk::Load(_) => {
            matches!(reply, Reply::Bulk(_) | Reply::Error(_)).then_some(NodeAnswer::Unused)
        }
        NodeAsk::LastWord | NodeAsk::Caching => Some(NodeAnswer::Unused),
    }
}

/// What the reply to a question about the list of masters says of it.
fn members_in(reply: &Reply<'_>) -> MembersState {
    match *reply {
        Reply::Null | Reply::Bulk(b"") => MembersState::Blank,
        Reply::Bulk(value) => MembersState::read(value),
        _ => MembersState::Unavailable,
    }
}

/// Keeps what may be kept of an error line, and takes note of what it says of the question's
/// script.
fn note_error(
    (text, scripts): (&mut String, &mut KnownScripts),
    line: &[u8],
    ask: Option<Ask>,
    secret: Option<&Secret>,
) {
    text.clear();
    text.extend(storable_part(line, ask, secret).escape_ascii().map(char::from));
    if let Some((name, form)) = ask.and_then(|ask| ask.script()) {
        scripts.note_error(name, form, NodeError::of_error(line));
    } else if transaction_of(ask.as_ref()).is_some() {
        scripts.note_transaction_error(line);
    }
}

/// Whether an error is the answer to `SUBSCRIBE`. It names the command or the channel; any other
/// error may be the answer to a later question, if a proxy dropped the confirmation.
fn refuses_channel(reply: &Reply<'_>) -> bool {
    let names = |line: &[u8], what: &[u8]| {
        line.windows(what.len()).any(|part| part.eq_ignore_ascii_case(what))
    };
    matches!(reply, Reply::Error(line) if names(line, b"subscribe") || names(line, b"channel"))
}

/// Where a connection keeps the moments of the questions, how many of these are unwritten, and when
/// the question was asked that was answered last.
type KeptMoments<'a> = (&'a mut VecDeque<Moments>, &'a mut usize, &'a mut Instant);

/// Takes out the oldest question, which was answered, and takes it off its moments.
#[inline]
fn take_question(asks: &mut VecDeque<Ask>, (moments, unwritten, asked_at): KeptMoments<'_>) {
    asks.pop_front();
    let Some(oldest) = moments.front_mut() else { return };
    *asked_at = oldest.asked_at;
    oldest.count -= 1;
    if oldest.count == 0 {
        moments.pop_front();
        // A node that answers before its question was written whole is strange, but does no harm.
        *unwritten = (*unwritten).min(moments.len());
    }
}

/// Reads a push: `invalidate` with the keys that were written to, or with nothing if a database was
/// flushed; or `message` on the channel of this client. Pushes of other kinds are ignored.
fn read_push(
    push: Elements<'_>,
    prefix: &KeyPrefix,
    (written, handed_over): (&mut Vec<KeyHash>, &mut Option<HandedOver>),
) -> Option<Incoming> {
    let mut elements = push.iter();
    match elements.next()? {
        Reply::Bulk(b"invalidate") => {}
        Reply::Bulk(b"message") => {
            *handed_over = HandedOver::read(elements);
            return Some(Incoming::HandedOver);
        }
        _ => return None,
    }
    match elements.next()? {
        Reply::Null => Some(Incoming::Flushed),
        Reply::Array(keys) => {
            written.extend(keys.iter().filter_map(|key| match key {
                Reply::Bulk(key) => Some(prefix.hash_of(key)),
                _ => None,
            }));
            written.pop().map(Incoming::Written)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ids::Generation;
    use crate::proto::wire::ask::{Encoding, Kind, Names};
    use crate::proto::wire::error_line::ERROR_BYTES;

    const NOW: Instant = Instant::from_nanos(7);

    const fn about(kind: Kind, form: Option<Form>) -> Ask {
        let record = RecordId { index: 0, generation: Generation::FIRST };
        let sent = Encoding { form, names: Names::Key };
        Ask::Lock(LockAsk { record, round: 0, kind, sent })
    }

    const ACQUIRE: Ask = about(Kind::Acquire, None);
    const RELEASE: Ask = about(Kind::Release, Some(Form::Sha));

    fn connection(asks: &[Ask]) -> Connection {
        let mut connection = Connection::default();
        asks.iter().for_each(|&ask| connection.ask(ask, Instant::default(), |_| {}));
        connection
    }

    fn answers(connection: &mut Connection, mut input: &[u8]) -> Result<Vec<Incoming>, Fault> {
        let mut answers = Vec::new();
        while let Some(incoming) = connection.next_incoming(&mut input, NOW)? {
            if !matches!(incoming, Incoming::Flushed | Incoming::Written(_)) {
                answers.push(incoming);
            }
        }
        assert!(input.is_empty());
        Ok(answers)
    }

    /// Takes the plain answers that the input begins with, and returns what they say.
    fn plain_answers(connection: &mut Connection, input: &mut &[u8]) -> Vec<NodeReply> {
        let mut said = Vec::new();
        let mut timed = 0;
        while let Some(plain) = connection.plain_answers(input, NOW, |_, count| timed += count) {
            for _ in 0..plain.count {
                let ask = connection.take_answered().expect("a question about a lock");
                assert_eq!(ask.kind, plain.kind);
                said.push(plain.reply);
            }
        }
        assert_eq!(timed, said.len(), "each has a round trip time");
        said
    }

    /// What the answers to questions about a lock say.
    fn replies(answers: &[Incoming]) -> Vec<NodeReply> {
        let reply_to = |answer: &Incoming| match answer {
            Incoming::Lock(_, lock_reply) => *lock_reply,
            other => panic!("{other:?}"),
        };
        answers.iter().map(reply_to).collect()
    }

    #[test]
    fn answers_come_in_the_order_of_the_questions_however_they_are_split() {
        let kinds = [ACQUIRE, ACQUIRE, RELEASE, about(Kind::Extend, Some(Form::Sha)), RELEASE];
        let stream = b"+OK\r\n$-1\r\n:1\r\n-OOM full\r\n:-1\r\n";
        let whole = answers(&mut connection(&kinds), stream).unwrap();
        assert_eq!(
            replies(&whole),
            [
                NodeReply::Granted,
                NodeReply::Held,
                NodeReply::Granted,
                NodeReply::Failed(NodeError::OutOfMemory),
                NodeReply::Held,
            ]
        );
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let mut connection = connection(&kinds);
                let parts = [&stream[..first], &stream[first..second], &stream[second..]];
                let mut split = Vec::new();
                for part in parts {
                    split.extend(answers(&mut connection, part).unwrap());
                }
                assert_eq!(split, whole, "split at {first} and {second}");
                assert_eq!(connection.unanswered(), 0);
            }
        }
    }

    #[test]
    fn a_plain_reply_is_read_as_the_decoder_reads_it() {
        let kinds = [
            (Kind::Acquire, None),
            (Kind::Heal, None),
            (Kind::Adopt, Some(Form::Source)),
            (Kind::Exists, None),
            (Kind::Extend, Some(Form::Sha)),
            (Kind::Release, Some(Form::Source)),
        ];
        for ask in kinds.map(|(kind, form)| about(kind, form)) {
            for reply in ["+OK\r\n", "_\r\n", "$-1\r\n", ":1\r\n", ":0\r\n", ":10\r\n", "+OKAY\r\n"]
            {
                let mut split = connection(&[ask]);
                let (first, rest) = reply.as_bytes().split_at(1);
                assert_eq!(answers(&mut split, first), Ok(Vec::new()));
                let whole = answers(&mut connection(&[ask]), reply.as_bytes());
                assert_eq!(whole, answers(&mut split, rest), "{ask} {reply:?}");
            }
        }
    }

    /// The head of a message whose text is longer than a reply may be.
    fn head_of_message(length: &str) -> Vec<u8> {
        let channel = "c".repeat(41);
        format!(">3\r\n$7\r\nmessage\r\n$41\r\n{channel}\r\n${length}").into_bytes()
    }

    #[test]
    fn the_text_of_a_long_message_is_never_read_as_answers() {
        const LENGTH: usize = 2 << 20;
        for text in ["+OK\r\n", ":1\r\n", "_\r\n"] {
            let mut connection = connection(&[ACQUIRE, ACQUIRE]);
            let mut head = &[&head_of_message(&LENGTH.to_string())[..], b"\r\n"].concat()[..];
            assert_eq!(connection.next_incoming(&mut head, NOW), Ok(None));
            let text: Vec<u8> = text.bytes().cycle().take(LENGTH).collect();
            for mut piece in text.chunks(60_000) {
                assert_eq!(plain_answers(&mut connection, &mut piece), []);
                assert_eq!(connection.next_incoming(&mut piece, NOW), Ok(None));
                assert!(piece.is_empty());
            }
            let mut rest = &b"\r\n_\r\n+OK\r\n"[..];
            assert_eq!(plain_answers(&mut connection, &mut rest), []);
            let message = connection.next_incoming(&mut rest, NOW);
            assert_eq!(message, Ok(Some(Incoming::HandedOver)));
            assert_eq!(connection.take_handed_over(), None);
            let answers = plain_answers(&mut connection, &mut rest);
            assert_eq!(answers, [NodeReply::Held, NodeReply::Granted]);
        }
    }

    #[test]
    fn a_message_with_a_broken_length_or_end_ends_the_connection() {
        let mut long = [&head_of_message("2097152")[..], b"\r\n"].concat();
        long.extend(std::iter::repeat_n(b'x', 2 << 20));
        let ends_wrong = [&long[..], b"XX+OK\r\n"].concat();
        let short_ends_wrong = [&head_of_message("5")[..], b"\r\nabcdeXX+OK\r\n"].concat();
        let zeros = head_of_message("00000000");
        let cases = [
            (ends_wrong, Malformed::BulkEnd),
            (short_ends_wrong, Malformed::BulkEnd),
            (zeros, Malformed::Length),
        ];
        for (bytes, why) in cases {
            let fault = answers(&mut connection(&[ACQUIRE]), &bytes);
            assert_eq!(fault, Err(Fault::Malformed(why)));
        }
    }

    #[test]
    fn a_reply_that_the_command_cannot_give_ends_the_connection() {
        let cases: [(Ask, &[u8]); 7] = [
            (ACQUIRE, b":1\r\n"),
            (ACQUIRE, b"+QUEUED\r\n"),
            (ACQUIRE, b"$2\r\nOK\r\n"),
            (RELEASE, b"+OK\r\n"),
            (RELEASE, b":2\r\n"),
            (RELEASE, b"_\r\n"),
            (about(Kind::Extend, Some(Form::Source)), b"*0\r\n"),
        ];
        for (kind, reply) in cases {
            let mut connection = connection(&[kind]);
            assert_eq!(answers(&mut connection, reply), Err(Fault::Impossible(kind)));
            assert_eq!(connection.unanswered(), 1, "the question is reported as lost later");
        }
        let malformed = answers(&mut connection(&[RELEASE]), b"HTTP/1.1 400 Bad Request\r\n");
        assert!(matches!(malformed, Err(Fault::Malformed(_))));
    }

    #[test]
    fn a_confirmation_that_a_proxy_dropped_takes_no_other_reply() {
        const SUBSCRIBE: Ask = Ask::Node(NodeAsk::Subscribe);
        const LOAD: Ask = Ask::Node(NodeAsk::Load(ScriptName::Join));
        let lost = Incoming::Node(NodeAnswer::Subscribed(false));
        let loaded = Incoming::Node(NodeAnswer::Unused);
        let hash = [&b"$40\r\n"[..], &[b'a'; 40], b"\r\n"].concat();
        let answered = answers(&mut connection(&[SUBSCRIBE, LOAD]), &hash);
        assert_eq!(answered, Ok(vec![lost, loaded]));
        let refused = b"-NOPERM User u has no permissions to run the 'subscribe' command\r\n";
        let answered = answers(&mut connection(&[SUBSCRIBE, LOAD]), &[refused, &hash[..]].concat());
        assert_eq!(answered, Ok(vec![lost, loaded]));
        // Any other reply may be the answer to a later question, so the connection ends.
        for reply in [&b"-NOPERM User u may not run 'script|load'\r\n"[..], b"+OK\r\n", b":1\r\n"] {
            let answered = answers(&mut connection(&[SUBSCRIBE, LOAD]), reply);
            assert_eq!(answered, Err(Fault::Impossible(SUBSCRIBE)));
        }
    }

    #[test]
    fn a_reply_to_nothing_ends_the_connection_and_a_push_does_not() {
        assert_eq!(answers(&mut connection(&[]), b"+OK\r\n"), Err(Fault::Unasked(None)));
        let full = answers(&mut connection(&[]), b"-ERR max number of clients reached\r\n");
        assert_eq!(full, Err(Fault::Unasked(Some(NodeError::TooManyClients))));
        let push = b">2\r\n$10\r\ninvalidate\r\n_\r\n+OK\r\n";
        let answers = answers(&mut connection(&[ACQUIRE]), push).unwrap();
        assert_eq!(replies(&answers), [NodeReply::Granted]);
    }

    #[test]
    fn connection_reads_a_flush_push() {
        let mut connection = connection(&[]);
        let mut input: &[u8] = b">2\r\n$10\r\ninvalidate\r\n_\r\n";
        assert_eq!(connection.next_incoming(&mut input, NOW), Ok(Some(Incoming::Flushed)));
        let mut input: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n";
        let written = |key: &[u8]| Ok(Some(Incoming::Written(KeyHash::of(key))));
        assert_eq!(connection.next_incoming(&mut input, NOW), written(b"k"));
        let mut input: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n";
        assert_eq!(connection.next_incoming(&mut input, NOW), written(b"b"));
        assert_eq!(connection.next_incoming(&mut input, NOW), written(b"a"));
        let mut input: &[u8] = b">2\r\n$10\r\ninvalidate\r\n*0\r\n>1\r\n$4\r\nelse\r\n";
        assert_eq!(connection.next_incoming(&mut input, NOW), Ok(None));
    }

    #[test]
    fn connection_reads_answers_that_concern_no_record() {
        let (kill, probe) = (Ask::Node(NodeAsk::Kill), Ask::Node(NodeAsk::Probe(Step::Time)));
        let mut connection = connection(&[probe, kill, kill, about(Kind::Exists, None), probe]);
        let time = b"*2\r\n$10\r\n1700000000\r\n$6\r\n000042\r\n";
        let rest = b":1\r\n-NOPERM no\r\n:1\r\n-NOPERM no\r\n";
        let probed = Incoming::Node(NodeAnswer::Probed(Step::Time));
        assert_eq!(answers(&mut connection, time), Ok(vec![probed]));
        assert_eq!(connection.fact(), Fact::Time(1_700_000_000_000_042));
        let incoming = answers(&mut connection, rest).unwrap();
        let [second, third, fourth, last] = incoming[..] else { panic!("{incoming:?}") };
        assert_eq!(second, Incoming::Node(NodeAnswer::Gone(true)));
        assert_eq!(third, Incoming::Node(NodeAnswer::Gone(false)));
        assert_eq!(replies(&[fourth]), [NodeReply::Held]);
        assert_eq!(last, probed);
        assert_eq!(connection.fact(), Fact::Refused(NodeError::NoPermission));
    }

    #[test]
    fn silence_counts_from_when_a_question_was_written() {
        let mut connection = connection(&[]);
        connection.ask(RELEASE, Instant::default(), |out| out.extend_from_slice(b"abc"));
        connection.sent(2, Instant::from_nanos(3));
        assert_eq!(connection.oldest_ask(), Some(Instant::default()), "it is not written yet");
        connection.sent(1, Instant::from_nanos(5));
        assert_eq!(connection.oldest_ask(), Some(Instant::from_nanos(5)));
        connection.ask(RELEASE, Instant::default(), |out| out.extend_from_slice(b"abc"));
        connection.sent(3, Instant::from_nanos(9));
        assert_eq!(
            connection.oldest_ask(),
            Some(Instant::from_nanos(5)),
            "the first was written before"
        );
    }

    #[test]
    fn half_of_the_room_is_kept_for_releases() {
        let limits = Limits { records: 1, asks: 4, outbox: 100 };
        let mut connection = connection(&[ACQUIRE]);
        assert!(connection.has_room(&limits));
        connection.ask(RELEASE, NOW, |_| {});
        assert!(!connection.has_room(&limits) && connection.has_room_for_release(&limits));
        connection.ask(RELEASE, NOW, |out| out.extend_from_slice(&[0; 100]));
        assert!(!connection.has_room_for_release(&limits));
        connection.sent(60, NOW);
        assert!(connection.has_room_for_release(&limits));
    }

    #[test]
    fn connection_learns_which_scripts_its_node_knows_from_what_it_writes_and_reads() {
        let load = |step, name| match step {
            true => Ask::Node(NodeAsk::Handshake(Step::Load(name))),
            false => Ask::Node(NodeAsk::Load(name)),
        };
        for step in [true, false] {
            let mut connection = Connection::default();
            for name in [ScriptName::Release, ScriptName::Extend, ScriptName::Join] {
                assert_eq!(connection.form_of(name), Form::Source);
                connection.ask(load(step, name), NOW, |_| {});
                assert_eq!(connection.form_of(name), Form::Sha, "what follows is executed after");
            }
            connection.ask(RELEASE, NOW, |_| {});
            let replies = b"$1\r\nx\r\n-NOPERM no\r\n$1\r\nx\r\n-NOSCRIPT no\r\n";
            assert_eq!(answers(&mut connection, replies).unwrap().len(), 4);
            let known = [ScriptName::Release, ScriptName::Extend, ScriptName::Join];
            let known = known.map(|name| connection.form_of(name));
            assert_eq!(known, [Form::Source, Form::Source, Form::Sha]);
            connection.ask(about(Kind::Release, Some(Form::Source)), NOW, |_| {});
            assert_eq!(connection.form_of(ScriptName::Release), Form::Sha);
            connection.reset();
            assert_eq!(connection.form_of(ScriptName::Join), Form::Source, "another node, perhaps");
        }
    }

    #[test]
    fn an_error_line_is_kept_short_and_printable() {
        let mut connection = connection(&[ACQUIRE]);
        let mut line = b"-ERR \x1b[31m".to_vec();
        line.extend([b'x'; 5000]);
        line.extend(b"\r\n");
        answers(&mut connection, &line).unwrap();
        assert!(connection.last_error().starts_with("ERR \\x1b[31mxxx"));
        assert!(connection.last_error().len() < 2 * ERROR_BYTES);
    }

    #[test]
    fn a_password_is_neither_shown_nor_kept() {
        let mut connection = connection(&[]);
        connection.hide(Some(Secret::new("hunter2")));
        connection.ask(RELEASE, NOW, |out| out.extend_from_slice(b"AUTH hunter2"));
        let padding = "x".repeat(ERROR_BYTES);
        for line in ["args beginning with: 'hunter2'", &format!("{padding}hunter2")] {
            connection.ask(RELEASE, NOW, |_| {});
            answers(&mut connection, format!("-ERR {line}\r\n").as_bytes()).unwrap();
            connection.partial.extend_from_slice(b"hunter2");
            assert_eq!(connection.last_error(), "ERR");
            assert!(!format!("{connection:?}").contains("hunter2"));
            connection.partial.clear();
        }
        // A server replaces line ends by spaces.
        connection.hide(Some(Secret::new("hunter2\n")));
        connection.ask(RELEASE, NOW, |_| {});
        answers(&mut connection, b"-ERR it was hunter2 that was said\r\n").unwrap();
        assert_eq!(connection.last_error(), "ERR");
    }

    #[test]
    fn of_an_error_to_hello_or_auth_only_the_code_is_kept() {
        let long: String = ('a'..='z').cycle().take(193).collect();
        let asks =
            [Step::Hello, Step::Auth].map(|step| (step, Ask::Node(NodeAsk::Handshake(step))));
        for password in [long.as_str(), "first-half\nsecond-half"] {
            for (step, ask) in asks {
                let mut connection = connection(&[ask; 3]);
                connection.hide(Some(Secret::new(password)));
                // A server repeats a part of the text, of any length, with spaces for line ends.
                let text: String = password.replace('\n', " ").chars().take(100).collect();
                let line = format!("-ERR unknown command 'AUTH', beginning with: '{text}'\r\n");
                let incoming = Incoming::Node(NodeAnswer::Handshake(step));
                assert_eq!(answers(&mut connection, line.as_bytes()).unwrap(), [incoming]);
                assert_eq!(connection.fact(), Fact::Refused(NodeError::UnknownCommand));
                assert_eq!(connection.last_error(), "ERR");
                // A node or a proxy may also begin an error with the password.
                answers(&mut connection, format!("-{text}\r\n").as_bytes()).unwrap();
                assert_eq!(connection.last_error(), "");
                answers(&mut connection, b"-WRONGPASS invalid username-password pair\r\n").unwrap();
                assert_eq!(connection.last_error(), "WRONGPASS");
            }
        }
    }

    #[test]
    fn questions_of_one_moment_share_it_and_each_answer_has_its_own() {
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut connection = connection(&[]);
        for micros in [0, 10, 11, 500] {
            connection.ask(ACQUIRE, at(micros), |out| out.extend_from_slice(b"a"));
        }
        assert_eq!(connection.moments.len(), 3);
        connection.sent(4, at(600));
        connection.ask(ACQUIRE, at(600), |out| out.extend_from_slice(b"a"));
        assert_eq!(connection.moments.len(), 4, "the others are written");
        for asked in [0, 0, 11, 500, 600] {
            answers(&mut connection, b"+OK\r\n").unwrap();
            assert_eq!(connection.asked_at(), at(asked));
        }
        assert!(connection.moments.is_empty() && connection.oldest_ask().is_none());
        assert_eq!(connection.unwritten, 0, "the last was answered before it was written");
        connection.ask(ACQUIRE, at(700), |_| {});
        assert_eq!(connection.oldest_ask(), Some(at(700)));
    }

    #[test]
    fn connection_gives_back_the_room_of_a_burst_that_was_written() {
        let burst = vec![b'a'; 8 << 20];
        let mut connection = connection(&[]);
        connection.ask(ACQUIRE, Instant::default(), |out| out.extend_from_slice(&burst));
        connection.sent(burst.len(), Instant::default());
        // The first call ends the interval of the burst.
        connection.shrink();
        assert!(connection.outbox.capacity() >= burst.len());
        connection.shrink();
        assert!(connection.outbox.capacity() < burst.len() / 8);
    }

    #[test]
    fn usual_answer_is_taken_from_its_bytes_unless_the_decoder_is_in_the_middle_of_another() {
        let mut connection = connection(&[ACQUIRE, RELEASE, ACQUIRE]);
        let mut input = &b"+OK\r\n:-1\r\n+OK\r\n"[..];
        assert_eq!(plain_answers(&mut connection, &mut input), [NodeReply::Granted]);
        assert_eq!(input, &b":-1\r\n+OK\r\n"[..], "the other is for the decoder");
        assert_eq!((connection.unanswered(), connection.last_answer()), (2, NOW));
        // The rest of an error line may look like an answer.
        assert!(answers(&mut connection, b"-OOM a").unwrap().is_empty());
        let mut rest = &b":1\r\n"[..];
        assert_eq!(plain_answers(&mut connection, &mut rest), []);
        let full = NodeReply::Failed(NodeError::OutOfMemory);
        assert_eq!(replies(&answers(&mut connection, rest).unwrap()), [full]);
    }

    #[test]
    fn equal_plain_answers_to_one_kind_of_question_are_taken_together() {
        let mut connection = connection(&[]);
        for (micros, ask) in [(0, ACQUIRE), (1, ACQUIRE), (50, ACQUIRE), (51, RELEASE)] {
            connection.ask(ask, Instant::from_nanos(micros * 1000), |_| {});
        }
        for ask in [about(Kind::Extend, Some(Form::Sha)), ACQUIRE] {
            connection.ask(ask, Instant::from_nanos(51_000), |_| {});
        }
        let now = Instant::from_nanos(60_000);
        let mut input = &b"+OK\r\n+OK\r\n+OK\r\n:1\r\n:1\r\n_\r\n+OK\r\n"[..];
        let mut next = || {
            let mut took = Vec::new();
            let add = |time: Duration, count| took.push((time.as_micros(), count));
            let plain = connection.plain_answers(&mut input, now, add)?;
            let asks: Vec<_> = (0..plain.count).map(|_| connection.take_answered()).collect();
            assert!(asks.iter().flatten().all(|ask| ask.kind == plain.kind), "{asks:?}");
            Some((plain.reply, asks.len(), took))
        };
        assert_eq!(next(), Some((NodeReply::Granted, 3, vec![(60, 2), (10, 1)])));
        assert_eq!(next(), Some((NodeReply::Granted, 1, vec![(10, 1)])), "of the release");
        assert_eq!(next(), Some((NodeReply::Granted, 1, vec![(10, 1)])), "of the extend");
        assert_eq!(next(), Some((NodeReply::Held, 1, vec![(10, 1)])));
        assert_eq!(next(), None, "nothing was asked");
        assert_eq!((input, connection.oldest_ask()), (&b"+OK\r\n"[..], None));
        assert_eq!((connection.unanswered(), connection.last_answer()), (0, now));
    }

    #[test]
    fn question_after_a_write_has_a_moment_of_its_own() {
        let mut connection = connection(&[]);
        for _ in 0..2 {
            connection.ask(ACQUIRE, NOW, |out| out.extend_from_slice(b"a"));
            connection.sent(1, NOW);
        }
        assert_eq!(connection.moments.len(), 2);
    }
}
