//! What can be done before the end of a shared client while its mutex is locked: requests to the
//! engine, the report of their results to the waiting calls, and the places that link a call to its
//! request.
//!
//! The hazard is a result that reaches the wrong call: places are reused, so the op is compared.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::task::{Poll, Waker};

use slab::Slab;

use super::bell::{Bell, Ringing};
use super::driving::Driving;
use super::lock_state::LockState;
use crate::net::engine::Engine;
use crate::net::names::Names;
use crate::proto::error::{ClosedReason, Error};
use crate::proto::ids::{CampaignId, Op};
use crate::proto::key_set::KeySet;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::locks::completions::Outcome;
use crate::proto::locks::held::updates::LockUpdate;
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::node_set::NodeId;

/// How many lock states are kept for the next guards.
const SPARES: usize = 1024;

/// The task or thread that waits for a call.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A task, whose waker is the user's.
    Task(Waker),
    /// A thread.
    Thread(Arc<Bell>),
}

/// What is done after the mutex is unlocked.
#[derive(Debug, Default)]
pub(super) struct AfterUnlock {
    /// The threads to be woken.
    pub(super) rung: Ringing,
    pub(super) woken: Vec<Waker>,
    pub(super) dropped: Vec<Waker>,
    /// The places of futures that have a result and are woken later, in this order: see
    /// [`Open::wake_futures`].
    unwoken: VecDeque<usize>,
    /// How many calls ended since the driver last slept, and did not fetch their results yet.
    pub(super) coming: usize,
}

impl AfterUnlock {
    /// How many calls are to be woken, at once or later.
    pub(super) fn to_wake(&self) -> usize {
        self.rung.len() + self.woken.len() + self.unwoken.len()
    }

    /// A waiter is woken after the mutex is unlocked.
    pub(super) fn wake(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Task(waker) => self.woken.push(waker),
            Waiter::Thread(bell) => self.rung.ring(&bell),
        }
    }

    /// A waiter is not needed any more. A waker is the user's: it must not be dropped while the
    /// mutex is locked.
    pub(super) fn drop_waiter(&mut self, waiter: Waiter) {
        if let Waiter::Task(waker) = waiter {
            self.dropped.push(waker);
        }
    }

    /// Whether futures are to be woken later.
    pub(super) fn has_unwoken(&self) -> bool {
        !self.unwoken.is_empty()
    }

    /// All calls are over.
    pub(super) fn forget_calls(&mut self) {
        self.unwoken.clear();
        self.coming = 0;
    }
}

/// What a request belongs to: the number of the place is the data of its op.
#[derive(Debug)]
pub(super) enum Place {
    /// A call waits for the result.
    Asked { op: Op, ended: bool, waiter: Option<Waiter> },
    /// A guard holds the lock that the call got: its updates change the state.
    Held { token: LockToken, lock_state: Arc<LockState> },
    /// A campaign: its requests and the updates of its locks have this place.
    Campaign {
        /// Woken when there is a standing.
        waker: Option<Waker>,
        /// The lock of the present term, if a caller has the term.
        term: Option<(LockToken, Arc<LockState>)>,
        id: CampaignId,
    },
    /// The request is about to be made.
    Reserved,
}

/// What the mutex protects, before the end of the client.
pub struct Open<'a> {
    pub(super) driving: &'a mut Driving,
    pub(super) engine: &'a mut Engine,
    pub(super) places: &'a mut Slab<Place>,
    pub(super) after_unlock: &'a mut AfterUnlock,
    pub(super) names: &'a mut Names,
    pub(super) spares: &'a mut Vec<Arc<LockState>>,
    pub(super) closing: bool,
    /// A call made its request: it waits for the answer.
    pub(super) asks: bool,
}

