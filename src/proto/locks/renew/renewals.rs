//! Keeping locks: when each is renewed or warned of, and what is done when another client writes to
//! its key.
//!
//! [`Renewals`] asks no node: it returns what an extend is to ask for, and the locks begin it.
//!
//! The hazard is a renewal after a release, which would extend a key that is to go: a record that
//! is not held has no auto-extension.

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

/// What prolongs an auto-extended lock when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prolong {
    /// The lock is renewed.
    Renew,
    /// The nodes are asked, because the lock's key may be gone on one.
    Check,
}

/// The locks that are auto-extended or watched. Their warnings are among the timers of the locks.
#[derive(Debug, Clone)]
pub(in crate::proto::locks) struct Renewals {
    kept: Slab<AutoExtended>,
    /// Extends. They have timers of their own because they come last in a turn.
    timers: Timers<(RecordId, Prolong)>,
    /// How many nodes may lack the key of a lock that is held.
    spare_nodes: usize,
    /// The pause after an extend that was not won.
    again_after: Duration,
}

impl Renewals {
    /// No lock of a client with this cluster.
    pub fn new(cluster: &Cluster) -> Renewals {
        Renewals {
            kept: Slab::new(),
            timers: Timers::new(),
            spare_nodes: cluster.spare_nodes(),
            again_after: cluster.settings().extend_again_after(),
        }
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

    /// The earliest moment at which an extend is due.
    #[inline]
    pub fn next_due(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// How many extends are planned.
    pub fn open_timers(&self) -> usize {
        self.timers.len()
    }

    /// Gives back the places that were not in use since `most` locks were.
    pub fn shrink(&mut self, most: usize) {
        self.timers.shrink(most);
        shrink_slab(&mut self.kept, most);
    }

    /// Begins to renew a lock on these terms, or only to watch it if there are none. Terms that the
    /// lock has already end. `timers` are those of the locks.
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
            // These nodes may have lost the key: the client has still to ask them.
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

    /// The lock is not kept any more, and writes to its key are of no interest.
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

    /// Whether the lock is renewed. One that is only watched is not.
    pub fn renews(&self, record: &Record) -> bool {
        self.entry(record).is_some_and(|entry| entry.renews)
    }

    fn entry(&self, record: &Record) -> Option<&AutoExtended> {
        record.auto_extended.map(|place| &self.kept[place.index()])
    }

    fn entry_mut(&mut self, record: &Record) -> Option<&mut AutoExtended> {
        record.auto_extended.map(|place| &mut self.kept[place.index()])
    }

    /// The ttl that an extend which wants `ttl` asks for: up to the bound of auto-extension.
    pub fn capped_ttl(&self, record: &Record, ttl: Ttl, now: Instant) -> Option<Ttl> {
        self.entry(record).map_or(Some(ttl), |entry| entry.capped_ttl(ttl, now))
    }

    /// `deadline`, or the bound of the lock's auto-extension if that is earlier: an extend may have
    /// been asked for before auto-extension began.
    pub fn capped_deadline(&self, record: &Record, deadline: Instant) -> Instant {
        self.entry(record).map_or(deadline, |entry| entry.capped(deadline))
    }

    /// Whether the lock may be renewed beyond this moment.
    pub fn may_last_beyond(&self, record: &Record, moment: Instant) -> bool {
        self.entry(record).is_some_and(|entry| entry.may_last_beyond(moment))
    }

    /// Why the lock is lost: `reason`, or why it was not renewed.
    pub fn reason_of_loss(&self, record: &Record, reason: LostReason) -> LostReason {
        let ended_by_time = self.entry(record).filter(|_| reason == LostReason::Expired);
        ended_by_time.map_or(reason, |entry| entry.reason(record.deadline))
    }

    /// The caller extends the lock: a success is no renewal.
    pub fn on_extend_by_caller(&mut self, record: &Record) {
        if let Some(entry) = self.entry_mut(record) {
            entry.renewing = false;
        }
    }

    /// All nodes are about to be asked, so the doubts are cleared, also those about a node that
    /// cannot be asked now. Otherwise the checks would go on as long as that node is away; the next
    /// renewal asks it.
    pub fn on_extend_begun(&mut self, record: &Record) {
        let Some(place) = record.auto_extended else { return };
        let entry = &mut self.kept[place.index()];
        entry.doubted = NodeSet::EMPTY;
        self.timers.clear_in(&mut entry.check);
    }

    /// An extend was won, no matter what asked for it; `moved`: the deadline is a later one.
    /// Returns whether it was a renewal.
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
            // A warning that the caller has not taken is not true any more.
            record.update = record.update.min(PendingUpdate::Extended);
        }
        self.plan_check(record, now);
        renewed
    }

    /// An extend was not won: it is tried again, at a bounded pace.
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

