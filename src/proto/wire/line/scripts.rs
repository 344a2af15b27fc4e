//! The scripts of the line.

use crate::proto::wire::command::Script;

/// Hands the key to `m`, or else to the first of the line that can be reached. `ARGV[2]` is the
/// member of the caller: if it is the first, the function returns it and hands over nothing. It
/// returns nothing if the line is empty.
///
/// Where the key of the line is no line, or may not be changed, the function returns nothing.
///
/// A member leaves the line before the key is written: a server whose memory is full goes on with
/// a script that has written. A `PUBLISH` that is refused counts as heard: the successor polls.
macro_rules! give {
    () => {
        "local function give(m) \
         local skipped = 0 \
         while true do \
         m = m or redis.pcall('ZRANGE', KEYS[2], 0, 0)[1] \
         if not m or m == ARGV[2] then return m end \
         local there = redis.pcall('ZREM', KEYS[2], m) \
         if type(there) ~= 'number' then return nil end \
         local ttl, channel, token = string.match(m, '^(%d+) (%S+) (%S+)$') \
         if there == 1 and token then \
         redis.call('SET', KEYS[1], token, 'PX', ttl) \
         if channel == '-' then return m end \
         local after = redis.call('ZRANGE', KEYS[2], 0, 0)[1] or '' \
         local heard = redis.pcall('PUBLISH', channel, skipped .. '\\n' .. after .. '\\n' .. \
         token .. '\\n' .. KEYS[1]) \
         if heard ~= 0 then return m end \
         skipped = skipped + 1 \
         end \
         m = nil \
         end \
         end "
    };
}

/// Asks for the key, or for a place in its line; a repeat changes nothing but the ttl of the line.
///
/// `ARGV[1]` is the token, `ARGV[2]` its member, `ARGV[3]` the ttl of the key and `ARGV[4]` that of
/// the line, both in milliseconds. The answer is how long the key lives if it is the caller's; else
/// the place in the line (0 if it is new there), a space, and the value of the key.
///
/// Every way through the script writes, so a replica refuses it: the copy of a key is no vote.
pub const JOIN: Script = Script {
    source: concat!(
        "local v = redis.call('GET', KEYS[1]) \
         if v == ARGV[1] then \
         redis.call('ZREM', KEYS[2], ARGV[2]) \
         return redis.call('PTTL', KEYS[1]) \
         end \
         if not v then ",
        give!(),
        "local first = give(nil) \
         if not first or first == ARGV[2] then \
         redis.call('ZREM', KEYS[2], ARGV[2]) \
         redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) \
         return tonumber(ARGV[3]) \
         end \
         v = redis.call('GET', KEYS[1]) \
         end \
         local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or 0 \
         local rank = 0 \
         if redis.call('ZADD', KEYS[2], 'NX', string.format('%.0f', last + 1), ARGV[2]) == 0 then \
         rank = redis.call('ZRANK', KEYS[2], ARGV[2]) \
         end \
         redis.call('PEXPIRE', KEYS[2], ARGV[4]) \
         return rank .. ' ' .. string.sub(v, 1, 168)"
    ),
    sha1: "7026ed6682b81855272cff7b33d4f5b45e616119",
};

/// Gives the key up, and the place in the line: to the named successor if it stands in this line,
/// else to the first of the line, else to nobody. A key that is absent is handed over, too. If no
/// member can be reached, the key is deleted: it holds the token of the last one that was tried.
///
/// `ARGV[1]` is the token, `ARGV[2]` its member (empty: it stands in no line), `ARGV[3]` the
/// successor's member or token (empty: none is named). Both are left out if both are empty: so a
/// release without contention is short. The answers are those of the release script. Where the
/// key of the line is no line, the key is only deleted. In a busy line a successor is named by its
/// member: that way is the shortest.
pub const HAND_OVER: Script = Script {
    source: concat!(
        "local v = redis.call('GET', KEYS[1]) \
         if v == ARGV[1] and not ARGV[2] then \
         local line = redis.pcall('ZRANGE', KEYS[2], 0, 0) \
         if not line.err and not line[1] then \
         redis.call('DEL', KEYS[1]) \
         return 1 \
         end \
         end \
         local own, m = ARGV[2] or '', ARGV[3] or '' ",
        give!(),
        "if v == ARGV[1] and string.find(m, ' ', 1, true) \
         and (own == '' or type(redis.pcall('ZREM', KEYS[2], own)) == 'number') \
         and give(m) then return 1 end \
         local line = redis.pcall('ZRANGE', KEYS[2], 0, 0) \
         if line.err and not string.find(line.err, 'WRONGTYPE', 1, true) then return line end \
         if line[1] and own ~= '' then redis.call('ZREM', KEYS[2], own) end \
         if v and v ~= ARGV[1] then return -1 end \
         if m == '' then m = nil end \
         if m and line[1] and not string.find(m, ' ', 1, true) then \
         local named = ' ' .. m \
         m = nil \
         for _, o in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do \
         if string.sub(o, -#named) == named then m = o break end \
         end \
         end \
         if line[1] and give(m) then return v and 1 or 0 end \
         if v or line[1] then redis.call('DEL', KEYS[1]) end \
         return v and 1 or 0"
    ),
    sha1: "fc9356a93d8e5cfea8fc69f3dbd489a652a04c0a",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_stands_beside_its_sha1() {
        for script in [JOIN, HAND_OVER] {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }
}
