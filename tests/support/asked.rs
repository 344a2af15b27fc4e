//! What the environment of a test run asks for: more seeds, a longer run.
//!
//! The hazard is a number with a typing error, which must not pass as "as usual": it is a panic.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::ops::Range;
use std::str::FromStr;

/// The number in this environment variable; `None` if it is not set.
#[track_caller]
pub fn number<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: not a number; set a number")))
}

/// `TEST_SEEDS` seeds from `TEST_FROM` on; if these are not set, `usual` seeds from `first` on.
#[track_caller]
pub fn seeds(test: &str, first: u64, usual: u64) -> Range<u64> {
    let first = number(&format!("{test}_FROM")).unwrap_or(first);
    first..first + number(&format!("{test}_SEEDS")).unwrap_or(usual)
}
