//! Where a lock may still have a key, or get one: what each node was asked, and what the answers
//! prove.
//!
//! A release is pending for a node as long as one of these holds: it has not answered a request
//! that may create or prolong the key; such a request was lost with its connection and may be
//! executed later; or the node answered one by which the key may be there.
//!
//! The hazard is a key that no client releases. So a request counts from before its bytes are
//! written, and only an [`Effect`] that proves that the request wrote nothing takes it back.

use std::time::Duration;

#[cfg(feature = "testing")]
use crate::proto::fingerprint::Fingerprint;
use crate::proto::node_set::{NodeId, NodeSet, Outstanding};
use crate::proto::time::Instant;
use crate::proto::wire::effect::Effect;

/// How long after its loss a connection may still deliver to the node what was written on it, if
/// nothing proves its end. Linux gives unacknowledged bytes up after 924.6 s (`tcp_retries2` is
/// 15). A proxy on the way does so by its own clock, whatever our socket is set to.
pub const GONE_AFTER: Duration = Duration::from_secs(16 * 60);

/// What is pending for one token.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    /// Unanswered requests that may create or prolong the key.
    asked: Outstanding,
    /// Nodes with an unanswered release, or an unanswered `EXISTS` after it.
    releasing: NodeSet,
    /// Nodes that have answered a request by which the key may be there.
    written: NodeSet,
    /// Nodes whose connection was lost while such a request was unanswered: the node may execute it
    /// at any time.
    unproven: NodeSet,
    /// Those of them for which no proof is expected that the request is not executed any more. The
    /// proof for a later connection is none for an earlier one.
    unprovable: NodeSet,
    /// When the key has expired on every node that answered, and on each that executed a lost
    /// request by the time of the loss: `GONE_AFTER` later also on those that execute it late.
    /// `GIVEN_AWAY` if the token was given to another client, which releases it.
    lapses_at: Instant,
}

/// The end of time.
const GIVEN_AWAY: Instant = Instant::from_nanos(u64::MAX);

const _: () = assert!(size_of::<Pending>() == 32);

impl Pending {
    /// These nodes are about to be sent a request that may create or prolong the key.
    ///
    /// # Panics
    /// When one of them has two unanswered ones.
    #[inline]
    pub fn on_asked(&mut self, nodes: NodeSet) {
        self.asked.add(nodes);
    }

    /// A node answered such a request, with this effect. A key that it wrote expires at
    /// `expires_at` at the latest.
    #[inline]
    pub fn on_answer(&mut self, node: NodeId, effect: Effect, expires_at: Instant) {
        self.asked.take(node);
        if effect != Effect::NotWritten {
            self.note_possible_key(node.into(), expires_at);
        }
    }

    /// The key may be on these nodes until then, though this record did not ask for it.
    pub fn note_possible_key(&mut self, nodes: NodeSet, expires_at: Instant) {
        self.written = self.written.union(nodes);
        self.lapses_at = self.lapses_at.max(expires_at);
    }

    /// The connection was lost while such a request was unanswered. A key that it wrote by now
    /// expires at `expires_at` at the latest. `provable`: a proof may come that the node does not
    /// execute the request any more.
    pub fn on_lost(&mut self, node: NodeId, provable: bool, expires_at: Instant) {
        self.asked.take(node);
        self.unproven.insert(node);
        if !provable {
            self.unprovable.insert(node);
        }
        self.lapses_at = self.lapses_at.max(expires_at);
    }

    /// The node says that the key of this lock, which has one key and stands in no line, is gone
    /// there, or another's. What may come yet by a request that is unanswered or lost is kept by
    /// itself.
    pub fn on_gone(&mut self, node: NodeId) {
        self.written.remove(node);
    }

    /// These nodes are about to be sent a release.
    #[inline]
    pub fn on_release_asked(&mut self, nodes: NodeSet) {
        self.releasing = self.releasing.union(nodes);
    }

    /// A release is not in flight any more: it was answered, or lost with its connection.
    #[inline]
    pub fn on_release_over(&mut self, node: NodeId) {
        self.releasing.remove(node);
    }

    /// The node executed a release. If a lost request may be executed after it, another release has
    /// to follow: a key that the request writes by now expires at `expires_at` at the latest.
    /// Returns whether that is so.
    #[inline]
    pub fn on_released(&mut self, node: NodeId, expires_at: Instant) -> bool {
        if self.unproven.contains(node) {
            self.count_as_executed(node, expires_at);
            return true;
        }
        self.written.remove(node);
        false
    }

    /// The proof for the connections from which it was expected: the node executes nothing of them
    /// any more. By now it may have executed all of it.
    pub fn on_proof(&mut self, node: NodeId, expires_at: Instant) {
        if !self.unprovable.contains(node) {
            self.count_as_executed(node, expires_at);
        }
    }

    /// Another process answers at the address: nothing of an earlier connection is executed any
    /// more, though the process before may have executed all of it.
    pub fn on_other_process(&mut self, node: NodeId, expires_at: Instant) {
        self.count_as_executed(node, expires_at);
    }

