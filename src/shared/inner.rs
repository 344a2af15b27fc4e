//! What all handles of a shared client and its driver share: the engine, protected by a mutex, and
//! the calls that wait.
//!
//! The hazards are a lost wake-up, and a thread that locks the mutex twice. So everything is read
//! and changed under one mutex, and no code of the user's runs while it is locked. Keys are read
//! and wakers are cloned before the mutex is locked; wakers are woken and dropped after it is
//! unlocked.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use slab::Slab;

use super::bell::Ringing;
use super::driving::{Driving, Nap};
use super::lock_state::LockState;
use super::open::{AfterUnlock, Open, Place};
use crate::net::clock;
use crate::net::engine::Engine;
use crate::net::names::Names;
use crate::net::observe::Interface;
use crate::net::reactor::Waker as DriverWaker;
use crate::net::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError, processors, thread};
use crate::proto::error::{ClosedReason, Error};
use crate::proto::time::Instant;

/// Up to so many wakers a thread moves out of the state to its stack. If there are more, it takes
/// their buffers out, and locks the mutex again to return these.
const CARRIED: usize = 16;

/// How often the driver yields to the calls that it woke before it sleeps, although some of them
/// did not fetch their results yet. A higher number gains nothing: some may never fetch.
pub(super) const PATIENCE: usize = 3;

/// From so many waiting calls on, a call leaves its request to the sleeping driver. To wake that
/// costs less than a write to each node, and its one write for each node carries the requests of
/// the calls that come meanwhile. With fewer calls the wake-up would only delay the request.
pub(super) const BUSY: usize = 4;

/// What the handles share.
#[derive(Debug)]
pub(super) struct Inner {
    state: Mutex<State>,
    /// The driver is about to turn, and will write every request made until then. Set without the
    /// lock, and cleared under it.
    awake: AtomicBool,
    /// Returns whether the caller is at a place where an awake driver may not go on: a driver that
    /// is a task stops when its runtime is not run.
    outside: Option<fn() -> bool>,
    /// No lock of this client is held any more.
    over: AtomicBool,
    /// Further futures are woken only while fewer calls than this are on their way to fetch their
    /// results.
    at_once: usize,
    /// Wakes the thread or task that sleeps in the poller, if the timer in the poller cannot.
    waker: DriverWaker,
    /// The sleep of a driver that does not have the poller.
    pub(super) nap: Nap,
    /// The number of the process that owns the client.
    owner: u32,
}

/// The state that the mutex protects.
#[derive(Debug)]
pub(super) struct State {
    phase: Phase,
    pub(super) driving: Driving,
    /// `None` after the end.
    engine: Option<Engine>,
    places: Slab<Place>,
    pub(super) after_unlock: AfterUnlock,
    names: Names,
    /// Lock states of guards that were dropped.
    spares: Vec<Arc<LockState>>,
    /// How many keys may have been left on some node at the end.
    left: usize,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// Every request is canceled; pending releases are sent until then.
    Closing {
        until: Instant,
        waiting: Slab<Waker>,
    },
    Ended(ClosedReason),
}

/// The result of a turn of the driver.
pub(super) enum Turned {
    /// The driver may sleep, at most for so long if there is no alarm.
    Asleep(Option<Duration>),
    /// Several calls were woken, and may be about to make requests.
    Awake,
    /// There is nothing to drive any more.
    Over,
}

impl Inner {
    pub(super) fn new(
        mut engine: Engine,
        waker: DriverWaker,
        driving: Driving,
        outside: Option<fn() -> bool>,
    ) -> Inner {
        engine.report_lock_updates();
        engine.observer().belongs_to(Interface::Shared);
        let state = State {
            phase: Phase::Open,
            driving,
            engine: Some(engine),
            places: Slab::new(),
            after_unlock: AfterUnlock::default(),
            names: Names::new(),
            spares: Vec::new(),
            left: 0,
        };
        let (awake, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let owner = std::process::id();
        // More calls than processors could not run at the same time, and a single call could hold
        // up the others. A driver that may stop leaves no future to be woken later.
        let at_once = if outside.is_some() { usize::MAX } else { processors().max(2) };
        let (state, nap) = (Mutex::new(state), Nap::default());
        Inner { state, awake, outside, over, at_once, waker, nap, owner }
    }

    /// Whether no lock of this client can be believed in: the client is closed, or this is the
    /// copy in a forked process.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || !self.is_ours()
    }

