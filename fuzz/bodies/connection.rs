//! One connection: questions, bytes in pieces, resets. What has to come out is computed a second
//! time, from a list of the questions and the plain parser: every reply is the answer to the oldest
//! question, a push answers none, and a reply that the question cannot have ends the connection.
//! Limits hold.
//!
//! Of the handshake's answers it only checks which question they answer, not their contents.

#[path = "connection/expected.rs"]
mod expected;

use std::collections::VecDeque;

use redlatch::proto::resp::Limits as ReplyLimits;
use redlatch::proto::{Instant, Limits};
use redlatch::testing::inside::{
    Ask, Connection, Encoding, Form, Incoming, Kind, LockAsk, Names, Native, NodeAnswer, NodeAsk,
    RecordId, ScriptName, Step, TaskAsk, TaskId,
};

use crate::choices::Choices;
use crate::plain_parser::{Parsed, Value, parse};
use expected::{Expected, answer, pushed};

/// The rest of a longer input is ignored.
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

/// Replies that nodes send, and some that they do not.
const REPLIES: [&[u8]; 39] = [
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
    b"$40\r\n00112233445566778899aabbccddeeff00112233\r\n",
    b"-NOPERM User u has no permissions to run the 'subscribe' command\r\n",
];

/// A complete message of a node that handed a key over.
const HANDED_OVER: &[u8] = b">3\r\n$7\r\nmessage\r\n\
    $41\r\nredlatch:00112233445566778899aabbccddeeff\r\n\
    $72\r\n900\n1\n\n000100112233445566aa\n00112233445566778899aabbccddeeff00112233\nk\n\r\r\n";

const FORMS: [Form; 3] = [Form::Sha, Form::Source, Form::Native(Native::Delex)];

/// The connection under test, and what is expected of it.
struct Both {
    real: Connection,
    asks: VecDeque<Ask>,
    /// The bytes that arrived and are no complete reply yet.
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

    /// Passes the bytes to the connection in pieces, and to the plain parser in one.
    fn receive(&mut self, bytes: &[u8], choices: &mut Choices) {
        if self.ended {
            return;
        }
        let piece = choices.one_of(&[usize::MAX, 1, 2, 3, 7]);
        let (now, plain) = (self.at(choices), choices.below(4) > 0);
        // What came out, and for each message whether it makes sense.
        let (mut came, mut sensible) = (Vec::new(), Vec::new());
        'pieces: for piece in bytes.chunks(piece.min(bytes.len()).max(1)) {
            let mut input = piece;
            loop {
                // A driver may ask for plain answers first, but need not.
                let taken = plain.then(|| self.real.plain_answers(&mut input, now, |_, _| {}));
                if let Some(equal) = taken.flatten() {
                    for _ in 0..equal.count {
                        let ask = self.real.take_answered().expect("a question about a lock");
                        assert_eq!(ask.kind, equal.kind);
                        came.push(Ok(Incoming::Lock(ask, equal.reply)));
                    }
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

    /// What has to come out for the bytes so far.
    fn expect(&mut self) -> Vec<Expected> {
        let mut expected = Vec::new();
        let mut again = None;
        while !self.ended {
            let value = match again.take() {
                Some(value) => value,
                None => match parse(&self.rest, &ReplyLimits::default()) {
                    Parsed::Whole(value, length) => {
                        self.rest.drain(..length);
                        value
                    }
                    Parsed::Part => return expected,
                    Parsed::Wrong => {
                        expected.push(Expected::Malformed);
                        break;
                    }
                },
            };
            match (value, self.asks.front()) {
                (Value::List(b'>', elements), front) => {
                    // The answer to `SUBSCRIBE` comes as a push.
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
                    if self.lacks_confirmation(&value) {
                        self.asks.pop_front();
                        let answer = Incoming::Node(NodeAnswer::Subscribed(false));
                        expected.push(Expected::Exactly(answer));
                        again = Some(value);
                        continue;
                    }
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

    /// Whether the push that answers the first question was lost: then this is the answer to the
    /// second one, the hash of a script.
    fn lacks_confirmation(&self, value: &Value) -> bool {
        let (first, second) = (self.asks.front(), self.asks.get(1));
        let lost = first == Some(&Ask::Node(NodeAsk::Subscribe))
            && second == Some(&Ask::Node(NodeAsk::Load(ScriptName::Join)));
        lost && matches!(value, Value::Bulk(hash) if hash.len() == 40)
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

/// A question of any kind. Its number is in it, so that its answer shows which question it was.
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
        10 => Ask::Register(RecordId::of(number)),
        11 => task(TaskAsk::ReadValue),
        12 => task(TaskAsk::ReadTtl),
        13 => task(TaskAsk::Delete),
        14 => task(TaskAsk::DeleteSeen),
        15 => task([TaskAsk::Extend(form), TaskAsk::ExtendAll(form)][number as usize % 2]),
        16 => task([TaskAsk::Vouch, TaskAsk::WriteNote][number as usize % 2]),
        17 => Ask::Node(NodeAsk::Probe(choices.one_of(&[Step::Time, Step::Marker, Step::Info]))),
        18 => Ask::Node(NodeAsk::Kill),
        19 => Ask::Node(NodeAsk::Caching),
        20 => Ask::Node([NodeAsk::LastWord, NodeAsk::Unread][number as usize % 2]),
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
