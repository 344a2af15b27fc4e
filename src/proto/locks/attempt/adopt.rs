//! Giving a lock away by its token, and adopting a lock that was given away.
//!
//! The hazard is a token that two clients receive. So an adopt puts a new token in its place on
//! each node, and only one of two adopts can have a majority of the nodes.

use crate::proto::error::{Busy, Error, LostReason, NodeReply};
use crate::proto::ids::Op;
use crate::proto::key::KeyHash;
use crate::proto::keys::KeysRef;
use crate::proto::lock::{Lock, LockToken};
use crate::proto::lock_options::LockOptions;
use crate::proto::locks::requests::Stage;
use crate::proto::locks::round::state::Round;
use crate::proto::locks::{Locks, busy};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::LockAsk;

impl Locks {
    /// Gives a lock away: returns its token, which another client can `adopt`. Nothing if the lock
    /// is over.
    pub fn hand_off(&mut self, lock: Lock, now: Instant) -> Option<LockToken> {
        let held = self.records.find(&lock).filter(|_| !self.remaining(&lock, now).is_zero());
        let Some(id) = held else {
            // The deadline may have passed without a turn that ended the lock.
            self.release_nowait(&lock, now);
            return None;
        };
        self.end_extend(id, LostReason::Over, now);
        self.renewals.end(self.records.get_mut(id), &mut self.timers);
        self.end_hold(id, now);
        self.leave_lines(id, now);
        let record = self.records.get_mut(id);
        record.hand_off();
        self.timers.clear_in(&mut record.round_timer);
        self.timers.clear_in(&mut record.deadline_timer);
        self.vacate(id);
        self.finish(id);
        Some(lock.token)
    }

    /// Adopts the lock on these keys that was given away with `token`: puts a new token in its
    /// place on each node where all of the keys hold it.
    pub fn adopt(
        &mut self,
        keys: KeysRef<'_>,
        token: LockToken,
        options: LockOptions,
        data: u64,
        now: Instant,
    ) -> Result<Op, Error> {
        let LockOptions { ttl, auto_extend, owner, .. } = options;
        let ttl = self.check_params(keys, ttl, auto_extend)?;
        self.check_room()?;
        let fresh = self.random_token(token.hands_over(), owner);
        let round = Round::acquire(self.cluster.ballot_about_token(), now, ttl);
        let id = self.records.open_keys(keys, fresh, round).ok_or(busy(Busy::Records))?;
        // An adopt never shortens the ttl of a key, and the client does not know that ttl. So it
        // may be as long as the settings allow.
        let longest = self.longest_ttl()?;
        let op = self.ops.open(data, now, now, Stage::Running { record: id });
        let record = self.records.get_mut(id);
        (record.trouble_mut().taken_up, record.longest) = (Some(Box::new(token)), longest);
        match keys {
            KeysRef::One(key) => self.records.index(id, KeyHash::of(key)),
            KeysRef::Several(keys) => {
                (0..keys.len()).for_each(|key| self.records.index_key(id, key))
            }
        }
        self.ops.link(op, self.records.get_mut(id), auto_extend);
        self.begin_attempt(id, now);
        Ok(op)
    }

    /// A node answered an adopt.
    pub(in crate::proto::locks) fn on_adopt(
        &mut self,
        node: NodeId,
        ask: LockAsk,
        reply: NodeReply,
        now: Instant,
    ) {
        if reply == NodeReply::Granted {
            self.on_own_write(node, ask.record, now);
        }
        self.cast_grant(node, ask, reply);
    }
}
