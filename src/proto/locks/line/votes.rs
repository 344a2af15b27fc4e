//! What a waiter knows of its lines: there is one on each node.
//!
//! A node votes for the waiter by handing the key over to it. Only a join brings the token of the
//! waiter, which is fresh, to a node. So the node wrote the key after the join was sent, and the
//! key lives for its ttl at least from that moment on: the *base* of the node. If a later poll is
//! answered "not yours", the base moves to the moment at which that poll was sent.
//!
//! [`Line`] is a plain value in its record, and has no effect on anything else. The hazard is a
//! vote that must not count any more, because its node may have forgotten keys, or its connection
//! was lost. [`forget`](Line::forget) takes the vote out.

#[cfg(feature = "testing")]
mod fingerprint;

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::proto::error::Error;
use crate::proto::key_set::MOST_KEYS;
use crate::proto::lock::LockToken;
use crate::proto::locks::line::rest::{POLLS, Rest};
use crate::proto::node_set::{MAX_NODES, NodeId, NodeSet};
use crate::proto::quorum::reached_by;
use crate::proto::time::{Instant, Ttl, drift};
use crate::proto::wire::line::{LINE_TTL, Standing, name_of};

/// What the waiter knows of the line on one node.
#[derive(Debug, Clone, Default)]
struct AtNode {
    /// The base: if the node wrote the key for this waiter, it did so after this moment.
    base: Instant,
    /// If the node has the key for the waiter: the moment until which it does so at least.
    until: Option<Instant>,
    /// The value of the key at the last poll, if that is another's token.
    holder: Bytes,
    /// The key is registered for this waiter: the node reports the next write to it.
    registered: bool,
    /// The value that the key had when it was registered since the last poll, and when that was.
    /// For the same value the client registers it again only after the next poll, or after the time
    /// between two polls. Otherwise a node that reports a write after each registration would be
    /// asked without end.
    registered_for: Bytes,
    registered_at: Instant,
    /// The name of the waiter that was next in line when this one got the key.
    next: Bytes,
    marks: Marks,
    /// The first mark with which the token may still stand in the line of another key of the set.
    oldest: Option<u16>,
}

/// How many waiters at the front of the line register a key whose holder does not hand it over. The
/// release then wakes them, and the second gets the key if the first has gone. Only these poll when
/// the key may have expired.
pub const AT_THE_FRONT: u64 = 2;

/// How many waiters of the line register the key while they rest, whoever holds it. They see each
/// write to it at once, so they need not poll to notice that the waiters before them are gone.
const REGISTERED_AT_REST: u64 = 16;

/// How many members with earlier marks a join or a release names at most. A member is an entry of
/// the sorted set that is the line: a token with a mark. One that is not named may stay in the
/// line. Then the node may hand the key over to it although no waiter has it any more, and the
/// others wait until this client gives the key back.
const EARLIER_MARKS: u16 = 15;

/// The numbers of the marks that a node was given. A mark counts for one hand-over, and on one
/// connection only: a message of an earlier connection may have been read by other users, but not
/// by this client, and they can repeat it.
#[derive(Debug, Clone, Copy, Default)]
struct Marks {
    /// The member that stands in the line has one of the marks from this number to `last`.
    first: u16,
    /// The last mark that was given; 0 if none was.
    last: u16,
    /// The last mark does not count any more, so the next join gives a new one.
    spent: bool,
}

impl Marks {
    /// A join is about to be written: gives a new mark, if the last one does not count any more.
    fn give(&mut self) {
        if self.last == 0 || self.spent {
            let next = self.last.saturating_add(1);
            // There are enough marks for any wait. If all are used, no hand-over counts, and the
            // waiter goes on by its polls.
            self.spent = next == self.last;
            self.last = next;
            self.first = self.first.max(next.saturating_sub(EARLIER_MARKS)).max(1);
        }
    }

    /// The last join was answered, and no earlier one can be executed later: so only the last mark
    /// can be in the line. (A node that restarts with an old line may have an older mark again, as
    /// after `EARLIER_MARKS`.)
    fn answered(&mut self) {
        self.first = self.last;
    }

