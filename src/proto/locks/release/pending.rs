//! The nodes where a lock may still have a key, or may get one: what each was asked, and what the
//! answers prove.
//!
//! A release is pending for a node in three cases. The node has not answered a request that may
//! create or prolong the key. Or such a request was lost with its connection, and the node may
//! execute it later. Or the node answered such a request, and the key may be there.
//!
//! The hazard is a key that no client releases. So a release becomes pending before the bytes of
//! the request are written. Only an [`Effect`] which proves that the request wrote nothing undoes
//! that.

use std::time::Duration;

#[cfg(feature = "testing")]
use crate::proto::fingerprint::Fingerprint;
use crate::proto::node_set::{NodeId, NodeSet, Outstanding};
use crate::proto::time::Instant;
use crate::proto::wire::effect::Effect;

/// How long a lost connection may still deliver to the node what was written on it, if nothing
/// proves its end. Linux gives unacknowledged bytes up after 924.6 s (`tcp_retries2` is 15). No
/// option of our socket makes this shorter, because a proxy on the way has a socket of its own.
pub const GONE_AFTER: Duration = Duration::from_secs(16 * 60);

/// What is pending for one token, on all nodes.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    /// Unanswered requests that may create or prolong the key.
    asked: Outstanding,
    /// Nodes with an unanswered release, or an unanswered `EXISTS` after it.
    releasing: NodeSet,
    /// Nodes that have answered a request by which the key may be there.
    written: NodeSet,
    /// Nodes whose connection was lost while a request that may create or prolong the key was
    /// unanswered. The node may execute the request at any time.
    unproven: NodeSet,
    /// The nodes of `unproven` for which no proof will come that they execute nothing any more. A
    /// proof for a later connection says nothing of an earlier one.
    unprovable: NodeSet,
    /// When the key has expired on each node that answered, or that executed a lost request by the
    /// time of the loss. On a node that executes it later, the key has expired `GONE_AFTER` after
    /// this moment. `GIVEN_AWAY` if the token was given to another client, which has to release it.
    lapses_at: Instant,
}

/// Stands in [`Pending::lapses_at`] if the token was given away.
const GIVEN_AWAY: Instant = Instant::from_nanos(u64::MAX);

const _: () = assert!(size_of::<Pending>() == 32);

impl Pending {
    /// These nodes are about to be sent a request that may create or prolong the key.
    ///
    /// # Panics
    /// If one of them has two unanswered requests of this kind.
    #[inline]
    pub fn on_asked(&mut self, nodes: NodeSet) {
        self.asked.add(nodes);
    }

    /// A node answered a request that may create or prolong the key. A key that the request wrote
    /// expires at `expires_at` at the latest.
    #[inline]
    pub fn on_answer(&mut self, node: NodeId, effect: Effect, expires_at: Instant) {
        self.asked.take(node);
        if effect != Effect::NotWritten {
            self.note_possible_key(node.into(), expires_at);
        }
    }

    /// The key may be on these nodes until `expires_at`.
    pub fn note_possible_key(&mut self, nodes: NodeSet, expires_at: Instant) {
        self.written = self.written.union(nodes);
        self.lapses_at = self.lapses_at.max(expires_at);
    }

    /// The connection was lost while a request that may create or prolong the key was unanswered.
    /// If the node has executed the request by now, its key expires at `expires_at` at the latest.
    /// `provable`: a proof may come that the node does not execute the request any more.
    pub fn on_lost(&mut self, node: NodeId, provable: bool, expires_at: Instant) {
        self.asked.take(node);
        self.unproven.insert(node);
        if !provable {
            self.unprovable.insert(node);
        }
        self.lapses_at = self.lapses_at.max(expires_at);
    }

    /// The node says that it does not have our key. Call this only for a lock with one key whose
    /// token stood in no line. A release still stays pending if a request is unanswered or lost.
    pub fn on_gone(&mut self, node: NodeId) {
        self.written.remove(node);
    }

    /// These nodes are about to be sent a release.
    #[inline]
    pub fn on_release_asked(&mut self, nodes: NodeSet) {
        self.releasing = self.releasing.union(nodes);
    }

