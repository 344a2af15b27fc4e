//! The decoder of what a node sends: RESP2 and RESP3 replies, borrowed from the input.
//!
//! The decoder knows no socket and no command, keeps nothing between calls, allocates nothing and
//! does not recurse. It reads strictly. Bytes that a node cannot have meant are [`Malformed`], and
//! are never guessed, because a guessed reply would be a guessed vote.
//!
//! The hazard is to go on after `Malformed`: it is not known where the next reply begins. The
//! connection has to be closed, because decoding on from anywhere could take the inside of one
//! reply for another.

mod malformed;
mod reader;

use std::fmt;
use std::iter::FusedIterator;

pub use malformed::Malformed;
use reader::{PASSED, Reader, Stop};

/// The limits on one reply. A reply past any of them is [`Malformed`], and its connection ends.
///
/// Bytes and elements are counted over the whole reply, so that nesting cannot multiply them: one
/// reply makes its reader hold little more than `line` + `bulk` bytes, 1.1 MiB by default.
///
/// ```
/// use redlatch::proto::resp::{Limits, Malformed, decode};
///
/// let limits = Limits { bulk: 3, ..Limits::default() };
/// assert_eq!(decode(b"$4", &limits), Err(Malformed::BulkTooLong));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes in all text lines of one reply, without their type bytes and line ends: 64 KiB.
    ///
    /// The longest that nodes send are errors, and they cut what they repeat of our command: some
    /// 300 bytes. Scripts and modules may write more.
    pub line: usize,
    /// Bytes in all bulks of one reply: 1 MiB.
    ///
    /// The largest that the client asks for is `INFO`: 5 to 10 KiB, more if a node has many
    /// databases.
    pub bulk: usize,
    /// Elements in all aggregates of one reply, two for each pair of a map: 1,024.
    ///
    /// `HELLO` has fourteen and some ten more for each module; an invalidation names few keys.
    pub elements: usize,
    /// Aggregates inside one another, the outermost included: 8. More than 16 is taken as 16.
    ///
    /// The deepest that the client asks for is `HELLO`: a map with an array of modules, each a map
    /// with an array of arguments, makes four.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line: 64 * 1024, bulk: 1024 * 1024, elements: 1024, depth: 8 }
    }
}

