//! The scripts of the line.

use crate::proto::wire::command::Script;

/// How many members that cannot be reached a script passes over at most: it blocks its node for as
/// long as it runs.
#[cfg(any(test, feature = "testing"))]
pub const MOST_SKIPPED: usize = 400;
/// How many members a script reads at most to find the one that is named, for the same reason.
#[cfg(any(test, feature = "testing"))]
pub const MOST_SEARCHED: usize = 500;

/// A score in the line is the place of the waiter times this, plus the time of its last join modulo
/// this, in milliseconds by the clock of the node. A score holds both exactly.
#[cfg(any(test, feature = "testing"))]
pub const SCORE_OF_A_PLACE: i64 = 1 << 22;

/// `time()` is the time in milliseconds, modulo [`SCORE_OF_A_PLACE`], as a score has it.
macro_rules! time {
    () => {
        "local function time() \
         local t = redis.call('TIME') \
         return (t[1] * 1000 + math.floor(t[2] / 1000)) % 4194304 \
         end "
    };
}

/// The first two members of the line with their scores: each member, and its score after it. No
/// members if the line is empty; and if the key is no line, because `redis.pcall` then returns a
/// table with an error.
macro_rules! front {
    () => {
        "redis.pcall('ZRANGE', KEYS[2], 0, 1, 'WITHSCORES')"
    };
}

/// `give(line, name, own)` hands the key to the member whose token begins with `name`, if it is
/// among the first [`MOST_SEARCHED`] of the line; else to the first one that can be reached. `line`
/// is the front of the line. It returns that member; but if that is `own`, the member of the
/// caller, it does not hand the key over. It returns nil if the line is empty, may not be changed,
/// or begins with [`MOST_SKIPPED`] members that cannot be reached: then those have left the line,
/// and the key is deleted.
///
/// A member leaves the line before the key is written, because a server whose memory is full
/// refuses a `SET` unless the script has written before it. A member can be reached if its own
/// channel has a subscriber. `PUBSUB` says so; `PUBLISH` also counts clients that listen to all
/// channels by a pattern. If the node refuses `PUBSUB`, the count of `PUBLISH` decides. If the node
/// refuses that, too, the member counts as reached: it polls.
///
/// If the member has joined, or polled, within a quarter of its short ttl, the key gets its whole
/// ttl: the member is as good as a client whose `SET NX` arrives now. Any other member may have
/// stopped, and the key gets the short ttl. The script reads the time once, into `now`, and only if
/// a member has two different ttls.
///
/// The message has that ttl, and the token and the mark of the new holder. It also names the member
/// that is now the first of the line, but only by the beginning of its token, so that a program
/// that reads all messages cannot send one in that member's name.
macro_rules! give {
    () => {
        concat!(
            "local function give(line, name, own) \
             name = ' ' .. (name or '') \
             if line[1] and name ~= ' ' and not string.find(line[1], name, 1, true) then \
             for _, o in ipairs(redis.call('ZRANGE', KEYS[2], 0, 499)) do \
             if string.find(o, name, 1, true) then \
             line = {o, redis.pcall('ZSCORE', KEYS[2], o), line[1]} \
             break \
             end \
             end \
             end \
             local skipped = 0 \
             for _ = 1, 400 do \
             line = line or ",
            front!(),
            " local m, score, after = line[1], tonumber(line[2]), line[3] or '' \
             if not m or m == own then return m end \
             local ttl, short, channel, mark, token = \
             string.match(m, '^([1-9]%d*) ([1-9]%d*) (%S+) (%S+) (%S+)$') \
             if ttl ~= short then now = now or time() end \
             local there = redis.pcall('ZREM', KEYS[2], m) \
             if type(there) ~= 'number' then return nil end \
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
             after = string.sub(string.match(after, '%S*$'), 1, 12) \
             local heard = redis.pcall('PUBLISH', channel, ttl .. '\\n' .. skipped .. '\\n' .. \
             after .. '\\n' .. mark .. '\\n' .. token .. '\\n' .. KEYS[1]) \
             if heard ~= 0 then return m end \
             end \
             skipped = skipped + 1 \
             end \
             line = nil \
             end \
             redis.call('DEL', KEYS[1]) \
             end "
        )
    };
}

