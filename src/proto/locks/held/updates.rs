//! Updates of held locks, for the driver to take: a later deadline, a warning, the loss.
//!
//! The hazard is an update that is not true any more when the driver takes it. So the queue only
//! names the record of a held lock, and the update is made when the driver takes it. A lock that
//! its caller released is never reported lost.

use std::collections::VecDeque;
use std::{fmt, mem};

use crate::proto::error::Error;
use crate::proto::ids::RecordId;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::locks::Locks;
use crate::proto::locks::record::records::{Phase, Record, Records};
use crate::proto::surplus::shrink_queue;
use crate::proto::time::Instant;

/// An update of a lock that was handed out: what happens to the lock after its request completed.
///
/// An auto-extended lock has warnings, and a watched lock if the caller asked for them. The loss of
/// both is reported. Later deadlines, and the updates of all other locks, are reported if the
/// driver called `report_lock_updates` before the lock was handed out. If several updates of a held
/// lock were not taken, the driver gets one, with the present state of the lock. A loss is kept
/// until it is taken.
#[derive(Clone, PartialEq, Eq)]
pub struct LockUpdate {
    /// The data of the acquire, or of the adopt, that the lock came from. The blocking client
    /// numbers its locks itself.
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
    /// The deadline is later than before: the caller or auto-extension extended the lock.
    Extended {
        /// The deadline in force, on the clock of the requests.
        deadline: Instant,
    },
    /// The lock ends at this deadline unless a renewal succeeds before. None has succeeded since
    /// the deadline was set.
    Expiring {
        /// The deadline in force, on the clock of the requests.
        deadline: Instant,
        /// The key. Of a lock over several keys the first one in the order of the bytes.
        key: Box<[u8]>,
    },
    /// The lock is lost. Reported once; the error has the reason and the key. For an auto-extended
    /// or watched lock the report comes before the deadline, if the driver takes it in time.
    Lost(Error),
}

impl LockUpdate {
    /// The key, if the update names it: a warning and a loss do. Of a lock over several keys a
    /// warning names the first one in the order of the bytes, and a loss the one that was lost.
    pub fn key(&self) -> Option<&[u8]> {
        match &self.kind {
            LockUpdateKind::Extended { .. } => None,
            LockUpdateKind::Expiring { key, .. } => Some(key),
            LockUpdateKind::Lost(error) => error.report().map(|report| &report.key[..]),
        }
    }
}

/// One line with `{:?}`, with the key as text.
impl fmt::Debug for LockUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockUpdate { data, token, kind } = self;
        write!(f, "LockUpdate {{ ")?;
        if let Some(key) = self.key() {
            write!(f, "key: \"{}\", ", key.escape_ascii())?;
        }
        write!(f, "token: {token}, data: {data}, kind: ")?;
        match kind {
            LockUpdateKind::Expiring { deadline, .. } => write!(f, "Expiring({deadline:?}) }}"),
            kind => write!(f, "{kind:?} }}"),
        }
    }
}

/// What happened to a held lock since its last update was taken. In the order of their weight: if a
/// warning and a later deadline wait, the warning is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PendingUpdate {
    /// The updates of the lock are not reported.
    Unreported,
    /// Updates are reported, and none waits.
    Nothing,
    /// The deadline of the lock is later.
    Extended,
    /// A warning is due.
    Expiring,
}

impl Record {
    fn has_update(&self) -> bool {
        self.phase == Phase::Held && self.update > PendingUpdate::Nothing
    }
}

/// The updates that the driver has not taken yet: one at most for each held lock, and the losses.
#[derive(Debug, Clone, Default)]
pub struct Updates {
    /// The driver wants the updates of every lock, also each later deadline.
    of_all: bool,
    /// Entries of records that have no update any more are skipped.
    queue: VecDeque<Queued>,
    /// How many entries of the queue are still updates.
    untaken: usize,
}

/// If the queue is longer than twice its updates plus this, its entries without an update are taken
/// out.
const FEW: usize = 16;

#[derive(Debug, Clone)]
enum Queued {
    /// The update of this record, which is made when the driver takes it.
    Of(RecordId),
    Loss(LockUpdate),
}

