//! One connection: questions, bytes in pieces, resets. A second list of questions, and the other
//! parser, say what has to come out: every reply is the answer to the oldest question, a push
//! answers none, and what the question cannot have ends the connection. Limits hold.
//!
//! The contents of the handshake's answers are not compared here, only which question they answer.

use std::collections::VecDeque;

use redlatch::proto::resp::Limits as ReplyLimits;
use redlatch::proto::{Instant, Limits};
use redlatch::testing::inside::{
    Ask, Connection, Fault, Form, Incoming, KeyHash, Kind, LockAsk, NodeAnswer, NodeAsk, NodeReply,
    RecordId, Step, TaskAnswer, TaskAsk, TaskId,
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
const REPLIES: [&[u8]; 27] = [
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
];

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
        let release = matches!(ask, Ask::Lock(LockAsk { kind: Kind::Release(_), .. }));
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
        let mut came = Vec::new();
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
                    Ok(Some(incoming)) => came.push(Ok(incoming)),
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
                (Value::List(b'>', elements), _) => expected.extend(pushed(&elements)),
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
    let lock = |kind| Ask::Lock(LockAsk { record: RecordId::of(number), round: number, kind });
    let task = |kind| Ask::Task(TaskId::of(number), kind);
    match choices.below(28) {
        0..=2 => lock(Kind::Acquire),
        3 | 4 => lock(Kind::Release(form)),
        5 | 6 => lock(Kind::Extend(form)),
        7 => lock(Kind::Heal),
        8 => lock(Kind::Adopt),
        9 => lock(Kind::Exists),
        10 => Ask::Register(RecordId::of(number), (number % 64) as u8),
        11 => task(TaskAsk::ReadValue),
        12 => task(TaskAsk::ReadTtl),
        13 => task(TaskAsk::Delete),
        14 => task(TaskAsk::DeleteSeen),
        15 => task(TaskAsk::Extend(form)),
        16 => task(TaskAsk::Vouch),
        17 => Ask::Node(NodeAsk::Probe),
        18 => Ask::Node(NodeAsk::Kill),
        19 => Ask::Node(NodeAsk::Caching),
        20 => Ask::Node(NodeAsk::LastWord),
        21 => Ask::Node(NodeAsk::Mark),
        22 => lock(Kind::AcquireSet(form)),
        23 => lock(Kind::ExtendSet(form)),
        24 => lock(Kind::ReleaseSet(form)),
        25 => lock(if number % 2 == 0 { Kind::HealSet } else { Kind::AdoptSet }),
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
        Incoming::Node(NodeAnswer::Marked) => Ask::Node(NodeAsk::Mark),
        Incoming::Lock(ask, NodeReply::Failed(_)) => Ask::Lock(ask),
        Incoming::Task(task, answer) => Ask::Task(
            task,
            match answer {
                TaskAnswer::Value(_) => TaskAsk::ReadValue,
                TaskAnswer::Left(_) => TaskAsk::ReadTtl,
                TaskAnswer::Extended(form, _) => TaskAsk::Extend(form),
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
        _ => Vec::new(),
    }
}

/// What a number says to a question about all keys of a set.
fn of_set(kind: Kind, number: Option<i64>) -> Option<NodeReply> {
    let acquires = matches!(kind, Kind::AcquireSet(_) | Kind::HealSet);
    match number? {
        1 => Some(NodeReply::Granted),
        -64..=-1 if acquires => Some(NodeReply::Held),
        number @ -129..=-2 if !acquires && number % 2 == 0 => Some(NodeReply::Absent),
        -129..=-2 if !acquires => Some(NodeReply::Held),
        _ => None,
    }
}

/// What a reply says to a question.
fn answer(ask: Ask, value: &Value) -> Expected {
    let is_error = matches!(value, Value::Error(_));
    let number = match value {
        Value::Integer(number) => Some(*number),
        _ => None,
    };
    let said = |reply: Option<NodeReply>| match ask {
        Ask::Lock(ask) => reply.map(|reply| Expected::Exactly(Incoming::Lock(ask, reply))),
        Ask::Task(..) => reply.map(|_| Expected::AnswerTo(ask)),
        _ => None,
    };
    let script = match number {
        Some(1) => Some(NodeReply::Granted),
        Some(0) => Some(NodeReply::Absent),
        Some(-1) => Some(NodeReply::Held),
        _ => None,
    };
    let expected = match (ask, value) {
        // An error is an answer to every question; the wrong type is another program's key.
        (Ask::Lock(LockAsk { kind, .. }), Value::Error(line)) => {
            let other_type = line.split(|&byte| byte == b' ').next() == Some(b"WRONGTYPE");
            if other_type && kind != Kind::Exists && !kind.is_of_set() {
                said(Some(NodeReply::Held))
            } else {
                Some(Expected::AnswerTo(ask))
            }
        }
        (Ask::Register(record, key), _) if is_error || number.is_some() => {
            Some(Expected::Exactly(Incoming::Registered(record, key, number)))
        }
        (Ask::Node(NodeAsk::Kill), _) if is_error || number.is_some() => {
            Some(Expected::Exactly(Incoming::Node(NodeAnswer::Gone(!is_error))))
        }
        (Ask::Node(NodeAsk::Kill), Value::Simple(text)) if text == b"OK" => {
            Some(Expected::Exactly(Incoming::Node(NodeAnswer::Gone(true))))
        }
        (Ask::Node(NodeAsk::Caching | NodeAsk::LastWord), _) => {
            Some(Expected::Exactly(Incoming::Node(NodeAnswer::Unused)))
        }
        (Ask::Node(NodeAsk::Probe), _) if is_error => {
            Some(Expected::Exactly(Incoming::Node(NodeAnswer::Time(None))))
        }
        (Ask::Node(NodeAsk::Probe), Value::List(b'*', parts)) => {
            time(parts).map(|time| Expected::Exactly(Incoming::Node(NodeAnswer::Time(time))))
        }
        (Ask::Task(..) | Ask::Node(_), Value::Error(_)) => Some(Expected::AnswerTo(ask)),
        (Ask::Lock(LockAsk { kind: Kind::Acquire | Kind::Heal, .. }), value) => match value {
            Value::Simple(text) if text == b"OK" => said(Some(NodeReply::Granted)),
            Value::Null => said(Some(NodeReply::Held)),
            _ => None,
        },
        (Ask::Lock(LockAsk { kind: Kind::Exists, .. }), _) => match number {
            Some(0) => said(Some(NodeReply::Absent)),
            Some(1) => said(Some(NodeReply::Held)),
            _ => None,
        },
        (Ask::Lock(LockAsk { kind, .. }), _) if kind.is_of_set() => said(of_set(kind, number)),
        (Ask::Lock(_) | Ask::Task(_, TaskAsk::Extend(_) | TaskAsk::DeleteSeen), _) => said(script),
        (Ask::Task(_, TaskAsk::Delete), _) => said(script.filter(|_| number >= Some(0))),
        (Ask::Task(_, TaskAsk::ReadTtl), _) => number.map(|_| Expected::AnswerTo(ask)),
        (Ask::Task(_, TaskAsk::ReadValue | TaskAsk::Vouch), Value::Bulk(_) | Value::Null) => {
            Some(Expected::AnswerTo(ask))
        }
        (Ask::Node(NodeAsk::Mark), Value::Bulk(_) | Value::Null) => Some(Expected::AnswerTo(ask)),
        (Ask::Node(NodeAsk::Handshake(step)), value) if fits(step, value) => {
            Some(Expected::AnswerTo(ask))
        }
        _ => None,
    };
    expected.unwrap_or(Expected::Impossible(ask))
}

/// The time in microseconds; nothing if it is more than there is.
fn time(parts: &[Value]) -> Option<Option<u64>> {
    let mut numbers = parts.iter().map(|part| match part {
        Value::Bulk(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    });
    let (seconds, micros) = (numbers.next()??, numbers.next()??);
    Some(seconds.checked_mul(1_000_000)?.checked_add(micros))
}

/// Whether a step of the handshake can have this answer.
fn fits(step: Step, value: &Value) -> bool {
    match (step, value) {
        (Step::Hello, Value::List(kind, _)) => b"*%".contains(kind),
        (Step::Auth | Step::Track, Value::Simple(text)) => text == b"OK",
        (Step::Info, Value::Bulk(_)) | (Step::Marker, Value::Bulk(_) | Value::Null) => true,
        (Step::Time, Value::List(b'*', parts)) => time(parts).is_some_and(|time| time.is_some()),
        _ => false,
    }
}
