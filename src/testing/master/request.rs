//! Takes requests, which are RESP arrays or inline commands, off the front of a connection's input.
//!
//! This parser accepts exactly what `redis-server` accepts: it skips the two bytes after a bulk
//! unread, and does not find the end of a line that has a NUL. When more bytes of an incomplete
//! request arrive, it parses the request again from its start, so a hostile peer can make it slow.

use bytes::{Buf, BytesMut};

/// The longest line without an end, in bytes. A longer one is refused.
const LINE_MAX: usize = 64 * 1024;
/// The limits for a peer that has not authenticated yet.
const STRANGER_WORDS_MAX: i64 = 10;
const STRANGER_BULK_MAX: i64 = 16 * 1024;
/// `proto-max-bulk-len`.
const BULK_MAX: i64 = 512 * 1024 * 1024;

/// The words of a request. Empty for a blank line or an empty array.
pub(super) type Words = Vec<Vec<u8>>;

/// Takes the next request off `input`, or leaves it untouched if it is not complete yet.
///
/// # Errors
///
/// The text after `Protocol error: `. The connection has to be closed then.
pub(super) fn next(input: &mut BytesMut, authenticated: bool) -> Result<Option<Words>, Vec<u8>> {
    let parsed = match input.first() {
        None => return Ok(None),
        Some(b'*') => array(input, authenticated)?,
        Some(_) => inline(input)?,
    };
    Ok(parsed.map(|(words, length)| {
        input.advance(length);
        words
    }))
}

/// An integer as `redis-server` reads it: no plus, no leading zero, no space.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if plain { std::str::from_utf8(text).ok()?.parse().ok() } else { None }
}

fn array(input: &[u8], authenticated: bool) -> Result<Option<(Words, usize)>, Vec<u8>> {
    let Some((line, mut at)) = line(input, 1, "too big mbulk count string")? else {
        return Ok(None);
    };
    let count = match integer(line) {
        Some(count) if count <= i64::from(i32::MAX) => count,
        _ => return Err("invalid multibulk length".into()),
    };
    if count > STRANGER_WORDS_MAX && !authenticated {
        return Err("unauthenticated multibulk length".into());
    }
    let mut words = Words::new();
    for _ in 0..count {
        let Some((line, start)) = self::line(input, at, "too big bulk count string")? else {
            return Ok(None);
        };
        let Some(digits) = line.strip_prefix(b"$") else {
            let got = line.first().copied().unwrap_or(b'\r');
            return Err([b"expected '$', got '", &[got][..], b"'"].concat());
        };
        let length = match integer(digits) {
            Some(length @ 0..=BULK_MAX) => length,
            _ => return Err("invalid bulk length".into()),
        };
        if length > STRANGER_BULK_MAX && !authenticated {
            return Err("unauthenticated bulk length".into());
        }
        let end = start + usize::try_from(length).expect("it is between 0 and 512 MiB");
        if input.len() < end + 2 {
            return Ok(None);
        }
        words.push(input[start..end].to_vec());
        at = end + 2;
    }
    Ok(Some((words, at)))
}

/// The line that starts at `from`, and where the next one starts.
fn line<'a>(
    input: &'a [u8],
    from: usize,
    too_big: &str,
) -> Result<Option<(&'a [u8], usize)>, Vec<u8>> {
    let rest = &input[from..];
    match rest.iter().position(|byte| matches!(byte, b'\r' | 0)) {
        Some(end) if rest[end] == b'\r' => {
            let whole = rest.len() >= end + 2;
            Ok(whole.then(|| (&rest[..end], from + end + 2)))
        }
        _ if rest.len() > LINE_MAX => Err(too_big.into()),
        _ => Ok(None),
    }
}

