//! What all handles of a shared client and its driver share: the engine behind a lock, and who
//! waits for what.
//!
//! The hazards are a wake-up that is lost and a lock that is taken twice. So everything is looked
//! at and changed under one lock; and nothing of the user's runs under it: a key is read before,
//! and wakers are cloned before, and woken and dropped behind it.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use slab::Slab;

use super::lock_state::LockState;
use super::open::{AfterUnlock, Doubted, Looked, Open, Place};
use crate::net::clock;
use crate::net::engine::Engine;
use crate::net::names::Names;
use crate::proto::error::{ClosedReason, Error};
use crate::proto::time::Instant;

/// So many wakers are carried out of the lock at once, without taking it again.
const CARRIED: usize = 16;

/// So often the driver makes way for those whom it woke before it sleeps without having heard of
/// all of them. More is nothing won: some may never look.
pub(super) const PATIENCE: usize = 3;

/// What the handles share.
#[derive(Debug)]
pub(super) struct Inner {
    state: Mutex<State>,
    /// The driver is about to turn, and will write what is asked until then. Set without the lock,
    /// and taken back under it.
    awake: AtomicBool,
    /// Whether the caller is where it cannot be relied on that an awake driver goes on: a task does
    /// not, once nobody turns its runtime.
    outside: Option<fn() -> bool>,
    /// No lock of this client is held any more.
    over: AtomicBool,
    /// Wakes the driver where the timer in its poller cannot.
    waker: mio::Waker,
    /// The process that it belongs to.
    owner: u32,
}

/// What is behind the lock.
#[derive(Debug)]
pub(super) struct State {
    phase: Phase,
    /// `None` behind its end.
    engine: Option<Engine>,
    places: Slab<Place>,
    doubted: Vec<Doubted>,
    after_unlock: AfterUnlock,
    names: Names,
    /// Of guards that are gone.
    spares: Vec<Arc<LockState>>,
    /// How many keys may have been left on some node at the end.
    left: usize,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// Everything is taken back; what is owed is paid until then.
    Closing {
        until: Instant,
        waiting: Slab<Waker>,
    },
    Ended(ClosedReason),
}

/// What a turn of the driver came to.
pub(super) enum Turned {
    /// It may sleep, for so long at most where there is no alarm.
    Asleep(Option<Duration>),
    /// Several were woken, and may be about to ask for something.
    Awake,
    /// There is nothing to drive any more.
    Over,
}

impl Inner {
    pub(super) fn new(engine: Engine, waker: mio::Waker, outside: Option<fn() -> bool>) -> Inner {
        let state = State {
            phase: Phase::Open,
            engine: Some(engine),
            places: Slab::new(),
            doubted: Vec::new(),
            after_unlock: AfterUnlock::default(),
            names: Names::new(),
            spares: Vec::new(),
            left: 0,
        };
        let (awake, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let owner = std::process::id();
        Inner { state: Mutex::new(state), awake, outside, over, waker, owner }
    }

    /// Whether no lock of this client can be believed in: it is closed, or this is the copy of a
    /// forked process.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || !self.is_ours()
    }

    /// Whether this is no copy of a forked process: there, any lock may be held for ever, by a
    /// thread that was not forked along.
    pub(super) fn is_ours(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Does something with what is behind the lock, and then what follows from it: what was asked
    /// is written, unless the driver is about to, and who waits is woken.
    ///
    /// # Errors
    /// The client is no more.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Open<'_>) -> T) -> Result<T, Error> {
        if !self.is_ours() {
            return Err(Error::Closed(ClosedReason::Forked));
        }
        let _told = Panicking(&self.waker);
        // Before the lock, so that a panic drops it behind that: it may be a guard.
        let done;
        let mut state = self.lock();
        if let Phase::Ended(closed) = state.phase {
            self.wake(state);
            return Err(Error::Closed(closed));
        }
        let mut open = state.open();
        done = act(&mut open);
        let awake = self.awake.load(Ordering::Acquire);
        if !awake || self.outside.is_some_and(|outside| outside()) {
            open.engine.flush();
            open.tell();
            if open.engine.plan_sleep().is_some() && !open.engine.has_alarm() {
                // What the driver sleeps for may be too long by now.
                let _ = self.waker.wake();
            }
        }
        self.wake(state);
        Ok(done)
    }

    /// The driver stopped sleeping.
    pub(super) fn is_awake(&self) {
        self.awake.store(true, Ordering::Release);
    }