    /// A release was answered, or lost with its connection: it is not in flight any more.
    #[inline]
    pub fn on_release_over(&mut self, node: NodeId) {
        self.releasing.remove(node);
    }

    /// The node executed a release. Returns whether another release has to follow, because the node
    /// may execute a lost request after this one. If it has executed that request by now, its key
    /// expires at `expires_at` at the latest.
    #[inline]
    pub fn on_released(&mut self, node: NodeId, expires_at: Instant) -> bool {
        if self.unproven.contains(node) {
            self.count_as_executed(node, expires_at);
            return true;
        }
        self.written.remove(node);
        false
    }

    /// The proof came that the node executes nothing any more of its lost connections, except of
    /// those for which no proof was expected. It may have executed all their requests by now.
    pub fn on_proof(&mut self, node: NodeId, expires_at: Instant) {
        if !self.unprovable.contains(node) {
            self.count_as_executed(node, expires_at);
        }
    }

    /// Another process answers at the address. So no request of an earlier connection is executed
    /// any more. The process before may have executed all of them by now.
    pub fn on_other_process(&mut self, node: NodeId, expires_at: Instant) {
        self.count_as_executed(node, expires_at);
    }

    /// The lost requests of the node count as executed by now, so that one release is enough.
    fn count_as_executed(&mut self, node: NodeId, expires_at: Instant) {
        self.unprovable.remove(node);
        if self.unproven.remove(node) {
            self.note_possible_key(node.into(), expires_at);
        }
    }

    /// No proof will come for the requests that were lost with the node's connections so far.
    pub fn on_no_proof(&mut self, node: NodeId) {
        if self.unproven.contains(node) {
            self.unprovable.insert(node);
        }
    }

    /// Gives up the release that is pending for the node: no longer needed, because its key must
    /// have expired by now. Returns whether one was pending, and whether a lost request was
    /// unproven.
    pub fn give_up(&mut self, node: NodeId) -> (bool, bool) {
        let written = self.written.remove(node);
        let unproven = self.unproven.remove(node);
        self.unprovable.remove(node);
        (written || unproven, unproven)
    }

    /// The token is given to another client: from now on this client releases it nowhere.
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

    /// Whether the release that is pending for `node` is not needed any more, because the key has
    /// expired there.
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

    /// Whether the node has acknowledged the release, and is only asked `EXISTS` now: nothing of
    /// ours is left there.
    pub fn is_clear(&self, node: NodeId) -> bool {
        self.releasing.contains(node) && !self.is_release_pending(node)
    }

    /// The nodes that may still execute a request of a lost connection.
    #[inline]
    pub fn unproven(&self) -> NodeSet {
        self.unproven
    }

    /// Whether the node has not answered a request that may create or prolong the key.
    #[inline]
    pub fn is_asked(&self, node: NodeId) -> bool {
        self.asked.contains(node)
    }

    /// The nodes that have not answered a request that may create or prolong the key.
    #[inline]
    pub fn unanswered(&self) -> NodeSet {
        self.asked.nodes()
    }

    /// Whether the node has two unanswered requests of this kind: then it may not be sent a third.
    #[inline]
    pub fn is_full(&self, node: NodeId) -> bool {
        self.asked.is_full(node)
    }

    /// The nodes with two unanswered requests of this kind.
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
    /// Adds to a fingerprint what the next steps can depend on.
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>, nodes: usize) {
        let Pending { asked, releasing, written, unproven, unprovable, lapses_at } = self;
        // Of a token that was given away this is no moment, so its distance from now is not added.
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

    /// What happened on the node before it answers the request of the test, and whether a release
    /// stays pending because of that, even if the request wrote nothing.
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
        // A request was lost with an earlier connection. The node may still execute it; and after
        // the proof that it will not, it may have executed it before. So a key may be there.
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
    fn release_is_pending_from_the_request_until_an_answer_proves_that_nothing_is_left() {
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
    fn lost_request_leaves_a_pending_release_that_lapses_late() {
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
        // After the release was given up, another request is lost with a later connection.
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
            // A request that is lost later has a proof of its own.
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
    fn node_that_is_asked_exists_after_its_release_has_nothing_of_ours() {
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
