//! One connection: questions, bytes in pieces, resets. A second list of questions, and the other
//! parser, say what has to come out: every reply is the answer to the oldest question, a push
//! answers none, and what the question cannot have ends the connection. Limits hold.
//!
//! The contents of the handshake's answers are not compared here, only which question they answer.

use std::collections::VecDeque;

use redlatch::LockToken;
use redlatch::proto::resp::Limits as ReplyLimits;
use redlatch::proto::{Instant, Limits};
use redlatch::testing::inside::{
    Ask, Connection, Encoding, Fault, Form, Incoming, KeyHash, Kind, LockAsk, Names, NodeAnswer,
    NodeAsk, NodeReply, RecordId, ScriptName, Step, TaskAnswer, TaskAsk, TaskId,
};

use crate::choices::Choices;
use crate::plain_parser::{Parsed, Value, parse};

/// Inputs are cut off here.
pub const LONGEST: usize = 400;

const PREFIX: &str = "p:";

pub fn run(input: &[u8]) {
    let mut choices = Choices::new(&input[..input.len().min(LONGEST)]);
    let mut both = Both::new(1 + choices.below(20));
    while !choices.is_over() {
        match choices.byte() % 16 {
            0..=5 => both.ask(&mut choices),
            6 => both.sent(&mut choices),
            7 => both.real.shrink(),
            8 => both.reset(),
            9 => {
                let count = choices.below(64);
                both.receive(choices.bytes(count), &mut choices);
            }
            _ => {
                let mut bytes = Vec::new();
                for _ in 0..1 + choices.below(4) {
                    bytes.extend_from_slice(REPLIES[choices.below(REPLIES.len())]);
                }
                both.receive(&bytes, &mut choices);
            }
        }
        both.compare();
    }
}

/// What nodes send, and some of what they do not.
const REPLIES: [&[u8]; 37] = [
    b"+OK\r\n",
    b"_\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b":1\r\n",
    b":0\r\n",
    b":-1\r\n",
    b":2\r\n",
    b":10\r\n",
    b":01\r\n",
    b":+1\r\n",
    b"+OKX\r\n",
    b"+O",
    b"K\r\n",
    b"-ERR x\r\n",
    b"-WRONGTYPE x\r\n",
    b"-NOSCRIPT x\r\n",
    b"$2\r\nOK\r\n",
    b"$0\r\n\r\n",
    b"*2\r\n$1\r\n7\r\n$1\r\n9\r\n",
    b"*2\r\n$1\r\n7\r\n:9\r\n",
    b"%1\r\n$2\r\nid\r\n:7\r\n",
    b">2\r\n$10\r\ninvalidate\r\n_\r\n",
    b">2\r\n$10\r\ninvalidate\r\n*3\r\n$3\r\np:a\r\n:1\r\n$1\r\nb\r\n",
    b">2\r\n$10\r\ninvalidate\r\n*0\r\n",
    b">1\r\n$3\r\nfoo\r\n",
    b"#t\r\n",
    b"$4\r\n0 ab\r\n",
    b"$5\r\n+7  x\r\n",
    b"$4\r\n-1 x\r\n",
    b":9007199254740992\r\n",
    b"*2\r\n$3\r\n5 x\r\n$0\r\n\r\n",
    b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
    HANDED_OVER,
    b">2\r\n$7\r\nmessage\r\n_\r\n",
    b"*0\r\n",
];

/// A whole message of a node that handed a key over.
const HANDED_OVER: &[u8] = b">3\r\n$7\r\nmessage\r\n\
    $41\r\nredlatch:00112233445566778899aabbccddeeff\r\n\
    $72\r\n900\n1\n\n000100112233445566aa\n00112233445566778899aabbccddeeff00112233\nk\n\r\r\n";

const FORMS: [Form; 2] = [Form::Sha, Form::Source];

/// The connection, and what it has to be.
struct Both {
    real: Connection,
    asks: VecDeque<Ask>,
    /// What came in and is no whole reply yet.
    rest: Vec<u8>,
    /// How many bytes the outbox has.
    unwritten: usize,
    limits: Limits,
    now: u64,
    asked: u32,
    ended: bool,
}

