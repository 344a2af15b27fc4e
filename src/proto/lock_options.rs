//! The options of a lock: its ttl, how long its request waits, and what else the caller asks for.
//!
//! The core checks ttls and keys elsewhere. The hazard is a combination of options that no request
//! can serve: it is refused here, before anything is sent.

use std::time::Duration;

use crate::proto::error::ConfigError;
use crate::proto::locks::owners::OwnerId;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::time::Instant;

/// How long an acquire waits unless [`LockOptions`] say otherwise, in every interface.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);

/// How long `with_lock` may hold a lock unless the options say otherwise.
pub const DEFAULT_MAX_HOLD: Duration = Duration::from_secs(24 * 3600);

/// The options of an acquire: the ttl, how long to wait, and whether to renew the lock.
///
/// A plain [`Duration`] is a ttl, with the defaults for the rest: `lock` waits up to 10 s for a key
/// that others hold ([`wait`](LockOptions::wait)), whatever the ttl is; `try_lock` makes one
/// attempt; and the lock is not renewed ([`auto_extend`](LockOptions::auto_extend)).
///
/// ```
/// use std::time::Duration;
/// use redlatch::LockOptions;
///
/// // Once it is held, the lock lasts 30 s. The call waits for it for 2 s at most.
/// let options = LockOptions::new(Duration::from_secs(30)).wait(Duration::from_secs(2));
/// // The same ttl, with the usual wait of 10 s.
/// let usual = LockOptions::from(Duration::from_secs(30));
/// assert_ne!(options, usual);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    pub(crate) ttl: Duration,
    wait: Wait,
    pub(crate) auto_extend: Option<AutoExtend>,
    pub(crate) fenced: bool,
    pub(crate) owner: Option<OwnerId>,
}

/// How long an acquire waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    For(Duration),
    Until(Instant),
}

impl LockOptions {
    /// The key lives for `ttl` unless it is extended: whole milliseconds, rounded down. The usable
    /// time is shorter: 1 % of the ttl and 2 ms are subtracted for clock drift. A ttl above
    /// `max_ttl` (60 s unless set) is refused: renew the lock for longer work.
    pub const fn new(ttl: Duration) -> LockOptions {
        let wait = Wait::For(DEFAULT_WAIT);
        LockOptions { ttl, wait, auto_extend: None, fenced: false, owner: None }
    }

    /// One attempt, without a wait: it fails if others hold the key at this moment.
    pub const fn once(ttl: Duration) -> LockOptions {
        LockOptions::new(ttl).wait(Duration::ZERO)
    }

    /// Waits at most this long if others hold the key, or if too few nodes can be asked. 10 s
    /// unless set; zero is one attempt.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> LockOptions {
        self.wait = Wait::For(wait);
        self
    }

    /// Waits until this moment, on the clock of [`clock::now`](crate::clock::now), or of the `now`
    /// that a [`Coordinator`](crate::proto::Coordinator) is given.
    #[must_use]
    pub const fn wait_until(mut self, moment: Instant) -> LockOptions {
        self.wait = Wait::Until(moment);
        self
    }

    /// Waits until the lock is granted, or the nodes reject it for good (`Error::Config`).
    #[must_use]
    pub const fn wait_forever(self) -> LockOptions {
        self.wait(Duration::MAX)
    }

    /// The client renews the lock from the moment it is held, each time a third of the ttl is over,
    /// until it is released or lost, or as far as `auto_extend` allows. A plain [`Duration`] is the
    /// longest time that the lock may be held. Renewals, warnings and the loss are updates of the
    /// lock ([`LockUpdate`](crate::proto::locks::held::updates::LockUpdate)).
    #[must_use]
    pub fn auto_extend(mut self, auto_extend: impl Into<AutoExtend>) -> LockOptions {
        self.auto_extend = Some(auto_extend.into());
        self
    }

    /// The lock gets a fencing number: a number that is greater than that of every earlier lock on
    /// the key ([`Lock::fence`](crate::Lock::fence)). Send it along with every write. A store that
    /// refuses a number smaller than the greatest one it has seen then refuses the late write of a
    /// holder that was paused past its deadline. A number is below 2^53.
    ///
    /// A lock over several keys gets a number for each key ([`Lock::fences`](crate::Lock::fences)).
    ///
    /// The nodes count in a key of their own, `redlatch:fence:{KEY}`. If their counters differ,
    /// the acquire takes a second round trip. It fails with
    /// [`Error::Config`](crate::Error::Config) if the restart guard is off.
    #[must_use]
    pub const fn fenced(mut self) -> LockOptions {
        self.fenced = true;
        self
    }

    /// The tokens of the request name this owner in place of that of the settings
    /// ([`Coordinator::owner_id`](crate::proto::Coordinator::owner_id)).
    #[doc(hidden)]
    #[must_use]
    pub const fn owned_by(mut self, owner: OwnerId) -> LockOptions {
        self.owner = Some(owner);
        self
    }

    /// The options; the lock is extended automatically for [`DEFAULT_MAX_HOLD`] at most unless they
    /// set another bound.
    #[cfg(feature = "net")]
    pub(crate) fn auto_extended(self) -> LockOptions {
        if self.auto_extend.is_some() { self } else { self.auto_extend(DEFAULT_MAX_HOLD) }
    }

    /// The moment from which a request that is made at `now` begins no further attempt.
    pub(crate) fn give_up_at(&self, now: Instant) -> Instant {
        match self.wait {
            Wait::For(wait) => now.saturating_add(wait),
            Wait::Until(moment) => moment.max(now),
        }
    }

    /// Refuses a fencing number for a lock that is adopted: a number belongs to one holder.
    pub(crate) fn check_adopt(&self) -> Result<(), ConfigError> {
        let problem = "a lock that is adopted has none; adopt it without `fenced`, or release it \
                       and acquire it anew";
        if self.fenced { Err(ConfigError::Fence { problem }) } else { Ok(()) }
    }
}

impl From<Duration> for LockOptions {
    fn from(ttl: Duration) -> LockOptions {
        LockOptions::new(ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_a_length_or_ends_at_a_moment() {
        const NOW: Instant = Instant::from_nanos(5_000_000_000);
        let options = LockOptions::new(Duration::from_secs(30));
        assert_eq!(options.give_up_at(NOW), Instant::from_nanos(15_000_000_000), "10 s, as usual");
        assert_eq!(options.wait(Duration::ZERO).give_up_at(NOW), NOW);
        assert_eq!(LockOptions::once(Duration::from_secs(30)).give_up_at(NOW), NOW);
        assert_eq!(options.wait_forever().give_up_at(NOW), Instant::from_nanos(u64::MAX));
        let (passed, later) = (Instant::from_nanos(1), Instant::from_nanos(6_000_000_000));
        assert_eq!(options.wait_until(passed).give_up_at(NOW), NOW);
        assert_eq!(options.wait_until(later).give_up_at(NOW), later);
    }

    #[test]
    fn adopt_with_a_fencing_number_is_refused() {
        let options = LockOptions::new(Duration::from_secs(30));
        assert_eq!(options.check_adopt(), Ok(()));
        assert!(matches!(options.fenced().check_adopt(), Err(ConfigError::Fence { .. })));
    }
}
