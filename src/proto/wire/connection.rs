//! The bytes of one connection: what is to be written, what came in and is not yet a whole reply,
//! and the unanswered questions in their order. The connection knows no key, no quorum and no ttl.
//!
//! The hazard is a reply taken for the answer to another question. Replies come in the order of the
//! questions, so each answers the oldest question. A reply that this question cannot have ends the
//! connection.

#[cfg(feature = "testing")]
mod fingerprint;
mod plain;
mod pushes;
mod replicas;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use bytes::{Buf, BytesMut};

use crate::proto::error::NodeError;
use crate::proto::error::NodeReply;
use crate::proto::fifo::Fifo;
use crate::proto::ids::{RecordId, TaskId};
use crate::proto::inspection::Value;
use crate::proto::key::{KeyHash, KeyPrefix};
use crate::proto::settings::{Limits, Secret};
use crate::proto::surplus::{shrink_bytes, shrink_list};
use crate::proto::time::Instant;
use crate::proto::wire::answers::{self, Details, NodeAnswer, Seen, TaskAnswer};
use crate::proto::wire::ask::{Ask, LockAsk, NodeAsk};
use crate::proto::wire::command::Form;
use crate::proto::wire::error_line::{printable, storable_part};
use crate::proto::wire::handshake::{Fact, Step};
use crate::proto::wire::known_scripts::{KnownScripts, ScriptName};
use crate::proto::wire::line::{HandedOver, Skipping, Standing, TooLong, is_subscribed};
use crate::proto::wire::members::MembersState;
use crate::proto::wire::resp::{self, Malformed, Reply};
use crate::proto::wire::transaction::Reading;