impl Both {
    fn new(asks: usize) -> Both {
        let mut real = Connection::default();
        real.set_key_prefix(PREFIX);
        Both {
            real,
            asks: VecDeque::new(),
            rest: Vec::new(),
            unwritten: 0,
            limits: Limits::default().asks(asks).outbox(40 * asks),
            now: 1,
            asked: 0,
            ended: false,
        }
    }

    fn at(&mut self, choices: &mut Choices) -> Instant {
        self.now += u64::from(choices.byte()) * 200;
        Instant::from_nanos(self.now)
    }

    /// Puts a question if there is room, as the cluster does.
    fn ask(&mut self, choices: &mut Choices) {
        let now = self.at(choices);
        self.asked += 1;
        let ask = question(self.asked, choices);
        let release = matches!(ask, Ask::Lock(LockAsk { kind: Kind::Release, .. }));
        let room = self.real.has_room(&self.limits);
        let room = if release { self.real.has_room_for_release(&self.limits) } else { room };
        if !room || self.ended {
            return;
        }
        let length = 1 + choices.below(40);
        self.real.ask(ask, now, |out| out.extend_from_slice(&vec![b'x'; length]));
        self.unwritten += length;
        self.asks.push_back(ask);
    }

    fn sent(&mut self, choices: &mut Choices) {
        let now = self.at(choices);
        let count = choices.one_of(&[self.unwritten, self.unwritten / 2]);
        self.real.sent(count, now);
        self.unwritten -= count;
    }

    fn reset(&mut self) {
        assert_eq!(self.real.reset(), self.asks, "what was never answered");
        self.asks.clear();
        self.rest.clear();
        (self.unwritten, self.ended) = (0, false);
    }

    /// The bytes arrive in pieces. The reference takes them as one.
    fn receive(&mut self, bytes: &[u8], choices: &mut Choices) {
        if self.ended {
            return;
        }
        let piece = choices.one_of(&[usize::MAX, 1, 2, 3, 7]);
        let (now, plain) = (self.at(choices), choices.below(4) > 0);
        // What came, and of each message whether it makes sense.
        let (mut came, mut sensible) = (Vec::new(), Vec::new());
        'pieces: for piece in bytes.chunks(piece.min(bytes.len()).max(1)) {
            let mut input = piece;
            loop {
                // The driver of the connection asks for these first, and need not.
                if let Some((ask, reply)) =
                    plain.then(|| self.real.plain_answer(&mut input, now)).flatten()
                {
                    came.push(Ok(Incoming::Lock(ask, reply)));
                    continue;
                }
                match self.real.next_incoming(&mut input, now) {
                    Ok(Some(incoming)) => {
                        if incoming == Incoming::HandedOver {
                            sensible.push(self.real.take_handed_over().is_some());
                        }
                        came.push(Ok(incoming));
                    }
                    Ok(None) => break,
                    Err(fault) => {
                        came.push(Err(fault));
                        break 'pieces;
                    }
                }
            }
            assert!(input.is_empty(), "bytes are left over");
        }
        self.rest.extend_from_slice(bytes);
        let expected = self.expect();
        assert_eq!(came.len(), expected.len(), "{came:?}, not {expected:?}");
        for (came, expected) in came.iter().zip(&expected) {
            expected.check(came);
        }
        let messages = expected.iter().filter_map(|expected| match expected {
            Expected::Message { sensible } => Some(*sensible),
            _ => None,
        });
        assert!(messages.eq(sensible), "of each message whether it hands a key over");
    }

    /// What the bytes until now have to give.
    fn expect(&mut self) -> Vec<Expected> {
        let mut expected = Vec::new();
        while !self.ended {
            let (value, length) = match parse(&self.rest, &ReplyLimits::default()) {
                Parsed::Whole(value, length) => (value, length),
                Parsed::Part => return expected,
                Parsed::Wrong => {
                    expected.push(Expected::Malformed);
                    break;
                }
            };
            self.rest.drain(..length);
            match (value, self.asks.front()) {
                (Value::List(b'>', elements), front) => {
                    // The answer to `SUBSCRIBE` is a push.
                    let subscribed =
                        matches!(&elements[..], [Value::Bulk(kind), ..] if kind == b"subscribe");
                    if subscribed && front == Some(&Ask::Node(NodeAsk::Subscribe)) {
                        self.asks.pop_front();
                        let answer = Incoming::Node(NodeAnswer::Subscribed(true));
                        expected.push(Expected::Exactly(answer));
                    }
                    expected.extend(pushed(&elements));
                }
                (_, None) => {
                    self.ended = true;
                    expected.push(Expected::Unasked);
                }
                (value, Some(&ask)) => {
                    let answer = answer(ask, &value);
                    if matches!(answer, Expected::Impossible(_)) {
                        self.ended = true;
                    } else {
                        self.asks.pop_front();
                    }
                    expected.push(answer);
                }
            }
        }
        self.ended = true;
        expected
    }

    fn compare(&self) {
        assert_eq!(self.real.unanswered(), self.asks.len());
        assert_eq!(self.real.oldest_question(), self.asks.front().copied());
        assert_eq!(self.real.oldest_ask().is_some(), !self.asks.is_empty());
        assert_eq!(self.real.output().len(), self.unwritten);
        let (asks, outbox) = (self.asks.len(), self.unwritten);
        assert!(asks <= self.limits.asks && outbox < self.limits.outbox + 40, "over the limits");
        let held = format!("partial: {},", if self.ended { 0 } else { self.rest.len() });
        let debug = format!("{:?}", self.real);
        assert!(self.ended || debug.contains(&held), "{held} {debug}");
        assert!(self.real.last_error().len() <= 1024, "an error of any length is kept");
    }
}

