//! The message by which a node hands a key over to a waiter.

use bytes::Bytes;

use crate::proto::lock::LockToken;
use crate::proto::wire::line::{Channel, LONGEST_MEMBER};
use crate::proto::wire::resp::Reply;

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
    pub(in crate::proto::wire) fn read<'a>(
        mut elements: impl Iterator<Item = Reply<'a>>,
    ) -> Option<HandedOver> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::node_set::NodeId;
    use crate::proto::wire::line::tests::token;

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
