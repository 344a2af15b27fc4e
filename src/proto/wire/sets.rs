//! Locks over several keys on the nodes: the scripts, each over all keys of the set, and how they
//! are sent.
//!
//! The hazard is a part of a set. So the script of an acquire looks at all keys before it writes
//! one, and a node that holds any of them for another client refuses the whole. A script that fails
//! in the middle may have written some keys: its error proves nothing about what it did.
//!
//! An answer of 1 means all keys. Another answer names the first key, counted from 1, that is in
//! the way: each script says how. A key that is no string is another program's.

use bytes::BytesMut;

use crate::proto::error::NodeReply;
use crate::proto::key::KeyPrefix;
use crate::proto::key_set::{MOST_KEYS, parts};
use crate::proto::lock::{LONGEST_TOKEN, LockToken};
use crate::proto::time::Ttl;
use crate::proto::wire::command::{
    Form, Script, decimal, prolong, put_bulk, put_bulk_of, put_header, put_token,
};
use crate::proto::wire::resp::Reply;

/// Takes all keys, or none: `ARGV[1]` is the token, `ARGV[2]` the ttl in milliseconds. It answers
/// 1, or -N if key N is held.
///
/// A key that holds the token already counts as free, so that a lock can be healed, and its ttl is
/// never shortened.
///
/// With more arguments, the second half of `KEYS` are the counters of the keys, and the script
/// counts for each key: the answer is the list of the node's votes. `ARGV[3]` is how long the
/// counters live, in milliseconds, `ARGV[4]` the step of the first count, in milliseconds, and
/// `ARGV[5]` the floor below which a counter counts as absent. With one more argument for each key,
/// its fencing number, the counters are raised to these numbers instead: to heal a lock.
pub const ACQUIRE_SET: Script = Script {
    source: "local keys, own, n, m = KEYS, {}, {}, #KEYS \
             if ARGV[3] then m = m / 2 end \
             for i = 1, m do \
             local v = redis.pcall('GET', keys[i]) \
             if v == ARGV[1] then own[i] = true \
             elseif type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then \
             return v \
             elseif v then return -i end end \
             if ARGV[3] then for i = 1, m do \
             local c = tonumber(redis.call('GET', keys[m + i]) or 0) \
             if not c or not (c >= 0 and c < 9007199254740991) then \
             return redis.error_reply('ERR the fencing counter is not a number') end \
             n[i] = c end end \
             for i = 1, m do \
             local k = keys[i] \
             if not own[i] or redis.call('PTTL', k) < tonumber(ARGV[2]) then \
             redis.call('SET', k, ARGV[1], 'PX', ARGV[2]) end end \
             if not ARGV[3] then return 1 end \
             for i = 1, m do \
             local c = n[i] \
             if c < tonumber(ARGV[5]) then \
             local t = redis.call('TIME') local ms = t[1] * 1000 + t[2] / 1000 \
             c = math.max(c, math.floor(math.floor(ms / ARGV[4]) * ARGV[4] * 1048.576)) end \
             if ARGV[5 + i] then c = math.max(c, ARGV[5 + i]) else c = c + 1 end \
             n[i] = c \
             redis.call('SET', keys[m + i], string.format('%.0f', c), 'PX', ARGV[3]) end \
             return n",
    sha1: "4e51900cb4359b2a73d1c6e641ddddd7f4c0d198",
};

/// Prolongs all keys as [`EXTEND`](crate::proto::wire::command::EXTEND) does, or none: `ARGV[1]` is
/// the token, `ARGV[2]` the ttl in milliseconds. It answers -2N if key N is absent, and -2N - 1 if
/// it is another's.
///
/// With more arguments, the second half of `KEYS` are the counters of the keys, and the script
/// raises each to its fencing number if all keys hold the token. A ttl of 0 leaves the keys as they
/// are. `ARGV[3]` is how long the counters live, `ARGV[4]` the step of the first count, in
/// milliseconds, and `ARGV[5]` the floor below which a counter counts as absent. The numbers
/// follow.
pub const EXTEND_SET: Script = Script {
    source: concat!(
        "local n, m = {}, #KEYS ",
        "if ARGV[3] then m = m / 2 end ",
        "for i = 1, m do ",
        "local v = redis.pcall('GET', KEYS[i]) ",
        "if not v then return -2 * i end ",
        "if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then ",
        "return v end ",
        "if v ~= ARGV[1] then return -2 * i - 1 end end ",
        "for i = m + 1, #KEYS do ",
        "n[i] = tonumber(redis.call('GET', KEYS[i]) or 0) ",
        "if not n[i] or not (n[i] >= 0 and n[i] < 9007199254740991) then ",
        "return redis.error_reply('ERR the fencing counter is not a number') end end ",
        "for i = m + 1, #KEYS do ",
        "local c, f = n[i], tonumber(ARGV[5 + i - m]) ",
        "if c >= f then redis.call('PEXPIRE', KEYS[i], ARGV[3]) else ",
        "if c < tonumber(ARGV[5]) then ",
        "local t = redis.call('TIME') local ms = t[1] * 1000 + t[2] / 1000 ",
        "c = math.max(c, math.floor(math.floor(ms / ARGV[4]) * ARGV[4] * 1048.576)) end ",
        "f = string.format('%.0f', math.max(c, f)) ",
        "redis.call('SET', KEYS[i], f, 'PX', ARGV[3]) end end ",
        "if ARGV[2] == '0' then return 1 end ",
        "for i = 1, m do ",
        prolong!("KEYS[i]"),
        "end return 1",
    ),
    sha1: "e51af693b13b5d90e390f9375526e032fe5c0b46",
};