/// A question of any kind; its number says which it was.
fn question(number: u32, choices: &mut Choices) -> Ask {
    let form = choices.one_of(&FORMS);
    let lock = |kind, names, form| {
        let sent = Encoding { form, names };
        Ask::Lock(LockAsk { record: RecordId::of(number), round: number, kind, sent })
    };
    let of_key = |kind, form| lock(kind, Names::Key, form);
    let of_set = |kind| lock(kind, Names::AllKeys, Some(form));
    let either = |one, other| if number % 2 == 0 { one } else { other };
    let counting = |kind| lock(kind, Names::AllKeysAndCounters, Some(form));
    let task = |kind| Ask::Task(TaskId::of(number), kind);
    match choices.below(38) {
        0..=2 => of_key(Kind::Acquire, None),
        3 | 4 => lock(Kind::Release, either(Names::Key, Names::KeyAndLine), Some(form)),
        5 | 6 => of_key(Kind::Extend, Some(form)),
        7 => of_key(Kind::Heal, None),
        8 => of_set(Kind::Adopt),
        9 => of_key(Kind::Exists, None),
        10 => Ask::Register(RecordId::of(number), (number % 64) as u8),
        11 => task(TaskAsk::ReadValue),
        12 => task(TaskAsk::ReadTtl),
        13 => task(TaskAsk::Delete),
        14 => task(TaskAsk::DeleteSeen),
        15 => task([TaskAsk::Extend(form), TaskAsk::ExtendAll(form)][number as usize % 2]),
        16 => task(TaskAsk::Vouch),
        17 => Ask::Node(NodeAsk::Probe(choices.one_of(&[Step::Time, Step::Marker, Step::Info]))),
        18 => Ask::Node(NodeAsk::Kill),
        19 => Ask::Node(NodeAsk::Caching),
        20 => Ask::Node(NodeAsk::LastWord),
        21 => Ask::Node(NodeAsk::Mark),
        22 | 23 => lock(Kind::Join, Names::KeyAndLine, Some(form)),
        24 => of_key(Kind::Claim, Some(form)),
        25 => counting(Kind::Acquire),
        26 => counting(Kind::Extend),
        27 => counting(Kind::Heal),
        28 => counting([Kind::WriteBack, Kind::Claim][number as usize % 2]),
        29 => task(TaskAsk::ReadLine),
        30 | 31 => Ask::Node(NodeAsk::Subscribe),
        32 => Ask::Node(NodeAsk::Load(ScriptName::Join)),
        33 => of_set(Kind::Acquire),
        34 => of_set(Kind::Extend),
        35 => of_set(Kind::Release),
        36 => of_set([Kind::Heal, Kind::Adopt][number as usize % 2]),
        _ => {
            let steps =
                [Step::Hello, Step::Auth, Step::Info, Step::Time, Step::Marker, Step::Track];
            Ask::Node(NodeAsk::Handshake(choices.one_of(&steps)))
        }
    }
}

