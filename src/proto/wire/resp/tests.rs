//! Tables of replies and of malformed input, then random trees, splits and bytes.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A reply as a test writes it, one variant for each form on the wire.
#[derive(Debug, Clone)]
enum Wire {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    BulkError(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    Verbatim(Vec<u8>),
    Null(&'static str),
    Boolean(bool),
    Double(f64),
    BigNumber(String),
    Array(Vec<Wire>),
    Set(Vec<Wire>),
    Map(Vec<(Wire, Wire)>),
    Push(Vec<Wire>),
}

impl Wire {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Simple(text) => put(out, b"+", text),
            Self::Error(text) => put(out, b"-", text),
            Self::BulkError(bytes) => put_bulk(out, '!', b"", bytes),
            Self::Integer(value) => put(out, b":", value.to_string().as_bytes()),
            Self::Bulk(bytes) => put_bulk(out, '$', b"", bytes),
            Self::Verbatim(bytes) => put_bulk(out, '=', b"txt:", bytes),
            Self::Null(form) => put(out, form.as_bytes(), b""),
            Self::Boolean(value) => put(out, b"#", if *value { b"t" } else { b"f" }),
            Self::Double(value) => put(out, b",", value.to_string().as_bytes()),
            Self::BigNumber(text) => put(out, b"(", text.as_bytes()),
            Self::Array(elements) => put_all(out, '*', elements.len(), elements),
            Self::Set(elements) => put_all(out, '~', elements.len(), elements),
            Self::Push(elements) => put_all(out, '>', elements.len(), elements),
            Self::Map(pairs) => {
                let elements = pairs.iter().flat_map(|(key, value)| [key, value]);
                put_all(out, '%', pairs.len(), elements);
            }
        }
    }

    fn encoded(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Whether `reply` says what this says.
    fn is(&self, reply: Reply<'_>) -> bool {
        match (self, reply) {
            (Self::Simple(sent), Reply::Simple(got))
            | (Self::Error(sent) | Self::BulkError(sent), Reply::Error(got))
            | (Self::Bulk(sent) | Self::Verbatim(sent), Reply::Bulk(got)) => sent == got,
            (Self::Integer(sent), Reply::Integer(got)) => *sent == got,
            (Self::Null(_), Reply::Null) => true,
            (Self::Boolean(sent), Reply::Boolean(got)) => *sent == got,
            (Self::Double(sent), Reply::Double(got)) => sent.to_string().as_bytes() == got,
            (Self::BigNumber(sent), Reply::BigNumber(got)) => sent.as_bytes() == got,
            (Self::Array(sent), Reply::Array(got))
            | (Self::Set(sent), Reply::Set(got))
            | (Self::Push(sent), Reply::Push(got)) => all_are(sent.iter(), sent.len(), got),
            (Self::Map(sent), Reply::Map(got)) => {
                let elements = sent.iter().flat_map(|(key, value)| [key, value]);
                all_are(elements, 2 * sent.len(), got)
            }
            _ => false,
        }
    }
}

fn put(out: &mut Vec<u8>, kind: &[u8], text: &[u8]) {
    for part in [kind, text, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

fn put_bulk(out: &mut Vec<u8>, kind: char, format: &[u8], bytes: &[u8]) {
    put(out, format!("{kind}{}", format.len() + bytes.len()).as_bytes(), b"");
    put(out, format, bytes);
}

fn put_all<'w>(
    out: &mut Vec<u8>,
    kind: char,
    count: usize,
    elements: impl IntoIterator<Item = &'w Wire>,
) {
    put(out, format!("{kind}{count}").as_bytes(), b"");
    for element in elements {
        element.encode(out);
    }
}

fn all_are<'w>(sent: impl Iterator<Item = &'w Wire>, len: usize, got: Elements<'_>) -> bool {
    let exact = got.len() == len && got.iter().len() == len && got.is_empty() == (len == 0);
    exact && got.iter().count() == len && sent.zip(got).all(|(sent, got)| sent.is(got))
}

/// Decodes under the default limits.
fn decoded(input: &[u8]) -> Result<Step<'_>, Malformed> {
    decode(input, &Limits::default())
}

