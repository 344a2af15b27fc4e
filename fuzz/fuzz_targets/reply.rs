//! Any bytes as what a node sends: the decoder does not panic and keeps what it promises.
//!
//! The input is cut at every place, so the cost is quadratic and inputs should be short. From the
//! root of the repository:
//!
//! `cargo +nightly fuzz run reply fuzz/corpus/reply fuzz/seeds/reply -- -max_len=300`
#![no_main]

use libfuzzer_sys::fuzz_target;
use redlatch::proto::resp::{Limits, Reply, Step, decode};

fuzz_target!(|stream: &[u8]| {
    // Tight enough that short inputs meet every limit.
    for limits in [Limits::default(), Limits { line: 12, bulk: 24, elements: 6, depth: 2 }] {
        let whole = arriving(stream, 0, &limits);
        for cut in 1..stream.len() {
            assert_eq!(arriving(stream, cut, &limits), whole, "cut at {cut}");
        }
        let mut from = 0;
        for (until, reply) in whole.0 {
            check(&stream[from..until], reply, &limits);
            from = until;
        }
    }
});

/// The replies of a stream that arrives in two pieces, each with where it ends, and whether it
/// was well-formed as far as it goes.
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

/// Checks that `input` is `reply` and neither less nor more of it would be.
fn check(input: &[u8], reply: Reply<'_>, limits: &Limits) {
    let step = Step::Complete { reply, consumed: input.len() };
    assert_eq!(decode(input, limits), Ok(step));
    for len in 0..input.len() {
        assert_eq!(decode(&input[..len], limits), Ok(Step::Partial), "the first {len}");
    }
    walk(reply, limits.depth);
}

/// Reads every element there is, at most `depth` deep.
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
