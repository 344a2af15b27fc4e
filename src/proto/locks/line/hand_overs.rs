//! The messages by which nodes notify this client that they handed a key over to one of its
//! waiters.
//!
//! A message may come when the waiter has given up, or has given its lock away. Then the node has a
//! key that no client holds, and this client releases it there: it gives the key back.
//!
//! The hazard is a message that no node sent: any user with the right to `PUBLISH` can send one. So
//! a message counts only with a mark that this client gave to that node for that token.

use std::iter;

use crate::proto::ids::RecordId;
use crate::proto::lock::LockToken;
use crate::proto::locks::Locks;
use crate::proto::locks::encoding::Place;
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::round::state::Purpose;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, Kind, LockAsk};
use crate::proto::wire::command::Form;
use crate::proto::wire::line::{self as lines, HandedOver};

/// How many tokens that stood in line and were given away are remembered. If a node hands a key
/// over to one that is not remembered any more, this client releases the key there.
const GIVEN_AWAY: usize = 64;

/// How many hand-overs to tokens without a record the client remembers. Each message makes it give
/// the key back only once, because other users can repeat the message.
const GIVEN_BACK: usize = 64;

impl Locks {
    /// A message came that a node handed a key over to a waiter of this client. It is ignored if
    /// its mark is not one that this client gave to that node for that token.
    pub fn on_hand_over(&mut self, node: NodeId, now: Instant) {
        let Some(message) = self.cluster.take_handed_over(node) else {
            self.cluster.stats_mut().messages_ignored += 1;
            return;
        };
        let number = self.number_of_mark(node, &message);
        let hash = self.key_prefix.hash_of(&message.key);
        let has_token = |&id: &RecordId| self.records.get(id).token == message.token;
        let found = self.records.with_key(hash).find(has_token);
        match (found, number) {
            (Some(id), Some(number)) => self.on_hand_over_to(id, node, number, &message, now),
            (None, Some(_)) => self.on_hand_over_to_none(node, &message, now),
            (_, None) => self.cluster.stats_mut().messages_ignored += 1,
        }
    }

    /// The number of the mark in a message; nothing if this client did not make the mark for that
    /// token and that node.
    fn number_of_mark(&self, node: NodeId, message: &HandedOver) -> Option<u16> {
        let marks = self.marks.as_ref()?;
        marks.number_of(&message.mark, &message.token, node)
    }

    /// A node handed the key over to the token of this record. `number` is that of the mark in the
    /// message.
    fn on_hand_over_to(
        &mut self,
        id: RecordId,
        node: NodeId,
        number: u16,
        message: &HandedOver,
        now: Instant,
    ) {
        let trusted = self.cluster.is_trusted(node);
        let record = self.records.get_mut(id);
        let phase = record.phase;
        let of_set = record.set().is_some();
        let Some(line) = record.line_mut() else { return };
        if !line.take_mark(node, number) {
            // The mark was used before, or is not the last one that the node was given: the message
            // is repeated or old. The waiter may have the key all the same, so it asks the node.
            self.cluster.stats_mut().messages_ignored += 1;
            if phase == Phase::Asking {
                self.poll_at(node, id, now);
            }
            return;
        }
        let next = message.next.clone();
        if phase != Phase::Asking {
            line.note_next(node, next);
            if phase == Phase::Held && trusted && !of_set {
                record.note_return_of(node);
            }
            return;
        }
        line.skipped = line.skipped.max(message.skipped);
        let counts = line.note_hand_over(node, message.ttl, next);
        if counts && trusted {
            record.prove_in_line(node);
        }
        let line = self.records.get(id).line();
        if line.is_some_and(|line| line.holds(now).contains(node)) {
            self.raise_counter_at(node, id, now);
        } else {
            self.poll_at(node, id, now);
        }
        self.end_rest(id, now);
        self.judge_line(id, now);
    }

    /// If a claim of a fenced lock is in flight, and this node gave the key to the waiter only
    /// after the claim was sent: asks the node to raise its counter, too. Its answer is no vote for
    /// this lock. But if its counter stayed behind those of the other nodes, the votes for the next
    /// holder would differ, which costs that holder another round.
    pub(super) fn raise_counter_at(&mut self, node: NodeId, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        // Not if the claim was lost: then its votes are of an earlier round.
        let number = record.round.number;
        let asks_for_votes = record.fencing().is_some_and(|fencing| fencing.round() == number);
        let in_flight = record.op.is_some_and(|op| self.ops.pauses_before(op).is_none());
        let claims = asks_for_votes && in_flight && record.round.purpose == Purpose::Claim;
        // The counter of a node in quarantine, for example, does not count.
        let counts = self.cluster.refuses_fence(node).is_none();
        if claims && counts && !record.pending.is_asked(node) && self.cluster.may_ask(node).is_ok()
        {
            self.ask_with_counters(node, id, Kind::Claim, now);
        }
    }

