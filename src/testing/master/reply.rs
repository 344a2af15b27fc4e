//! The replies of commands, and their encoding in RESP2 and RESP3.

/// One reply or push.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    Status(&'static str),
    /// The line without its `-`. A line end inside it is sent as spaces.
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    /// Text for people, which RESP3 marks as such.
    Verbatim(String),
    Null,
    Array(Vec<Reply>),
    Set(Vec<Reply>),
    Map(Vec<(&'static str, Reply)>),
    /// A push. RESP2 has no pushes, so there it is sent as an array.
    Push(Vec<Reply>),
    /// The push that this key, or with `None` every key, has changed.
    Invalidate(Option<Vec<u8>>),
    /// Bytes that are sent as they are, for [`Trouble::Answers`](super::Trouble::Answers).
    Raw(Vec<u8>),
}

impl Reply {
    pub(super) const OK: Reply = Reply::Status("OK");

    pub(super) fn error(line: impl Into<Vec<u8>>) -> Reply {
        Reply::Error(line.into())
    }

    /// An error that quotes a word of the request, up to a NUL, as in C.
    pub(super) fn error_about(before: &str, word: &[u8], after: &str) -> Reply {
        Reply::Error([before.as_bytes(), c_text(word), after.as_bytes()].concat())
    }

    pub(super) fn bulk(bytes: impl Into<Vec<u8>>) -> Reply {
        Reply::Bulk(bytes.into())
    }

    pub(super) fn encode(&self, resp3: bool, out: &mut Vec<u8>) {
        match self {
            Reply::Status(text) => line(out, b'+', text.as_bytes()),
            Reply::Error(text) => {
                let spaced = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
                line(out, b'-', &text.iter().map(spaced).collect::<Vec<_>>());
            }
            Reply::Integer(number) => line(out, b':', number.to_string().as_bytes()),
            Reply::Bulk(bytes) => bulk(out, b'$', bytes),
            Reply::Verbatim(text) if resp3 => bulk(out, b'=', format!("txt:{text}").as_bytes()),
            Reply::Verbatim(text) => bulk(out, b'$', text.as_bytes()),
            Reply::Null if resp3 => line(out, b'_', b""),
            Reply::Null => line(out, b'$', b"-1"),
            Reply::Array(items) => all(out, b'*', items, resp3),
            Reply::Set(items) => all(out, if resp3 { b'~' } else { b'*' }, items, resp3),
            Reply::Push(items) => all(out, if resp3 { b'>' } else { b'*' }, items, resp3),
            Reply::Map(pairs) => {
                let (mark, length) =
                    if resp3 { (b'%', pairs.len()) } else { (b'*', 2 * pairs.len()) };
                line(out, mark, length.to_string().as_bytes());
                for (field, reply) in pairs {
                    bulk(out, b'$', field.as_bytes());
                    reply.encode(resp3, out);
                }
            }
            Reply::Invalidate(key) => {
                line(out, b'>', b"2");
                bulk(out, b'$', b"invalidate");
                match key {
                    Some(key) => all(out, b'*', &[Reply::bulk(key.as_slice())], resp3),
                    None => Reply::Null.encode(resp3, out),
                }
            }
            Reply::Raw(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// The word up to a NUL, as C prints it.
pub(super) fn c_text(word: &[u8]) -> &[u8] {
    word.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn line(out: &mut Vec<u8>, mark: u8, text: &[u8]) {
    out.push(mark);
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn bulk(out: &mut Vec<u8>, mark: u8, bytes: &[u8]) {
    line(out, mark, bytes.len().to_string().as_bytes());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn all(out: &mut Vec<u8>, mark: u8, items: &[Reply], resp3: bool) {
    line(out, mark, items.len().to_string().as_bytes());
    for item in items {
        item.encode(resp3, out);
    }
}