    /// A turn of the driver; `hand_over` gives the engine what the poller told of.
    ///
    /// Where several are woken by it the driver stays awake: what they ask for is written together
    /// by [`sleeps`](Hub::sleeps), which is to follow when they had their chance. One alone writes
    /// what it asks for by itself, and then the driver takes the lock only once a turn.
    pub(super) fn turn(&self, hand_over: impl FnOnce(&mut Engine)) -> Turned {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Ended(_)) {
            return Turned::Over;
        }
        let mut open = state.open();
        hand_over(open.engine);
        open.look_names_up();
        open.engine.go_on();
        open.tell();
        let turned = if open.after_unlock.woken.len() > 1 {
            Turned::Awake
        } else {
            Turned::Asleep(self.lie_down(&mut open))
        };
        let ended = state.end_if_closed();
        let turned = if ended.is_some() { Turned::Over } else { turned };
        self.wake(state);
        drop(ended);
        turned
    }

    /// The driver is about to sleep; it may stay awake instead when it is patient, and some of
    /// those who were woken did not come yet: what they ask for is written together.
    pub(super) fn sleeps(&self, patient: bool) -> Turned {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Ended(_)) {
            return Turned::Over;
        }
        if patient && state.after_unlock.coming > 0 {
            return Turned::Awake;
        }
        let sleep = self.lie_down(&mut state.open());
        self.wake(state);
        Turned::Asleep(sleep)
    }

    /// From here on, and it is under the lock, those who ask write what they ask for.
    fn lie_down(&self, open: &mut Open<'_>) -> Option<Duration> {
        open.engine.flush();
        open.tell();
        let sleep = open.engine.plan_sleep();
        open.after_unlock.coming = 0;
        self.awake.store(false, Ordering::Release);
        sleep.filter(|_| !open.engine.has_alarm())
    }

    /// Begins to close, or goes on closing; the count of what was left once that is over. The waker
    /// is noted in `slot`, to be replaced by the next or forgotten.
    pub(super) fn close(
        &self,
        until: Instant,
        slot: &mut Option<usize>,
        waker: &Waker,
    ) -> Looked<usize> {
        if !self.is_ours() {
            return Looked::Over(0);
        }
        let waker = waker.clone();
        let mut state = self.lock();
        if matches!(state.phase, Phase::Open) {
            self.over.store(true, Ordering::Release);
            state.give_everything_back(until);
        }
        state.end_by(until);
        let ended = state.end_if_closed();
        let State { phase, after_unlock, left, .. } = &mut *state;
        let looked = match phase {
            Phase::Closing { waiting, .. } => {
                match slot.and_then(|slot| waiting.get_mut(slot)) {
                    Some(noted) => after_unlock.dropped.push(mem::replace(noted, waker)),
                    None => *slot = Some(waiting.insert(waker)),
                }
                Looked::Waiting
            }
            _ => Looked::Over(*left),
        };
        // The driver has the appointment to keep, or is to see the end.
        let _ = self.waker.wake();
        self.wake(state);
        drop(ended);
        looked
    }

    /// Whoever waited for the end does not any more.
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

    /// There is no handle any more, or no driver: who still waits is told, and the engine goes.
    /// What it owes is written, as far as the sockets take it.
    pub(super) fn end(&self, closed: ClosedReason) {
        if !self.is_ours() {
            // Its descriptors are closed, and nobody is told: a waker may wait for another's lock.
            let copy = self.state.try_lock().ok().and_then(|mut state| state.engine.take());
            let _ = catch_unwind(AssertUnwindSafe(|| drop(copy)));
            return;
        }
        let mut state = self.lock();
        self.over.store(true, Ordering::Release);
        let ended = state.end(closed);
        let _ = self.waker.wake();
        self.wake(state);
        // It may be what panicked.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(ended)));
    }

    /// The lock. Where somebody panicked under it, nothing that is there can be believed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            if !matches!(state.phase, Phase::Ended(_)) {
                self.over.store(true, Ordering::Release);
                let engine = state.end(ClosedReason::DriverGone);
                let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
                // It has nothing else to wake for any more, and sees to those who wait.
                let _ = self.waker.wake();
            }
            state
        })
    }

    /// Lets go of the lock, and wakes those whose turn it is. What a waker panics at is its
    /// executor's trouble, and not that of those behind it.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        if state.after_unlock.woken.is_empty() && state.after_unlock.dropped.is_empty() {
            return;
        }
        if state.after_unlock.woken.len() + state.after_unlock.dropped.len() <= CARRIED {
            let mut carried = [const { None }; CARRIED];
            let AfterUnlock { woken, dropped, .. } = &mut state.after_unlock;
            let woken = woken.drain(..).map(|waker| (waker, true));
            let all = woken.chain(dropped.drain(..).map(|waker| (waker, false)));
            carried.iter_mut().zip(all).for_each(|(place, it)| *place = Some(it));
            drop(state);
            carried.into_iter().flatten().for_each(|(waker, wake)| let_out(waker, wake));
            return;
        }
        let AfterUnlock { woken, dropped, .. } = &mut state.after_unlock;
        let (mut woken, mut dropped) = (mem::take(woken), mem::take(dropped));
        drop(state);
        woken.drain(..).for_each(|waker| let_out(waker, true));
        dropped.drain(..).for_each(|waker| let_out(waker, false));
        // The buffers are used again, where no others took their place meanwhile.
        let mut state = self.lock();
        if state.after_unlock.woken.is_empty() && state.after_unlock.dropped.is_empty() {
            (state.after_unlock.woken, state.after_unlock.dropped) = (woken, dropped);
        }
        drop(state);
    }
}

