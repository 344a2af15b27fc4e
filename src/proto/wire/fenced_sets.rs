//! Fencing numbers of locks over several keys: the two scripts that count for every key of a set,
//! and how they are sent.
//!
//! The hazards are those of [`fencing`](crate::proto::wire::fencing) and of
//! [`sets`](crate::proto::wire::sets): a counter that starts too low, and a part of a set. So each
//! script looks at all keys and all counters before it writes one.
//!
//! `KEYS` are the keys of the set, and then their counters in the same order.

use bytes::BytesMut;

use crate::proto::error::NodeReply;
use crate::proto::key_set::{MOST_KEYS, parts};
use crate::proto::lock::LockToken;
use crate::proto::time::Ttl;
use crate::proto::wire::command::{
    Form, Script, decimal, prolong, put_bulk, put_bulk_of, put_header, put_token,
};
use crate::proto::wire::fencing::{Counting, LIMIT, affixes};
use crate::proto::wire::resp::Reply;
use crate::proto::wire::sets::{SetKeys, acquire_answer};

/// Takes all keys, or none, as [`ACQUIRE_SET`](crate::proto::wire::sets::ACQUIRE_SET) does. If that
/// won, it counts for each key: the answer is the list of the node's votes.
///
/// `ARGV[1]` is the token, `ARGV[2]` the ttl and `ARGV[3]` how long the counters live, in
/// milliseconds. `ARGV[4]` is the step of the first count, in milliseconds, and `ARGV[5]` the floor
/// below which a counter counts as absent. With one more argument for each key, its fencing number,
/// the counters are raised to these numbers instead: to heal a lock. It answers -N if key N is
/// held.
pub const FENCED_ACQUIRE_SET: Script = Script {
    source: "local own, m = {}, #KEYS / 2 \
             for i = 1, m do \
             local v = redis.pcall('GET', KEYS[i]) \
             if v == ARGV[1] then own[i] = true \
             elseif type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then \
             return v \
             elseif v then return -i end end \
             local n = {} \
             for i = 1, m do \
             n[i] = tonumber(redis.call('GET', KEYS[m + i]) or 0) \
             if not n[i] or not (n[i] >= 0 and n[i] < 9007199254740991) then \
             return redis.error_reply('ERR the fencing counter is not a number') end end \
             for i = 1, m do \
             if not own[i] or redis.call('PTTL', KEYS[i]) < tonumber(ARGV[2]) then \
             redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end end \
             for i = 1, m do \
             if n[i] < tonumber(ARGV[5]) then \
             local t = redis.call('TIME') local ms = t[1] * 1000 + t[2] / 1000 \
             n[i] = math.max(n[i], math.floor(math.floor(ms / ARGV[4]) * ARGV[4] * 1048.576)) end \
             if ARGV[5 + i] then n[i] = math.max(n[i], ARGV[5 + i]) else n[i] = n[i] + 1 end \
             redis.call('SET', KEYS[m + i], string.format('%.0f', n[i]), 'PX', ARGV[3]) end \
             return n",
    sha1: "802a516855677cd51412b62e61b9a66fda1a0747",
};

/// Raises the counter of each key to its fencing number if all keys hold the token, and extends the
/// keys as [`EXTEND_SET`](crate::proto::wire::sets::EXTEND_SET) does. It answers as that does.
///
/// `ARGV[1]` is the token, `ARGV[2]` the ttl in milliseconds or 0 to leave the keys as they are,
/// `ARGV[3]` how long the counters live, `ARGV[4]` the step of the first count, in milliseconds,
/// and `ARGV[5]` the floor below which a counter counts as absent. The numbers follow.
pub const FENCED_EXTEND_SET: Script = Script {
    source: concat!(
        "local m = #KEYS / 2 ",
        "for i = 1, m do ",
        "local v = redis.pcall('GET', KEYS[i]) ",
        "if not v then return -2 * i end ",
        "if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then ",
        "return v end ",
        "if v ~= ARGV[1] then return -2 * i - 1 end end ",
        "local n = {} ",
        "for i = 1, m do ",
        "n[i] = tonumber(redis.call('GET', KEYS[m + i]) or 0) ",
        "if not n[i] or not (n[i] >= 0 and n[i] < 9007199254740991) then ",
        "return redis.error_reply('ERR the fencing counter is not a number') end end ",
        "for i = 1, m do ",
        "local f = tonumber(ARGV[5 + i]) ",
        "if n[i] >= f then redis.call('PEXPIRE', KEYS[m + i], ARGV[3]) else ",
        "if n[i] < tonumber(ARGV[5]) then ",
        "local t = redis.call('TIME') local ms = t[1] * 1000 + t[2] / 1000 ",
        "n[i] = math.max(n[i], math.floor(math.floor(ms / ARGV[4]) * ARGV[4] * 1048.576)) end ",
        "f = string.format('%.0f', math.max(n[i], f)) ",
        "redis.call('SET', KEYS[m + i], f, 'PX', ARGV[3]) end end ",
        "if ARGV[2] == '0' then return 1 end ",
        "for i = 1, m do ",
        prolong!("KEYS[i]"),
        "end return 1",
    ),
    sha1: "a1bec419a2fb0cf0eb76acc804afe5d4d83f08d7",
};

