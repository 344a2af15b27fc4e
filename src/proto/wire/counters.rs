//! Fencing numbers on the nodes: where the counter of a key stands, the two scripts that count, and
//! how they are sent.
//!
//! The hazard is a counter that starts below a number that was given before. An absent counter
//! starts from the node's own clock, `TIME` in seconds times 2^20, also where it is only raised. So
//! does a counter below a floor: a command that was in flight when the node forgot its counters may
//! have started it too early.
//! The time is rounded down to a multiple of a step, so that nodes with nearly the same clock start
//! from the same number. A value that no counter can have is an error before anything is written.

use bytes::BytesMut;

use crate::proto::lock::LockToken;
use crate::proto::time::Ttl;
use crate::proto::wire::command::{
    Form, Script, decimal, prolong, put_bulk, put_bulk_of, put_script, put_token,
};

/// Numbers from this one on are not exact in a script, so no counter may have them.
pub const LIMIT: u64 = 1 << 53;

/// Acquires the key as `SET NX PX` does. If that won, it counts: the answer is the node's vote.
///
/// `KEYS[1]` is the key, `KEYS[2]` its counter. `ARGV[1]` is the token, `ARGV[2]` the ttl and
/// `ARGV[3]` how long the counter lives, in milliseconds. `ARGV[4]` is the step of the first count,
/// in milliseconds, and `ARGV[5]` the floor below which a counter counts as absent. With `ARGV[6]`,
/// a fencing number, the counter is raised to that number instead: to heal a lock. It answers 0 if
/// the key is held.
pub const FENCED_ACQUIRE: Script = Script {
    source: "local c = redis.call('GET', KEYS[2]) \
             local n = tonumber(c or 0) \
             if not n or not (n >= 0 and n < 9007199254740991) then \
             return redis.error_reply('ERR the fencing counter is not a number') end \
             if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end \
             if n < tonumber(ARGV[5]) then \
             local t = redis.call('TIME') local ms = t[1] * 1000 + t[2] / 1000 \
             n = math.max(n, math.floor(math.floor(ms / ARGV[4]) * ARGV[4] * 1048.576)) end \
             if ARGV[6] then n = math.max(n, ARGV[6]) else n = n + 1 end \
             redis.call('SET', KEYS[2], string.format('%.0f', n), 'PX', ARGV[3]) \
             return n",
    sha1: "8e50f820157eb57fa2fe22d271b59d9176d9d3fb",
};

/// Raises the counter to a fencing number if the key holds the token, and extends the key as
/// [`EXTEND`](crate::proto::wire::command::EXTEND) does.
///
/// `KEYS[1]` is the key, `KEYS[2]` its counter. `ARGV[1]` is the token, `ARGV[2]` the ttl in
/// milliseconds or 0 to leave the key as it is, `ARGV[3]` the number, `ARGV[4]` how long the
/// counter lives, `ARGV[5]` the step of the first count, in milliseconds, and `ARGV[6]` the floor
/// below which a counter counts as absent.
pub const FENCED_EXTEND: Script = Script {
    source: concat!(
        "local v = redis.call('GET', KEYS[1]) ",
        "if not v then return 0 end ",
        "if v ~= ARGV[1] then return -1 end ",
        "local n, f = tonumber(redis.call('GET', KEYS[2]) or 0), tonumber(ARGV[3]) ",
        "if not n or not (n >= 0 and n < 9007199254740991) then ",
        "return redis.error_reply('ERR the fencing counter is not a number') end ",
        "if n >= f then redis.call('PEXPIRE', KEYS[2], ARGV[4]) else ",
        "if n < tonumber(ARGV[6]) then ",
        "local t = redis.call('TIME') local ms = t[1] * 1000 + t[2] / 1000 ",
        "n = math.max(n, math.floor(math.floor(ms / ARGV[5]) * ARGV[5] * 1048.576)) end ",
        "redis.call('SET', KEYS[2], string.format('%.0f', math.max(n, f)), 'PX', ARGV[4]) end ",
        "if ARGV[2] == '0' then return 1 end ",
        prolong!("KEYS[1]"),
        "return 1",
    ),
    sha1: "85fbea4d791530287d6e026c7312c1d7fe6aca25",
};

/// What the fenced scripts need besides the key and the token.
#[derive(Debug, Clone, Copy)]
pub struct Counting {
    /// How long the counter lives after it was touched, in milliseconds.
    pub lives: u64,
    /// An absent counter starts from a multiple of so many milliseconds.
    pub step: u64,
    /// A counter below this number counts as absent: 1 at least.
    pub floor: u64,
    /// The fencing number of the lock, once it has one.
    pub fence: u64,
}

/// The number from which an absent counter starts at this time of the node: Unix microseconds.
pub fn start_at(micros: u128) -> u64 {
    let number = (micros << 20) / 1_000_000;
    u64::try_from(number).unwrap_or(u64::MAX).clamp(1, LIMIT - 2)
}

