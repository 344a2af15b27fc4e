//! What can be done under the lock of a shared client before its end: requests to the engine, the
//! report of their results to the waiting calls, and the places that link a call to its request.
//!
//! The hazard is a result that reaches the wrong call: places are reused, so the op is compared.

use std::mem;
use std::sync::Arc;
use std::task::{Poll, Waker};

use slab::Slab;

use super::lock_state::LockState;
use crate::net::clock;
use crate::net::engine::Engine;
use crate::net::names::Names;
use crate::proto::error::{ClosedReason, Error, LostReason};
use crate::proto::ids::Op;
use crate::proto::lock::Lock;
use crate::proto::locks::auto_extend::AutoExtend;
use crate::proto::locks::requests::Outcome;
use crate::proto::node_set::NodeId;

/// How many lock states are kept for the next guards.
const SPARES: usize = 1024;

/// What is done after the lock is released.
#[derive(Debug, Default)]
pub(super) struct AfterUnlock {
    pub(super) woken: Vec<Waker>,
    pub(super) dropped: Vec<Waker>,
    /// How many calls were woken since the driver last slept, and did not fetch their results yet.
    /// An upper bound: some calls are dropped instead.
    pub(super) coming: usize,
}

/// What a request belongs to: the number of the place is the data of its op.
#[derive(Debug)]
pub(super) enum Place {
    /// A call waits for the result.
    Asked { op: Op, ended: bool, waker: Option<Waker>, extends: Option<Doubted> },
    /// An extend is in flight, and its call was dropped.
    Extending { op: Op, extends: Doubted },
    /// A lock that was handed out is kept.
    Kept { op: Op, lock_state: Arc<LockState> },
    /// The request is about to be made.
    Reserved,
}

/// A lock with an extend in flight, and the state that its holder reads. If the number of nodes is
/// even, an extend can end without having found that the lock is lost, and later answers show the
/// loss: one half of the nodes refuses it for good, and the other half has no key. No request ends
/// with those answers.
#[derive(Debug)]
pub(super) struct Doubted {
    lock: Lock,
    lock_state: Arc<LockState>,
}