    /// Whether this is the process that made the client. In a forked process any lock may be held
    /// for ever, by a thread that does not exist there.
    pub(super) fn is_ours(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Runs `act` while the mutex is locked, and then does what follows from it: requests are
    /// written, unless the driver is awake or woken to do it, and calls with a result are woken.
    ///
    /// # Errors
    /// The client is closed.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Open<'_>) -> T) -> Result<T, Error> {
        if !self.is_ours() {
            return Err(Error::Closed(ClosedReason::Forked));
        }
        self.with_unforked(act)
    }

    /// As [`with`](Inner::with), for a thread that has checked for a fork and has not left this
    /// client's code since: a fork leaves the child only the thread that forks.
    pub(super) fn with_unforked<T>(
        &self,
        act: impl FnOnce(&mut Open<'_>) -> T,
    ) -> Result<T, Error> {
        let _on_panic = Panicking(self);
        // Declared before the guard of the mutex, so that a panic drops it after the mutex is
        // unlocked: it may be a guard.
        let done;
        let mut state = self.lock();
        if let Phase::Ended(closed) = state.phase {
            self.wake(state);
            return Err(Error::Closed(closed));
        }
        let mut open = state.open();
        done = act(&mut open);
        let awake = self.awake.load(Ordering::Acquire);
        if !awake && self.must_wake_driver(&open) {
            self.set_awake();
            // Before the mutex is unlocked, because after that wakers of the user's may block.
            let _ = self.waker.wake();
        } else if !awake || self.outside.is_some_and(|outside| outside()) {
            open.engine.flush_unforked();
            open.pass_on_results();
            // The driver sleeps, so it wakes none of them later.
            open.wake_futures(usize::MAX);
            let sleep = open.engine.plan_sleep();
            if sleep.is_some() && !open.engine.has_alarm() {
                // The driver may be asleep for longer than the new moment.
                let _ = self.waker.wake();
            }
            open.driving.note_due(sleep);
        }
        self.wake(state);
        Ok(done)
    }

    /// Whether a request is left to the sleeping driver, which has to read its answer anyhow. What
    /// no call waits for, such as the release of a dropped guard, does not wake it: it is written
    /// at once, unless the driver was woken just before.
    fn must_wake_driver(&self, open: &Open<'_>) -> bool {
        let busy = open.asks && open.driving.waiting >= BUSY;
        busy && self.outside.is_none() && open.engine.has_something_to_write()
    }

    /// Whether callers leave their requests to the driver.
    #[cfg(all(test, feature = "testing"))]
    pub(super) fn is_awake(&self) -> bool {
        self.awake.load(Ordering::Acquire)
    }

    /// The driver stopped sleeping, or is woken.
    pub(super) fn set_awake(&self) {
        self.awake.store(true, Ordering::Release);
    }

    /// A turn of the driver; `hand_over` passes the poller's events to the engine.
    ///
    /// If a turn wakes several calls, the driver stays awake: [`sleeps`](Inner::sleeps), which has
    /// to follow once they could run, writes their requests together. A single call writes its
    /// request by itself, and then the driver locks the mutex only once a turn.
    #[cfg(any(test, feature = "tokio"))]
    pub(super) fn turn(&self, hand_over: impl FnOnce(&mut Engine)) -> Turned {
        let mut state = self.lock();
        if state.is_over() {
            return Turned::Over;
        }
        let mut open = state.open();
        open.turn(hand_over);
        let turned = if open.after_unlock.to_wake() > 1 {
            Turned::Awake
        } else {
            let sleep = self.prepare_to_sleep(&mut open);
            Turned::Asleep(sleep.filter(|_| !open.engine.has_alarm()))
        };
        let ended = state.end_if_closed();
        let turned = if ended.is_some() { Turned::Over } else { turned };
        self.wake(state);
        drop(ended);
        turned
    }

    /// The driver is about to sleep. If it is patient, it stays awake instead while some of the
    /// woken calls did not come yet: their requests are written together.
    pub(super) fn sleeps(&self, patient: bool) -> Turned {
        let mut state = self.lock();
        if state.is_over() {
            return Turned::Over;
        }
        if patient && state.after_unlock.coming > 0 {
            return Turned::Awake;
        }
        let mut open = state.open();
        let sleep = self.prepare_to_sleep(&mut open);
        let sleep = sleep.filter(|_| !open.engine.has_alarm());
        self.wake(state);
        Turned::Asleep(sleep)
    }

    /// From here on calls write their requests themselves, and no future is left to be woken
    /// later: some that were woken may never be polled. Returns when something is due. Runs under
    /// the lock.
    pub(super) fn prepare_to_sleep(&self, open: &mut Open<'_>) -> Option<Duration> {
        open.engine.flush();
        open.pass_on_results();
        open.wake_futures(usize::MAX);
        let sleep = open.engine.plan_sleep();
        open.after_unlock.coming = 0;
        self.awake.store(false, Ordering::Release);
        sleep
    }

    /// Begins to close, or continues; returns the count of keys that may be left once that is
    /// over. The waker is noted in `slot`, to be replaced by the next or forgotten.
    pub(super) fn close(
        &self,
        until: Instant,
        slot: &mut Option<usize>,
        waker: &Waker,
    ) -> Poll<usize> {
        if !self.is_ours() {
            return Poll::Ready(0);
        }
        let waker = waker.clone();
        let mut state = self.lock();
        if matches!(state.phase, Phase::Open) {
            self.over.store(true, Ordering::Release);
            state.begin_to_close(until);
        }
        state.end_by(until);
        let ended = state.end_if_closed();
        let State { phase, after_unlock, left, .. } = &mut *state;
        let polled = match phase {
            Phase::Closing { waiting, .. } => {
                match slot.and_then(|slot| waiting.get_mut(slot)) {
                    Some(noted) => after_unlock.dropped.push(mem::replace(noted, waker)),
                    None => *slot = Some(waiting.insert(waker)),
                }
                Poll::Pending
            }
            _ => Poll::Ready(*left),
        };
        // The driver has to see the new moment, or the end.
        let _ = self.waker.wake();
        self.wake(state);
        drop(ended);
        polled
    }

    /// The caller that waited for the end was dropped.
    pub(super) fn forget_closing(&self, slot: usize) {
        if !self.is_ours() {
            return;
        }
        let mut state = self.lock();
        let State { phase, after_unlock, .. } = &mut *state;
        if let Phase::Closing { waiting, .. } = phase {
            after_unlock.dropped.extend(waiting.try_remove(slot));
        }
        self.wake(state);
    }

    /// The last handle or the driver is gone: waiting calls end, and the engine is dropped. The
    /// pending releases are written, as far as the sockets take them.
    pub(super) fn end(&self, closed: ClosedReason) {
        if !self.is_ours() {
            // In a forked child the copy closes its descriptors, and wakes no waiter: a waker may
            // block on a mutex that is held for ever here.
            let copy = self.state.try_lock().ok();
            let copy = copy.map(|mut state| (state.engine.take(), state.driving.close()));
            let _ = catch_unwind(AssertUnwindSafe(|| drop(copy)));
            return;
        }
        let mut state = self.lock();
        self.over.store(true, Ordering::Release);
        let ended = state.end(closed);
        let _ = self.waker.wake();
        self.wake(state);
        // The engine itself may have panicked.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(ended)));
    }

    /// Locks the mutex. If a thread panicked while it had it locked, the state cannot be trusted
    /// any more.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| self.recover(poisoned))
    }

