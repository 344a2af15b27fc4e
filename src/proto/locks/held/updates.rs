//! Updates of held locks: a later deadline, a warning, the loss.
//!
//! The hazard is an update that is not true any more when the driver takes it. So an update is made
//! when it is taken out, and a lock that the caller released is never reported lost.

use std::collections::VecDeque;
use std::{fmt, mem};

use crate::proto::error::{Error, LostReason};
use crate::proto::ids::RecordId;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::locks::Locks;
use crate::proto::locks::record::records::{News, Phase};
use crate::proto::surplus::shrink_queue;
use crate::proto::time::Instant;

/// An update of a lock that was handed out: what happens to the lock after its request completed.
///
/// A lock that is auto-extended or watched has updates. Other locks have them if the driver asked
/// for them (`report_lock_updates`) before the lock was handed out. Of the updates of a lock that
/// were not taken, one is left, which says what is true; a loss is kept until it is taken.
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
    /// The deadline is later than before, whatever extended the lock.
    Extended {
        /// The deadline in force, on the clock of the requests.
        deadline: Instant,
    },
    /// The lock is renewed, but was not renewed until now. It ends at this moment unless a renewal
    /// still succeeds.
    Expiring {
        /// The deadline in force, on the clock of the requests.
        deadline: Instant,
        /// The key. Of a lock over several keys the first one in the order of the bytes.
        key: Box<[u8]>,
    },
    /// The lock is lost: reported once, with the reason and the key in the error. Of an
    /// auto-extended or watched lock it is reported before the deadline, if it is taken in time.
    Lost(Error),
}

impl LockUpdate {
    /// The key, if the update names it: a warning and a loss do. Of a lock over several keys the
    /// first one in the order of the bytes.
    pub fn key(&self) -> Option<&[u8]> {
        match &self.kind {
            LockUpdateKind::Extended { .. } => None,
            LockUpdateKind::Expiring { key, .. } => Some(key),
            LockUpdateKind::Lost(error) => error.report().map(|report| &report.key[..]),
        }
    }
}

/// One line, with the key as text.
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

/// The updates that the driver did not take yet: one for each lock that has news, and the losses.
#[derive(Debug, Clone, Default)]
pub(in crate::proto::locks) struct Updates {
    /// The driver wants those of every lock.
    of_all: bool,
    queue: VecDeque<Queued>,
}

#[derive(Debug, Clone)]
enum Queued {
    /// The record has news.
    News(RecordId),
    Loss(LockUpdate),
}

impl Updates {
    /// Gives back the room that was not in use since `most` locks were.
    pub(in crate::proto::locks) fn shrink(&mut self, most: usize) {
        shrink_queue(&mut self.queue, most);
    }

    /// Whether there is none.
    #[cfg(feature = "testing")]
    pub(in crate::proto::locks) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Forgets all of them.
    pub(in crate::proto::locks) fn clear(&mut self) {
        self.queue.clear();
    }
}

impl Locks {
    /// From now on updates of every lock that is handed out are reported.
    pub fn report_lock_updates(&mut self) {
        self.updates.of_all = true;
    }

    /// Whether updates wait to be taken.
    #[inline]
    pub fn has_lock_updates(&self) -> bool {
        !self.updates.queue.is_empty()
    }

    /// The next update that is still true.
    pub fn poll_lock_update(&mut self) -> Option<LockUpdate> {
        loop {
            let id = match self.updates.queue.pop_front()? {
                Queued::Loss(loss) => return Some(loss),
                Queued::News(id) if self.is_held(id) => id,
                Queued::News(_) => continue,
            };
            let record = self.records.get_mut(id);
            let deadline = record.deadline;
            let news = mem::replace(&mut record.news, News::Nothing);
            debug_assert!(news > News::Nothing, "a lock with news is queued once");
            let kind = match news {
                News::Expiring => {
                    LockUpdateKind::Expiring { deadline, key: record.first_key().into() }
                }
                _ => LockUpdateKind::Extended { deadline },
            };
            return Some(LockUpdate { data: record.data, token: record.token.clone(), kind });
        }
    }

    /// Whether the updates of every lock are reported.
    #[inline]
    pub(in crate::proto::locks) fn reports_all(&self) -> bool {
        self.updates.of_all
    }

    /// Notes what happened to a held lock. A warning that was not taken yet stays.
    pub(in crate::proto::locks) fn report_news(&mut self, id: RecordId, news: News) {
        let record = self.records.get_mut(id);
        let former = record.news;
        if former == News::Unreported {
            return;
        }
        record.news = former.max(news);
        if former == News::Nothing {
            self.updates.queue.push_back(Queued::News(id));
        }
    }

    /// Reports the loss of a lock.
    pub(in crate::proto::locks) fn report_loss(
        &mut self,
        id: RecordId,
        reason: LostReason,
        now: Instant,
    ) {
        let record = self.records.get(id);
        debug_assert_eq!(record.phase, Phase::Held);
        if record.news == News::Unreported {
            return;
        }
        let entry = record.auto_extended.map(|place| &self.auto_extended[place.index()]);
        let ended_by_time = entry.filter(|_| reason == LostReason::Expired);
        let reason = ended_by_time.map_or(reason, |entry| entry.reason(record.deadline));
        let (data, token) = (record.data, record.token.clone());
        let kind = LockUpdateKind::Lost(self.lost(id, reason, now));
        self.updates.queue.push_back(Queued::Loss(LockUpdate { data, token, kind }));
    }

    /// The caller gives up a lock that is over: its loss is not reported any more.
    pub(in crate::proto::locks) fn forget_loss(&mut self, lock: &Lock) {
        let is_of_it = |queued: &Queued| match queued {
            Queued::Loss(loss) => loss.token == lock.token,
            Queued::News(_) => false,
        };
        self.updates.queue.retain(|queued| !is_of_it(queued));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_give_back_the_room_of_a_burst() {
        let mut updates = Updates { of_all: true, queue: VecDeque::with_capacity(50_000) };
        updates.shrink(1);
        assert!(updates.queue.capacity() < 5_000);
    }
}