/// Wakes or drops a waker, behind the lock. What they panic at is theirs.
fn let_out(waker: Waker, wake: bool) {
    let _ = catch_unwind(AssertUnwindSafe(|| if wake { waker.wake() } else { drop(waker) }));
}

/// Wakes somebody. What they panic at is theirs.
pub(super) fn wake(waker: Waker) {
    let_out(waker, true);
}

/// Has the driver look what became of the lock, should this thread panic under it.
struct Panicking<'a>(&'a mio::Waker);

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.wake();
        }
    }
}

impl State {
    fn open(&mut self) -> Open<'_> {
        Open {
            engine: self.engine.as_mut().expect("it goes with the end"),
            places: &mut self.places,
            doubted: &mut self.doubted,
            after_unlock: &mut self.after_unlock,
            names: &mut self.names,
            spares: &mut self.spares,
            closing: matches!(self.phase, Phase::Closing { .. }),
        }
    }

    fn give_everything_back(&mut self, until: Instant) {
        self.phase = Phase::Closing { until, waiting: Slab::new() };
        self.tell_all(ClosedReason::Asked);
        let engine = self.engine.as_mut().expect("it goes with the end");
        engine.release_all();
        engine.wake_by(Some(until));
        engine.flush();
        engine.plan_sleep();
    }

    /// Of several who close it, the one who waits the shortest decides.
    fn end_by(&mut self, moment: Instant) {
        let Phase::Closing { until, .. } = &mut self.phase else { return };
        if moment < *until {
            *until = moment;
            let engine = self.engine.as_mut().expect("it goes with the end");
            engine.wake_by(Some(moment));
            engine.plan_sleep();
        }
    }

    /// Whether what is owed was paid, or there is no more time for it: then it is the end.
    fn end_if_closed(&mut self) -> Option<Engine> {
        let Phase::Closing { until, .. } = self.phase else { return None };
        let paid = self.engine.as_ref().is_none_or(|it| it.coordinator().open_records() == 0);
        if paid || clock::now() >= until { self.end(ClosedReason::Asked) } else { None }
    }

    /// The end, for everybody who waits. The engine is to be dropped behind the lock.
    fn end(&mut self, closed: ClosedReason) -> Option<Engine> {
        if matches!(self.phase, Phase::Ended(_)) {
            return None;
        }
        self.tell_all(closed);
        if let Phase::Closing { waiting, .. } = mem::replace(&mut self.phase, Phase::Ended(closed))
        {
            self.after_unlock.woken.extend(waiting.into_iter().map(|(_, waker)| waker));
        }
        let engine = self.engine.take();
        self.left = engine.as_ref().map_or(0, |engine| engine.coordinator().open_records());
        engine
    }

    fn tell_all(&mut self, closed: ClosedReason) {
        for (_, place) in &mut self.places {
            match place {
                Place::Asked { waker, .. } => self.after_unlock.woken.extend(waker.take()),
                Place::Kept { lock_state, .. } => {
                    lock_state.ends(Some(Error::Closed(closed)), &mut self.after_unlock.woken);
                }
                Place::Extending { .. } | Place::Reserved => {}
            }
        }
        self.places.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::{Gauges, SharedClient};
    use super::*;
    use crate::config::{Config, LockOptions};

    /// A client that reaches nobody, and what a call that waits comes to.
    fn with_a_waiter() -> (SharedClient, mpsc::Receiver<Error>) {
        let config = Config::new(["redis://127.0.0.1:1"]).unwrap();
        let config = config.connect_timeout(Duration::from_millis(50));
        let client = SharedClient::connect(config).unwrap();
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
    fn is_told(receiver: &mpsc::Receiver<Error>) {
        let told = receiver.recv_timeout(Duration::from_secs(10)).expect("it is told");
        assert_eq!(told, Error::Closed(ClosedReason::DriverGone));
    }

    /// A bug of ours: it must not leave anybody waiting.
    #[test]
    fn a_panic_of_a_caller_under_the_lock_ends_everything() {
        for another_comes in [false, true] {
            let (client, receiver) = with_a_waiter();
            let inner = &client.owner.inner;
            // Nothing but the panic is to wake the driver.
            let _ = inner.with(|open| open.engine.release_all());
            let panic = catch_unwind(AssertUnwindSafe(|| inner.with(|_| panic!("under the lock"))));
            assert!(panic.is_err());
            if another_comes {
                assert_eq!(client.gauges(), Gauges::default());
            }
            is_told(&receiver);
        }
    }

    #[test]
    fn a_panic_of_the_driver_under_the_lock_ends_everything() {
        let (client, receiver) = with_a_waiter();
        let inner = &client.owner.inner;
        let turn = || inner.turn(|_| panic!("under the lock"));
        assert!(catch_unwind(AssertUnwindSafe(turn)).is_err());
        inner.end(ClosedReason::DriverGone);
        is_told(&receiver);
        assert_eq!(client.gauges(), Gauges::default());
        // What was open then counts as left; nobody waits for it.
        client.close(Duration::from_secs(600)).wait();
    }
}