    /// A message came with this mark. Returns whether the mark is the last one that was given, and
    /// still counted. It does not count again.
    fn take(&mut self, number: u16) -> bool {
        let good = self.last == number && !self.spent;
        self.spent |= good;
        good
    }
}

/// What a waiter does about a split: several waiters have the key on some nodes each, and none on a
/// majority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Split {
    /// Nothing yet: not every node has answered the poll, or a node handed the key over since the
    /// poll was sent.
    Unknown,
    /// Keep its nodes: this waiter should get the key, or another client has it.
    Keep,
    /// Give its nodes up for the waiter with this token, which should get the key.
    Yield(Bytes),
}

/// The lines that a waiter stands in.
#[derive(Debug, Clone)]
pub struct Line {
    /// The ttl of a hand-over if the node has heard from the waiter a moment ago. It is written in
    /// the member, so an extend of the lock does not change it.
    pub ttl: Ttl,
    /// The ttl of a hand-over if the waiter may have stopped.
    pub short_ttl: Ttl,
    at: Vec<AtNode>,
    /// The nodes that were sent a join at least once.
    pub joined: NodeSet,
    /// The nodes that were sent a join for this key or an earlier one. Whether the members of this
    /// token there name a channel does not change any more, because a release must repeat each
    /// member exactly.
    named: NodeSet,
    /// The nodes that do not send this client messages, so that the members there have no channel.
    silent: NodeSet,
    /// The nodes whose votes count. Each answered a join that was sent on its present connection
    /// while it was trusted, and has forgotten nothing since, as far as the client knows.
    counted: NodeSet,
    /// The nodes that were trusted when the last join was sent to them: once they answer it, their
    /// votes count.
    sent_in_trust: NodeSet,
    /// The nodes that the present poll asks, and those that have answered it.
    polled: NodeSet,
    answered: NodeSet,
    /// The nodes that handed the key over, or said that they have it for the waiter: the token does
    /// not stand in their lines any more.
    left: NodeSet,
    /// The nodes that refuse the script of the line.
    pub refused: NodeSet,
    /// A node handed the key over, or reported a write to it, since the present poll was sent: so
    /// the answers to the poll are not of one moment.
    pushed: bool,
    /// A node showed that another client wants the key: the key had another token, or was handed
    /// over.
    pub met_others: bool,
    /// How many waiters stand before this one: the least that a node said in the present poll.
    pub rank: u64,
    /// How many polls in a row were early ones, because the waiter has the key on some nodes only.
    pub early_polls: u32,
    /// How many waiters before this one the nodes could not notify, and so left out.
    pub skipped: u64,
    /// The token for which the waiter gave its nodes up in a split. Empty: the key is handed over
    /// to the waiter that most nodes named.
    pub successor: Bytes,
    /// The error of the last attempt: kept here while a claim is in flight, because then the
    /// request does not pause.
    pub last: Option<Error>,
    /// The round of the first join in these lines. An answer to a join of an earlier round is about
    /// the line of another key.
    since: u32,
    /// How often the waiter polls.
    pub rest: Rest,
    /// For how long its joins let the lines live.
    pub lives: Duration,
}

impl Line {
    /// A waiter that has joined on none of `nodes` nodes. `round` is the number of the present
    /// round of its record.
    pub fn new(nodes: usize, (ttl, short_ttl): (Ttl, Ttl), round: u32) -> Line {
        Line {
            ttl,
            short_ttl,
            at: vec![AtNode::default(); nodes],
            joined: NodeSet::EMPTY,
            named: NodeSet::EMPTY,
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
            rest: Rest::default(),
            lives: LINE_TTL,
        }
    }

