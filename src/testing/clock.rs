//! Time that a test lets pass, for all clients of this process and for its in-process masters at
//! once, without a sleep.
//!
//! Each test takes [`alone`] first, because all tests of one process share the clock.
//!
//! ```
//! # #[cfg(feature = "net")]
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use redlatch::testing::{clock, tcp::Masters};
//! use redlatch::{Client, Config, RestartGuard};
//!
//! let _alone = clock::alone();
//! let masters = Masters::start(3)?;
//! let config = Config::new(masters.urls())?.restart_guard(RestartGuard::Off);
//! let (first, second) = (Client::connect(config.clone())?, Client::connect(config)?);
//! let ttl = Duration::from_secs(30);
//!
//! let late = first.lock("invoice:42", ttl)?;
//! clock::advance(ttl); // the first holder was away for too long
//! assert!(late.check().is_err());
//! let _next = second.try_lock("invoice:42", ttl)?;
//! # Ok(())
//! # }
//! # #[cfg(feature = "net")]
//! # example().unwrap();
//! ```
//!
//! # What moves
//!
//! * `redlatch::clock::now()`, and with it every deadline, timer and wait of every client of this
//!   process, through whichever interface it is used. On Linux, each driver that sleeps is woken;
//!   elsewhere it notices at the end of its present sleep.
//! * The ttls, the uptime and the answer to `TIME` of every [in-process master](super::tcp), also
//!   of a frozen or killed one. To move masters alone, as if their clients had not noticed that
//!   time: [`Masters::advance`](super::tcp::Masters::advance), or
//!   [`LocalMaster::advance`](super::tcp::LocalMaster::advance) for one.
//!
//! The clocks of the standard library and of a runtime do not move, nor do other processes, real
//! servers, and the [delay](super::tcp::LocalMaster::delay) of a reply. The clock never goes back,
//! and an advance cannot be undone.
//!
//! # The hazards
//!
//! * **Tests of one process share the clock.** `cargo test` runs those of one binary side by side,
//!   and an advance in one ends the locks of all others. So every test of that binary that has a
//!   client takes [`alone`], or the tests that advance the clock have a binary of their own.
//! * **All of the time passes at once.** A lock that is renewed, and whose deadline is jumped over,
//!   is lost: no node was asked in between. Advance by a third of the ttl, and wait until the
//!   deadline is a later one.
//! * **A request in flight counts as unanswered for that time**: to a real server, to a master that
//!   is frozen or whose replies are delayed, and the next step of a handshake. Such a node may be
//!   suspect or down for a while; a client that has just connected may have only a quorum so far.
//!   What has arrived is read before any timeout counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// By how many nanoseconds this process is ahead of the system's clock. It only grows.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// The test that has the clock for itself.
static ALONE: Mutex<()> = Mutex::new(());

/// How long an advance waits for the masters to answer, at most: a client may go on asking.
#[cfg(feature = "net")]
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);

/// Lets this much time pass at once, for every client and every in-process master of this process.
///
/// Before that, waits until the masters that are not frozen have answered what was sent to them,
/// for half a second at most, so that no such request seems to take that time.
///
/// What becomes due happens in the next turn of its driver, which is woken for that: on another
/// thread shortly after this call returns, and in a blocking client in its next call.
pub fn advance(by: Duration) {
    #[cfg(feature = "net")]
    answerers::wait(ANSWERED_WITHIN);
    let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    let add = |ahead: u64| Some(ahead.saturating_add(by));
    let _ = AHEAD.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    #[cfg(feature = "net")]
    sleepers::wake();
}

/// By how much this process is ahead of the system's clock: the sum of all advances.
pub fn ahead() -> Duration {
    Duration::from_nanos(AHEAD.load(Ordering::Acquire))
}

/// Waits until no other test has the clock, and keeps it until the returned value is dropped, also
/// by a panic. It only excludes other callers of `alone`.
pub fn alone() -> Alone {
    Alone { _turn: ALONE.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// The turn of one test with the clock: see [`alone`].
#[derive(Debug)]
#[must_use = "another test has its turn as soon as this is dropped"]
pub struct Alone {
    _turn: MutexGuard<'static, ()>,
}

/// The masters whose answers an advance waits for.
#[cfg(feature = "net")]
pub(crate) mod answerers {
    use super::*;
    use std::sync::{Arc, Weak};

    /// A master of this process.
    pub(crate) trait Answerer: Send + Sync {
        /// Whether it has answered all that was sent to it, as far as it will now.
        fn has_answered_all(&self) -> bool;
    }

    static ANSWERERS: Mutex<Vec<Weak<dyn Answerer>>> = Mutex::new(Vec::new());

    fn answerers() -> MutexGuard<'static, Vec<Weak<dyn Answerer>>> {
        // No operation under this lock can leave it half done.
        ANSWERERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it is waited for, until it is dropped.
    pub(crate) fn note<A: Answerer + 'static>(master: &Arc<A>) {
        let master: Weak<A> = Arc::downgrade(master);
        let mut answerers = answerers();
        answerers.retain(|master| master.strong_count() > 0);
        answerers.push(master);
    }

    /// Waits until all of them have answered, and no longer than `limit`.
    pub(super) fn wait(limit: Duration) {
        let start = crate::net::clock::now();
        let all: Vec<Arc<dyn Answerer>> = answerers().iter().filter_map(Weak::upgrade).collect();
        while !all.iter().all(|master| master.has_answered_all()) {
            if crate::net::clock::now().saturating_since(start) > limit {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// What wakes the drivers that sleep.
#[cfg(feature = "net")]
pub(crate) mod sleepers {
    use super::*;
    use std::sync::{Arc, Weak};

    /// A bell in the poller of one driver.
    pub(crate) trait Bell: Send + Sync {
        /// Wakes the driver, now or from its next sleep.
        fn ring(&self);
    }

    static BELLS: Mutex<Vec<Weak<dyn Bell>>> = Mutex::new(Vec::new());

    fn bells() -> MutexGuard<'static, Vec<Weak<dyn Bell>>> {
        // No operation under this lock can leave it half done.
        BELLS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this bell is rung at each advance, until it is dropped.
    #[cfg(target_os = "linux")]
    pub(crate) fn note<B: Bell + 'static>(bell: &Arc<B>) {
        let bell: Weak<B> = Arc::downgrade(bell);
        let mut bells = bells();
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(bell);
    }

    pub(super) fn wake() {
        let bells: Vec<Arc<dyn Bell>> = bells().iter().filter_map(Weak::upgrade).collect();
        bells.iter().for_each(|bell| bell.ring());
    }
}
