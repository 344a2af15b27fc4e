//! The locks and threads of the crate `shuttle`, under the names that `src/net/sync.rs` gives those
//! of the standard library.

#[path = "../../../../src/net/sync/portable.rs"]
mod portable;

use std::cell::Cell;
use std::sync::{Arc, LockResult};
use std::time::Duration;

pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub use shuttle::sync::{Mutex, MutexGuard, PoisonError};
pub use shuttle::{thread, thread_local};

/// More words would not be used: the threads of a test share the first.
pub const WORD_COUNT: usize = 2;

shuttle::lazy_static! {
    pub(crate) static ref WORDS: [portable::Word; WORD_COUNT] = Default::default();
    pub(crate) static ref SLEEPERS: AtomicU32 = AtomicU32::new(0);
}

std::thread_local! {
    static NAPS_END: Cell<bool> = const { Cell::new(false) };
}

/// Whether a wait with a timeout may end by it, at any moment. All threads of a test are tasks of
/// one thread of the system, so this holds for the tests that run on this thread.
pub fn set_naps_end(end: bool) {
    NAPS_END.set(end);
}

/// How many threads can run at the same time. There are more calls than that in some tests.
pub fn processors() -> usize {
    2
}

/// A condition variable whose timeouts end, which those of `shuttle` never do.
#[derive(Debug, Default)]
pub struct Condvar(Arc<shuttle::sync::Condvar>);

impl Condvar {
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        self.0.wait(guard)
    }

    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, Waited)> {
        let timer = NAPS_END.get().then(|| Timer::start(&self.0));
        let waited = self.0.wait(guard);
        let timed_out = timer.is_some_and(|timer| timer.stop());
        match waited {
            Ok(guard) => Ok((guard, Waited { timed_out })),
            Err(poisoned) => Err(PoisonError::new((poisoned.into_inner(), Waited { timed_out }))),
        }
    }
}

/// How a wait ended.
#[derive(Debug)]
pub struct Waited {
    timed_out: bool,
}

impl Waited {
    pub fn timed_out(&self) -> bool {
        self.timed_out
    }
}

/// A thread that ends one wait. It notifies again and again, because the wait may not have begun.
struct Timer {
    expired: Arc<AtomicBool>,
    stopped: Arc<AtomicBool>,
}

impl Timer {
    fn start(over: &Arc<shuttle::sync::Condvar>) -> Timer {
        let (expired, stopped) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let timer = Timer { expired: Arc::clone(&expired), stopped: Arc::clone(&stopped) };
        let over = Arc::clone(over);
        thread::spawn(move || {
            thread::yield_now();
            while !stopped.load(Ordering::SeqCst) {
                expired.store(true, Ordering::SeqCst);
                over.notify_one();
                thread::yield_now();
            }
        });
        timer
    }

    /// Returns whether it had expired.
    fn stop(self) -> bool {
        self.stopped.store(true, Ordering::SeqCst);
        self.expired.load(Ordering::SeqCst)
    }
}
