//! What matters of a waiter's lines for the future: see [`crate::proto::fingerprint`].

use crate::proto::fingerprint::{Fingerprint, hash_of, mix};
use crate::proto::locks::line::votes::{AtNode, Line, Marks};
use crate::proto::locks::record::records::Phase;
use crate::proto::node_set::NodeSet;

/// The pauses before early polls do not double any more from this number on.
const EARLY_POLLS: u32 = 8;

impl Line {
    /// Adds the lines of a record in this phase to a fingerprint.
    pub(in crate::proto::locks) fn add_to(
        &self,
        fingerprint: &mut Fingerprint<'_>,
        nodes: usize,
        phase: Phase,
    ) {
        let Line {
            ttl,
            short_ttl,
            at,
            joined,
            silent,
            counted,
            sent_in_trust,
            polled,
            answered,
            left,
            refused,
            pushed,
            met_others,
            rank,
            early_polls,
            // The number is only counted.
            skipped: _,
            successor,
            // The error of a request in line is made when its wait is over.
            last: _,
            // Only a lock over several keys changes its line, and the search has none.
            since: _,
        } = self;
        fingerprint.add(mix(ttl.as_millis(), short_ttl.as_millis()));
        fingerprint.add(fingerprint.said(successor));
        fingerprint.add_sets(nodes, &[*joined, *silent, *left]);
        let waits = phase == Phase::Asking;
        for (node, at) in NodeSet::first(nodes).iter().zip(at) {
            let AtNode { base, until, holder, registered, registered_for, next, marks, oldest: _ } =
                at;
            let Marks { first, last, spent } = marks;
            fingerprint.add_at(node, hash_of(&(first, last, spent)));
            fingerprint.add_at(node, fingerprint.said(next));
            if matches!(phase, Phase::Asking | Phase::Held) {
                // The moment also proves the key of a held lock.
                let until = until.map_or(0, |until| 1 + fingerprint.ahead(until));
                fingerprint.add_at(node, until);
            }
            if !waits {
                // No join is written for this record any more, and nothing is a vote for it.
                continue;
            }
            fingerprint.add_at(node, fingerprint.ago(*base, ttl.duration()));
            fingerprint.add_at(node, fingerprint.said(holder));
            fingerprint.add_at(node, mix(u64::from(*registered), fingerprint.said(registered_for)));
        }
        if waits {
            let sets = [*counted, *sent_in_trust, *polled, *answered, *refused];
            fingerprint.add_sets(nodes, &sets);
            let early_polls = EARLY_POLLS.min(*early_polls);
            fingerprint.add(hash_of(&(pushed, met_others, rank, early_polls)));
        }
    }
}
