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

use super::hold::Hold;
use crate::net::clock;
use crate::net::engine::Engine;
use crate::net::names::Names;
use crate::proto::error::{Closed, Error};
use crate::proto::keeper::Keep;
use crate::proto::lock::Lock;
use crate::proto::node::NodeId;
use crate::proto::ops::{Op, Outcome};
use crate::proto::time::Instant;

/// What is kept for the next guards.
const SPARES: usize = 1024;

/// What the handles share.
#[derive(Debug)]
pub(super) struct Hub {
    state: Mutex<State>,
    /// The driver is about to turn, and will write what is asked until then. Set without the lock,
    /// and taken back under it.
    awake: AtomicBool,
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
    behind: Behind,
    names: Names,
    /// Of guards that are gone.
    spares: Vec<Arc<Hold>>,
    /// How many keys may have been left on some node at the end.
    left: usize,
}

/// What is done behind the lock.
#[derive(Debug, Default)]
struct Behind {
    woken: Vec<Waker>,
    dropped: Vec<Waker>,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// Everything is taken back; what is owed is paid until then.
    Closing {
        until: Instant,
        waiting: Vec<Waker>,
    },
    Ended(Closed),
}

/// Who is told what a request comes to: the number of the place is the data of its op.
#[derive(Debug)]
enum Place {
    /// A call waits for its end.
    Asked { op: Op, ended: bool, waker: Option<Waker> },
    /// A lock that was handed out is kept.
    Kept { op: Op, hold: Arc<Hold> },
    /// It is about to be asked.
    Reserved,
}

/// What came of looking after a call.
pub(super) enum Looked<T> {
    /// It goes on: its waker is noted.
    Waiting,
    /// It came to this.
    Over(T),
}

impl Hub {
    pub(super) fn new(engine: Engine, waker: mio::Waker) -> Hub {
        let state = State {
            phase: Phase::Open,
            engine: Some(engine),
            places: Slab::new(),
            behind: Behind::default(),
            names: Names::new(),
            spares: Vec::new(),
            left: 0,
        };
        let (awake, over) = (AtomicBool::new(false), AtomicBool::new(false));
        Hub { state: Mutex::new(state), awake, over, waker, owner: std::process::id() }
    }

    /// Whether no lock of this client can be believed in: it is closed, or this is the copy of a
    /// forked process.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || !self.is_ours()
    }

    fn is_ours(&self) -> bool {
        std::process::id() == self.owner
    }

    /// Does something with what is behind the lock, and then what follows from it: what was asked
    /// is written, unless the driver is about to, and who waits is woken.
    ///
    /// # Errors
    /// The client is no more.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Open<'_>) -> T) -> Result<T, Error> {
        // The lock may be held for ever there, by a thread that was not forked along.
        if !self.is_ours() {
            return Err(Error::Closed(Closed::Forked));
        }
        let _told = ToldOfPanic(&self.waker);
        let mut state = self.lock();
        if let Phase::Ended(closed) = state.phase {
            return Err(Error::Closed(closed));
        }
        let mut open = state.open();
        let done = act(&mut open);
        if !self.awake.load(Ordering::Acquire) {
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

    /// A turn of the driver; `hand_over` gives the engine what the poller told of. It stays awake:
    /// who is woken by it may ask for something, and [`sleeps`](Hub::sleeps) follows. `false` at
    /// the end.
    pub(super) fn turn(&self, hand_over: impl FnOnce(&mut Engine)) -> bool {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Ended(_)) {
            return false;
        }
        let mut open = state.open();
        hand_over(open.engine);
        open.look_names_up();
        open.engine.go_on();
        open.tell();
        let ended = state.end_if_closed();
        self.wake(state);
        drop(ended);
        true
    }

    /// The driver is about to sleep. How long at most, where there is no alarm.
    pub(super) fn sleeps(&self) -> Option<Duration> {
        let mut state = self.lock();
        if matches!(state.phase, Phase::Ended(_)) {
            return Some(Duration::ZERO);
        }
        let mut open = state.open();
        open.engine.flush();
        open.tell();
        let sleep = open.engine.plan_sleep();
        let sleep = sleep.filter(|_| !open.engine.has_alarm());
        self.awake.store(false, Ordering::Release);
        self.wake(state);
        sleep
    }

    /// Begins to close, or goes on closing; the count of what was left once that is over.
    pub(super) fn close(&self, until: Instant, waker: &Waker) -> Looked<usize> {
        if !self.is_ours() {
            return Looked::Over(0);
        }
        let waker = waker.clone();
        let mut state = self.lock();
        if matches!(state.phase, Phase::Open) {
            self.over.store(true, Ordering::Release);
            state.give_everything_back(until);
        }
        let ended = state.end_if_closed();
        let looked = match &mut state.phase {
            Phase::Closing { waiting, .. } => {
                if !waiting.iter().any(|other| other.will_wake(&waker)) {
                    waiting.push(waker);
                }
                Looked::Waiting
            }
            _ => Looked::Over(state.left),
        };
        // The driver has the appointment to keep, or is to see the end.
        let _ = self.waker.wake();
        self.wake(state);
        drop(ended);
        looked
    }

    /// There is no handle any more, or no driver: who still waits is told, and the engine goes.
    /// What it owes is written, as far as the sockets take it.
    pub(super) fn end(&self, closed: Closed) {
        let mut state = if self.is_ours() {
            self.lock()
        } else {
            // A thread that was not forked along may hold the lock; ours is only the memory.
            let Ok(state) = self.state.try_lock() else { return };
            state
        };
        self.over.store(true, Ordering::Release);
        let ended = state.end(closed);
        if self.is_ours() {
            let _ = self.waker.wake();
        }
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
                let engine = state.end(Closed::DriverGone);
                let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
            }
            state
        })
    }

    /// Lets go of the lock, and wakes those whose turn it is. What a waker panics at is its
    /// executor's trouble, and not that of those behind it.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        if state.behind.woken.is_empty() && state.behind.dropped.is_empty() {
            return;
        }
        let mut behind = mem::take(&mut state.behind);
        drop(state);
        for waker in behind.woken.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        for waker in behind.dropped.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(waker)));
        }
        // The buffers are used again, where no others took their place meanwhile.
        let mut state = self.lock();
        if state.behind.woken.is_empty() && state.behind.dropped.is_empty() {
            mem::swap(&mut state.behind, &mut behind);
        }
        drop(state);
    }
}

