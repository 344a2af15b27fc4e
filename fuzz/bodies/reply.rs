//! Any bytes, as if a node sent them: the decoder does not panic, keeps what it promises, and reads
//! exactly what an independent parser reads, however the bytes are split.
//!
//! The input is cut at every place, so the cost is quadratic in its length. So long inputs are cut
//! off.

use redlatch::proto::resp::{Limits, Reply, Step, decode};

use crate::plain_parser::{Parsed, Value, parse, parse_all};

/// The rest of a longer input is ignored.
pub const LONGEST: usize = 300;

pub fn run(stream: &[u8]) {
    let stream = &stream[..stream.len().min(LONGEST)];
    // The second limits are so tight that short inputs reach each of them.
    for limits in [Limits::default(), Limits { line: 12, bulk: 24, elements: 6, depth: 2 }] {
        let whole = arriving(stream, 0, &limits);
        for cut in 1..stream.len() {
            assert_eq!(arriving(stream, cut, &limits), whole, "cut at {cut}");
        }
        compare(&whole, stream, &limits);
        let mut from = 0;
        for (until, reply) in whole.0 {
            check(&stream[from..until], reply, &limits);
            from = until;
        }
    }
}

/// Reads the replies of a stream that arrives in two pieces. Returns each with its end, and whether
/// the stream was well-formed as far as it goes.
fn arriving<'a>(stream: &'a [u8], cut: usize, limits: &Limits) -> (Vec<(usize, Reply<'a>)>, bool) {
    let mut replies = Vec::new();
    let mut from = 0;
    for until in [cut, stream.len()] {
        loop {
            let input = &stream[from..until];
            match decode(input, limits) {
                Ok(Step::Complete { reply, consumed }) => {
                    assert!(consumed > 0 && consumed <= input.len());
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

/// Checks that the plain parser reads the same replies, and stops at the same place for the same
/// reason.
fn compare(whole: &(Vec<(usize, Reply<'_>)>, bool), stream: &[u8], limits: &Limits) {
    let copied = whole.0.iter().map(|(until, reply)| (*until, copy(*reply)));
    let (replies, rest) = parse_all(stream, limits);
    assert_eq!(copied.collect::<Vec<_>>(), replies, "{limits:?}");
    let expected = if whole.1 { Parsed::Part } else { Parsed::Wrong };
    assert_eq!(rest, expected, "after the last of {} replies, {limits:?}", replies.len());
}

/// Checks that `input` is exactly `reply`, and incomplete for both parsers if it is shorter.
fn check(input: &[u8], reply: Reply<'_>, limits: &Limits) {
    let step = Step::Complete { reply, consumed: input.len() };
    assert_eq!(decode(input, limits), Ok(step));
    for len in 0..input.len() {
        assert_eq!(decode(&input[..len], limits), Ok(Step::Partial), "the first {len}");
        assert_eq!(parse(&input[..len], limits), Parsed::Part, "the first {len}");
    }
    walk(reply, limits.depth);
}

/// Reads every element, and checks that none is deeper than `depth`.
fn walk(reply: Reply<'_>, depth: usize) {
    let (Reply::Array(elements)
    | Reply::Set(elements)
    | Reply::Map(elements)
    | Reply::Push(elements)) = reply
    else {
        return;
    };
    assert!(depth > 0);
    assert_eq!(elements.iter().count(), elements.len());
    elements.into_iter().for_each(|element| walk(element, depth - 1));
}

/// The reply as a value of the plain parser.
fn copy(reply: Reply<'_>) -> Value {
    let list = |kind, elements: redlatch::proto::resp::Elements<'_>| -> Value {
        Value::List(kind, elements.iter().map(copy).collect())
    };
    match reply {
        Reply::Simple(text) => Value::Simple(text.to_vec()),
        Reply::Error(text) => Value::Error(text.to_vec()),
        Reply::Integer(number) => Value::Integer(number),
        Reply::Bulk(bytes) => Value::Bulk(bytes.to_vec()),
        Reply::Null => Value::Null,
        Reply::Boolean(value) => Value::Boolean(value),
        Reply::Double(text) => Value::Double(text.to_vec()),
        Reply::BigNumber(text) => Value::BigNumber(text.to_vec()),
        Reply::Array(elements) => list(b'*', elements),
        Reply::Set(elements) => list(b'~', elements),
        Reply::Map(elements) => list(b'%', elements),
        Reply::Push(elements) => list(b'>', elements),
    }
}
