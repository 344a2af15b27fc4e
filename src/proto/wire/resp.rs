//! The decoder of what a node sends: RESP2 and RESP3 replies, borrowed from the input.
//!
//! The decoder knows no socket and no command, keeps nothing between calls, allocates nothing and
//! does not recurse. It reads strictly. Bytes that a node cannot have meant are [`Malformed`], and
//! are never guessed, because a guessed reply would be a guessed vote.
//!
//! The hazard is to go on after `Malformed`: it is not known where the next reply begins. The
//! connection has to be closed, because decoding on from anywhere could take the inside of one
//! reply for another.

use std::fmt;
use std::iter::FusedIterator;

/// The limits on one reply. A reply past any of them is [`Malformed`], and its connection ends.
///
/// Bytes and elements are counted over the whole reply, so that nesting cannot multiply them: one
/// reply makes its reader hold little more than `line` + `bulk` bytes, 1.1 MiB by default.
///
/// ```
/// use redlatch::proto::wire::resp::{Limits, Malformed, decode};
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

/// The elements of an aggregate, all of them read and found well-formed before this exists.
///
/// Two are equal when their bytes on the wire are.
///
/// ```
/// use redlatch::proto::wire::resp::{Limits, Reply, Step, decode};
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
    /// How many there are; of a map, two for each pair.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements from first to last. An element that is an aggregate has its own.
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
    /// The input is the beginning of a reply. Ask again, from its first byte, when more is there.
    Partial,
}

/// Why the input is not a reply that the decoder accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// No kind of reply begins with this byte.
    UnknownType(u8),
    /// An attribute (`|`): the client never asks for anything that has one.
    Attribute,
    /// A string or an aggregate of unknown length (`?`): no node sends one to a client.
    Streamed,
    /// A push inside another reply: pushes come between replies.
    NestedPush,
    /// A CR or a LF in a line of text that is not its CRLF.
    LineEnd,
    /// Something other than CRLF after the bytes of a bulk.
    BulkEnd,
    /// A length that is not plain digits, or a negative one other than `$-1` and `*-1`.
    Length,
    /// An integer that is not an optional sign and digits, or does not fit 64 bits.
    Integer,
    /// A null with something in it.
    Null,
    /// A boolean other than `t` and `f`.
    Boolean,
    /// A double that is not a number.
    Double,
    /// A big number that is not an optional sign and digits.
    BigNumber,
    /// A verbatim string that does not begin with its three-byte format and a colon.
    Verbatim,
    /// Past [`Limits::line`].
    LineTooLong,
    /// Past [`Limits::bulk`].
    BulkTooLong,
    /// Past [`Limits::elements`].
    TooManyElements,
    /// Past [`Limits::depth`].
    TooDeep,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownType(byte) => {
                return write!(f, "no reply begins with '{}'", byte.escape_ascii());
            }
            Self::Attribute => "the reply has an attribute",
            Self::Streamed => "the reply does not tell its length",
            Self::NestedPush => "a push is inside another reply",
            Self::LineEnd => "a line does not end in CRLF",
            Self::BulkEnd => "a bulk is not followed by CRLF",
            Self::Length => "a length is not a number",
            Self::Integer => "an integer is not a 64-bit number",
            Self::Null => "a null is not empty",
            Self::Boolean => "a boolean is neither true nor false",
            Self::Double => "a double is not a number",
            Self::BigNumber => "a big number is not a number",
            Self::Verbatim => "a verbatim string has no format",
            Self::LineTooLong => "the lines of the reply are too long",
            Self::BulkTooLong => "the bulks of the reply are too long",
            Self::TooManyElements => "the reply has too many elements",
            Self::TooDeep => "the reply is nested too deeply",
        })
    }
}

impl std::error::Error for Malformed {}

/// Reads the reply that `input` begins with.
///
/// A bulk that is still arriving costs the same few instructions at each call, however long it
/// is. A line or an aggregate that is still arriving is read from its start at each call, as no
/// state is kept; `limits` bound that.
///
/// ```
/// use redlatch::proto::wire::resp::{Limits, Reply, Step, decode};
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
    if let Some(step) = usual(input, limits) {
        return Ok(step);
    }
    read(input, limits)
}

/// The answers to `SET` and to our scripts, which are nearly all that is ever decoded.
///
/// A shortcut: [`read`] gives the same for them, in four times as many instructions.
#[inline]
fn usual<'a>(input: &'a [u8], limits: &Limits) -> Option<Step<'a>> {
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

const CRLF: &[u8] = b"\r\n";

/// The open aggregates are kept in an array on the stack, so its size is fixed, at twice the
/// default depth.
const MAX_DEPTH: usize = 16;

