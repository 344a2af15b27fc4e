//! Handing a lock on by its token, and what can be done with a token alone: adopting the lock and
//! extending it. Also the forced release, which works without the token.
//!
//! The hazard is a token that is delivered twice. So an adopt changes the token, and only one of
//! two clients that try can have a majority of the nodes.

use std::time::Duration;

use crate::proto::error::{Busy, Error, LostReason, NodeReply};
use crate::proto::ids::Op;
use crate::proto::key::KeyHash;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::locks::auto_extend::AutoExtend;
use crate::proto::locks::ballot::{Ballot, Verdict};
use crate::proto::locks::records::Phase;
use crate::proto::locks::round::Purpose;
use crate::proto::locks::round::Round;
use crate::proto::locks::{Due, Locks, busy, check_length, draw};
use crate::proto::node_set::NodeId;
use crate::proto::time::{Instant, Ttl};
use crate::proto::wire::connection::{Ask, Kind};

impl Locks {
    /// Gives a lock away: another client can `adopt` its token.
    pub fn hand_on(&mut self, lock: Lock, now: Instant) -> Option<LockToken> {
        let held = self.records.find(&lock).filter(|_| !self.remaining(&lock, now).is_zero());
        let Some(number) = held else {
            self.forget_loss(&lock);
            return None;
        };
        self.end_extend(number, LostReason::Over, now);
        self.forget_keeping(number);
        let record = self.records.get_mut(number);
        record.hand_on();
        let generation = record.generation;
        self.timers.clear_in(&mut record.round_timer);
        self.timers.clear_in(&mut record.deadline_timer);
        self.vacate(number, false);
        self.finish(number, generation);
        Some(lock.token)
    }

    /// Adopts the lock on `key` that was given away with `token`: on each node that holds the
    /// token, a new one takes its place.
    pub fn adopt(
        &mut self,
        key: &[u8],
        token: LockToken,
        ttl: Duration,
        keep: Option<AutoExtend>,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let ttl = Ttl::new(ttl, self.cluster.settings().max_ttl)?;
        keep.map_or(Ok(()), |keep| keep.check(ttl))?;
        self.check_key(key)?;
        self.check_room()?;
        let fresh = draw(&mut self.rng);
        let mut round = Round::acquire(self.cluster.size(), now, ttl);
        round.purpose = Purpose::Adopt;
        let number = self.records.open(key, fresh, round).ok_or(busy(Busy::Records))?;
        // A node keeps the longer one of two ttls, and the one that it has is not known.
        let longest = Ttl::new(self.cluster.settings().max_ttl, self.cluster.settings().max_ttl)?;
        let op = self.ops.open(data, now, number);
        let record = self.records.get_mut(number);
        (record.taken_up, record.longest) = (Some(Box::new(token)), longest);
        self.records.index(number, KeyHash::of(key));
        self.will_be_kept(number, op, keep);
        self.begin_attempt(number, now);
        Ok(op)
    }

    /// A node answered an adopt.
    pub(super) fn adopt_answered(&mut self, node: NodeId, ask: Ask, said: NodeReply, now: Instant) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        record.asked.take(node);
        record.note_answer(now);
        if matches!(said, NodeReply::Held | NodeReply::Absent) {
            // The script ran, and changed nothing.
            record.owed.remove(node);
        }
        if said == NodeReply::Granted {
            self.we_wrote(node, ask.record, now);
        }
        self.cast_grant(node, ask, said, now);
        self.finish(ask.record, generation);
    }

    /// Extends `key` to at least `ttl` from now on the nodes where it holds `token`, no matter
    /// which client acquired it. There is one round, and nothing is released after it.
    pub fn extend_token(
        &mut self,
        key: &[u8],
        token: LockToken,
        ttl: Duration,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let ttl = Ttl::new(ttl, self.cluster.settings().max_ttl)?;
        self.check_key(key)?;
        self.check_room()?;
        let round = Round::acquire(self.cluster.size(), now, ttl);
        let number = self.records.open(key, token, round).ok_or(busy(Busy::Records))?;
        let op = self.ops.open(data, now, number);
        let record = self.records.get_mut(number);
        (record.phase, record.borrowed, record.op) = (Phase::Held, true, Some(op));
        self.begin_extend(number, ttl, now);
        Ok(op)
    }

    /// Deletes `key` on every node, even if another client holds the lock.
    pub fn force_release(&mut self, key: &[u8], data: u64, now: Instant) -> Result<Op, Error> {
        let (number, op) = self.open_for_looking(key, data, now)?;
        let ballot = Ballot::of_majority(self.cluster.size());
        let record = self.records.get_mut(number);
        let ttl = record.ttl;
        record.round.follow(Purpose::Release, ballot, now, ttl);
        for node in self.cluster.all_nodes().iter() {
            if let Err(cause) = self.cluster.may_ask(node) {
                self.records.get_mut(number).round.cast(node, NodeReply::Failed(cause));
            }
        }
        self.arm_round(number, now);
        for node in self.cluster.all_nodes().iter() {
            if self.cluster.may_ask(node).is_ok() {
                self.ask(node, number, Kind::Delete, now);
            }
        }
        let record = self.records.get(number);
        if record.round.ballot().verdict() != Verdict::Undecided {
            self.settle(number, now);
        }
        Ok(op)
    }

    /// A node answered a delete.
    pub(super) fn delete_answered(
        &mut self,
        node: NodeId,
        ask: Ask,
        said: NodeReply,
        now: Instant,
    ) {
        let record = self.records.get_mut(ask.record);
        let generation = record.generation;
        record.releasing.remove(node);
        if said == NodeReply::Granted {
            self.we_wrote(node, ask.record, now);
        }
        self.cast_release(node, ask, said, now);
        self.finish(ask.record, generation);
    }

    /// Opens a record that stands for a key, and for no lock.
    pub(super) fn open_for_looking(
        &mut self,
        key: &[u8],
        data: u64,
        now: Instant,
    ) -> Result<(u32, Op), Error> {
        check_length(key)?;
        self.check_room()?;
        let ttl = Ttl::new(self.cluster.settings().max_ttl, self.cluster.settings().max_ttl)?;
        let round = Round::acquire(self.cluster.size(), now, ttl);
        let token = draw(&mut self.rng);
        let number = self.records.open(key, token, round).ok_or(busy(Busy::Records))?;
        let op = self.ops.open(data, now, number);
        let record = self.records.get_mut(number);
        record.hand_on();
        record.op = Some(op);
        Ok((number, op))
    }

    pub(super) fn arm_round(&mut self, number: u32, now: Instant) {
        let due = Due::Round { record: number };
        let timer = self.timers.set_after(now, self.cluster.settings().node_timeout, due);
        self.records.get_mut(number).round_timer = Some(timer);
    }
}
