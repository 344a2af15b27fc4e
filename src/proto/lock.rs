//! The handle of a lock, and the token that proves it.
//!
//! The hazard is a handle that outlives its record. Places of records are used again, so a handle
//! carries the generation of its record, and the token, which no other lock has. An old handle
//! finds nothing.

use std::fmt;

use rand::{CryptoRng, Rng};

use crate::proto::ids::RecordId;

/// Random bytes in a token: 160 bits, as the Redlock page asks for.
pub const TOKEN_BYTES: usize = 20;

/// A token as it is sent: two hex digits for each byte, so that an operator can read it.
pub const TOKEN_DIGITS: usize = 2 * TOKEN_BYTES;

/// The value of a key while the client holds the lock. A new one is drawn for every attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockToken {
    digits: [u8; TOKEN_DIGITS],
}

impl LockToken {
    /// Draws a token.
    pub fn draw<R: Rng + CryptoRng>(rng: &mut R) -> LockToken {
        let mut bytes = [0; TOKEN_BYTES];
        rng.fill_bytes(&mut bytes);
        let mut digits = [0; TOKEN_DIGITS];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        LockToken { digits }
    }

    /// The token that `text` spells, if it spells one.
    pub fn parse(text: &str) -> Option<LockToken> {
        let digits: [u8; TOKEN_DIGITS] = text.as_bytes().try_into().ok()?;
        digits.iter().all(|d| HEX.contains(d)).then_some(LockToken { digits })
    }

    /// The hex digits, as they are sent.
    pub const fn as_bytes(&self) -> &[u8; TOKEN_DIGITS] {
        &self.digits
    }
}

const HEX: &[u8; 16] = b"0123456789abcdef";

impl fmt::Display for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digits.iter().try_for_each(|&digit| write!(f, "{}", char::from(digit)))
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockToken({self})")
    }
}

/// A lock that was handed out: a handle into the coordinator that gave it.
///
/// The handle is not `Clone`, and dropping it does nothing. A handle that is forgotten frees its
/// record at the deadline of the lock.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lock that is not released stays until its ttl is over"]
pub struct Lock {
    pub(crate) record: RecordId,
    pub(crate) token: LockToken,
}

impl Lock {
    /// What the key holds on the nodes that granted it.
    pub fn token(&self) -> LockToken {
        self.token
    }

    /// Another handle of the same lock, to read its state while the first handle is elsewhere.
    /// The first of them that is released releases the lock; then the other finds no lock.
    pub fn alias(&self) -> Lock {
        Lock { record: self.record, token: self.token }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn a_token_is_forty_hex_digits_and_reads_back() {
        let mut rng = StdRng::from_seed([7; 32]);
        let token = LockToken::draw(&mut rng);
        let text = token.to_string();
        assert_eq!(text.len(), 40);
        assert_eq!(LockToken::parse(&text), Some(token));
        assert_ne!(LockToken::draw(&mut rng), token);
    }

    #[test]
    fn what_is_not_a_token_is_not_read_as_one() {
        for text in ["", "abc", &"g".repeat(40), &"A".repeat(40), &"0".repeat(41)] {
            assert_eq!(LockToken::parse(text), None, "{text}");
        }
    }
}
