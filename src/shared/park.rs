//! Blocks a thread on a future. `thread::park` alone is not enough: other code may use up its
//! permit, or wake the thread. So the bell has a flag of its own, and the permit only ends the
//! sleep.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::net::clock;
use crate::net::sync::thread::{self, Thread};
use crate::net::sync::{AtomicBool, Ordering, thread_local};

/// How often a thread yields before it sleeps for an answer, if many calls wait. Then other threads
/// can usually run meanwhile, and a wake-up from a sleep costs more than these yields.
const YIELDS: usize = 10;

#[derive(Debug)]
struct Bell {
    rung: AtomicBool,
    /// The thread that waits for it.
    thread: Thread,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Between its check of the flag and its sleep the thread runs no other code, so the permit
        // that this call gives ends that sleep.
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.thread.unpark();
        }
    }
}

impl Bell {
    fn of_this_thread() -> Bell {
        Bell { rung: AtomicBool::new(false), thread: thread::current() }
    }

    /// Waits until the bell is rung, for `limit` at most.
    fn wait(&self, limit: Option<Duration>) {
        let until = limit.map(|limit| clock::now().saturating_add(limit));
        while !self.rung.swap(false, Ordering::AcqRel) {
            let Some(until) = until else {
                thread::park();
                continue;
            };
            let left = until.saturating_since(clock::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }
}

thread_local! {
    /// A thread waits for one call at a time, so one bell is enough; it is taken out while in use.
    static BELL: Cell<Option<Ringer>> = const { Cell::new(None) };
}

/// The bell of this thread, and the waker that rings it.
#[derive(Debug)]
pub(super) struct Ringer {
    bell: Arc<Bell>,
    waker: Waker,
}

impl Ringer {
    /// A waker that rings the bell.
    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Makes way for other threads until the bell is rung, a few times.
    pub(super) fn make_way(&self) {
        for _ in 0..YIELDS {
            if self.bell.rung.load(Ordering::Acquire) {
                return;
            }
            thread::yield_now();
        }
    }

    /// Waits until the bell is rung, for `limit` at most. A ring that was meant for a former call
    /// ends the wait, too.
    pub(super) fn wait(&self, limit: Option<Duration>) {
        self.bell.wait(limit);
    }
}

/// Runs `act` with the bell of this thread.
pub(super) fn with_bell<T>(act: impl FnOnce(&Ringer) -> T) -> T {
    let spare = BELL.try_with(Cell::take).ok().flatten();
    let ringer = spare.unwrap_or_else(|| {
        let bell = Arc::new(Bell::of_this_thread());
        Ringer { waker: Waker::from(Arc::clone(&bell)), bell }
    });
    let output = act(&ringer);
    // At the end of a thread its thread-locals are gone.
    let _ = BELL.try_with(|place| place.set(Some(ringer)));
    output
}

/// Blocks until the future is ready. A ring meant for the former future costs one more poll.
pub(super) fn wait<F: Future + Unpin>(future: F) -> F::Output {
    wait_in_steps(future, |_| None)
}

/// Waits as `wait` does, but polls the future again after each step, whether it was woken or not.
pub(super) fn wait_in_steps<F: Future + Unpin>(
    mut future: F,
    step: impl Fn(&F) -> Option<Duration>,
) -> F::Output {
    with_bell(|ringer| {
        loop {
            match Pin::new(&mut future).poll(&mut Context::from_waker(&ringer.waker)) {
                Poll::Ready(output) => break output,
                Poll::Pending => ringer.wait(step(&future)),
            }
        }
    })
}