    /// Asks one node by a further join whether it has the key for the waiter, and for how long.
    /// Needed after a message without a vote, after a reported write, and when a hand-over that
    /// counts from the last poll leaves no time any more.
    pub(super) fn poll_at(&mut self, node: NodeId, id: RecordId, now: Instant) {
        self.cluster.check_lists(now);
        let record = self.records.get(id);
        if record.pending.is_asked(node) || self.cluster.may_ask(node).is_err() {
            return;
        }
        let untrusted = self.cluster.untrusted(node.into());
        if let Some(line) = self.records.get_mut(id).line_mut() {
            line.poll_more(node.into(), untrusted, now);
        }
        self.ask(node, id, Kind::Join, now);
    }

    /// A lock is about to be given away: takes its token out of the lines in which it still stands.
    /// A node that cannot be asked now may hand the key over to the token later. Then the key stays
    /// there for the ttl of the hand-over, because no release is ever sent for a token that was
    /// given away.
    pub(in crate::proto::locks) fn leave_lines(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        let Some(line) = record.line() else { return };
        if self.given_away.len() == GIVEN_AWAY {
            self.given_away.pop_front();
        }
        self.given_away.push_back(record.token.clone());
        let all = self.cluster.all_nodes();
        let stands = |node: &NodeId| record.set().is_none() || line.is_possibly_in_line(*node);
        let asked = match record.set() {
            None => line.joined.minus(line.holds(now)),
            Some(_) => all.iter().filter(stands).collect(),
        };
        for node in asked.iter() {
            let place = Place::of(record, node, &self.cluster, self.marks.as_ref());
            let Some(place) = place.filter(|_| self.cluster.may_ask(node).is_ok()) else {
                continue;
            };
            for key in record.keys() {
                self.command.clear();
                let key = self.key_prefix.put_before(key);
                lines::leave(&mut self.command, key, place.members(record, line));
                self.cluster.say_last_word(node, now, &self.command);
            }
        }
    }

    /// Whether a release of the token is in flight to the node. The node sent the message of the
    /// hand-over before it answered the release, and so it executes the release after the
    /// hand-over: the release takes the key out.
    fn is_being_released(&self, node: NodeId, token: &LockToken) -> bool {
        self.cluster.asks(node).any(|ask| match *ask {
            Ask::Lock(LockAsk { record, kind: Kind::Release, .. }) => {
                self.records.is_open(record) && self.records.get(record).token == *token
            }
            _ => false,
        })
    }

    /// A node handed a key over to a token of this client that no record has any more: releases the
    /// key there, once and without a record. If that fails, the key stays for the ttl of the
    /// hand-over.
    fn on_hand_over_to_none(&mut self, node: NodeId, message: &HandedOver, now: Instant) {
        let HandedOver { key, token, .. } = message;
        let given_back = (node, token.clone());
        if self.given_away.contains(token) || self.given_back.contains(&given_back) {
            self.cluster.stats_mut().messages_ignored += 1;
            return;
        }
        if self.is_being_released(node, token) {
            return;
        }
        // The mark proves the token and the node, but not the key that the message names: so the
        // key is checked.
        let unprefixed = key.strip_prefix(self.key_prefix.as_bytes());
        let good = unprefixed.is_some_and(|key| self.check_key(key).is_ok());
        if good && self.cluster.may_ask(node).is_ok() {
            self.command.clear();
            lines::hand_over(&mut self.command, Form::Source, key, token, iter::empty(), &[]);
            self.cluster.say_last_word(node, now, &self.command);
            if self.given_back.len() == GIVEN_BACK {
                self.given_back.pop_front();
            }
            self.given_back.push_back(given_back);
        }
    }

    /// The connection to a node was lost: the hand-overs that it reported do not count any more,
    /// and messages may have been lost with the connection.
    pub(in crate::proto::locks) fn forget_hand_overs(&mut self, node: NodeId) {
        if self.marks.is_none() {
            // The client never stood in line.
            return;
        }
        for id in self.records.ids() {
            let record = self.records.get_mut(id);
            match (record.phase, record.line_mut()) {
                (Phase::Asking, Some(line)) => line.forget(node),
                (_, Some(line)) => line.spend_mark(node),
                (_, None) => {}
            }
        }
    }
}