/// The one reply that `input` is.
#[track_caller]
fn whole(input: &[u8]) -> Reply<'_> {
    match decoded(input) {
        Ok(Step::Complete { reply, consumed }) if consumed == input.len() => reply,
        other => panic!("{} gave {other:?}", input.escape_ascii()),
    }
}

/// The replies in `stream` when it arrives in pieces that end at `cuts`, with where each ends.
fn arriving<'a>(stream: &'a [u8], cuts: &[usize]) -> (Vec<(usize, Reply<'a>)>, bool) {
    let mut replies = Vec::new();
    let mut from = 0;
    for until in cuts.iter().copied().chain([stream.len()]) {
        loop {
            match decoded(&stream[from..until]) {
                Ok(Step::Complete { reply, consumed }) => {
                    from += consumed;
                    replies.push((from, reply));
                }
                Ok(Step::Partial) => break,
                Err(_) => return (replies, false),
            }
        }
    }
    (replies, true)
}

const SCALARS: &[(&[u8], Reply<'static>)] = &[
    (b"+OK\r\n", Reply::Simple(b"OK")),
    (b"+\r\n", Reply::Simple(b"")),
    (b"+\xff\x00 -1\r\n", Reply::Simple(b"\xff\x00 -1")),
    (b"-ERR no\r\n", Reply::Error(b"ERR no")),
    (b"-\r\n", Reply::Error(b"")),
    (b"!8\r\nERR a\r\nb\r\n", Reply::Error(b"ERR a\r\nb")),
    (b":0\r\n", Reply::Integer(0)),
    (b":1\r\n", Reply::Integer(1)),
    (b":+1\r\n", Reply::Integer(1)),
    (b":-1\r\n", Reply::Integer(-1)),
    (b":-2\r\n", Reply::Integer(-2)),
    (b":1000\r\n", Reply::Integer(1000)),
    (b":9223372036854775807\r\n", Reply::Integer(i64::MAX)),
    (b":+9223372036854775807\r\n", Reply::Integer(i64::MAX)),
    (b":-9223372036854775807\r\n", Reply::Integer(-i64::MAX)),
    (b":-9223372036854775808\r\n", Reply::Integer(i64::MIN)),
    (b"$0\r\n\r\n", Reply::Bulk(b"")),
    (b"$5\r\nhello\r\n", Reply::Bulk(b"hello")),
    (b"$12\r\n\r\n$-1\r\n+OK\r\n\r\n", Reply::Bulk(b"\r\n$-1\r\n+OK\r\n")),
    (b"=4\r\ntxt:\r\n", Reply::Bulk(b"")),
    (b"=8\r\nmkd:a::b\r\n", Reply::Bulk(b"a::b")),
    (b"$-1\r\n", Reply::Null),
    (b"*-1\r\n", Reply::Null),
    (b"_\r\n", Reply::Null),
    (b"#t\r\n", Reply::Boolean(true)),
    (b"#f\r\n", Reply::Boolean(false)),
    (b",1.23\r\n", Reply::Double(b"1.23")),
    (b",10\r\n", Reply::Double(b"10")),
    (b",-1e-7\r\n", Reply::Double(b"-1e-7")),
    (b",inf\r\n", Reply::Double(b"inf")),
    (b",-inf\r\n", Reply::Double(b"-inf")),
    (b",nan\r\n", Reply::Double(b"nan")),
    (b",-nan\r\n", Reply::Double(b"-nan")),
    (b"(0\r\n", Reply::BigNumber(b"0")),
    (b"(-18446744073709551616\r\n", Reply::BigNumber(b"-18446744073709551616")),
];

/// Each input with the number of elements of its outermost aggregate.
const AGGREGATES: &[(&[u8], usize)] = &[
    (b"*0\r\n", 0),
    (b"*3\r\n:1\r\n$-1\r\n*-1\r\n", 3),
    (b"~2\r\n+a\r\n+a\r\n", 2),
    (b"%0\r\n", 0),
    (b"%2\r\n+a\r\n:1\r\n+b\r\n_\r\n", 4),
    (b">2\r\n$10\r\ninvalidate\r\n_\r\n", 2),
    (b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", 2),
    (b"*2\r\n*2\r\n*0\r\n*1\r\n:1\r\n~1\r\n%1\r\n#t\r\n*0\r\n", 2),
    (b"%3\r\n$6\r\nserver\r\n$5\r\nredis\r\n$5\r\nproto\r\n:3\r\n$7\r\nmodules\r\n*0\r\n", 6),
];

/// Each input is malformed, and the same bytes without the last one are not.
const MALFORMED: &[(&[u8], Malformed)] = &[
    (b"H", Malformed::UnknownType(b'H')),
    (b"\r", Malformed::UnknownType(b'\r')),
    (b"\n", Malformed::UnknownType(b'\n')),
    (b"\x00", Malformed::UnknownType(0)),
    (b";", Malformed::UnknownType(b';')),
    (b".", Malformed::UnknownType(b'.')),
    (b"*2\r\n:1\r\n?", Malformed::UnknownType(b'?')),
    (b"|", Malformed::Attribute),
    (b"*1\r\n|", Malformed::Attribute),
    (b"$?", Malformed::Streamed),
    (b"!?", Malformed::Streamed),
    (b"=?", Malformed::Streamed),
    (b"*?", Malformed::Streamed),
    (b"~?", Malformed::Streamed),
    (b"%?", Malformed::Streamed),
    (b">?", Malformed::Streamed),
    (b"*1\r\n>", Malformed::NestedPush),
    (b">1\r\n>", Malformed::NestedPush),
    (b"%1\r\n:1\r\n>", Malformed::NestedPush),
    (b"+\n", Malformed::LineEnd),
    (b"+OK\n", Malformed::LineEnd),
    (b"+OK\r+", Malformed::LineEnd),
    (b"+OK\r\r", Malformed::LineEnd),
    (b"-ERR\n", Malformed::LineEnd),
    (b",1\n", Malformed::LineEnd),
    (b"(1\r1", Malformed::LineEnd),
    (b"$2\r\nabc", Malformed::BulkEnd),
    (b"$2\r\nab\n", Malformed::BulkEnd),
    (b"$2\r\nab\r\r", Malformed::BulkEnd),
    (b"$0\r\n\n", Malformed::BulkEnd),
    (b"!0\r\nx", Malformed::BulkEnd),
    (b"=4\r\ntxt:\n", Malformed::BulkEnd),
    (b"$\r", Malformed::Length),
    (b"$x", Malformed::Length),
    (b"$ ", Malformed::Length),
    (b"$+", Malformed::Length),
    (b"$1x", Malformed::Length),
    (b"$1\n", Malformed::Length),
    (b"$1\rx", Malformed::Length),
    (b"$00", Malformed::Length),
    (b"$01", Malformed::Length),
    (b"$-0", Malformed::Length),
    (b"$-2", Malformed::Length),
    (b"$-\r", Malformed::Length),
    (b"$-10", Malformed::Length),
    (b"$-1\n", Malformed::Length),
    (b"*-2", Malformed::Length),
    (b"*-1\n", Malformed::Length),
    (b"*\r", Malformed::Length),
    (b"*+", Malformed::Length),
    (b"*01", Malformed::Length),
    (b"!-", Malformed::Length),
    (b"=-", Malformed::Length),
    (b"~-", Malformed::Length),
    (b"%-", Malformed::Length),
    (b">-", Malformed::Length),
    (b":\r", Malformed::Integer),
    (b":x", Malformed::Integer),
    (b": ", Malformed::Integer),
    (b":1.", Malformed::Integer),
    (b":1\n", Malformed::Integer),
    (b":1\rx", Malformed::Integer),
    (b":00", Malformed::Integer),
    (b":01", Malformed::Integer),
    (b":-0", Malformed::Integer),
    (b":+0", Malformed::Integer),
    (b":-\r", Malformed::Integer),
    (b":+\r", Malformed::Integer),
    (b":--", Malformed::Integer),
    (b":+-", Malformed::Integer),
    (b":9223372036854775808", Malformed::Integer),
    (b":+9223372036854775808", Malformed::Integer),
    (b":-9223372036854775809", Malformed::Integer),
    (b":18446744073709551616", Malformed::Integer),
    (b"_x", Malformed::Null),
    (b"_\n", Malformed::Null),
    (b"_\rx", Malformed::Null),
    (b"#x", Malformed::Boolean),
    (b"#\r", Malformed::Boolean),
    (b"#tx", Malformed::Boolean),
    (b"#f\n", Malformed::Boolean),
    (b",\r\n", Malformed::Double),
    (b",x\r\n", Malformed::Double),
    (b",1,0\r\n", Malformed::Double),
    (b",\xff\r\n", Malformed::Double),
    (b"(\r\n", Malformed::BigNumber),
    (b"(-\r\n", Malformed::BigNumber),
    (b"(-0\r\n", Malformed::BigNumber),
    (b"(01\r\n", Malformed::BigNumber),
    (b"(1.5\r\n", Malformed::BigNumber),
    (b"(--1\r\n", Malformed::BigNumber),
    (b"=3\r\ntxt\r\n", Malformed::Verbatim),
    (b"=5\r\ntxtxx\r\n", Malformed::Verbatim),
    (b"$1048577", Malformed::BulkTooLong),
    (b"$10485760", Malformed::BulkTooLong),
    (b"!1048577", Malformed::BulkTooLong),
    (b"=1048577", Malformed::BulkTooLong),
    (b"*2\r\n$6\r\nsecret\r\n$1048571", Malformed::BulkTooLong),
    (b"*1025", Malformed::TooManyElements),
    (b"~1025", Malformed::TooManyElements),
    (b">1025", Malformed::TooManyElements),
    (b"%513", Malformed::TooManyElements),
    (b"*2\r\n:1\r\n*1023", Malformed::TooManyElements),
    (b"*1\r\n%512", Malformed::TooManyElements),
];

/// As many one-element arrays inside one another as asked, around an integer.
fn nested(depth: usize) -> Vec<u8> {
    [b"*1\r\n".repeat(depth), b":7\r\n".to_vec()].concat()
}

#[test]
fn every_scalar_is_what_its_bytes_say() {
    for (input, reply) in SCALARS {
        assert_eq!(whole(input), *reply, "{}", input.escape_ascii());
    }
}

#[test]
fn every_aggregate_has_its_elements() {
    for (input, len) in AGGREGATES {
        let (Reply::Array(elements)
        | Reply::Set(elements)
        | Reply::Map(elements)
        | Reply::Push(elements)) = whole(input)
        else {
            panic!("{}", input.escape_ascii());
        };
        assert_eq!((elements.len(), elements.iter().count()), (*len, *len));
        assert_eq!(elements.is_empty(), *len == 0);
    }
    let Reply::Map(elements) = whole(AGGREGATES[4].0) else { panic!("a map") };
    let expected = [b"a".as_slice(), b"b"].map(Reply::Simple);
    assert!(elements.into_iter().step_by(2).eq(expected));
    assert_eq!(format!("{elements:?}"), "[Simple([97]), Integer(1), Simple([98]), Null]");
}

#[test]
fn every_prefix_of_every_reply_is_partial() {
    let inputs = SCALARS.iter().map(|row| row.0).chain(AGGREGATES.iter().map(|row| row.0));
    for input in inputs {
        for len in 0..input.len() {
            assert_eq!(
                decoded(&input[..len]),
                Ok(Step::Partial),
                "{}",
                input[..len].escape_ascii()
            );
        }
    }
}

#[test]
fn the_shortcut_gives_what_reading_gives() {
    let usual_ones: [&[u8]; 5] = [b":0\r\n", b":9\r\n", b"+OK\r\n", b"_\r\n", b"$-1\r\n"];
    for input in usual_ones {
        for line in 0..4 {
            let limits = Limits { line, ..Limits::default() };
            for tail in [&b""[..], b"\r", b":1\r\n"] {
                let input = [input, tail].concat();
                assert_eq!(decode(&input, &limits), read(&input, &limits));
            }
        }
        assert_eq!(usual_reply(input, &Limits::default()).map(Ok), Some(decoded(input)));
    }
}

#[test]
fn resp_bytes_after_a_reply_do_not_matter() {
    let inputs = SCALARS.iter().map(|row| row.0).chain(AGGREGATES.iter().map(|row| row.0));
    for input in inputs {
        for tail in [&b"\r\n"[..], b"\n", b":1\r\n", b"0", b"\xff"] {
            let longer = [input, tail].concat();
            assert_eq!(decoded(&longer), decoded(input), "{}", longer.escape_ascii());
        }
    }
}

#[test]
fn resp_malformed_reply_stays_malformed_from_its_last_byte_on() {
    for (input, why) in MALFORMED {
        assert_eq!(decoded(input), Err(*why), "{}", input.escape_ascii());
        let before = &input[..input.len() - 1];
        assert_eq!(decoded(before), Ok(Step::Partial), "{}", before.escape_ascii());
        for tail in [&b"\r\n"[..], b"\n", b"0\r\n", b"\r\n:1\r\n"] {
            let longer = [*input, tail].concat();
            assert!(decoded(&longer).is_err(), "{}", longer.escape_ascii());
        }
    }
}

#[test]
fn line_longer_than_its_limit_is_malformed() {
    let limits = Limits { line: 3, ..Limits::default() };
    for kind in ["+", "-", ",", "("] {
        for (text, fits) in [("123\r\n", true), ("1234\r\n", false)] {
            let input = format!("{kind}{text}");
            let step = decode(input.as_bytes(), &limits);
            assert_eq!(step.is_ok(), fits, "{input:?}");
            assert_eq!(step.is_err(), step == Err(Malformed::LineTooLong));
        }
    }
    assert_eq!(decode(b"+123", &limits), Ok(Step::Partial));
    assert_eq!(decode(b"+123\r", &limits), Ok(Step::Partial));
    assert_eq!(decode(b"+1234", &limits), Err(Malformed::LineTooLong));
    // The limit is for all lines of one reply together. A number is no text, and the next reply
    // starts anew.
    assert!(decode(b"*3\r\n+ab\r\n+c\r\n:12345\r\n", &limits).is_ok());
    assert_eq!(decode(b"*2\r\n+ab\r\n+cd", &limits), Err(Malformed::LineTooLong));
    assert_eq!(decode(b"+\r\n", &Limits { line: 0, ..limits }).map(|_| ()), Ok(()));

    let mut longest = b"+".to_vec();
    longest.resize(1 + 64 * 1024, b'a');
    assert_eq!(decoded(&longest), Ok(Step::Partial));
    assert_eq!(whole(&[&longest[..], b"\r\n"].concat()), Reply::Simple(&longest[1..]));
    longest.push(b'a');
    assert_eq!(decoded(&longest), Err(Malformed::LineTooLong));
}

#[test]
fn bulk_string_longer_than_its_limit_is_malformed() {
    let limits = Limits { bulk: 5, ..Limits::default() };
    assert!(decode(b"$5\r\nhello\r\n", &limits).is_ok());
    assert_eq!(decode(b"$6", &limits), Err(Malformed::BulkTooLong));
    assert!(decode(b"=5\r\ntxt:a\r\n", &limits).is_ok());
    assert_eq!(decode(b"=6", &limits), Err(Malformed::BulkTooLong));
    assert!(decode(b"*3\r\n$2\r\nab\r\n!3\r\nabc\r\n$0\r\n\r\n", &limits).is_ok());
    assert_eq!(decode(b"*2\r\n$2\r\nab\r\n!4", &limits), Err(Malformed::BulkTooLong));
    assert!(decode(b"$0\r\n\r\n", &Limits { bulk: 0, ..limits }).is_ok());

    let mut largest = b"$1048576\r\n".to_vec();
    largest.resize(largest.len() + 1024 * 1024, b'\n');
    assert_eq!(decoded(&largest), Ok(Step::Partial));
    largest.extend_from_slice(b"\r\n");
    assert_eq!(whole(&largest), Reply::Bulk(&largest[10..][..1024 * 1024]));
}

#[test]
fn more_elements_than_the_limit_are_malformed_however_they_are_nested() {
    let thousand = [&b"*1024\r\n"[..], &b"_\r\n".repeat(1024)].concat();
    assert!(matches!(whole(&thousand), Reply::Array(elements) if elements.len() == 1024));
    let pairs = [&b"%512\r\n"[..], &b"_\r\n".repeat(1024)].concat();
    assert!(matches!(whole(&pairs), Reply::Map(elements) if elements.len() == 1024));

    let limits = Limits { elements: 5, ..Limits::default() };
    assert!(decode(b"*2\r\n%1\r\n:1\r\n:2\r\n~1\r\n:3\r\n", &limits).is_ok());
    let over = decode(b"*2\r\n%1\r\n:1\r\n:2\r\n~2", &limits);
    assert_eq!(over, Err(Malformed::TooManyElements));
    // Half a pair is no pair.
    assert_eq!(decode(b"%3", &limits), Err(Malformed::TooManyElements));
    assert_eq!(decode(b"%2", &limits), Ok(Step::Partial));
    let none = Limits { elements: 0, ..limits };
    assert!(decode(b"*0\r\n", &none).is_ok());
    assert_eq!(decode(b"*1", &none), Err(Malformed::TooManyElements));
}

#[test]
fn nesting_deeper_than_its_limit_is_malformed() {
    let deepest = nested(8);
    let mut reply = whole(&deepest);
    for _ in 0..8 {
        let Reply::Array(elements) = reply else { panic!("{reply:?}") };
        reply = elements.iter().next().expect("it has one");
    }
    assert_eq!(reply, Reply::Integer(7));
    assert_eq!(decoded(&nested(9)), Err(Malformed::TooDeep));
    assert_eq!(decoded(&nested(100_000)), Err(Malformed::TooDeep));
    // An empty aggregate counts as a level; a null does not.
    let eight = b"*1\r\n".repeat(8);
    assert_eq!(decoded(&[&eight[..], b"*0\r\n"].concat()), Err(Malformed::TooDeep));
    assert!(matches!(whole(&[&eight[..], b"*-1\r\n"].concat()), Reply::Array(_)));
    // A closed aggregate does not count.
    let wide = [&b"*2\r\n"[..], &nested(7), &nested(7)].concat();
    assert!(matches!(whole(&wide), Reply::Array(_)));

    let none = Limits { depth: 0, ..Limits::default() };
    assert_eq!(decode(b"*0\r\n", &none), Err(Malformed::TooDeep));
    assert!(decode(b":1\r\n", &none).is_ok());
    let all = Limits { depth: usize::MAX, ..none };
    assert!(decode(&nested(16), &all).is_ok());
    assert_eq!(decode(&nested(17), &all), Err(Malformed::TooDeep));
}

#[test]
fn largest_limits_do_not_wrap() {
    let most = usize::MAX;
    for (input, step) in [
        (format!("${most}\r\nabc"), Ok(Step::Partial)),
        (format!("*{most}\r\n:1\r\n"), Ok(Step::Partial)),
        (format!("%{}\r\n:1\r\n", most / 2), Ok(Step::Partial)),
        (format!("%{}", most / 2 + 1), Err(Malformed::TooManyElements)),
        (format!("${most}0"), Err(Malformed::BulkTooLong)),
    ] {
        assert_eq!(decode(input.as_bytes(), &PASSED), step, "{input}");
    }
    assert!(decode(b"+OK\r\n", &PASSED).is_ok());
}

#[test]
fn resp_error_says_in_words_what_is_wrong() {
    assert_eq!(Malformed::UnknownType(b'\n').to_string(), r"no reply begins with '\n'");
    assert_eq!(Malformed::UnknownType(0x15).to_string(), "it is in TLS: use rediss://");
    for (_, why) in MALFORMED {
        assert!(!why.to_string().is_empty());
    }
}

/// Bytes that often make up a reply, and a few that spoil it.
fn likely_bytes() -> impl Strategy<Value = Vec<u8>> {
    const PARTS: &[&[u8]] = &[
        b"\r\n", b"\r\n", b"+OK\r\n", b":1\r\n", b"$", b"*", b"%", b"~", b">", b"#t\r\n", b"_\r\n",
        b"+", b"-", b":", b"!", b"0", b"1", b"2", b"3", b"12", b"-1", b"\r", b"\n", b"x", b"?",
    ];
    vec(proptest::sample::select(PARTS), 0..24).prop_map(|parts| parts.concat())
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>().prop_filter("a line end", |byte| !b"\r\n".contains(byte)), 0..12)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let ends = proptest::sample::select(&b"\r\n:$*"[..]);
    vec(prop_oneof![any::<u8>(), ends], 0..12)
}

fn element() -> impl Strategy<Value = Wire> {
    let scalar = prop_oneof![
        text().prop_map(Wire::Simple),
        text().prop_map(Wire::Error),
        bytes().prop_map(Wire::BulkError),
        prop_oneof![any::<i64>(), -2..12_i64].prop_map(Wire::Integer),
        bytes().prop_map(Wire::Bulk),
        bytes().prop_map(Wire::Verbatim),
        proptest::sample::select(vec!["_", "$-1", "*-1"]).prop_map(Wire::Null),
        any::<bool>().prop_map(Wire::Boolean),
        any::<f64>().prop_map(Wire::Double),
        any::<i128>().prop_map(|value| Wire::BigNumber(value.to_string())),
    ];
    scalar.prop_recursive(6, 48, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Wire::Array),
            vec(inner.clone(), 0..6).prop_map(Wire::Set),
            vec((inner.clone(), inner), 0..4).prop_map(Wire::Map),
        ]
    })
}

