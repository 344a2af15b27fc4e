//! What a waiter knows of the lines that it stands in: one line on each node.
//!
//! A node votes for the waiter by handing the key over to it. The token of the waiter is fresh, and
//! only a join can bring it to a node. So the node wrote the key after the join was sent, and the
//! key lives at least for its ttl from then on. A poll that is answered "not yours" moves that
//! moment (the *base* of the node) to when the poll was sent.
//!
//! This is a plain value in its record: it writes nothing and acts on nothing. The hazard is a vote
//! that does not count any more: of a node that may have forgotten keys, or of a connection that
//! was lost. [`forget`](Line::forget) takes it out.

#[cfg(feature = "testing")]
mod fingerprint;

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::proto::error::Error;
use crate::proto::key_set::MOST_KEYS;
use crate::proto::lock::LockToken;
use crate::proto::node_set::{MAX_NODES, NodeId, NodeSet};
use crate::proto::quorum::reached_by;
use crate::proto::time::{Instant, Ttl, drift};
use crate::proto::wire::line::{Standing, name_of};

/// What is known of the line on one node.
#[derive(Debug, Clone, Default)]
struct AtNode {
    /// The node wrote the key for this waiter after this moment, if it wrote it at all.
    base: Instant,
    /// The key is the waiter's until this moment at least.
    until: Option<Instant>,
    /// What the key held at the last poll, if it was another's.
    holder: Bytes,
    /// The node is to report the next write to the key.
    registered: bool,
    /// The key was registered since the last poll, while it had this value. It is not registered
    /// again so soon for the same holder: a node that reports without end would be asked without
    /// end.
    registered_for: Bytes,
    /// The name of the waiter that came after this one when it got the key.
    next: Bytes,
    marks: Marks,
    /// The first mark that may stand in the line of another key, where the waiter stood before.
    oldest: Option<u16>,
}

/// So many waiters, from the front of the line, register a key whose holder does not hand it over:
/// its release then wakes the first, and the withdrawal of the first wakes the second. As many poll
/// when the key can have expired.
const AT_THE_FRONT: u64 = 2;

/// How many members with earlier marks a join or a release names at most. One that is left out may
/// stay in the line: it costs the others a hand-over to a token that is released at once.
const EARLIER_MARKS: u16 = 15;

/// The numbers of the marks that a node was given. A mark is for one hand-over, and for one
/// connection: a message that was sent on an earlier one may have been read by others only.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    /// The member in the line has one of the marks from this number on.
    first: u16,
    /// The last mark that was given; 0 if none was.
    last: u16,
    /// The next join gives another mark.
    spent: bool,
}

impl Marks {
    /// A join is about to be written.
    fn give(&mut self) {
        if self.last == 0 || self.spent {
            let next = self.last.saturating_add(1);
            // There are enough marks for any wait. After the last one, only polls count.
            self.spent = next == self.last;
            self.last = next;
            self.first = self.first.max(next.saturating_sub(EARLIER_MARKS)).max(1);
        }
    }

    /// The last join was answered, and no earlier one can be executed later: no other mark is in
    /// the line. (A node that restarts with an old line may have one again. It costs the others a
    /// hand-over to a token that is released at once.)
    fn answered(&mut self) {
        self.first = self.last;
    }

    /// A hand-over came with this mark. Returns whether it is the last one that was given, and was
    /// not used.
    fn take(&mut self, number: u16) -> bool {
        let good = self.last == number && !self.spent;
        self.spent |= good;
        good
    }
}

/// What a poll of all nodes says about a key that no waiter has a majority of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Split {
    /// Not every node has answered, or a node handed the key over meanwhile.
    Unknown,
    /// This waiter is to get the key, or another client has it.
    Keep,
    /// The waiter with this token is to get the key.
    Yield(Bytes),
}

