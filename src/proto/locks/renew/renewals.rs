//! The auto-extended and watched locks: their renewals, their warnings, and their checks after a
//! write to a key.
//!
//! [`Renewals`] asks no node: it returns which lock to extend for which ttl, and [`Locks`] begins
//! the extend.
//!
//! The hazard is a renewal after a release: it would extend a key that has to go. So auto-extension
//! ends with the hold of a record.

use std::time::Duration;

use slab::Slab;

use crate::proto::cluster::Cluster;
use crate::proto::error::{Error, LostReason};
use crate::proto::ids::{Place, RecordId};
use crate::proto::lock::Lock;
use crate::proto::locks::held::updates::PendingUpdate;
use crate::proto::locks::record::records::{Record, Records};
use crate::proto::locks::renew::schedule::{AutoExtend, AutoExtended, warns_at, warns_before};
use crate::proto::locks::round::state::Purpose;
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::Verdict;
use crate::proto::surplus::{insert, shrink_slab};
use crate::proto::time::{Instant, Ttl};
use crate::proto::timers::Timers;

/// Why an extend is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prolong {
    /// To renew the lock.
    Renew,
    /// To learn whether the key is gone on a node that is in doubt: a check.
    Check,
}

/// The locks that are auto-extended or watched. The timers of their warnings are in [`Locks`].
#[derive(Debug, Clone)]
pub(in crate::proto::locks) struct Renewals {
    kept: Slab<AutoExtended>,
    /// The timers of renewals and checks. They are apart from all others because the driver fires
    /// them last in a turn.
    timers: Timers<(RecordId, Prolong)>,
    /// How many nodes may lack the key while the others are still a quorum.
    spare_nodes: usize,
    /// The pause after an extend that was not won.
    again_after: Duration,
}

impl Renewals {
    /// No locks yet, for a client with this cluster.
    pub fn new(cluster: &Cluster) -> Renewals {
        Renewals {
            kept: Slab::new(),
            timers: Timers::new(),
            spare_nodes: cluster.spare_nodes(),
            again_after: cluster.settings().extend_again_after(),
        }
    }

    /// The list of masters may have changed.
    pub fn set_spare_nodes(&mut self, spare_nodes: usize) {
        self.spare_nodes = spare_nodes;
    }

