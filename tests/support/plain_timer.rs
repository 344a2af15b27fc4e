//! Measures how late a plain timer is on this machine, for a test whose client has to do something
//! in time. If both are late, the machine stalled, and the client is not at fault.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long each timer runs.
const RUNS: Duration = Duration::from_millis(1);

/// An operation takes several turns of several processes, so it may be late by this many times the
/// lateness of the latest timer.
const TURNS: u32 = 10;

/// A thread that sleeps for a millisecond again and again.
#[derive(Debug)]
pub struct PlainTimer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// In nanoseconds.
    latest: AtomicU64,
    /// When the timer that runs now is due.
    due: RwLock<Instant>,
    is_over: AtomicBool,
}

impl PlainTimer {
    pub fn start() -> PlainTimer {
        let (latest, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { latest, due: RwLock::new(Instant::now()), is_over });
        let own = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            while !own.is_over.load(Ordering::Relaxed) {
                *own.due.write().unwrap_or_else(PoisonError::into_inner) = Instant::now() + RUNS;
                std::thread::sleep(RUNS);
                own.note();
            }
        });
        PlainTimer { shared, thread: Some(thread) }
    }

    /// How long an operation since the last call may have taken: `expected` if all timers were in
    /// time, longer if some were late.
    pub fn limit(&self, expected: Duration) -> Duration {
        PlainTimer::limit_of(expected, self.latest())
    }

    /// The limit if the latest of these timers was late by `latest`.
    pub fn limit_of(expected: Duration, latest: Duration) -> Duration {
        expected + TURNS * latest
    }

    /// How late a timer was at most since the last call; the one that runs now counts, too.
    pub fn latest(&self) -> Duration {
        self.shared.note();
        Duration::from_nanos(self.shared.latest.swap(0, Ordering::Relaxed))
    }
}

impl Drop for PlainTimer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn note(&self) {
        let due = *self.due.read().unwrap_or_else(PoisonError::into_inner);
        let late = u64::try_from(due.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latest.fetch_max(late, Ordering::Relaxed);
    }
}
