//! Which thread drives a shared client that has a thread of its own: the driver, or a thread that
//! waits for its own call.
//!
//! The thread that has the poller drives the client. It sleeps in the poller while the client's
//! mutex is unlocked, and makes a turn while it has the mutex locked.
//!
//! 1. A thread that makes a request and waits for it takes the poller if it is free. Such a thread
//!    is the *leader*. Futures never lead, because a future may never be polled again.
//! 2. If the poller is taken, the thread notes its waker and sleeps until it is woken.
//! 3. The leader drives until its own call is over, and fetches the result in the same turn. Then
//!    it frees the poller. So a thread that uses the client alone never waits for another thread.
//!    If that turn ended other calls, too, the leader reserves the poller for the driver: several
//!    threads use the client, and the driver writes their requests together.
//! 4. The driver frees the poller if a turn ends the only call that waits, and a thread waits for
//!    that call: the next request of that thread leads.
//! 5. While the poller is free or a leader has it, the driver *naps*. It takes a free poller if
//!    no thread began to lead during a whole nap ([`NAP`]), or at once if it is roused.
//!
//! A thread that does not lead writes its request by itself while the driver sleeps. If several
//! calls wait, it wakes the thread that has the poller instead, which writes what all of them
//! request until then (`BUSY` in the module `inner`).
//!
//! No wake-up is lost, because of one rule ([`Driving::must_rouse`]), which is checked wherever the
//! mutex is unlocked. If the poller is free and the driver is not roused, then
//!
//! * no call waits with a noted waker,
//! * the client is open, and
//! * nothing is due within [`SOON`].
//!
//! `tests/schedules` runs this code in random orders of the threads.
//!
//! A leader that ends, also by a panic, frees the poller under the mutex, so the rule holds for it,
//! too. What arrives at a socket while the poller is free is read at most two naps later: no
//! caller waits for it, except for the end of a lock that a push reports. What is due by the clock
//! is never late, because the driver is back before.

use std::task::Poll;
use std::time::Duration;

use super::inner::{Inner, PATIENCE, State, Turned};
use super::open::Open;
use crate::net::reactor::Reactor;
use crate::net::sync::{Condvar, MutexGuard, PoisonError, thread};
use crate::proto::error::{ClosedReason, Error};

/// How long the driver leaves a free poller to the threads that wait. Shorter naps cost more
/// wake-ups while threads lead; longer ones delay what is reported while the poller is free.
const NAP: Duration = Duration::from_millis(1);

/// If something is due within this time, the driver takes a free poller at once. More than two
/// naps.
const SOON: Duration = Duration::from_millis(4);

/// Where the poller is.
#[derive(Debug)]
enum Place {
    /// The driver is a task, which keeps the poller.
    #[cfg(feature = "tokio")]
    WithTask,
    Free(Reactor),
    Taken,
}

/// Who drives, and who waits for that. Protected by the mutex of the client.
#[derive(Debug)]
pub(super) struct Driving {
    poller: Place,
    /// How many calls have noted a waker.
    pub(super) waiting: usize,
    /// A thread waits for the call that was woken last.
    pub(super) woke_a_thread: bool,
    /// The driver has to take the poller when it is free.
    roused: bool,
    /// Only the driver may take the poller, and it is about to.
    reserved: bool,
    /// How often a thread began to lead.
    leads: u64,
    /// The driver naps without an end.
    naps_on: bool,
    /// The driver has to wake from its nap and check the state: see [`Driving::must_rouse`].
    interrupt: bool,
    /// How long a nap lasts: [`NAP`], except in tests.
    nap: Duration,
    /// What is due soon: [`SOON`], except in tests.
    soon: Duration,
    /// How often the driver woke up, from a nap or in the poller.
    #[cfg(test)]
    wake_ups: u64,
}

impl Driving {
    /// The driver is a thread, which has the poller.
    pub(super) fn by_thread() -> Driving {
        Driving {
            poller: Place::Taken,
            waiting: 0,
            woke_a_thread: false,
            roused: false,
            reserved: false,
            leads: 0,
            naps_on: false,
            interrupt: false,
            nap: NAP,
            soon: SOON,
            #[cfg(test)]
            wake_ups: 0,
        }
    }

    /// The driver is a task.
    #[cfg(feature = "tokio")]
    pub(super) fn by_task() -> Driving {
        Driving { poller: Place::WithTask, ..Driving::by_thread() }
    }

    /// The poller, if it is free.
    fn take(&mut self) -> Option<Reactor> {
        match std::mem::replace(&mut self.poller, Place::Taken) {
            Place::Free(reactor) => {
                (self.roused, self.reserved) = (false, false);
                Some(reactor)
            }
            other => {
                self.poller = other;
                None
            }
        }
    }

    /// A leader or the driver frees the poller.
    fn free(&mut self, reactor: Reactor) {
        self.poller = Place::Free(reactor);
        // The driver naps until the end of this leader.
        self.interrupt |= std::mem::take(&mut self.naps_on);
    }

