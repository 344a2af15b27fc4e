//! The options of a request: which ones the core refuses before a byte is sent, and until when a
//! request waits.

use redlatch::proto::{ConfigError, LONGEST_KEY, LockToken, MOST_KEYS};
use redlatch::{LockOptions, Op};

use super::*;

/// Asserts that the core refuses the request and keeps nothing of it. Returns the error.
fn refused(ask: impl FnOnce(&mut Bench) -> Result<Op, Error>) -> ConfigError {
    let mut bench = Bench::new(3);
    let error = ask(&mut bench).expect_err("it is refused");
    assert!((0..3).all(|node| bench.sent(node).is_empty()), "nothing is sent");
    bench.assert_idle();
    let Error::Config(error) = error else { panic!("{error}") };
    error
}

#[test]
fn adopt_with_a_fencing_number_is_refused_before_a_byte_is_sent() {
    let (fenced, token) = (LockOptions::new(TTL).fenced(), token());
    let error = refused(|bench| bench.core.adopt(b"k", token, fenced, 1, bench.now));
    assert!(error.to_string().starts_with("fencing number: a lock that is adopted has none"));
}

#[test]
fn keys_that_no_request_can_have_are_refused_before_a_byte_is_sent() {
    let many: Vec<String> = (0..=MOST_KEYS).map(|number| number.to_string()).collect();
    let long = vec![b'a'; LONGEST_KEY + 1];
    let together = [&long[..LONGEST_KEY], b"b"];
    for (text, error) in [
        (
            "keys: the list is empty; name at least one",
            refused(|bench| bench.core.acquire([""; 0], TTL, 1, bench.now)),
        ),
        (
            "keys: 65 different keys are given; a lock can have 64 at most",
            refused(|bench| bench.core.acquire(&many, TTL, 1, bench.now)),
        ),
        (
            "keys: 65 different keys are given; a lock can have 64 at most",
            refused(|bench| bench.core.adopt(&many, token(), TTL, 1, bench.now)),
        ),
        (
            "keys: the list is empty; name at least one",
            refused(|bench| bench.core.release_token(&many[..0], token(), 1, bench.now)),
        ),
        (
            "keys: 65 different keys are given; a lock can have 64 at most",
            refused(|bench| bench.core.extend_token(&many, token(), TTL, 1, bench.now)),
        ),
        (
            "key of 65537 bytes: it is too long; the limit is 65536 bytes",
            refused(|bench| bench.core.extend_token(&long, token(), TTL, 1, bench.now)),
        ),
        (
            "key of 65537 bytes: it is too long; the limit is 65536 bytes",
            refused(|bench| bench.core.acquire(&long, TTL, 1, bench.now)),
        ),
        (
            "key of 65537 bytes: it is too long; the limit is 65536 bytes",
            refused(|bench| bench.core.acquire(together, TTL, 1, bench.now)),
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

fn token() -> LockToken {
    LockToken::parse(&"0".repeat(40)).expect("it is one")
}

/// A request that waits until a moment that has passed ends with its first attempt.
#[test]
fn wait_until_ends_the_request_at_that_moment() {
    for (length, attempts) in [(Duration::ZERO, 1), (millis(400), 2)] {
        let mut bench = Bench::new(1);
        let moment = bench.now.saturating_add(length);
        let options = LockOptions::new(TTL).wait_until(moment);
        bench.ask(1, options);
        bench.answer([0], "$-1\r\n");
        assert_eq!(bench.completion().is_some(), attempts == 1, "{length:?}");
        if attempts == 2 {
            bench.pass(length);
            assert!(bench.completion().is_some(), "the wait is over");
        }
    }
}
