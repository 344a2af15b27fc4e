//! The line beside a key: the scripts of a fair lock, what a node says to them, and the message by
//! which a node hands the key over.
//!
//! The line of a key is a sorted set at `<key>:line`. A member says all that a node has to know of
//! a waiter: `<ttl> <channel> <token>`. The ttl is what the key gets when it is handed over, in
//! milliseconds; the channel is `-` if the waiter cannot be notified. A script names a successor by
//! its member, or by its token alone.
//!
//! The hazard is a token that stands in the line when its waiter is gone. So the script that
//! releases a key also takes the member of its caller out of the line.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::proto::inspection::Value;
use crate::proto::lock::{LONGEST_TOKEN, LockToken};
use crate::proto::node_set::NodeId;
use crate::proto::planted::{Fault, is_planted};
use crate::proto::time::Ttl;
use crate::proto::wire::command::{Form, Script, decimal, encode, put_bulk, put_header, put_token};
use crate::proto::wire::resp::{Elements, Reply};

/// What follows a key in the name of its line.
const LINE: &[u8] = b":line";

/// How long a line lives after the last join or poll: some times the longest pause between two
/// polls. So a line whose waiters are all gone ends.
pub const LINE_TTL: Duration = Duration::from_secs(10);

/// How long a channel is: `redlatch:` and 32 hex digits. The last two are the index of the node.
pub const CHANNEL_BYTES: usize = 9 + 32;

/// The most bytes of a member: a ttl of 20 digits, the channel, the token and two spaces.
const LONGEST_MEMBER: usize = 20 + CHANNEL_BYTES + LONGEST_TOKEN + 2;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The channel of a waiter that cannot be notified.
const NO_CHANNEL: &[u8] = b"-";

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

/// The channel of a client, by which one node notifies it. Each node has a channel of its own: a
/// replica relays the messages of its master, and those are no votes of the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Channel([u8; CHANNEL_BYTES]);

impl Channel {
    /// The channel of node 0 for a client with this random number.
    pub fn of(random: u128) -> Channel {
        let mut bytes = *b"redlatch:00000000000000000000000000000000";
        let digits = &mut bytes[CHANNEL_BYTES - 32..CHANNEL_BYTES - 2];
        for (index, byte) in digits.iter_mut().enumerate() {
            *byte = HEX[(random >> (4 * index)) as usize & 15];
        }
        Channel(bytes)
    }

    /// The channel of this node for the same client.
    #[must_use]
    pub fn at(mut self, node: NodeId) -> Channel {
        self.0[CHANNEL_BYTES - 2] = HEX[(node.index() >> 4) & 15];
        self.0[CHANNEL_BYTES - 1] = HEX[node.index() & 15];
        self
    }

    /// The channel as it is sent.
    pub const fn as_bytes(&self) -> &[u8; CHANNEL_BYTES] {
        &self.0
    }
}

/// A waiter, as it stands in a line.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// Its token.
    pub token: &'a LockToken,
    /// What the key lives for when it is handed to the waiter.
    pub ttl: Ttl,
    /// How it is notified.
    pub channel: Option<&'a Channel>,
}

/// The member of the same waiter in the line of another node, whose channel has its own index.
/// Nothing if the waiter has no channel.
pub fn member_at(node: NodeId, member: &[u8]) -> Option<Vec<u8>> {
    let from = member.iter().position(|&byte| byte == b' ')? + 1;
    let channel = Channel(member.get(from..from + CHANNEL_BYTES)?.try_into().ok()?);
    let mut other = member.to_vec();
    other[from..from + CHANNEL_BYTES].copy_from_slice(channel.at(node).as_bytes());
    (other.get(from + CHANNEL_BYTES) == Some(&b' ')).then_some(other)
}

impl Member<'_> {
    fn write_to<'b>(&self, buffer: &'b mut [u8; LONGEST_MEMBER]) -> &'b [u8] {
        let mut digits = [0; 20];
        let mut token = [0; LONGEST_TOKEN];
        let channel = self.channel.map_or(NO_CHANNEL, |channel| &channel.0[..]);
        let parts: [&[u8]; 5] = [
            decimal(self.ttl.as_millis(), &mut digits),
            b" ",
            channel,
            b" ",
            self.token.write_to(&mut token),
        ];
        let mut length = 0;
        for part in parts {
            buffer[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        &buffer[..length]
    }
}

/// Asks for the key, or for a place in its line.
///
/// `poll` is the number of the poll.
pub fn join(out: &mut BytesMut, form: Form, key: &[u8], member: Member<'_>, poll: u32) {
    let mut buffer = [0; LONGEST_MEMBER];
    let (mut ttl, mut line) = ([0; 20], [0; 20]);
    put_script_of_line(out, &JOIN, form, key, 4);
    put_token(out, member.token);
    if is_planted(Fault::JoinsTwice) {
        // Another member of the same token: the ttl is a little longer each time.
        let longer = member.ttl.duration() + Duration::from_millis(u64::from(poll % 2));
        let ttl = Ttl::new(longer, longer).unwrap_or(member.ttl);
        put_bulk(out, Member { ttl, ..member }.write_to(&mut buffer));
    } else {
        put_bulk(out, member.write_to(&mut buffer));
    }
    put_bulk(out, decimal(member.ttl.as_millis(), &mut ttl));
    put_bulk(out, decimal(LINE_TTL.as_millis() as u64, &mut line));
}

