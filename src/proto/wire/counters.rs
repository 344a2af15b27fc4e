//! Fencing counters on the nodes: where the counter of a key stands, where it starts, and what the
//! scripts that count need. The scripts themselves are in [`sets`](crate::proto::wire::sets).
//!
//! The hazard is a counter that starts below a number that was given before. An absent counter
//! starts from the node's own clock, `TIME` in seconds times 2^20, also where it is only raised. So
//! does a counter below a floor: a command that was in flight when the node forgot its counters may
//! have started it too early.
//! The time is rounded down to a multiple of a step, so that nodes with nearly the same clock start
//! from the same number. A value that no counter can have is an error before anything is written.

use std::iter::Empty;

/// Numbers from this one on are not exact in a script, so no counter may have them.
pub const LIMIT: u64 = 1 << 53;

/// What the scripts need to count.
#[derive(Debug, Clone, Copy)]
pub struct Counting<F> {
    /// How long a counter lives after it was touched, in milliseconds.
    pub lives: u64,
    /// An absent counter starts from a multiple of so many milliseconds.
    pub step: u64,
    /// A counter below this number counts as absent: 1 at least.
    pub floor: u64,
    /// The fencing number of each key, to raise the counters to them; none to count.
    pub fences: F,
}

/// Of a script that touches no counter.
pub const NO_COUNTERS: Option<Counting<Empty<u64>>> = None;

/// The number from which an absent counter starts at this time of the node: Unix microseconds.
pub fn start_at(micros: u128) -> u64 {
    let number = (micros << 20) / 1_000_000;
    u64::try_from(number).unwrap_or(u64::MAX).clamp(1, LIMIT - 2)
}

/// What stands before and after a key to name its counter, for a key in these pieces.
/// `{key}:fence` has the hash slot of the key. A key with a hash tag of its own keeps it:
/// `key:fence` has the same slot.
pub fn affixes(pieces: [&[u8]; 2]) -> (&'static [u8], &'static [u8]) {
    let mut bytes = pieces.into_iter().flatten();
    let opens = bytes.any(|&byte| byte == b'{');
    let has_tag = opens && bytes.position(|&byte| byte == b'}').is_some_and(|length| length > 0);
    if has_tag { (b"", b":fence") } else { (b"{", b"}:fence") }
}

/// The key of the counter, for a key as it is sent.
pub fn counter_key(key: &[u8]) -> Vec<u8> {
    let (before, after) = affixes([key, b""]);
    [before, key, after].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_of_a_key_has_the_hash_slot_of_the_key() {
        let cases: [(&[u8], &[u8]); 7] = [
            (b"job", b"{job}:fence"),
            (b"a{b}c", b"a{b}c:fence"),
            (b"{job}", b"{job}:fence"),
            (b"a{}b", b"{a{}b}:fence"),
            (b"a{b", b"{a{b}:fence"),
            (b"", b"{}:fence"),
            (b"\0\r\n", b"{\0\r\n}:fence"),
        ];
        for (key, counter) in cases {
            assert_eq!(counter_key(key), counter, "{}", key.escape_ascii());
            for middle in 0..=key.len() {
                let (one, other) = key.split_at(middle);
                assert_eq!(affixes([one, other]), affixes([key, b""]), "{}", key.escape_ascii());
            }
        }
    }
}
