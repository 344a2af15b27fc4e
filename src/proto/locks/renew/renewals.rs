//! Keeping locks: renewals, warnings, losses, and what is done when another client writes to the
//! key of an auto-extended lock.
//!
//! The hazard is a renewal after a release, which would extend a key that is to go: a record that
//! is not held has no auto-extension.

use crate::proto::error::{Error, LostReason};
use crate::proto::ids::{Op, Place, RecordId, TaskId};
use crate::proto::key::KeyHash;
use crate::proto::lock::Lock;
use crate::proto::locks::record::records::{News, Phase};
use crate::proto::locks::renew::schedule::AutoExtend;
use crate::proto::locks::renew::schedule::AutoExtended;
use crate::proto::locks::round::state::Purpose;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::locks::{Due, Locks, Prolong, WaitEvent};
use crate::proto::node_set::{NodeId, NodeSet};
use crate::proto::quorum::Verdict;
use crate::proto::surplus::insert;
use crate::proto::time::{Instant, Ttl};
use crate::proto::wire::ask::{Ask, NodeAsk};
use crate::proto::wire::command;

/// What wrote to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// Another client.
    Other,
    /// This client, for a record.
    Record(RecordId),
    /// This client, for a task.
    Task,
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
        auto_extend.check(self.records.get(id).caller_ttl)?;
        let record = self.records.get(id);
        let (tracked, before) = (record.tracked, record.auto_extended);
        // The key may be gone on these nodes: that is still to be asked.
        let before = before.map(|place| &self.auto_extended[place.index()]);
        let before = before.map(|entry| (entry.doubted, entry.checked_at));
        self.stop_auto_extend(id);
        self.start_auto_extend(id, true, auto_extend, now);
        self.track(id, tracked, now);
        if let Some((before, place)) = before.zip(self.records.get(id).auto_extended) {
            let entry = &mut self.auto_extended[place.index()];
            (entry.doubted, entry.checked_at) = before;
            self.plan_check(id, now);
        }
        Ok(())
    }

    /// Watches a lock that is not auto-extended: nodes report writes to its key, and its loss is
    /// reported a little before the deadline, as that of an auto-extended lock. It is not extended.
    pub fn watch(&mut self, lock: &Lock, now: Instant) {
        let id = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        let Some(id) = id.filter(|&id| self.records.get(id).auto_extended.is_none()) else {
            return;
        };
        self.start_auto_extend(id, false, AutoExtend::extensions(0), now);
        self.track(id, false, now);
    }

    /// Has the nodes report writes to the key, unless they were asked to before.
    fn track(&mut self, id: RecordId, tracked: bool, now: Instant) {
        self.records.get_mut(id).tracked = true;
        if tracked {
            return;
        }
        for node in self.cluster.all_nodes().iter() {
            if self.cluster.may_ask(node).is_ok() {
                self.register(node, id, now);
            }
        }
    }

    /// Links a new record to its request, and notes whether the lock is to be auto-extended.
    #[inline]
    pub(in crate::proto::locks) fn set_auto_extend(
        &mut self,
        id: RecordId,
        op: Op,
        auto_extend: Option<AutoExtend>,
    ) {
        let record = self.records.get_mut(id);
        (record.op, record.tracked) = (Some(op), auto_extend.is_some());
        let request = auto_extend.and_then(|_| self.ops.get_mut(op));
        if let Some(request) = request {
            request.auto_extend = auto_extend;
        }
    }

    /// Begins to renew a lock, or only to watch it, if `renews` is false.
    pub(in crate::proto::locks) fn start_auto_extend(
        &mut self,
        id: RecordId,
        renews: bool,
        auto_extend: AutoExtend,
        start: Instant,
    ) {
        let record = self.records.get_mut(id);
        let entry = AutoExtended::new(id, renews, auto_extend, record.caller_ttl, start);
        record.deadline = entry.capped(record.deadline);
        record.news = record.news.max(News::Nothing);
        record.auto_extended = Some(Place::new(insert(&mut self.auto_extended, entry)));
        self.arm_deadline(id);
        self.plan_renewal(id, true);
    }

    /// The lock is not kept any more, and writes to its key are of no interest.
    pub(in crate::proto::locks) fn stop_auto_extend(&mut self, id: RecordId) {
        let record = self.records.get_mut(id);
        let Some(place) = record.auto_extended.take() else { return };
        record.tracked = false;
        let mut entry = self.auto_extended.remove(place.index());
        self.timers.clear_in(&mut entry.warning);
        self.prolongs.clear_in(&mut entry.renewal);
        self.prolongs.clear_in(&mut entry.check);
    }

    /// The caller extends the lock: a success is no renewal.
    pub(in crate::proto::locks) fn caller_extends(&mut self, id: RecordId) {
        if let Some(place) = self.records.get(id).auto_extended {
            self.auto_extended[place.index()].renewing = false;
        }
    }

    /// The ttl that an extend which wants `ttl` asks for: up to the bound of auto-extension.
    pub(in crate::proto::locks) fn capped_ttl(
        &self,
        id: RecordId,
        ttl: Ttl,
        now: Instant,
    ) -> Option<Ttl> {
        match self.records.get(id).auto_extended {
            Some(place) => self.auto_extended[place.index()].capped_ttl(ttl, now),
            None => Some(ttl),
        }
    }

    /// `deadline`, or the bound of the lock's auto-extension if that is earlier: an extend may have
    /// been asked for before auto-extension began.
    pub(in crate::proto::locks) fn capped_deadline(
        &self,
        id: RecordId,
        deadline: Instant,
    ) -> Instant {
        match self.records.get(id).auto_extended {
            Some(place) => self.auto_extended[place.index()].capped(deadline),
            None => deadline,
        }
    }

    /// An extend was won, no matter what asked for it; `moved`: the deadline is a later one.
    pub(in crate::proto::locks) fn plan_after_extend(
        &mut self,
        id: RecordId,
        moved: bool,
        now: Instant,
    ) {
        let Some(place) = self.records.get(id).auto_extended else { return };
        let entry = &mut self.auto_extended[place.index()];
        if entry.renewing {
            entry.was_renewed();
            self.cluster.stats_mut().renewed += 1;
        }
        if self.plan_renewal(id, moved) {
            // A warning that was not taken is not true any more.
            let record = self.records.get_mut(id);
            record.news = record.news.min(News::Extended);
        }
        self.plan_check(id, now);
    }

    /// An extend was not won: it is tried again, at a bounded pace.
    pub(in crate::proto::locks) fn plan_after_failed_extend(&mut self, id: RecordId, now: Instant) {
        let Some(place) = self.records.get(id).auto_extended else { return };
        let pause = self.cluster.settings().extend_again_after();
        let deadline = self.records.get(id).deadline;
        let entry = &mut self.auto_extended[place.index()];
        entry.renewing = false;
        if entry.renewal.is_none() && entry.wants_renewal(deadline) {
            let due = Prolong::Renew { record: id };
            entry.renewal = Some(self.prolongs.set_after(now, pause, due));
        }
        self.plan_check(id, now);
    }

    /// Sets the timers of the next renewal and of the warning, after a round that was won. If the
    /// deadline did not move, the timers stay. A caller that was warned is not warned again before
    /// a later warning is due. Returns whether a warning comes later.
    fn plan_renewal(&mut self, id: RecordId, moved: bool) -> bool {
        let record = self.records.get_mut(id);
        let (start, deadline) = (record.round.start, record.deadline);
        let Some(place) = record.auto_extended else { return false };
        let entry = &mut self.auto_extended[place.index()];
        if moved {
            self.prolongs.clear_in(&mut entry.renewal);
        }
        if entry.renewal.is_none() && entry.wants_renewal(deadline) {
            let counts_from = entry.counts_from(deadline);
            let (from, length) = entry.next_renewal(counts_from);
            let due = Prolong::Renew { record: id };
            // A timer lane takes only timers that are set in the order of their moments.
            entry.renewal = Some(if counts_from == start {
                self.prolongs.set_after(from, length, due)
            } else {
                self.prolongs.set_at(entry.renews_before(deadline), due)
            });
        }
        let length = entry.warns_at(deadline).saturating_since(start);
        if !entry.renews || !moved || (entry.warned && length.is_zero()) {
            return false;
        }
        entry.warned = false;
        self.timers.clear_in(&mut entry.warning);
        entry.warning = Some(self.timers.set_after(start, length, Due::Warn { record: id }));
        true
    }

    pub(in crate::proto::locks) fn on_renewal_due(&mut self, id: RecordId, now: Instant) {
        let busy = self.is_extending(id) || self.records.get(id).op.is_some();
        let again_after = self.cluster.settings().extend_again_after();
        let record = self.records.get(id);
        // Soon, in a gap between checks of the key: with a long pause, a check could be in flight
        // each time.
        let pause = again_after.min(record.caller_ttl.usable() / 50);
        let place = record.auto_extended.expect("its timers are cleared with its auto-extension");
        let entry = &mut self.auto_extended[place.index()];
        entry.renewal = None;
        if busy {
            let due = Prolong::Renew { record: id };
            entry.renewal = Some(self.prolongs.set_after(now, pause, due));
        } else if let Some(ttl) = entry.renewal_ttl(now) {
            entry.renewing = true;
            self.begin_extend(id, ttl, now);
        }
    }

    pub(in crate::proto::locks) fn on_warning_due(&mut self, id: RecordId) {
        let record = self.records.get(id);
        let place = record.auto_extended.expect("its timers are cleared with its auto-extension");
        let entry = &mut self.auto_extended[place.index()];
        (entry.warning, entry.warned) = (None, true);
        self.report_news(id, News::Expiring);
    }

    /// Registers the record's keys at a node, so that the node reports writes to them.
    pub(in crate::proto::locks) fn register(&mut self, node: NodeId, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        let awaited = record.set().and_then(SetOfKeys::awaited);
        let wanted = |&(index, _): &(usize, &[u8])| awaited.is_none_or(|awaited| awaited == index);
        for (index, key) in record.keys().enumerate().filter(wanted) {
            if !self.cluster.may_name_a_key(node) {
                return;
            }
            self.cluster.ask(node, Ask::Node(NodeAsk::Caching), now, |out| {
                command::encode(out, &[b"CLIENT", b"CACHING", b"YES"]);
            });
            let key = self.key_prefix.put_before(key);
            let names = |out: &mut _| command::encode(out, &[b"PTTL", key]);
            self.cluster.ask(node, Ask::Register(id, index as u8), now, names);
        }
    }

    /// A node answered the registration of a key. If the key is not there, it was deleted before,
    /// unless that is known already or a heal is in flight. Nothing is done for a record that is
    /// over.
    pub fn registered(
        &mut self,
        node: NodeId,
        (id, key): (RecordId, u8),
        left: Option<i64>,
        now: Instant,
    ) {
        if !self.records.is_open(id) {
            return;
        }
        let record = self.records.get(id);
        if record.phase == Phase::Asking {
            let key = usize::from(key);
            self.notify_waiter(id, |op| WaitEvent::Seen { op, node, key, left });
        } else if left == Some(-2) && !record.absent().union(record.healing()).contains(node) {
            self.doubt_key_at(node, id, now);
        }
    }

    /// Another client wrote to a key on a node, or the node forgot that the key was registered.
    pub fn was_written(&mut self, node: NodeId, key: KeyHash, now: Instant) {
        self.report_write(node, key, Writer::Other, now);
    }

    /// A node executed a write of this client to the key of a record, which it does not report to
    /// us. Locks of that key may be auto-extended, or wait for it.
    #[inline]
    pub(in crate::proto::locks) fn we_wrote(&mut self, node: NodeId, id: RecordId, now: Instant) {
        if self.is_interested_in_writes() {
            let keys: Vec<KeyHash> = self.records.get(id).hashes().collect();
            for key in keys {
                self.report_write(node, key, Writer::Record(id), now);
            }
        }
    }

    /// A node executed a write of a task, which it does not report to us.
    pub(in crate::proto::locks) fn task_wrote(&mut self, node: NodeId, id: TaskId, now: Instant) {
        if self.is_interested_in_writes() {
            let key = KeyHash::of(self.tasks.get(id).keys().first());
            self.report_write(node, key, Writer::Task, now);
        }
    }

    fn is_interested_in_writes(&self) -> bool {
        !self.auto_extended.is_empty() || !self.ops.has_no_waiters()
    }

    /// Reports an event to the waits if the record belongs to a waiter between two attempts.
    pub(in crate::proto::locks) fn notify_waiter(
        &mut self,
        id: RecordId,
        event: impl FnOnce(Op) -> WaitEvent,
    ) {
        let record = self.records.get(id);
        let op = record.op.filter(|_| record.phase == Phase::Asking);
        let waits = |&op: &Op| self.ops.get(op).is_some_and(|request| request.waiting.is_some());
        if let Some(op) = op.filter(waits) {
            self.waits.push_back(event(op));
        }
    }

    fn report_write(&mut self, node: NodeId, key: KeyHash, by: Writer, now: Instant) {
        let mut found = std::mem::take(&mut self.found);
        found.extend(self.records.with_key(key));
        for id in found.drain(..) {
            // What was done for an earlier record may have ended this one.
            if by != Writer::Record(id) && self.records.is_open(id) {
                self.doubt_key_at(node, id, now);
                let ours = by != Writer::Other;
                let record = self.records.get(id);
                let key = record.set().and_then(|set| set.index_of(key)).unwrap_or(0);
                self.notify_waiter(id, |op| WaitEvent::Written { op, node, key, ours });
            }
        }
        self.found = found;
    }

    pub(in crate::proto::locks) fn doubt_key_at(
        &mut self,
        node: NodeId,
        id: RecordId,
        now: Instant,
    ) {
        let Some(place) = self.records.get(id).auto_extended else { return };
        self.auto_extended[place.index()].doubted.insert(node);
        self.plan_check(id, now);
    }

    /// All nodes are about to be asked, so the doubts are cleared, also those about a node that
    /// cannot be asked now. Otherwise the checks would go on as long as that node is away; the next
    /// renewal asks it.
    pub(in crate::proto::locks) fn doubts_are_asked_about(&mut self, id: RecordId) {
        let Some(place) = self.records.get(id).auto_extended else { return };
        let entry = &mut self.auto_extended[place.index()];
        entry.doubted = NodeSet::EMPTY;
        self.prolongs.clear_in(&mut entry.check);
    }

    /// Starts an extend because of doubted nodes, or plans it: at once if no majority may be left,
    /// and never two at a time.
    fn plan_check(&mut self, id: RecordId, now: Instant) {
        let spare = self.cluster.spare_nodes();
        let extending = self.is_extending(id);
        let record = self.records.get(id);
        let Some(place) = record.auto_extended else { return };
        let entry = &mut self.auto_extended[place.index()];
        if entry.doubted.is_empty() || extending {
            return;
        }
        let may_be_gone = entry.doubted.union(record.absent()).len() > spare;
        let at = entry.next_check(may_be_gone, now);
        if entry.check.is_none() || may_be_gone {
            self.prolongs.clear_in(&mut entry.check);
            entry.check = Some(self.prolongs.set_at(at, Prolong::Check { record: id }));
        }
    }

    pub(in crate::proto::locks) fn on_check_due(&mut self, id: RecordId, now: Instant) {
        // An extend of the caller that pauses is about to ask by itself.
        let busy = self.is_extending(id) || self.records.get(id).op.is_some();
        let record = self.records.get(id);
        let (place, deadline) = (record.auto_extended, record.deadline);
        let place = place.expect("its timers are cleared with its auto-extension");
        let entry = &mut self.auto_extended[place.index()];
        entry.check = None;
        if busy {
            // This is called again when that extend ends.
            return;
        }
        entry.checked_at = Some(now);
        if let Some(ttl) = entry.check_ttl(deadline, now) {
            entry.renewing = false;
            self.begin_extend(id, ttl, now);
        }
    }

    fn is_extending(&self, id: RecordId) -> bool {
        let round = &self.records.get(id).round;
        round.purpose == Purpose::Extend && round.ballot().verdict() == Verdict::Undecided
    }
}
