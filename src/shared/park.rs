//! Blocks a thread on a future, or on its bell.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::bell::Bell;
use crate::net::sync::thread_local;

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
    /// The bell.
    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
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
        let bell = Arc::new(Bell::new());
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
