//! Which thread drives a shared client that has a thread of its own: the driver, or a thread that
//! waits for its own call.
//!
//! The thread that has the poller drives the client. It sleeps in the poller without the lock, and
//! makes a turn under the lock.
//!
//! 1. A thread that makes a request and waits for it takes the poller if it is free. Such a thread
//!    is the *leader*. Futures never lead, because a future may never be polled again.
//! 2. If the poller is taken, the thread notes its waker and sleeps until it is woken.
//! 3. The leader drives until its own call is over, and fetches the result in the same turn. Then
//!    it frees the poller. So a thread that uses the client alone never waits for another thread.
//!    If that turn ended other calls, too, the leader rouses the driver: several threads use the
//!    client, and the driver writes their requests together.
//! 4. The driver frees the poller if a turn ends the only call that waits, and a thread waits for
//!    that call: the next request of that thread leads. A ring of io_uring is never freed, because
//!    only the thread that made it may wait for it.
//! 5. While the poller is free or a leader has it, the driver *naps*. It takes a free poller if
//!    no thread began to lead during a whole nap ([`NAP`]), or at once if it is roused.
//!
//! No wake-up is lost, because of one rule ([`Driving::must_rouse`]), which is checked wherever
//! the lock is released. If the poller is free and the driver is not roused, then
//!
//! * no call waits with a noted waker,
//! * the client is open, and
//! * nothing is due within [`SOON`].
//!
//! A leader that ends, also by a panic, frees the poller under the lock, so the rule holds for it,
//! too. What arrives at a socket while the poller is free is read at most two naps later: nobody
//! waits for it, except for the end of a lock that a push reports. What is due by the clock is
//! never late, because the driver is back before.

use std::sync::{Condvar, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use super::inner::{Inner, PATIENCE, State, Turned};
use super::open::Open;
use crate::net::reactor::Reactor;
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
    WithTask,
    Free(Reactor),
    Taken,
}

/// Who drives, and who waits for that. Protected by the lock of the client.
#[derive(Debug)]
pub(super) struct Driving {
    poller: Place,
    /// How many calls have noted a waker.
    pub(super) waiting: usize,
    /// The call that was woken last is waited for by a thread.
    pub(super) woke_a_thread: bool,
    /// The driver has to take the poller when it is free.
    roused: bool,
    /// How often a thread began to lead.
    leads: u64,
    /// The driver naps without an end.
    naps_on: bool,
    /// The nap of the driver has to be looked at: see [`Driving::must_rouse`].
    interrupt: bool,
}