/// Deletes every key that holds the token: `KEYS` are the keys, `ARGV[1]` the token. It answers as
/// [`EXTEND_SET`] does, but only after it looked at all keys: one that is not ours does not keep
/// the others. An error at one key is the answer only after the others were released.
pub const RELEASE_SET: Script = Script {
    source: "local answer, failed = 1, nil \
             for i, k in ipairs(KEYS) do \
             local v = redis.pcall('GET', k) \
             if v == ARGV[1] then redis.call('DEL', k) \
             elseif type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then \
             failed = v \
             elseif answer == 1 then \
             if v then answer = -2 * i - 1 else answer = -2 * i end end end \
             return failed or answer",
    sha1: "825e1276144a5c0ec484e27217fb6a8238c1e685",
};

/// Adopts a lock over all keys as [`ADOPT`](crate::proto::wire::command::ADOPT) does, or nothing:
/// `KEYS` are the keys, `ARGV[1]` is the token that the lock was given away with, `ARGV[2]` the new
/// one, and `ARGV[3]` the ttl in milliseconds. It answers as [`EXTEND_SET`] does.
pub const ADOPT_SET: &str = "for i, k in ipairs(KEYS) do \
    local v = redis.pcall('GET', k) \
    if not v then return -2 * i end \
    if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then return v end \
    if v ~= ARGV[1] and v ~= ARGV[2] then return -2 * i - 1 end end \
    for _, k in ipairs(KEYS) do \
    local ttl = math.max(tonumber(ARGV[3]), redis.call('PTTL', k)) \
    redis.call('SET', k, ARGV[2], 'XX', 'PX', string.format('%.0f', ttl)) end \
    return 1";

/// The keys of a command, without the prefix.
#[derive(Debug, Clone, Copy)]
pub struct SetKeys<'a> {
    /// The prefix.
    pub prefix: &'a KeyPrefix,
    /// All keys, one directly after the other.
    pub bytes: &'a [u8],
    /// Where each of them ends.
    pub ends: &'a [u32],
}

/// [`ACQUIRE_SET`].
pub fn acquire(out: &mut BytesMut, form: Form, keys: SetKeys<'_>, token: &LockToken, ttl: Ttl) {
    put_script(out, (ACQUIRE_SET.source, ACQUIRE_SET.sha1), form, keys, 2);
    put_token(out, token);
    put_millis(out, ttl);
}

/// [`EXTEND_SET`].
pub fn extend(out: &mut BytesMut, form: Form, keys: SetKeys<'_>, token: &LockToken, ttl: Ttl) {
    put_script(out, (EXTEND_SET.source, EXTEND_SET.sha1), form, keys, 2);
    put_token(out, token);
    put_millis(out, ttl);
}

/// [`RELEASE_SET`].
pub fn release(out: &mut BytesMut, form: Form, keys: SetKeys<'_>, token: &LockToken) {
    put_script(out, (RELEASE_SET.source, RELEASE_SET.sha1), form, keys, 1);
    put_token(out, token);
}

/// [`ADOPT_SET`]: `old` becomes `new`. Always by its source: it is asked once in a lock's life.
pub fn adopt(out: &mut BytesMut, keys: SetKeys<'_>, old: &LockToken, new: &LockToken, ttl: Ttl) {
    put_script(out, (ADOPT_SET, ""), Form::Source, keys, 3);
    let mut buffer = [0; LONGEST_TOKEN];
    put_bulk(out, old.write_to(&mut buffer));
    put_token(out, new);
    put_millis(out, ttl);
}

/// `EVALSHA sha n key...` or `EVAL source n key...`; the arguments follow.
fn put_script(
    out: &mut BytesMut,
    (source, sha1): (&str, &str),
    form: Form,
    keys: SetKeys<'_>,
    arguments: usize,
) {
    let names = keys.ends.len();
    put_header(out, b'*', 3 + names + arguments);
    match form {
        Form::Sha => {
            put_bulk(out, b"EVALSHA");
            put_bulk(out, sha1.as_bytes());
        }
        Form::Source | Form::Native(_) => {
            put_bulk(out, b"EVAL");
            put_bulk(out, source.as_bytes());
        }
    }
    let mut digits = [0; 20];
    put_bulk(out, decimal(names as u64, &mut digits));
    for key in parts(keys.bytes, keys.ends) {
        put_bulk_of(out, &[keys.prefix.as_bytes(), key]);
    }
}