/// The lines that a waiter stands in.
#[derive(Debug, Clone)]
pub struct Line {
    /// How long the key lives when it is handed over to a waiter of which the node knows that it
    /// runs. It is a part of the member, so it stays as it was when the waiter joined, whatever the
    /// lock is extended by.
    pub ttl: Ttl,
    /// How long it lives if the waiter may have stopped.
    pub short_ttl: Ttl,
    at: Vec<AtNode>,
    /// The nodes that were asked for a place at least once.
    pub joined: NodeSet,
    /// The nodes among these that do not notify this client.
    pub silent: NodeSet,
    /// The nodes whose votes count: each has answered a join that was sent on its present
    /// connection, while it was trusted, and has forgotten nothing since.
    counted: NodeSet,
    /// The nodes whose next answer lets their votes count.
    sent_in_trust: NodeSet,
    /// The nodes of the present poll, and those that have answered it.
    polled: NodeSet,
    answered: NodeSet,
    /// The nodes that handed the key over, or said that it is the waiter's: the token stands in
    /// their lines no more.
    left: NodeSet,
    /// The nodes that refuse the script of the line.
    pub refused: NodeSet,
    /// A node handed the key over since the present poll was sent.
    pushed: bool,
    /// A node knew of another client: it had the key, or handed it over.
    pub met_others: bool,
    /// How many stand before the waiter, by the answer that says the least.
    pub rank: u64,
    /// How many polls in a row were sent early.
    pub early_polls: u32,
    /// How many waiters before this one could not be reached.
    pub skipped: u64,
    /// The token that the key is handed over to after a split; empty: the waiter that most nodes
    /// named.
    pub successor: Bytes,
    /// The error of the last attempt, while the waiter claims.
    pub last: Option<Error>,
    /// The round of the first join. What answers an earlier one is about the line of another key.
    since: u32,
}

impl Line {
    /// A waiter that has not joined on any of `nodes` nodes. `round` is the present one of its
    /// record.
    pub fn new(nodes: usize, (ttl, short_ttl): (Ttl, Ttl), round: u32) -> Line {
        Line {
            ttl,
            short_ttl,
            at: vec![AtNode::default(); nodes],
            joined: NodeSet::EMPTY,
            silent: NodeSet::EMPTY,
            counted: NodeSet::EMPTY,
            sent_in_trust: NodeSet::EMPTY,
            polled: NodeSet::EMPTY,
            answered: NodeSet::EMPTY,
            left: NodeSet::EMPTY,
            refused: NodeSet::EMPTY,
            pushed: false,
            met_others: false,
            rank: 0,
            early_polls: 0,
            skipped: 0,
            successor: Bytes::new(),
            last: None,
            since: round,
        }
    }

    /// The waiter leaves these lines for those of another key, after this round. The token may stay
    /// where it is, and the nodes `late` may put it there yet: the release takes it out.
    pub fn move_on(&mut self, round: u32, late: NodeSet) {
        let nodes = self.at.len();
        let may_stand = |node| late.contains(node) || self.may_stand(node);
        let stands = |node| may_stand(node).then(|| self.oldest_mark(node));
        let oldest: Vec<_> = NodeSet::first(nodes).iter().map(stands).collect();
        // A node that was admitted during this round was asked for a place in the line before.
        let since = round.wrapping_add(1);
        let next = Line::new(nodes, (self.ttl, self.short_ttl), since);
        let before = std::mem::replace(self, next);
        for ((at, before), oldest) in self.at.iter_mut().zip(before.at).zip(oldest) {
            // A mark is for one line only.
            at.marks = Marks { spent: true, ..before.marks };
            at.oldest = oldest;
        }
    }

    /// Whether the answer to a join of this round is about these lines.
    pub fn is_asked_in(&self, round: u32) -> bool {
        round.wrapping_sub(self.since) <= u32::MAX / 2
    }

