//! The scripts of the line.

use crate::proto::wire::command::Script;

/// How many members a script passes over that no client can be reached for, and how many it reads
/// to find the one that is named: a script blocks its node for as long as it runs.
#[cfg(any(test, feature = "testing"))]
pub const MOST_SKIPPED: usize = 400;
#[cfg(any(test, feature = "testing"))]
pub const MOST_SEARCHED: usize = 500;

/// A score in the line is the place of the waiter times this, and the time of its last join in
/// milliseconds by the clock of the node, of which only the rest is kept. Both fit exactly.
#[cfg(any(test, feature = "testing"))]
pub const SCORE_OF_A_PLACE: i64 = 1 << 22;

/// The time in milliseconds, as far as a score has it.
macro_rules! now {
    () => {
        "local t = redis.call('TIME') \
         local now = (t[1] * 1000 + math.floor(t[2] / 1000)) % 4194304 "
    };
}

/// `first()` is the first member of the line; nothing if the line is empty, or no line.
///
/// `give(name, own)` hands the key to the member whose token begins with `name`, if it is among the
/// first [`MOST_SEARCHED`] of the line; else to the first one that can be reached. It returns that
/// member. If that is `own`, the member of the caller, it hands over nothing. It returns nothing if
/// the line is empty, may not be changed, or begins with [`MOST_SKIPPED`] members that cannot be
/// reached: those have left the line, and there is no key.
///
/// A member leaves the line before the key is written: a server whose memory is full goes on with
/// a script that has written. A member can be reached if its own channel has a subscriber: others
/// may listen to all channels by a pattern, which `PUBLISH` counts. Where `PUBSUB` is refused, what
/// `PUBLISH` counts decides. If that is refused, too, the member counts as reached: it polls.
///
/// The key lives for the whole ttl of a member that has joined, or polled, within a quarter of its
/// short ttl: it is as good as a client whose `SET NX` arrived now. Another one may have stopped,
/// and gets the short ttl.
///
/// The message has that ttl, and the token and the mark of the new holder. Of the member after it,
/// the message has only the beginning of its token: whoever reads all messages must not be able to
/// send one.
macro_rules! give {
    () => {
        "local function first() return redis.pcall('ZRANGE', KEYS[2], 0, 0)[1] end \
         local function give(name, own) \
         local m = nil \
         if name and name ~= '' then \
         m = first() \
         name = ' ' .. name \
         if m and not string.find(m, name, 1, true) then \
         m = nil \
         for _, o in ipairs(redis.call('ZRANGE', KEYS[2], 0, 499)) do \
         if string.find(o, name, 1, true) then m = o break end \
         end \
         end \
         end \
         local skipped = 0 \
         for _ = 1, 400 do \
         m = m or first() \
         if not m or m == own then return m end \
         local score = tonumber(redis.pcall('ZSCORE', KEYS[2], m)) \
         local there = redis.pcall('ZREM', KEYS[2], m) \
         if type(there) ~= 'number' then return nil end \
         local ttl, short, channel, mark, token = \
         string.match(m, '^([1-9]%d*) ([1-9]%d*) (%S+) (%S+) (%S+)$') \
         if there == 1 and token and #ttl < 16 and #short < 16 then \
         if ttl ~= short and not (score and (now - score) % 4194304 < short / 4) then \
         ttl = short \
         end \
         if channel == '-' then \
         redis.call('SET', KEYS[1], token, 'PX', ttl) \
         return m \
         end \
         if redis.pcall('PUBSUB', 'NUMSUB', channel)[2] ~= 0 then \
         redis.call('SET', KEYS[1], token, 'PX', ttl) \
         local after = string.match(first() or '', '%S*$') \
         local heard = redis.pcall('PUBLISH', channel, ttl .. '\\n' .. skipped .. '\\n' .. \
         string.sub(after, 1, 12) .. '\\n' .. mark .. '\\n' .. token .. '\\n' .. KEYS[1]) \
         if heard ~= 0 then return m end \
         end \
         skipped = skipped + 1 \
         end \
         m = nil \
         end \
         redis.call('DEL', KEYS[1]) \
         end "
    };
}

