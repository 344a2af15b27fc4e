//! The line beside a key: the questions of a waiter and what a node says to them. The scripts
//! are in [`scripts`], the message by which a node hands the key over in [`message`].
//!
//! The line of a key is a sorted set at `redlatch:line:{<key>}`. A member says all that a node has
//! to know of a waiter: `<ttl> <short ttl> <channel> <mark> <token>`. A key that is handed over
//! gets the ttl if the waiter is known to run, and the short ttl if it may have stopped, both in
//! milliseconds. The channel is `-` if the waiter cannot be notified. The mark proves to the waiter
//! that the node, and no one else, handed the key over. Only the channel and the mark differ from
//! node to node. A successor is named by the beginning of its token.
//!
//! The hazard is a token that still stands in the line when its waiter is gone. So the script that
//! releases a key also takes the member of its caller out of the line.

mod mark;
mod message;
mod scripts;

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::proto::inspection::Value;
use crate::proto::key_set::parts;
use crate::proto::lock::{LONGEST_TOKEN, LockToken};
use crate::proto::node_set::NodeId;
use crate::proto::own_keys::{LINE, line_key};
use crate::proto::time::Ttl;
use crate::proto::wire::command::{
    Form, Script, decimal, encode, put_bulk, put_bulk_of, put_header, put_number, put_script,
    put_token,
};
use crate::proto::wire::resp::{Elements, Reply};
use crate::proto::wire::sets::SetKeys;
pub use mark::{MARK_BYTES, Mark, MarkKey};
pub use message::{HandedOver, Skipping, TooLong};
pub use scripts::{HAND_OVER, JOIN};
#[cfg(feature = "testing")]
pub use scripts::{MOST_SEARCHED, MOST_SKIPPED, SCORE_OF_A_PLACE};

/// How long a line lives at least after the last join or poll: several times the longest pause
/// between two polls of a waiter that does not rest. So a line ends when all its waiters are gone.
pub const LINE_TTL: Duration = Duration::from_secs(10);

/// How long a channel is: `redlatch:` and 32 hex digits. The last two are the index of the node.
pub const CHANNEL_BYTES: usize = 9 + 32;

/// The most bytes of a member: two ttls of 20 digits, the channel, the mark, the token and four
/// spaces.
const LONGEST_MEMBER: usize = 2 * 20 + CHANNEL_BYTES + MARK_BYTES + LONGEST_TOKEN + 4;

/// How many bytes of its token name a waiter to others: enough to tell all waiters apart, and too
/// few to guess the rest of the token.
pub const NAME_BYTES: usize = 12;

/// The name of the waiter with this token.
pub fn name_of(token: &[u8]) -> &[u8] {
    &token[..token.len().min(NAME_BYTES)]
}

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The channel of a waiter that cannot be notified.
const NO_CHANNEL: &[u8] = b"-";

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
    /// How long the key lives when it is handed to the waiter, if the node heard from the waiter a
    /// moment ago.
    pub ttl: Ttl,
    /// How long the key lives if the node did not.
    pub short_ttl: Ttl,
    /// Where the node notifies the waiter; `None` if it cannot.
    pub channel: Option<Channel>,
    /// What the node sends back with a hand-over.
    pub mark: Mark,
}

impl Member<'_> {
    fn write_to<'b>(&self, buffer: &'b mut [u8; LONGEST_MEMBER]) -> &'b [u8] {
        let (mut digits, mut short_digits) = ([0; 20], [0; 20]);
        let mut token = [0; LONGEST_TOKEN];
        let channel = self.channel.as_ref().map_or(NO_CHANNEL, |channel| &channel.0[..]);
        let parts: [&[u8]; 9] = [
            decimal(self.ttl.as_millis(), &mut digits),
            b" ",
            decimal(self.short_ttl.as_millis(), &mut short_digits),
            b" ",
            channel,
            b" ",
            self.mark.as_bytes(),
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

/// Asks for the key, or for a place in its line, which then lives for `lives` at least. `again`:
/// the node has reported before that the waiter stands in the line. `earlier` are members of the
/// same token with other marks: one of them may stand there.
pub fn join<'a>(
    out: &mut BytesMut,
    form: Form,
    key: &[u8],
    member: Member<'_>,
    lives: Duration,
    again: bool,
    earlier: impl ExactSizeIterator<Item = Member<'a>>,
) {
    put_script_of_line(out, &JOIN, form, key, 5 + earlier.len());
    put_token(out, member.token);
    put_member(out, member);
    put_number(out, member.ttl.as_millis());
    put_number(out, lives.as_millis() as u64);
    put_bulk(out, if again { b"1" } else { b"" });
    earlier.for_each(|member| put_member(out, member));
}

