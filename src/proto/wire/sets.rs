//! The scripts over all keys of a lock, with or without their fencing counters, how they are sent,
//! and what they answer. A lock has up to 64 keys. For a lock on one key without a counter, only
//! the adopt is here: its other scripts are in [`command`](crate::proto::wire::command), and
//! shorter.
//!
//! The hazard is a node that grants a part of the keys. So each script that takes or prolongs keys
//! reads all of them before it writes one, and a node that holds any of them for another client
//! refuses them all. A script that fails in the middle may have written some keys: its error proves
//! nothing about what it did. The other hazard is a counter with a value that no counter can have:
//! each script checks all counters before it writes one.
//!
//! An answer of 1 means that the script did its work on all keys. Another answer names the first
//! key, counted from 1, that is in the way; the comment on each script says how. A key that is no
//! string belongs to another program.

use bytes::BytesMut;

use crate::proto::error::NodeReply;
use crate::proto::key::KeyPrefix;
use crate::proto::key_set::{MOST_KEYS, parts};
use crate::proto::lock::{LONGEST_TOKEN, LockToken};
use crate::proto::own_keys::COUNTER;
use crate::proto::time::Ttl;
use crate::proto::wire::command::{
    self, Form, Script, prolong, put_bulk, put_bulk_of, put_number, put_token,
};
use crate::proto::wire::counters::{Counting, LIMIT};
use crate::proto::wire::resp::Reply;

/// Takes all keys, or none: `ARGV[1]` is the token, `ARGV[2]` the ttl in milliseconds. It answers
/// 1, or -N if key N is held.
///
/// A key that holds the token already counts as free, so that a lock can be healed, and its ttl is
/// never shortened. A single key that is free is checked and written by one `SET NX`.
///
/// With more arguments, the second half of `KEYS` are the counters of the keys, and the script
/// counts for each key: the answer is the node's vote, or the list of its votes for several keys.
/// `ARGV[3]` is how long the counters live, in milliseconds, `ARGV[4]` the step, in milliseconds,
/// to which the start of an absent counter is rounded, and `ARGV[5]` the floor below which a
/// counter counts as absent. With one more argument for each key, its fencing number, the counters
/// are raised to these numbers instead: to heal a lock.
///
/// The local variables make the script cheaper, and so does a single vote that is in no list.
pub const ACQUIRE: Script = Script {
    source: "local call, KEYS, ARGV, n = redis.call, KEYS, ARGV, {} \
             local m = #KEYS \
             if ARGV[3] then m = m / 2 end \
             for i = 1, #KEYS - m do \
             local c = tonumber(call('GET', KEYS[m + i]) or 0) \
             if not c or not (c >= 0 and c < 9007199254740991) then \
             return redis.error_reply('ERR the fencing counter is not a number') end \
             n[i] = c end \
             if m > 1 or not call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
             local own = {} \
             for i = 1, m do \
             local v = redis.pcall('GET', KEYS[i]) \
             if v == ARGV[1] then own[i] = true \
             elseif type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then \
             return v \
             elseif v then return -i end end \
             for i = 1, m do \
             if not own[i] or call('PTTL', KEYS[i]) < tonumber(ARGV[2]) then \
             call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2]) end end end \
             if not ARGV[3] then return 1 end \
             for i = 1, m do \
             local c = n[i] \
             if c < tonumber(ARGV[5]) then \
             local t = call('TIME') local ms = t[1] * 1000 + t[2] / 1000 \
             c = math.max(c, math.floor(math.floor(ms / ARGV[4]) * ARGV[4] * 1048.576)) end \
             if ARGV[5 + i] then c = math.max(c, ARGV[5 + i]) else c = c + 1 end \
             call('SET', KEYS[m + i], string.format('%.0f', c), 'PX', ARGV[3]) \
             n[i] = c end \
             if m == 1 then return n[1] end return n",
    sha1: "acecc486e4189b2b649fa52d07f34ce0b5729d19",
};