/// Asks for the key, or for a place in its line; a repeat changes nothing but the ttl of the line,
/// and the mark and the last join of the member.
///
/// `ARGV[1]` is the token, `ARGV[2]` its member, `ARGV[3]` the ttl of the key and `ARGV[4]` that of
/// the line, both in milliseconds. The others are members with earlier marks of the same token, of
/// which one may stand in the line: the new member takes its place. The answer is how long the key
/// lives if it is the caller's; else the place in the line, a space, and the value of the key.
/// There is no value, and the place is 0, if the line begins with too many members that cannot be
/// reached: then the next join goes on.
///
/// Every way through the script writes, so a replica refuses it: the copy of a key is no vote.
pub const JOIN: Script = Script {
    source: concat!(
        now!(),
        "local v = redis.call('GET', KEYS[1]) \
         for i = 5, #ARGV do \
         local score = redis.call('ZSCORE', KEYS[2], ARGV[i]) \
         if score then \
         redis.call('ZREM', KEYS[2], ARGV[i]) \
         redis.call('ZADD', KEYS[2], 'NX', score, ARGV[2]) \
         end \
         end \
         if v == ARGV[1] then \
         redis.call('ZREM', KEYS[2], ARGV[2]) \
         return redis.call('PTTL', KEYS[1]) \
         end \
         if not v then ",
        give!(),
        "local m = give(nil, ARGV[2]) or first() \
         if not m or m == ARGV[2] then \
         redis.call('ZREM', KEYS[2], ARGV[2]) \
         redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) \
         return tonumber(ARGV[3]) \
         end \
         v = redis.call('GET', KEYS[1]) or '' \
         end \
         local place = redis.call('ZSCORE', KEYS[2], ARGV[2]) or \
         (redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or 0) + 4194304 \
         place = place - place % 4194304 + now \
         if place ~= place then place = now end \
         redis.call('ZADD', KEYS[2], string.format('%.0f', place), ARGV[2]) \
         redis.call('PEXPIRE', KEYS[2], ARGV[4]) \
         local rank = v ~= '' and redis.call('ZRANK', KEYS[2], ARGV[2]) or 0 \
         return rank .. ' ' .. string.sub(v, 1, 168)"
    ),
    sha1: "522553dce96bc371420ca0f60269cf35e8ec1099",
};

/// Gives the key up, and the place in the line: to the named successor if it stands in this line,
/// else to the first of the line, else to nobody. A key that is absent is handed over, too. If no
/// member can be reached, the key is deleted.
///
/// `ARGV[1]` is the token, `ARGV[2]` the beginning of the successor's token (empty: none is named),
/// and the others are members of which one may stand in the line. All but the token are left out if
/// there are no such members and no successor: so a release without contention is short. The
/// answers are those of the release script. Where the key of the line is no line, the key is only
/// deleted.
pub const HAND_OVER: Script = Script {
    source: concat!(
        "local v = redis.call('GET', KEYS[1]) \
         local line = redis.pcall('ZRANGE', KEYS[2], 0, 0) \
         if v == ARGV[1] and not ARGV[2] and not line.err and not line[1] then \
         redis.call('DEL', KEYS[1]) \
         return 1 \
         end \
         if line.err and not string.find(line.err, 'WRONGTYPE', 1, true) then return line end ",
        now!(),
        "if line[1] and ARGV[3] then redis.call('ZREM', KEYS[2], unpack(ARGV, 3)) end \
         if v and v ~= ARGV[1] then return -1 end ",
        give!(),
        "if line[1] and give(ARGV[2], nil) then return v and 1 or 0 end \
         if v or line[1] then redis.call('DEL', KEYS[1]) end \
         return v and 1 or 0"
    ),
    sha1: "97dcdd9cc19fd443308e5334bd91e97a2308b241",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_a_script_are_those_that_it_names() {
        for script in [JOIN, HAND_OVER] {
            assert!(script.source.contains(&format!("for _ = 1, {MOST_SKIPPED} do")));
            let last = MOST_SEARCHED - 1;
            assert!(script.source.contains(&format!("'ZRANGE', KEYS[2], 0, {last})")));
        }
    }

    #[test]
    fn each_script_stands_beside_its_sha1() {
        for script in [JOIN, HAND_OVER] {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }
}
