//! Fencing counters on the nodes: where they start, and what the scripts that count need.
//! The scripts themselves are in [`sets`](crate::proto::wire::sets).
//!
//! The hazard is a counter that starts below a number that was given before. An absent counter
//! starts from the node's own clock, `TIME` in seconds times 2^20, even if the script only raises
//! it. So does a counter below a floor, because a command that was in flight when the node forgot
//! its counters may have started that counter too early. The time is rounded down to a multiple of
//! a step, so that nodes with nearly the same clock start from the same number. A value that no
//! counter can have is an error before anything is written.

use std::iter::Empty;

/// Numbers from this one on are not exact in a script, so no counter may have them.
pub const LIMIT: u64 = 1 << 53;

/// No counter counts below this number, the start of one in January 1970: `INCR` starts an absent
/// counter from 0, and never comes near it.
pub const LEAST: u64 = 1 << 40;

/// What the scripts need to count.
#[derive(Debug, Clone, Copy)]
pub struct Counting<F> {
    /// How long a counter lives after it was touched, in milliseconds.
    pub lives: u64,
    /// An absent counter starts from a multiple of this many milliseconds.
    pub step: u64,
    /// A counter below this number counts as absent: [`LEAST`] at least.
    pub floor: u64,
    /// The fencing number of each key, to which its counter is raised; empty if the script counts.
    pub fences: F,
}

/// For a script that touches no counter.
pub const NO_COUNTERS: Option<Counting<Empty<u64>>> = None;

/// The number from which an absent counter starts at this time of the node: Unix microseconds.
pub fn start_at(micros: u128) -> u64 {
    let number = (micros << 20) / 1_000_000;
    u64::try_from(number).unwrap_or(u64::MAX).clamp(1, LIMIT - 2)
}
