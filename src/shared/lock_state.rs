//! What is known of a held lock without asking the engine: a copy of its deadline, and whether it
//! was lost.
//!
//! The hazard is a copy that is later than the deadline: it is changed under the lock of the
//! engine, by whoever changed the deadline or heard of it, and goes to zero before others can be
//! told.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use slab::Slab;

use crate::proto::error::Error;
use crate::proto::time::Instant;

/// No place.
const NONE: usize = usize::MAX;

/// What is known of a lock.
#[derive(Debug)]
pub(super) struct LockState {
    key: Vec<u8>,
    /// In nanoseconds; 0 once it is over.
    deadline: AtomicU64,
    /// It comes near its deadline, and was not renewed.
    expiring: AtomicBool,
    /// The place under which its keeping is told.
    place: AtomicUsize,
    /// The place under which an extend is told whose call is gone.
    extending: AtomicUsize,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    /// It is over: given back or given away, where there is no error.
    over: bool,
    /// Why it was lost.
    error: Option<Error>,
    /// Who waits for it.
    waiting: Slab<Waker>,
}

impl Default for LockState {
    fn default() -> LockState {
        LockState {
            key: Vec::new(),
            deadline: AtomicU64::new(0),
            expiring: AtomicBool::new(false),
            place: AtomicUsize::new(NONE),
            extending: AtomicUsize::new(NONE),
            end: Mutex::default(),
        }
    }
}

impl LockState {
    /// Makes it that of another lock; `false` where somebody's waker is in it, which is to be
    /// dropped elsewhere.
    pub(super) fn reset(&mut self, key: &[u8]) -> bool {
        self.key.clear();
        self.key.extend_from_slice(key);
        *self.deadline.get_mut() = 0;
        *self.expiring.get_mut() = false;
        *self.place.get_mut() = NONE;
        *self.extending.get_mut() = NONE;
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        (end.over, end.error) = (false, None);
        end.waiting.is_empty()
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The deadline is another one.
    pub(super) fn set_deadline(&self, deadline: Option<Instant>) {
        self.deadline.store(deadline.map_or(0, Instant::as_nanos), Ordering::Release);
    }

    /// When the lock ends; `None` once it is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let nanos = self.deadline.load(Ordering::Acquire);
        (nanos != 0).then_some(Instant::from_nanos(nanos))
    }

    pub(super) fn is_renewed(&self, deadline: Instant) {
        self.expiring.store(false, Ordering::Release);
        self.set_deadline(Some(deadline));
    }

    /// The deadline is that of a renewal which nobody told of, where the warning is due as well.
    pub(super) fn is_expiring(&self, deadline: Instant) {
        self.expiring.store(true, Ordering::Release);
        self.set_deadline(Some(deadline));
    }

    /// Whether it comes near its deadline without having been renewed.
    pub(super) fn was_warned(&self) -> bool {
        self.expiring.load(Ordering::Acquire)
    }

    /// It is over, by this error or without one; those who wait for that are put to `woken`.
    pub(super) fn ends(&self, error: Option<Error>, woken: &mut Vec<Waker>) {
        self.deadline.store(0, Ordering::Release);
        let mut end = self.end();
        if !end.over {
            (end.over, end.error) = (true, error);
        }
        woken.extend(end.waiting.drain());
    }

    /// Why it was lost, if that was told.
    pub(super) fn error(&self) -> Option<Error> {
        self.end().error.clone()
    }

    /// Whether it is over, and why if it was lost; otherwise `waker` is woken when it is. It is
    /// noted in `slot`, to be replaced by the next or forgotten.
    pub(super) fn poll_end(&self, slot: &mut Option<usize>, waker: &Waker) -> Poll<Option<Error>> {
        // Wakers are the user's: they are neither made nor dropped under the lock.
        let waker = waker.clone();
        let mut end = self.end();
        if end.over {
            let error = end.error.clone();
            drop(end);
            return Poll::Ready(error);
        }
        let former = match *slot {
            Some(slot) => Some(std::mem::replace(&mut end.waiting[slot], waker)),
            None => {
                *slot = Some(end.waiting.insert(waker));
                None
            }
        };
        drop(end);
        drop(former);
        Poll::Pending
    }

    /// Whoever waited does not any more.
    pub(super) fn forget_waker(&self, slot: usize) {
        let mut end = self.end();
        // At the end all of them were taken out.
        let former = if end.over { None } else { end.waiting.try_remove(slot) };
        drop(end);
        drop(former);
    }

    /// Under which place it is kept.
    pub(super) fn place(&self) -> Option<usize> {
        let place = self.place.load(Ordering::Acquire);
        (place != NONE).then_some(place)
    }

    /// It is kept under another place, or none; the former one.
    pub(super) fn set_place(&self, place: Option<usize>) -> Option<usize> {
        swap(&self.place, place)
    }

    /// An extend whose call is gone is told under another place, or none; the former one.
    pub(super) fn set_extending(&self, place: Option<usize>) -> Option<usize> {
        swap(&self.extending, place)
    }

    fn end(&self) -> MutexGuard<'_, End> {
        // Nothing that is done under it can leave it half done.
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn swap(place: &AtomicUsize, by: Option<usize>) -> Option<usize> {
    let former = place.swap(by.unwrap_or(NONE), Ordering::AcqRel);
    (former != NONE).then_some(former)
}