/// Prolongs all keys as [`EXTEND`](crate::proto::wire::command::EXTEND) does, or none: `ARGV[1]` is
/// the token, `ARGV[2]` the ttl in milliseconds. It answers -2N if key N is absent, and -2N - 1 if
/// it is another's.
///
/// With more arguments, the second half of `KEYS` are the counters of the keys, and the script
/// raises each to its fencing number if all keys hold the token. A ttl of 0 leaves the keys as they
/// are. `ARGV[3]` is how long the counters live, `ARGV[4]` the step to which the start of an absent
/// counter is rounded, both in milliseconds, and `ARGV[5]` the floor below which a counter counts
/// as absent. The numbers follow. Without them the script counts, and answers with the votes, as
/// [`ACQUIRE`] does: so a lock that was handed over gets its numbers.
pub const EXTEND_SET: Script = Script {
    source: concat!(
        "local call, KEYS, ARGV, n = redis.call, KEYS, ARGV, {} ",
        "local m = #KEYS ",
        "if ARGV[3] then m = m / 2 end ",
        "for i = 1, m do ",
        "local v = redis.pcall('GET', KEYS[i]) ",
        "if not v then return -2 * i end ",
        "if v ~= ARGV[1] then ",
        "if type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then return v end ",
        "return -2 * i - 1 end end ",
        "for i = 1, #KEYS - m do ",
        "local c = tonumber(call('GET', KEYS[m + i]) or 0) ",
        "if not c or not (c >= 0 and c < 9007199254740991) then ",
        "return redis.error_reply('ERR the fencing counter is not a number') end ",
        "n[i] = c end ",
        "for i = 1, #KEYS - m do ",
        "local c, f = n[i], tonumber(ARGV[5 + i]) ",
        "if f and c >= f then call('PEXPIRE', KEYS[m + i], ARGV[3]) else ",
        "if c < tonumber(ARGV[5]) then ",
        "local t = call('TIME') local ms = t[1] * 1000 + t[2] / 1000 ",
        "c = math.max(c, math.floor(math.floor(ms / ARGV[4]) * ARGV[4] * 1048.576)) end ",
        "n[i] = math.max(c, f or c + 1) ",
        "call('SET', KEYS[m + i], string.format('%.0f', n[i]), 'PX', ARGV[3]) end end ",
        "for i = 1, ARGV[2] ~= '0' and m or 0 do ",
        prolong!("KEYS[i]"),
        "end ",
        "if not ARGV[3] or ARGV[6] then return 1 end ",
        "if m == 1 then return n[1] end return n",
    ),
    sha1: "0c750dfa7b6535f8b6866e50a76fa37e6bb93874",
};

/// Deletes every key that holds the token: `KEYS` are the keys, `ARGV[1]` the token. It answers as
/// [`EXTEND_SET`] does, but only after it went through all keys: one that does not hold the token
/// does not keep the others from being deleted. An error at one key is returned only after the
/// others were released.
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

/// Adopts all keys of a lock under a new token, or none, and never shortens their ttl.
///
/// `KEYS` are the keys, `ARGV[1]` is the token that the lock was given away with, `ARGV[2]` the new
/// token, and `ARGV[3]` the ttl in milliseconds. If a key holds the new token already, the script
/// does the same: a repeat changes nothing. It answers as [`EXTEND_SET`] does.
pub const ADOPT: &str = "for i, k in ipairs(KEYS) do \
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

/// Encodes [`ACQUIRE`]. If it counts, it gets no fencing numbers to acquire a lock, and those of
/// the lock to heal it.
pub fn acquire(
    out: &mut BytesMut,
    form: Form,
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, Ttl),
    counting: Option<Counting<impl ExactSizeIterator<Item = u64>>>,
) {
    put_counting(out, (&ACQUIRE, form), keys, (token, ttl.as_millis()), counting);
}

/// Encodes [`EXTEND_SET`]; without a ttl it only raises the counters. If it counts, it gets no
/// fencing numbers to claim a key that was handed over, and those of the lock to extend it or to
/// write them back.
pub fn extend(
    out: &mut BytesMut,
    form: Form,
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, Option<Ttl>),
    counting: Option<Counting<impl ExactSizeIterator<Item = u64>>>,
) {
    put_counting(out, (&EXTEND_SET, form), keys, (token, ttl.map_or(0, Ttl::as_millis)), counting);
}

/// [`RELEASE_SET`].
pub fn release(out: &mut BytesMut, form: Form, keys: SetKeys<'_>, token: &LockToken) {
    put_script(out, (&RELEASE_SET, form), keys, false, 1);
    put_token(out, token);
}

/// Encodes [`ADOPT`]: `old` becomes `new`. Always sent by its source, because it is asked once in a
/// lock's life.
pub fn adopt(out: &mut BytesMut, keys: SetKeys<'_>, old: &LockToken, new: &LockToken, ttl: Ttl) {
    put_script(out, (&Script { source: ADOPT, sha1: "" }, Form::Source), keys, false, 3);
    let mut buffer = [0; LONGEST_TOKEN];
    put_bulk(out, old.write_to(&mut buffer));
    put_token(out, new);
    put_number(out, ttl.as_millis());
}

/// A script that may count, with its arguments.
fn put_counting(
    out: &mut BytesMut,
    how: (&Script, Form),
    keys: SetKeys<'_>,
    (token, ttl): (&LockToken, u64),
    counting: Option<Counting<impl ExactSizeIterator<Item = u64>>>,
) {
    let more = counting.as_ref().map_or(0, |counting| 3 + counting.fences.len());
    put_script(out, how, keys, counting.is_some(), 2 + more);
    put_token(out, token);
    put_number(out, ttl);
    if let Some(Counting { lives, step, floor, fences }) = counting {
        [lives, step, floor].into_iter().chain(fences).for_each(|number| put_number(out, number));
    }
}

