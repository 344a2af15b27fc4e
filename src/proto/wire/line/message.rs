//! The message by which a node hands a key over to a waiter.

use std::time::Duration;

use bytes::Bytes;

use crate::proto::lock::LockToken;
use crate::proto::time::Ttl;
use crate::proto::wire::line::{CHANNEL_BYTES, Channel, Mark, name_of};
use crate::proto::wire::resp::{Malformed, Reply};

/// The message of a node that handed a key over to a waiter of this client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandedOver {
    /// The channel on which it came.
    pub channel: Channel,
    /// The key, as it is sent.
    pub key: Vec<u8>,
    /// How long the key lives from the hand-over on.
    pub ttl: Ttl,
    /// The waiter's token.
    pub token: LockToken,
    /// The mark in the message. It proves that the node sent the message only after the client has
    /// checked it.
    pub mark: Mark,
    /// The name of the waiter that is the first of the line from now on; empty if there is none.
    pub next: Bytes,
    /// How many waiters before this one could not be reached.
    pub skipped: u64,
}

impl HandedOver {
    /// Reads a push of the kind `message`, after its kind. `None` for a message that no script of
    /// this library can have sent.
    pub(in crate::proto::wire) fn read<'a>(
        mut elements: impl Iterator<Item = Reply<'a>>,
    ) -> Option<HandedOver> {
        let (channel, message) = (elements.next()?, elements.next()?);
        let (Reply::Bulk(channel), Reply::Bulk(text)) = (channel, message) else { return None };
        let mut parts = text.splitn(6, |&byte| byte == b'\n');
        let (ttl, skipped, next) = (parts.next()?, parts.next()?, parts.next()?);
        let (mark, token, key) = (parts.next()?, parts.next()?, parts.next()?);
        let millis = std::str::from_utf8(ttl).ok()?.parse().ok()?;
        Some(HandedOver {
            channel: Channel(channel.try_into().ok()?),
            key: key.to_vec(),
            ttl: Ttl::new(Duration::from_millis(millis), Duration::MAX).ok()?,
            token: LockToken::parse(std::str::from_utf8(token).ok()?)?,
            mark: Mark::read(mark)?,
            next: Bytes::copy_from_slice(name_of(next)),
            skipped: std::str::from_utf8(skipped).ok()?.parse().ok()?,
        })
    }
}

/// The longest message that a server takes, by its default settings: 512 MiB.
const LONGEST_MESSAGE: usize = 512 << 20;

/// A message that is too long to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLong {
    /// The text begins after this many bytes, and has this length.
    Text(usize, usize),
    /// The length of the text has not come whole.
    Unknown,
}

/// What is still to come of a message that is too long. Its bytes are never read as replies,
/// because its sender chose them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Skipping {
    left: usize,
}

impl Skipping {
    /// Begins to skip a text of this length, and the line end after it.
    pub fn of(length: usize) -> Skipping {
        Skipping { left: length + 2 }
    }

    /// Whether bytes are to be skipped.
    pub fn is_going_on(self) -> bool {
        self.left > 0
    }

    /// Skips what has come.
    ///
    /// # Errors
    /// The text does not end where it should.
    pub fn skip(&mut self, input: &mut &[u8]) -> Result<(), Malformed> {
        let count = self.left.min(input.len());
        for place in count.saturating_sub(2)..count {
            let expected = match self.left - place {
                2 => b'\r',
                1 => b'\n',
                _ => continue,
            };
            if input[place] != expected {
                return Err(Malformed::BulkEnd);
            }
        }
        *input = &input[count..];
        self.left -= count;
        Ok(())
    }
}