    /// These nodes are about to be polled; of the `untrusted` ones a vote does not count.
    pub fn begin_poll(&mut self, nodes: NodeSet, untrusted: NodeSet, now: Instant) {
        (self.polled, self.answered) = (NodeSet::EMPTY, NodeSet::EMPTY);
        (self.pushed, self.rank) = (false, u64::MAX);
        nodes.iter().for_each(|node| self.at[node.index()].registered_for.clear());
        self.poll_more(nodes, untrusted, now);
    }

    /// These nodes are about to be asked as a part of the present poll.
    pub fn poll_more(&mut self, nodes: NodeSet, untrusted: NodeSet, now: Instant) {
        for node in nodes.minus(self.joined).iter() {
            self.at[node.index()].base = now;
        }
        nodes.iter().for_each(|node| self.at[node.index()].marks.give());
        self.joined = self.joined.union(nodes);
        self.sent_in_trust = self.sent_in_trust.minus(nodes).union(nodes.minus(untrusted));
        self.polled = self.polled.union(nodes);
        self.answered = self.answered.minus(nodes);
    }

    /// A node answered a join that was sent at `asked_at`; `mine`: the key is the waiter's.
    pub fn note_standing(
        &mut self,
        node: NodeId,
        mine: bool,
        standing: &Standing,
        asked_at: Instant,
        in_present_poll: bool,
    ) {
        if self.sent_in_trust.contains(node) {
            self.counted.insert(node);
        } else {
            self.counted.remove(node);
        }
        let at = &mut self.at[node.index()];
        if mine {
            let left = Duration::from_millis(u64::try_from(standing.left).unwrap_or(0));
            // After a lost claim the key may live for longer than a hand-over gives.
            let until = asked_at.saturating_add(left.saturating_sub(drift(left)));
            (at.until, at.registered) = (Some(until), false);
            at.next = standing.next.clone();
            self.left.insert(node);
        } else {
            self.left.remove(node);
            self.met_others = true;
            at.base = at.base.max(asked_at);
            // A join that found the key expired may have used the registration up.
            at.registered &= at.holder == standing.holder;
            (at.until, at.holder) = (None, standing.holder.clone());
            self.rank = self.rank.min(standing.rank);
        }
        if in_present_poll {
            self.answered.insert(node);
        }
    }

    /// Whether the key is to be registered at the node, where another has it. It is if the waiter
    /// is near the front and the holder deletes the key when it releases it. Notes that it is.
    pub fn registers_at(&mut self, node: NodeId, rank: u64) -> bool {
        let at = &mut self.at[node.index()];
        let waits_for_push = !at.holder.is_empty() && !LockToken::value_hands_over(&at.holder);
        let is_new = !at.registered && at.registered_for != at.holder;
        let registers = rank < AT_THE_FRONT && waits_for_push && is_new;
        if registers {
            (at.registered, at.registered_for) = (true, at.holder.clone());
        }
        registers
    }

    /// Whether few enough stand before the waiter, by the answers of the present poll.
    pub fn is_near_the_front(&self) -> bool {
        self.rank < AT_THE_FRONT
    }

    /// The node reported a write to the key, or that it is gone. Returns whether the waiter had the
    /// key registered there; it has not any more. What the other nodes said before is of an earlier
    /// moment than what this one will say.
    pub fn end_registration(&mut self, node: NodeId) -> bool {
        let ended = std::mem::take(&mut self.at[node.index()].registered);
        self.pushed |= ended;
        ended
    }

    /// The last join to the node was answered, and nothing that was sent before it can be executed
    /// after it: of this waiter, at most the member of that join stands in the line.
    pub fn note_only_last_mark(&mut self, node: NodeId) {
        self.at[node.index()].marks.answered();
    }

    /// The mark of the node counts no more: others may have read a message that has it.
    pub fn spend_mark(&mut self, node: NodeId) {
        self.at[node.index()].marks.spent = true;
    }

    /// A message came with the mark of this number. Returns whether the node was given it for one
    /// hand-over, and this is the first.
    pub fn take_mark(&mut self, node: NodeId, number: u16) -> bool {
        self.at[node.index()].marks.take(number)
    }

