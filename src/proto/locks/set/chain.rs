//! How a set waits in line: for one key at a time.
//!
//! After its first refusal a set holds nothing, and waits for the key that was in the way. When
//! that key is handed over, the set asks for all keys in one round. If that is refused, it takes
//! its keys in the order of their bytes: it waits for the first, then asks for all. If a later key
//! is in the way, it keeps the keys before that one, and waits for it. Meanwhile it renews the keys
//! that it keeps. As all sets go by the order of the bytes, no two sets wait for each other.
//!
//! A hand-over of one key is no vote for the set. Only a round over all keys wins the lock.
//!
//! One hazard is a deadlock with a caller that holds a single key and waits for a smaller one,
//! against the order. So a set that does not move up in its line gives way now and then: it gives
//! up the keys that it keeps, and begins anew. The other hazard is a set that is refused for ever
//! although each line hands its key over, because no majority has all its keys free. So it pauses
//! before it begins anew.

use std::time::Duration;

use crate::proto::error::Error;
use crate::proto::ids::{Op, RecordId};
use crate::proto::locks::record::records::Record;
use crate::proto::locks::set::keys::SetOfKeys;
use crate::proto::locks::{Locks, WaitEvent};
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;

/// How often a set that keeps keys decides whether it gives way.
const STANDS_STILL: Duration = Duration::from_secs(1);
/// A set that has not moved up since the last decision gives way in one of this many cases, by
/// chance.
const GIVES_WAY: usize = 8;

/// The state of a set that waits in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chain {
    /// The key in whose line the set stands, or stood last.
    at: u8,
    /// The set takes its keys in the order of their bytes, and keeps all keys before `at`.
    in_order: bool,
    /// How many keys the round in flight asks for. Nothing while the set waits.
    asked: Option<u8>,
    /// The key `at` was handed over.
    is_won: bool,
}

/// What a set does after its round was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Keeps this many keys, and waits for the next one.
    Keep(u8),
    /// Gives up all keys and its place in line.
    BeginAnew,
}

impl Chain {
    /// The set stands in no line yet, and joins that of this key first.
    pub fn begin(at: usize) -> Chain {
        Chain { at: at as u8, in_order: false, asked: None, is_won: false }
    }

    /// The state for the next attempt: its fresh token stands in no line and holds no key.
    pub fn begin_anew(self) -> Chain {
        let in_order = self.in_order || self.is_won;
        let at = if in_order { 0 } else { self.at };
        Chain { at, in_order, asked: None, is_won: false }
    }

    /// How many keys the round in flight asks for, if there is one.
    pub fn asked(self) -> Option<u8> {
        self.asked
    }

    /// How many keys the set keeps while it waits in line.
    fn kept(self) -> u8 {
        if self.in_order { self.at } else { 0 }
    }

    /// What the set does if its round was refused because of this key.
    fn after_refusal_by(self, key: u8) -> Next {
        // The set held the keys before `first` already. If one of those is refused now, it was
        // lost.
        let first = if self.is_won { self.at + 1 } else { self.at };
        if self.in_order && key >= first { Next::Keep(key) } else { Next::BeginAnew }
    }
}

impl SetOfKeys {
    /// The key in whose line the set waits now.
    pub fn waits_in_line_for(&self) -> Option<usize> {
        self.chain.filter(|chain| chain.asked.is_none()).map(|chain| usize::from(chain.at))
    }

    /// Whether a round of a set that waits in line is in flight.
    pub fn asks_after_line(&self) -> bool {
        self.chain.is_some_and(|chain| chain.asked.is_some())
    }

    /// A node refused the present round because of this key.
    pub fn note_refusal(&mut self, node: NodeId, key: u64) {
        if let Ok(key) = u8::try_from(key) {
            self.refused_by.retain(|&(other, _)| other != node);
            self.refused_by.push((node, key));
        }
    }

    /// The key because of which the present round has no majority: so many nodes refused because of
    /// this key or an earlier one that too few are left.
    pub fn blocking_key(&self, spare: usize) -> u8 {
        let mut keys: Vec<u8> = self.refused_by.iter().map(|&(_, key)| key).collect();
        keys.sort_unstable();
        keys.get(spare).or(keys.last()).copied().unwrap_or(0)
    }
}

