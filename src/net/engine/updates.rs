//! What an engine reports of the locks that it handed out, and which of them it watches.

use super::Engine;
use crate::net::clock;
use crate::proto::ids::Op;
use crate::proto::lock::Lock;
use crate::proto::locks::held::updates::LockUpdate;

impl Engine {
    /// From now on, all updates of every lock that is handed out are reported, renewed or not. The
    /// loss of a lock that is not renewed is reported at its deadline, or when an extend finds that
    /// too many nodes do not hold the key.
    pub fn report_lock_updates(&mut self) {
        self.coordinator.report_lock_updates();
    }

    /// The next update of a lock that was handed out: a later deadline, a warning, and at last its
    /// loss, once. A lock that was released or given away is not reported lost. Of a lock that is
    /// renewed, warnings and the loss are reported; later deadlines, and the updates of other
    /// locks, if [`report_lock_updates`](Engine::report_lock_updates) was called before the lock
    /// was handed out.
    ///
    /// Take all updates in each turn: while any is left, [`prepare`](Engine::prepare) returns a
    /// zero timeout.
    pub fn poll_lock_update(&mut self) -> Option<LockUpdate> {
        if !self.coordinator.has_lock_updates() {
            return None;
        }
        // Updates that were found before a fork concern the parent's locks.
        self.check_fork();
        let update = self.coordinator.poll_lock_update()?;
        self.observer.updated(&update);
        Some(update)
    }

    /// From now on reports the loss of this lock as that of a renewed one, but does not extend it.
    pub(crate) fn watch(&mut self, lock: &Lock) {
        self.coordinator.watch(lock, clock::now());
    }

    /// As [`watch`](Engine::watch), and the holder is also warned.
    pub(crate) fn watch_with_warning(&mut self, lock: &Lock) {
        self.coordinator.watch_with_warning(lock, clock::now());
    }

    /// Cancels a request, unless it extends a lock: such a request goes on without a completion.
    pub(crate) fn abandon(&mut self, op: Op) {
        self.coordinator.abandon(op, clock::now());
        self.observer.forget(op);
    }
}