    /// Whether the last answered join of the node found the key to be another's: then the waiter
    /// stands in the line there, unless the node has handed it the key or has forgotten the line.
    pub fn has_place_at(&self, node: NodeId) -> bool {
        !self.at[node.index()].holder.is_empty()
    }

    /// The number of the mark that the node was given last.
    pub fn mark_at(&self, node: NodeId) -> u16 {
        self.at[node.index()].marks.last
    }

    /// The first mark that may be in a line of the node. The first mark has the number 1.
    pub fn oldest_mark(&self, node: NodeId) -> u16 {
        let AtNode { marks, oldest, .. } = &self.at[node.index()];
        let first = oldest.map_or(marks.first, |oldest| oldest.min(marks.first));
        // A waiter that goes on to the line of another key gives at least one mark in each line.
        let most = EARLIER_MARKS + if oldest.is_some() { MOST_KEYS as u16 } else { 0 };
        first.max(marks.last.saturating_sub(most)).max(1)
    }

    /// The numbers of the marks that it was given before, of which one may be in its line.
    pub fn earlier_marks(&self, node: NodeId) -> Range<u16> {
        let marks = self.at[node.index()].marks;
        marks.first..marks.last
    }

    /// A node handed the key over, and gave it this ttl. Returns whether its vote counts.
    pub fn note_hand_over(&mut self, node: NodeId, ttl: Ttl, next: Bytes) -> bool {
        (self.pushed, self.met_others) = (true, true);
        self.left.insert(node);
        let at = &mut self.at[node.index()];
        at.next = next;
        let counts = self.counted.contains(node);
        if counts {
            // No node gives more than the waiter asked for.
            let ttl = if ttl.as_millis() < self.ttl.as_millis() { ttl } else { self.ttl };
            at.until = Some(ttl.deadline(at.base));
        }
        counts
    }

    /// The name of the waiter that comes after this one on a node, as the node said it.
    pub fn note_next(&mut self, node: NodeId, next: Bytes) {
        self.left.insert(node);
        self.at[node.index()].next = next;
    }

    /// The votes of the node do not count until it has answered another join: it may have forgotten
    /// keys, or its connection was lost.
    pub fn forget(&mut self, node: NodeId) {
        self.counted.remove(node);
        self.note_possible_place(node);
        self.sent_in_trust.remove(node);
        self.answered.remove(node);
        let at = &mut self.at[node.index()];
        (at.until, at.registered) = (None, false);
        self.spend_mark(node);
    }

    /// A join that nobody reads the answer of may have put the token into the line of the node, or
    /// may do so yet.
    pub fn note_possible_place(&mut self, node: NodeId) {
        self.left.remove(node);
    }

    /// The key on the node is not the waiter's any more.
    pub fn note_loss_of(&mut self, node: NodeId) {
        self.at[node.index()].until = None;
    }

    /// Until when the key on the node is the waiter's, if it is.
    pub fn until_at(&self, node: NodeId) -> Option<Instant> {
        self.at[node.index()].until
    }

    /// The nodes whose key is the waiter's, as far as it knows.
    pub fn holds(&self, now: Instant) -> NodeSet {
        let held = |node: &NodeId| self.at[node.index()].until.is_some_and(|until| until > now);
        NodeSet::first(self.at.len()).iter().filter(held).collect()
    }

    /// Until when `quorum` nodes whose votes count have the key of this waiter.
    pub fn deadline(&self, quorum: usize, now: Instant) -> Option<Instant> {
        let mut moments = [Instant::default(); MAX_NODES];
        let votes = self.holds(now).common(self.counted);
        for (place, node) in votes.iter().enumerate() {
            moments[place] = self.at[node.index()].until.unwrap_or_default();
        }
        reached_by(quorum, &mut moments[..votes.len()])
    }

