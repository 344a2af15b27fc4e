//! What has to come out of a connection, computed from the question and from what the plain parser
//! read, and written in another way than the library.

use redlatch::LockToken;
use redlatch::testing::inside::{
    Ask, Fault, Form, Incoming, KeyHash, Kind, LockAsk, Names, NodeAnswer, NodeAsk, NodeReply,
    Step, TaskAnswer, TaskAsk,
};

use super::PREFIX;
use crate::plain_parser::Value;

/// What has to come out of the connection.
#[derive(Debug)]
pub enum Expected {
    Exactly(Incoming),
    /// A message; `sensible`: whether it hands a key over.
    Message {
        sensible: bool,
    },
    /// An answer to this question, whatever its content.
    AnswerTo(Ask),
    Impossible(Ask),
    Malformed,
    Unasked,
}

impl Expected {
    pub fn check(&self, came: &Result<Incoming, Fault>) {
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
                TaskAnswer::NoteWritten(_) => TaskAsk::WriteNote,
                TaskAnswer::Vouched(_) => TaskAsk::Vouch,
            },
        ),
        _ => panic!("{incoming:?} has a content that is compared"),
    }
}

/// What the connection has to report for a push, the last key first.
pub fn pushed(elements: &[Value]) -> Vec<Expected> {
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

/// Whether a message hands a key over. Its lines are the ttl, how many waiters were skipped, the
/// name of the next one, a mark, a token, and the key.
fn hands_over(channel: &[u8], text: &[u8]) -> bool {
    let lines: Vec<&[u8]> = text.splitn(6, |&byte| byte == b'\n').collect();
    let [ttl, skipped, _next, mark, token, _key] = lines[..] else { return false };
    let mark = mark.len() == 20 && mark.iter().all(|it| b"0123456789abcdef".contains(it));
    let token = std::str::from_utf8(token).ok().and_then(LockToken::parse).is_some();
    // The drift leaves nothing of a shorter ttl, and a longer one does not fit into 48 bits.
    let ttl = number_of(ttl).is_some_and(|ttl| (3..1 << 48).contains(&ttl));
    channel.len() == 41 && ttl && number_of(skipped).is_some() && mark && token
}

/// The number in these digits.
fn number_of(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The answer to a join: `mine LEFT NEXT`, or `held PLACE LEFT HOLDER`.
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

/// What a number means as the answer to a question about all keys of a set.
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

/// What the votes of a node mean, one for each key of a set.
fn votes_of(votes: &[Value]) -> Option<NodeReply> {
    let good = votes.iter().all(|it| matches!(it, Value::Integer(number) if is_vote(*number)));
    (good && (2..=64).contains(&votes.len())).then_some(NodeReply::Granted)
}

/// What has to come out for a reply to this question.
pub fn answer(ask: Ask, value: &Value) -> Expected {
    let is_error = matches!(value, Value::Error(_));
    let number = match value {
        Value::Integer(number) => Some(*number),
        _ => None,
    };
    let expected = match ask {
        Ask::Lock(about) => answer_about_lock(about, value, number),
        Ask::Register(record) => (is_error || number.is_some())
            .then_some(Expected::Exactly(Incoming::Registered(record, number))),
        Ask::Task(_, _) if is_error => Some(Expected::AnswerTo(ask)),
        Ask::Task(_, kind) => can_answer(kind, value, number).then_some(Expected::AnswerTo(ask)),
        Ask::Node(kind) => answer_of_node(kind, value, number),
    };
    expected.unwrap_or(Expected::Impossible(ask))
}

fn answer_about_lock(ask: LockAsk, value: &Value, number: Option<i64>) -> Option<Expected> {
    let kind = ask.kind;
    if let Value::Error(line) = value {
        // An error answers every question. A value of the wrong type is another program's key,
        // unless the question is about a second key, too.
        let wrong_type = line.split(|&byte| byte == b' ').next() == Some(b"WRONGTYPE");
        let of_key = matches!(ask.sent.names, Names::Key | Names::KeyAndLine);
        let held = wrong_type && of_key && !matches!(kind, Kind::Exists | Kind::Join);
        let held = held.then_some(Expected::Exactly(Incoming::Lock(ask, NodeReply::Held)));
        return Some(held.unwrap_or(Expected::AnswerTo(Ask::Lock(ask))));
    }
    let acquires = matches!(kind, Kind::Acquire | Kind::Heal);
    let counts = acquires || kind == Kind::Claim;
    // `SET` with `IFEQ` and `GET` returns the value before.
    let native = matches!(ask.sent.form, Some(Form::Native(_)));
    let replaces = native && matches!(kind, Kind::Extend | Kind::Claim);
    let reply = match (ask.sent.names, kind, value) {
        (Names::Key, _, Value::Null) if replaces => Some(NodeReply::Absent),
        (Names::Key, _, Value::Bulk(_)) if replaces => Some(NodeReply::Held),
        (Names::Key, _, _) if replaces => None,
        (Names::AllKeysAndCounters, _, Value::List(b'*', votes)) if counts => votes_of(votes),
        // A vote for a single key.
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

/// What the number means that a script with three answers returns.
fn by_script(number: Option<i64>) -> Option<NodeReply> {
    match number? {
        1 => Some(NodeReply::Granted),
        0 => Some(NodeReply::Absent),
        -1 => Some(NodeReply::Held),
        _ => None,
    }
}

/// Whether the question of a task can have this answer. Errors are not passed here.
fn can_answer(kind: TaskAsk, value: &Value, number: Option<i64>) -> bool {
    match (kind, value) {
        (TaskAsk::Extend(_) | TaskAsk::DeleteSeen, _) => by_script(number).is_some(),
        (TaskAsk::ExtendAll(_), _) => of_set(Kind::Extend, number).is_some(),
        (TaskAsk::Delete | TaskAsk::DeleteSeenBy(_), _) => matches!(number, Some(0 | 1)),
        (TaskAsk::ReadTtl, _) => number.is_some(),
        (TaskAsk::ReadValue | TaskAsk::Vouch, Value::Bulk(_) | Value::Null) => true,
        (TaskAsk::ReadLine, Value::List(b'*', members)) => {
            members.iter().all(|member| matches!(member, Value::Bulk(_)))
        }
        (TaskAsk::WriteNote, Value::Simple(text)) => text == b"OK",
        (TaskAsk::ReadValue | TaskAsk::Vouch | TaskAsk::ReadLine | TaskAsk::WriteNote, _) => false,
    }
}

fn answer_of_node(kind: NodeAsk, value: &Value, number: Option<i64>) -> Option<Expected> {
    let ask = Ask::Node(kind);
    let exactly = |answer| Some(Expected::Exactly(Incoming::Node(answer)));
    let is_error = matches!(value, Value::Error(_));
    match (kind, value) {
        (NodeAsk::Kill, _) if is_error || number.is_some() => exactly(NodeAnswer::Gone(!is_error)),
        (NodeAsk::Kill, Value::Simple(text)) if text == b"OK" => exactly(NodeAnswer::Gone(true)),
        (NodeAsk::Subscribe, Value::Error(line)) => {
            let line = String::from_utf8_lossy(line).to_ascii_lowercase();
            let is_about_it = line.contains("subscribe") || line.contains("channel");
            if is_about_it { exactly(NodeAnswer::Subscribed(false)) } else { None }
        }
        (NodeAsk::Load(_), Value::Bulk(_) | Value::Error(_)) => exactly(NodeAnswer::Unused),
        (NodeAsk::Load(_), _) => None,
        (NodeAsk::Caching | NodeAsk::LastWord | NodeAsk::Unread, _) => exactly(NodeAnswer::Unused),
        _ if is_error => Some(Expected::AnswerTo(ask)),
        (NodeAsk::Mark, Value::Bulk(_) | Value::Null) => Some(Expected::AnswerTo(ask)),
        (NodeAsk::Handshake(step) | NodeAsk::Probe(step), value) if fits(step, value) => {
            Some(Expected::AnswerTo(ask))
        }
        _ => None,
    }
}

/// The time in microseconds; `None` if it is no time or does not fit.
fn time(parts: &[Value]) -> Option<u64> {
    let mut numbers = parts.iter().map(|part| match part {
        Value::Bulk(digits) => std::str::from_utf8(digits).ok()?.parse::<u64>().ok(),
        _ => None,
    });
    let (seconds, micros) = (numbers.next()??, numbers.next()??);
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}

/// Whether this step of the handshake can have this answer.
fn fits(step: Step, value: &Value) -> bool {
    match (step, value) {
        (Step::Hello, Value::List(kind, _)) => b"*%".contains(kind),
        (Step::Auth | Step::Track, Value::Simple(text)) => text == b"OK",
        (Step::Info, Value::Bulk(_)) | (Step::Marker, Value::Bulk(_) | Value::Null) => true,
        (Step::Time, Value::List(b'*', parts)) => time(parts).is_some(),
        _ => false,
    }
}