    /// A thread panicked while it had the mutex locked: the client is closed, and all calls end.
    pub(super) fn recover<'a>(
        &self,
        poisoned: PoisonError<MutexGuard<'a, State>>,
    ) -> MutexGuard<'a, State> {
        let mut state = poisoned.into_inner();
        if !state.is_over() {
            self.over.store(true, Ordering::Release);
            let engine = state.end(ClosedReason::DriverGone);
            let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
            // The poller's waker wakes no task. It makes the thread that drives wake the waiting
            // calls.
            let _ = self.waker.wake();
            self.nap.interrupt();
        }
        state
    }

    /// Unlocks the mutex, wakes the calls that are due, and reports the events that the thread took
    /// while the mutex was locked.
    pub(super) fn wake(&self, mut state: MutexGuard<'_, State>) {
        let heard = state.engine.as_mut().map(|engine| engine.observer().take());
        let is_open = state.is_open();
        if state.driving.must_rouse(is_open) {
            // Before the wakers of the user's, which may block until the driver serves another
            // call.
            self.nap.interrupt();
        }
        if state.after_unlock.has_unwoken() {
            state.open().wake_futures(self.at_once);
        }
        self.wake_calls(state);
        if let Some(heard) = heard {
            heard.report();
        }
    }

    /// Unlocks the mutex, and wakes the calls that are due. A panic of a waker is its executor's
    /// problem, and does not affect the wakers after it.
    fn wake_calls(&self, mut state: MutexGuard<'_, State>) {
        // Threads first, because wakers of the user's may block.
        let rung = state.after_unlock.rung.take();
        let wake_threads = || rung.into_iter().for_each(Ringing::wake);
        let AfterUnlock { woken, dropped, .. } = &mut state.after_unlock;
        let count = woken.len() + dropped.len();
        if count <= 1 {
            // Nearly always: the waker of the call that has just fetched its result, if any.
            let (woken, dropped) = (woken.pop(), dropped.pop());
            drop(state);
            wake_threads();
            woken.into_iter().for_each(wake);
            dropped.into_iter().for_each(|waker| wake_or_drop(waker, false));
            return;
        }
        if count <= CARRIED {
            let mut carried = [const { None }; CARRIED];
            let AfterUnlock { woken, dropped, .. } = &mut state.after_unlock;
            let woken = woken.drain(..).map(|waker| (waker, true));
            let all = woken.chain(dropped.drain(..).map(|waker| (waker, false)));
            carried.iter_mut().zip(all).for_each(|(place, it)| *place = Some(it));
            drop(state);
            wake_threads();
            carried.into_iter().flatten().for_each(|(waker, wake)| wake_or_drop(waker, wake));
            return;
        }
        let AfterUnlock { woken, dropped, .. } = &mut state.after_unlock;
        let (mut woken, mut dropped) = (mem::take(woken), mem::take(dropped));
        drop(state);
        wake_threads();
        woken.drain(..).for_each(|waker| wake_or_drop(waker, true));
        dropped.drain(..).for_each(|waker| wake_or_drop(waker, false));
        // The buffers are reused, unless new ones were filled meanwhile.
        let mut state = self.lock();
        if state.after_unlock.woken.is_empty() && state.after_unlock.dropped.is_empty() {
            (state.after_unlock.woken, state.after_unlock.dropped) = (woken, dropped);
        }
        drop(state);
    }
}

