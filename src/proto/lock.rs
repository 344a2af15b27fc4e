//! The handle of a lock, and the token that proves it.
//!
//! The hazard is a handle that outlives its record. Places of records are used again, so a handle
//! carries the generation of its record, and the token, which no other lock has. An old handle
//! finds nothing.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::Arc;

use rand::{CryptoRng, Rng};

use crate::proto::ids::RecordId;

/// Bytes in a token: 160 bits, as the Redlock page asks for. All bits are random but the first,
/// which says whether the holder hands the key over.
pub const TOKEN_BYTES: usize = 20;

/// A token as it is sent: two hex digits for each byte, so that an operator can read it.
pub const TOKEN_DIGITS: usize = 2 * TOKEN_BYTES;

/// The most bytes of an owner: enough for a long host name, a process number and the name of a job.
pub const LONGEST_OWNER: usize = 100;

/// The most bytes of a token as it is sent: the digits, a colon and the owner.
pub const LONGEST_TOKEN: usize = TOKEN_DIGITS + 1 + LONGEST_OWNER;

/// The value of a key while the client holds the lock. A new one is drawn for every attempt.
///
/// As text, and on the nodes, a token is 40 hex digits. If its client has an
/// [owner](crate::proto::Settings::owner), a colon and the owner follow. Tokens are
/// always compared whole: the digits make a token unique, and the owner is for people.
///
/// All tokens of a client share one copy of the owner, so that drawing and cloning a token
/// allocate nothing.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LockToken {
    digits: [u8; TOKEN_DIGITS],
    owner: Option<Arc<str>>,
}

impl LockToken {
    /// Draws a token without an owner, whose holder deletes the key when it releases it.
    pub fn random<R: Rng + CryptoRng>(rng: &mut R) -> LockToken {
        LockToken::draw(rng, false)
    }

    /// Draws a token without an owner, whose holder hands the key over, or does not.
    #[inline]
    pub(crate) fn draw<R: Rng + CryptoRng>(rng: &mut R, hands_over: bool) -> LockToken {
        let mut bytes = [0; TOKEN_BYTES];
        rng.fill_bytes(&mut bytes);
        bytes[0] = (bytes[0] & !HANDS_OVER) | (u8::from(hands_over) * HANDS_OVER);
        let mut digits = [0; TOKEN_DIGITS];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            pair.copy_from_slice(&HEX_PAIRS[usize::from(byte)]);
        }
        LockToken { digits, owner: None }
    }

    /// Whether the holder hands the key over to the next one in line when it releases it. It does
    /// if the first digit is 8 to f, so every client that sees the token knows.
    #[inline]
    pub fn hands_over(&self) -> bool {
        self.digits[0] >= b'8'
    }

    /// As [`hands_over`](LockToken::hands_over), for the value of a key. `false` for a value that
    /// is no token: another program wrote it, and does not hand the key over.
    pub fn value_hands_over(value: &[u8]) -> bool {
        let (digits, rest) = value.split_at(value.len().min(TOKEN_DIGITS));
        let is_token = digits.len() == TOKEN_DIGITS && digits.iter().all(|d| HEX.contains(d));
        is_token && digits[0] >= b'8' && rest.first().is_none_or(|&byte| byte == b':')
    }

    /// The token with this owner, which must be a good one ([`check_owner`]).
    #[must_use]
    pub fn with_owner(self, owner: Option<&Arc<str>>) -> LockToken {
        LockToken { owner: owner.cloned(), ..self }
    }

    /// The token that `text` spells: as [`FromStr`], but `None` instead of an error.
    pub fn parse(text: &str) -> Option<LockToken> {
        let (digits, owner) = match text.split_once(':') {
            Some((digits, owner)) => (digits, Some(owner)),
            None => (text, None),
        };
        let digits: [u8; TOKEN_DIGITS] = digits.as_bytes().try_into().ok()?;
        let is_good = |owner: &str| !owner.is_empty() && check_owner(owner).is_ok();
        let good = digits.iter().all(|d| HEX.contains(d)) && owner.is_none_or(is_good);
        good.then(|| LockToken { digits, owner: owner.map(Arc::from) })
    }

    /// The 40 hex digits, which make the token unique.
    pub const fn digits(&self) -> &[u8; TOKEN_DIGITS] {
        &self.digits
    }

    /// The owner that the token names: the text by which people know the client that drew it.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// How many bytes the token has as it is sent.
    pub(crate) fn length(&self) -> usize {
        TOKEN_DIGITS + self.owner.as_ref().map_or(0, |owner| 1 + owner.len())
    }

    /// The token as it is sent, written at the beginning of `buffer`.
    pub fn write_to<'a>(&self, buffer: &'a mut [u8; LONGEST_TOKEN]) -> &'a [u8] {
        buffer[..TOKEN_DIGITS].copy_from_slice(&self.digits);
        if let Some(owner) = &self.owner {
            buffer[TOKEN_DIGITS] = b':';
            buffer[TOKEN_DIGITS + 1..self.length()].copy_from_slice(owner.as_bytes());
        }
        &buffer[..self.length()]
    }
}

