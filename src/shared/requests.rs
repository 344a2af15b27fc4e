//! The requests of a shared client's calls, by key.

use std::time::Duration;

use super::call::{Answering, Question, sealed};
use super::guard::SharedGuard;
use super::open::Open;
use crate::net::observe::Verb;
use crate::proto::error::{ConfigError, Error};
use crate::proto::ids::Op;
use crate::proto::inspection::Inspection;
use crate::proto::key_set::KeySet;
use crate::proto::lock;
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::requests::Outcome;
use crate::proto::locks::round::ReleaseOutcome;
use crate::proto::time::Instant;

/// Takes a lock.
#[derive(Debug)]
pub struct Acquire<K> {
    pub(super) key: K,
    pub(super) options: LockOptions,
}

/// Takes up a lock that was given away.
#[derive(Debug)]
pub struct Adopt<K> {
    pub(super) key: K,
    pub(super) token: lock::LockToken,
    pub(super) options: LockOptions,
}

/// Takes a lock over several keys.
#[derive(Debug)]
pub struct AcquireAll {
    pub(super) keys: Result<KeySet, ConfigError>,
    pub(super) options: LockOptions,
}

/// Takes up a lock over several keys that was given away.
#[derive(Debug)]
pub struct AdoptAll {
    pub(super) keys: Result<KeySet, ConfigError>,
    pub(super) token: lock::LockToken,
    pub(super) options: LockOptions,
}

/// Extends a key that holds a token.
#[derive(Debug)]
pub struct ExtendToken<K> {
    pub(super) key: K,
    pub(super) token: lock::LockToken,
    pub(super) ttl: Duration,
}

/// Releases a key that holds a token.
#[derive(Debug)]
pub struct ReleaseToken<K> {
    pub(super) key: K,
    pub(super) token: lock::LockToken,
}

/// Reads what every node holds.
#[derive(Debug)]
pub struct Inspect<K> {
    pub(super) key: K,
}

/// Deletes a key, whichever client holds it.
#[derive(Debug)]
pub struct ForceRelease<K> {
    pub(super) key: K,
}

/// A request with its own copy of the key: how it is made, and which outcome makes which answer.
macro_rules! question {
    ($name:ident -> $answer:ty, $verb:expr,
     |$it:ident, $key:ident, $engine:ident, $data:ident| $ask:expr,
     |$at:ident| $outcome:pat => $value:expr) => {
        impl<K: AsRef<[u8]>> Question for $name<K> {}

        impl<K: AsRef<[u8]>> sealed::Asked for $name<K> {
            const VERB: Option<Verb> = $verb;

            type Answer = $answer;

            fn key(&self) -> &[u8] {
                self.key.as_ref()
            }

            fn ask(&self, $key: &[u8], open: &mut Open<'_>, $data: u64) -> Result<Op, Error> {
                let ($it, $engine) = (self, &mut *open.engine);
                $ask
            }

            fn answer(&self, $at: Answering<'_, '_>, outcome: Outcome) -> $answer {
                match outcome {
                    $outcome => $value,
                    other => unreachable!("it ended as {other:?}"),
                }
            }
        }
    };
}

question!(
    Acquire -> SharedGuard, Some(Verb::Acquire),
    |it, key, engine, data| engine.acquire(key, it.options, data),
    |at| Outcome::Acquired(lock) => SharedGuard::of(at, None, lock)
);
question!(
    Adopt -> SharedGuard, Some(Verb::Adopt),
    |it, key, engine, data| engine.adopt(key, it.token.clone(), it.options, data),
    |at| Outcome::Acquired(lock) => SharedGuard::of(at, None, lock)
);
/// A request for several keys: how it is made.
macro_rules! question_of_set {
    ($name:ident, $verb:expr, |$it:ident, $keys:ident, $engine:ident, $data:ident| $ask:expr) => {
        impl Question for $name {}

        impl sealed::Asked for $name {
            const VERB: Option<Verb> = $verb;

            type Answer = SharedGuard;

            fn key(&self) -> &[u8] {
                self.keys.as_ref().map_or(&[], KeySet::first)
            }

            fn ask(&self, _: &[u8], open: &mut Open<'_>, $data: u64) -> Result<Op, Error> {
                let ($it, $engine) = (self, &mut *open.engine);
                let $keys = self.keys.as_ref().map_err(|error| Error::Config(error.clone()))?;
                $ask
            }

            fn answer(&self, at: Answering<'_, '_>, outcome: Outcome) -> SharedGuard {
                match outcome {
                    Outcome::Acquired(lock) => SharedGuard::of(at, self.keys.as_ref().ok(), lock),
                    other => unreachable!("it ended as {other:?}"),
                }
            }
        }
    };
}

question_of_set!(AcquireAll, Some(Verb::Acquire), |it, keys, engine, data| {
    engine.acquire_all(keys, it.options, data)
});
question_of_set!(AdoptAll, Some(Verb::Adopt), |it, keys, engine, data| {
    engine.adopt_all(keys, it.token.clone(), it.options, data)
});
question!(
    ExtendToken -> Instant, Some(Verb::Extend),
    |it, key, engine, data| engine.extend_token(key, it.token.clone(), it.ttl, data),
    |_at| Outcome::Extended { deadline } => deadline
);
question!(
    ReleaseToken -> ReleaseOutcome, Some(Verb::Release),
    |it, key, engine, data| engine.release_token(key, it.token.clone(), data),
    |_at| Outcome::Released(released) => released
);
question!(
    Inspect -> Inspection, None,
    |_it, key, engine, data| engine.inspect(key, data),
    |_at| Outcome::Inspected(inspection) => *inspection
);
question!(
    ForceRelease -> ReleaseOutcome, Some(Verb::Release),
    |_it, key, engine, data| engine.dangerously_force_release(key, data),
    |_at| Outcome::Released(released) => released
);