/// One reply, or one element of an aggregate. Bytes are as the node sent them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reply<'a> {
    /// `+`: a line of text, such as `OK`.
    Simple(&'a [u8]),
    /// `-` or `!`: the node refused. The first word is the code.
    Error(&'a [u8]),
    /// `:`: a whole number.
    Integer(i64),
    /// `$`: any bytes. Also `=`, without the format (`txt:`) at its beginning.
    Bulk(&'a [u8]),
    /// `_`, `$-1` or `*-1`: no value.
    Null,
    /// `#t` or `#f`.
    Boolean(bool),
    /// `,`: a number as text that `f64` can parse.
    Double(&'a [u8]),
    /// `(`: a whole number of any size, as text: an optional sign, then digits.
    BigNumber(&'a [u8]),
    /// `*`: elements in order.
    Array(Elements<'a>),
    /// `~`: elements without order. The decoder does not check for duplicates.
    Set(Elements<'a>),
    /// `%`: pairs. The elements are key, value, key, value: two for each pair.
    Map(Elements<'a>),
    /// `>`: a push, which answers no question. Never an element of another reply.
    Push(Elements<'a>),
}

/// The elements of an aggregate. The decoder has read them all and found them well-formed.
///
/// Two values are equal if their bytes on the wire are.
///
/// ```
/// use redlatch::proto::resp::{Limits, Reply, Step, decode};
///
/// let step = decode(b"%1\r\n+proto\r\n:3\r\n", &Limits::default());
/// let Ok(Step::Complete { reply: Reply::Map(elements), .. }) = step else { panic!("{step:?}") };
/// assert_eq!(elements.len(), 2);
/// assert!(elements.iter().eq([Reply::Simple(b"proto"), Reply::Integer(3)]));
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Elements<'a> {
    /// Exactly `len` replies that `decode` has accepted, and nothing after them.
    bytes: &'a [u8],
    len: usize,
}

impl<'a> Elements<'a> {
    /// How many elements there are; a map has two for each pair.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    #[cfg(any(test, feature = "testing"))]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements from first to last. An element that is an aggregate has elements of its own.
    #[must_use]
    pub fn iter(&self) -> Iter<'a> {
        Iter { rest: self.bytes, left: self.len }
    }
}

impl<'a> IntoIterator for Elements<'a> {
    type Item = Reply<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Elements<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The iterator of [`Elements`].
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Reply<'a>;

    fn next(&mut self) -> Option<Reply<'a>> {
        self.left = self.left.checked_sub(1)?;
        let mut reader = Reader { rest: self.rest, left: PASSED };
        let Ok(reply) = reader.reply() else {
            debug_assert!(false, "decode accepted these bytes before");
            self.left = 0;
            return None;
        };
        self.rest = reader.rest;
        Some(reply)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl FusedIterator for Iter<'_> {}

/// The result of decoding the input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Step<'a> {
    /// The input begins with a whole reply.
    Complete {
        /// The reply.
        reply: Reply<'a>,
        /// How many bytes of the input the reply takes, at least one. The next reply begins after
        /// them.
        consumed: usize,
    },
    /// The input is the beginning of a reply. Decode again, from its first byte, when more has
    /// come.
    Partial,
}

/// Reads the reply that `input` begins with.
///
/// A bulk that is still arriving costs the same few instructions at each call, however long it
/// is. A line or an aggregate that is still arriving is read from its start at each call, as no
/// state is kept; `limits` bound that.
///
/// ```
/// use redlatch::proto::resp::{Limits, Reply, Step, decode};
///
/// let limits = Limits::default();
/// let whole = Step::Complete { reply: Reply::Simple(b"OK"), consumed: 5 };
/// assert_eq!(decode(b"+OK\r\n:1\r\n", &limits), Ok(whole));
/// assert_eq!(decode(b"+OK\r", &limits), Ok(Step::Partial));
/// assert!(decode(b"HTTP/1.1 400 Bad Request\r\n", &limits).is_err());
/// ```
///
/// # Errors
///
/// The input is not the beginning of a reply, or is the beginning of one past `limits`. The error
/// comes at the first byte which rules a reply out. A double, a big number, a verbatim string and
/// the count of an aggregate that is too deep are checked when they are whole. More input never
/// makes the input valid again.
#[inline]
pub fn decode<'a>(input: &'a [u8], limits: &Limits) -> Result<Step<'a>, Malformed> {
    if let Some(step) = usual_reply(input, limits) {
        return Ok(step);
    }
    read(input, limits)
}

/// The answers to `SET` and to our scripts, which are nearly all that is ever decoded.
///
/// A shortcut: [`read`] gives the same for them, in four times as many instructions.
#[inline]
fn usual_reply<'a>(input: &'a [u8], limits: &Limits) -> Option<Step<'a>> {
    let (reply, consumed) = match input {
        [b':', digit @ b'0'..=b'9', b'\r', b'\n', ..] => {
            (Reply::Integer(i64::from(digit - b'0')), 4)
        }
        [b'+', b'O', b'K', b'\r', b'\n', ..] if limits.line >= 2 => {
            (Reply::Simple(&input[1..3]), 5)
        }
        [b'_', b'\r', b'\n', ..] => (Reply::Null, 3),
        [b'$', b'-', b'1', b'\r', b'\n', ..] => (Reply::Null, 5),
        _ => return None,
    };
    Some(Step::Complete { reply, consumed })
}

/// Reads any reply.
fn read<'a>(input: &'a [u8], limits: &Limits) -> Result<Step<'a>, Malformed> {
    let mut reader = Reader { rest: input, left: *limits };
    match reader.reply() {
        Ok(reply) => Ok(Step::Complete { reply, consumed: input.len() - reader.rest.len() }),
        Err(Stop::Partial) => Ok(Step::Partial),
        Err(Stop::Malformed(why)) => Err(why),
    }
}

#[cfg(test)]
mod tests;
