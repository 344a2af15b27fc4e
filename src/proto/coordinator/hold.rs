//! What becomes of a lock that is held: extending it, its deadline, giving it back, and what is
//! owed afterwards.

use std::time::Duration;

use super::super::round::Released;
use super::*;

impl Coordinator {
    /// When the lock ends; `None` once it is over.
    pub fn deadline(&self, lock: &Lock) -> Option<Instant> {
        let record = self.records.get(self.records.find(lock)?);
        (record.phase == Phase::Held).then_some(record.deadline)
    }

    /// How long the lock may still be believed in; zero once it is over.
    pub fn remaining(&self, lock: &Lock, now: Instant) -> Duration {
        self.deadline(lock).map_or(Duration::ZERO, |deadline| deadline.saturating_since(now))
    }

    /// Prolongs a lock to at least `ttl` from now. While too few nodes answer it is asked again,
    /// up to the deadline that is in force; that one stays until a majority agreed to a later one.
    ///
    /// # Errors
    /// Before anything is sent: a ttl that cannot be, [`Error::Lost`] when the lock is over, or
    /// [`Error::Busy`] while it is being extended.
    pub fn extend(
        &mut self,
        lock: &Lock,
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let ttl = Ttl::new(ttl, self.settings.max_ttl)?;
        let number = self.records.find(lock).filter(|_| !self.remaining(lock, now).is_zero());
        let Some(number) = number else {
            return Err(Error::Lost(self.report_unasked(&[], now)));
        };
        let record = self.records.get_mut(number);
        if record.op.is_some() {
            return Err(busy(Busy::Lock));
        }
        let op = self.ops.open(data, record.deadline, number);
        record.op = Some(op);
        record.ttl = ttl;
        record.longest = record.longest.max(ttl);
        self.begin_extend(number, now);
        Ok(op)
    }

    /// Gives a lock back. It ends when a majority let go of it, or at the node timeout; what is
    /// owed then still goes out by itself. An extend that is under way ends as [`Error::Lost`].
    ///
    /// A lock whose record is over by its deadline is `AlreadyExpired` without asking anybody:
    /// [`release_token`](Coordinator::release_token) asks.
    pub fn release(&mut self, lock: Lock, data: u64, now: Instant) -> Op {
        let held = self.records.find(&lock).filter(|&n| self.records.get(n).phase == Phase::Held);
        let Some(number) = held else {
            let op = self.ops.open(data, now, lock.record);
            self.ops.move_to(op, Stage::Over(Ok(Outcome::Released(Released::AlreadyExpired))));
            return op;
        };
        self.end_extend(number, now);
        let owed = self.records.get(number).owed;
        self.begin_release(number, owed, data, now)
    }

    /// Releases `key` where it holds `token`, whoever took it: for a lock whose record is over,
    /// and for scripts.
    ///
    /// # Errors
    /// Before anything is sent: a key that cannot be, or [`Error::Busy`].
    pub fn release_token(
        &mut self,
        key: &[u8],
        token: Token,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        check_key(key)?;
        let ttl = Ttl::new(self.settings.max_ttl, self.settings.max_ttl)?;
        let round = super::super::round::Round::acquire(self.nodes.len(), now, ttl);
        let number = self.records.open(key, token, round).ok_or(busy(Busy::Records))?;
        // Only nodes that can be asked now: what we did not write there we do not owe.
        let reachable = self.all_nodes().iter().filter(|&node| self.may_ask(node).is_ok());
        let owed = reachable.collect();
        let record = self.records.get_mut(number);
        record.owed = owed;
        record.note_answer(now);
        let electors = self.all_nodes();
        Ok(self.begin_release(number, electors, data, now))
    }

    /// Gives a lock back without waiting for what comes of it: the release is written so that it
    /// needs no answer.
    pub fn let_go(&mut self, lock: &Lock, now: Instant) {
        let held = self.records.find(lock).filter(|&n| self.records.get(n).phase == Phase::Held);
        if let Some(number) = held {
            self.end_extend(number, now);
            self.end_as(number, Form::Source, now);
        }
    }