    /// What was lost with the node's connections counts as executed: a release takes it out.
    fn count_as_executed(&mut self, node: NodeId, expires_at: Instant) {
        self.unprovable.remove(node);
        if self.unproven.remove(node) {
            self.note_possible_key(node.into(), expires_at);
        }
    }

    /// No such proof will come for what was lost with the node's connections until now.
    pub fn on_no_proof(&mut self, node: NodeId) {
        if self.unproven.contains(node) {
            self.unprovable.insert(node);
        }
    }

    /// No release is sent to the node any more: its keys must have expired by now. Returns whether
    /// one was pending, and whether a request of a lost connection was unproven.
    pub fn give_up(&mut self, node: NodeId) -> (bool, bool) {
        let written = self.written.remove(node);
        let unproven = self.unproven.remove(node);
        self.unprovable.remove(node);
        (written || unproven, unproven)
    }

    /// The token is given to another client: no release is pending for it from now on.
    pub fn give_away(&mut self) {
        self.lapses_at = GIVEN_AWAY;
    }

    /// The nodes for which a release is pending: they may have the key, or get it.
    #[inline]
    pub fn release_pending(&self) -> NodeSet {
        if self.lapses_at == GIVEN_AWAY {
            return NodeSet::EMPTY;
        }
        self.written.union(self.unproven).union(self.asked.nodes())
    }

    /// Whether a release is pending for the node.
    #[inline]
    pub fn is_release_pending(&self, node: NodeId) -> bool {
        self.release_pending().contains(node)
    }

    /// Whether the release that is pending for `node` is needless: its key has expired.
    pub fn has_lapsed(&self, node: NodeId, now: Instant) -> bool {
        let may_come = self.unproven.contains(node);
        let after = if may_come { GONE_AFTER } else { Duration::ZERO };
        !self.is_asked(node) && now >= self.lapses_at.saturating_add(after)
    }

    /// Nodes with an unanswered release, or an unanswered `EXISTS` after it.
    #[inline]
    pub fn releasing(&self) -> NodeSet {
        self.releasing
    }

    /// Whether nothing of ours is left on a node that was asked to release. It may have been asked
    /// `EXISTS` after it acknowledged the release.
    pub fn is_clear(&self, node: NodeId) -> bool {
        self.releasing.contains(node) && !self.is_release_pending(node)
    }

    /// The nodes that may execute a request of a lost connection.
    #[inline]
    pub fn unproven(&self) -> NodeSet {
        self.unproven
    }

    /// Whether the node has not answered a request that may create or prolong the key.
    #[inline]
    pub fn is_asked(&self, node: NodeId) -> bool {
        self.asked.contains(node)
    }

    /// The nodes that have not answered such a request.
    #[inline]
    pub fn unanswered(&self) -> NodeSet {
        self.asked.nodes()
    }

    /// Whether the node has two unanswered ones: it may be asked no third.
    #[inline]
    pub fn is_full(&self, node: NodeId) -> bool {
        self.asked.is_full(node)
    }

    /// The nodes with two unanswered ones.
    #[inline]
    pub fn full(&self) -> NodeSet {
        self.asked.full()
    }

    /// Whether nothing is in flight, and no release is pending.
    #[inline]
    pub fn is_over(&self) -> bool {
        let is_idle = self.asked.is_empty() && self.releasing.is_empty();
        is_idle && self.release_pending().is_empty()
    }
}