    /// After this round the waiter goes on to the lines of another key. Its token may still stand
    /// in the lines of the present key, and the nodes in `late` may still put it there. So these
    /// marks are kept for the release, which takes the token out.
    pub fn move_on(&mut self, round: u32, late: NodeSet) {
        let nodes = self.at.len();
        let may_stand = |node| late.contains(node) || self.is_possibly_in_line(node);
        let stands = |node| may_stand(node).then(|| self.oldest_mark(node));
        let oldest: Vec<_> = NodeSet::first(nodes).iter().map(stands).collect();
        // Not this round: a node that was admitted during it was sent a join for the line of the
        // present key.
        let since = round.wrapping_add(1);
        let next = Line::new(nodes, (self.ttl, self.short_ttl), since);
        let before = std::mem::replace(self, next);
        (self.lives, self.named, self.silent) = (before.lives, before.named, before.silent);
        for ((at, before), oldest) in self.at.iter_mut().zip(before.at).zip(oldest) {
            // A mark counts in one line only.
            at.marks = Marks { spent: true, ..before.marks };
            at.oldest = oldest;
        }
    }

    /// Whether the answer to a join of this round is about the present lines, and not about those
    /// of an earlier key.
    pub fn is_asked_in(&self, round: u32) -> bool {
        round.wrapping_sub(self.since) <= u32::MAX / 2
    }

    /// A new poll of these nodes is about to be sent. The votes of the `untrusted` ones will not
    /// count.
    pub fn begin_poll(&mut self, nodes: NodeSet, untrusted: NodeSet, now: Instant) {
        (self.polled, self.answered) = (NodeSet::EMPTY, NodeSet::EMPTY);
        (self.pushed, self.rank) = (false, u64::MAX);
        nodes.iter().for_each(|node| self.at[node.index()].registered_for.clear());
        self.poll_more(nodes, untrusted, now);
    }

    /// These nodes are about to be sent a join that belongs to the present poll.
    pub fn poll_more(&mut self, nodes: NodeSet, untrusted: NodeSet, now: Instant) {
        for node in nodes.minus(self.joined).iter() {
            self.at[node.index()].base = now;
        }
        nodes.iter().for_each(|node| self.at[node.index()].marks.give());
        self.joined = self.joined.union(nodes);
        self.named = self.named.union(nodes);
        self.sent_in_trust = self.sent_in_trust.minus(nodes).union(nodes.minus(untrusted));
        self.polled = self.polled.union(nodes);
        self.answered = self.answered.minus(nodes);
    }

