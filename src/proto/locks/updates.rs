//! Updates of held locks: a later deadline, a warning, the loss. They are for a driver that keeps a
//! copy of what is known of its locks, or that has to learn of every loss.
//!
//! The hazard is an update that is not true any more when the driver takes it. So it is checked
//! when it is taken out, and a lock that the caller released is never reported lost.

use std::collections::VecDeque;

use crate::proto::error::{Error, LostReason};
use crate::proto::ids::RecordId;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::locks::Locks;
use crate::proto::locks::records::Phase;
use crate::proto::locks::requests::Stage;
use crate::proto::surplus::shrink_queue;
use crate::proto::time::Instant;

/// An update of a lock that was handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockUpdate {
    /// The data of the acquire, or of the adopt, that the lock came from.
    pub data: u64,
    /// The token of the lock.
    pub token: LockToken,
    /// What happened.
    pub kind: LockUpdateKind,
}

/// What happened to a lock that was handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockUpdateKind {
    /// The deadline is later now, whatever extended the lock.
    Extended {
        /// The deadline.
        deadline: Instant,
    },
    /// The lock is renewed, but was not renewed until now. It ends at this moment unless a renewal
    /// still succeeds.
    Expiring {
        /// The deadline.
        deadline: Instant,
        /// The key.
        key: Box<[u8]>,
    },
    /// The lock is lost: reported once, with the key in the error's report.
    Lost(Error),
}

/// The updates that the driver did not take yet.
#[derive(Debug, Clone, Default)]
pub(super) struct Updates {
    /// The driver wants them.
    wanted: bool,
    queue: VecDeque<Queued>,
}

impl Updates {
    /// Gives back the room that was not in use since `most` locks were.
    pub(super) fn shrink(&mut self, most: usize) {
        shrink_queue(&mut self.queue, most);
    }
}

#[derive(Debug, Clone)]
struct Queued {
    record: RecordId,
    update: LockUpdate,
}

impl Updates {
    /// Whether there is none.
    #[cfg(feature = "testing")]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

impl Locks {
    /// From now on updates are reported, of every lock that is handed out.
    pub fn report_lock_updates(&mut self) {
        self.updates.wanted = true;
    }

    /// Whether updates wait to be taken.
    #[inline]
    pub fn has_lock_updates(&self) -> bool {
        !self.updates.queue.is_empty()
    }

    /// The next update that is still true.
    pub fn poll_lock_update(&mut self) -> Option<LockUpdate> {
        loop {
            let Queued { record, mut update } = self.updates.queue.pop_front()?;
            let present =
                self.is_held(record).then(|| self.records.get(record)).map(|it| it.deadline);
            let is_true = match &mut update.kind {
                LockUpdateKind::Extended { deadline } => {
                    // A bound of auto-extension may have brought the deadline forward since.
                    *deadline = present.map_or(*deadline, |present| present.min(*deadline));
                    present.is_some()
                }
                LockUpdateKind::Expiring { deadline, .. } => present == Some(*deadline),
                LockUpdateKind::Lost(_) => true,
            };
            if is_true {
                return Some(update);
            }
        }
    }

    /// The data under which the updates of a lock are reported, once it is handed out.
    #[inline]
    pub(super) fn reports_under(&self, data: u64) -> Option<u64> {
        self.updates.wanted.then_some(data)
    }

    /// Queues an update of a lock, if the driver wants to have it.
    pub(super) fn report_update(
        &mut self,
        id: RecordId,
        kind: impl FnOnce(&[u8]) -> LockUpdateKind,
    ) {
        let record = self.records.get(id);
        let Some(data) = record.reports_under() else { return };
        let update =
            LockUpdate { data, token: record.token.clone(), kind: kind(record.first_key()) };
        self.updates.queue.push_back(Queued { record: id, update });
    }

    /// Reports the loss of a lock, and ends the request of its auto-extension.
    pub(super) fn report_loss(&mut self, id: RecordId, reason: LostReason, now: Instant) {
        let record = self.records.get(id);
        debug_assert_eq!(record.phase, Phase::Held);
        let entry = record.auto_extended.map(|place| &self.auto_extended[place.index()]);
        let op = entry.and_then(|entry| entry.op);
        if op.is_none() && record.reports_under().is_none() {
            return;
        }
        let ended_by_time = entry.filter(|_| reason == LostReason::Expired);
        let reason = ended_by_time.map_or(reason, |entry| entry.reason(record.deadline));
        let error = self.lost(id, reason, now);
        if let Some(op) = op {
            self.ops.move_to(op, Stage::Over(Err(error.clone())));
        }
        self.report_update(id, |_| LockUpdateKind::Lost(error));
    }

    /// The caller gives up a lock that is over: its loss is not reported any more.
    pub(super) fn forget_loss(&mut self, lock: &Lock) {
        self.updates.queue.retain(|queued| queued.update.token != lock.token);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_give_back_the_room_of_a_burst() {
        let mut updates = Updates { wanted: true, queue: VecDeque::with_capacity(50_000) };
        updates.shrink(1);
        assert!(updates.queue.capacity() < 5_000);
    }
}
