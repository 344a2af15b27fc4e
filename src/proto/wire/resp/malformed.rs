//! Why bytes are not a reply.

use std::fmt;

/// Why the input is not a reply that the decoder accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
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
    /// Past [`Limits::line`](super::Limits::line).
    LineTooLong,
    /// Past [`Limits::bulk`](super::Limits::bulk).
    BulkTooLong,
    /// Past [`Limits::elements`](super::Limits::elements).
    TooManyElements,
    /// Past [`Limits::depth`](super::Limits::depth).
    TooDeep,
}

/// The first byte of a TLS alert, by which a port for TLS answers plain text.
const TLS_ALERT: u8 = 0x15;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownType(TLS_ALERT) => "it is in TLS: use rediss://",
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
