//! The fingerprint of the locks: everything that their next steps can depend on. See
//! [`crate::proto::fingerprint`].

use std::mem::discriminant;

use crate::proto::fingerprint::{Fingerprint, hash_of, mix};
use crate::proto::ids::{Op, RecordId, ShortOp};
use crate::proto::lock::LockToken;
use crate::proto::locks::fence::number::counters_live;
use crate::proto::locks::flushes::{BETWEEN_WALKS, Flushes};
use crate::proto::locks::record::records::Phase;
use crate::proto::locks::requests::{Request, Stage};
use crate::proto::locks::{Due, Locks};
use crate::proto::node_set::{NodeId, NodeSet};

impl Locks {
    /// The nodes on which a key with `token` may be, and where a record of this client would still
    /// release it.
    pub fn answers_for(&self, token: &LockToken) -> NodeSet {
        let records = self.records.ids().into_iter().map(|id| self.records.get(id));
        let of_token = records.filter(|record| record.token == *token);
        of_token.fold(NodeSet::EMPTY, |nodes, record| {
            nodes.union(record.pending.release_pending()).union(record.pending.unanswered())
        })
    }

    /// Adds the locks and their cluster to a fingerprint.
    pub fn add_to(&self, fingerprint: &mut Fingerprint<'_>) {
        let Locks {
            cluster,
            starting,
            forked,
            pending_releases,
            flushes,
            key_prefix: _,
            reserved_keys: _,
            records,
            counted,
            tasks,
            ops,
            renewals,
            command: _,
            timers: _,
            verdicts,
            waits,
            updates,
            releases,
            no_lines_until,
            // Memory is given back after a burst, which changes no answer.
            tidying: _,
            marks,
            given_away,
            given_back,
            // In the search all draws are planned. A fingerprint has names in place of tokens.
            random: _,
        } = self;
        assert!(tasks.count() == 0, "a fingerprint does not cover tasks");
        assert!(renewals.is_empty(), "nor auto-extended locks");
        assert!(verdicts.is_empty(), "verdicts are acted on first");
        assert!(waits.is_empty() && updates.is_empty(), "nor what was not taken out");
        assert!(!ops.has_ready(), "completions are taken out first");
        // Records and requests are named by their order in the slab, not by their generation.
        let (ids, open) = (records.ids(), ops.all());
        let place = |id: RecordId| {
            let place = ids.iter().position(|&other| other == id)?;
            Some((place as u64, records.get(id).round.number))
        };
        let op_place = |op: Op| open.iter().position(|&it| it == op).map_or(0, |at| 1 + at as u64);
        let short_place = |op: ShortOp| {
            open.iter().position(|&it| it.short() == op).map_or(0, |at| 1 + at as u64)
        };
        let flags = [*starting, *forked, marks.is_some()];
        fingerprint.add(flags.iter().fold(1, |bits, &flag| 2 * bits + u64::from(flag)));
        releases.add_to(fingerprint);
        counted.add_to(fingerprint, counters_live(cluster.settings().max_ttl));
        fingerprint.add(fingerprint.ahead(*no_lines_until));
        for token in given_away {
            fingerprint.add(1 + fingerprint.name(token.digits()));
        }
        for &(node, ref token) in given_back {
            fingerprint.add_at(node, 1 + fingerprint.name(token.digits()));
        }
        fingerprint.add(ids.len() as u64);
        for &id in &ids {
            records.get(id).add_to(fingerprint, cluster.size(), &op_place);
        }
        fingerprint.add(open.len() as u64);
        for &op in &open {
            let request = ops.get(op).expect("it is one of all");
            add_request(fingerprint, request, &|id| place(id).map_or(0, |(at, _)| 1 + at));
        }
        for node in cluster.all_nodes().iter() {
            let place = |id| place(id).map(|(at, _)| at);
            pending_releases[node.index()].add_to(fingerprint, &place);
            let Flushes { walked_at, next_walk: _ } = flushes[node.index()];
            let walked = walked_at
                .map_or(BETWEEN_WALKS.as_nanos() as u64, |at| fingerprint.ago(at, BETWEEN_WALKS));
            fingerprint.add_at(node, walked);
        }
        self.add_timers(fingerprint, &|id| place(id).map_or(0, |(at, _)| 1 + at), &short_place);
        cluster.add_to(fingerprint, &place);
    }

    /// Adds the timers as a sum, so that their order does not matter: neither does the order in
    /// which timers of one moment act on different records and nodes.
    fn add_timers(
        &self,
        fingerprint: &mut Fingerprint<'_>,
        place: &dyn Fn(RecordId) -> u64,
        op_place: &dyn Fn(ShortOp) -> u64,
    ) {
        let (mut whole, mut sums) = (0_u64, vec![0_u64; self.cluster.size()]);
        for (due, what) in self.timers.iter() {
            let (kind, about, node) = match what {
                Due::Round { record } => (1, place(record), None),
                Due::Task { .. } => unreachable!("there is no task"),
                Due::Deadline { record } => (2, place(record), None),
                Due::Warn { record } => (5, place(record), None),
                Due::PendingReleases { node } => (6, 0, Some(node)),
                Due::Flushes { node } => (7, 0, Some(node)),
                Due::DropReleases { node } => (8, 0, Some(node)),
            };
            let sum = node.map_or(&mut whole, |node: NodeId| &mut sums[node.index()]);
            *sum = sum.wrapping_add(mix(mix(kind, about), fingerprint.ahead(due)));
        }
        for (due, op) in self.ops.timers() {
            whole = whole.wrapping_add(mix(mix(3, op_place(op)), fingerprint.ahead(due)));
        }
        fingerprint.add(whole);
        for (node, sum) in self.cluster.all_nodes().iter().zip(sums) {
            fingerprint.add_at(node, sum);
        }
    }
}

fn add_request(
    fingerprint: &mut Fingerprint<'_>,
    request: &Request,
    place: &dyn Fn(RecordId) -> u64,
) {
    let Request {
        generation: _,
        data: _,
        since: _,
        give_up_at,
        waiting,
        auto_extend,
        // It changes only what people read.
        owner: _,
        joins,
        yields,
        // Only a draw by chance asks for it, and a search has none.
        yielded_to: _,
        abandoned,
        stage,
        timer: _,
    } = request;
    assert!(auto_extend.is_none(), "a fingerprint does not cover auto-extended locks");
    let word = match stage {
        Stage::Starting { record } => mix(1, place(*record)),
        Stage::Running { record } => mix(2, place(*record)),
        Stage::Pausing { record, last } => {
            mix(mix(3, place(*record)), hash_of(&discriminant(last)))
        }
        other => panic!("a fingerprint does not cover {other:?}"),
    };
    fingerprint.add(word);
    fingerprint.add(2 * fingerprint.ahead(*give_up_at) + u64::from(*abandoned));
    fingerprint.add(u64::from(*joins) + 2 * u64::from(*yields));
    if let Some(waiting) = waiting {
        waiting.add_to(fingerprint);
    }
}

/// The number of a phase in a fingerprint.
pub(super) fn phase_number(phase: Phase) -> u64 {
    match phase {
        Phase::Asking => 1,
        Phase::Held => 2,
        Phase::Ending => 3,
        Phase::Given => 4,
    }
}
