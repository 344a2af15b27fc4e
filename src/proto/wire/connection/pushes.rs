//! Reads what a node sends without having been asked.

use super::Incoming;
use crate::proto::key::{KeyHash, KeyPrefix};
use crate::proto::wire::line::HandedOver;
use crate::proto::wire::resp::{Elements, Reply};

/// Reads a push: `invalidate` with the keys that were written to, or with nothing if a database was
/// flushed; or `message` on the channel of this client. Pushes of other kinds are ignored.
pub(super) fn read_push(
    push: Elements<'_>,
    prefix: &KeyPrefix,
    (written, handed_over): (&mut Vec<KeyHash>, &mut Option<HandedOver>),
) -> Option<Incoming> {
    let mut elements = push.iter();
    match elements.next()? {
        Reply::Bulk(b"invalidate") => {}
        Reply::Bulk(b"message") => {
            *handed_over = HandedOver::read(elements);
            return Some(Incoming::HandedOver);
        }
        _ => return None,
    }
    match elements.next()? {
        Reply::Null => Some(Incoming::Flushed),
        Reply::Array(keys) => {
            written.extend(keys.iter().filter_map(|key| match key {
                Reply::Bulk(key) => Some(prefix.hash_of(key)),
                _ => None,
            }));
            written.pop().map(Incoming::Written)
        }
        _ => None,
    }
}