impl Record {
    /// The key in whose line the record stands.
    pub fn line_key(&self) -> &[u8] {
        match self.set() {
            None => &self.key,
            Some(set) => {
                let at = set.chain.map_or(0, |chain| usize::from(chain.at));
                self.keys().nth(at).unwrap_or(&self.key)
            }
        }
    }
}

impl Locks {
    /// A set is about to wait in line. If its token stands in the line of another key, moves on to
    /// the line of the present key. Returns whether the token stood in a line before.
    pub(in crate::proto::locks) fn move_on_in_line(&mut self, id: RecordId) -> bool {
        let record = self.records.get_mut(id);
        let Some(at) = record.set().and_then(SetOfKeys::waits_in_line_for) else { return false };
        let is_new =
            record.set_mut().is_some_and(|set| set.joined_key.replace(at as u8) != Some(at as u8));
        if let Some(set) = record.set_mut() {
            set.set_named(at as u64);
        }
        let round = record.round.number;
        let late = record.pending.unanswered().union(record.pending.unproven());
        match record.line_mut() {
            Some(line) if is_new => line.move_on(round, late),
            Some(_) => {}
            None => return false,
        }
        true
    }

    /// A majority handed over the key for which a set waits: the set asks for all keys.
    pub(in crate::proto::locks) fn ask_for_all_keys(&mut self, op: Op, id: RecordId, now: Instant) {
        if self.ops.has_waited_enough(op, now) {
            // The time to wait is over: its timer, which is due, ends the request.
            return;
        }
        let record = self.records.get(id);
        let alone = record.line().is_some_and(|line| !line.met_others);
        let all = record.count_keys() as u8;
        if let Some(waiting) = self.ops.waiting_mut(op) {
            waiting.was_alone = alone;
        }
        self.change_set(id, |set| {
            if let Some(chain) = &mut set.chain {
                (chain.is_won, chain.asked) = (true, Some(all));
            }
        });
        self.ops.interrupt(op);
        self.attempt_again(op, now);
    }

    /// When a set that waits in line has to renew the keys that it keeps: at half of their ttl.
    /// Nothing if it keeps none.
    pub(in crate::proto::locks) fn renews_kept_at(&self, id: RecordId) -> Option<Instant> {
        let record = self.records.get(id);
        let chain = record.set()?.chain.filter(|chain| chain.kept() > 0)?;
        debug_assert!(chain.asked.is_none(), "it waits");
        Some(record.round.start.saturating_add(record.ttl.usable() / 2))
    }

    /// Gives up the keys that a set keeps, by chance, if it has not moved up in its line for a
    /// while. Returns whether it gave them up.
    pub(in crate::proto::locks) fn give_way_by_chance(
        &mut self,
        op: Op,
        id: RecordId,
        now: Instant,
    ) -> bool {
        let record = self.records.get_mut(id);
        let rank = record.line().map_or(0, |line| line.rank);
        let Some(set) = record.set_mut() else { return false };
        if set.chain.is_none_or(|chain| chain.kept() == 0) {
            return false;
        }
        let next = (now.saturating_add(STANDS_STILL), rank);
        let (at, before) = *set.next_give_way.get_or_insert(next);
        if now < at {
            return false;
        }
        set.next_give_way = Some(next);
        if rank < before || self.random.index(GIVES_WAY) != 0 {
            return false;
        }
        self.ops.interrupt(op);
        self.on_attempt_lost(id, now);
        true
    }

    /// Renews the keys that a set keeps while it waits in line, if that is due. Returns whether a
    /// round for that has begun, so that the set does not poll now.
    pub(in crate::proto::locks) fn renew_kept(
        &mut self,
        op: Op,
        id: RecordId,
        now: Instant,
    ) -> bool {
        if self.renews_kept_at(id).is_none_or(|at| now < at) {
            return false;
        }
        self.ops.interrupt(op);
        self.change_set(id, |set| {
            if let Some(chain) = &mut set.chain {
                chain.asked = Some(chain.kept());
            }
        });
        self.attempt_again(op, now);
        true
    }

