//! Reads one reply of any kind. It does not recurse, so that no input can exhaust the stack.

use super::{Elements, Limits, Malformed, Reply};

const CRLF: &[u8] = b"\r\n";

/// The open aggregates are kept in an array on the stack, so its size is fixed, at twice the
/// default depth.
const MAX_DEPTH: usize = 16;

/// For bytes that have passed the caller's limits already.
pub(super) const PASSED: Limits =
    Limits { line: usize::MAX, bulk: usize::MAX, elements: usize::MAX, depth: usize::MAX };

/// Why there is no reply to hand out.
pub(super) enum Stop {
    Partial,
    Malformed(Malformed),
}

impl From<Malformed> for Stop {
    fn from(why: Malformed) -> Self {
        Self::Malformed(why)
    }
}

/// The first part of a reply: all of a scalar, or the head of an aggregate.
enum Head<'a> {
    Scalar(Reply<'a>),
    /// What makes a reply of the elements, and how many of them follow.
    Aggregate(fn(Elements<'a>) -> Reply<'a>, usize),
}

/// Reads one reply. After a [`Stop`] the caller has to begin again from the first byte.
pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
    /// What is left of the limits for the reply.
    pub(super) left: Limits,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(super) fn reply(&mut self) -> Result<Reply<'a>, Stop> {
        match self.head()? {
            Head::Scalar(reply) => Ok(reply),
            Head::Aggregate(wrap, len) => Ok(wrap(self.elements(len)?)),
        }
    }

    /// Reads the `len` elements of an aggregate, and all elements inside them.
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

    /// Reads the count of an aggregate; each thing that it counts has `each` elements.
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

    /// Reads a length of at most `max`; a larger one is `over`.
    fn length(&mut self, max: usize, over: Malformed) -> Result<usize, Stop> {
        if self.rest.first() == Some(&b'?') {
            return Err(Malformed::Streamed.into());
        }
        // `max` is a `usize`, so the number fits into one.
        Ok(self.decimal(max as u64, Malformed::Length, over)? as usize)
    }

    /// Reads digits without leading zeros, then CRLF. The number is `over` as soon as it is above
    /// `max`.
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

    /// Takes `expected`; the first byte that differs is `wrong`.
    #[inline]
    fn literal(&mut self, expected: &[u8], wrong: Malformed) -> Result<(), Stop> {
        if let Some(rest) = self.rest.strip_prefix(expected) {
            self.rest = rest;
            return Ok(());
        }
        Err(if expected.starts_with(self.rest) { Stop::Partial } else { wrong.into() })
    }
}
