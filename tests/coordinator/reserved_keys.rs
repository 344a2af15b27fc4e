//! Keys whose names begin with `redlatch:` are the library's own. Every request about a lock
//! refuses them, also if a part of this beginning comes from the key prefix.

use redlatch::proto::{KeySet, Note};
use redlatch::{ConfigError, Error, LockOptions, LockToken, Op};

use crate::bench::{Bench, TTL};

/// Makes every kind of request that names the keys of a lock.
fn requests(bench: &mut Bench, key: &str) -> Vec<(&'static str, Result<Op, Error>)> {
    let (now, token) = (bench.now, "0123456789".repeat(4).parse::<LockToken>().expect("a token"));
    let set = KeySet::new(["a", key]).expect("a good set");
    let (key, options) = (key.as_bytes(), LockOptions::once(TTL));
    let core = &mut bench.core;
    vec![
        ("acquire", core.acquire(key, options, 0, now)),
        ("acquire a set", core.acquire(&set, options, 0, now)),
        ("acquire, waiting", core.acquire(key, options, 0, now)),
        ("acquire, fenced", core.acquire(key, options.fenced(), 0, now)),
        ("acquire a set, fenced", core.acquire(&set, options.fenced(), 0, now)),
        ("adopt", core.adopt(key, token.clone(), options, 0, now)),
        ("adopt a set", core.adopt(&set, token.clone(), options, 0, now)),
        ("extend by token", core.extend_token(key, token.clone(), TTL, 0, now)),
        ("extend a set by token", core.extend_token(&set, token.clone(), TTL, 0, now)),
        ("release by token", core.release_token(key, token.clone(), 0, now)),
        ("release a set by token", core.release_token(&set, token, 0, now)),
        ("force release", core.force_release(key, 0, now)),
        ("inspect", core.inspect(key, 0, now)),
        ("write a note", core.write_note(key, Note::Leader, b"text", TTL, 0, now)),
        ("read a note", core.read_note(key, Note::Resign, 0, now)),
    ]
}

#[test]
fn reserved_key_is_refused_by_every_request_before_a_byte_is_sent() {
    let cases = [
        ("", "redlatch:"),
        ("", "redlatch:line:{a}"),
        ("", "redlatch:fence:{a}"),
        ("", "redlatch:leader:{a}"),
        ("", "redlatch:resign:{a}"),
        ("", "redlatch:node"),
        ("red", "latch:a"),
    ];
    for (prefix, key) in cases {
        let mut bench = Bench::with(1, |settings| settings.key_prefix = prefix.into());
        let sent = format!("{prefix}{key}").into_bytes().into();
        let expected = Error::Config(ConfigError::ReservedKey { sent });
        for (request, result) in requests(&mut bench, key) {
            assert_eq!(result.err().as_ref(), Some(&expected), "{request}: {prefix:?} {key:?}");
            assert!(bench.sent(0).is_empty(), "{request}: {prefix:?} {key:?}");
        }
        bench.assert_idle();
    }
}

#[test]
fn reserved_names_are_free_after_a_prefix_and_inside_a_name() {
    for (prefix, key) in [("app:", "redlatch:a"), ("", "a:redlatch:b"), ("redlatch", "a")] {
        let mut bench = Bench::with(1, |settings| settings.key_prefix = prefix.into());
        for (request, result) in requests(&mut bench, key) {
            assert!(result.is_ok(), "{request}: {prefix:?} {key:?}: {result:?}");
        }
    }
}