/// For bytes that have passed the caller's limits already.
const PASSED: Limits =
    Limits { line: usize::MAX, bulk: usize::MAX, elements: usize::MAX, depth: usize::MAX };

/// Why there is no reply to hand out.
enum Stop {
    Partial,
    Malformed(Malformed),
}

impl From<Malformed> for Stop {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

/// A reply up to its head: the whole of a scalar.
enum Head<'a> {
    Scalar(Reply<'a>),
    /// What makes a reply of the elements, and how many of them follow.
    Aggregate(fn(Elements<'a>) -> Reply<'a>, usize),
}

/// Reads one reply. If it stops, what it has taken until then is of no use.
struct Reader<'a> {
    rest: &'a [u8],
    /// What is left of the limits for the reply.
    left: Limits,
}

impl<'a> Reader<'a> {
    #[inline]
    fn reply(&mut self) -> Result<Reply<'a>, Stop> {
        match self.head()? {
            Head::Scalar(reply) => Ok(reply),
            Head::Aggregate(wrap, len) => Ok(wrap(self.elements(len)?)),
        }
    }

    /// The `len` elements of an aggregate, and theirs.
    fn elements(&mut self, len: usize) -> Result<Elements<'a>, Stop> {
        let first = self.rest;
        let limit = self.left.depth.min(MAX_DEPTH);
        if limit == 0 {
            return Err(Malformed::TooDeep.into());
        }
        // How many elements each open aggregate still lacks, the innermost last.
        let mut lacking = [0; MAX_DEPTH];
        lacking[0] = len;
        let mut depth = 1;
        while depth > 0 {
            let innermost = &mut lacking[depth - 1];
            if *innermost == 0 {
                depth -= 1;
                continue;
            }
            *innermost -= 1;
            if self.rest.first() == Some(&b'>') {
                return Err(Malformed::NestedPush.into());
            }
            if let Head::Aggregate(_, len) = self.head()? {
                if depth == limit {
                    return Err(Malformed::TooDeep.into());
                }
                lacking[depth] = len;
                depth += 1;
            }
        }
        Ok(Elements { bytes: &first[..first.len() - self.rest.len()], len })
    }

    /// A scalar, or an aggregate up to its first element.
    #[inline]
    fn head(&mut self) -> Result<Head<'a>, Stop> {
        let (kind, rest) = self.rest.split_first().ok_or(Stop::Partial)?;
        self.rest = rest;
        let negative = rest.first() == Some(&b'-');
        Ok(Head::Scalar(match kind {
            b'+' => Reply::Simple(self.line()?),
            b'-' => Reply::Error(self.line()?),
            b':' => Reply::Integer(self.integer()?),
            // The two nulls of RESP2 are the only negative lengths.
            b'$' | b'*' if negative => {
                self.literal(b"-1\r\n", Malformed::Length)?;
                Reply::Null
            }
            b'$' => Reply::Bulk(self.bulk()?),
            b'!' => Reply::Error(self.bulk()?),
            b'=' => Reply::Bulk(self.verbatim()?),
            b'_' => {
                self.literal(CRLF, Malformed::Null)?;
                Reply::Null
            }
            b'#' => Reply::Boolean(self.boolean()?),
            b',' => Reply::Double(self.double()?),
            b'(' => Reply::BigNumber(self.big_number()?),
            b'*' => return self.aggregate(1, Reply::Array),
            b'~' => return self.aggregate(1, Reply::Set),
            b'%' => return self.aggregate(2, Reply::Map),
            b'>' => return self.aggregate(1, Reply::Push),
            b'|' => return Err(Malformed::Attribute.into()),
            other => return Err(Malformed::UnknownType(*other).into()),
        }))
    }

    /// The count of an aggregate in which each counted thing is `each` elements.
    fn aggregate(
        &mut self,
        each: usize,
        wrap: fn(Elements<'a>) -> Reply<'a>,
    ) -> Result<Head<'a>, Stop> {
        let max = self.left.elements / each;
        let len = self.length(max, Malformed::TooManyElements)? * each;
        self.left.elements -= len;
        Ok(Head::Aggregate(wrap, len))
    }

    /// A length, then as many bytes, then CRLF.
    fn bulk(&mut self) -> Result<&'a [u8], Stop> {
        let len = self.length(self.left.bulk, Malformed::BulkTooLong)?;
        let (bytes, end) = self.rest.split_at_checked(len).ok_or(Stop::Partial)?;
        self.left.bulk -= len;
        self.rest = end;
        self.literal(CRLF, Malformed::BulkEnd)?;
        Ok(bytes)
    }

    /// A bulk without the format at its start, which only matters to a display.
    fn verbatim(&mut self) -> Result<&'a [u8], Stop> {
        match self.bulk()? {
            [_, _, _, b':', text @ ..] => Ok(text),
            _ => Err(Malformed::Verbatim.into()),
        }
    }

    /// A line of text up to its CRLF.
    #[inline]
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        // One byte more than the line may have: the byte after its last may be the CR.
        let within = &self.rest[..self.rest.len().min(self.left.line.saturating_add(1))];
        let Some(len) = within.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
            let fits = within.len() <= self.left.line;
            return Err(if fits { Stop::Partial } else { Malformed::LineTooLong.into() });
        };
        self.left.line -= len;
        let (text, end) = self.rest.split_at(len);
        self.rest = end;
        self.literal(CRLF, Malformed::LineEnd)?;
        Ok(text)
    }

    /// A whole number, which may have a sign.
    ///
    /// The description of the protocol allows a plus and leading zeros. The decoder takes the plus,
    /// but neither leading zeros nor a zero with a sign: every known node writes the shortest form,
    /// and other bytes here are more likely damage than a number.
    #[inline]
    fn integer(&mut self) -> Result<i64, Stop> {
        let (negative, digits) = match self.rest {
            [b'+' | b'-', b'0', ..] => return Err(Malformed::Integer.into()),
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] => (false, digits),
            digits => (false, digits),
        };
        self.rest = digits;
        let max = if negative { i64::MIN.unsigned_abs() } else { i64::MAX.unsigned_abs() };
        let size = self.decimal(max, Malformed::Integer, Malformed::Integer)?;
        // At most `max`, so nothing is lost: the size of i64::MIN, as an i64, is i64::MIN itself.
        Ok(if negative { (size as i64).wrapping_neg() } else { size as i64 })
    }

    /// A length of at most `max`; stops as `over` past it.
    fn length(&mut self, max: usize, over: Malformed) -> Result<usize, Stop> {
        if self.rest.first() == Some(&b'?') {
            return Err(Malformed::Streamed.into());
        }
        // What is not above a `usize` is one.
        Ok(self.decimal(max as u64, Malformed::Length, over)? as usize)
    }

    /// Digits without leading zeros, then CRLF; stops as `over` as soon as they are past `max`.
    #[inline]
    fn decimal(&mut self, max: u64, wrong: Malformed, over: Malformed) -> Result<u64, Stop> {
        let mut value: u64 = 0;
        for (at, byte) in self.rest.iter().enumerate() {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                if at == 0 {
                    return Err(wrong.into());
                }
                self.rest = &self.rest[at..];
                self.literal(CRLF, wrong)?;
                return Ok(value);
            }
            if at > 0 && value == 0 {
                return Err(wrong.into());
            }
            let next = value.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit)));
            value = next.filter(|value| *value <= max).ok_or(over)?;
        }
        Err(Stop::Partial)
    }

    fn boolean(&mut self) -> Result<bool, Stop> {
        let (kind, rest) = self.rest.split_first().ok_or(Stop::Partial)?;
        self.rest = rest;
        let value = match kind {
            b't' => true,
            b'f' => false,
            _ => return Err(Malformed::Boolean.into()),
        };
        self.literal(CRLF, Malformed::Boolean)?;
        Ok(value)
    }

    /// A line that `f64` can parse: a little more than the protocol allows, and `-nan`, which
    /// nodes before 7.2 wrote.
    fn double(&mut self) -> Result<&'a [u8], Stop> {
        let text = self.line()?;
        let number = std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok());
        if number { Ok(text) } else { Err(Malformed::Double.into()) }
    }

    /// A line of the same form as an integer, but of any size.
    fn big_number(&mut self) -> Result<&'a [u8], Stop> {
        let text = self.line()?;
        let number = match text {
            b"0" => true,
            [b'+' | b'-', b'1'..=b'9', digits @ ..] | [b'1'..=b'9', digits @ ..] => {
                digits.iter().all(u8::is_ascii_digit)
            }
            _ => false,
        };
        if number { Ok(text) } else { Err(Malformed::BigNumber.into()) }
    }

    /// Takes `expected`, or stops as `wrong` at the first byte that differs.
    #[inline]
    fn literal(&mut self, expected: &[u8], wrong: Malformed) -> Result<(), Stop> {
        if let Some(rest) = self.rest.strip_prefix(expected) {
            self.rest = rest;
            return Ok(());
        }
        Err(if expected.starts_with(self.rest) { Stop::Partial } else { wrong.into() })
    }
}

#[cfg(test)]
mod tests;