    /// A leader passes the poller to the driver: no thread leads before.
    fn reserve(&mut self, reactor: Reactor) {
        self.free(reactor);
        (self.roused, self.reserved, self.interrupt) = (true, true, true);
    }

    fn is_free(&self) -> bool {
        matches!(self.poller, Place::Free(_))
    }

    /// A timer is due in this time; `None`: no timer is set. A driver that naps, and that would
    /// wake later than that, is woken.
    pub(super) fn note_due(&mut self, sleep: Option<Duration>) {
        self.roused |= self.is_free() && sleep.is_some_and(|sleep| sleep < self.soon);
        self.interrupt |= self.roused;
    }

    /// Called when the mutex is unlocked. Returns whether the driver, which naps, has to be woken.
    pub(super) fn must_rouse(&mut self, is_open: bool) -> bool {
        if self.is_free() && !self.roused && (self.waiting > 0 || !is_open) {
            (self.roused, self.interrupt) = (true, true);
        }
        std::mem::take(&mut self.interrupt)
    }

    /// The client has ended: a driver that naps has to end, too.
    pub(super) fn end(&mut self) {
        self.interrupt = true;
    }

    /// Closes the poller of a client that has ended.
    pub(super) fn close(&mut self) -> Option<Reactor> {
        self.take()
    }
}

/// Which thread makes a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Driver,
    Leader,
}

/// The right to drive, while a thread waits for its own call. Its drop passes the right on.
pub(super) struct Lead<'a> {
    inner: &'a Inner,
    poller: Option<Reactor>,
}

impl<'a> Lead<'a> {
    /// Takes the poller if it is free. Called while the mutex of `inner` is locked.
    pub(super) fn begin(inner: &'a Inner, open: &mut Open<'_>) -> Option<Lead<'a>> {
        if open.driving.reserved {
            return None;
        }
        let poller = open.driving.take()?;
        open.driving.leads += 1;
        inner.set_awake();
        Some(Lead { inner, poller: Some(poller) })
    }

    /// Drives until `finish` is ready. `finish` is called while the mutex is locked, wherever a
    /// call may have ended.
    ///
    /// # Errors
    /// The client is closed, or the poller failed.
    pub(super) fn drive<T>(
        mut self,
        mut finish: impl FnMut(&mut Open<'_>) -> Poll<T>,
    ) -> Result<T, Error> {
        let Lead { inner, poller } = &mut self;
        let mut patience = PATIENCE;
        let mut turned = inner.rest(true, poller, &mut finish);
        loop {
            turned = match turned {
                Err(done) => return Ok(done),
                Ok(Turned::Asleep(timeout)) => {
                    let reactor = poller.as_mut().expect("it is freed at the end");
                    if reactor.wait(timeout).is_err() {
                        inner.end(ClosedReason::DriverGone);
                        return Err(Error::Closed(ClosedReason::DriverGone));
                    }
                    inner.set_awake();
                    patience = PATIENCE;
                    inner.lead(Role::Leader, poller, &mut finish)
                }
                Ok(Turned::Awake) => {
                    // Lets the woken calls run first, so that their requests are written together.
                    thread::yield_now();
                    patience -= 1;
                    inner.rest(patience > 0, poller, &mut finish)
                }
                Ok(Turned::Over) => return inner.with(|_| unreachable!("the client is over")),
            }
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let Some(poller) = self.poller.take() else { return };
        // The leader ended without a result, so the driver has to drive.
        self.inner.give_up(poller);
    }
}

/// The driver's sleep while it does not have the poller.
#[derive(Debug, Default)]
pub(super) struct Nap {
    over: Condvar,
}

impl Nap {
    /// Wakes a driver that naps, so that it checks the state.
    pub(super) fn interrupt(&self) {
        self.over.notify_one();
    }

    /// Waits until the driver has to take the poller. Returns `None` if the client has ended.
    pub(super) fn sleep(&self, inner: &Inner) -> Option<Reactor> {
        let mut state = inner.lock();
        let mut seen = state.driving.leads;
        loop {
            if state.is_over() {
                let poller = state.driving.take();
                inner.wake(state);
                drop(poller);
                return None;
            }
            let driving = &mut state.driving;
            if driving.roused && driving.is_free() {
                return Nap::end(inner, state);
            }
            let timed_out;
            (state, timed_out) = self.wait(inner, state);
            let driving = &mut state.driving;
            #[cfg(test)]
            (driving.wake_ups += 1);
            if timed_out && driving.leads == seen {
                if driving.is_free() {
                    return Nap::end(inner, state);
                }
                // The same thread has led all the time. When it ends, it interrupts this nap.
                driving.naps_on = true;
            }
            seen = driving.leads;
        }
    }

    fn wait<'a>(
        &self,
        inner: &'a Inner,
        state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, bool) {
        if state.driving.naps_on {
            let waited = self.over.wait(state);
            return (waited.unwrap_or_else(|poisoned| inner.recover(poisoned)), false);
        }
        let nap = state.driving.nap;
        match self.over.wait_timeout(state, nap) {
            Ok((state, waited)) => (state, waited.timed_out()),
            Err(poisoned) => {
                let (state, waited) = poisoned.into_inner();
                (inner.recover(PoisonError::new(state)), waited.timed_out())
            }
        }
    }

    /// The driver takes the poller.
    fn end(inner: &Inner, mut state: MutexGuard<'_, State>) -> Option<Reactor> {
        state.driving.naps_on = false;
        let poller = state.driving.take();
        inner.set_awake();
        poller
    }
}