    /// A node answered a join that was sent at `asked_at`. `mine`: it has the key for this waiter.
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
        if mine || at.holder != standing.holder {
            self.rest.note_news();
        }
        if mine {
            let left = Duration::from_millis(u64::try_from(standing.left).unwrap_or(0));
            // By what the node says, not by the ttl of a hand-over: a claim that was lost may have
            // extended the key.
            let until = asked_at.saturating_add(left.saturating_sub(drift(left)));
            (at.until, at.registered) = (Some(until), false);
            at.next = standing.next.clone();
            self.left.insert(node);
        } else {
            self.left.remove(node);
            self.met_others = true;
            at.base = at.base.max(asked_at);
            // If another client has the key now, this join may have found the key expired, and its
            // write ended the registration without a notification.
            at.registered &= at.holder == standing.holder;
            (at.until, at.holder) = (None, standing.holder.clone());
            self.rank = self.rank.min(standing.rank);
        }
        if in_present_poll {
            self.answered.insert(node);
            self.rest.note_answer(node);
        }
    }

    /// Whether the waiter needs the reports of a node where another client has the key: at the
    /// front of the line if the release of the holder deletes the key, and near the front if
    /// the waiter rests.
    fn needs_reports_of(&self, node: NodeId, rank: u64) -> bool {
        let holder = &self.at[node.index()].holder;
        let waits_for_push = rank < AT_THE_FRONT && !LockToken::value_hands_over(holder);
        let rests = rank < REGISTERED_AT_REST && self.rest.is_resting();
        !holder.is_empty() && (waits_for_push || rests)
    }

    /// Whether the waiter registers the key at a node that answered this rank. Notes the
    /// registration.
    pub fn registers_at(&mut self, node: NodeId, rank: u64, now: Instant) -> bool {
        let needs_reports = self.needs_reports_of(node, rank);
        let at = &mut self.at[node.index()];
        let is_for_another = at.registered_for != at.holder;
        let is_new = is_for_another || now >= at.registered_at.saturating_add(POLLS.0);
        let registers = needs_reports && !at.registered && is_new;
        if registers {
            (at.registered, at.registered_for) = (true, at.holder.clone());
            at.registered_at = now;
        }
        registers
    }

    /// Whether the waiter rests, and needs the reports of a node where it may not register the key
    /// again so soon.
    pub fn lacks_reports_of(&self, node: NodeId, rank: u64) -> bool {
        let registered = self.at[node.index()].registered;
        self.rest.is_resting() && !registered && self.needs_reports_of(node, rank)
    }

    /// The node reported a write to the key, which ends the registration. Returns whether the
    /// waiter had the key registered there. If it had, the present poll cannot decide a split any
    /// more: the other nodes answered it before the write.
    pub fn end_registration(&mut self, node: NodeId) -> bool {
        let ended = std::mem::take(&mut self.at[node.index()].registered);
        self.pushed |= ended;
        ended
    }

    /// The last join to the node was answered, and no earlier join can be executed later. So only
    /// the member of that join can stand in the line.
    pub fn note_only_last_mark(&mut self, node: NodeId) {
        self.at[node.index()].marks.answered();
    }

    /// The mark of the node does not count any more, because other users may have read a message
    /// with it.
    pub fn spend_mark(&mut self, node: NodeId) {
        self.at[node.index()].marks.spent = true;
    }

    /// A message came with the mark of this number. Returns whether the mark counts, which it does
    /// for one hand-over only.
    pub fn take_mark(&mut self, node: NodeId, number: u16) -> bool {
        self.at[node.index()].marks.take(number)
    }

    /// Whether another client had the key when the node answered the last join. Then the waiter
    /// stands in the line there, unless the node has handed the key over since, or has forgotten
    /// the line.
    pub fn has_place_at(&self, node: NodeId) -> bool {
        !self.at[node.index()].holder.is_empty()
    }

    /// The number of the mark that the node was given last.
    pub fn mark_at(&self, node: NodeId) -> u16 {
        self.at[node.index()].marks.last
    }

    /// The number of the first mark with which the token may stand in a line of the node: at least
    /// 1.
    pub fn oldest_mark(&self, node: NodeId) -> u16 {
        let AtNode { marks, oldest, .. } = &self.at[node.index()];
        let first = oldest.map_or(marks.first, |oldest| oldest.min(marks.first));
        // A waiter of a set used at least one mark in the line of each earlier key.
        let most = EARLIER_MARKS + if oldest.is_some() { MOST_KEYS as u16 } else { 0 };
        first.max(marks.last.saturating_sub(most)).max(1)
    }

    /// The numbers of the earlier marks of the node: the member in its line may have one of them.
    pub fn earlier_marks(&self, node: NodeId) -> Range<u16> {
        let marks = self.at[node.index()].marks;
        marks.first..marks.last
    }

    /// A node handed the key over, and gave it this ttl. Returns whether its vote counts.
    pub fn note_hand_over(&mut self, node: NodeId, ttl: Ttl, next: Bytes) -> bool {
        (self.pushed, self.met_others) = (true, true);
        self.rest.note_news();
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

    /// A node named the waiter that is next in line after this one.
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
        self.rest.note_answer(node);
        let at = &mut self.at[node.index()];
        (at.until, at.registered) = (None, false);
        self.spend_mark(node);
    }

    /// The token may stand in the line of the node, or may still come into it, by a join whose
    /// effect is not known.
    pub fn note_possible_place(&mut self, node: NodeId) {
        self.left.remove(node);
    }

    /// The node does not have the key for the waiter any more.
    pub fn note_loss_of(&mut self, node: NodeId) {
        self.at[node.index()].until = None;
    }

    /// Until when the node has the key for the waiter, if it does.
    pub fn until_at(&self, node: NodeId) -> Option<Instant> {
        self.at[node.index()].until
    }

    /// The nodes that have the key for the waiter at `now`, also those whose votes do not count.
    pub fn holds(&self, now: Instant) -> NodeSet {
        let held = |node: &NodeId| self.at[node.index()].until.is_some_and(|until| until > now);
        NodeSet::first(self.at.len()).iter().filter(held).collect()
    }

    /// Until when at least `quorum` nodes whose votes count have the key for this waiter.
    pub fn deadline(&self, quorum: usize, now: Instant) -> Option<Instant> {
        let mut moments = [Instant::default(); MAX_NODES];
        let votes = self.holds(now).common(self.counted);
        for (place, node) in votes.iter().enumerate() {
            moments[place] = self.at[node.index()].until.unwrap_or_default();
        }
        reached_by(quorum, &mut moments[..votes.len()])
    }

    /// Decides a split by the answers to the present poll, if all have come, and no node handed the
    /// key over since it was sent. The token with the most nodes should get the key; of two with
    /// equally many, the lower one. A token of a client that stands in no line counts only with a
    /// majority, because its attempt may be over.
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

    /// Whether the token may stand in the line of a node, or in the line of an earlier key there.
    pub fn is_possibly_in_line(&self, node: NodeId) -> bool {
        let in_earlier_line = self.at[node.index()].oldest.is_some();
        in_earlier_line || self.joined.minus(self.left).contains(node)
    }

    /// These nodes do not send this client messages of hand-overs. Returns the nodes whose members
    /// have no channel: those that were sent a join before keep what they have.
    pub fn note_silent(&mut self, nodes: NodeSet) -> NodeSet {
        self.silent = self.silent.union(nodes.minus(self.named));
        self.silent
    }

    /// Whether the members at the node have no channel.
    pub fn is_silent(&self, node: NodeId) -> bool {
        self.silent.contains(node)
    }

    /// The name of the waiter to which the release hands the key over: the one for which this
    /// waiter gave its nodes up in a split, or else the one that most nodes named. Empty if none is
    /// known.
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

    /// A waiter that joined on `nodes` trusted nodes at 100 ms. Each answered that another client
    /// has the key.
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

    /// A release names all members of a token at a node alike, also those in the lines of earlier
    /// keys.
    #[test]
    fn members_at_a_node_have_a_channel_in_all_lines_or_in_none() {
        let [silent, later, new] = [0, 1, 2].map(NodeId::new);
        let mut line = Line::new(3, (ttl(), short_ttl()), 0);
        line.note_silent(silent.into());
        line.begin_poll(NodeSet::first(2), NodeSet::EMPTY, at(100));
        for round in 1..3 {
            line.move_on(round, NodeSet::EMPTY);
            line.note_silent(NodeSet::first(3));
            assert_eq!([silent, later, new].map(|node| line.is_silent(node)), [true, false, true]);
        }
    }

    #[test]
    fn a_deadline_counts_from_the_base_of_each_node() {
        let mut line = joined(3);
        // Node 0 was polled later, and answered again that another client has the key.
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
        assert!(
            line.is_possibly_in_line(NodeId::new(0)),
            "a join may have come after the hand-over"
        );
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
    fn split_is_not_judged_by_a_poll_that_a_reported_write_followed() {
        let node = NodeId::new(0);
        let mut line = joined(5);
        split(&mut line, &[1, 2], &[(3, A), (4, A), (0, PLAIN)]);
        assert_eq!(line.judge(B, 3, at(210)), Split::Yield(Bytes::from_static(A)));
        assert!(line.registers_at(node, 0, at(215)) && line.end_registration(node));
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
            line.registers_at(node, 1, at(200))
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
        let again_at = |line: &mut Line, millis| line.registers_at(node, 1, at(millis));
        line.end_registration(node);
        assert!(!line.registers_at(node, 2, at(300)), "others are before it");
        assert!(!again_at(&mut line, 259), "the same one rewrote the key");
        assert!(again_at(&mut line, 260), "as long after it as a poll may come");
    }

    #[test]
    fn split_is_not_judged_by_what_a_lost_connection_said() {
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
        assert!(line.deadline(1, at(300)).is_some() && !line.is_possibly_in_line(node));
        line.note_standing(node, false, &held_by(b"x"), at(310), true);
        assert!(
            line.holds(at(310)).is_empty() && line.is_possibly_in_line(node),
            "it is another's again"
        );
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
        assert_eq!([0, 1].map(|node| line.is_possibly_in_line(NodeId::new(node))), [false; 2]);
    }

    #[test]
    fn marks_begin_with_one_and_no_mark_counts_after_the_last() {
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
