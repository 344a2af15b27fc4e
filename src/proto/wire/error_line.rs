//! What is kept of an error line for reports.
//!
//! The hazard is a secret in it: a node or a proxy may repeat what was sent to it.

use crate::proto::settings::Secret;
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::handshake::Step;

/// How much of an error line is kept for reports.
pub(super) const ERROR_BYTES: usize = 160;

/// The longest code of an error: `NOREPLICAS`, `MASTERDOWN`, `CLUSTERDOWN`.
const LONGEST_CODE: usize = 16;

/// What may be kept of an error line.
///
/// A node repeats an unknown command with as many of its arguments as it likes, and with spaces for
/// the ends of lines. So the text of an error that answers the credentials is always dropped. Of
/// any other error that repeats the secret only the code is kept.
pub(super) fn storable_part<'a>(
    line: &'a [u8],
    ask: Option<Ask>,
    secret: Option<&Secret>,
) -> &'a [u8] {
    let secret = secret.map_or(&[][..], |secret| secret.reveal().as_bytes());
    let is_same = |(&theirs, &ours): (&u8, &u8)| {
        theirs == ours || (theirs == b' ' && matches!(ours, b'\r' | b'\n'))
    };
    let repeats = |line: &[u8]| {
        let mut parts = line.windows(secret.len().max(1));
        !secret.is_empty() && parts.any(|part| part.iter().zip(secret).all(is_same))
    };
    let has_credentials =
        matches!(ask, Some(Ask::Node(NodeAsk::Handshake(Step::Hello | Step::Auth))));
    if has_credentials || repeats(line) { code(line) } else { &line[..line.len().min(ERROR_BYTES)] }
}

/// A part of an error line as text of one line. Quotes stay: servers put them around names.
pub(super) fn printable(part: &[u8]) -> impl Iterator<Item = char> {
    part.iter().flat_map(|&byte| {
        // Without the backslash of an escaped quote.
        let skipped = usize::from(matches!(byte, b'\'' | b'"'));
        byte.escape_ascii().skip(skipped).map(char::from)
    })
}

/// The code that an error line begins with: one short word of capitals. Empty if the line begins
/// otherwise.
fn code(line: &[u8]) -> &[u8] {
    let end = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
    let word = &line[..end];
    let is_code = end <= LONGEST_CODE && word.iter().all(u8::is_ascii_uppercase);
    if is_code { word } else { &[] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept<'a>(line: &'a str, secret: &str) -> &'a str {
        let secret = Secret::new(secret);
        let kept = storable_part(line.as_bytes(), None, Some(&secret));
        std::str::from_utf8(kept).expect("a part of a text")
    }

    #[test]
    fn control_characters_of_an_error_are_escaped_and_its_quotes_are_not() {
        let line = b"NOPERM 'eval' \"a\" \\ \r\n\x1b\xff";
        let text: String = printable(line).collect();
        assert_eq!(text, "NOPERM 'eval' \"a\" \\\\ \\r\\n\\x1b\\xff");
    }

    #[test]
    fn text_of_an_error_is_dropped_only_if_it_repeats_the_secret() {
        let line = "ERR unknown command 'a b'";
        for secret in ["b", "a b", "a\nb", "a\rb", "unknown"] {
            assert_eq!(kept(line, secret), "ERR", "{secret:?}");
        }
        for secret in ["x", "unknowm", "aab", "a\tb", ""] {
            assert_eq!(kept(line, secret), line, "{secret:?}");
        }
    }
}