/// Gives up the key, and the place in the line. One of `members` may stand there; `successor` is
/// the name of the waiter that is to get the key, empty if none is named.
pub fn hand_over<'a>(
    out: &mut BytesMut,
    form: Form,
    key: &[u8],
    token: &LockToken,
    members: impl ExactSizeIterator<Item = Member<'a>>,
    successor: &[u8],
) {
    let short = members.len() == 0 && successor.is_empty();
    put_script_of_line(out, &HAND_OVER, form, key, if short { 1 } else { 2 + members.len() });
    put_token(out, token);
    if !short {
        put_bulk(out, successor);
        members.for_each(|member| put_member(out, member));
    }
}

/// As [`hand_over`], for all keys of a lock. One of `members` may stand in each line.
pub fn hand_over_all<'a>(
    out: &mut BytesMut,
    form: Form,
    SetKeys { prefix, bytes, ends }: SetKeys<'_>,
    token: &LockToken,
    members: impl ExactSizeIterator<Item = Member<'a>>,
) {
    let arguments = if members.len() == 0 { 1 } else { 2 + members.len() };
    put_script(out, &HAND_OVER, form, 2 * ends.len(), arguments);
    for key in parts(bytes, ends) {
        put_bulk_of(out, [prefix.as_bytes(), key]);
        put_bulk_of(out, [LINE[0], prefix.as_bytes(), key, LINE[1]]);
    }
    put_token(out, token);
    if members.len() > 0 {
        put_bulk(out, b"");
        members.for_each(|member| put_member(out, member));
    }
}

fn put_member(out: &mut BytesMut, member: Member<'_>) {
    put_bulk(out, member.write_to(&mut [0; LONGEST_MEMBER]));
}

/// Takes members out of a line, and changes nothing else.
pub fn leave<'a>(
    out: &mut BytesMut,
    key: &[u8],
    members: impl ExactSizeIterator<Item = Member<'a>>,
) {
    put_header(out, b'*', 2 + members.len());
    put_bulk(out, b"ZREM");
    put_bulk_of(out, [LINE[0], key, LINE[1]]);
    members.for_each(|member| put_member(out, member));
}

/// Asks which waiters stand in the line of a key: the first `count` of them.
pub fn read_line(out: &mut BytesMut, key: &[u8], count: usize) {
    encode(out, &[b"ZRANGE", &line_key(key), b"0", (count.max(1) - 1).to_string().as_bytes()]);
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
fn token_of(member: &[u8]) -> &[u8] {
    member.rsplit(|&byte| byte == b' ').next().unwrap_or_default()
}

/// Encodes a script with its two keys; this many arguments follow.
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
        Form::Source | Form::Native(_) | Form::Transaction => {
            put_bulk(out, b"EVAL");
            put_bulk(out, script.source.as_bytes());
        }
    }
    put_bulk(out, b"2");
    put_bulk(out, key);
    put_bulk_of(out, [LINE[0], key, LINE[1]]);
}

/// How much of the value of a key an answer to [`JOIN`] has, which is more than any token.
const LONGEST_HOLDER: usize = 168;

const _: () = assert!(LONGEST_HOLDER >= LONGEST_TOKEN, "a token is kept whole");

/// What a node says to a waiter that asked for the key or for a place in its line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Standing {
    /// How long the key lives, as `PTTL` says it: in milliseconds, -1 if the key has no ttl, and -2
    /// if there is none.
    pub left: i64,
    /// How many stand before the waiter, if the key is another's.
    pub rank: u64,
    /// The value of the key, if it is another's.
    pub holder: Bytes,
    /// The name of the first in the line, if the key is the waiter's.
    pub next: Bytes,
}

impl Standing {
    /// Reads the answer to [`JOIN`]. The first part of the result is whether the key is the
    /// waiter's.
    pub(super) fn read(reply: &Reply<'_>) -> Option<(bool, Standing)> {
        let Reply::Bulk(text) = *reply else { return None };
        let (answer, rest) = cut(text)?;
        match answer {
            b"mine" => {
                let (left, next) = cut(rest)?;
                let next = Bytes::copy_from_slice(name_of(next));
                Some((true, Standing { left: number(left)?, next, ..Standing::default() }))
            }
            b"held" => {
                let (rank, rest) = cut(rest)?;
                let (left, holder) = cut(rest)?;
                let (rank, left) = (number(rank)?, number(left)?);
                let holder = Bytes::copy_from_slice(&holder[..holder.len().min(LONGEST_HOLDER)]);
                Some((false, Standing { left, rank, holder, ..Standing::default() }))
            }
            _ => None,
        }
    }
}

/// The part of a text before the first space, and the part after it.
fn cut(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = text.iter().position(|&byte| byte == b' ')?;
    Some((&text[..space], &text[space + 1..]))
}

fn number<T: std::str::FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Whether a push confirms a `SUBSCRIBE`.
pub(super) fn is_subscribed(push: &Elements<'_>) -> bool {
    push.iter().next() == Some(Reply::Bulk(b"subscribe"))
}