/// `EVALSHA sha n key...` or `EVAL source n key...`, with the counters after the keys if the script
/// counts; the arguments follow.
fn put_script(
    out: &mut BytesMut,
    (script, form): (&Script, Form),
    SetKeys { prefix, bytes, ends }: SetKeys<'_>,
    counts: bool,
    arguments: usize,
) {
    let prefix = prefix.as_bytes();
    let names = if counts { 2 * ends.len() } else { ends.len() };
    command::put_script(out, script, form, names, arguments);
    for key in parts(bytes, ends) {
        put_bulk_of(out, [prefix, key]);
    }
    for key in parts(bytes, ends).take(names - ends.len()) {
        put_bulk_of(out, [COUNTER[0], prefix, key, COUNTER[1]]);
    }
}

/// Reads what [`ACQUIRE`] answered without counters: all keys are granted, or the number of the key
/// that is held, from 0 on.
pub fn acquire_answer(reply: &Reply<'_>) -> Option<(NodeReply, u64)> {
    match *reply {
        Reply::Integer(1) => Some((NodeReply::Granted, 0)),
        Reply::Integer(number) => Some((NodeReply::Held, index(number.checked_neg()?)?)),
        _ => None,
    }
}

/// Reads what [`ACQUIRE`] answered with counters: the votes for all keys, which are put into
/// `votes`, or the number of the key that is held, from 0 on.
pub fn acquire_votes(reply: &Reply<'_>, votes: &mut Vec<u64>) -> Option<(NodeReply, u64)> {
    votes_or(reply, votes, acquire_answer)
}

/// Reads what [`EXTEND_SET`] answered if it counted: the votes for all keys, or the number of the
/// key that is absent or another's.
pub fn claim_votes(reply: &Reply<'_>, votes: &mut Vec<u64>) -> Option<(NodeReply, u64)> {
    votes_or(reply, votes, answer)
}

/// Reads the votes for all keys, which are put into `votes`. An answer without votes is read by
/// `otherwise`.
fn votes_or(
    reply: &Reply<'_>,
    votes: &mut Vec<u64>,
    otherwise: fn(&Reply<'_>) -> Option<(NodeReply, u64)>,
) -> Option<(NodeReply, u64)> {
    let vote = |element: Reply<'_>| match element {
        Reply::Integer(number) => u64::try_from(number).ok(),
        _ => None,
    };
    let is_vote = |&vote: &u64| vote > 0 && vote < LIMIT;
    votes.clear();
    let is_whole = match *reply {
        Reply::Array(elements) => {
            votes.extend(elements.iter().map_while(vote).filter(is_vote));
            votes.len() == elements.len() && (2..=MOST_KEYS).contains(&votes.len())
        }
        Reply::Integer(1..) => {
            votes.extend(vote(*reply).filter(is_vote));
            votes.len() == 1
        }
        _ => return otherwise(reply),
    };
    is_whole.then_some((NodeReply::Granted, 0))
}

/// Reads what another script answered: all keys are granted, or the number of the key that is
/// absent or another's, from 0 on.
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

