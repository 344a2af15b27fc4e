//! What the client sends to a node about one key: the encoders, and each Lua script with its SHA1.
//! The scripts over all keys of a lock, and over their counters, are in
//! [`sets`](crate::proto::wire::sets).
//!
//! Scripts answer 1 (done), 0 (the key is absent) or -1 (the key is another's). The hazard is a key
//! with bytes that mean something in the protocol, so every argument is sent with its length.

use bytes::BytesMut;

use crate::proto::inspection::{VALUE_BYTES, Value};
use crate::proto::lock::{LONGEST_TOKEN, LockToken, TOKEN_DIGITS};
use crate::proto::time::Ttl;

/// A Lua script and the SHA1 by which a node knows it once it was loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script {
    /// The source, sent by `EVAL` and `SCRIPT LOAD`.
    pub source: &'static str,
    /// 40 hex digits, sent by `EVALSHA`.
    pub sha1: &'static str,
}

/// Compare-and-delete: `KEYS[1]` the key, `ARGV[1]` the token.
pub const RELEASE: Script = Script {
    source: "local v = redis.call('GET', KEYS[1]) \
             if not v then return 0 end \
             if v ~= ARGV[1] then return -1 end \
             redis.call('DEL', KEYS[1]) return 1",
    sha1: "e40f3e9065d7e93e8da245f486ebd4a5e00ac5b9",
};

/// The part of a script that prolongs a key to the ttl `ARGV[2]`, and never shortens it. The key
/// holds the token `ARGV[1]`.
///
/// If the key lives long enough, its expiry stays exactly as it is. Writing back what `PTTL`
/// returns would move the expiry a little each time, because `PTTL` may be rounded and the clock
/// runs on between two commands. But the script tries a write even then, so that a replica, which
/// only copies its master, refuses it and does not agree to the extend. Two writes change nothing,
/// so the script tries them first: `PEXPIRE NX` of a key that has a ttl, which servers before 7.0
/// do not know, and `SET NX` of a key that is there, which a server without memory refuses. If both
/// fail, the script writes back what `PTTL` returned. On a node that refuses all writes, that
/// fails, too.
macro_rules! prolong {
    ($key:literal) => {
        concat!(
            "local left = redis.call('PTTL', ",
            $key,
            ") if left < tonumber(ARGV[2]) then redis.call('PEXPIRE', ",
            $key,
            ", ARGV[2]) elseif redis.pcall('PEXPIRE', ",
            $key,
            ", left, 'NX') ~= 0 and redis.pcall('SET', ",
            $key,
            ", ARGV[1], 'NX', 'PX', left) then redis.call('PEXPIRE', ",
            $key,
            ", left) end ",
        )
    };
}
pub(super) use prolong;

/// Prolongs a key that holds the token, and never shortens it.
///
/// `ARGV[1]` is the token, `ARGV[2]` the ttl in milliseconds. The script uses `PEXPIRE` and not
/// `SET`, because `PEXPIRE` works when memory is full.
pub const EXTEND: Script = Script {
    source: concat!(
        "local v = redis.call('GET', KEYS[1]) ",
        "if not v then return 0 end ",
        "if v ~= ARGV[1] then return -1 end ",
        prolong!("KEYS[1]"),
        "return 1",
    ),
    sha1: "2ba2393987fad6e164284ea2bcb91e32677b640a",
};

/// Deletes a key if its value still begins as an operator saw it. A value that is longer than what
/// is kept of it is compared as far as it was kept.
///
/// `ARGV[1]` is the value, as far as it was kept, and `ARGV[2]` the index of the last byte that is
/// kept.
pub const DELETE_SEEN: &str = "local v = redis.call('GETRANGE', KEYS[1], 0, ARGV[2]) \
    if v == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
    return -redis.call('EXISTS', KEYS[1])";