impl TooLong {
    /// Whether these bytes, in which a bulk is too long, are a message on a channel as long as
    /// ours. Whoever may `PUBLISH` can send one, so it is not the fault of the node.
    pub fn of(bytes: &[u8]) -> Option<TooLong> {
        const HEAD: &[u8] = b">3\r\n$7\r\nmessage\r\n$41\r\n";
        const _: () = assert!(CHANNEL_BYTES == 41, "the head names the length of a channel");
        let after = bytes.strip_prefix(HEAD)?.get(CHANNEL_BYTES..)?.strip_prefix(b"\r\n$")?;
        let digits = after.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let length = std::str::from_utf8(&after[..digits]).ok()?.parse::<usize>().ok()?;
        if length > LONGEST_MESSAGE {
            return None;
        }
        if after[digits..].len() < 2 {
            return b"\r\n".starts_with(&after[digits..]).then_some(TooLong::Unknown);
        }
        let head = bytes.len() - after.len() + digits + 2;
        after[digits..].starts_with(b"\r\n").then_some(TooLong::Text(head, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::node_set::NodeId;
    use crate::proto::wire::line::tests::token;

    #[test]
    fn a_message_is_read_whole_or_not_at_all() {
        let token = token();
        let mark = "0001".repeat(5);
        let text = format!("1500\n2\nabc\n{mark}\n{token}\na\nkey");
        let channel = Channel::of(7).at(NodeId::new(18));
        let read_on = |channel: &[u8], text: &str| {
            HandedOver::read([Reply::Bulk(channel), Reply::Bulk(text.as_bytes())].into_iter())
        };
        let read = |text: &str| read_on(channel.as_bytes(), text);
        let message = read(&text).unwrap();
        assert_eq!(message.channel, channel);
        assert!(channel.as_bytes().ends_with(b"0012"));
        assert_eq!(read_on(b"channel", &text), None);
        assert_eq!((&message.key[..], &message.token), (&b"a\nkey"[..], &token));
        assert_eq!((&message.next[..], message.skipped), (&b"abc"[..], 2));
        assert_eq!(message.ttl.as_millis(), 1500);
        assert_eq!(message.mark.as_bytes(), mark.as_bytes());
        let rest = |mark: &str| format!("2\n\n{mark}\n{}\nk", message.token);
        let (bad_mark, no_ttl) = (format!("9\n{}", rest(&"0".repeat(19))), rest(&mark));
        let short_ttl = format!("2\n{}", rest(&mark));
        for other in ["", "9\n2\n\nx\nk", "9\nx\n\n\nk", &bad_mark, &no_ttl, &short_ttl] {
            assert_eq!(read(other), None, "{other:?}");
        }
    }

    #[test]
    fn message_that_is_too_long_is_distinguished_from_other_bytes() {
        let channel = Channel::of(7);
        let channel = std::str::from_utf8(channel.as_bytes()).unwrap();
        let head = format!(">3\r\n$7\r\nmessage\r\n$41\r\n{channel}\r\n");
        let of = |rest: &str| TooLong::of(format!("{head}{rest}").as_bytes());
        for partial in ["$2097152", "$2097152\r"] {
            assert_eq!(of(partial), Some(TooLong::Unknown));
        }
        let text = TooLong::Text(head.len() + 10, 2_097_152);
        assert_eq!((of("$2097152\r\n"), of("$2097152\r\nabc")), (Some(text), Some(text)));
        for other in ["$536870913\r\n", "$2097152\n", "$2097152x", ":2097152\r\n"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(TooLong::of(b"$2097152\r\n"), None);
        assert_eq!(TooLong::of(head.replace("message", "massage").as_bytes()), None);
    }

    #[test]
    fn a_text_is_skipped_up_to_its_end_in_any_pieces() {
        for piece in 1..8 {
            let mut skipping = Skipping::of(5);
            let mut rest = Vec::new();
            for mut bytes in b"+OK\r\n\r\n:1\r\n".chunks(piece) {
                skipping.skip(&mut bytes).unwrap();
                rest.extend_from_slice(bytes);
            }
            assert!(!skipping.is_going_on());
            assert_eq!(rest, b":1\r\n", "in pieces of {piece}");
            for wrong in [&b"abcdeXX"[..], b"abcde\rX", b"abcde\n\r"] {
                let mut skipping = Skipping::of(5);
                let ends = wrong.chunks(piece).try_for_each(|mut it| skipping.skip(&mut it));
                assert_eq!(ends, Err(Malformed::BulkEnd), "in pieces of {piece}");
            }
        }
    }
}
