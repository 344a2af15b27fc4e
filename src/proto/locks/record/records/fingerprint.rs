//! The fingerprint of a record: all that its next steps can depend on. See
//! [`crate::proto::fingerprint`].

use std::num::NonZeroU64;

use crate::proto::error::NodeReply;
use crate::proto::fingerprint::{Fingerprint, hash_of, mix};
use crate::proto::ids::Op;
use crate::proto::locks::attempt::again::LONG_HOLD;
use crate::proto::locks::fence::number::Fencing;
use crate::proto::locks::fingerprint::phase_number;
use crate::proto::locks::held::updates::PendingUpdate;
use crate::proto::locks::record::records::{Phase, Record};
use crate::proto::quorum::Verdict;

use crate::proto::locks::record::trouble::Trouble;
use crate::proto::locks::round::state::{Purpose, Round};
use crate::proto::node_set::NodeSet;

impl Record {
    /// Adds the record to a fingerprint. `op_place` gives the place of a request.
    pub fn add_to(
        &self,
        fingerprint: &mut Fingerprint<'_>,
        nodes: usize,
        op_place: &dyn Fn(Op) -> u64,
    ) {
        let Record {
            generation: _,
            key,
            token,
            ttl,
            caller_ttl,
            longest,
            deadline,
            phase,
            pending,
            uncounted,
            proof,
            trouble,
            fenced,
            tracked,
            auto_extended,
            held_since,
            update,
            data: _,
            queue,
            found_by,
            next_of_key: _,
            round,
            op,
            // The fingerprint of the locks has all timers.
            round_timer,
            deadline_timer,
        } = self;
        assert!(auto_extended.is_none() && queue.is_none());
        assert!(*update == PendingUpdate::Unreported);
        let is_over = matches!(phase, Phase::Ending | Phase::Given);
        // The deadline of a lock that is over does not matter, unless one of its timers is still
        // set.
        let is_past = is_over && round_timer.is_none() && deadline_timer.is_none();
        let words = [
            hash_of(key),
            fingerprint.name(token.digits()),
            hash_of(&[ttl.as_millis(), caller_ttl.as_millis(), longest.as_millis()]),
            if is_past { 0 } else { fingerprint.ahead(*deadline) },
            phase_number(*phase),
            u64::from(*tracked)
                + 2 * u64::from(found_by.is_some())
                + 4 * u64::from(token.hands_over()),
            op.map_or(0, op_place),
            // After a long hold the next lock is handed over, so the length of the hold matters up
            // to there.
            fingerprint.ago(*held_since, LONG_HOLD),
        ];
        words.into_iter().for_each(|word| fingerprint.add(word));
        let no_trouble = Trouble::default();
        let trouble = trouble.as_deref().unwrap_or(&no_trouble);
        add_trouble(trouble, fingerprint, nodes);
        if let Some(line) = &trouble.line {
            line.add_to(fingerprint, nodes, *phase);
        }
        pending.add_to(fingerprint, nodes);
        if !is_over {
            let (until_deadline, until_earlier, earlier_end) = proof.for_fingerprint(*deadline);
            fingerprint.add(fingerprint.ahead(earlier_end));
            let sets = [*uncounted, until_deadline, until_earlier];
            fingerprint.add_sets(nodes, &sets);
        }
        // The votes about a release do not matter if no caller waits for its outcome.
        let released = round.purpose == Purpose::Release && op.is_none();
        if self.is_deciding() && !released {
            round.add_to(fingerprint, nodes);
            // `fenced` matters only if another attempt follows: never if the lock is held or over.
            fingerprint.add(u64::from(*fenced));
        }
    }
}

fn add_trouble(trouble: &Trouble, fingerprint: &mut Fingerprint<'_>, nodes: usize) {
    let Trouble { absent, taken, healing, plain, line: _, taken_up, fencing, set } = trouble;
    assert!(set.is_none(), "the search has locks of one key");
    let taken_up = taken_up.as_ref().map_or(0, |old| 1 + fingerprint.name(old.digits()));
    fingerprint.add(taken_up);
    add_fencing(fencing.as_deref(), fingerprint, nodes);
    fingerprint.add_sets(nodes, &[*absent, *taken, *healing, *plain]);
}

fn add_fencing(fencing: Option<&Fencing>, fingerprint: &mut Fingerprint<'_>, nodes: usize) {
    for node in NodeSet::first(nodes).iter() {
        fingerprint.add_at(node, fencing.map_or(0, |fencing| 1 + fencing.vote_of(node)));
    }
    fingerprint.add(fencing.and_then(Fencing::fence).map_or(0, NonZeroU64::get));
}

impl Round {
    fn add_to(&self, fingerprint: &mut Fingerprint<'_>, nodes: usize) {
        let ballot = self.ballot();
        let decided = ballot.verdict() != Verdict::Undecided;
        let purpose = match self.purpose {
            Purpose::Acquire => 1,
            Purpose::Extend => 2,
            Purpose::Release => 4,
            Purpose::WriteBack => 6,
            Purpose::Claim => 7,
        };
        fingerprint.add(mix(purpose, hash_of(&(decided, self.is_won()))));
        if decided {
            return;
        }
        // The start of an acquire shows in the deadline of its record.
        if matches!(self.purpose, Purpose::Extend | Purpose::Claim) {
            let start = fingerprint.now().saturating_since(self.start);
            fingerprint.add(mix(self.ttl.as_millis(), start.as_nanos() as u64));
        }
        let sets = [ballot.grants(), ballot.denials(), ballot.errors(), ballot.undecided()];
        fingerprint.add_sets(nodes, &sets);
        for node in NodeSet::first(nodes).iter() {
            let word = match self.reply_of(node) {
                NodeReply::Nothing | NodeReply::NotAsked => 1,
                NodeReply::Granted => 2,
                NodeReply::Held => 3,
                NodeReply::Absent => 4,
                NodeReply::Failed(cause) => 5 + u64::from(cause.is_permanent()),
            };
            fingerprint.add_at(node, word);
        }
    }
}