/// Turns the number of a key that is counted from 1 into one that is counted from 0.
fn index(number: i64) -> Option<u64> {
    let number = u64::try_from(number).ok()?.checked_sub(1)?;
    (number < MOST_KEYS as u64).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::key_set::KeySet;
    use crate::proto::wire::resp::{self, Step};
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use std::time::Duration;

    #[test]
    fn each_script_over_a_set_stands_beside_its_sha1() {
        for script in [ACQUIRE, EXTEND_SET, RELEASE_SET] {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }

    /// The words of a command over the keys `a` and `b{x}`.
    fn written(encode: impl FnOnce(&mut BytesMut, SetKeys<'_>)) -> Vec<String> {
        written_with("p:", ["b{x}", "a"].as_slice(), encode)
    }

    fn written_with(
        prefix: &str,
        keys: &[&str],
        encode: impl FnOnce(&mut BytesMut, SetKeys<'_>),
    ) -> Vec<String> {
        let (set, mut out) = (KeySet::new(keys).unwrap(), BytesMut::new());
        let (bytes, ends) = set.as_parts();
        encode(&mut out, SetKeys { prefix: &KeyPrefix::new(prefix), bytes, ends });
        let step = resp::decode(&out, &resp::Limits::default()).unwrap();
        let Step::Complete { reply: Reply::Array(words), consumed } = step else {
            panic!("{out:?} is no command")
        };
        assert_eq!(consumed, out.len());
        let word = |word: Reply<'_>| match word {
            Reply::Bulk(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            other => panic!("{other:?} is no word"),
        };
        words.iter().map(word).collect()
    }

    fn tokens() -> [LockToken; 2] {
        let mut rng = StdRng::from_seed([3; 32]);
        [LockToken::random(&mut rng), LockToken::random(&mut rng).with_owner(Some(&"h:1".into()))]
    }

    fn ttl() -> Ttl {
        Ttl::new(Duration::from_secs(10), Duration::MAX).unwrap()
    }

    /// A script that counts, or not, with these fencing numbers.
    fn counting(fences: &[u64]) -> Option<Counting<impl ExactSizeIterator<Item = u64>>> {
        let fences = fences.iter().copied();
        Some(Counting { lives: 600_000, step: 1000, floor: 5, fences })
    }

    fn words(command: &[&str], tail: &str) -> Vec<String> {
        command.iter().copied().chain(tail.split(' ')).map(str::to_owned).collect()
    }

    #[test]
    fn script_over_a_set_names_every_key_with_its_prefix() {
        let [token, old] = tokens();
        let none = || counting(&[]).filter(|_| false);
        let text = written(|out, keys| acquire(out, Form::Sha, keys, (&token, ttl()), none()));
        let keys = "2 p:a p:b{x}";
        assert_eq!(text, words(&["EVALSHA", ACQUIRE.sha1], &format!("{keys} {token} 10000")));
        let what = (&token, Some(ttl()));
        let text = written(|out, keys| extend(out, Form::Sha, keys, what, none()));
        assert_eq!(text, words(&["EVALSHA", EXTEND_SET.sha1], &format!("{keys} {token} 10000")));
        let text = written(|out, keys| release(out, Form::Source, keys, &token));
        assert_eq!(text, words(&["EVAL", RELEASE_SET.source], &format!("{keys} {token}")));
        let text = written(|out, keys| adopt(out, keys, &old, &token, ttl()));
        assert_eq!(text, words(&["EVAL", ADOPT], &format!("{keys} {old} {token} 10000")));
        let text = written_with("", &["\r\n$1"], |out, keys| adopt(out, keys, &token, &old, ttl()));
        assert_eq!(text, words(&["EVAL", ADOPT], &format!("1 \r\n$1 {token} {old} 10000")));
    }

    #[test]
    fn script_that_counts_names_all_keys_and_then_all_counters() {
        let [token, _] = tokens();
        let what = (&token, ttl());
        let text = written(|out, keys| acquire(out, Form::Sha, keys, what, counting(&[])));
        let keys =
            format!("4 p:a p:b{{x}} redlatch:fence:{{p:a}} redlatch:fence:{{p:b{{x}}}} {token}");
        let tail = format!("{keys} 10000 600000 1000 5");
        assert_eq!(text, words(&["EVALSHA", ACQUIRE.sha1], &tail));
        let text = written(|out, keys| acquire(out, Form::Source, keys, what, counting(&[7, 8])));
        let tail = format!("{keys} 10000 600000 1000 5 7 8");
        assert_eq!(text, words(&["EVAL", ACQUIRE.source], &tail));
        let text =
            written(|out, keys| extend(out, Form::Sha, keys, (&token, None), counting(&[7, 8])));
        let tail = format!("{keys} 0 600000 1000 5 7 8");
        assert_eq!(text, words(&["EVALSHA", EXTEND_SET.sha1], &tail));
        let one = |out: &mut BytesMut, keys: SetKeys<'_>| {
            acquire(out, Form::Sha, keys, what, counting(&[]));
        };
        let tail = format!("2 p{{q redlatch:fence:{{p{{q}} {token} 10000 600000 1000 5");
        assert_eq!(written_with("p{", &["q"], one), words(&["EVALSHA", ACQUIRE.sha1], &tail));
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
        assert_eq!(read(":7\r\n"), Some((NodeReply::Granted, 0, vec![7])), "of one key");
        assert_eq!(read(":1\r\n"), Some((NodeReply::Granted, 0, vec![1])), "of one key");
        assert_eq!(read(":-2\r\n").map(|it| (it.0, it.1)), Some((NodeReply::Held, 1)));
        let limit = format!("*2\r\n:7\r\n:{LIMIT}\r\n");
        let alone = format!(":{LIMIT}\r\n");
        let others = [":0\r\n", ":-65\r\n", "+OK\r\n", "*0\r\n", "*1\r\n:7\r\n", &limit, &alone];
        for text in others {
            assert_eq!(read(text), None, "{text:?}");
        }
        for odd in [":0", ":-1", "$1\r\n7", "_"] {
            let text = format!("*2\r\n:7\r\n{odd}\r\n");
            assert_eq!(read(&text), None, "{text:?}");
        }
    }
}