impl Inner {
    /// A turn of the driver's thread, or of a leader. `finish` fetches the result of the leader's
    /// call, as soon as there is one: then the poller is freed, and the result is returned as the
    /// error. The driver frees the poller as the protocol says; `poller` is empty then.
    pub(super) fn lead<T>(
        &self,
        role: Role,
        poller: &mut Option<Reactor>,
        finish: &mut impl FnMut(&mut Open<'_>) -> Poll<T>,
    ) -> Result<Turned, T> {
        // Declared before the guard of the mutex, so that a panic drops it after the mutex is
        // unlocked.
        let mut done;
        let mut state = self.lock();
        if state.is_over() {
            self.wake(state);
            return Ok(Turned::Over);
        }
        #[cfg(test)]
        (state.driving.wake_ups += u64::from(role == Role::Driver));
        let mut open = state.open();
        let reactor = poller.as_ref().expect("it drives");
        open.turn(|engine| reactor.hand_over(engine));
        done = ready(finish(&mut open));
        let woken = open.after_unlock.to_wake();
        let turned = match done {
            None if woken > 1 => Turned::Awake,
            Some(_) if woken > 0 => {
                // Several threads use the client. The driver, which is awake from here on, writes
                // their requests together.
                state.driving.reserve(poller.take().expect("it drives"));
                Turned::Awake
            }
            _ => self.settle(&mut state, role, poller, &mut done, finish),
        };
        let ended = state.end_if_closed();
        let turned = if ended.is_some() { Turned::Over } else { turned };
        self.wake(state);
        drop(ended);
        done.map_or(Ok(turned), Err)
    }

    /// A leader is about to sleep. If it is `patient`, it stays awake instead while some of the
    /// woken calls did not come yet. As in [`lead`](Inner::lead), the result of its call is
    /// returned as the error.
    fn rest<T>(
        &self,
        patient: bool,
        poller: &mut Option<Reactor>,
        finish: &mut impl FnMut(&mut Open<'_>) -> Poll<T>,
    ) -> Result<Turned, T> {
        // Declared before the guard of the mutex, as in `lead`.
        let mut done = None;
        let mut state = self.lock();
        if state.is_over() {
            self.wake(state);
            return Ok(Turned::Over);
        }
        if patient && state.after_unlock.coming > 0 {
            return Ok(Turned::Awake);
        }
        let turned = self.settle(&mut state, Role::Leader, poller, &mut done, finish);
        self.wake(state);
        done.map_or(Ok(turned), Err)
    }

    /// Writes what was requested, plans the sleep, and frees the poller if the protocol says so.
    fn settle<T>(
        &self,
        state: &mut State,
        role: Role,
        poller: &mut Option<Reactor>,
        done: &mut Option<T>,
        finish: &mut impl FnMut(&mut Open<'_>) -> Poll<T>,
    ) -> Turned {
        let woken = state.after_unlock.to_wake();
        let mut sleep = self.prepare_to_sleep(&mut state.open());
        if done.is_none() {
            // A call can also end where its request is made or written.
            *done = ready(finish(&mut state.open()));
            if done.is_some() {
                sleep = self.prepare_to_sleep(&mut state.open());
            }
        }
        let is_open = state.is_open();
        let driving = &mut state.driving;
        let frees = match role {
            Role::Leader => done.is_some(),
            Role::Driver => {
                let alone = woken == 1 && driving.waiting == 0 && driving.woke_a_thread;
                alone && is_open && sleep.is_none_or(|sleep| sleep >= driving.soon)
            }
        };
        if frees {
            driving.free(poller.take().expect("the thread that drives has it"));
            driving.note_due(sleep);
        }
        Turned::Asleep(sleep.filter(|_| !state.open().engine.has_alarm()))
    }

    /// A leader ends without a result: the driver goes on.
    fn give_up(&self, poller: Reactor) {
        let mut state = self.lock();
        if state.is_over() {
            self.wake(state);
            return drop(poller);
        }
        let _ = self.prepare_to_sleep(&mut state.open());
        state.driving.free(poller);
        state.driving.note_due(Some(Duration::ZERO));
        self.wake(state);
    }
}

/// The value, if it is ready.
fn ready<T>(polled: Poll<T>) -> Option<T> {
    match polled {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests;
