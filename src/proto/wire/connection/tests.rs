//! What a connection makes of replies and pushes, in whatever pieces they come.

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
        for reply in ["+OK\r\n", "_\r\n", "$-1\r\n", ":1\r\n", ":0\r\n", ":10\r\n", "+OKAY\r\n"] {
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
    let asks = [Step::Hello, Step::Auth].map(|step| (step, Ask::Node(NodeAsk::Handshake(step))));
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
        let add = |nanos: u64, count| took.push((nanos / 1000, count));
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
