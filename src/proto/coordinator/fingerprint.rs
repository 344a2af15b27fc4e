//! What a search over all orders of events needs of a coordinator.

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::proto::coordinator::Coordinator;
use crate::proto::fingerprint::Fingerprint;
use crate::proto::lock::LockToken;
use crate::proto::locks::copies::Planned;
use crate::proto::node_set::NodeSet;

impl Coordinator {
    /// Adds the state of this client to a fingerprint. Its output, actions and completions must
    /// have been taken out before.
    ///
    /// # Panics
    /// If the fingerprint does not cover a part of the state: a waiter that stands in no line,
    /// an auto-extended lock, a task, a campaign, or an unfinished handshake.
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>) {
        let Coordinator { locks, waits, elections } = self;
        assert!(elections.next_timeout().is_none(), "a campaign has no fingerprint");
        waits.add_to(fingerprint);
        locks.add_to(fingerprint);
    }

    /// The token that a coordinator with this seed draws first.
    pub fn first_token(seed: [u8; 32]) -> LockToken {
        LockToken::random(&mut StdRng::from_seed(seed))
    }

    /// From now on, tokens and pauses are drawn from this seed. A copy of a coordinator needs a new
    /// seed before its next request, because otherwise it draws the same tokens as the original.
    pub fn reseed(&mut self, seed: [u8; 32]) {
        self.locks.reseed(seed);
    }

    /// From now on, tokens and pauses are taken from `planned` instead of being drawn, so a copy of
    /// a coordinator needs no new seed.
    pub fn plan_draws(&mut self, planned: Planned) {
        self.locks.plan_draws(planned);
    }

    /// How many tokens were drawn as planned.
    pub fn tokens_drawn(&self) -> usize {
        self.locks.tokens_drawn()
    }

    /// The nodes on which this client accounts for a key with `token`: it holds the lock and may
    /// have the key there, or a release is pending.
    pub fn answers_for(&self, token: &LockToken) -> NodeSet {
        self.locks.answers_for(token)
    }
}