/// [`FENCED_ACQUIRE_SET`], to count.
pub fn acquire(
    out: &mut BytesMut,
    form: Form,
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, Ttl),
    counting: Counting,
) {
    put_script(out, &FENCED_ACQUIRE_SET, form, keys, 5);
    put_common(out, token, Some(ttl), counting);
}

/// [`FENCED_ACQUIRE_SET`], to heal. Always by its source: it is rare.
pub fn heal(
    out: &mut BytesMut,
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, Ttl),
    counting: Counting,
    fences: impl ExactSizeIterator<Item = u64>,
) {
    put_script(out, &FENCED_ACQUIRE_SET, Form::Source, keys, 5 + fences.len());
    put_common(out, token, Some(ttl), counting);
    fences.for_each(|fence| put_number(out, fence));
}

/// [`FENCED_EXTEND_SET`]; without a ttl it only raises the counters.
pub fn extend(
    out: &mut BytesMut,
    form: Form,
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, Option<Ttl>),
    counting: Counting,
    fences: impl ExactSizeIterator<Item = u64>,
) {
    put_script(out, &FENCED_EXTEND_SET, form, keys, 5 + fences.len());
    put_common(out, token, ttl, counting);
    fences.for_each(|fence| put_number(out, fence));
}

/// `EVALSHA sha 2n key... counter...` or `EVAL source 2n key... counter...`; the arguments follow.
fn put_script(
    out: &mut BytesMut,
    script: &Script,
    form: Form,
    keys: SetKeys<'_>,
    arguments: usize,
) {
    let (prefix, names) = (keys.prefix.as_bytes(), 2 * keys.ends.len());
    put_header(out, b'*', 3 + names + arguments);
    let (command, text) = match form {
        Form::Sha => ("EVALSHA", script.sha1),
        Form::Source | Form::Native(_) => ("EVAL", script.source),
    };
    put_bulk(out, command.as_bytes());
    put_bulk(out, text.as_bytes());
    put_number(out, names as u64);
    for key in parts(keys.bytes, keys.ends) {
        put_bulk_of(out, &[prefix, key]);
    }
    for key in parts(keys.bytes, keys.ends) {
        let (before, after) = affixes(&[prefix, key].concat());
        put_bulk_of(out, &[before, prefix, key, after]);
    }
}

fn put_common(out: &mut BytesMut, token: &LockToken, ttl: Option<Ttl>, counting: Counting) {
    put_token(out, token);
    put_number(out, ttl.map_or(0, Ttl::as_millis));
    put_number(out, counting.lives);
    put_number(out, counting.step);
    put_number(out, counting.floor);
}

fn put_number(out: &mut BytesMut, number: u64) {
    let mut digits = [0; 20];
    put_bulk(out, decimal(number, &mut digits));
}

