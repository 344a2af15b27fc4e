//! The requests of a shared client's calls, by their keys.

use std::time::Duration;

use super::call::{Answering, Question, sealed};
use super::guard::SharedGuard;
use super::open::Open;
use crate::net::observe::Verb;
use crate::proto::error::{ConfigError, Error, Report};
use crate::proto::ids::Op;
use crate::proto::inspection::Inspection;
use crate::proto::key_set::KeySet;
use crate::proto::keys::{Keys, KeysRef, NamedKeys};
use crate::proto::lock;
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::round::state::ReleaseOutcome;
use crate::proto::time::Instant;

/// The keys of a call, which the call keeps. One key stays in the caller's type, so that nothing is
/// allocated for it.
#[derive(Debug)]
pub(super) struct Kept<K> {
    keys: K,
    /// All keys if there are several, or the error if they are refused; `None` for one key.
    several: Option<Result<KeySet, ConfigError>>,
}

impl<K: Keys> Kept<K> {
    pub(super) fn new(keys: K) -> Kept<K> {
        let several = match keys.named() {
            Ok(NamedKeys::One(_)) => None,
            Ok(NamedKeys::Several(keys)) => Some(Ok(keys.into_owned())),
            Err(error) => Some(Err(error)),
        };
        Kept { keys, several }
    }

    fn get(&self) -> Result<KeysRef<'_>, Error> {
        match &self.several {
            Some(Ok(keys)) => Ok(KeysRef::Several(keys)),
            Some(Err(error)) => Err(error.clone().into()),
            None => match self.keys.named()? {
                NamedKeys::One(key) => Ok(KeysRef::One(key)),
                NamedKeys::Several(_) => unreachable!("the keys of a call stay the same"),
            },
        }
    }

    /// The first key in the order of the bytes; empty if the keys are refused.
    fn first(&self) -> &[u8] {
        self.get().map_or(&[], KeysRef::first)
    }

    /// The first key, and all of them if there are several. The answer of a call needs them while
    /// the client's mutex is locked. No code of the user's runs here, because [`Keys`] is sealed.
    fn named(&self) -> (&[u8], Option<&KeySet>) {
        let set = self.several.as_ref().and_then(|keys| keys.as_ref().ok());
        (self.first(), set)
    }
}

/// Takes a lock.
#[derive(Debug)]
pub struct Acquire<K> {
    pub(super) keys: Kept<K>,
    pub(super) options: LockOptions,
}

/// Takes up a lock that was given away.
#[derive(Debug)]
pub struct Adopt<K> {
    pub(super) keys: Kept<K>,
    pub(super) token: lock::LockToken,
    pub(super) options: LockOptions,
}

/// Extends keys that hold a token.
#[derive(Debug)]
pub struct ExtendToken<K> {
    pub(super) keys: Kept<K>,
    pub(super) token: lock::LockToken,
    pub(super) ttl: Duration,
}

/// Releases keys that hold a token.
#[derive(Debug)]
pub struct ReleaseToken<K> {
    pub(super) keys: Kept<K>,
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

/// Deletes what was seen at a key, whichever client holds it.
#[derive(Debug)]
pub struct ForceReleaseSeen<'a> {
    pub(super) seen: &'a Inspection,
}

/// Ends the quarantine of the nodes.
#[derive(Debug)]
pub struct Vouch;

/// A request for one key: how it is made, and which outcome makes which answer.
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

/// A request for one key or several.
macro_rules! question_of_keys {
    ($name:ident -> $answer:ty, $verb:expr,
     |$it:ident, $keys:ident, $engine:ident, $data:ident| $ask:expr,
     |$own:ident, $at:ident| $outcome:pat => $value:expr) => {
        impl<K: Keys> Question for $name<K> {}

        impl<K: Keys> sealed::Asked for $name<K> {
            const VERB: Option<Verb> = $verb;

            type Answer = $answer;

            fn key(&self) -> &[u8] {
                self.keys.first()
            }

            fn ask(&self, _: &[u8], open: &mut Open<'_>, $data: u64) -> Result<Op, Error> {
                let ($it, $keys, $engine) = (self, self.keys.get()?, &mut *open.engine);
                $ask
            }

            fn answer(&self, $at: Answering<'_, '_>, outcome: Outcome) -> $answer {
                let $own = self;
                match outcome {
                    $outcome => $value,
                    other => unreachable!("it ended as {other:?}"),
                }
            }
        }
    };
}

question_of_keys!(
    Acquire -> SharedGuard, Some(Verb::Acquire),
    |it, keys, engine, data| engine.acquire(keys, it.options, data),
    |it, at| Outcome::Acquired(lock) => SharedGuard::of(at, it.keys.named(), lock)
);
question_of_keys!(
    Adopt -> SharedGuard, Some(Verb::Adopt),
    |it, keys, engine, data| engine.adopt(keys, it.token.clone(), it.options, data),
    |it, at| Outcome::Acquired(lock) => SharedGuard::of(at, it.keys.named(), lock)
);
question_of_keys!(
    ReleaseToken -> ReleaseOutcome, Some(Verb::Release),
    |it, keys, engine, data| engine.release_token(keys, it.token.clone(), data),
    |_it, _at| Outcome::Released(released) => released
);
question_of_keys!(
    ExtendToken -> Instant, Some(Verb::Extend),
    |it, keys, engine, data| engine.extend_token(keys, it.token.clone(), it.ttl, data),
    |_it, _at| Outcome::Extended { deadline } => deadline
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

impl Question for ForceReleaseSeen<'_> {}

impl sealed::Asked for ForceReleaseSeen<'_> {
    const VERB: Option<Verb> = None;

    type Answer = Report;

    fn key(&self) -> &[u8] {
        &self.seen.key
    }

    fn ask(&self, _: &[u8], open: &mut Open<'_>, data: u64) -> Result<Op, Error> {
        open.engine.dangerously_force_release_seen(self.seen, data)
    }

    fn answer(&self, _: Answering<'_, '_>, outcome: Outcome) -> Report {
        match outcome {
            Outcome::ForceReleased(report) => *report,
            other => unreachable!("it ended as {other:?}"),
        }
    }
}

impl Question for Vouch {}

impl sealed::Asked for Vouch {
    const VERB: Option<Verb> = None;

    type Answer = Report;

    fn key(&self) -> &[u8] {
        &[]
    }

    fn ask(&self, _: &[u8], open: &mut Open<'_>, data: u64) -> Result<Op, Error> {
        open.engine.vouch(data)
    }

    fn answer(&self, _: Answering<'_, '_>, outcome: Outcome) -> Report {
        match outcome {
            Outcome::Vouched(report) => *report,
            other => unreachable!("it ended as {other:?}"),
        }
    }
}
