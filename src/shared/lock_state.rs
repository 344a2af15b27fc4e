//! What is known of a held lock without asking the engine: a copy of its deadline, and whether the
//! lock was lost.
//!
//! The hazard is a copy that is later than the deadline. So the thread that changed the deadline,
//! or read of the change, changes the copy while it has the client's mutex locked. At the end of
//! the lock the copy becomes zero before any waiter is woken.

use std::task::{Poll, Waker};

use slab::Slab;

use crate::net::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};
use crate::proto::error::Error;
use crate::proto::key_set::KeySet;
use crate::proto::locks::held::updates::LockUpdateKind;
use crate::proto::time::Instant;

/// What is known of a lock: the sum of its [`LockUpdate`](crate::LockUpdate)s, so that a lock whose
/// holder does not read them takes no more memory.
#[derive(Debug, Default)]
pub(super) struct LockState {
    key: Vec<u8>,
    /// The keys, if there are several.
    keys: Option<KeySet>,
    /// In nanoseconds; 0 once the lock is over.
    deadline: AtomicU64,
    /// The deadline comes near, and the lock was not renewed.
    expiring: AtomicBool,
    /// The place under which its updates arrive.
    place: usize,
    end: Mutex<End>,
}

#[derive(Debug, Default)]
struct End {
    /// The lock is over: if there is no error, it was released or given away.
    over: bool,
    /// Why the lock was lost.
    error: Option<Error>,
    /// The futures that wait for the end, or for a warning.
    waiting: Slab<Waiting>,
}

/// A future that waits, in the slot that it keeps until it is dropped.
#[derive(Debug)]
struct Waiting {
    what: Awaited,
    /// `None` once it was woken.
    waker: Option<Waker>,
}

/// What a future waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The end of the lock.
    End,
    /// The warning that the deadline comes near, or the end.
    Warning,
}

impl LockState {
    /// Resets the state for another lock; returns `false` if it still holds wakers, which have to
    /// be dropped elsewhere.
    pub(super) fn reset(&mut self, key: &[u8], place: usize) -> bool {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.keys = None;
        *self.deadline.get_mut() = 0;
        *self.expiring.get_mut() = false;
        self.place = place;
        let end = self.end.get_mut().unwrap_or_else(PoisonError::into_inner);
        (end.over, end.error) = (false, None);
        end.waiting.is_empty()
    }

    /// The lock has these keys.
    pub(super) fn set_keys(&mut self, keys: Option<&KeySet>) {
        self.keys = keys.filter(|keys| keys.len() > 1).cloned();
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The keys, if there are several.
    pub(super) fn set(&self) -> Option<&KeySet> {
        self.keys.as_ref()
    }

    pub(super) fn set_deadline(&self, deadline: Option<Instant>) {
        self.deadline.store(deadline.map_or(0, Instant::as_nanos), Ordering::Release);
    }

    /// When the lock ends; `None` once it is over.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let nanos = self.deadline.load(Ordering::Acquire);
        (nanos != 0).then_some(Instant::from_nanos(nanos))
    }

    /// Notes an update of the lock. The wakers of the futures that waited for it go to `woken`.
    pub(super) fn update(&self, kind: LockUpdateKind, woken: &mut Vec<Waker>) {
        match kind {
            LockUpdateKind::Extended { deadline } => {
                self.expiring.store(false, Ordering::Release);
                self.set_deadline(Some(deadline));
            }
            LockUpdateKind::Expiring { deadline, .. } => {
                self.set_deadline(Some(deadline));
                self.expiring.store(true, Ordering::Release);
                let mut end = self.end();
                let warned = end.waiting.iter_mut().filter(|(_, it)| it.what == Awaited::Warning);
                woken.extend(warned.filter_map(|(_, it)| it.waker.take()));
            }
            LockUpdateKind::Lost(error) => self.ends(Some(error), woken),
        }
    }

    /// Whether the deadline comes near without a renewal.
    pub(super) fn was_warned(&self) -> bool {
        self.expiring.load(Ordering::Acquire)
    }

    /// The lock is over, by this error or without one. The wakers of the futures that wait go to
    /// `woken`.
    pub(super) fn ends(&self, error: Option<Error>, woken: &mut Vec<Waker>) {
        self.deadline.store(0, Ordering::Release);
        let mut end = self.end();
        if !end.over {
            (end.over, end.error) = (true, error);
        }
        woken.extend(end.waiting.drain().filter_map(|it| it.waker));
    }

    /// Why the lock was lost, if that is known.
    pub(super) fn error(&self) -> Option<Error> {
        self.end().error.clone()
    }

    /// Whether what is awaited has come: `Ok` for a warning, and for the end why the lock was lost,
    /// if that is known. Otherwise `waker` is woken then. It is noted in `slot`, to be replaced by
    /// the next or forgotten.
    pub(super) fn poll(
        &self,
        what: Awaited,
        slot: &mut Option<usize>,
        waker: &Waker,
    ) -> Poll<Result<(), Option<Error>>> {
        // Wakers are the user's: they are neither made nor dropped while the mutex is locked.
        let waker = waker.clone();
        let mut end = self.end();
        if end.over {
            let error = end.error.clone();
            drop(end);
            return Poll::Ready(Err(error));
        }
        if what == Awaited::Warning && self.was_warned() {
            drop(end);
            return Poll::Ready(Ok(()));
        }
        let former = match *slot {
            Some(slot) => end.waiting[slot].waker.replace(waker),
            None => {
                *slot = Some(end.waiting.insert(Waiting { what, waker: Some(waker) }));
                None
            }
        };
        drop(end);
        drop(former);
        Poll::Pending
    }

    /// The future that waited was dropped.
    pub(super) fn forget_waker(&self, slot: usize) {
        let mut end = self.end();
        // At the end of the lock all wakers were taken out.
        let former = if end.over { None } else { end.waiting.try_remove(slot) };
        drop(end);
        drop(former);
    }

    /// The place under which its updates arrive.
    pub(super) fn place(&self) -> usize {
        self.place
    }

    fn end(&self) -> MutexGuard<'_, End> {
        // No operation under this mutex can panic half done.
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