fn inline(input: &[u8]) -> Result<Option<(Words, usize)>, Vec<u8>> {
    match input.iter().position(|byte| matches!(byte, b'\n' | 0)) {
        Some(end) if input[end] == b'\n' => {
            let line = &input[..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let words = split(line).ok_or("unbalanced quotes in request")?;
            Ok(Some((words, end + 1)))
        }
        _ if input.len() > LINE_MAX => Err("too big inline request".into()),
        _ => Ok(None),
    }
}

/// Splits an inline command at white space. Inside `"..."` all escapes are known, inside `'...'`
/// only `\'`.
fn split(line: &[u8]) -> Option<Words> {
    let space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
    let mut words = Words::new();
    let mut rest = line;
    loop {
        while rest.first().is_some_and(space) {
            rest = &rest[1..];
        }
        if rest.is_empty() {
            return Some(words);
        }
        let mut word = Vec::new();
        while let Some((&byte, after)) = rest.split_first() {
            match byte {
                b' ' | b'\n' | b'\r' | b'\t' => break,
                b'"' | b'\'' => {
                    rest = quoted(after, byte, &mut word)?;
                    // A closing quote ends its word: only white space may follow it.
                    if rest.first().is_some_and(|byte| !space(byte)) {
                        return None;
                    }
                    break;
                }
                other => {
                    word.push(other);
                    rest = after;
                }
            }
        }
        words.push(word);
    }
}

/// Reads up to the closing `quote`, and returns the text after it.
fn quoted<'a>(mut rest: &'a [u8], quote: u8, word: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        rest = match rest {
            [] => return None,
            [byte, after @ ..] if *byte == quote => return Some(after),
            [b'\\', b'\'', after @ ..] if quote == b'\'' => {
                word.push(b'\'');
                after
            }
            [b'\\', b'x', high, low, after @ ..] if quote == b'"' && hex(*high, *low).is_some() => {
                word.extend(hex(*high, *low));
                after
            }
            [b'\\', byte, after @ ..] if quote == b'"' => {
                word.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                after
            }
            [byte, after @ ..] => {
                word.push(*byte);
                after
            }
        }
    }
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<Words>, Vec<u8>> {
        next(&mut BytesMut::from(bytes), true)
    }

    fn words(words: &[&str]) -> Words {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn every_prefix_of_a_request_is_incomplete() {
        let request = b"*2\r\n$3\r\nGET\r\n$4\r\na\r\nb\r\n";
        for length in 0..request.len() {
            assert_eq!(read(&request[..length]), Ok(None), "{length} bytes");
        }
        assert_eq!(read(request), Ok(Some(words(&["GET", "a\r\nb"]))));
    }

    #[test]
    fn a_request_is_taken_off_and_what_follows_stays() {
        let mut input = BytesMut::from(&b"PING\r\n*1\r\n$4\r\nPINGxx\r\n*0\r\n*-1\r\nrest"[..]);
        let mut seen = Vec::new();
        while let Ok(Some(words)) = next(&mut input, true) {
            seen.push(words.len());
        }
        assert_eq!(seen, [1, 1, 0, 0, 0]);
        assert_eq!(&input[..], b"rest");
    }

    #[test]
    fn quotes_of_inline_commands_are_parsed() {
        assert_eq!(read(b"a \t b\n"), Ok(Some(words(&["a", "b"]))));
        assert_eq!(read(b"a \"b\\x41\\n\" 'c\\''\r\n"), Ok(Some(words(&["a", "bA\n", "c'"]))));
        assert_eq!(read(b"x\"y z\"\n"), Ok(Some(words(&["xy z"]))));
        for broken in [&b"a \"b\n"[..], b"a 'b'c\n", b"'\n"] {
            assert_eq!(read(broken), Err("unbalanced quotes in request".into()));
        }
    }

    #[test]
    fn unauthenticated_client_may_send_only_short_requests() {
        let refused = |bytes: &[u8]| next(&mut BytesMut::from(bytes), false).unwrap_err();
        assert_eq!(refused(b"*11\r\n"), b"unauthenticated multibulk length");
        assert_eq!(refused(b"*1\r\n$16385\r\n"), b"unauthenticated bulk length");
        assert_eq!(read(b"*11\r\n"), Ok(None));
    }

    #[test]
    fn only_canonical_integers_are_parsed() {
        for (text, expected) in
            [("0", Some(0)), ("-1", Some(-1)), ("9223372036854775807", Some(i64::MAX))]
        {
            assert_eq!(integer(text.as_bytes()), expected);
        }
        for text in ["", "-", "-0", "00", "01", "+1", " 1", "1 ", "1.5", "9223372036854775808"] {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
    }
}