#[cfg(feature = "testing")]
impl Pending {
    /// Adds what matters for the future to a fingerprint.
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>, nodes: usize) {
        let Pending { asked, releasing, written, unproven, unprovable, lapses_at } = self;
        // A token that was given away has no moment.
        let given_away = *lapses_at == GIVEN_AWAY;
        fingerprint.add(if given_away { u64::MAX } else { fingerprint.ahead(*lapses_at) });
        let sets = [asked.nodes(), asked.full(), *releasing, *written, *unproven, *unprovable];
        fingerprint.add_sets(nodes, &sets);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EFFECTS: [Effect; 3] = [Effect::Written, Effect::NotWritten, Effect::Unknown];

    fn node() -> NodeId {
        NodeId::new(1)
    }

    fn at(seconds: u64) -> Instant {
        Instant::default().saturating_add(Duration::from_secs(seconds))
    }

    fn new() -> Pending {
        let mut pending = Pending::default();
        pending.on_asked(node().into());
        pending
    }

    /// What may be on the node before it answers a request, and whether that keeps a release due
    /// if the request wrote nothing.
    type Before = (fn(&mut Pending), bool);

    const BEFORE: [Before; 8] = [
        (|_| {}, false),
        (|pending| pending.note_possible_key(node().into(), at(1)), true),
        // The node answered an earlier request.
        (|pending| ask_and_answer(pending, Effect::Written), true),
        (|pending| ask_and_answer(pending, Effect::Unknown), true),
        (|pending| ask_and_answer(pending, Effect::NotWritten), false),
        // Another request is unanswered.
        (|pending| pending.on_asked(node().into()), true),
        // A request of an earlier connection was lost with it: it was executed, or still may be.
        (|pending| lose(pending), true),
        (
            |pending| {
                lose(pending);
                pending.on_proof(node(), at(1));
            },
            true,
        ),
    ];

    fn ask_and_answer(pending: &mut Pending, effect: Effect) {
        pending.on_asked(node().into());
        pending.on_answer(node(), effect, at(1));
    }

    fn lose(pending: &mut Pending) {
        lose_connection(pending, true);
    }

    fn lose_connection(pending: &mut Pending, provable: bool) {
        pending.on_asked(node().into());
        pending.on_lost(node(), provable, at(1));
    }

    #[test]
    fn release_is_due_from_the_request_until_an_answer_proves_that_nothing_is_left() {
        for (number, (before, keeps)) in BEFORE.into_iter().enumerate() {
            for effect in EFFECTS {
                let mut pending = Pending::default();
                before(&mut pending);
                pending.on_asked(node().into());
                assert!(pending.is_release_pending(node()), "from before the bytes are written");
                pending.on_answer(node(), effect, at(1));
                let due = keeps || effect != Effect::NotWritten;
                assert_eq!(pending.is_release_pending(node()), due, "{number} {effect:?}");
                assert_eq!(pending.is_over(), !due, "{number} {effect:?}");
            }
        }
    }

    #[test]
    fn release_that_a_lost_request_may_follow_is_followed_by_another() {
        let mut pending = Pending::default();
        lose(&mut pending);
        assert!(pending.on_released(node(), at(1)), "the node may execute the request yet");
        assert!(pending.is_release_pending(node()));
        assert!(!pending.on_released(node(), at(1)));
        assert!(pending.is_over());
        let mut pending = Pending::default();
        lose(&mut pending);
        pending.on_proof(node(), at(1));
        assert!(!pending.on_released(node(), at(1)), "it executes nothing any more");
        assert!(pending.is_over());
        pending.on_proof(node(), at(1));
        assert!(pending.is_over(), "the releases were before that");
    }

    #[test]
    fn request_that_is_lost_leaves_a_release_due_that_lapses_late() {
        let mut pending = new();
        pending.on_lost(node(), true, at(9));
        ask_and_answer(&mut pending, Effect::Written);
        let gone = 9 + GONE_AFTER.as_secs();
        let has_lapsed = [0, gone - 1, gone].map(|now| pending.has_lapsed(node(), at(now)));
        assert_eq!(has_lapsed, [false, false, true]);
        assert!(pending.has_lapsed(NodeId::new(0), at(9)), "the others have lapsed before");
        assert_eq!(pending.give_up(node()), (true, true));
        assert_eq!(pending.give_up(node()), (false, false));
        assert!(pending.is_over());
        // The connection that is lost later has another request.
        lose_connection(&mut pending, false);
        pending.give_up(node());
        lose(&mut pending);
        pending.on_proof(node(), at(1));
        assert!(pending.unproven().is_empty());
    }

    #[test]
    fn proof_for_a_later_connection_is_none_for_an_earlier_one() {
        let without: [fn(&mut Pending); 2] = [
            |pending| lose_connection(pending, false),
            |pending| {
                lose(pending);
                pending.on_no_proof(node());
            },
        ];
        for lose_without_proof in without {
            let mut pending = Pending::default();
            lose_without_proof(&mut pending);
            lose(&mut pending);
            pending.on_proof(node(), at(1));
            assert!(pending.unproven().contains(node()), "the first one may be executed yet");
            assert!(pending.on_released(node(), at(1)), "so a second release follows");
            assert!(!pending.on_released(node(), at(1)) && pending.is_over());
            // A later loss has a proof of its own.
            lose(&mut pending);
            pending.on_proof(node(), at(1));
            assert!(pending.unproven().is_empty());
        }
        let mut pending = new();
        pending.on_no_proof(node());
        pending.on_lost(node(), true, at(1));
        pending.on_proof(node(), at(1));
        assert!(pending.unproven().is_empty(), "it was lost after that, with a later connection");
    }

    #[test]
    fn key_that_may_still_come_has_not_lapsed() {
        let mut pending = new();
        assert!(!pending.has_lapsed(node(), at(100)));
        pending.on_answer(node(), Effect::Unknown, at(3));
        assert_eq!([2, 3].map(|now| pending.has_lapsed(node(), at(now))), [false, true]);
    }

    #[test]
    fn token_that_was_given_away_is_not_released_whatever_is_answered() {
        for effect in EFFECTS {
            let mut pending = new();
            pending.note_possible_key(NodeSet::first(3), at(1));
            pending.give_away();
            assert!(pending.release_pending().is_empty() && !pending.is_over(), "one is in flight");
            pending.on_answer(node(), effect, at(1));
            assert!(pending.is_over(), "{effect:?}");
        }
    }

    #[test]
    fn node_that_is_asked_whose_key_it_is_has_nothing_of_ours() {
        let mut pending = new();
        pending.on_answer(node(), Effect::Written, at(1));
        pending.on_release_asked(node().into());
        assert!(!pending.is_clear(node()), "this is the release");
        pending.on_release_over(node());
        pending.on_released(node(), at(1));
        pending.on_release_asked(node().into());
        assert!(pending.is_clear(node()));
    }
}