    /// Whether no lock is auto-extended or watched.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How many locks are auto-extended or watched.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// The earliest moment at which a renewal or a check is due.
    #[inline]
    pub fn next_due(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// How many renewals and checks are planned.
    pub fn open_timers(&self) -> usize {
        self.timers.len()
    }

    /// Gives back the memory that was not needed, if at most `most` records were open in the last
    /// interval.
    pub fn shrink(&mut self, most: usize) {
        self.timers.shrink(most);
        shrink_slab(&mut self.kept, most);
    }

    /// Begins to renew a lock on these terms, which take the place of earlier ones. Without terms
    /// the lock is only watched. `timers` are those of [`Locks`].
    pub fn begin(
        &mut self,
        id: RecordId,
        record: &mut Record,
        terms: Option<AutoExtend>,
        now: Instant,
        timers: &mut Timers<Due>,
    ) {
        let former = self.end(record, timers);
        let renews = terms.is_some();
        let terms = terms.unwrap_or(AutoExtend::extensions(0));
        let mut entry = AutoExtended::new(id, renews, terms, record.caller_ttl, now);
        if let Some(former) = former {
            // The nodes that were in doubt still have to be asked.
            (entry.doubted, entry.checked_at) = (former.doubted, former.checked_at);
        }
        record.deadline = entry.capped(record.deadline);
        record.update = record.update.max(PendingUpdate::Nothing);
        record.tracked = true;
        record.auto_extended = Some(Place::new(insert(&mut self.kept, entry)));
        record.arm_deadline(id, timers);
        self.plan_renewal(record, true, timers);
        self.plan_check(record, now);
    }

    /// The lock is not auto-extended or watched any more: clears its timers, and does not register
    /// its key again.
    #[inline]
    pub fn end(&mut self, record: &mut Record, timers: &mut Timers<Due>) -> Option<AutoExtended> {
        let place = record.auto_extended.take()?;
        record.tracked = false;
        let mut entry = self.kept.remove(place.index());
        timers.clear_in(&mut entry.warning);
        self.timers.clear_in(&mut entry.renewal);
        self.timers.clear_in(&mut entry.check);
        Some(entry)
    }

    /// Whether the lock is renewed: not if it is only watched.
    pub fn renews(&self, record: &Record) -> bool {
        self.entry(record).is_some_and(|entry| entry.renews)
    }

    fn entry(&self, record: &Record) -> Option<&AutoExtended> {
        record.auto_extended.map(|place| &self.kept[place.index()])
    }

    fn entry_mut(&mut self, record: &Record) -> Option<&mut AutoExtended> {
        record.auto_extended.map(|place| &mut self.kept[place.index()])
    }

    /// The ttl that an extend asks for if `ttl` is wanted: shorter if the bound of auto-extension
    /// is nearer.
    pub fn capped_ttl(&self, record: &Record, ttl: Ttl, now: Instant) -> Option<Ttl> {
        self.entry(record).map_or(Some(ttl), |entry| entry.capped_ttl(ttl, now))
    }

    /// `deadline`, or the bound of the lock's auto-extension if that is earlier. An extend that
    /// began before auto-extension was not limited when it was sent.
    pub fn capped_deadline(&self, record: &Record, deadline: Instant) -> Instant {
        self.entry(record).map_or(deadline, |entry| entry.capped(deadline))
    }

    /// Whether the lock may be renewed beyond this moment.
    pub fn may_last_beyond(&self, record: &Record, moment: Instant) -> bool {
        self.entry(record).is_some_and(|entry| entry.may_last_beyond(moment))
    }

    /// Why the lock is lost: `reason`, or if it expired, why it was not renewed.
    pub fn reason_of_loss(&self, record: &Record, reason: LostReason) -> LostReason {
        let ended_by_time = self.entry(record).filter(|_| reason == LostReason::Expired);
        ended_by_time.map_or(reason, |entry| entry.reason(record.deadline))
    }

    /// The caller extends the lock: the success of this extend does not count as a renewal.
    pub fn on_extend_by_caller(&mut self, record: &Record) {
        if let Some(entry) = self.entry_mut(record) {
            entry.renewing = false;
        }
    }

    /// All nodes are about to be asked, so none is in doubt any more. Nor is a node that cannot be
    /// asked now: otherwise checks would go on as long as it is away, and the next renewal asks it
    /// anyway.
    pub fn on_extend_begun(&mut self, record: &Record) {
        let Some(place) = record.auto_extended else { return };
        let entry = &mut self.kept[place.index()];
        entry.doubted = NodeSet::EMPTY;
        self.timers.clear_in(&mut entry.check);
    }

    /// An extend of this lock was won. `moved`: it made the deadline later. Returns whether it was
    /// a renewal.
    pub fn on_extend_won(
        &mut self,
        record: &mut Record,
        moved: bool,
        now: Instant,
        timers: &mut Timers<Due>,
    ) -> bool {
        let Some(entry) = self.entry_mut(record) else { return false };
        let renewed = entry.renewing;
        if renewed {
            entry.was_renewed();
        }
        if self.plan_renewal(record, moved, timers) {
            // If the driver has not taken the last warning yet, that warning is not true any more.
            record.update = record.update.min(PendingUpdate::Extended);
        }
        self.plan_check(record, now);
        renewed
    }

    /// An extend was not won: a renewal follows after a pause, if no renewal is planned.
    pub fn on_extend_lost(&mut self, record: &Record, now: Instant) {
        let Some(place) = record.auto_extended else { return };
        let entry = &mut self.kept[place.index()];
        entry.renewing = false;
        if entry.renewal.is_none() && entry.wants_renewal(record.deadline) {
            let due = (entry.record, Prolong::Renew);
            entry.renewal = Some(self.timers.set_after(now, self.again_after, due));
        }
        self.plan_check(record, now);
    }

    /// From now on the holder of a watched lock is warned. If the moment of the warning has passed,
    /// its timer is due immediately.
    fn warn(&mut self, record: &Record, timers: &mut Timers<Due>) {
        let Some(place) = record.auto_extended else { return };
        let entry = &mut self.kept[place.index()];
        if entry.warns {
            return;
        }
        entry.warns = true;
        let due = Due::Warn { record: entry.record };
        entry.warning = Some(timers.set_at(entry.warns_at(record.deadline), due));
    }

    /// Whether the moment of the warning before the present deadline has come.
    fn is_expiring(&self, record: &Record, now: Instant) -> bool {
        let at = match self.entry(record) {
            Some(entry) => entry.warns_at(record.deadline),
            None => warns_at(record.deadline, warns_before(record.caller_ttl)),
        };
        at <= now
    }

    /// The timer of the warning came due.
    pub fn on_warning_due(&mut self, record: &Record) {
        if let Some(entry) = self.entry_mut(record) {
            (entry.warning, entry.warned) = (None, true);
        }
    }

    /// The key of a lock may be gone on a node: plans a check, if the lock is auto-extended or
    /// watched.
    pub fn doubt(&mut self, node: NodeId, record: &Record, now: Instant) {
        if let Some(entry) = self.entry_mut(record) {
            entry.doubted.insert(node);
            self.plan_check(record, now);
        }
    }

    /// The keys of all locks may be gone on a node: plans a check of each that is auto-extended or
    /// watched.
    pub fn doubt_all(&mut self, node: NodeId, records: &Records, now: Instant) {
        let kept: Vec<RecordId> = self.kept.iter().map(|(_, entry)| entry.record).collect();
        for id in kept {
            self.doubt(node, records.get(id), now);
        }
    }

    /// Takes out the earliest renewal or check that is due. Returns its record, and the ttl to ask
    /// for, or `None` in place of the ttl if no extend begins now.
    pub fn pop_due(&mut self, records: &Records, now: Instant) -> Option<(RecordId, Option<Ttl>)> {
        let (id, what) = self.timers.pop_due(now)?;
        let record = records.get(id);
        let place = record.auto_extended.expect("its timers are cleared with its auto-extension");
        let entry = &mut self.kept[place.index()];
        // The caller's extend is in flight, or pauses before its next round.
        let busy = is_extending(record) || record.op.is_some();
        let ttl = match what {
            Prolong::Renew if busy => {
                // The renewal is tried again after a short pause. With a pause as long as that
                // between checks, a check could be in flight each time.
                let pause = self.again_after.min(record.caller_ttl.usable() / 50);
                entry.renewal = Some(self.timers.set_after(now, pause, (id, what)));
                return Some((id, None));
            }
            Prolong::Renew => {
                entry.renewal = None;
                entry.renewal_ttl(now)
            }
            Prolong::Check => {
                entry.check = None;
                if busy {
                    // When the extend that is in the way ends, `plan_check` plans the check again.
                    return Some((id, None));
                }
                entry.checked_at = Some(now);
                entry.check_ttl(record.deadline, now)
            }
        };
        if ttl.is_some() {
            entry.renewing = what == Prolong::Renew;
        }
        Some((id, ttl))
    }

    /// Sets the timers of the next renewal and of the warning after a round was won. If the
    /// deadline did not become later, timers that are set stay. If the moment of the warning has
    /// passed already, and the holder was warned, it is not warned again. Returns whether the timer
    /// of the warning was set.
    fn plan_renewal(&mut self, record: &Record, moved: bool, timers: &mut Timers<Due>) -> bool {
        let (start, deadline) = (record.round.start, record.deadline);
        let Some(place) = record.auto_extended else { return false };
        let entry = &mut self.kept[place.index()];
        let id = entry.record;
        if moved {
            self.timers.clear_in(&mut entry.renewal);
        }
        if entry.renewal.is_none() && entry.wants_renewal(deadline) {
            let counts_from = entry.counts_from(deadline);
            let (from, length) = entry.next_renewal(counts_from);
            let due = (id, Prolong::Renew);
            // `set_after` is cheap, but equal lengths have to be set in the order of their moments:
            // so only after a round that gave the whole ttl.
            entry.renewal = Some(if counts_from == start {
                self.timers.set_after(from, length, due)
            } else {
                self.timers.set_at(entry.renews_before(deadline), due)
            });
        }
        let length = entry.warns_at(deadline).saturating_since(start);
        if !entry.warns || !moved || (entry.warned && length.is_zero()) {
            return false;
        }
        entry.warned = false;
        timers.clear_in(&mut entry.warning);
        entry.warning = Some(timers.set_after(start, length, Due::Warn { record: id }));
        true
    }

    /// Plans a check because of doubted nodes: as soon as possible if no majority may be left. Only
    /// one check is planned at a time, and none while an extend is in flight, whose end plans it.
    fn plan_check(&mut self, record: &Record, now: Instant) {
        let Some(place) = record.auto_extended else { return };
        let entry = &mut self.kept[place.index()];
        if entry.doubted.is_empty() || is_extending(record) {
            return;
        }
        let may_be_gone = entry.doubted.union(record.absent()).len() > self.spare_nodes;
        let at = entry.next_check(may_be_gone, now);
        if entry.check.is_none() || may_be_gone {
            self.timers.clear_in(&mut entry.check);
            entry.check = Some(self.timers.set_at(at, (entry.record, Prolong::Check)));
        }
    }
}

fn is_extending(record: &Record) -> bool {
    let round = &record.round;
    round.purpose == Purpose::Extend && round.ballot().verdict() == Verdict::Undecided
}

impl Locks {
    /// From now on renews a lock each time a third of its ttl is over. The ttl is the one that the
    /// caller asked for last; an extend that prolonged nothing does not count. Auto-extension lasts
    /// until the lock is released, given away or lost, or until the bound of `auto_extend`.
    pub fn auto_extend(
        &mut self,
        lock: &Lock,
        auto_extend: AutoExtend,
        now: Instant,
    ) -> Result<(), Error> {
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        let Some(id) = id else {
            return Err(self.not_held(lock, &[], now));
        };
        let record = self.records.get_mut(id);
        auto_extend.check(record.caller_ttl)?;
        let registered = record.tracked;
        self.renewals.begin(id, record, Some(auto_extend), now, &mut self.timers);
        if !registered {
            self.register_at(id, self.cluster.askable(), now);
        }
        Ok(())
    }