#[cfg(test)]
pub(in crate::proto::wire) mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    pub(in crate::proto::wire) fn token() -> LockToken {
        LockToken::random(&mut StdRng::from_seed([3; 32])).with_owner(Some(&"web:7".into()))
    }

    fn mark(digit: u8) -> Mark {
        Mark::read(&[digit; MARK_BYTES]).unwrap()
    }

    fn ttl() -> Ttl {
        Ttl::new(Duration::from_millis(1500), Duration::MAX).unwrap()
    }

    fn short_ttl() -> Ttl {
        Ttl::new(Duration::from_millis(400), Duration::MAX).unwrap()
    }

    #[test]
    fn a_join_names_the_key_its_line_and_the_member() {
        let (token, channel) = (token(), Channel::of(0xab));
        let mut out = BytesMut::new();
        let (channel, mark) = (Some(channel), mark(b'2'));
        let member = Member { token: &token, ttl: ttl(), short_ttl: short_ttl(), channel, mark };
        join(&mut out, Form::Sha, b"k", member, LINE_TTL, false, std::iter::empty());
        let text = String::from_utf8(out.to_vec()).unwrap();
        let member = format!("1500 400 redlatch:ba{} {} {token}", "0".repeat(30), "2".repeat(20));
        let head =
            format!("*10\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n2\r\n$1\r\nk\r\n", JOIN.sha1);
        assert!(text.starts_with(&head), "{text}");
        let length = member.len();
        let tail = format!("${length}\r\n{member}\r\n$4\r\n1500\r\n$5\r\n10000\r\n$0\r\n\r\n");
        assert!(text.contains("$17\r\nredlatch:line:{k}\r\n") && text.ends_with(&tail), "{text}");
    }

    #[test]
    fn a_join_names_the_members_with_earlier_marks() {
        let token = token();
        let mut out = BytesMut::new();
        let [earlier, member] = [b'1', b'2'].map(|it| Member {
            token: &token,
            ttl: ttl(),
            short_ttl: short_ttl(),
            channel: None,
            mark: mark(it),
        });
        join(&mut out, Form::Sha, b"k", member, LINE_TTL, true, [earlier].into_iter());
        let text = String::from_utf8(out.to_vec()).unwrap();
        let earlier = format!("1500 400 - {} {token}", "1".repeat(20));
        assert!(text.starts_with("*11\r\n"), "{text}");
        assert!(
            text.ends_with(&format!("\r\n10000\r\n$1\r\n1\r\n${}\r\n{earlier}\r\n", earlier.len()))
        );
    }

    #[test]
    fn a_release_of_a_token_that_never_joined_names_no_member() {
        let token = token();
        let mut out = BytesMut::new();
        hand_over(&mut out, Form::Source, b"k", &token, std::iter::empty(), b"");
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(text.starts_with("*6\r\n$4\r\nEVAL\r\n"), "{text}");
        assert!(text.ends_with(&format!("{token}\r\n")), "{text}");
        let mut out = BytesMut::new();
        hand_over(&mut out, Form::Source, b"k", &token, std::iter::empty(), b"m");
        let text = String::from_utf8(out.to_vec()).unwrap();
        assert!(text.starts_with("*7\r\n$4\r\nEVAL\r\n"), "{text}");
        assert!(text.ends_with(&format!("{token}\r\n$1\r\nm\r\n")), "{text}");
    }

    #[test]
    fn a_standing_is_read_whole_or_not_at_all() {
        let read = |reply: Reply<'_>| Standing::read(&reply);
        let holder = Bytes::from_static(b"a b");
        let held = Standing { rank: 12, left: -1, holder, ..Standing::default() };
        assert_eq!(read(Reply::Bulk(b"held 12 -1 a b")), Some((false, held)));
        let next = Bytes::from_static(b"0123456789ab");
        let mine = Standing { left: 77, next, ..Standing::default() };
        assert_eq!(read(Reply::Bulk(b"mine 77 0123456789abcdef")), Some((true, mine)));
        let alone = Standing { left: 77, ..Standing::default() };
        assert_eq!(read(Reply::Bulk(b"mine 77 ")), Some((true, alone)));
        let gone = Standing { left: -2, ..Standing::default() };
        assert_eq!(read(Reply::Bulk(b"held 0 -2 ")), Some((false, gone)));
        let broken: [&[u8]; 6] =
            [b"mine", b"mine 77", b"mine x ", b"held 12 a", b"held x 5 a", b"12 5 a"];
        for text in broken {
            assert_eq!(read(Reply::Bulk(text)), None, "{text:?}");
        }
        for other in [Reply::Null, Reply::Integer(77), Reply::Simple(b"OK")] {
            assert_eq!(read(other), None);
        }
    }
}