impl Open<'_> {
    /// Makes a request of the engine for a call; returns the place under which the call gets the
    /// result.
    pub(super) fn ask(
        &mut self,
        ask: impl FnOnce(&mut Open<'_>, u64) -> Result<Op, Error>,
    ) -> Result<usize, Error> {
        if self.closing {
            return Err(Error::Closed(ClosedReason::Asked));
        }
        let place = self.places.insert(Place::Reserved);
        match ask(self, place as u64) {
            Ok(op) => {
                self.asks = true;
                self.places[place] = Place::Asked { op, ended: false, waiter: None };
                Ok(place)
            }
            Err(error) => {
                self.places.remove(place);
                Err(error)
            }
        }
    }

    /// The result of a call, if there is one; otherwise notes `waiter`, which is woken when there
    /// is.
    pub(super) fn poll_place(
        &mut self,
        place: usize,
        waiter: Waiter,
    ) -> Poll<Result<Outcome, Error>> {
        self.pass_on_results();
        let polled = self.fetch(place);
        if polled.is_ready() {
            self.after_unlock.drop_waiter(waiter);
        } else {
            self.set_waiter(place, Some(waiter));
        }
        polled
    }

    /// The result of a call, if there is one that was passed on.
    pub(super) fn fetch(&mut self, place: usize) -> Poll<Result<Outcome, Error>> {
        let Some(Place::Asked { op, ended, waiter }) = self.places.get_mut(place) else {
            // The client is closing: the call was woken, and has lost its place.
            return Poll::Ready(Err(Error::Closed(ClosedReason::Asked)));
        };
        if !mem::take(ended) {
            return Poll::Pending;
        }
        let (op, noted) = (*op, waiter.is_some());
        self.after_unlock.coming = self.after_unlock.coming.saturating_sub(1);
        let Some(done) = self.engine.fetch(op) else { return Poll::Pending };
        if noted {
            self.set_waiter(place, None);
        }
        Poll::Ready(done.result)
    }

    /// Notes who waits for a call whose request was just made. If the result is there already, the
    /// waiter is woken, and fetches it.
    pub(super) fn note_waiter(&mut self, place: usize, waiter: Waiter) {
        self.pass_on_results();
        match self.places.get(place) {
            Some(Place::Asked { ended: false, .. }) => self.set_waiter(place, Some(waiter)),
            _ => self.after_unlock.wake(waiter),
        }
    }

    /// Replaces the waiter of a call.
    fn set_waiter(&mut self, place: usize, new: Option<Waiter>) {
        if let Some(Place::Asked { waiter, .. }) = self.places.get_mut(place) {
            self.driving.waiting += usize::from(new.is_some());
            self.driving.waiting -= usize::from(waiter.is_some());
            if let Some(former) = mem::replace(waiter, new) {
                self.after_unlock.drop_waiter(former);
            }
        }
    }

    /// A waker is the user's: it must not be dropped while the mutex is locked.
    pub(super) fn drop_after_unlock(&mut self, waker: Waker) {
        self.after_unlock.dropped.push(waker);
    }

    /// A call is over: its place is free, unless a guard has it by now.
    pub(super) fn leave(&mut self, place: usize) {
        if let Some(Place::Asked { .. }) = self.places.get(place) {
            self.set_waiter(place, None);
            self.places.remove(place);
        }
    }

    /// A call was dropped: its request is canceled. But an extend goes on, and its result is an
    /// update of the lock.
    pub(super) fn cancel(&mut self, place: usize) {
        if let Some(&Place::Asked { op, ended, .. }) = self.places.get(place) {
            self.after_unlock.coming -= usize::from(ended && self.after_unlock.coming > 0);
            self.engine.abandon(op);
            self.leave(place);
        }
    }

    /// The call at `place` was granted a lock. From now on the place belongs to the guard, whose
    /// state is returned.
    pub(super) fn hold(
        &mut self,
        place: usize,
        (key, keys): (&[u8], Option<&KeySet>),
        lock: &Lock,
    ) -> Arc<LockState> {
        let mut lock_state = self.spares.pop().unwrap_or_default();
        let unshared = Arc::get_mut(&mut lock_state).expect("a spare one has no other owner");
        unshared.reset(key, place);
        unshared.set_keys(keys);
        lock_state.set_deadline(self.engine.deadline(lock));
        let held = Place::Held { token: lock.token(), lock_state: Arc::clone(&lock_state) };
        self.set_waiter(place, None);
        self.places[place] = held;
        lock_state
    }

    /// Renews a lock from now on, on these terms.
    pub(super) fn auto_extend(
        &mut self,
        lock: &Lock,
        auto_extend: AutoExtend,
        lock_state: &LockState,
    ) -> Result<(), Error> {
        if self.closing {
            return Err(Error::Closed(ClosedReason::Asked));
        }
        self.engine.auto_extend(lock, auto_extend)?;
        // The bound of the extension may bring the deadline forward.
        lock_state.set_deadline(self.engine.deadline(lock));
        Ok(())
    }

    /// Passes on the results of requests that ended, and the updates of locks. The threads that
    /// wait for such a result are woken after the unlock, and the futures by
    /// [`wake_futures`](Open::wake_futures).
    pub(super) fn pass_on_results(&mut self) {
        while let Some((op, data)) = self.engine.poll_ended() {
            match self.places.get_mut(data as usize) {
                Some(Place::Asked { op: asked, ended, waiter }) if *asked == op => {
                    *ended = true;
                    let Some(noted) = waiter else { continue };
                    self.after_unlock.coming += 1;
                    self.driving.woke_a_thread = matches!(noted, Waiter::Thread(_));
                    if let Waiter::Thread(bell) = noted {
                        self.after_unlock.rung.ring(bell);
                        self.driving.waiting -= 1;
                        *waiter = None;
                    } else {
                        self.after_unlock.unwoken.push_back(data as usize);
                    }
                }
                // No call waits for the result.
                _ => drop(self.engine.fetch(op)),
            }
        }
        while let Some(update) = self.engine.poll_lock_update() {
            self.pass_on(update);
        }
        while let Some(data) = self.engine.poll_news() {
            self.pass_on_news(data as usize);
        }
    }

    /// Wakes futures with a result, until so many calls are on their way to fetch theirs.
    ///
    /// Each unlock does this, so a future that fetched its result wakes the next one: an executor
    /// then runs them one after the other, where they are. If all were woken at once, idle workers
    /// of the executor would be woken for them, only to wait for the mutex. A thread costs a
    /// wake-up in either case, and is woken at once.
    pub(super) fn wake_futures(&mut self, at_once: usize) {
        let after_unlock = &mut *self.after_unlock;
        while after_unlock.coming.saturating_sub(after_unlock.unwoken.len()) < at_once {
            let Some(place) = after_unlock.unwoken.pop_front() else { return };
            // A future that was polled or dropped before it was woken does not wait any more.
            if let Some(Place::Asked { ended: true, waiter, .. }) = self.places.get_mut(place) {
                if let Some(waiter) = waiter.take() {
                    self.driving.waiting -= 1;
                    after_unlock.wake(waiter);
                }
            }
        }
    }

    fn pass_on(&mut self, update: LockUpdate) {
        match self.places.get(update.data as usize) {
            Some(
                Place::Held { token, lock_state }
                | Place::Campaign { term: Some((token, lock_state)), .. },
            ) if *token == update.token => {
                lock_state.update(update.kind, &mut self.after_unlock.woken);
            }
            _ => {}
        }
    }

    /// The part of a turn that every driver makes; `hand_over` passes the events of the poller to
    /// the engine.
    pub(super) fn turn(&mut self, hand_over: impl FnOnce(&mut Engine)) {
        hand_over(self.engine);
        self.look_up_names();
        self.engine.go_on();
        self.pass_on_results();
    }

    pub(super) fn look_up_names(&mut self) {
        while let Some((node, addresses)) = self.names.found() {
            self.engine.set_address(node, addresses);
        }
        while let Some(node) = self.engine.take_stale() {
            if let Some(lookup) = self.engine.lookup(node) {
                self.names.begin(node, lookup);
            }
        }
    }

    /// Counts what is open.
    pub(super) fn count(&self) -> super::Gauges {
        let core = self.engine.coordinator();
        let nodes = || (0..core.settings().nodes.len()).map(NodeId::new);
        let is_call = |place: &Place| !matches!(place, Place::Held { .. } | Place::Campaign { .. });
        let calls = self.places.iter().filter(|(_, place)| is_call(place)).count();
        super::Gauges {
            calls: calls + core.auto_extended_locks(),
            requests: core.open_ops(),
            records: core.open_records(),
            timers: core.open_timers(),
            unanswered: nodes().map(|node| core.unanswered(node)).sum(),
            pending_releases: nodes().map(|node| core.pending_releases(node)).sum(),
        }
    }

    /// A lock was released or given away: it is over for all its watchers.
    pub(super) fn end_lock(&mut self, lock_state: &Arc<LockState>) {
        // The lock may have been over before, and another call may have its place.
        let place = lock_state.place();
        if let Some(Place::Held { lock_state: held, .. }) = self.places.get(place) {
            if Arc::ptr_eq(held, lock_state) {
                self.places.remove(place);
            }
        }
        lock_state.ends(None, &mut self.after_unlock.woken);
    }

    /// Takes back the state of a guard that was dropped, for the next guard. If it returns the
    /// state, the caller drops it after unlocking the mutex: watchers still use it, or it holds a
    /// waker of the user's.
    pub(super) fn put_back(&mut self, mut lock_state: Arc<LockState>) -> Option<Arc<LockState>> {
        let fits = self.spares.len() < SPARES;
        if fits && Arc::get_mut(&mut lock_state).is_some_and(|unshared| unshared.reset(&[], 0)) {
            self.spares.push(lock_state);
            return None;
        }
        Some(lock_state)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::SharedClient;
    use super::*;
    use crate::config::Config;
    use crate::proto::lock_options::LockOptions;
    use crate::proto::locks::held::updates::LockUpdateKind;
    use crate::proto::time::Instant;

    const TTL: Duration = Duration::from_secs(10);

    /// With a zero wait the request ends at once, as no node is reached; its end was not reported
    /// yet.
    fn ask(open: &mut Open<'_>, wait: Duration) -> (usize, Op) {
        let options = LockOptions::new(TTL).wait(wait);
        let place = open.ask(|open, data| open.engine.acquire(b"a", options, data)).unwrap();
        let Place::Asked { op, .. } = open.places[place] else { panic!("it is asked") };
        (place, op)
    }

    fn client() -> SharedClient {
        let config = Config::new(["redis://127.0.0.1:1"]).unwrap();
        SharedClient::connect_blocking(config.connect_timeout(Duration::from_millis(50))).unwrap()
    }

    /// A place is reused before its former lock is over, or before the loss of it is reported.
    #[test]
    fn loss_or_end_of_a_lock_is_not_that_of_the_lock_in_its_place() {
        let client = client();
        let tried = client.owner.inner.with(|open| {
            let [before, after] = ["0", "1"].map(|digit| LockToken::parse(&digit.repeat(40)));
            let lock_state = Arc::new(LockState::default());
            lock_state.set_deadline(Some(Instant::from_nanos(1)));
            let held =
                Place::Held { token: after.clone().unwrap(), lock_state: Arc::clone(&lock_state) };
            let place = open.places.insert(held);
            let loss = |token| {
                let kind = LockUpdateKind::Lost(Error::Closed(ClosedReason::Asked));
                LockUpdate { data: place as u64, token, kind }
            };
            let mut former = LockState::default();
            former.reset(b"a", place);
            open.end_lock(&Arc::new(former));
            open.pass_on(loss(before.unwrap()));
            assert!(open.places.contains(place) && lock_state.deadline().is_some());
            open.pass_on(loss(after.unwrap()));
            assert_eq!(lock_state.deadline(), None);
            open.end_lock(&lock_state);
            assert!(!open.places.contains(place));
        });
        tried.unwrap();
    }

    #[test]
    fn futures_are_woken_in_order_as_others_fetch_their_results_or_are_dropped() {
        let client = client();
        let tried = client.owner.inner.with(|open| {
            let places = [(); 6].map(|()| ask(open, Duration::ZERO).0);
            for place in places {
                open.set_waiter(place, Some(Waiter::Task(Waker::noop().clone())));
            }
            open.pass_on_results();
            let waits = |open: &Open<'_>, place: &usize| {
                matches!(open.places[*place], Place::Asked { waiter: Some(_), .. })
            };
            let woken = |open: &mut Open<'_>| {
                open.wake_futures(2);
                let woken = places.iter().take_while(|place| match open.places.get(**place) {
                    Some(_) => !waits(open, place),
                    None => true,
                });
                woken.count()
            };
            assert_eq!((woken(open), woken(open)), (2, 2));
            assert!(open.fetch(places[1]).is_ready());
            assert_eq!(woken(open), 3);
            open.cancel(places[0]);
            assert_eq!(woken(open), 4);
            // This future was not woken yet.
            assert!(open.fetch(places[4]).is_ready());
            assert_eq!(woken(open), 5);
            open.wake_futures(usize::MAX);
            assert_eq!((woken(open), open.driving.waiting), (6, 0));
        });
        tried.unwrap();
    }

    /// The futures that are woken first may never be polled.
    #[test]
    fn all_futures_are_woken_that_a_caller_ends_while_the_driver_sleeps() {
        let client = client();
        let inner = &client.owner.inner;
        // The driver may wake up at any moment: this is tried until it slept all the time.
        let waiting = (0..).find_map(|_| {
            let slept = inner.with(|open| {
                for _ in 0..3 {
                    let (place, _) = ask(open, Duration::ZERO);
                    open.set_waiter(place, Some(Waiter::Task(Waker::noop().clone())));
                }
                !inner.is_awake()
            });
            let (waiting, sleeps) = inner
                .with(|open| {
                    let waiting = open.driving.waiting;
                    open.wake_futures(usize::MAX);
                    (waiting, !inner.is_awake())
                })
                .unwrap();
            (slept.unwrap() && sleeps).then_some(waiting)
        });
        assert_eq!(waiting, Some(0));
    }

    /// A place is reused before the end of its former request is reported.
    #[test]
    fn completion_is_not_reported_to_the_next_call_of_the_same_place() {
        let client = client();
        let tried = client.owner.inner.with(|open| {
            let (_, op) = ask(open, 600 * TTL);
            let lock_state = Arc::new(LockState::default());
            lock_state.set_deadline(Some(Instant::from_nanos(1)));
            let token = LockToken::parse(&"0".repeat(40)).unwrap();
            let others = [
                Place::Asked { op, ended: false, waiter: None },
                Place::Held { token, lock_state: Arc::clone(&lock_state) },
            ];
            for other in others {
                let (place, ended) = ask(open, Duration::ZERO);
                open.places[place] = other;
                open.pass_on_results();
                assert!(!matches!(open.places[place], Place::Asked { ended: true, .. }));
                assert!(lock_state.deadline().is_some(), "its lock is not over");
                assert!(
                    open.engine.fetch(ended).is_none(),
                    "no call waits for it, and it is not kept"
                );
            }
        });
        tried.unwrap();
    }
}