    /// The holder of a watched lock is warned from now on, at once if the moment has come.
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

    /// Whether the moment of the warning has come for the deadline that is in force.
    fn is_expiring(&self, record: &Record, now: Instant) -> bool {
        let at = match self.entry(record) {
            Some(entry) => entry.warns_at(record.deadline),
            None => warns_at(record.deadline, warns_before(record.caller_ttl)),
        };
        at <= now
    }

    /// The warning is due: the caller is given it.
    pub fn on_warning_due(&mut self, record: &Record) {
        if let Some(entry) = self.entry_mut(record) {
            (entry.warning, entry.warned) = (None, true);
        }
    }

    /// The key of a lock may be gone on a node.
    pub fn doubt(&mut self, node: NodeId, record: &Record, now: Instant) {
        if let Some(entry) = self.entry_mut(record) {
            entry.doubted.insert(node);
            self.plan_check(record, now);
        }
    }

    /// The keys of all locks may be gone on a node.
    pub fn doubt_all(&mut self, node: NodeId, records: &Records, now: Instant) {
        let kept: Vec<RecordId> = self.kept.iter().map(|(_, entry)| entry.record).collect();
        for id in kept {
            self.doubt(node, records.get(id), now);
        }
    }

    /// Takes out the earliest extend that is due: its record, and the ttl that is to be asked for,
    /// unless nothing is to be asked now.
    pub fn pop_due(&mut self, records: &Records, now: Instant) -> Option<(RecordId, Option<Ttl>)> {
        let (id, what) = self.timers.pop_due(now)?;
        let record = records.get(id);
        let place = record.auto_extended.expect("its timers are cleared with its auto-extension");
        let entry = &mut self.kept[place.index()];
        // An extend of the caller that pauses is about to be asked again.
        let busy = is_extending(record) || record.op.is_some();
        let ttl = match what {
            Prolong::Renew if busy => {
                // The renewal follows soon, between two checks of the key: after a long pause a
                // check could be in flight each time.
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
                    // The check is planned again when that extend ends.
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

    /// Sets the timers of the next renewal and of the warning, after a round that was won. If the
    /// deadline did not move, the timers stay. A caller that was warned is not warned again before
    /// a later warning is due. Returns whether a warning comes later.
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
            // A timer lane takes only timers that are set in the order of their moments.
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

    /// Plans an extend because of doubted nodes: at once if no majority may be left, and never
    /// two at a time.
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
    /// Renews a lock from now on, each time a third of its ttl is over. The ttl is the one that was
    /// asked for last, except by an extend that prolonged nothing. Auto-extension lasts until the
    /// lock is released, given away or lost, or as far as `auto_extend` allows.
    pub fn auto_extend(
        &mut self,
        lock: &Lock,
        auto_extend: AutoExtend,
        now: Instant,
    ) -> Result<(), Error> {
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        let Some(id) = id else {
            return Err(self.lost_unasked(LostReason::Over, &[], now));
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
    /// reported a little before the deadline, as that of an auto-extended lock. It is not extended.
    pub fn watch(&mut self, lock: &Lock, now: Instant) {
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        if let Some(id) = id.filter(|&id| self.records.get(id).auto_extended.is_none()) {
            self.renewals.begin(id, self.records.get_mut(id), None, now, &mut self.timers);
            self.register_at(id, self.cluster.askable(), now);
        }
    }

    /// As [`watch`](Locks::watch), and the holder is also warned, a third of the ttl before the
    /// deadline. The ttl is that of the moment at which the lock is first watched.
    pub fn watch_with_warning(&mut self, lock: &Lock, now: Instant) {
        self.watch(lock, now);
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        if let Some(id) = id {
            self.renewals.warn(self.records.get(id), &mut self.timers);
        }
    }

    /// Whether the lock is held and its warning is due, if it has one or not.
    pub fn is_expiring(&self, lock: &Lock, now: Instant) -> bool {
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        id.is_some_and(|id| self.renewals.is_expiring(self.records.get(id), now))
    }

    /// Does the earliest renewal that is due. Returns whether there was one.
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
    use crate::proto::settings::{NodeSettings, Settings};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    const START: Instant = Instant::from_nanos(1_000_000_000);

    /// A lock of 9 s that is held since the start, and renewed once.
    fn kept() -> (Renewals, Records, RecordId, Timers<Due>) {
        let settings = Settings::new(vec![NodeSettings::new("n0")]);
        let ttl = Ttl::new(Duration::from_secs(9), settings.max_ttl).unwrap();
        let mut renewals = Renewals::new(&Cluster::new(settings, START));
        let (mut records, mut timers) = (Records::new(1), Timers::new());
        let token = LockToken::random(&mut StdRng::from_seed([1; 32]));
        let id = records.open(b"key", token, Round::acquire(1, START, ttl)).unwrap();
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