/// Asks for the key, or for a place in its line; a repeat changes nothing but the ttl of the line,
/// which it never shortens, and the mark and the last join of the member.
///
/// `ARGV[1]` is the token, `ARGV[2]` its member, `ARGV[3]` the ttl of the key and `ARGV[4]` that of
/// the line, both in milliseconds. `ARGV[5]` is `1` if the caller knows of a place in the line: it
/// only decides whether the script first looks for the member, or first adds it. Further arguments
/// are members with earlier marks of the same token. If one of them stands in the line, the new
/// member takes its place, and is added before the other one is removed: an empty line would be
/// deleted, and its ttl with it.
///
/// `PEXPIRE` with `GT` (Redis 7.0) sets only a later end. Where the server does not know it, the
/// script reads the ttl first. A line that the join itself began has no ttl, which `GT` would
/// leave so.
///
/// If the key is the caller's, the answer is `mine <left> <next>`: how long the key lives, and the
/// beginning of the token of the first in the line, if there is one. Else it is `held <place>
/// <left> <value>`: the place in the line, how long the key lives, and its value. Times are what
/// `PTTL` says. There is no value, and the place is 0, if the line begins with too many members
/// that cannot be reached: then the next join goes on to skip them.
///
/// Every way through the script writes, so that a replica refuses it: its copy of a key is no vote.
/// A join that does not find its own key reads the time before it writes, and one that gets the key
/// leaves the line even if that is empty: so a user without these rights is refused at the first
/// join, not at some later one.
pub const JOIN: Script = Script {
    source: concat!(
        "local function mine(left) \
         local m = redis.pcall('ZRANGE', KEYS[2], 0, 0)[1] or '' \
         return string.format('mine %.0f ', left) .. string.sub(string.match(m, '%S*$'), 1, 12) \
         end \
         local v = redis.call('GET', KEYS[1]) \
         if v == ARGV[1] then \
         redis.call('ZREM', KEYS[2], ARGV[2], unpack(ARGV, 6)) \
         return mine(redis.call('PTTL', KEYS[1])) \
         end ",
        time!(),
        "local now = time() \
         local stands = ARGV[5] == '1' \
         for i = 6, #ARGV do \
         local score = redis.call('ZSCORE', KEYS[2], ARGV[i]) \
         if score then \
         redis.call('ZADD', KEYS[2], 'NX', score, ARGV[2]) \
         redis.call('ZREM', KEYS[2], ARGV[i]) \
         stands = true \
         end \
         end \
         if not v then ",
        give!(),
        "local m = ",
        front!(),
        " m = m[1] and (give(m, nil, ARGV[2]) or ",
        front!(),
        "[1]) \
         if not m or m == ARGV[2] then \
         redis.call('ZREM', KEYS[2], ARGV[2]) \
         redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) \
         return mine(ARGV[3]) \
         end \
         v = redis.call('GET', KEYS[1]) or '' \
         end \
         local function stand(how, place) \
         place = place - place % 4194304 + now \
         if place ~= place then place = now end \
         return redis.call('ZADD', KEYS[2], how, string.format('%.0f', place), ARGV[2]) \
         end \
         local score = stands and redis.call('ZSCORE', KEYS[2], ARGV[2]) \
         local is_first = false \
         if not score then \
         local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES') \
         is_first = not last[1] \
         if stand('NX', (last[2] or 0) + 4194304) == 0 then \
         score = redis.call('ZSCORE', KEYS[2], ARGV[2]) \
         end \
         end \
         if score then stand('XX', score) end \
         if is_first then redis.call('PEXPIRE', KEYS[2], ARGV[4]) \
         elseif type(redis.pcall('PEXPIRE', KEYS[2], ARGV[4], 'GT')) ~= 'number' \
         and redis.call('PTTL', KEYS[2]) < tonumber(ARGV[4]) then \
         redis.call('PEXPIRE', KEYS[2], ARGV[4]) \
         end \
         local rank = 0 \
         if v ~= '' and not is_first then rank = redis.call('ZRANK', KEYS[2], ARGV[2]) end \
         return string.format('held %.0f %.0f ', rank, redis.call('PTTL', KEYS[1])) .. \
         string.sub(v, 1, 168)"
    ),
    sha1: "70d5b0298d9f8cfda13eeac97c232b30cb85dad0",
};

/// Gives the key up, and the place in the line: to the named successor if it stands in this line,
/// else to the first of the line, else to nobody. A key that is absent is handed over, too. If no
/// member can be reached, the key is deleted.
///
/// `ARGV[1]` is the token, `ARGV[2]` the beginning of the successor's token (empty: none is named),
/// and the others are members: one of them may stand in the line. All but the token are left out if
/// there are no such members and no successor. The answers are those of the release script. If
/// another program uses the line's key, the lock's key is only deleted.
///
/// `KEYS` are a key and its line. A lock over several keys names all of them in such pairs, and no
/// successor; the members are taken out of each line. The answers are those of the release script
/// of sets. A key that is no string is another's.
pub const HAND_OVER: Script = Script {
    source: concat!(
        "local all, answer, failed = KEYS, 1, nil \
         for i = 1, #all, 2 do \
         local KEYS = {all[i], all[i + 1]} \
         local function release() \
         local v = redis.pcall('GET', KEYS[1]) \
         if type(v) == 'table' then \
         if #all == 2 or not string.find(v.err, 'WRONGTYPE', 1, true) then return v end \
         v = '' \
         end \
         local line = ",
        front!(),
        " if line.err and not string.find(line.err, 'WRONGTYPE', 1, true) then return line end \
         local left = line[1] and ARGV[3] and redis.call('ZREM', KEYS[2], unpack(ARGV, 3)) or 0 \
         if v and v ~= ARGV[1] then return -1 end \
         if left > 0 then line = ",
        front!(),
        " end \
         if line[1] then \
         local now ",
        time!(),
        give!(),
        "if give(line, ARGV[2], nil) then return v and 1 or 0 end \
         end \
         if v or line[1] then redis.call('DEL', KEYS[1]) end \
         return v and 1 or 0 \
         end \
         local said = release() \
         if #all == 2 then return said end \
         if type(said) == 'table' then failed = said \
         elseif answer == 1 and said ~= 1 then answer = said - i - 1 end \
         end \
         return failed or answer"
    ),
    sha1: "d40487ccc64ac6238d841c9416cf0a04f83725c2",
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