fn reply() -> impl Strategy<Value = Wire> {
    prop_oneof![4 => element(), 1 => vec(element(), 0..4).prop_map(Wire::Push)]
}

proptest! {
    #[test]
    fn a_reply_decodes_to_what_was_encoded(wire in reply()) {
        let input = wire.encoded();
        prop_assert!(wire.is(whole(&input)), "{}", input.escape_ascii());
        for len in 0..input.len() {
            prop_assert_eq!(decoded(&input[..len]), Ok(Step::Partial));
        }
    }

    #[test]
    fn a_stream_gives_the_same_replies_however_it_is_cut(
        wires in vec(reply(), 0..8),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream = wires.iter().flat_map(Wire::encoded).collect::<Vec<u8>>();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let (replies, well) = arriving(&stream, &cuts);
        prop_assert!(well);
        prop_assert_eq!(replies.len(), wires.len());
        prop_assert_eq!(replies.last().map_or(0, |last| last.0), stream.len());
        prop_assert!(wires.iter().zip(&replies).all(|(wire, reply)| wire.is(reply.1)));
    }

    #[test]
    fn any_bytes_give_the_same_however_they_are_cut(
        stream in prop_oneof![likely_bytes(), vec(any::<u8>(), 0..64)],
        cut in any::<prop::sample::Index>(),
    ) {
        let once = arriving(&stream, &[]);
        prop_assert_eq!(&arriving(&stream, &[cut.index(stream.len() + 1)]), &once);
        prop_assert_eq!(decoded(&stream), read(&stream, &Limits::default()));
        let each: Vec<usize> = (0..stream.len()).collect();
        prop_assert_eq!(&arriving(&stream, &each), &once);
    }

    /// `Partial` would be a promise that cannot be kept if no bytes could end the reply.
    #[test]
    fn a_partial_reply_can_always_be_ended(mut stream in likely_bytes()) {
        // The limits are small, so that few bytes end the reply.
        let limits = Limits { bulk: 1000, elements: 100, ..Limits::default() };
        while decode(&stream, &limits) == Ok(Step::Partial) {
            prop_assert!(stream.len() < 4000, "it should have ended by now");
            let next = b"\n\r_01t".iter().find(|next| {
                stream.push(**next);
                let lives = decode(&stream, &limits).is_ok();
                stream.pop();
                lives
            });
            prop_assert!(next.is_some(), "a dead end: {}", stream.escape_ascii());
            stream.extend(next);
        }
    }
}