use pushes::read_push;
use replicas::Confirmation;

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
#[derive(Debug, Clone, Copy)]
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
    asks: Fifo<Ask>,
    scripts: KnownScripts,
    /// The moments of the asks, in their order.
    moments: Fifo<Moments>,
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
    /// Whether the replicas of the node have to confirm what it grants, and how.
    asks_replicas: bool,
    confirmation: Confirmation,
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
        self.confirmation.reset();
        self.scripts = KnownScripts::default();
        self.moments.clear();
        self.unwritten = 0;
        self.asks.take_all()
    }

    /// Sets the prefix that keys have on the node.
    pub fn set_key_prefix(&mut self, prefix: &str) {
        self.key_prefix = KeyPrefix::new(prefix);
    }

    /// From now on, a grant counts only if this many replicas of the node have it, too. The node
    /// waits for them for as long as `patience`.
    pub fn require_replicas(&mut self, replicas: u32, patience: Duration) {
        self.asks_replicas = replicas > 0;
        self.confirmation = Confirmation::new(replicas, patience);
    }

    /// Whether the last grant was not confirmed by all replicas that are required.
    pub fn lacks_replicas(&self) -> bool {
        self.confirmation.lacks_replicas()
    }

    /// From now on, no error that repeats this secret is kept.
    pub fn hide(&mut self, secret: Option<Secret>) {
        self.secret = secret;
    }

    /// Puts a question into the outbox.
    #[inline]
    pub fn ask(&mut self, ask: Ask, now: Instant, encode: impl FnOnce(&mut BytesMut)) {
        encode(&mut self.outbox);
        if self.asks_replicas {
            self.confirmation.encode_after(&ask, &mut self.outbox);
        }
        if !ask.is_without_source() {
            self.note_source_sent(&ask);
        }
        self.asks.push(ask);
        match self.moments.back_mut() {
            Some(last)
                if self.unwritten > 0 && now <= last.asked_at.saturating_add(SAME_MOMENT) =>
            {
                last.count += 1;
            }
            _ => {
                self.moments.push(Moments { asked_at: now, written_at: now, count: 1 });
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

    /// Whether the node runs scripts for this user, as far as it has said.
    #[inline]
    pub fn runs_scripts(&self) -> bool {
        !self.scripts.refuses_all()
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
        let unwritten = self.moments.as_mut_slice().iter_mut().rev().take(self.unwritten);
        unwritten.for_each(|moments| moments.written_at = now);
        self.unwritten = 0;
    }

    /// Gives back the memory that was not used since the last call.
    pub fn shrink(&mut self) {
        let (bytes, asks) = std::mem::replace(&mut self.most, (0, self.asks.len()));
        shrink_bytes(&mut self.outbox, bytes);
        shrink_bytes(&mut self.partial, bytes);
        self.asks.shrink(asks);
        self.moments.shrink(asks);
        shrink_list(&mut self.written, asks);
    }

    /// How many questions are unanswered.
    pub fn unanswered(&self) -> usize {
        self.asks.len()
    }

    /// The unanswered questions, oldest first.
    pub fn asks(&self) -> impl Iterator<Item = &Ask> {
        self.asks.as_slice().iter()
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
        self.asks.front()
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

    /// The value that the key had before the last command that compares and sets.
    pub fn value_before(&self) -> &[u8] {
        &self.details.before
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
                let about_replicas = self.confirmation.is_going_on();
                let ask = self.asks.front().filter(|_| !about_replicas);
                note_error(kept, line, ask, self.secret.as_ref());
            }
            let moments = (&mut self.moments, &mut self.unwritten, &mut self.asked_at);
            let incoming = match reply {
                Reply::Push(elements) if is_subscribed(&elements) => {
                    // Only this push answers `SUBSCRIBE`. It is ignored if the oldest question is
                    // another one.
                    let asked = self.asks.front() == Some(Ask::Node(NodeAsk::Subscribe));
                    let taken = asked.then(|| take_question(&mut self.asks, moments));
                    taken.map(|()| Incoming::Node(NodeAnswer::Subscribed(true)))
                }
                Reply::Push(elements) => {
                    let found = (&mut self.written, &mut self.handed_over);
                    read_push(elements, &self.key_prefix, found)
                }
                _ => {
                    if lacks_confirmation(&self.asks, &reply) {
                        // The reply itself is read by the next call.
                        take_question(&mut self.asks, moments);
                        self.last_answer = now;
                        return Ok(Some(Incoming::Node(NodeAnswer::Subscribed(false))));
                    }
                    let kept = (&mut self.fact, &mut self.seen, &mut self.details);
                    let parts = (&mut self.reading, &mut self.confirmation);
                    let answer = read_reply(&self.asks, parts, kept, &reply)?;
                    answer.inspect(|_| take_question(&mut self.asks, moments))
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

/// Reads the next reply to the oldest question, which may have several. Returns the answer once it
/// is there.
#[inline]
fn read_reply(
    asks: &Fifo<Ask>,
    (reading, confirmation): (&mut Reading, &mut Confirmation),
    kept: Kept<'_>,
    reply: &Reply<'_>,
) -> Result<Option<Incoming>, Fault> {
    let asked = asks.front();
    if confirmation.is_going_on() {
        let impossible = |_| asked.map_or(Fault::Unasked(None), Fault::Impossible);
        return confirmation.read(reply).map_err(impossible);
    }
    let answer = match transaction_of(asked) {
        Some(ask) => read_of_transaction(ask, (reading, kept.2), reply)?,
        None => Some(read_answer(asks, kept, reply)?),
    };
    Ok(answer.and_then(|answer| confirmation.keep(asked.as_ref(), answer)))
}

/// Reads the reply to the oldest question. A reply that the question cannot have leaves the
/// question unanswered: it is reported as lost with the others when the connection ends.
#[inline]
fn read_answer(
    asks: &Fifo<Ask>,
    (fact, seen, details): Kept<'_>,
    reply: &Reply<'_>,
) -> Result<Incoming, Fault> {
    let Some(ask) = asks.front() else {
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
fn lacks_confirmation(asks: &Fifo<Ask>, reply: &Reply<'_>) -> bool {
    let next = asks.as_slice().iter().take(2);
    let asked =
        next.eq([&Ask::Node(NodeAsk::Subscribe), &Ask::Node(NodeAsk::Load(ScriptName::Join))]);
    asked && matches!(reply, Reply::Bulk(hash) if hash.len() == 40)
}

/// The question, if it is a transaction.
fn transaction_of(ask: Option<Ask>) -> Option<LockAsk> {
    match ask {
        Some(Ask::Lock(ask)) if ask.is_transaction() => Some(ask),
        _ => None,
    }
}

/// Reads one of the replies to the oldest question, which is a transaction. After the last one
/// returns its answer.
#[cold]
fn read_of_transaction(
    ask: LockAsk,
    (reading, details): (&mut Reading, &mut Details),
    reply: &Reply<'_>,
) -> Result<Option<Incoming>, Fault> {
    let read = reading.read(reply, &mut details.votes);
    let answer = read.map_err(|_| Fault::Impossible(Ask::Lock(ask)))?;
    Ok(answer.map(|answer| {
        details.named = 0;
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
        NodeAsk::LastWord | NodeAsk::Caching | NodeAsk::Unread => Some(NodeAnswer::Unused),
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
    text.extend(printable(storable_part(line, ask, secret)));
    if let Some((name, form)) = ask.and_then(|ask| ask.script()) {
        scripts.note_error(name, form, NodeError::of_error(line));
    } else if transaction_of(ask).is_some() {
        scripts.note_transaction_error(line);
    }
    scripts.note_refusal(line, ask == Some(Ask::Node(NodeAsk::Handshake(Step::Run))));
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
type KeptMoments<'a> = (&'a mut Fifo<Moments>, &'a mut usize, &'a mut Instant);

/// Takes out the oldest question, which was answered, and takes it off its moments.
#[inline]
fn take_question(asks: &mut Fifo<Ask>, (moments, unwritten, asked_at): KeptMoments<'_>) {
    asks.pop();
    let Some(oldest) = moments.front_mut() else { return };
    *asked_at = oldest.asked_at;
    oldest.count -= 1;
    if oldest.count == 0 {
        moments.pop();
        // A node that answers before its question was written whole is strange, but does no harm.
        *unwritten = (*unwritten).min(moments.len());
    }
}

#[cfg(test)]
mod tests;
