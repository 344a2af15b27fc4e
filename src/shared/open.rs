//! What can be done under the lock of a shared client before its end: asking the engine, telling
//! who waits, and the places by which both know each other.
//!
//! The hazard is an end that reaches the wrong call: a place is used again, so the op is compared.

use std::mem;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use super::hold::Hold;
use crate::net::clock;
use crate::net::engine::Engine;
use crate::net::names::Names;
use crate::proto::error::{Closed, Error, Loss};
use crate::proto::keeper::Keep;
use crate::proto::lock::Lock;
use crate::proto::node::NodeId;
use crate::proto::ops::{Op, Outcome};

/// What is kept for the next guards.
const SPARES: usize = 1024;

/// What is done behind the lock.
#[derive(Debug, Default)]
pub(super) struct Behind {
    pub(super) woken: Vec<Waker>,
    pub(super) dropped: Vec<Waker>,
    /// How many calls were woken since the driver slept and did not look after their end yet; a
    /// guess, as some are dropped instead.
    pub(super) coming: usize,
}

/// Who is told what a request comes to: the number of the place is the data of its op.
#[derive(Debug)]
pub(super) enum Place {
    /// A call waits for its end.
    Asked { op: Op, ended: bool, waker: Option<Waker>, extends: Option<Doubted> },
    /// A lock is extended, and the call that asked for it is gone.
    Extending { op: Op, extends: Doubted },
    /// A lock that was handed out is kept.
    Kept { op: Op, hold: Arc<Hold> },
    /// It is about to be asked.
    Reserved,
}

/// A lock that is extended, and who believes in it. An extend that ends without having found the
/// lock lost may still have answers to come that do, where the number of nodes is even: one half
/// refuses it for good, and the other half has no key. Nobody's request ends with that.
#[derive(Debug)]
pub(super) struct Doubted {
    lock: Lock,
    hold: Arc<Hold>,
}

/// What came of looking after a call.
pub(super) enum Looked<T> {
    /// It goes on: its waker is noted.
    Waiting,
    /// It came to this.
    Over(T),
}