    /// Judges a split from the present poll: whole, and with no hand-over since it was sent. The
    /// token with the most nodes is to get the key; of two with as many, the lower one. A token
    /// whose holder does not hand the key over counts only with a majority: its attempt may be
    /// over.
    pub fn judge(&self, own: &[u8], quorum: usize, now: Instant) -> Split {
        let answered = self.answered.common(self.joined);
        let whole = self.polled.minus(self.answered).is_empty() && !self.pushed;
        if answered.len() < quorum || !whole {
            return Split::Unknown;
        }
        let holds = self.holds(now);
        let holder_at = |node: NodeId| -> &[u8] {
            if holds.contains(node) { own } else { &self.at[node.index()].holder }
        };
        let votes_for = |token: &[u8]| answered.iter().filter(|&n| holder_at(n) == token).count();
        let stands = |token: &[u8]| {
            token == own || LockToken::value_hands_over(token) || votes_for(token) >= quorum
        };
        let most = answered
            .iter()
            .map(holder_at)
            .filter(|token| !token.is_empty() && stands(token))
            .max_by(|a, b| votes_for(a).cmp(&votes_for(b)).then_with(|| b.cmp(a)));
        match most {
            Some(token) if token != own && votes_for(token) < quorum => {
                Split::Yield(Bytes::copy_from_slice(token))
            }
            _ => Split::Keep,
        }
    }

    /// Whether the token may stand in the line of a node, as far as the node has answered.
    pub fn may_stand(&self, node: NodeId) -> bool {
        let in_earlier_line = self.at[node.index()].oldest.is_some();
        in_earlier_line || self.joined.minus(self.left).contains(node)
    }

    /// Whether the node does not notify this client of hand-overs.
    pub fn is_silent(&self, node: NodeId) -> bool {
        self.silent.contains(node)
    }

