//! With the feature `tracing`, reports requests, locks and nodes to `tracing`. Without it,
//! everything here is empty.
//!
//! The hazard is the subscriber, which is code of the user: it must never run while a shared client
//! holds its mutex. So the shared client reports only after it has unlocked the mutex.

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

/// The kinds of requests that have a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// An acquire, with all its attempts and waits.
    Acquire,
    /// Taking over a lock by its token.
    Adopt,
    /// An extend that the caller requested, and no renewal.
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

/// A result, which has a word for the field `outcome` of its span.
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
