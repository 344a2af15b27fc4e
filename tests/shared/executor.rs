//! A small executor that polls a future by hand after each wake-up, and knows how many of its
//! wakers the client keeps.
//!
//! The hazard is a lost wake-up: a task is polled a second time only after one.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::*;

pub type Boxed = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Wakes the executor when any of its tasks is woken.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<bool>,
    ringing: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ringing.notify_all();
    }

    fn wait(&self) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ringing.wait_timeout_while(rung, 10 * SECOND, |rung| !*rung);
        let (mut rung, result) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!result.timed_out(), "everybody waits, and nobody was woken");
        *rung = false;
    }
}

/// The state that the wakers of a task share: how often they were woken.
#[derive(Debug, Default)]
pub struct Counted {
    woken: AtomicU32,
    bell: Arc<Bell>,
}

impl Counted {
    pub fn times(&self) -> u32 {
        self.woken.load(Ordering::SeqCst)
    }
}

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        self.bell.ring();
    }
}

/// A future that the test polls by hand.
pub struct Task<F> {
    future: F,
    pub wakes: Arc<Counted>,
    seen: u32,
}

impl<F: Future + Unpin> Task<F> {
    pub fn new(future: F) -> Task<F> {
        Task::with(future, Arc::default())
    }

    /// A task that is not ready at its first poll.
    #[track_caller]
    pub fn pending(future: F) -> Task<F> {
        let mut task = Task::new(future);
        assert!(task.poll().is_pending());
        task
    }

    fn with(future: F, bell: Arc<Bell>) -> Task<F> {
        // The first poll needs no wake-up.
        let wakes = Arc::new(Counted { woken: AtomicU32::new(1), bell });
        Task { future, wakes, seen: 0 }
    }

    pub fn is_woken(&self) -> bool {
        self.wakes.times() > self.seen
    }

    pub fn poll(&mut self) -> Poll<F::Output> {
        self.seen = self.wakes.times();
        let waker = Waker::from(Arc::clone(&self.wakes));
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }
}

/// Polls all futures, `at_once` at a time. Checks that the client keeps none of their wakers.
pub fn run_all(mut futures: impl Iterator<Item = Boxed>, at_once: usize) {
    let bell = Arc::<Bell>::default();
    let (mut tasks, mut wakers) = (Vec::new(), Vec::new());
    loop {
        while tasks.len() < at_once {
            let Some(future) = futures.next() else { break };
            let task = Task::with(future, Arc::clone(&bell));
            wakers.push(Arc::clone(&task.wakes));
            tasks.push(task);
        }
        if tasks.is_empty() {
            break;
        }
        if !tasks.iter().any(Task::is_woken) {
            bell.wait();
        }
        tasks.retain_mut(|task| !task.is_woken() || task.poll().is_pending());
    }
    eventually(10 * SECOND, "no waker is kept", || {
        wakers.iter().all(|waker| Arc::strong_count(waker) == 1)
    });
}