/// Gives the key up, and the place in the line; `member` is nothing if the token never joined.
pub fn hand_over(
    out: &mut BytesMut,
    form: Form,
    key: &[u8],
    token: &LockToken,
    member: Option<Member<'_>>,
    successor: &[u8],
) {
    let mut buffer = [0; LONGEST_MEMBER];
    if member.is_none() && successor.is_empty() {
        put_script_of_line(out, &HAND_OVER, form, key, 1);
        put_token(out, token);
        return;
    }
    put_script_of_line(out, &HAND_OVER, form, key, 3);
    put_token(out, token);
    put_bulk(out, member.map_or(&b""[..], |member| member.write_to(&mut buffer)));
    put_bulk(out, successor);
}

/// Takes a member out of a line, and changes nothing else.
pub fn leave(out: &mut BytesMut, key: &[u8], member: Member<'_>) {
    let mut buffer = [0; LONGEST_MEMBER];
    let line = [key, LINE].concat();
    encode(out, &[b"ZREM", &line, member.write_to(&mut buffer)]);
}

/// Asks which waiters stand in the line of a key: the first `count` of them.
pub fn read_line(out: &mut BytesMut, key: &[u8], count: usize) {
    let line = [key, LINE].concat();
    encode(out, &[b"ZRANGE", &line, b"0", (count.max(1) - 1).to_string().as_bytes()]);
}

/// Reads the answer to [`read_line`] as the tokens of the waiters. A node that refuses, or whose
/// key is no line, has none.
pub(super) fn members(reply: &Reply<'_>, tokens: &mut Vec<Value>) -> Option<()> {
    tokens.clear();
    match reply {
        Reply::Array(members) => {
            for member in members.iter() {
                let Reply::Bulk(member) = member else { return None };
                tokens.push(Value::of(token_of(member)));
            }
            Some(())
        }
        Reply::Error(_) => Some(()),
        _ => None,
    }
}

/// The token of a member: its last word.
pub fn token_of(member: &[u8]) -> &[u8] {
    member.rsplit(|&byte| byte == b' ').next().unwrap_or_default()
}

/// A script, its two keys, and the number of the arguments that follow.
fn put_script_of_line(
    out: &mut BytesMut,
    script: &Script,
    form: Form,
    key: &[u8],
    arguments: usize,
) {
    out.reserve(2 * key.len() + 600);
    put_header(out, b'*', 5 + arguments);
    match form {
        Form::Sha => {
            put_bulk(out, b"EVALSHA");
            put_bulk(out, script.sha1.as_bytes());
        }
        Form::Source | Form::Native(_) => {
            put_bulk(out, b"EVAL");
            put_bulk(out, script.source.as_bytes());
        }
    }
    put_bulk(out, b"2");
    put_bulk(out, key);
    put_header(out, b'$', key.len() + LINE.len());
    out.extend_from_slice(key);
    out.extend_from_slice(LINE);
    out.extend_from_slice(b"\r\n");
}

/// How much of the value of a key an answer to [`JOIN`] has, which is more than any token.
const LONGEST_HOLDER: usize = 168;

const _: () = assert!(LONGEST_HOLDER >= LONGEST_TOKEN, "a token is kept whole");

/// What a node says to a waiter that asked for the key or for a place in its line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// How long the key lives, in milliseconds, if it is the waiter's.
    pub left_millis: u64,
    /// How many stand before the waiter.
    pub rank: u64,
    /// The value of the key, if it is another's.
    pub holder: Bytes,
}

impl Standing {
    /// Reads the answer to [`JOIN`]. The first part of the result is whether the key is the
    /// waiter's.
    pub(super) fn read(reply: &Reply<'_>) -> Option<(bool, Standing)> {
        match *reply {
            Reply::Integer(millis) => {
                let left_millis = u64::try_from(millis).unwrap_or(0);
                Some((true, Standing { left_millis, ..Standing::default() }))
            }
            Reply::Bulk(text) => {
                let space = text.iter().position(|&byte| byte == b' ')?;
                let rank = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
                let holder = &text[space + 1..];
                let holder = Bytes::copy_from_slice(&holder[..holder.len().min(LONGEST_HOLDER)]);
                Some((false, Standing { left_millis: 0, rank, holder }))
            }
            _ => None,
        }
    }
}

/// The message of a node that handed a key over to a waiter of this client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedOver {
    /// The channel on which it came.
    pub channel: Channel,
    /// The key, as it is sent.
    pub key: Vec<u8>,
    /// The waiter's token.
    pub token: LockToken,
    /// The member that is the first of the line from now on; empty if there is none.
    pub next: Bytes,
    /// How many waiters before this one could not be reached.
    pub skipped: u64,
}