/// Writes the node marker and returns the value that the key has afterwards; null if it has none.
///
/// `KEYS[1]` is the marker's key, `ARGV[1]` the identity of the node with the spaces around it,
/// `ARGV[2]` how to write, `ARGV[3]` the end of the text. If there is an `ARGV[4]`, it is written
/// in place of the present time, and a marker of this identity is left as it is. How:
///
/// * empty: with the present time, unless a marker of this identity is there;
/// * `new`: with the present time, whatever is there;
/// * `keep`: with the time of the marker that is there;
/// * `tail`: with everything but the identity of the marker that is there;
/// * digits: with the present time, if the marker that is there has this time.
///
/// A value that is no marker is left alone: the key may belong to another program. So is a marker
/// of a later version, with another number at its beginning or a word that is not known here.
pub const MARK: &str = "local v, how = redis.call('GET', KEYS[1]), ARGV[2] \
    local since, word = string.match(v or '', '^1 %w+ %w+ (%d+)(.*)$') \
    if v and (#v < 85 or not since or (word ~= '' and word ~= ' vouched')) then return v end \
    local same = since and string.sub(v, 1, #ARGV[1]) == ARGV[1] \
    if same and (how == '' or ARGV[4]) then return v end \
    if string.find(how, '%d') and since ~= how then return v end \
    local text \
    if since and how == 'keep' then text = since \
    elseif since and how == 'tail' then text = since .. word \
    else local t = redis.call('TIME') \
    text = ARGV[4] or (t[1] .. string.format('%06d', tonumber(t[2])) .. ARGV[3]) end \
    redis.call('SET', KEYS[1], ARGV[1] .. text) \
    return ARGV[1] .. text";

/// Writes the list of masters `ARGV[2]` if the node has `ARGV[1]`, or nothing where that is empty;
/// returns what the node has after that.
pub const MEMBERS: &str = "local found = redis.call('GET', KEYS[1]) or '' \
    if found ~= ARGV[1] then return found end \
    redis.call('SET', KEYS[1], ARGV[2]) \
    return ARGV[2]";

/// How a question is sent that a plain command cannot ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// `EVALSHA`: short, and answered `-NOSCRIPT` if the node forgot the script.
    Sha,
    /// `EVAL`: the whole source, for a release whose answer the client may never read.
    Source,
    /// A native command of the node in place of the script: it compares and deletes. On a node
    /// that runs no scripts, also `SET` with `IFEQ`, which compares and sets.
    Native(Native),
    /// A fenced acquire of one key, by a transaction in place of the script.
    Transaction,
}

/// A node's native compare-and-delete. The answer is 1, or 0 both for an absent key and for
/// another's. Each server that has one of these also knows `SET` with `IFEQ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Native {
    /// `DELIFEQ key token`: Valkey from 9.0 on.
    Delifeq,
    /// `DELEX key IFEQ token`: Redis from 8.4 on.
    Delex,
}

/// Encodes a command of any arguments.
pub fn encode(out: &mut BytesMut, arguments: &[&[u8]]) {
    let length: usize = arguments.iter().map(|argument| argument.len() + 16).sum();
    out.reserve(length + 16);
    put_header(out, b'*', arguments.len());
    for argument in arguments {
        put_bulk(out, argument);
    }
}

/// `SET key token NX PX ttl`.
pub fn acquire(out: &mut BytesMut, key: &[u8], token: &LockToken, ttl: Ttl) {
    let mut digits = [0; 20];
    let millis = decimal(ttl.as_millis(), &mut digits);
    out.reserve(key.len() + token.length() + 120);
    out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n");
    put_bulk(out, key);
    put_token(out, token);
    out.extend_from_slice(b"$2\r\nNX\r\n$2\r\nPX\r\n");
    put_bulk(out, millis);
}

/// The compare-and-delete.
pub fn release(out: &mut BytesMut, form: Form, key: &[u8], token: &LockToken) {
    match form {
        Form::Native(native) => {
            let mut buffer = [0; LONGEST_TOKEN];
            delete_if_equal(out, native, key, token.write_to(&mut buffer));
        }
        Form::Sha | Form::Source | Form::Transaction => {
            put_script(out, &RELEASE, form, 1, 1);
            put_bulk(out, key);
            put_token(out, token);
        }
    }
}