/// What has to come out.
#[derive(Debug)]
enum Expected {
    Exactly(Incoming),
    /// A message; whether it hands a key over.
    Message {
        sensible: bool,
    },
    /// An answer to this question, whatever it says.
    AnswerTo(Ask),
    Impossible(Ask),
    Malformed,
    Unasked,
}

impl Expected {
    fn check(&self, came: &Result<Incoming, Fault>) {
        let good = match (self, came) {
            (Expected::Exactly(expected), Ok(came)) => expected == came,
            (Expected::Message { .. }, Ok(came)) => *came == Incoming::HandedOver,
            (Expected::AnswerTo(ask), Ok(came)) => *ask == asked_by(came),
            (Expected::Impossible(expected), Err(Fault::Impossible(came))) => expected == came,
            (Expected::Malformed, Err(Fault::Malformed(_))) => true,
            (Expected::Unasked, Err(Fault::Unasked(_))) => true,
            _ => false,
        };
        assert!(good, "{came:?}, not {self:?}");
    }
}

/// The question of an answer whose content is not compared.
fn asked_by(incoming: &Incoming) -> Ask {
    match *incoming {
        Incoming::Node(NodeAnswer::Handshake(step)) => Ask::Node(NodeAsk::Handshake(step)),
        Incoming::Node(NodeAnswer::Probed(step)) => Ask::Node(NodeAsk::Probe(step)),
        Incoming::Node(NodeAnswer::Marked) => Ask::Node(NodeAsk::Mark),
        Incoming::Lock(ask, NodeReply::Failed(_)) => Ask::Lock(ask),
        Incoming::Task(task, answer) => Ask::Task(
            task,
            match answer {
                TaskAnswer::Value(_) => TaskAsk::ReadValue,
                TaskAnswer::Left(_) => TaskAsk::ReadTtl,
                TaskAnswer::Line => TaskAsk::ReadLine,
                TaskAnswer::Extended(form, _) => TaskAsk::Extend(form),
                TaskAnswer::ExtendedAll(form, ..) => TaskAsk::ExtendAll(form),
                TaskAnswer::Deleted(_) => TaskAsk::Delete,
                TaskAnswer::DeletedSeen(_) => TaskAsk::DeleteSeen,
                TaskAnswer::Vouched(_) => TaskAsk::Vouch,
            },
        ),
        _ => panic!("{incoming:?} has a content that is compared"),
    }
}

/// What a push gives: the last key first.
fn pushed(elements: &[Value]) -> Vec<Expected> {
    match elements {
        [Value::Bulk(kind), Value::Null, ..] if kind == b"invalidate" => {
            vec![Expected::Exactly(Incoming::Flushed)]
        }
        [Value::Bulk(kind), Value::List(b'*', keys), ..] if kind == b"invalidate" => {
            let hash = |key: &Value| match key {
                Value::Bulk(key) => {
                    let named = key.strip_prefix(PREFIX.as_bytes()).unwrap_or(key);
                    Some(Expected::Exactly(Incoming::Written(KeyHash::of(named))))
                }
                _ => None,
            };
            keys.iter().rev().filter_map(hash).collect()
        }
        [Value::Bulk(kind), rest @ ..] if kind == b"message" => {
            let sensible = match rest {
                [Value::Bulk(channel), Value::Bulk(text), ..] => hands_over(channel, text),
                _ => false,
            };
            vec![Expected::Message { sensible }]
        }
        _ => Vec::new(),
    }
}