fn put_millis(out: &mut BytesMut, ttl: Ttl) {
    let mut digits = [0; 20];
    put_bulk(out, decimal(ttl.as_millis(), &mut digits));
}

/// What [`ACQUIRE_SET`] answered without counters: all keys, or the number of the key that is held,
/// from 0 on.
pub fn acquire_answer(reply: &Reply<'_>) -> Option<(NodeReply, u64)> {
    match *reply {
        Reply::Integer(1) => Some((NodeReply::Granted, 0)),
        Reply::Integer(number) => Some((NodeReply::Held, index(number.checked_neg()?)?)),
        _ => None,
    }
}

/// What another script answered: all keys, or the number of the key that is absent or another's,
/// from 0 on.
pub fn answer(reply: &Reply<'_>) -> Option<(NodeReply, u64)> {
    match *reply {
        Reply::Integer(1) => Some((NodeReply::Granted, 0)),
        Reply::Integer(number) => {
            let number = number.checked_neg()?;
            let said = if number % 2 == 0 { NodeReply::Absent } else { NodeReply::Held };
            Some((said, index(number / 2)?))
        }
        _ => None,
    }
}

/// The number of a key from 0 on, of one from 1 on.
fn index(number: i64) -> Option<u64> {
    let number = u64::try_from(number).ok()?.checked_sub(1)?;
    (number < MOST_KEYS as u64).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::key_set::KeySet;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::time::Duration;

    #[test]
    fn each_script_over_a_set_stands_beside_its_sha1() {
        for script in [ACQUIRE_SET, EXTEND_SET, RELEASE_SET] {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }

    fn written(prefix: &str, encode: impl Fn(&mut BytesMut, SetKeys<'_>)) -> String {
        let (set, mut out) = (KeySet::new(["b\r\n", "a"]).unwrap(), BytesMut::new());
        let (bytes, ends) = set.as_parts();
        encode(&mut out, SetKeys { prefix: &KeyPrefix::new(prefix), bytes, ends });
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn script_over_a_set_names_every_key_with_its_prefix() {
        let mut rng = StdRng::from_seed([3; 32]);
        let (token, old) = (LockToken::random(&mut rng), LockToken::random(&mut rng));
        let ttl = Ttl::new(Duration::from_secs(10), Duration::MAX).unwrap();
        let keys = "$1\r\n2\r\n$3\r\np:a\r\n$5\r\np:b\r\n\r\n$40\r\n";
        let text = written("p:", |out, keys| acquire(out, Form::Sha, keys, &token, ttl));
        let head = format!("*7\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n", ACQUIRE_SET.sha1);
        assert_eq!(text, format!("{head}{keys}{token}\r\n$5\r\n10000\r\n"));
        let text = written("", |out, keys| release(out, Form::Source, keys, &token));
        assert!(text.starts_with("*6\r\n$4\r\nEVAL\r\n"), "{text}");
        assert!(text.contains(RELEASE_SET.source), "{text}");
        assert!(text.ends_with(&format!("$1\r\na\r\n$3\r\nb\r\n\r\n$40\r\n{token}\r\n")), "{text}");
        let text = written("", |out, keys| adopt(out, keys, &old, &token, ttl));
        let tail = format!("$40\r\n{old}\r\n$40\r\n{token}\r\n$5\r\n10000\r\n");
        assert!(text.starts_with("*8\r\n") && text.ends_with(&tail), "{text}");
    }

    #[test]
    fn answer_about_a_set_names_a_key_that_the_set_can_have() {
        use NodeReply::{Absent, Granted, Held};
        let acquired = |number| acquire_answer(&Reply::Integer(number));
        assert_eq!(acquired(1), Some((Granted, 0)));
        assert_eq!([acquired(-1), acquired(-64)], [Some((Held, 0)), Some((Held, 63))]);
        assert_eq!([0, 2, -65, i64::MIN].map(acquired), [None; 4]);
        let other = |number| answer(&Reply::Integer(number));
        assert_eq!(other(1), Some((Granted, 0)));
        assert_eq!([other(-2), other(-3)], [Some((Absent, 0)), Some((Held, 0))]);
        assert_eq!([other(-128), other(-129)], [Some((Absent, 63)), Some((Held, 63))]);
        assert_eq!([0, -1, 2, -130, i64::MIN].map(other), [None; 5]);
        assert_eq!(answer(&Reply::Simple(b"OK")), None);
    }
}
