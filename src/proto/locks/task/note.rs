//! Writing a note beside the key of a lock: a text for other clients, on each node that can
//! be asked.
//!
//! The hazard is a note that a client takes for the truth. A note says something only beside keys
//! that a majority of the nodes hold, so a write needs no majority, and a late one does no harm.

use bytes::BytesMut;

use crate::proto::inspection::VALUE_BYTES;
use crate::proto::own_keys::Note;
use crate::proto::time::Ttl;
use crate::proto::wire::command;

/// The most bytes of a note: as many as are read of it.
pub const LONGEST_NOTE: usize = VALUE_BYTES;

/// A note, and how long it lives.
#[derive(Debug, Clone)]
pub struct NoteText {
    note: Note,
    text: Box<[u8]>,
    ttl: Ttl,
}

impl NoteText {
    /// A note with this text, which has [`LONGEST_NOTE`] bytes at most.
    pub fn new(note: Note, text: &[u8], ttl: Ttl) -> NoteText {
        debug_assert!(text.len() <= LONGEST_NOTE, "no reader sees its end");
        NoteText { note, text: text.into(), ttl }
    }

    /// Encodes the write. `key` is the key of the lock, with the prefix of the client.
    pub fn encode(&self, key: &[u8], out: &mut BytesMut) {
        let millis = self.ttl.as_millis().to_string();
        command::encode(out, &[b"SET", &self.note.key(key), &self.text, b"PX", millis.as_bytes()]);
    }
}