/// What [`FENCED_ACQUIRE_SET`] answered: the votes for all keys, which are put into `votes`, or the
/// number of the key that is held, from 0 on.
pub fn acquire_votes(reply: &Reply<'_>, votes: &mut Vec<u64>) -> Option<(NodeReply, u64)> {
    let Reply::Array(elements) = *reply else {
        return acquire_answer(reply).filter(|&(said, _)| said == NodeReply::Held);
    };
    let vote = |element: Reply<'_>| match element {
        Reply::Integer(number) => u64::try_from(number).ok(),
        _ => None,
    };
    votes.clear();
    votes.extend(elements.iter().map_while(vote).filter(|&vote| vote > 0 && vote < LIMIT));
    let whole = votes.len() == elements.len() && (2..=MOST_KEYS).contains(&votes.len());
    whole.then_some((NodeReply::Granted, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::key::KeyPrefix;
    use crate::proto::key_set::KeySet;
    use crate::proto::wire::resp::{self, Step};
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::time::Duration;

    #[test]
    fn each_fenced_script_over_a_set_stands_beside_its_sha1() {
        for script in [FENCED_ACQUIRE_SET, FENCED_EXTEND_SET] {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }

    fn written(encode: impl FnOnce(&mut BytesMut, SetKeys<'_>, (&LockToken, Ttl))) -> String {
        let (set, mut out) = (KeySet::new(["b{x}", "a"]).unwrap(), BytesMut::new());
        let (bytes, ends) = set.as_parts();
        let token = LockToken::random(&mut StdRng::from_seed([3; 32]));
        let ttl = Ttl::new(Duration::from_secs(10), Duration::MAX).unwrap();
        let keys = SetKeys { prefix: &KeyPrefix::new("p:"), bytes, ends };
        encode(&mut out, keys, (&token, ttl));
        let text = String::from_utf8(out.to_vec()).unwrap();
        let words = text.split("\r\n").filter(|line| !line.starts_with('$'));
        words.collect::<Vec<_>>().join(" ").replace(&token.to_string(), "TOKEN")
    }

    #[test]
    fn fenced_commands_over_a_set_name_all_keys_and_then_all_counters() {
        let counting = Counting { lives: 600_000, step: 1000, floor: 5, fence: 0 };
        let keys = "4 p:a p:b{x} {p:a}:fence p:b{x}:fence TOKEN";
        let text = written(|out, keys, what| acquire(out, Form::Sha, keys, what, counting));
        let sha = FENCED_ACQUIRE_SET.sha1;
        assert_eq!(text, format!("*12 EVALSHA {sha} {keys} 10000 600000 1000 5 "));
        let fences = || [7, 8].into_iter();
        let text = written(|out, keys, what| heal(out, keys, what, counting, fences()));
        assert!(text.starts_with("*14 EVAL ") && text.contains(FENCED_ACQUIRE_SET.source));
        assert!(text.ends_with(&format!("{keys} 10000 600000 1000 5 7 8 ")), "{text}");
        let text = written(|out, keys, (token, _)| {
            extend(out, Form::Sha, keys, (token, None), counting, fences());
        });
        let sha = FENCED_EXTEND_SET.sha1;
        assert_eq!(text, format!("*14 EVALSHA {sha} {keys} 0 600000 1000 5 7 8 "));
    }

    #[test]
    fn votes_for_a_set_are_numbers_that_counters_can_have() {
        let mut votes = Vec::new();
        let mut read = |text: &str| {
            let step = resp::decode(text.as_bytes(), &resp::Limits::default()).unwrap();
            let Step::Complete { reply, .. } = step else { panic!("{text:?} is not whole") };
            acquire_votes(&reply, &mut votes).map(|(said, key)| (said, key, votes.clone()))
        };
        let granted = Some((NodeReply::Granted, 0, vec![7, 8]));
        assert_eq!(read("*2\r\n:7\r\n:8\r\n"), granted);
        assert_eq!(read(":-2\r\n").map(|it| (it.0, it.1)), Some((NodeReply::Held, 1)));
        let limit = format!("*2\r\n:7\r\n:{LIMIT}\r\n");
        for text in [":1\r\n", ":0\r\n", ":-65\r\n", "+OK\r\n", "*0\r\n", "*1\r\n:7\r\n", &limit] {
            assert_eq!(read(text), None, "{text:?}");
        }
        for odd in [":0", ":-1", "$1\r\n7", "_"] {
            let text = format!("*2\r\n:7\r\n{odd}\r\n");
            assert_eq!(read(&text), None, "{text:?}");
        }
    }
}