/// Wakes or drops a waker, after the mutex is unlocked. A panic of the waker is caught.
fn wake_or_drop(waker: Waker, wake: bool) {
    let _ = catch_unwind(AssertUnwindSafe(|| if wake { waker.wake() } else { drop(waker) }));
}

/// Wakes a waker. A panic of it is caught.
pub(super) fn wake(waker: Waker) {
    wake_or_drop(waker, true);
}

/// Wakes the driver to check the mutex if this thread panics while it has it locked.
struct Panicking<'a>(&'a Inner);

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let _ = self.0.waker.wake();
            self.0.nap.interrupt();
        }
    }
}

impl State {
    /// Whether calls may make requests.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether the client has ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    pub(super) fn open(&mut self) -> Open<'_> {
        Open {
            driving: &mut self.driving,
            engine: self.engine.as_mut().expect("it goes with the end"),
            places: &mut self.places,
            after_unlock: &mut self.after_unlock,
            names: &mut self.names,
            spares: &mut self.spares,
            closing: matches!(self.phase, Phase::Closing { .. }),
            asks: false,
        }
    }

    fn begin_to_close(&mut self, until: Instant) {
        self.phase = Phase::Closing { until, waiting: Slab::new() };
        self.end_calls(ClosedReason::Asked);
        let engine = self.engine.as_mut().expect("it goes with the end");
        engine.release_all();
        engine.wake_by(Some(until));
        engine.flush();
        engine.plan_sleep();
    }

    /// If several handles close the client, the shortest timeout holds.
    fn end_by(&mut self, moment: Instant) {
        let Phase::Closing { until, .. } = &mut self.phase else { return };
        if moment < *until {
            *until = moment;
            let engine = self.engine.as_mut().expect("it goes with the end");
            engine.wake_by(Some(moment));
            engine.plan_sleep();
        }
    }

    /// Ends the client if no release is pending, or the time for them is over.
    pub(super) fn end_if_closed(&mut self) -> Option<Engine> {
        let Phase::Closing { until, .. } = self.phase else { return None };
        let done = self.engine.as_ref().is_none_or(|it| it.coordinator().open_records() == 0);
        if done || clock::now() >= until { self.end(ClosedReason::Asked) } else { None }
    }

    /// Ends every waiting call. The engine has to be dropped after the mutex is unlocked.
    fn end(&mut self, closed: ClosedReason) -> Option<Engine> {
        if self.is_over() {
            return None;
        }
        self.end_calls(closed);
        self.driving.end();
        if let Phase::Closing { waiting, .. } = mem::replace(&mut self.phase, Phase::Ended(closed))
        {
            self.after_unlock.woken.extend(waiting.into_iter().map(|(_, waker)| waker));
        }
        let engine = self.engine.take();
        self.left = engine.as_ref().map_or(0, |engine| engine.coordinator().open_records());
        engine
    }

    fn end_calls(&mut self, closed: ClosedReason) {
        for (_, place) in &mut self.places {
            match place {
                Place::Asked { waiter, .. } => {
                    if let Some(waiter) = waiter.take() {
                        self.after_unlock.wake(waiter);
                    }
                }
                Place::Held { lock_state, .. } => {
                    lock_state.ends(Some(Error::Closed(closed)), &mut self.after_unlock.woken);
                }
                Place::Campaign { waker, term, .. } => {
                    self.after_unlock.woken.extend(waker.take());
                    if let Some((_, lock_state)) = term {
                        let error = Some(Error::Closed(closed));
                        lock_state.ends(error, &mut self.after_unlock.woken);
                    }
                }
                Place::Reserved => {}
            }
        }
        self.places.clear();
        self.after_unlock.forget_calls();
        self.driving.waiting = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::{Gauges, SharedClient};
    use super::*;
    use crate::config::Config;
    use crate::proto::lock_options::LockOptions;

    /// A client that reaches no node, and the result of a call that waits.
    fn with_a_waiter() -> (SharedClient, mpsc::Receiver<Error>) {
        let config = Config::new(["redis://127.0.0.1:1"]).unwrap();
        let config = config.connect_timeout(Duration::from_millis(50));
        let client = SharedClient::connect_blocking(config).unwrap();
        let (sender, receiver) = mpsc::channel();
        let other = client.clone();
        let options = LockOptions::new(Duration::from_secs(10)).wait(Duration::from_secs(600));
        std::thread::spawn(move || sender.send(other.lock("a", options).wait().unwrap_err()));
        while client.gauges().calls == 0 {
            std::thread::yield_now();
        }
        (client, receiver)
    }

    #[track_caller]
    fn ends_as_driver_gone(receiver: &mpsc::Receiver<Error>) {
        let error = receiver.recv_timeout(Duration::from_secs(10)).expect("the call ends");
        assert_eq!(error, Error::Closed(ClosedReason::DriverGone));
    }

    /// A bug of ours must not leave a call waiting.
    #[test]
    fn caller_that_panics_with_the_mutex_locked_closes_the_client() {
        for another_comes in [false, true] {
            let (client, receiver) = with_a_waiter();
            let inner = &client.owner.inner;
            // Only the panic may wake the driver.
            let _ = inner.with(|open| open.engine.release_all());
            let panic = catch_unwind(AssertUnwindSafe(|| inner.with(|_| panic!("under the lock"))));
            assert!(panic.is_err());
            if another_comes {
                assert_eq!(client.gauges(), Gauges::default());
            }
            ends_as_driver_gone(&receiver);
        }
    }

    #[test]
    fn driver_that_panics_with_the_mutex_locked_closes_the_client() {
        let (client, receiver) = with_a_waiter();
        let inner = &client.owner.inner;
        let turn = || inner.turn(|_| panic!("under the lock"));
        assert!(catch_unwind(AssertUnwindSafe(turn)).is_err());
        inner.end(ClosedReason::DriverGone);
        ends_as_driver_gone(&receiver);
        assert_eq!(client.gauges(), Gauges::default());
        // Locks that were open then count as left; the close does not wait for them.
        client.close(Duration::from_secs(600)).wait();
    }
}