    /// Watches a lock that is not auto-extended: nodes report writes to its key, and its loss is
    /// reported a little before the deadline, as for an auto-extended lock. Its deadline does not
    /// move.
    pub fn watch(&mut self, lock: &Lock, now: Instant) {
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        if let Some(id) = id.filter(|&id| self.records.get(id).auto_extended.is_none()) {
            self.renewals.begin(id, self.records.get_mut(id), None, now, &mut self.timers);
            self.register_at(id, self.cluster.askable(), now);
        }
    }

    /// As [`watch`](Locks::watch), and the holder is warned a third of the ttl before the deadline.
    /// The ttl is the one that the lock had when it was first watched.
    pub fn watch_with_warning(&mut self, lock: &Lock, now: Instant) {
        self.watch(lock, now);
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        if let Some(id) = id {
            self.renewals.warn(self.records.get(id), &mut self.timers);
        }
    }

    /// Whether the lock is held, and the moment of its warning has come. A lock without warnings
    /// has such a moment, too.
    pub fn is_expiring(&self, lock: &Lock, now: Instant) -> bool {
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        id.is_some_and(|id| self.renewals.is_expiring(self.records.get(id), now))
    }

    /// Begins the earliest renewal or check that is due. Returns whether one was due.
    pub fn prolong_next(&mut self, now: Instant) -> bool {
        let Some((id, ttl)) = self.renewals.pop_due(&self.records, now) else { return false };
        if let Some(ttl) = ttl {
            self.begin_extend(id, ttl, now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::lock::LockToken;
    use crate::proto::locks::record::records::Phase;
    use crate::proto::locks::requests::{Ops, Stage};
    use crate::proto::locks::round::state::Round;
    use crate::proto::quorum::Ballot;
    use crate::proto::settings::{NodeSettings, Settings};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const START: Instant = Instant::from_nanos(1_000_000_000);

    /// A lock of 9 s that is held since the start, and that may be renewed once.
    fn kept() -> (Renewals, Records, RecordId, Timers<Due>) {
        let settings = Settings::new(vec![NodeSettings::new("n0")]);
        let ttl = Ttl::new(Duration::from_secs(9), settings.max_ttl).unwrap();
        let mut renewals = Renewals::new(&Cluster::new(settings, START));
        let (mut records, mut timers) = (Records::new(1), Timers::new());
        let token = LockToken::random(&mut StdRng::from_seed([1; 32]));
        let id = records
            .open(b"key", token, Round::acquire(Ballot::of_majority(1), START, ttl))
            .unwrap();
        let record = records.get_mut(id);
        record.phase = Phase::Held;
        renewals.begin(id, record, Some(AutoExtend::extensions(1)), START, &mut timers);
        (renewals, records, id, timers)
    }

    #[test]
    fn auto_extend_returns_what_a_renewal_asks_for_and_counts_it_when_it_is_won() {
        let (mut renewals, mut records, id, mut timers) = kept();
        let due = renewals.next_due().unwrap();
        let ttl = records.get(id).ttl;
        assert_eq!(renewals.pop_due(&records, due), Some((id, Some(ttl))));
        assert_eq!(renewals.pop_due(&records, due), None);
        assert!(renewals.on_extend_won(records.get_mut(id), true, due, &mut timers));
        assert_eq!(renewals.next_due(), None, "no extension is left");
        assert!(!renewals.on_extend_won(records.get_mut(id), true, due, &mut timers));
    }

    #[test]
    fn auto_extend_puts_a_renewal_off_while_the_caller_extends() {
        let (mut renewals, mut records, id, _) = kept();
        let due = renewals.next_due().unwrap();
        let op = Ops::default().open(0, due, due, Stage::Running { record: id });
        records.get_mut(id).op = Some(op);
        assert_eq!(renewals.pop_due(&records, due), Some((id, None)));
        assert!(renewals.next_due().is_some_and(|again| again > due));
    }

    #[test]
    fn auto_extend_leaves_no_timer_and_no_entry_when_it_ends() {
        let (mut renewals, mut records, id, mut timers) = kept();
        renewals.doubt(NodeId::new(0), records.get(id), START);
        assert_eq!(renewals.open_timers(), 2, "a renewal and a check");
        let deadline_and_warning = timers.len();
        assert_eq!(deadline_and_warning, 2);
        renewals.end(records.get_mut(id), &mut timers);
        assert!(renewals.is_empty() && renewals.open_timers() == 0);
        assert_eq!((timers.len(), records.get(id).tracked), (1, false));
    }
}