/// What the lock protects, before the end.
pub struct Open<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) places: &'a mut Slab<Place>,
    pub(super) doubted: &'a mut Vec<Doubted>,
    pub(super) after_unlock: &'a mut AfterUnlock,
    pub(super) names: &'a mut Names,
    pub(super) spares: &'a mut Vec<Arc<LockState>>,
    pub(super) closing: bool,
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
                self.places[place] = Place::Asked { op, ended: false, waker: None, extends: None };
                Ok(place)
            }
            Err(error) => {
                self.places.remove(place);
                Err(error)
            }
        }
    }

    /// The result of a call, if there is one; otherwise notes `waker`, which is woken when there
    /// is.
    pub(super) fn poll_place(
        &mut self,
        place: usize,
        waker: Waker,
    ) -> Poll<Result<Outcome, Error>> {
        self.pass_on_results();
        let Some(Place::Asked { op, ended, waker: noted, .. }) = self.places.get_mut(place) else {
            // The client is closing: the call was woken, and has no place any more.
            self.drop_after_unlock(waker);
            return Poll::Ready(Err(Error::Closed(ClosedReason::Asked)));
        };
        let done = if mem::take(ended) {
            self.after_unlock.coming = self.after_unlock.coming.saturating_sub(1);
            self.engine.fetch(*op)
        } else {
            None
        };
        match done {
            Some(done) => {
                self.after_unlock.dropped.extend(noted.take());
                self.after_unlock.dropped.push(waker);
                Poll::Ready(done.result)
            }
            None => {
                self.after_unlock.dropped.extend(noted.replace(waker));
                Poll::Pending
            }
        }
    }

    /// A waker is the user's: it must not be dropped under the lock.
    pub(super) fn drop_after_unlock(&mut self, waker: Waker) {
        self.after_unlock.dropped.push(waker);
    }

    /// A call is over: its place is free, unless its lock is kept.
    pub(super) fn leave(&mut self, place: usize) {
        if let Some(Place::Asked { .. }) = self.places.get(place) {
            if let Place::Asked { waker, .. } = self.places.remove(place) {
                self.after_unlock.dropped.extend(waker);
            }
        }
    }

    /// A call was dropped: its request is canceled. But an extend goes on, because the nodes may
    /// answer that the lock is lost.
    pub(super) fn cancel(&mut self, place: usize) {
        let Some(Place::Asked { op, waker, extends, .. }) = self.places.get_mut(place) else {
            return;
        };
        let op = *op;
        if let Some(extends) = extends.take() {
            self.after_unlock.dropped.extend(waker.take());
            extends.lock_state.set_extending(Some(place));
            self.places[place] = Place::Extending { op, extends };
            // The engine may have reported its end before.
            self.finish_extend(place);
        } else {
            self.engine.cancel(op);
            self.leave(place);
        }
    }

    /// The call at `place` extends a lock: `lock_state` gets the result, also if the call is
    /// dropped.
    pub(super) fn extends(&mut self, place: usize, lock: &Lock, lock_state: &Arc<LockState>) {
        if let Some(Place::Asked { extends, .. }) = self.places.get_mut(place) {
            *extends = Some(Doubted { lock: lock.alias(), lock_state: Arc::clone(lock_state) });
        }
    }

    /// Cancels an extend whose call was dropped.
    pub(super) fn forget_extend(&mut self, lock_state: &LockState) {
        let place = lock_state.set_extending(None).and_then(|place| self.places.try_remove(place));
        if let Some(Place::Extending { op, .. }) = place {
            self.engine.cancel(op);
        }
    }

    fn finish_extend(&mut self, place: usize) {
        let Some(Place::Extending { op, .. }) = self.places.get(place) else { return };
        let Some(done) = self.engine.fetch(*op) else { return };
        let Place::Extending { extends, .. } = self.places.remove(place) else { return };
        extends.lock_state.set_extending(None);
        match done.result {
            Ok(Outcome::Extended { deadline }) => extends.lock_state.set_deadline(Some(deadline)),
            Err(error) => self.handle_failed_extend(error, extends),
            _ => {}
        }
    }

    /// An extend failed: if that shows that the lock is lost, its state ends.
    fn handle_failed_extend(&mut self, error: Error, extends: Doubted) {
        match error {
            // Watchers may read the state before the call does.
            Error::Lost { .. } => {
                extends.lock_state.ends(Some(error), &mut self.after_unlock.woken)
            }
            // Each lock once: so there are no more entries than records.
            _ if self.doubted.iter().any(|it| Arc::ptr_eq(&it.lock_state, &extends.lock_state)) => {
            }
            _ => self.doubted.push(extends),
        }
    }

    /// Ends the states of locks whose loss was found by answers that came after the end of an
    /// extend.
    fn check_doubted(&mut self) {
        if self.doubted.is_empty() {
            return;
        }
        let (core, woken) = (self.engine.coordinator(), &mut self.after_unlock.woken);
        let now = clock::now();
        self.doubted.retain(|Doubted { lock, lock_state }| {
            // The lock was released, is kept under a place, or its deadline has passed.
            if lock_state.place().is_some()
                || lock_state.deadline().is_none_or(|deadline| deadline <= now)
            {
                return false;
            }
            let held = core.deadline(lock).is_some();
            if !held {
                let mut report = core.report_standings(now);
                report.key = lock_state.key().into();
                lock_state.ends(Some(Error::Lost { reason: LostReason::Gone, report }), woken);
            }
            held
        });
    }

    /// The call at `place` was granted a lock: if it is kept, `lock_state` gets its events from
    /// now on.
    pub(super) fn follow_if_kept(&mut self, place: usize, lock_state: &Arc<LockState>) {
        if let Some(&Place::Asked { op, .. }) = self.places.get(place) {
            if self.engine.coordinator().is_open(op) {
                self.follow(place, lock_state);
            }
        }
    }

    /// The request under `place` keeps a lock: `lock_state` gets its events.
    fn follow(&mut self, place: usize, lock_state: &Arc<LockState>) {
        let Some(Place::Asked { op, waker, .. }) = self.places.get_mut(place) else { return };
        self.after_unlock.dropped.extend(waker.take());
        let op = *op;
        self.places[place] = Place::Kept { op, lock_state: Arc::clone(lock_state) };
        if let Some(former) = lock_state.set_place(Some(place)) {
            self.places.try_remove(former);
        }
    }

    /// Keeps a lock, and has its events change `lock_state`.
    pub(super) fn auto_extend(
        &mut self,
        lock: &Lock,
        keep: AutoExtend,
        lock_state: &Arc<LockState>,
    ) -> Result<(), Error> {
        let keep = keep.notify_renewals();
        let place = self.ask(|open, data| open.engine.auto_extend(lock, keep, data))?;
        self.follow(place, lock_state);
        // The longest time that the lock may be held caps the deadline.
        lock_state.set_deadline(self.engine.deadline(lock));
        Ok(())
    }

    /// Makes sure that the loss of a lock reaches `lock_state`, if it does not yet.
    pub(super) fn watch(&mut self, lock: &Lock, lock_state: &Arc<LockState>) -> Result<(), Error> {
        let reported = lock_state.place().is_some() || lock_state.deadline().is_none();
        if reported {
            Ok(())
        } else {
            self.auto_extend(lock, AutoExtend::extensions(0), lock_state)
        }
    }

    /// Passes on the results of requests that ended, and wakes their calls.
    pub(super) fn pass_on_results(&mut self) {
        while let Some((op, data)) = self.engine.poll_ended() {
            match self.places.get_mut(data as usize) {
                Some(Place::Asked { op: asked, ended, waker, extends }) if *asked == op => {
                    *ended = true;
                    self.after_unlock.coming += usize::from(waker.is_some());
                    self.after_unlock.woken.extend(waker.take());
                    let lock = extends.as_ref();
                    let error = lock.and_then(|_| self.engine.coordinator().error(op).cloned());
                    if let Some((error, Some(extends))) = error.map(|it| (it, extends.take())) {
                        self.handle_failed_extend(error, extends);
                    }
                }
                Some(Place::Kept { op: kept, lock_state }) if *kept == op => {
                    match self.engine.fetch(op).map(|done| done.result) {
                        Some(Ok(Outcome::Renewed { deadline })) => lock_state.set_renewed(deadline),
                        Some(Ok(Outcome::Expiring { deadline })) => {
                            lock_state.set_expiring(deadline)
                        }
                        Some(Err(error)) => {
                            lock_state.ends(Some(error), &mut self.after_unlock.woken)
                        }
                        _ => {}
                    }
                }
                Some(Place::Extending { op: asked, .. }) if *asked == op => {
                    self.finish_extend(data as usize);
                }
                _ => {
                    // No call waits for it any more.
                    self.engine.fetch(op);
                }
            }
        }
        self.check_doubted();
    }

    pub(super) fn look_names_up(&mut self) {
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
        super::Gauges {
            calls: self.places.len(),
            requests: core.open_ops(),
            records: core.open_records(),
            timers: core.open_timers(),
            unanswered: nodes().map(|node| core.unanswered(node)).sum(),
            pending_releases: nodes().map(|node| core.pending_releases(node)).sum(),
        }
    }

    /// A state for a lock on `key`.
    pub(super) fn lock_state_for(&mut self, key: &[u8]) -> Arc<LockState> {
        let mut lock_state = self.spares.pop().unwrap_or_default();
        let unshared = Arc::get_mut(&mut lock_state).expect("a spare one has no other owner");
        unshared.reset(key);
        lock_state
    }

    /// A lock was released or given away: it is over for all its watchers.
    pub(super) fn end_lock(&mut self, lock_state: &LockState) {
        if let Some(place) = lock_state.set_place(None) {
            self.places.try_remove(place);
        }
        self.forget_extend(lock_state);
        lock_state.ends(None, &mut self.after_unlock.woken);
    }

    /// Takes back the state of a guard that was dropped, for the next guard. If it returns the
    /// state, the caller drops it after releasing the lock: watchers still use it, or it holds a
    /// waker of the user's.
    pub(super) fn put_back(&mut self, mut lock_state: Arc<LockState>) -> Option<Arc<LockState>> {
        let fits = self.spares.len() < SPARES;
        if fits && Arc::get_mut(&mut lock_state).is_some_and(|lock_state| lock_state.reset(&[])) {
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
    use crate::config::{Config, LockOptions};
    use crate::proto::lock::LockToken;
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

    /// A place is reused before the end of its former request is reported.
    #[test]
    fn an_end_is_not_reported_to_the_call_that_has_the_place_by_now() {
        let config = Config::new(["redis://127.0.0.1:1"]).unwrap();
        let config = config.connect_timeout(Duration::from_millis(50));
        let client = SharedClient::connect(config).unwrap();
        let tried = client.owner.inner.with(|open| {
            let (_, op) = ask(open, 600 * TTL);
            let lock_state = open.lock_state_for(b"a");
            lock_state.set_deadline(Some(Instant::from_nanos(1)));
            let token = LockToken::parse(&"0".repeat(40)).unwrap();
            let lock = Lock { record: crate::proto::ids::RecordId::of(0), token };
            let others = [
                Place::Asked { op, ended: false, waker: None, extends: None },
                Place::Kept { op, lock_state: Arc::clone(&lock_state) },
                Place::Extending {
                    op,
                    extends: Doubted { lock, lock_state: Arc::clone(&lock_state) },
                },
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