/// Whether a message says that a key was handed over: for how long, how many waiters were skipped,
/// the name of the next one, a mark, a token, and the key, each in a line of its own.
fn hands_over(channel: &[u8], text: &[u8]) -> bool {
    let lines: Vec<&[u8]> = text.splitn(6, |&byte| byte == b'\n').collect();
    let [ttl, skipped, _next, mark, token, _key] = lines[..] else { return false };
    let mark = mark.len() == 20 && mark.iter().all(|it| b"0123456789abcdef".contains(it));
    let token = std::str::from_utf8(token).ok().and_then(LockToken::parse).is_some();
    // Of a shorter ttl the drift leaves nothing, and a longer one does not fit into 48 bits.
    let ttl = number_of(ttl).is_some_and(|ttl| (3..1 << 48).contains(&ttl));
    channel.len() == 41 && ttl && number_of(skipped).is_some() && mark && token
}

/// The number that these digits are.
fn number_of(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// What a node says to a join: `mine LEFT NEXT`, or `held PLACE LEFT HOLDER`.
fn standing(value: &Value) -> Option<NodeReply> {
    let Value::Bulk(text) = value else { return None };
    let parts: Vec<&[u8]> = text.splitn(4, |&byte| byte == b' ').collect();
    let is_time =
        |digits: &[u8]| std::str::from_utf8(digits).is_ok_and(|it| it.parse::<i64>().is_ok());
    match parts[..] {
        [b"mine", left, _, ..] => is_time(left).then_some(NodeReply::Granted),
        [b"held", place, left, _] => {
            (number_of(place).is_some() && is_time(left)).then_some(NodeReply::Held)
        }
        _ => None,
    }
}

/// What a number says to a question about all keys of a set.
fn of_set(kind: Kind, number: Option<i64>) -> Option<NodeReply> {
    let acquires = matches!(kind, Kind::Acquire | Kind::Heal);
    match number? {
        1 => Some(NodeReply::Granted),
        -64..=-1 if acquires => Some(NodeReply::Held),
        number @ -129..=-2 if !acquires && number % 2 == 0 => Some(NodeReply::Absent),
        -129..=-2 if !acquires => Some(NodeReply::Held),
        _ => None,
    }
}

/// Whether a counter can have this value.
fn is_vote(number: i64) -> bool {
    (1..1 << 53).contains(&number)
}

/// What the votes of a node say, one for each key of a set.
fn votes_of(votes: &[Value]) -> Option<NodeReply> {
    let good = votes.iter().all(|it| matches!(it, Value::Integer(number) if is_vote(*number)));
    (good && (2..=64).contains(&votes.len())).then_some(NodeReply::Granted)
}

/// What a reply says to a question.
fn answer(ask: Ask, value: &Value) -> Expected {
    let is_error = matches!(value, Value::Error(_));
    let number = match value {
        Value::Integer(number) => Some(*number),
        _ => None,
    };
    let expected = match ask {
        Ask::Lock(about) => answer_about_lock(about, value, number),
        Ask::Register(record, key) => (is_error || number.is_some())
            .then_some(Expected::Exactly(Incoming::Registered(record, key, number))),
        Ask::Task(_, _) if is_error => Some(Expected::AnswerTo(ask)),
        Ask::Task(_, kind) => can_answer(kind, value, number).then_some(Expected::AnswerTo(ask)),
        Ask::Node(kind) => answer_of_node(kind, value, number),
    };
    expected.unwrap_or(Expected::Impossible(ask))
}

fn answer_about_lock(ask: LockAsk, value: &Value, number: Option<i64>) -> Option<Expected> {
    let kind = ask.kind;
    if let Value::Error(line) = value {
        // An error is an answer to every question. A value of the wrong type is another program's
        // key, unless the question has another key, too.
        let wrong_type = line.split(|&byte| byte == b' ').next() == Some(b"WRONGTYPE");
        let of_key = matches!(ask.sent.names, Names::Key | Names::KeyAndLine);
        let held = wrong_type && of_key && !matches!(kind, Kind::Exists | Kind::Join);
        let held = held.then_some(Expected::Exactly(Incoming::Lock(ask, NodeReply::Held)));
        return Some(held.unwrap_or(Expected::AnswerTo(Ask::Lock(ask))));
    }
    let acquires = matches!(kind, Kind::Acquire | Kind::Heal);
    let counts = acquires || kind == Kind::Claim;
    let reply = match (ask.sent.names, kind, value) {
        (Names::AllKeysAndCounters, _, Value::List(b'*', votes)) if counts => votes_of(votes),
        // The vote for a single key.
        (Names::AllKeysAndCounters, _, Value::Integer(1..)) if counts => {
            number.filter(|&vote| is_vote(vote)).map(|_| NodeReply::Granted)
        }
        (Names::AllKeys | Names::AllKeysAndCounters, _, _) => of_set(kind, number),
        (_, _, Value::Simple(text)) if acquires && text == b"OK" => Some(NodeReply::Granted),
        (_, _, Value::Null) if acquires => Some(NodeReply::Held),
        _ if acquires => None,
        (_, Kind::Join, value) => standing(value),
        (_, Kind::Exists, _) => match number {
            Some(0) => Some(NodeReply::Absent),
            Some(1) => Some(NodeReply::Held),
            _ => None,
        },
        _ => by_script(number),
    };
    reply.map(|reply| Expected::Exactly(Incoming::Lock(ask, reply)))
}

/// What a script says that has three answers.
fn by_script(number: Option<i64>) -> Option<NodeReply> {
    match number? {
        1 => Some(NodeReply::Granted),
        0 => Some(NodeReply::Absent),
        -1 => Some(NodeReply::Held),
        _ => None,
    }
}

/// Whether the question of a task can have this answer, which is no error.
fn can_answer(kind: TaskAsk, value: &Value, number: Option<i64>) -> bool {
    match (kind, value) {
        (TaskAsk::Extend(_) | TaskAsk::DeleteSeen, _) => by_script(number).is_some(),
        (TaskAsk::ExtendAll(_), _) => of_set(Kind::Extend, number).is_some(),
        (TaskAsk::Delete, _) => matches!(number, Some(0 | 1)),
        (TaskAsk::ReadTtl, _) => number.is_some(),
        (TaskAsk::ReadValue | TaskAsk::Vouch, Value::Bulk(_) | Value::Null) => true,
        (TaskAsk::ReadLine, Value::List(b'*', members)) => {
            members.iter().all(|member| matches!(member, Value::Bulk(_)))
        }
        (TaskAsk::ReadValue | TaskAsk::Vouch | TaskAsk::ReadLine, _) => false,
    }
}

fn answer_of_node(kind: NodeAsk, value: &Value, number: Option<i64>) -> Option<Expected> {
    let ask = Ask::Node(kind);
    let exactly = |answer| Some(Expected::Exactly(Incoming::Node(answer)));
    let is_error = matches!(value, Value::Error(_));
    match (kind, value) {
        (NodeAsk::Kill, _) if is_error || number.is_some() => exactly(NodeAnswer::Gone(!is_error)),
        (NodeAsk::Kill, Value::Simple(text)) if text == b"OK" => exactly(NodeAnswer::Gone(true)),
        (NodeAsk::Subscribe, _) if is_error => exactly(NodeAnswer::Subscribed(false)),
        (NodeAsk::Caching | NodeAsk::LastWord | NodeAsk::Load(_), _) => exactly(NodeAnswer::Unused),
        _ if is_error => Some(Expected::AnswerTo(ask)),
        (NodeAsk::Mark, Value::Bulk(_) | Value::Null) => Some(Expected::AnswerTo(ask)),
        (NodeAsk::Handshake(step) | NodeAsk::Probe(step), value) if fits(step, value) => {
            Some(Expected::AnswerTo(ask))
        }
        _ => None,
    }
}

/// The time in microseconds; nothing if it is no time, or more than there is.
fn time(parts: &[Value]) -> Option<u64> {
    let mut numbers = parts.iter().map(|part| match part {
        Value::Bulk(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    });
    let (seconds, micros) = (numbers.next()??, numbers.next()??);
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

/// Whether a step of the handshake can have this answer.
fn fits(step: Step, value: &Value) -> bool {
    match (step, value) {
        (Step::Hello, Value::List(kind, _)) => b"*%".contains(kind),
        (Step::Auth | Step::Track, Value::Simple(text)) => text == b"OK",
        (Step::Info, Value::Bulk(_)) | (Step::Marker, Value::Bulk(_) | Value::Null) => true,
        (Step::Time, Value::List(b'*', parts)) => time(parts).is_some(),
        _ => false,
    }
}