    /// A majority granted the round of a set. If the round did not ask for all keys, the set waits
    /// in line for the next key. Returns whether that is so.
    pub(in crate::proto::locks) fn wait_for_next_key(
        &mut self,
        id: RecordId,
        now: Instant,
    ) -> bool {
        let record = self.records.get_mut(id);
        let op = record.op;
        let Some(set) = record.set_mut() else { return false };
        let all = set.len();
        let asked = set.chain.and_then(Chain::asked).filter(|&asked| usize::from(asked) < all);
        let Some(asked) = asked else {
            set.set_named(u64::MAX);
            return false;
        };
        let Some(chain) = &mut set.chain else { return false };
        if chain.at != asked {
            (chain.at, chain.is_won) = (asked, false);
            set.next_give_way = None;
        }
        chain.asked = None;
        set.set_named(u64::from(asked));
        let over = op.and_then(|op| self.ops.get(op)).is_some_and(|it| now >= it.give_up_at);
        match op {
            Some(op) if !over => {
                let last = Error::Contended(self.report_unasked_of(id, now));
                self.waits.push_back(WaitEvent::AttemptLost { op, next: id, last });
            }
            _ => self.on_attempt_lost(id, now),
        }
        true
    }

    /// The round of a set that waits in line was refused. If the set can keep some keys, it asks
    /// for these again, with the same token. Returns whether it does so.
    pub(in crate::proto::locks) fn keep_keys_after_refusal(
        &mut self,
        id: RecordId,
        error: &Error,
        now: Instant,
    ) -> bool {
        let spare = self.cluster.spare_nodes();
        let record = self.records.get_mut(id);
        let in_time =
            record.op.and_then(|op| self.ops.get(op)).is_some_and(|it| now < it.give_up_at);
        let Some(set) = record.set_mut() else { return false };
        let key = set.blocking_key(spare);
        let Some(chain) = set.chain.as_mut().filter(|chain| chain.asked.is_some()) else {
            return false;
        };
        let Next::Keep(keys) = chain.after_refusal_by(key) else { return false };
        if !in_time || !error.is_contended() {
            return false;
        }
        chain.asked = Some(keys);
        self.ask_anew(id, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::key_set::KeySet;

    #[test]
    fn key_in_the_way_is_the_one_that_leaves_no_majority() {
        let mut set = SetOfKeys::new(&KeySet::new(["a", "b", "c"]).unwrap());
        assert_eq!(set.blocking_key(1), 0, "nobody named one");
        for (node, key) in [(0, 2), (1, 1), (2, 2)] {
            set.note_refusal(NodeId::new(node), key);
        }
        // The argument is how many nodes may refuse: of five nodes two.
        assert_eq!([0, 1, 2, 3].map(|spare| set.blocking_key(spare)), [1, 2, 2, 2]);
        set.note_refusal(NodeId::new(2), 0);
        assert_eq!([0, 1, 2].map(|spare| set.blocking_key(spare)), [0, 1, 2]);
    }

    #[test]
    fn set_keeps_only_what_it_had_before_the_refusal() {
        let first = Chain { is_won: true, asked: Some(4), ..Chain::begin(2) };
        assert_eq!(first.after_refusal_by(3), Next::BeginAnew, "it holds nothing before");
        let anew = first.begin_anew();
        assert_eq!((anew.at, anew.in_order, anew.kept()), (0, true, 0));
        let won = Chain { at: 1, is_won: true, asked: Some(4), ..anew };
        assert_eq!(won.after_refusal_by(2), Next::Keep(2));
        assert_eq!([0, 1].map(|key| won.after_refusal_by(key)), [Next::BeginAnew; 2]);
        let renewed = Chain { at: 2, asked: Some(2), ..anew };
        assert_eq!([0, 1].map(|key| renewed.after_refusal_by(key)), [Next::BeginAnew; 2]);
        let never_won = Chain::begin(2);
        assert_eq!(never_won.begin_anew(), never_won, "it only lost its places");
    }
}