/// Checks whether tokens can name this owner: printable ASCII without spaces, so that a token is
/// one word in a shell and in a log, and of [`LONGEST_OWNER`] bytes at most.
///
/// # Errors
/// What is wrong with it.
pub fn check_owner(owner: &str) -> Result<(), &'static str> {
    if owner.len() > LONGEST_OWNER {
        return Err("it has more than 100 bytes; give a shorter one");
    }
    if !owner.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("it must be printable ASCII without spaces");
    }
    Ok(())
}

/// The bit of the first byte that says whether the holder hands the key over.
const HANDS_OVER: u8 = 0x80;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The two digits of each byte. A table is fast, and every attempt draws a token.
static HEX_PAIRS: [[u8; 2]; 256] = {
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [HEX[byte >> 4], HEX[byte & 15]];
        byte += 1;
    }
    pairs
};

/// A text that spells no token. `Debug` is the same as `Display`, so that a `main` that returns it
/// prints its sentence.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InvalidToken;

impl fmt::Debug for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for InvalidToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "no token: a token is 40 hex digits (0-9, a-f), which `:` and an owner may follow",
        )
    }
}

impl std::error::Error for InvalidToken {}

impl FromStr for LockToken {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<LockToken, InvalidToken> {
        LockToken::parse(text).ok_or(InvalidToken)
    }
}

/// The token as it is sent: [`FromStr`] reads it back.
impl fmt::Display for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits).expect("hex digits are ASCII"))?;
        self.owner.iter().try_for_each(|owner| write!(f, ":{owner}"))
    }
}

impl fmt::Debug for LockToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockToken({self})")
    }
}

/// A lock that was handed out: a handle into the coordinator that gave it.
///
/// The handle is not `Clone`, and dropping it does nothing. The record of a lock that is not
/// released is freed at the lock's deadline.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a lock that is not released stays until its ttl is over"]
pub struct Lock {
    pub(crate) record: RecordId,
    pub(crate) token: LockToken,
    pub(crate) fence: Fence,
}

/// The fencing numbers of a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fence {
    /// The lock was acquired without a fencing number.
    None,
    /// The number of its key.
    Of(NonZeroU64),
    /// The number of each of its keys, in the order of their bytes.
    OfEach(Box<[u64]>),
}

impl Lock {
    /// What the key holds on the nodes that granted it.
    pub fn token(&self) -> LockToken {
        self.token.clone()
    }

    /// The fencing number, if the lock was acquired with one. It is greater than that of every lock
    /// on this key that was held before, so a store that keeps the greatest number it has seen can
    /// refuse a write that comes with a smaller one. It stays the same when the lock is extended,
    /// and after the lock is over. `None` for a lock over several keys: each key has a number of
    /// its own, and they are in [`fences`](Lock::fences).
    pub fn fence(&self) -> Option<u64> {
        match self.fence {
            Fence::Of(fence) => Some(fence.get()),
            Fence::None | Fence::OfEach(_) => None,
        }
    }

    /// The fencing number of each key, in the order of the bytes of the keys; empty if the lock was
    /// acquired without them. Of a lock on one key, its [`fence`](Lock::fence).
    pub fn fences(&self) -> impl ExactSizeIterator<Item = u64> {
        let each = match &self.fence {
            Fence::OfEach(fences) => &fences[..],
            Fence::None | Fence::Of(_) => &[],
        };
        let one = self.fence();
        (0..each.len() + usize::from(one.is_some()))
            .map(move |key| one.unwrap_or_else(|| each[key]))
    }

    /// Another handle of the same lock, to read its state while the first handle is elsewhere.
    /// The first of them that is released releases the lock; then the other finds no lock.
    pub fn alias(&self) -> Lock {
        Lock { record: self.record, token: self.token(), fence: self.fence.clone() }
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
        let token = LockToken::random(&mut rng);
        let text = token.to_string();
        assert_eq!((text.len(), token.owner()), (40, None));
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_ne!(LockToken::random(&mut rng), token);
    }

    #[test]
    fn token_with_an_owner_reads_back_whole() {
        let mut rng = StdRng::from_seed([7; 32]);
        for owner in ["h", "web-1:4711/nightly", r#"\"a'b"#, &"x".repeat(LONGEST_OWNER)] {
            let token = LockToken::random(&mut rng).with_owner(Some(&Arc::from(owner)));
            let text = token.to_string();
            assert_eq!(text.len(), token.length());
            assert_eq!(&text[40..], format!(":{owner}"));
            let read: LockToken = text.parse().unwrap();
            assert_eq!((read.owner(), &read), (Some(owner), &token));
            // The digits alone are another token.
            assert_ne!(text[..40].parse(), Ok(token));
        }
    }

    #[test]
    fn token_text_of_another_form_is_refused() {
        let (digits, long) = ("0".repeat(40), "x".repeat(LONGEST_OWNER + 1));
        let owned = |owner: &str| format!("{digits}:{owner}");
        for text in ["", "abc", &"g".repeat(40), &"A".repeat(40), &"0".repeat(41)] {
            assert_eq!(LockToken::parse(text), None, "{text}");
        }
        for text in [owned(""), owned("a b"), owned("a\n"), owned("\u{e4}"), owned(&long)] {
            assert_eq!(text.parse::<LockToken>(), Err(InvalidToken), "{text}");
        }
    }
}