/// What is behind the lock, before the end.
pub struct Open<'a> {
    pub(super) engine: &'a mut Engine,
    pub(super) places: &'a mut Slab<Place>,
    pub(super) doubted: &'a mut Vec<Doubted>,
    pub(super) behind: &'a mut Behind,
    pub(super) names: &'a mut Names,
    pub(super) spares: &'a mut Vec<Arc<Hold>>,
    pub(super) closing: bool,
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
                self.places[place] = Place::Asked { op, ended: false, waker: None, extends: None };
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
        let Some(Place::Asked { op, ended, waker: noted, .. }) = self.places.get_mut(place) else {
            // The client is closing: it was told, and has no place any more.
            self.drop_behind(waker);
            return Looked::Over(Err(Error::Closed(Closed::Asked)));
        };
        let done = if mem::take(ended) {
            self.behind.coming = self.behind.coming.saturating_sub(1);
            self.engine.fetch(*op)
        } else {
            None
        };
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

    /// A waker is the user's: it is not dropped under the lock.
    pub(super) fn drop_behind(&mut self, waker: Waker) {
        self.behind.dropped.push(waker);
    }

    /// A call is over: its place is free, unless its lock is kept.
    pub(super) fn leave(&mut self, place: usize) {
        if let Some(Place::Asked { .. }) = self.places.get(place) {
            if let Place::Asked { waker, .. } = self.places.remove(place) {
                self.behind.dropped.extend(waker);
            }
        }
    }

    /// A call is not waited for any more: it is taken back. An extend goes on: what the nodes say
    /// may be that the lock is lost.
    pub(super) fn cancel(&mut self, place: usize) {
        let Some(Place::Asked { op, waker, extends, .. }) = self.places.get_mut(place) else {
            return;
        };
        let op = *op;
        if let Some(extends) = extends.take() {
            self.behind.dropped.extend(waker.take());
            extends.hold.set_extending(Some(place));
            self.places[place] = Place::Extending { op, extends };
            // It may have been told of before.
            self.hear_of_extend(place);
        } else {
            self.engine.cancel(op);
            self.leave(place);
        }
    }

    /// The call at `place` extends a lock: its hold is told, also where nobody waits for the call.
    pub(super) fn extends(&mut self, place: usize, lock: &Lock, hold: &Arc<Hold>) {
        if let Some(Place::Asked { extends, .. }) = self.places.get_mut(place) {
            *extends = Some(Doubted { lock: lock.alias(), hold: Arc::clone(hold) });
        }
    }

    /// Takes an extend back whose call is gone.
    pub(super) fn forget_extend(&mut self, hold: &Hold) {
        let place = hold.set_extending(None).and_then(|place| self.places.try_remove(place));
        if let Some(Place::Extending { op, .. }) = place {
            self.engine.cancel(op);
        }
    }

    fn hear_of_extend(&mut self, place: usize) {
        let Some(Place::Extending { op, .. }) = self.places.get(place) else { return };
        let Some(done) = self.engine.fetch(*op) else { return };
        let Place::Extending { extends, .. } = self.places.remove(place) else { return };
        extends.hold.set_extending(None);
        match done.result {
            Ok(Outcome::Extended { deadline }) => extends.hold.set_deadline(Some(deadline)),
            Err(error) => self.is_not_extended(error, extends),
            _ => {}
        }
    }

    /// An extend came to nothing: where that tells that the lock is lost, its hold ends.
    fn is_not_extended(&mut self, error: Error, extends: Doubted) {
        match error {
            // Others look at it before the call does.
            Error::Lost { .. } => extends.hold.ends(Some(error), &mut self.behind.woken),
            // Each lock once: there are no more of them than records.
            _ if self.doubted.iter().any(|it| Arc::ptr_eq(&it.hold, &extends.hold)) => {}
            _ => self.doubted.push(extends),
        }
    }

    /// Ends the holds of locks whose loss was found by what came behind the end of an extend.
    fn look_at_doubted(&mut self) {
        if self.doubted.is_empty() {
            return;
        }
        let (core, woken) = (self.engine.coordinator(), &mut self.behind.woken);
        let now = clock::now();
        self.doubted.retain(|Doubted { lock, hold }| {
            // It was given back, is told of elsewhere, or has come to its deadline.
            if hold.place().is_some() || hold.deadline().is_none_or(|deadline| deadline <= now) {
                return false;
            }
            let held = core.deadline(lock).is_some();
            if !held {
                let mut report = core.report_standings(now);
                report.key = hold.key().into();
                hold.ends(Some(Error::Lost { reason: Loss::Gone, report }), woken);
            }
            held
        });
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

    /// Has the loss of a lock told to `hold`, where nothing does so by now.
    pub(super) fn watch(&mut self, lock: &Lock, hold: &Arc<Hold>) -> Result<(), Error> {
        let told = hold.place().is_some() || hold.deadline().is_none();
        if told { Ok(()) } else { self.keep(lock, Keep::extensions(0), hold) }
    }

    /// Tells those whose requests ended.
    pub(super) fn tell(&mut self) {
        while let Some((op, data)) = self.engine.poll_ended() {
            match self.places.get_mut(data as usize) {
                Some(Place::Asked { op: asked, ended, waker, extends }) if *asked == op => {
                    *ended = true;
                    self.behind.coming += usize::from(waker.is_some());
                    self.behind.woken.extend(waker.take());
                    let lock = extends.as_ref();
                    let error = lock.and_then(|_| self.engine.coordinator().error(op).cloned());
                    if let Some((error, Some(extends))) = error.map(|it| (it, extends.take())) {
                        self.is_not_extended(error, extends);
                    }
                }
                Some(Place::Kept { op: kept, hold }) if *kept == op => {
                    match self.engine.fetch(op).map(|done| done.result) {
                        Some(Ok(Outcome::Renewed { deadline })) => hold.is_renewed(deadline),
                        Some(Ok(Outcome::Expiring { deadline })) => hold.is_expiring(deadline),
                        Some(Err(error)) => hold.ends(Some(error), &mut self.behind.woken),
                        _ => {}
                    }
                }
                Some(Place::Extending { op: asked, .. }) if *asked == op => {
                    self.hear_of_extend(data as usize);
                }
                _ => {
                    // Nobody's any more.
                    self.engine.fetch(op);
                }
            }
        }
        self.look_at_doubted();
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
        self.forget_extend(hold);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::SharedClient;
    use super::*;
    use crate::config::{Config, LockOptions};
    use crate::proto::lock::Token;
    use crate::proto::time::Instant;

    const TTL: Duration = Duration::from_secs(10);

    /// What is asked for in one attempt ends at once, as nobody is reached; it was not told of yet.
    fn ask(open: &mut Open<'_>, wait: Duration) -> (usize, Op) {
        let options = LockOptions::ttl(TTL).wait(wait);
        let place = open.ask(|open, data| open.engine.acquire(b"a", options, data)).unwrap();
        let Place::Asked { op, .. } = open.places[place] else { panic!("it is asked") };
        (place, op)
    }

    /// A place that is used again before an end is told that was meant for the one before.
    #[test]
    fn an_end_is_not_told_to_who_has_the_place_by_now() {
        let config = Config::new(["redis://127.0.0.1:1"]).unwrap();
        let config = config.connect_timeout(Duration::from_millis(50));
        let client = SharedClient::connect(config).unwrap();
        let tried = client.owner.hub.with(|open| {
            let (_, op) = ask(open, 600 * TTL);
            let hold = open.hold_for(b"a");
            hold.set_deadline(Some(Instant::from_nanos(1)));
            let token = Token::parse(&"0".repeat(40)).unwrap();
            let lock = Lock { record: 0, generation: 0, token };
            let others = [
                Place::Asked { op, ended: false, waker: None, extends: None },
                Place::Kept { op, hold: Arc::clone(&hold) },
                Place::Extending { op, extends: Doubted { lock, hold: Arc::clone(&hold) } },
            ];
            for other in others {
                let (place, ended) = ask(open, Duration::ZERO);
                open.places[place] = other;
                open.tell();
                assert!(!matches!(open.places[place], Place::Asked { ended: true, .. }));
                assert!(hold.deadline().is_some(), "its lock is not over");
                assert!(open.engine.fetch(ended).is_none(), "it is nobody's, and not kept");
            }
        });
        tried.unwrap();
    }
}