impl Driving {
    /// The driver is a thread, which has the poller.
    pub(super) fn by_thread() -> Driving {
        Driving {
            poller: Place::Taken,
            waiting: 0,
            woke_a_thread: false,
            roused: false,
            leads: 0,
            naps_on: false,
            interrupt: false,
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
                self.roused = false;
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
        // The driver waits for the end of this leader.
        self.interrupt |= std::mem::take(&mut self.naps_on);
    }

    fn is_free(&self) -> bool {
        matches!(self.poller, Place::Free(_))
    }

    /// Something is due at this time from now.
    pub(super) fn is_due(&mut self, sleep: Option<Duration>) {
        self.roused |= self.is_free() && sleep.is_some_and(|sleep| sleep < SOON);
        self.interrupt |= self.roused;
    }

    /// Runs where the lock is released: whether the napping driver has to be woken.
    pub(super) fn must_rouse(&mut self, is_open: bool) -> bool {
        if self.is_free() && !self.roused && (self.waiting > 0 || !is_open) {
            (self.roused, self.interrupt) = (true, true);
        }
        std::mem::take(&mut self.interrupt)
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
    /// Takes the poller if it is free. Runs under the lock of `inner`.
    pub(super) fn begin(inner: &'a Inner, open: &mut Open<'_>) -> Option<Lead<'a>> {
        let poller = open.driving.take()?;
        open.driving.leads += 1;
        inner.set_awake();
        Some(Lead { inner, poller: Some(poller) })
    }

    /// Drives until `finish`, which runs under the lock after each turn, is ready.
    ///
    /// # Errors
    /// The client is closed, or the poller failed.
    pub(super) fn drive<T>(
        mut self,
        mut finish: impl FnMut(&mut Open<'_>) -> Poll<T>,
    ) -> Result<T, Error> {
        let mut turned = self.inner.sleeps(true);
        let mut patience = PATIENCE;
        loop {
            match turned {
                Turned::Asleep(timeout) => {
                    let poller = self.poller.as_mut().expect("it is freed at the end");
                    if poller.wait_outside(timeout).is_err() {
                        self.inner.end(ClosedReason::DriverGone);
                        return Err(Error::Closed(ClosedReason::DriverGone));
                    }
                    self.inner.set_awake();
                    match self.inner.lead(Role::Leader, &mut self.poller, &mut finish) {
                        Ok(next) => turned = next,
                        Err(done) => return Ok(done),
                    }
                    patience = PATIENCE;
                }
                Turned::Awake => {
                    // The woken calls run first: their requests are written together.
                    std::thread::yield_now();
                    patience -= 1;
                    turned = self.inner.sleeps(patience > 0);
                }
                Turned::Over => return self.inner.with(|_| unreachable!("the client is over")),
            }
        }
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let Some(poller) = self.poller.take() else { return };
        // The call did not end as planned: the driver goes on.
        self.inner.give_up(poller);
    }
}

/// The driver's sleep while it does not have the poller.
#[derive(Debug, Default)]
pub(super) struct Nap {
    over: Condvar,
}

impl Nap {
    /// The driver looks at the state.
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
            if timed_out && driving.leads == seen {
                if driving.is_free() {
                    return Nap::end(inner, state);
                }
                // One thread has led all the time. When it ends, it interrupts this nap.
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
        match self.over.wait_timeout(state, NAP) {
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
        // Declared before the lock, so that a panic drops it after the lock is released.
        let done;
        let mut state = self.lock();
        if state.is_over() {
            self.wake(state);
            return Ok(Turned::Over);
        }
        let mut open = state.open();
        let (reactor, mut handed) = (poller.as_mut().expect("it drives"), Ok(()));
        open.turn(|engine| handed = reactor.hand_over_all(engine));
        if handed.is_err() {
            drop(state);
            self.end(ClosedReason::DriverGone);
            return Ok(Turned::Over);
        }
        done = finish(&mut open);
        let turned = self.end_turn(&mut state, role, poller, done.is_ready());
        let ended = state.end_if_closed();
        let turned = if ended.is_some() { Turned::Over } else { turned };
        self.wake(state);
        drop(ended);
        match done {
            Poll::Ready(value) => Err(value),
            Poll::Pending => Ok(turned),
        }
    }

    /// The end of a turn: plans the sleep, and frees the poller if the protocol says so.
    fn end_turn(
        &self,
        state: &mut State,
        role: Role,
        poller: &mut Option<Reactor>,
        done: bool,
    ) -> Turned {
        let woken = state.after_unlock.woken.len();
        if woken > 1 && !done {
            return Turned::Awake;
        }
        let sleep = self.prepare_to_sleep(&mut state.open());
        let is_open = state.is_open();
        let driving = &mut state.driving;
        let frees = match role {
            Role::Leader => done,
            // A thread that leads cannot wait for the ring of another.
            Role::Driver if poller.as_ref().is_some_and(Reactor::is_bound_to_its_thread) => false,
            Role::Driver => {
                let alone = woken == 1 && driving.waiting == 0 && driving.woke_a_thread;
                alone && is_open && sleep.is_none_or(|sleep| sleep >= SOON)
            }
        };
        if frees {
            driving.free(poller.take().expect("the thread that drives has it"));
            // Where several threads use the client, the driver writes their requests together.
            driving.is_due(if done && woken > 0 { Some(Duration::ZERO) } else { sleep });
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
        state.driving.is_due(Some(Duration::ZERO));
        self.wake(state);
    }
}

#[cfg(test)]
#[cfg(feature = "testing")]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    use super::super::SharedClient;
    use super::*;
    use crate::config::{Config, LockOptions};
    use crate::proto::settings::RestartGuard;
    use crate::testing::tcp::Masters;

    const TTL: Duration = Duration::from_secs(60);

    fn client(masters: &Masters) -> SharedClient {
        let hour = Duration::from_secs(3600);
        let config = Config::new(masters.urls()).unwrap().restart_guard(RestartGuard::Off);
        let config = config.node_timeout(hour).probe_interval(hour).reset_after(hour);
        SharedClient::connect(config).unwrap()
    }

    fn pairs(client: &SharedClient, count: usize) {
        for _ in 0..count {
            client.lock("alone", TTL).wait().unwrap().release().wait().unwrap();
        }
    }

    fn leads(client: &SharedClient) -> u64 {
        client.owner.inner.with(|open| open.driving.leads).unwrap()
    }

    /// A leader that has made no turn yet.
    fn begin(client: &SharedClient) -> Lead<'_> {
        loop {
            pairs(client, 2);
            let inner = &*client.owner.inner;
            if let Some(lead) = inner.with(|open| Lead::begin(inner, open)).unwrap() {
                return lead;
            }
        }
    }

    /// A call of another thread, which waits.
    fn follower(client: &SharedClient) -> mpsc::Receiver<Result<(), Error>> {
        let (sender, receiver) = mpsc::channel();
        let other = client.clone();
        let options = LockOptions::new(TTL);
        std::thread::spawn(move || sender.send(other.lock("follower", options).wait().map(drop)));
        while client.owner.inner.with(|open| open.driving.waiting).unwrap() == 0 {
            std::thread::yield_now();
        }
        receiver
    }

    fn comes(receiver: &mpsc::Receiver<Result<(), Error>>) -> Result<(), Error> {
        receiver.recv_timeout(Duration::from_secs(10)).expect("the call ends")
    }

    #[test]
    fn a_thread_alone_leads() {
        let masters = Masters::start(3).unwrap();
        let client = client(&masters);
        pairs(&client, 10);
        let before = leads(&client);
        pairs(&client, 100);
        // On a busy machine the driver may take over now and then.
        let leads = leads(&client) - before;
        assert!(leads > 100, "{leads} of 200 requests were led");
    }

    #[test]
    fn a_leader_that_ends_without_a_turn_hands_over() {
        let masters = Masters::start(3).unwrap();
        let client = client(&masters);
        for panics in [false, true] {
            for _ in 0..20 {
                let lead = begin(&client);
                let waits = follower(&client);
                let _ = catch_unwind(AssertUnwindSafe(|| {
                    let _lead = lead;
                    assert!(!panics, "outside of the lock");
                }));
                assert_eq!(comes(&waits), Ok(()));
            }
        }
    }

    #[test]
    fn a_leader_that_panics_under_the_lock_ends_everything() {
        let masters = Masters::start(3).unwrap();
        let client = client(&masters);
        let lead = begin(&client);
        let waits = follower(&client);
        let led = catch_unwind(AssertUnwindSafe(|| lead.drive::<()>(|_| panic!("under the lock"))));
        assert!(led.is_err());
        // The call of the follower may have ended in the turn that panicked, and is not fetched.
        assert_eq!(comes(&waits), Err(Error::Closed(ClosedReason::DriverGone)));
    }

    /// The call of another thread ends in a turn of the leader, whose own call does not.
    #[test]
    fn a_leader_leads_on_after_the_call_of_another_thread() {
        let masters = Masters::start(3).unwrap();
        let client = client(&masters);
        let lead = begin(&client);
        let waits = follower(&client);
        let over = AtomicBool::new(false);
        let finish = |_: &mut Open<'_>| match over.load(Ordering::Relaxed) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        };
        let led = std::thread::scope(|scope| {
            let leader = scope.spawn(|| lead.drive(finish));
            pairs(&client, 20);
            over.store(true, Ordering::Relaxed);
            pairs(&client, 1);
            leader.join().unwrap()
        });
        assert_eq!((led, comes(&waits)), (Ok(()), Ok(())));
    }
}
