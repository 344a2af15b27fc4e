//! The fingerprint of a waiter's lines: all that its next steps can depend on. See
//! [`crate::proto::fingerprint`].

use crate::proto::fingerprint::{Fingerprint, hash_of, mix};
use crate::proto::locks::line::rest::POLLS;
use crate::proto::locks::line::votes::{AtNode, Line, Marks};
use crate::proto::locks::record::records::Phase;
use crate::proto::node_set::NodeSet;

/// After this number of early polls the pause before the next one does not double any more.
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
            // `skipped` goes only into the statistics.
            skipped: _,
            successor,
            // The error of a request in line is made anew at the end of its wait.
            last: _,
            // Only a lock over several keys goes from one line to another, and the search has no
            // such lock. So `named` is the same as `joined`.
            since: _,
            named: _,
            rest,
            lives,
        } = self;
        fingerprint.add(mix(ttl.as_millis(), short_ttl.as_millis()));
        fingerprint.add(fingerprint.said(successor));
        fingerprint.add_sets(nodes, &[*joined, *silent, *left]);
        fingerprint.add(lives.as_nanos() as u64);
        let waits = phase == Phase::Asking;
        for (node, at) in NodeSet::first(nodes).iter().zip(at) {
            let AtNode {
                base,
                until,
                holder,
                registered,
                registered_for,
                registered_at,
                next,
                marks,
                oldest: _,
            } = at;
            let Marks { first, last, spent } = marks;
            fingerprint.add_at(node, hash_of(&(first, last, spent)));
            fingerprint.add_at(node, fingerprint.said(next));
            if matches!(phase, Phase::Asking | Phase::Held) {
                // A held lock needs the moment, too: its proof ends there.
                let until = until.map_or(0, |until| 1 + fingerprint.ahead(until));
                fingerprint.add_at(node, until);
            }
            if !waits {
                // The rest matters only for joins and votes, and this record has none any more.
                continue;
            }
            fingerprint.add_at(node, fingerprint.ago(*base, ttl.duration()));
            fingerprint.add_at(node, fingerprint.said(holder));
            fingerprint.add_at(node, mix(u64::from(*registered), fingerprint.said(registered_for)));
            if !registered_for.is_empty() {
                fingerprint.add_at(node, fingerprint.ago(*registered_at, POLLS.0));
            }
        }
        if waits {
            let sets = [*counted, *sent_in_trust, *polled, *answered, *refused];
            fingerprint.add_sets(nodes, &sets);
            let early_polls = EARLY_POLLS.min(*early_polls);
            fingerprint.add(hash_of(&(pushed, met_others, rank, early_polls)));
            let (quiet_polls, news, awaited, by_crowd) = rest.state();
            fingerprint.add(hash_of(&(quiet_polls, news, by_crowd)));
            fingerprint.add_sets(nodes, &[awaited]);
        }
    }
}