    /// Asks the nodes to prolong the key.
    pub(super) fn begin_extend(&mut self, number: u32, now: Instant) {
        let ballot = Ballot::of_majority(self.nodes.len());
        let record = self.records.get_mut(number);
        // That of an extend whose caller is gone may still run.
        self.timers.clear_in(&mut record.round_timer);
        let ttl = record.ttl;
        record.round.follow(Purpose::Extend, ballot, now, ttl);
        let mut askable = NodeSet::EMPTY;
        for node in self.all_nodes().iter() {
            let record = self.records.get(number);
            let said = match self.may_ask(node) {
                _ if record.absent.contains(node) => Said::Absent,
                _ if record.asked.is_full(node) => Said::Failed(Cause::Silent),
                Err(cause) => {
                    self.stats.failed(node, cause);
                    Said::Failed(cause)
                }
                Ok(()) => {
                    askable.insert(node);
                    continue;
                }
            };
            self.records.get_mut(number).round.cast(node, said);
        }
        let record = self.records.get_mut(number);
        if record.round.ballot().verdict() != Verdict::Undecided {
            self.settle(number, now);
            return;
        }
        let due = Due::Round { record: number };
        record.round_timer = Some(self.timers.set_after(now, self.settings.node_timeout, due));
        for node in askable.iter() {
            self.ask(node, number, Kind::Extend(Form::Sha), now);
        }
    }

