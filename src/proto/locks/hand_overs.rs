//! The messages by which nodes hand a key over to a waiter of this client.
//!
//! A message may come too late: the waiter has given up, or has given its lock away. Then the node
//! has a key that no client holds, and the client gives it back there.

use crate::proto::ids::RecordId;
use crate::proto::lock::LockToken;
use crate::proto::locks::Locks;
use crate::proto::locks::records::Phase;
use crate::proto::node_set::NodeId;
use crate::proto::time::Instant;
use crate::proto::wire::ask::{Ask, Kind, LockAsk};
use crate::proto::wire::command::Form;
use crate::proto::wire::line::{self as lines, HandedOver, Member};

/// How many tokens of fair locks that were given away are remembered. One that is forgotten, and to
/// which a node hands the key afterwards, is released there.
const GIVEN_AWAY: usize = 64;

impl Locks {
    /// A node handed a key over to a waiter of this client.
    pub fn handed_over(&mut self, node: NodeId, now: Instant) {
        let Some(HandedOver { key, token, next, skipped, .. }) =
            self.cluster.take_handed_over(node)
        else {
            return;
        };
        let hash = self.key_prefix.hash_of(&key);
        let found = self.records.with_key(hash).find(|&id| self.records.get(id).token == token);
        let Some(id) = found else {
            if !self.is_being_released(node, &token) {
                self.release_unknown(node, &key, &token, now);
            }
            return;
        };
        let trusted = self.cluster.is_trusted(node);
        let record = self.records.get_mut(id);
        let phase = record.phase;
        let Some(line) = record.line_mut() else { return };
        if phase != Phase::Asking {
            line.note_next(node, next);
            if phase == Phase::Held && trusted {
                record.note_return_of(node);
            }
            return;
        }
        line.skipped = line.skipped.max(skipped);
        let counts = line.note_hand_over(node, next, now);
        if counts && trusted {
            record.prove_in_line(node);
        }
        let line = self.records.get(id).line();
        if !line.is_some_and(|line| line.holds(now).contains(node)) {
            self.poll_at(node, id, now);
        }
        self.judge_line(id, now);
    }

    /// Asks one node for how long the key is the waiter's. The last poll was so long ago that a
    /// hand-over, reckoned from there, gives no time any more.
    fn poll_at(&mut self, node: NodeId, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        if record.asked.contains(node) || self.cluster.may_ask(node).is_err() {
            return;
        }
        let untrusted = self.cluster.untrusted(node.into());
        if let Some(line) = self.records.get_mut(id).line_mut() {
            line.poll_more(node.into(), untrusted, now);
        }
        self.ask(node, id, Kind::Join(Form::Sha), now);
    }

    /// A lock is about to be given away: its token leaves the lines in which it still stands. Where
    /// that is not possible now, the key may be handed over to it later. Then it stays for the ttl
    /// of the hand-over: no release is ever sent for a token that was given away.
    pub(super) fn leave_lines(&mut self, id: RecordId, now: Instant) {
        let record = self.records.get(id);
        let Some(line) = record.line() else { return };
        let elsewhere = line.joined.minus(line.holds(now));
        let ttl = line.ttl;
        if self.given_away.len() == GIVEN_AWAY {
            self.given_away.pop_front();
        }
        self.given_away.push_back(record.token.clone());
        for node in elsewhere.iter() {
            if self.cluster.may_ask(node).is_err() {
                continue;
            }
            self.command.clear();
            let key = self.key_prefix.put_before(&record.key);
            let channel = self.cluster.channel(node).filter(|_| !line.is_silent(node));
            let member = Member { token: &record.token, ttl, channel: channel.as_ref() };
            lines::leave(&mut self.command, key, member);
            self.cluster.say_last_word(node, now, &self.command);
        }
    }

    /// Whether a release of the token is in flight to the node. The node executes it after the
    /// hand-over of which it sent the message before: it answers in the order of execution.
    fn is_being_released(&self, node: NodeId, token: &LockToken) -> bool {
        self.cluster.asks(node).any(|ask| match *ask {
            Ask::Lock(LockAsk { record, kind: Kind::Release(_), .. }) => {
                self.records.is_open(record) && self.records.get(record).token == *token
            }
            _ => false,
        })
    }

    /// A node handed a key over to a token that no waiter has any more: it is given back there, one
    /// time and without a record. If that fails, the key stays for the ttl of a hand-over.
    fn release_unknown(&mut self, node: NodeId, key: &[u8], token: &LockToken, now: Instant) {
        if self.given_away.contains(token) {
            return;
        }
        let unprefixed = key.strip_prefix(self.key_prefix.as_bytes());
        if unprefixed.is_none_or(|key| self.check_key(key).is_err()) {
            // No client of this library can have locked it.
            return;
        }
        if self.cluster.may_ask(node).is_ok() {
            self.command.clear();
            lines::hand_over(&mut self.command, Form::Source, key, token, None, &[]);
            self.cluster.say_last_word(node, now, &self.command);
        }
    }

    /// The connection to a node was lost: the hand-overs that it said count no more, and what it
    /// would have said is not known.
    pub(super) fn forget_hand_overs(&mut self, node: NodeId) {
        if self.ops.has_no_waiters() {
            return;
        }
        for id in self.records.ids() {
            let record = self.records.get_mut(id);
            if let (Phase::Asking, Some(line)) = (record.phase, record.line_mut()) {
                line.forget(node);
            }
        }
    }
}