/// Has the driver find out when somebody panics under the lock, instead of with its next turn. In a
/// drop of somebody's who panics anyway it wakes it for nothing.
struct ToldOfPanic<'a>(&'a mio::Waker);

impl Drop for ToldOfPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.wake();
        }
    }
}

/// What is behind the lock, before the end.
pub struct Open<'a> {
    pub(super) engine: &'a mut Engine,
    places: &'a mut Slab<Place>,
    behind: &'a mut Behind,
    names: &'a mut Names,
    spares: &'a mut Vec<Arc<Hold>>,
    closing: bool,
}

impl State {
    fn open(&mut self) -> Open<'_> {
        Open {
            engine: self.engine.as_mut().expect("it goes with the end"),
            places: &mut self.places,
            behind: &mut self.behind,
            names: &mut self.names,
            spares: &mut self.spares,
            closing: matches!(self.phase, Phase::Closing { .. }),
        }
    }

    fn give_everything_back(&mut self, until: Instant) {
        self.phase = Phase::Closing { until, waiting: Vec::new() };
        self.tell_all(Closed::Asked);
        let engine = self.engine.as_mut().expect("it goes with the end");
        engine.let_all_go();
        engine.wake_by(Some(until));
        engine.flush();
        engine.plan_sleep();
    }

    /// Whether what is owed was paid, or there is no more time for it: then it is the end.
    fn end_if_closed(&mut self) -> Option<Engine> {
        let Phase::Closing { until, .. } = self.phase else { return None };
        let paid = self.engine.as_ref().is_none_or(|it| it.coordinator().open_records() == 0);
        if paid || clock::now() >= until { self.end(Closed::Asked) } else { None }
    }

    /// The end, for everybody who waits. The engine is to be dropped behind the lock.
    fn end(&mut self, closed: Closed) -> Option<Engine> {
        if matches!(self.phase, Phase::Ended(_)) {
            return None;
        }
        self.tell_all(closed);
        if let Phase::Closing { waiting, .. } = mem::replace(&mut self.phase, Phase::Ended(closed))
        {
            self.behind.woken.extend(waiting);
        }
        let engine = self.engine.take();
        self.left = engine.as_ref().map_or(0, |engine| engine.coordinator().open_records());
        engine
    }

    fn tell_all(&mut self, closed: Closed) {
        for (_, place) in &mut self.places {
            match place {
                Place::Asked { waker, .. } => self.behind.woken.extend(waker.take()),
                Place::Kept { hold, .. } => {
                    hold.ends(Some(Error::Closed(closed)), &mut self.behind.woken);
                }
                Place::Reserved => {}
            }
        }
        self.places.clear();
    }
}