    /// The name of the waiter that the key is handed over to: the one that gets it after a split,
    /// or else the one that most nodes named. Empty if none is known.
    pub fn successor(&self) -> &[u8] {
        if !self.successor.is_empty() {
            return name_of(&self.successor);
        }
        let all = || self.at.iter().map(|at| &at.next[..]).filter(|next| !next.is_empty());
        let named = |name: &[u8]| all().filter(|&other| other == name).count();
        let most = all().max_by(|a, b| named(a).cmp(&named(b)).then_with(|| b.cmp(a)));
        most.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &[u8] = &[b'a'; 40];
    const B: &[u8] = &[b'b'; 40];
    const C: &[u8] = &[b'c'; 40];
    const D: &[u8] = &[b'd'; 40];
    const PLAIN: &[u8] = &[b'1'; 40];

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn ttl() -> Ttl {
        Ttl::new(Duration::from_millis(1000), Duration::MAX).unwrap()
    }

    fn short_ttl() -> Ttl {
        Ttl::new(Duration::from_millis(200), Duration::MAX).unwrap()
    }

    fn held_by(token: &'static [u8]) -> Standing {
        Standing { holder: Bytes::from_static(token), ..Standing::default() }
    }

    /// A waiter that joined on `nodes` trusted nodes at 100 ms; each said that another holds it.
    fn joined(nodes: usize) -> Line {
        let mut line = Line::new(nodes, (ttl(), short_ttl()), 0);
        line.begin_poll(NodeSet::first(nodes), NodeSet::EMPTY, at(100));
        for node in NodeSet::first(nodes).iter() {
            line.note_standing(node, false, &held_by(b"x"), at(100), true);
        }
        line
    }

    fn push(line: &mut Line, node: usize) -> bool {
        line.note_hand_over(NodeId::new(node), ttl(), Bytes::new())
    }

    #[test]
    fn a_deadline_counts_from_the_base_of_each_node() {
        let mut line = joined(3);
        // One node was polled later, and answered once more that the key is another client's.
        line.begin_poll(NodeId::new(0).into(), NodeSet::EMPTY, at(500));
        line.note_standing(NodeId::new(0), false, &held_by(b"x"), at(500), true);
        assert!(push(&mut line, 0) && push(&mut line, 1));
        assert_eq!(line.deadline(2, at(600)), Some(ttl().deadline(at(100))));
        assert_eq!(line.deadline(1, at(600)), Some(ttl().deadline(at(500))));
        assert_eq!(line.deadline(3, at(600)), None);
        assert_eq!(line.deadline(2, at(1_090)), None, "the key has expired on one");
    }

    #[test]
    fn a_hand_over_counts_for_as_long_as_the_node_says_and_no_longer_than_was_asked_for() {
        let longer = Ttl::new(Duration::from_millis(9_000), Duration::MAX).unwrap();
        for (given, counted) in [(short_ttl(), short_ttl()), (ttl(), ttl()), (longer, ttl())] {
            let mut line = joined(1);
            line.note_hand_over(NodeId::new(0), given, Bytes::new());
            assert_eq!(line.deadline(1, at(150)), Some(counted.deadline(at(100))));
        }
    }

    #[test]
    fn a_node_that_was_not_trusted_when_it_was_asked_does_not_count() {
        let mut line = Line::new(1, (ttl(), short_ttl()), 0);
        let node = NodeId::new(0);
        line.begin_poll(node.into(), node.into(), at(100));
        line.note_standing(node, false, &held_by(b"x"), at(100), true);
        assert!(!push(&mut line, 0));
        assert_eq!(line.deadline(1, at(200)), None);
        line.begin_poll(node.into(), NodeSet::EMPTY, at(300));
        let mine = Standing { left: 700, ..Standing::default() };
        line.note_standing(node, true, &mine, at(300), true);
        assert_eq!(line.deadline(1, at(300)), Some(at(300 + 700 - 9)), "less the drift of that");
    }

    #[test]
    fn a_lost_connection_takes_its_vote_with_it_and_the_base_stays() {
        let mut line = joined(1);
        push(&mut line, 0);
        line.forget(NodeId::new(0));
        assert_eq!(line.deadline(1, at(200)), None);
        assert!(line.may_stand(NodeId::new(0)), "a join may have come after the hand-over");
        assert!(!push(&mut line, 0), "the join of the new connection is not answered");
        line.begin_poll(NodeId::new(0).into(), NodeSet::EMPTY, at(300));
        line.forget(NodeId::new(0));
        line.note_standing(NodeId::new(0), false, &held_by(b"x"), at(300), true);
        assert!(!push(&mut line, 0), "the node forgot keys after it was asked");
    }

    fn split(line: &mut Line, mine: &[usize], others: &[(usize, &'static [u8])]) {
        let all: NodeSet =
            mine.iter().copied().chain(others.iter().map(|o| o.0)).map(NodeId::new).collect();
        line.begin_poll(all, NodeSet::EMPTY, at(200));
        let own = Standing { left: 900, ..Standing::default() };
        for &node in mine {
            line.note_standing(NodeId::new(node), true, &own, at(200), true);
        }
        for &(node, token) in others {
            line.note_standing(NodeId::new(node), false, &held_by(token), at(200), true);
        }
    }

    #[test]
    fn most_votes_win_a_split_and_of_two_with_as_many_the_lower_token() {
        let judged = |own, mine: &[usize], others: &[(usize, &'static [u8])]| {
            let mut line = joined(5);
            split(&mut line, mine, others);
            line.judge(own, 3, at(210))
        };
        let yields = |token: &'static [u8]| Split::Yield(Bytes::from_static(token));
        assert_eq!(judged(B, &[0, 1], &[(2, A), (3, A), (4, C)]), yields(A));
        assert_eq!(judged(A, &[0, 1], &[(2, B), (3, B), (4, C)]), Split::Keep);
        assert_eq!(judged(A, &[0], &[(2, B), (3, B), (4, C), (1, D)]), yields(B));
        assert_eq!(judged(A, &[0, 1], &[(2, B), (3, B), (4, B)]), Split::Keep, "B has won");
        let of_plain = [(1, PLAIN), (2, PLAIN), (3, PLAIN), (4, B)];
        assert_eq!(judged(A, &[0], &of_plain), Split::Keep, "it holds the key");
        let left = [(1, PLAIN), (2, PLAIN), (3, B), (4, B)];
        assert_eq!(judged(A, &[0], &left), yields(B), "nobody may have it any more");
        assert_eq!(judged(A, &[0, 4], &left[..3]), Split::Keep);
        assert_eq!(judged(B, &[0], &[(2, A)]), Split::Unknown, "too few have answered");
    }

    #[test]
    fn a_split_is_judged_from_one_whole_round_without_a_hand_over() {
        let others: [(usize, &'static [u8]); 3] = [(2, A), (3, A), (4, C)];
        let mut line = joined(5);
        split(&mut line, &[0, 1], &others);
        push(&mut line, 4);
        assert_eq!(line.judge(B, 3, at(210)), Split::Unknown);
        split(&mut line, &[0, 1], &others);
        line.begin_poll(NodeSet::first(5), NodeSet::EMPTY, at(220));
        let late = held_by(A);
        line.note_standing(NodeId::new(2), false, &late, at(200), false);
        assert_eq!(line.judge(B, 3, at(230)), Split::Unknown);
    }

    #[test]
    fn write_that_a_node_reported_makes_the_poll_before_it_no_picture_of_one_moment() {
        let node = NodeId::new(0);
        let mut line = joined(5);
        split(&mut line, &[1, 2], &[(3, A), (4, A), (0, PLAIN)]);
        assert_eq!(line.judge(B, 3, at(210)), Split::Yield(Bytes::from_static(A)));
        assert!(line.registers_at(node, 0) && line.end_registration(node));
        line.poll_more(node.into(), NodeSet::EMPTY, at(220));
        assert_eq!(line.judge(B, 3, at(230)), Split::Unknown);
        line.note_standing(node, false, &held_by(A), at(220), true);
        assert_eq!(line.judge(B, 3, at(230)), Split::Unknown);
    }

    #[test]
    fn key_is_registered_once_for_a_holder_between_two_polls() {
        const OTHER: &[u8] = &[b'2'; 40];
        let node = NodeId::new(0);
        let mut line = joined(1);
        let holder = |line: &mut Line, token| {
            line.note_standing(node, false, &held_by(token), at(200), true);
            line.registers_at(node, 1)
        };
        assert!(holder(&mut line, PLAIN) && !holder(&mut line, PLAIN), "it is registered");
        assert!(line.end_registration(node) && !line.end_registration(node));
        assert!(!holder(&mut line, PLAIN), "the same one rewrote the key");
        assert!(holder(&mut line, OTHER), "another one has it");
        assert!(!holder(&mut line, A), "it hands the key over");
        assert!(holder(&mut line, PLAIN), "a join that another one came between uses it up");
        line.end_registration(node);
        line.begin_poll(node.into(), NodeSet::EMPTY, at(300));
        assert!(holder(&mut line, PLAIN), "a poll may register again");
        assert!(!line.registers_at(node, 2), "others are before it");
    }

    #[test]
    fn what_a_lost_connection_said_is_no_part_of_a_whole_round() {
        let mut line = joined(5);
        split(&mut line, &[0, 1], &[(2, A), (3, A), (4, C)]);
        assert_eq!(line.judge(B, 3, at(210)), Split::Yield(Bytes::from_static(A)));
        line.forget(NodeId::new(4));
        assert_eq!(line.judge(B, 3, at(210)), Split::Unknown);
    }

    #[test]
    fn last_answer_of_a_node_says_whose_the_key_is_and_whether_its_vote_counts() {
        let (mut line, node) = (joined(1), NodeId::new(0));
        let own = Standing { left: 700, ..Standing::default() };
        line.note_standing(node, true, &own, at(300), true);
        assert!(line.deadline(1, at(300)).is_some() && !line.may_stand(node));
        line.note_standing(node, false, &held_by(b"x"), at(310), true);
        assert!(line.holds(at(310)).is_empty() && line.may_stand(node), "it is another's again");
        line.note_standing(node, false, &held_by(b"x"), at(305), false);
        assert!(push(&mut line, 0));
        assert_eq!(line.deadline(1, at(320)), Some(ttl().deadline(at(310))), "the latest base");
        line.forget(node);
        assert!(line.holds(at(320)).is_empty());
        let mut line = joined(1);
        line.begin_poll(node.into(), node.into(), at(400));
        line.note_standing(node, true, &own, at(400), true);
        assert_eq!(line.deadline(1, at(400)), None, "it was in quarantine when it was asked");
    }

    #[test]
    fn node_that_is_not_asked_in_the_present_poll_does_not_keep_a_split_open() {
        let mut line = joined(5);
        line.begin_poll(NodeSet::first(5), NodeSet::EMPTY, at(150));
        split(&mut line, &[0, 1], &[(2, A), (3, A)]);
        assert_eq!(line.judge(B, 3, at(210)), Split::Yield(Bytes::from_static(A)));
    }

    #[test]
    fn the_successor_is_the_one_that_most_nodes_named() {
        let mut line = joined(5);
        assert_eq!(line.successor(), b"");
        for (node, next) in ["m1", "m2", "m2", "m1", ""].into_iter().enumerate() {
            line.note_next(NodeId::new(node), Bytes::from_static(next.as_bytes()));
        }
        assert_eq!(line.successor(), b"m1");
        line.note_next(NodeId::new(4), Bytes::from_static(b"m2"));
        assert_eq!(line.successor(), b"m2");
        line.successor = Bytes::from_static(b"0123456789abcdef");
        assert_eq!(line.successor(), b"0123456789ab");
    }

    #[test]
    fn node_that_handed_the_key_over_has_said_who_is_next_and_has_the_token_in_line_no_more() {
        let mut line = joined(2);
        line.note_hand_over(NodeId::new(0), ttl(), Bytes::from_static(b"m1"));
        assert_eq!(line.successor(), b"m1");
        line.note_next(NodeId::new(1), Bytes::new());
        assert_eq!([0, 1].map(|node| line.may_stand(NodeId::new(node))), [false; 2]);
    }

    #[test]
    fn marks_begin_with_one_and_the_last_one_is_good_for_nothing() {
        let mut marks = Marks::default();
        marks.give();
        assert_eq!((marks.first, marks.last), (1, 1));
        let mut marks = Marks { first: 1, last: u16::MAX, spent: true };
        marks.give();
        assert!(!marks.take(u16::MAX), "it was used before");
    }

    #[test]
    fn a_mark_is_for_one_hand_over_and_one_connection() {
        let (mut line, node) = (joined(1), NodeId::new(0));
        assert_eq!((line.mark_at(node), line.earlier_marks(node)), (1, 1..1));
        assert!(!line.take_mark(node, 2) && line.take_mark(node, 1) && !line.take_mark(node, 1));
        line.begin_poll(node.into(), NodeSet::EMPTY, at(200));
        assert_eq!((line.mark_at(node), line.earlier_marks(node)), (2, 1..2));
        line.note_standing(node, false, &held_by(b"x"), at(200), true);
        assert_eq!(line.earlier_marks(node), 1..2, "an earlier join may be executed later");
        line.note_only_last_mark(node);
        assert_eq!(line.earlier_marks(node), 2..2);
        line.begin_poll(node.into(), NodeSet::EMPTY, at(300));
        assert_eq!(line.mark_at(node), 2, "nobody else can know it");
        line.forget(node);
        assert!(!line.take_mark(node, 2), "it may have been sent on the connection that was lost");
        for lost in 0..20 {
            line.begin_poll(node.into(), NodeSet::EMPTY, at(400 + lost));
            line.forget(node);
        }
        assert_eq!((line.mark_at(node), line.earlier_marks(node)), (22, 7..22));
    }
}