impl HandedOver {
    /// Reads a push of the kind `message`, after its kind. A message that no script of ours sent is
    /// ignored.
    pub(super) fn read<'a>(mut elements: impl Iterator<Item = Reply<'a>>) -> Option<HandedOver> {
        let (channel, message) = (elements.next()?, elements.next()?);
        let (Reply::Bulk(channel), Reply::Bulk(text)) = (channel, message) else { return None };
        let mut parts = text.splitn(4, |&byte| byte == b'\n');
        let (skipped, next, token, key) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some(HandedOver {
            channel: Channel(channel.try_into().ok()?),
            key: key.to_vec(),
            token: LockToken::parse(std::str::from_utf8(token).ok()?)?,
            next: Bytes::copy_from_slice(&next[..next.len().min(LONGEST_MEMBER)]),
            skipped: std::str::from_utf8(skipped).ok()?.parse().ok()?,
        })
    }
}

/// Whether a push is the answer to `SUBSCRIBE`: it has no other reply.
pub(super) fn is_subscribed(push: &Elements<'_>) -> bool {
    push.iter().next() == Some(Reply::Bulk(b"subscribe"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    fn token() -> LockToken {
        LockToken::random(&mut StdRng::from_seed([3; 32])).with_owner(Some(&"web:7".into()))
    }

    fn ttl() -> Ttl {
        Ttl::new(Duration::from_millis(1500), Duration::MAX).unwrap()
    }

    #[test]
    fn each_script_stands_beside_its_sha1() {
        for script in [JOIN, HAND_OVER] {
            let sha1 = sha1_smol::Sha1::from(script.source).digest().to_string();
            assert_eq!(script.sha1, sha1, "{}", script.source);
        }
    }

    #[test]
    fn a_join_names_the_key_its_line_and_the_member() {
        let (token, channel) = (token(), Channel::of(0xab));
        let mut out = BytesMut::new();
        let member = Member { token: &token, ttl: ttl(), channel: Some(&channel) };
        join(&mut out, Form::Sha, b"k", member, 0);
        let text = String::from_utf8(out.to_vec()).unwrap();
        let member = format!("1500 redlatch:ba{} {token}", "0".repeat(30));
        let head = format!("*9\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n2\r\n$1\r\nk\r\n", JOIN.sha1);
        assert!(text.starts_with(&head), "{text}");
        let length = member.len();
        let tail = format!("${length}\r\n{member}\r\n$4\r\n1500\r\n$5\r\n10000\r\n");
        assert!(text.contains("$6\r\nk:line\r\n") && text.ends_with(&tail), "{text}");
    }

    #[test]
    fn a_release_of_a_token_that_never_joined_names_no_member() {
        let token = token();
        let mut out = BytesMut::new();
        hand_over(&mut out, Form::Source, b"k", &token, None, b"");
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(text.starts_with("*6\r\n$4\r\nEVAL\r\n"), "{text}");
        assert!(text.ends_with(&format!("{token}\r\n")), "{text}");
        let mut out = BytesMut::new();
        hand_over(&mut out, Form::Source, b"k", &token, None, b"m");
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(text.starts_with("*8\r\n$4\r\nEVAL\r\n"), "{text}");
        assert!(text.ends_with(&format!("{token}\r\n$0\r\n\r\n$1\r\nm\r\n")), "{text}");
    }

    #[test]
    fn a_standing_is_read_whole_or_not_at_all() {
        let read = |reply: Reply<'_>| Standing::read(&reply);
        let held = Standing { rank: 12, holder: Bytes::from_static(b"a b"), left_millis: 0 };
        assert_eq!(read(Reply::Bulk(b"12 a b")), Some((false, held)));
        let mine = Standing { left_millis: 77, ..Standing::default() };
        assert_eq!(read(Reply::Integer(77)), Some((true, mine)));
        let none_left = read(Reply::Integer(-1)).map(|(mine, it)| (mine, it.left_millis));
        assert_eq!(none_left, Some((true, 0)));
        for other in [Reply::Bulk(b"12"), Reply::Bulk(b"x y"), Reply::Null, Reply::Simple(b"OK")] {
            assert_eq!(read(other), None);
        }
    }

    #[test]
    fn a_message_is_read_whole_or_not_at_all() {
        let token = token();
        let text = format!("2\n9 - abc\n{token}\na\nkey");
        let channel = Channel::of(7).at(NodeId::new(18));
        let read_on = |channel: &[u8], text: &str| {
            HandedOver::read([Reply::Bulk(channel), Reply::Bulk(text.as_bytes())].into_iter())
        };
        let read = |text: &str| read_on(channel.as_bytes(), text);
        let message = read(&text).unwrap();
        assert_eq!(message.channel, channel);
        assert!(channel.as_bytes().ends_with(b"0012"));
        assert_eq!(read_on(b"channel", &text), None);
        assert_eq!((message.key, message.token), (b"a\nkey".to_vec(), token));
        assert_eq!((&message.next[..], message.skipped), (&b"9 - abc"[..], 2));
        for other in ["", "2\n\nx\nk", "x\n\n\nk"] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }
}
