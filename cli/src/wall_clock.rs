//! The wall clock. It is used only to print times for other programs, never for a decision.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The moment that is `from_now` in the future, in milliseconds since 1970. Rounded down, so that a
/// deadline is reported too early rather than too late.
pub fn unix_ms(from_now: Duration) -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "it is printed for other programs, not used here"
    )]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(now.saturating_add(from_now))
}

/// Whole milliseconds, rounded down.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whole microseconds, rounded down.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