    /// A node answered an extend.
    pub(super) fn extend_answered(
        &mut self,
        node: NodeId,
        ask: Ask,
        form: Form,
        said: Said,
        now: Instant,
    ) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        record.asked.take(node);
        let current = record.phase == Phase::Held && record.round.number == ask.round;
        if said.asks_for_the_source() && form == Form::Sha {
            // Only while the answer is wanted, and so before any release was written: a repeat
            // that overtook its release would leave a key that nobody owns.
            if current && record.round.ballot().verdict() == Verdict::Undecided {
                self.ask(node, ask.record, Kind::Extend(Form::Source), now);
            }
            self.finish(ask.record, generation);
            return;
        }
        record.note_answer(now);
        if matches!(said, Said::Held | Said::Absent) {
            record.absent.insert(node);
            // What an earlier connection left unexecuted there may come yet.
            if !record.unproven.contains(node) {
                record.owed.remove(node);
            }
        }
        let gone = record.absent.len();
        if current {
            self.cast(ask.record, node, said, now);
        }
        if gone > self.spare_nodes() && self.is_held(ask.record, generation) {
            self.lose(ask.record, now);
        }
        self.finish(ask.record, generation);
    }

    pub(super) fn extend_is_won(&mut self, number: u32, now: Instant) {
        let record = self.records.get_mut(number);
        if now >= record.deadline {
            // Decided too late: nobody may have believed in it between the two deadlines.
            self.lose(number, now);
            return;
        }
        let (start, ttl) = (record.round.start, record.round.ttl);
        record.deadline = record.deadline.max(ttl.deadline(start));
        self.timers.clear_in(&mut record.deadline_timer);
        let deadline = record.deadline;
        let (length, due) = (deadline.saturating_since(start), Due::Deadline { record: number });
        record.deadline_timer = Some(self.timers.set_after(start, length, due));
        if let Some(op) = record.op.take() {
            self.ops.move_to(op, Stage::Over(Ok(Outcome::Extended { deadline })));
        }
    }

    /// No majority prolonged it. Where too many nodes say that the key is not ours, it is lost;
    /// otherwise the old deadline stays in force, and the nodes are asked again before it.
    pub(super) fn extend_is_lost(&mut self, number: u32, now: Instant) {
        let spare = self.spare_nodes();
        let record = self.records.get(number);
        if record.absent.len() > spare || now >= record.deadline {
            self.lose(number, now);
            return;
        }
        let Some(op) = record.op else { return };
        let report = self.report(number, now);
        if record.round.count_failed(Cause::is_permanent) > spare {
            self.records.get_mut(number).op = None;
            let error = Error::Config(ConfigError::Nodes(report));
            self.ops.move_to(op, Stage::Over(Err(error)));
            return;
        }
        // The pace of asking again is bounded by the node timeout. At the deadline there is no
        // next round: its own timer ends the lock.
        let at = now.saturating_add(self.settings.node_timeout).min(record.deadline);
        let timer = self.timers.set_at(at, Due::Retry { op });
        let last = Error::NoQuorum(report);
        self.ops.move_to(op, Stage::Pausing { record: number, timer, last });
    }

    /// The deadline has come: nobody may believe in the lock any more.
    pub(super) fn deadline_is_reached(&mut self, number: u32, now: Instant) {
        let record = self.records.get_mut(number);
        record.deadline_timer = None;
        let op = record.op;
        let stage = op.and_then(|op| self.ops.get_mut(op)).map(|request| &request.stage);
        if matches!(stage, Some(Stage::Granted { .. })) {
            self.attempt_is_lost(number, now);
        } else {
            self.lose(number, now);
        }
    }

    /// The lock is lost now: what is owed falls due.
    pub(super) fn lose(&mut self, number: u32, now: Instant) {
        self.end_extend(number, now);
        self.end(number, now);
    }

    /// Ends an extend that is under way, if there is one: its lock is over.
    fn end_extend(&mut self, number: u32, now: Instant) {
        let Some(op) = self.records.get_mut(number).op.take() else { return };
        let error = Error::Lost(self.report(number, now));
        if let Some(Stage::Pausing { timer, .. }) = self.ops.get_mut(op).map(|r| &r.stage) {
            self.timers.clear(*timer);
        }
        self.ops.move_to(op, Stage::Over(Err(error)));
    }

    /// Ends a record: whatever is owed falls due and is paid at once where that is possible.
    pub(super) fn end(&mut self, number: u32, now: Instant) {
        let form = if self.settings.attended { Form::Sha } else { Form::Source };
        self.end_as(number, form, now);
    }

    pub(super) fn end_as(&mut self, number: u32, form: Form, now: Instant) {
        let record = self.records.get_mut(number);
        record.phase = Phase::Ending;
        self.timers.clear_in(&mut record.round_timer);
        self.timers.clear_in(&mut record.deadline_timer);
        let (owed, generation) = (record.owed, record.generation);
        for node in owed.iter() {
            self.pay(node, number, form, now);
        }
        self.finish(number, generation);
    }

    /// Starts the round of a release: `electors` are asked, where they are owed it.
    fn begin_release(&mut self, number: u32, electors: NodeSet, data: u64, now: Instant) -> Op {
        let op = self.ops.open(data, now, number);
        let needed = self.quorum.min(electors.len());
        let record = self.records.get_mut(number);
        record.op = Some(op);
        self.timers.clear_in(&mut record.round_timer);
        let ttl = record.ttl;
        record.round.follow(Purpose::Release, Ballot::of(electors, needed), now, ttl);
        let generation = record.generation;
        self.end(number, now);
        for node in electors.iter() {
            let record = self.records.get(number);
            // Owed to a node whose next connection is being opened: it may be in time.
            let may_come = record.owed.contains(node) && self.nodes[node.index()].is_coming_back();
            if !record.releasing.contains(node) && !may_come {
                let said = Said::Failed(self.may_ask(node).err().unwrap_or(Cause::Full));
                self.records.get_mut(number).round.cast(node, said);
            }
        }
        let record = self.records.get_mut(number);
        if record.round.ballot().verdict() == Verdict::Undecided {
            let due = Due::Round { record: number };
            record.round_timer = Some(self.timers.set_after(now, self.settings.node_timeout, due));
        } else {
            self.settle(number, now);
        }
        self.finish(number, generation);
        op
    }

    /// A majority let go, or cannot do so in time.
    pub(super) fn release_is_over(&mut self, number: u32) {
        let record = self.records.get_mut(number);
        let (released, generation) = (record.round.released(), record.generation);
        if let Some(op) = record.op.take() {
            self.ops.move_to(op, Stage::Over(Ok(Outcome::Released(released))));
        }
        self.finish(number, generation);
    }

    fn is_held(&self, number: u32, generation: u64) -> bool {
        self.records.is_open(number, generation) && self.records.get(number).phase == Phase::Held
    }
}