impl Updates {
    /// Whether no update waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.untaken == 0
    }

    /// How many entries the queue has, also of locks that have no update any more.
    #[cfg(feature = "testing")]
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// Whether the updates of every lock are reported.
    #[inline]
    pub fn are_of_all(&self) -> bool {
        self.of_all
    }

    /// Gives back the memory that was not needed, if at most `most` records were open in the last
    /// interval.
    pub fn shrink(&mut self, most: usize) {
        shrink_queue(&mut self.queue, most);
    }

    /// Forgets all updates.
    pub fn clear(&mut self) {
        self.queue.clear();
        self.untaken = 0;
    }

    /// Notes what happened to a held lock. A warning that was not taken yet is not replaced by a
    /// later deadline. Later deadlines are dropped if the driver did not ask for them, because a
    /// holder that knows only the earlier deadline is safe.
    pub fn report(&mut self, id: RecordId, record: &mut Record, update: PendingUpdate) {
        let former = record.update;
        let is_unwanted = update == PendingUpdate::Extended && !self.of_all;
        if former == PendingUpdate::Unreported || is_unwanted {
            return;
        }
        record.update = former.max(update);
        if former == PendingUpdate::Nothing {
            self.push(Queued::Of(id));
        }
    }

    /// Reports the loss of a lock, with this error.
    pub fn report_loss(&mut self, record: &Record, error: Error) {
        let (data, token, kind) = (record.data, record.token.clone(), LockUpdateKind::Lost(error));
        self.push(Queued::Loss(LockUpdate { data, token, kind }));
    }

    /// The lock is not held any more: it has no update from now on.
    pub fn withdraw(&mut self, id: RecordId, records: &mut Records) {
        let former = mem::replace(&mut records.get_mut(id).update, PendingUpdate::Unreported);
        if former <= PendingUpdate::Nothing {
            return;
        }
        self.untaken -= 1;
        if self.queue.len() > 2 * self.untaken + FEW {
            self.queue.retain(|queued| match queued {
                Queued::Of(id) => records.get_open_mut(*id).is_some_and(|it| it.has_update()),
                Queued::Loss(_) => true,
            });
        }
    }

    /// The caller gives up a lock that is over: its loss is not reported any more.
    pub fn forget_loss(&mut self, lock: &Lock) {
        let before = self.queue.len();
        self.queue
            .retain(|queued| !matches!(queued, Queued::Loss(loss) if loss.token == lock.token));
        self.untaken -= before - self.queue.len();
    }

    /// Takes out the next update that is still true.
    fn pop(&mut self, records: &mut Records) -> Option<LockUpdate> {
        loop {
            let record = match self.queue.pop_front()? {
                Queued::Loss(loss) => {
                    self.untaken -= 1;
                    return Some(loss);
                }
                Queued::Of(id) => records.get_open_mut(id).filter(|record| record.has_update()),
            };
            let Some(record) = record else { continue };
            self.untaken -= 1;
            let deadline = record.deadline;
            let kind = match mem::replace(&mut record.update, PendingUpdate::Nothing) {
                PendingUpdate::Expiring => {
                    LockUpdateKind::Expiring { deadline, key: record.first_key().into() }
                }
                _ => LockUpdateKind::Extended { deadline },
            };
            return Some(LockUpdate { data: record.data, token: record.token.clone(), kind });
        }
    }

    fn push(&mut self, queued: Queued) {
        self.queue.push_back(queued);
        self.untaken += 1;
    }
}

impl Locks {
    /// From now on all updates are reported, of every lock that is handed out from now on.
    pub fn report_lock_updates(&mut self) {
        self.updates.of_all = true;
    }

    /// The updates that wait to be taken.
    #[inline]
    pub fn updates(&self) -> &Updates {
        &self.updates
    }

    /// The next update that is still true.
    pub fn poll_lock_update(&mut self) -> Option<LockUpdate> {
        self.updates.pop(&mut self.records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_give_back_the_room_of_a_burst() {
        let queue = VecDeque::with_capacity(50_000);
        let mut updates = Updates { of_all: true, queue, untaken: 0 };
        updates.shrink(1);
        assert!(updates.queue.capacity() < 5_000);
    }
}