/// What stands before and after a key to name its counter. `{key}:fence` has the hash slot of the
/// key. A key with a hash tag of its own keeps it: `key:fence` has the same slot.
pub fn affixes(key: &[u8]) -> (&'static [u8], &'static [u8]) {
    let open = key.iter().position(|&byte| byte == b'{');
    let tag = open.and_then(|open| key[open + 1..].iter().position(|&byte| byte == b'}'));
    if tag.is_some_and(|length| length > 0) { (b"", b":fence") } else { (b"{", b"}:fence") }
}

/// The key of the counter, for a key as it is sent.
pub fn counter_key(key: &[u8]) -> Vec<u8> {
    let (before, after) = affixes(key);
    [before, key, after].concat()
}

/// [`FENCED_ACQUIRE`], to count.
pub fn acquire(
    out: &mut BytesMut,
    form: Form,
    key: &[u8],
    token: &LockToken,
    ttl: Ttl,
    counting: Counting,
) {
    put_script(out, &FENCED_ACQUIRE, form, 2, 5);
    put_keys(out, key);
    put_token(out, token);
    put_number(out, ttl.as_millis());
    put_number(out, counting.lives);
    put_number(out, counting.step);
    put_number(out, counting.floor);
}

/// [`FENCED_ACQUIRE`], to heal. Always by its source: it is rare.
pub fn heal(out: &mut BytesMut, key: &[u8], token: &LockToken, ttl: Ttl, counting: Counting) {
    put_script(out, &FENCED_ACQUIRE, Form::Source, 2, 6);
    put_keys(out, key);
    put_token(out, token);
    put_number(out, ttl.as_millis());
    put_number(out, counting.lives);
    put_number(out, counting.step);
    put_number(out, counting.floor);
    put_number(out, counting.fence);
}

/// [`FENCED_EXTEND`]; without a ttl it only raises the counter.
pub fn extend(
    out: &mut BytesMut,
    form: Form,
    key: &[u8],
    token: &LockToken,
    ttl: Option<Ttl>,
    counting: Counting,
) {
    put_script(out, &FENCED_EXTEND, form, 2, 6);
    put_keys(out, key);
    put_token(out, token);
    put_number(out, ttl.map_or(0, Ttl::as_millis));
    put_number(out, counting.fence);
    put_number(out, counting.lives);
    put_number(out, counting.step);
    put_number(out, counting.floor);
}

fn put_keys(out: &mut BytesMut, key: &[u8]) {
    let (before, after) = affixes(key);
    put_bulk(out, key);
    put_bulk_of(out, &[before, key, after]);
}

fn put_number(out: &mut BytesMut, number: u64) {
    let mut digits = [0; 20];
    put_bulk(out, decimal(number, &mut digits));
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::time::Duration;

    #[test]
    fn each_fenced_script_stands_beside_its_sha1() {
        for script in [FENCED_ACQUIRE, FENCED_EXTEND] {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }

    #[test]
    fn counter_of_a_key_has_the_hash_slot_of_the_key() {
        let cases: [(&[u8], &[u8]); 7] = [
            (b"job", b"{job}:fence"),
            (b"a{b}c", b"a{b}c:fence"),
            (b"{job}", b"{job}:fence"),
            (b"a{}b", b"{a{}b}:fence"),
            (b"a{b", b"{a{b}:fence"),
            (b"", b"{}:fence"),
            (b"\0\r\n", b"{\0\r\n}:fence"),
        ];
        for (key, counter) in cases {
            assert_eq!(counter_key(key), counter, "{}", key.escape_ascii());
        }
    }

    fn written(encode: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        encode(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn fenced_commands_name_both_keys_and_all_numbers() {
        let token = LockToken::random(&mut StdRng::from_seed([3; 32]));
        let ttl = Ttl::new(Duration::from_secs(10), Duration::MAX).unwrap();
        let counting = Counting { lives: 600_000, step: 1000, floor: 5, fence: 77 };
        let keys = "$1\r\nk\r\n$9\r\n{k}:fence\r\n$40\r\n";
        let text = written(|out| acquire(out, Form::Sha, b"k", &token, ttl, counting));
        let sha = FENCED_ACQUIRE.sha1;
        let head = format!("*10\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n$1\r\n2\r\n{keys}{token}\r\n");
        assert_eq!(text, format!("{head}$5\r\n10000\r\n$6\r\n600000\r\n$4\r\n1000\r\n$1\r\n5\r\n"));
        let text = written(|out| heal(out, b"k", &token, ttl, counting));
        assert!(text.starts_with("*11\r\n$4\r\nEVAL\r\n") && text.contains(FENCED_ACQUIRE.source));
        assert!(text.ends_with("$6\r\n600000\r\n$4\r\n1000\r\n$1\r\n5\r\n$2\r\n77\r\n"), "{text}");
        let text = written(|out| extend(out, Form::Sha, b"k", &token, None, counting));
        assert!(text.starts_with("*11\r\n") && text.contains(FENCED_EXTEND.sha1), "{text}");
        assert!(
            text.ends_with("\r\n$1\r\n0\r\n$2\r\n77\r\n$6\r\n600000\r\n$4\r\n1000\r\n$1\r\n5\r\n"),
            "{text}"
        );
    }
}