/// The native compare-and-delete.
#[inline]
pub fn delete_if_equal(out: &mut BytesMut, native: Native, key: &[u8], value: &[u8]) {
    match native {
        Native::Delifeq => encode(out, &[b"DELIFEQ", key, value]),
        Native::Delex => encode(out, &[b"DELEX", key, b"IFEQ", value]),
    }
}

/// The delete of what was seen. Always sent by its source, because only an operator uses it.
pub fn delete_seen(out: &mut BytesMut, key: &[u8], seen: &Value) {
    let mut digits = [0; 20];
    let last = decimal(VALUE_BYTES as u64 - 1, &mut digits);
    encode(out, &[b"EVAL", DELETE_SEEN.as_bytes(), b"1", key, seen.as_bytes(), last]);
}

/// The extend: to at least `ttl` from the moment the node runs it.
pub fn extend(out: &mut BytesMut, form: Form, key: &[u8], token: &LockToken, ttl: Ttl) {
    let mut digits = [0; 20];
    let millis = decimal(ttl.as_millis(), &mut digits);
    put_script(out, &EXTEND, form, 1, 2);
    put_bulk(out, key);
    put_token(out, token);
    put_bulk(out, millis);
}

/// Writes `new` with this ttl if the key has `expected`. The answer is the value before: null if
/// the key is absent. Redis 8.4 and Valkey 8.1 have the option, with these words.
pub fn replace(out: &mut BytesMut, key: &[u8], expected: &LockToken, new: &LockToken, ttl: Ttl) {
    let mut digits = [0; 20];
    let millis = decimal(ttl.as_millis(), &mut digits);
    let (mut before, mut after) = ([0; LONGEST_TOKEN], [0; LONGEST_TOKEN]);
    let (expected, new) = (expected.write_to(&mut before), new.write_to(&mut after));
    encode(out, &[b"SET", key, new, b"IFEQ", expected, b"GET", b"PX", millis]);
}

