//! What is reported to `tracing` of requests, locks and nodes, with the feature `tracing`. Without
//! it, everything here is empty.
//!
//! The hazard is a subscriber: it is code of the user's, so it never runs under the lock of a
//! shared client. There, reports wait until the lock is released.

#[cfg(not(feature = "tracing"))]
mod nothing;
#[cfg(feature = "tracing")]
mod spans;

#[cfg(not(feature = "tracing"))]
pub use nothing::{Observer, Watch};
#[cfg(feature = "tracing")]
pub use spans::{Observer, Watch};

use crate::proto::error::{Error, Report};
use crate::proto::inspection::Inspection;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::time::Instant;

/// A request that has a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// An acquire, with all its attempts and waits.
    Acquire,
    /// A lock is taken up by its token.
    Adopt,
    /// An extend that a caller asked for.
    Extend,
    /// A release.
    Release,
}

/// Which interface an engine belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interface {
    /// The program calls the engine itself: its requests have spans.
    Engine,
    /// The blocking client, whose calls have spans.
    Client,
    /// The shared client, whose calls have spans. Its engine reports nothing by itself.
    Shared,
}

/// A result with a word for its span.
pub trait Ended {
    /// The word.
    fn word(&self) -> &'static str;
}

impl Ended for ReleaseOutcome {
    fn word(&self) -> &'static str {
        match self {
            ReleaseOutcome::Released => "released",
            ReleaseOutcome::AlreadyExpired => "already_expired",
            ReleaseOutcome::TakenByOther => "taken_by_other",
            ReleaseOutcome::Unconfirmed { .. } => "unconfirmed",
        }
    }
}

impl Ended for Outcome {
    fn word(&self) -> &'static str {
        match self {
            Outcome::Acquired(_) => "acquired",
            Outcome::Extended { .. } => "extended",
            Outcome::Released(released) => released.word(),
            _ => "ended",
        }
    }
}

impl Ended for () {
    fn word(&self) -> &'static str {
        "extended"
    }
}

impl Ended for Instant {
    fn word(&self) -> &'static str {
        "extended"
    }
}

impl Ended for Inspection {
    fn word(&self) -> &'static str {
        "inspected"
    }
}

impl Ended for Report {
    fn word(&self) -> &'static str {
        "vouched"
    }
}

/// Runs a call that blocks, under a span.
pub fn call<T: Ended>(
    verb: Verb,
    key: &[u8],
    act: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    let watch = Watch::begin(verb, key);
    let result = act();
    watch.end(&result);
    result
}