impl Open<'_> {
    /// Asks the engine for something, for a call that is told under the number that comes back.
    pub(super) fn ask(
        &mut self,
        ask: impl FnOnce(&mut Open<'_>, u64) -> Result<Op, Error>,
    ) -> Result<usize, Error> {
        if self.closing {
            return Err(Error::Closed(Closed::Asked));
        }
        let place = self.places.insert(Place::Reserved);
        match ask(self, place as u64) {
            Ok(op) => {
                self.places[place] = Place::Asked { op, ended: false, waker: None };
                Ok(place)
            }
            Err(error) => {
                self.places.remove(place);
                Err(error)
            }
        }
    }

    /// What a call came to, if it did; `waker` is woken when it does.
    pub(super) fn look_after(
        &mut self,
        place: usize,
        waker: Waker,
    ) -> Looked<Result<Outcome, Error>> {
        self.tell();
        let Some(Place::Asked { op, ended, waker: noted }) = self.places.get_mut(place) else {
            // The client is closing: it was told, and has no place any more.
            self.behind.dropped.push(waker);
            return Looked::Over(Err(Error::Closed(Closed::Asked)));
        };
        let done = if mem::take(ended) { self.engine.fetch(*op) } else { None };
        match done {
            Some(done) => {
                self.behind.dropped.extend(noted.take());
                self.behind.dropped.push(waker);
                Looked::Over(done.result)
            }
            None => {
                self.behind.dropped.extend(noted.replace(waker));
                Looked::Waiting
            }
        }
    }

    /// A call is over: its place is free, unless its lock is kept.
    pub(super) fn leave(&mut self, place: usize) {
        if let Some(Place::Asked { .. }) = self.places.get(place) {
            if let Place::Asked { waker, .. } = self.places.remove(place) {
                self.behind.dropped.extend(waker);
            }
        }
    }

    /// A call is not waited for any more: it is taken back.
    pub(super) fn cancel(&mut self, place: usize) {
        if let Some(&Place::Asked { op, .. }) = self.places.get(place) {
            self.engine.cancel(op);
            self.leave(place);
        }
    }

    /// The call at `place` came to a lock: where it is kept, `hold` is told of it from now on.
    pub(super) fn follow_if_kept(&mut self, place: usize, hold: &Arc<Hold>) {
        if let Some(&Place::Asked { op, .. }) = self.places.get(place) {
            if self.engine.coordinator().is_open(op) {
                self.follow(place, hold);
            }
        }
    }

    /// What is asked under `place` is a lock that is kept, of which `hold` is told.
    fn follow(&mut self, place: usize, hold: &Arc<Hold>) {
        let Some(Place::Asked { op, waker, .. }) = self.places.get_mut(place) else { return };
        self.behind.dropped.extend(waker.take());
        let op = *op;
        self.places[place] = Place::Kept { op, hold: Arc::clone(hold) };
        if let Some(former) = hold.set_place(Some(place)) {
            self.places.try_remove(former);
        }
    }

    /// Keeps a lock, and tells `hold` of it.
    pub(super) fn keep(&mut self, lock: &Lock, keep: Keep, hold: &Arc<Hold>) -> Result<(), Error> {
        let keep = keep.tell_renewals();
        let place = self.ask(|open, data| open.engine.keep(lock, keep, data))?;
        self.follow(place, hold);
        // It is capped by the bound of the keeping.
        hold.set_deadline(self.engine.deadline(lock));
        Ok(())
    }

    /// Tells those whose requests ended.
    fn tell(&mut self) {
        while let Some((op, data)) = self.engine.poll_ended() {
            match self.places.get_mut(data as usize) {
                Some(Place::Asked { op: asked, ended, waker }) if *asked == op => {
                    *ended = true;
                    self.behind.woken.extend(waker.take());
                }
                Some(Place::Kept { op: kept, hold }) if *kept == op => {
                    match self.engine.fetch(op).map(|done| done.result) {
                        Some(Ok(Outcome::Renewed { deadline })) => hold.is_renewed(deadline),
                        Some(Ok(Outcome::Expiring { .. })) => hold.is_expiring(),
                        Some(Err(error)) => hold.ends(Some(error), &mut self.behind.woken),
                        _ => {}
                    }
                }
                _ => {
                    // Nobody's any more.
                    self.engine.fetch(op);
                }
            }
        }
    }

    fn look_names_up(&mut self) {
        while let Some((node, addresses)) = self.names.found() {
            self.engine.set_address(node, addresses);
        }
        while let Some(node) = self.engine.take_stale() {
            if let Some(lookup) = self.engine.lookup(node) {
                self.names.begin(node, lookup);
            }
        }
    }

    /// What is open.
    pub(super) fn count(&self) -> super::Gauges {
        let core = self.engine.coordinator();
        let nodes = || (0..core.settings().nodes.len()).map(NodeId::new);
        super::Gauges {
            calls: self.places.len(),
            requests: core.open_ops(),
            records: core.open_records(),
            timers: core.open_timers(),
            unanswered: nodes().map(|node| core.unanswered(node)).sum(),
            debts: nodes().map(|node| core.debts(node)).sum(),
        }
    }

    /// A hold for a lock on `key`.
    pub(super) fn hold_for(&mut self, key: &[u8]) -> Arc<Hold> {
        let mut hold = self.spares.pop().unwrap_or_default();
        let unshared = Arc::get_mut(&mut hold).expect("nobody else has a spare one");
        unshared.reset(key);
        hold
    }

    /// A lock is given back or given away: it is over for those who look at its hold.
    pub(super) fn is_over(&mut self, hold: &Hold) {
        if let Some(place) = hold.set_place(None) {
            self.places.try_remove(place);
        }
        hold.ends(None, &mut self.behind.woken);
    }

    /// Takes back the hold of a guard that is gone, for the next one. What comes back is to be
    /// dropped behind the lock: others look at it, or a waker of the user's is in it.
    pub(super) fn put_back(&mut self, mut hold: Arc<Hold>) -> Option<Arc<Hold>> {
        let fits = self.spares.len() < SPARES;
        if fits && Arc::get_mut(&mut hold).is_some_and(|hold| hold.reset(&[])) {
            self.spares.push(hold);
            return None;
        }
        Some(hold)
    }
}