/// `EVALSHA sha keys key... argument...` or `EVAL source keys key... argument...` up to the keys,
/// which follow, as the arguments do.
#[inline(always)]
pub(super) fn put_script(
    out: &mut BytesMut,
    script: &Script,
    form: Form,
    keys: usize,
    arguments: usize,
) {
    match form {
        Form::Sha if 3 + keys + arguments < 10 => {
            let mut head = *b"*0\r\n$7\r\nEVALSHA\r\n$40\r\n";
            head[1] += (3 + keys + arguments) as u8;
            out.extend_from_slice(&head);
            out.extend_from_slice(script.sha1.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Form::Sha => {
            put_header(out, b'*', 3 + keys + arguments);
            out.extend_from_slice(b"$7\r\nEVALSHA\r\n$40\r\n");
            out.extend_from_slice(script.sha1.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        Form::Source | Form::Native(_) | Form::Transaction => {
            put_header(out, b'*', 3 + keys + arguments);
            put_bulk(out, b"EVAL");
            put_bulk(out, script.source.as_bytes());
        }
    }
    if keys < 10 {
        out.extend_from_slice(&[b'$', b'1', b'\r', b'\n', b'0' + keys as u8, b'\r', b'\n']);
    } else {
        put_number(out, keys as u64);
    }
}

/// The whole token: its digits, and its owner if it has one.
#[inline(always)]
pub(super) fn put_token(out: &mut BytesMut, token: &LockToken) {
    let Some(owner) = token.owner() else {
        // In one piece, because each piece that is put into the buffer has a cost of its own.
        let mut bulk = [0; 5 + TOKEN_DIGITS + 2];
        bulk[..5].copy_from_slice(b"$40\r\n");
        bulk[5..5 + TOKEN_DIGITS].copy_from_slice(token.digits());
        bulk[5 + TOKEN_DIGITS..].copy_from_slice(b"\r\n");
        out.extend_from_slice(&bulk);
        return;
    };
    put_header(out, b'$', token.length());
    out.extend_from_slice(token.digits());
    out.extend_from_slice(b":");
    out.extend_from_slice(owner.as_bytes());
    out.extend_from_slice(b"\r\n");
}

// Inlined, so that the headers of constants and tokens are constants too.
#[inline(always)]
pub(super) fn put_bulk(out: &mut BytesMut, bytes: &[u8]) {
    put_header(out, b'$', bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// A bulk string of the digits of a number.
pub(super) fn put_number(out: &mut BytesMut, number: u64) {
    let mut digits = [0; 20];
    put_bulk(out, decimal(number, &mut digits));
}

/// A bulk string that is written in pieces.
#[inline(always)]
pub(super) fn put_bulk_of<const N: usize>(out: &mut BytesMut, pieces: [&[u8]; N]) {
    put_header(out, b'$', pieces.iter().map(|piece| piece.len()).sum());
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    out.extend_from_slice(b"\r\n");
}

/// A line of a type and a length. Nearly every length has one digit or two, so those are written in
/// one piece.
#[inline(always)]
pub(super) fn put_header(out: &mut BytesMut, kind: u8, length: usize) {
    let digit = |n: usize| b'0' + n as u8;
    match length {
        0..10 => out.extend_from_slice(&[kind, digit(length), b'\r', b'\n']),
        10..100 => {
            let (tens, ones) = (digit(length / 10), digit(length % 10));
            out.extend_from_slice(&[kind, tens, ones, b'\r', b'\n']);
        }
        _ => put_long_header(out, kind, length),
    }
}

#[cold]
fn put_long_header(out: &mut BytesMut, kind: u8, length: usize) {
    let mut digits = [0; 20];
    out.extend_from_slice(&[kind]);
    out.extend_from_slice(decimal(length as u64, &mut digits));
    out.extend_from_slice(b"\r\n");
}

/// The decimal digits of `number`, written at the end of `digits`. A formatter is too slow for the
/// hot path.
pub(super) fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::time::Duration;

    fn token() -> LockToken {
        LockToken::random(&mut StdRng::from_seed([3; 32]))
    }

    fn owned(owner: &str) -> LockToken {
        token().with_owner(Some(&owner.into()))
    }

    fn encoded(encode: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        encode(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn each_script_stands_beside_its_sha1() {
        for script in [RELEASE, EXTEND] {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }

    #[test]
    fn command_written_in_pieces_equals_its_arguments() {
        for token in [token(), owned("h"), owned("web-1:4711/nightly"), owned(&"x".repeat(100))] {
            check_commands_of(&token);
        }
    }

    fn check_commands_of(token: &LockToken) {
        let (text, sha) = (token.to_string(), |script: Script| script.sha1.as_bytes());
        for length in (0..=120).chain([999, 1_000, 12_345]) {
            let key = vec![b'k'; length];
            let mut millis = 3;
            while millis < 100_000_000 {
                let ttl = Ttl::new(Duration::from_millis(millis), Duration::MAX).unwrap();
                let digits = millis.to_string();
                let set: [&[u8]; 6] =
                    [b"SET", &key, text.as_bytes(), b"NX", b"PX", digits.as_bytes()];
                let written = encoded(|out| acquire(out, &key, token, ttl));
                assert_eq!(written, plain(&set));
                let words: [&[u8]; 6] =
                    [b"EVALSHA", sha(EXTEND), b"1", &key, text.as_bytes(), digits.as_bytes()];
                let written = encoded(|out| extend(out, Form::Sha, &key, token, ttl));
                assert_eq!(written, plain(&words));
                millis *= 10;
            }
            let words: [&[u8]; 5] = [b"EVALSHA", sha(RELEASE), b"1", &key, text.as_bytes()];
            let written = encoded(|out| release(out, Form::Sha, &key, token));
            assert_eq!(written, plain(&words));
            let native: [&[u8]; 4] = [b"DELEX", &key, b"IFEQ", text.as_bytes()];
            let written = encoded(|out| release(out, Form::Native(Native::Delex), &key, token));
            assert_eq!(written, plain(&native));
        }
    }

    /// A command as it is sent, made without any of the encoders.
    fn plain(words: &[&[u8]]) -> String {
        let bulks = words.iter().map(|word| {
            let text = std::str::from_utf8(word).unwrap();
            format!("${}\r\n{text}\r\n", word.len())
        });
        format!("*{}\r\n{}", words.len(), bulks.collect::<String>())
    }

    #[test]
    fn replacement_is_set_ifeq_get_px() {
        let ttl = Ttl::new(Duration::from_secs(10), Duration::from_secs(60)).unwrap();
        let (old, new) = (owned("h"), token());
        let written = encoded(|out| replace(out, b"k", &old, &new, ttl));
        let (old, new) = (old.to_string(), new.to_string());
        let words: [&[u8]; 8] =
            [b"SET", b"k", new.as_bytes(), b"IFEQ", old.as_bytes(), b"GET", b"PX", b"10000"];
        assert_eq!(written, plain(&words));
    }

    #[test]
    fn acquire_is_set_nx_px() {
        let ttl = Ttl::new(Duration::from_secs(10), Duration::from_secs(60)).unwrap();
        let text = encoded(|out| acquire(out, b"k", &token(), ttl));
        let expected = format!(
            "*6\r\n$3\r\nSET\r\n$1\r\nk\r\n$40\r\n{}\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n10000\r\n",
            token()
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn scripts_are_sent_by_sha_or_by_source() {
        let text = encoded(|out| release(out, Form::Sha, b"a b", &token()));
        let (sha, token_text) = (RELEASE.sha1, token());
        let head = format!("*5\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n$1\r\n1\r\n");
        assert_eq!(text, format!("{head}$3\r\na b\r\n$40\r\n{token_text}\r\n"));
        let text = encoded(|out| release(out, Form::Source, b"a b", &token()));
        assert!(text.starts_with("*5\r\n$4\r\nEVAL\r\n"));
        assert!(text.contains(RELEASE.source));
        let text = encoded(|out| release(out, Form::Native(Native::Delex), b"k", &token()));
        assert!(text.starts_with("*4\r\n$5\r\nDELEX\r\n$1\r\nk\r\n$4\r\nIFEQ\r\n$40\r\n"));
        let text = encoded(|out| release(out, Form::Native(Native::Delifeq), b"k", &token()));
        assert!(text.starts_with("*3\r\n$7\r\nDELIFEQ\r\n$1\r\nk\r\n$40\r\n"));
        let ttl = Ttl::new(Duration::from_millis(1234), Duration::from_secs(60)).unwrap();
        let text = encoded(|out| extend(out, Form::Sha, b"k", &token(), ttl));
        assert!(text.starts_with("*6\r\n") && text.ends_with("$4\r\n1234\r\n"), "{text}");
    }

    #[test]
    fn bytes_that_mean_something_in_the_protocol_are_sent_as_they_are() {
        let key = b"\0\r\n$5\r\n";
        let text = encoded(|out| encode(out, &[b"GET", key]));
        assert_eq!(text, "*2\r\n$3\r\nGET\r\n$7\r\n\0\r\n$5\r\n\r\n");
    }

    #[test]
    fn every_number_has_its_digits() {
        for number in [0, 9, 10, 12_345, u64::MAX] {
            let mut digits = [0; 20];
            assert_eq!(decimal(number, &mut digits), number.to_string().as_bytes());
        }
    }

    #[test]
    fn room_for_a_command_is_about_its_length() {
        let key = [b'k'; 1_000];
        let ttl = Ttl::new(Duration::from_secs(1), Duration::MAX).unwrap();
        let mut set = BytesMut::new();
        acquire(&mut set, &key, &token(), ttl);
        let mut any = BytesMut::new();
        encode(&mut any, &[b"GET", &key]);
        for out in [set, any] {
            assert!(out.capacity() <= out.len() + 200, "{} of {}", out.len(), out.capacity());
        }
    }
}
