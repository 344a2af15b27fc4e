//! Advances the clock without a sleep, for all clients and in-process masters of this process
//! together.
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
//! clock::advance(ttl); // as if the first holder's process had not run for so long
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
//!   process, of any interface. On Linux an advance wakes each driver that sleeps. On other systems
//!   a driver notices the advance at the end of its present sleep.
//! * The ttls, the uptime and the answer to `TIME` of every [in-process master](super::tcp), also
//!   of a frozen or killed one. To move masters alone, as if their clients had not noticed that
//!   time: [`Masters::advance`](super::tcp::Masters::advance), or
//!   [`LocalMaster::advance`](super::tcp::LocalMaster::advance) for one.
//!
//! An advance moves neither the clocks of the standard library and of a runtime, nor other
//! processes, real servers, and the [delay](super::tcp::LocalMaster::delay) of a reply. The clock
//! never goes back, and an advance cannot be undone.
//!
//! # The hazards
//!
//! * **Tests of one process share the clock.** `cargo test` runs those of one binary side by side,
//!   and an advance in one ends the locks of all others. So every test of that binary that has a
//!   client takes [`alone`], or the tests that advance the clock have a binary of their own.
//! * **All of the time passes in one step.** If an advance passes the deadline of a lock that is
//!   renewed, the lock is lost, because there was no time to renew it. So advance by a third of the
//!   ttl, and wait until the deadline is a later one.
//! * **A waiter may not stand in line yet.** Before you advance past its wait, look until the line
//!   that an inspection of the key returns has it.
//! * **A request in flight counts as unanswered for that time** if it goes to a real server, to a
//!   master that is frozen or whose replies are delayed, or if it is a step of a handshake. Such a
//!   node may become suspect or down for a while. (A client that has just connected may have only a
//!   quorum so far.) Replies that have arrived are read before any timeout takes effect.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The sum of all advances in nanoseconds. It only grows.
static AHEAD: AtomicU64 = AtomicU64::new(0);

/// Locked by the test that has the clock for itself.
static ALONE: Mutex<()> = Mutex::new(());

/// How long an advance waits for the answers of the masters. There is a limit because a client may
/// send requests all the time.
#[cfg(feature = "net")]
const ANSWERED_WITHIN: Duration = Duration::from_millis(500);

/// Advances the clock by this time, for every client and every in-process master of this process.
///
/// Before that, waits for at most half a second until the masters that are not frozen have answered
/// all requests. Otherwise those requests would seem to have taken the whole time.
///
/// What becomes due is done by its driver, which is woken: on another thread shortly after this
/// call returns, and in a blocking client in its next call.
pub fn advance(by: Duration) {
    #[cfg(feature = "net")]
    answerers::wait(ANSWERED_WITHIN);
    let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    let add = |ahead: u64| Some(ahead.saturating_add(by));
    let _ = AHEAD.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    #[cfg(feature = "net")]
    sleepers::wake();
}

/// By how much the clock of this process is ahead of the system's clock: the sum of all advances.
pub fn ahead() -> Duration {
    Duration::from_nanos(AHEAD.load(Ordering::Acquire))
}

/// Waits until no other test has the clock, and excludes other callers of `alone` until the
/// returned value is dropped, also by a panic.
pub fn alone() -> Alone {
    Alone { _turn: ALONE.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// Excludes the other tests that use the clock: see [`alone`].
#[derive(Debug)]
#[must_use = "another test has its turn as soon as this is dropped"]
pub struct Alone {
    _turn: MutexGuard<'static, ()>,
}

/// The in-process masters, for whose answers an advance waits.
#[cfg(feature = "net")]
pub(crate) mod answerers {
    use super::*;
    use std::sync::{Arc, Weak};

    /// A master of this process.
    pub(crate) trait Answerer: Send + Sync {
        /// Whether the master has answered all that was sent to it. A master that does not answer
        /// now (because it is frozen, for example) returns `true`, too.
        fn has_answered_all(&self) -> bool;
    }

    static ANSWERERS: Mutex<Vec<Weak<dyn Answerer>>> = Mutex::new(Vec::new());

    fn answerers() -> MutexGuard<'static, Vec<Weak<dyn Answerer>>> {
        // No operation under this lock can leave it half done.
        ANSWERERS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets every advance wait for this master, until it is dropped.
    pub(crate) fn note<A: Answerer + 'static>(master: &Arc<A>) {
        let master: Weak<A> = Arc::downgrade(master);
        let mut answerers = answerers();
        answerers.retain(|master| master.strong_count() > 0);
        answerers.push(master);
    }

    /// Waits until all masters have answered, but for at most `limit`.
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

/// Wakes the drivers that sleep.
#[cfg(feature = "net")]
pub(crate) mod sleepers {
    use super::*;
    use std::sync::{Arc, Weak};

    /// Wakes the poller of one driver.
    pub(crate) trait Bell: Send + Sync {
        /// Ends the driver's present sleep, or else its next one.
        fn ring(&self);
    }

    static BELLS: Mutex<Vec<Weak<dyn Bell>>> = Mutex::new(Vec::new());

    fn bells() -> MutexGuard<'static, Vec<Weak<dyn Bell>>> {
        // No operation under this lock can leave it half done.
        BELLS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets every advance ring this bell, until it is dropped.
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
