//! Which nodes count for fencing numbers.
//!
//! The hazard is a counter that forgets. A node in quarantine may have forgotten its counters, and
//! a node that evicts may forget them at any time. A counter that was forgotten starts again from
//! the node's clock, so a node whose clock differs from the others' does not count either.

use std::time::Duration;

use crate::proto::cluster::Cluster;
use crate::proto::cluster::state::Reading;
use crate::proto::error::NodeError;
#[cfg(feature = "testing")]
use crate::proto::fingerprint::hash_of;
use crate::proto::node_set::{MAX_NODES, NodeId};
use crate::proto::settings::RestartGuard;
use crate::proto::time::Instant;
use crate::proto::wire::counters;
use crate::proto::wire::marker::MarkerState;

/// A node's clock may differ from the median by `max_ttl` divided by this.
const SKEW_PART: u32 = 4;

impl Cluster {
    /// The votes of a node for fencing numbers, one for each key, in its last answer with votes.
    pub fn votes(&self, node: NodeId) -> &[u64] {
        self.nodes[node.index()].connection.votes()
    }

    /// The floor of the counters of a node: a smaller counter counts as absent.
    pub fn counter_floor(&self, node: NodeId) -> u64 {
        let by_list = self.nodes[node.index()].list_floor.unwrap_or(counters::LEAST);
        self.floor_by_marker(node).max(by_list)
    }

    /// Takes note of the moment at which this client began to count the node by its list. After two
    /// changes of the list, a quorum may consist of nodes that never had the locks of the first
    /// list.
    /// Those locks were granted before the second change, and their numbers are below this moment.
    pub(super) fn set_list_floor(&mut self, node: NodeId, now: Instant) {
        let is_changed = self.has_changed_list();
        let entry = &mut self.nodes[node.index()];
        if let Some(clock) = entry.clock.filter(|_| is_changed && entry.list_floor.is_none()) {
            let nanos = i128::from(now.as_nanos()) + i128::from(offset(&clock));
            let micros = u128::try_from(nanos / 1000).unwrap_or(0);
            entry.list_floor = Some(counters::start_at(micros));
        }
    }

    /// The floor that follows from the node marker, which has the time since which the node has
    /// forgotten nothing, as far as clients know. The floor is needed because a command that was in
    /// flight when the node forgot its counters may have started a counter at once, and not after
    /// the quarantine.
    fn floor_by_marker(&self, node: NodeId) -> u64 {
        let vetted = &self.nodes[node.index()].vetted;
        let (since, vouched) = match (vetted.marker, vetted.micros) {
            (MarkerState::Present(marker), _) => (marker.since_micros, marker.vouched),
            // This version cannot read the time of that marker. It is not after the moment at which
            // the marker was read.
            (MarkerState::Later(_), Some(micros)) => (micros, false),
            _ => return counters::LEAST,
        };
        // An operator who vouches ends the quarantine at once.
        let quarantine = match vouched {
            true => 0,
            false => RestartGuard::quarantine(self.settings.max_ttl).as_micros(),
        };
        counters::start_at(u128::from(since) + quarantine).max(counters::LEAST)
    }

    /// Whether a node may be asked to count by a transaction. Its marker has to give a floor: a
    /// vote below it shows that the node did not have the counter.
    pub fn takes_transactions(&self, node: NodeId) -> bool {
        let refuses = self.nodes[node.index()].connection.refuses_transactions();
        !refuses && self.counter_floor(node) > counters::LEAST
    }

    /// Why the grant of a node does not count for a fencing number, if it does not.
    pub fn refuses_fence(&self, node: NodeId) -> Option<NodeError> {
        // Before the node marker is renewed, it has an earlier moment than the floor needs.
        let entry = &self.nodes[node.index()];
        let unmarked = entry.wants_marking.is_some();
        let has_no_floor = entry.list_floor.is_none() && self.has_changed_list();
        if unmarked || !self.is_trusted(node) {
            Some(NodeError::Quarantined)
        } else if entry.vetted.info.evicts {
            Some(NodeError::Evicts)
        } else if has_no_floor || self.has_skewed_clock(node) {
            Some(NodeError::ClockSkew)
        } else {
            None
        }
    }

    /// Whether a node's clock is not known to be near the median of those of the usable nodes. Half
    /// of the time that a reading took is added, because the reading is uncertain by as much.
    fn has_skewed_clock(&self, node: NodeId) -> bool {
        let Some(own) = self.nodes[node.index()].clock else { return true };
        let usable = self.nodes.iter().filter(|entry| entry.state.is_usable());
        let mut offsets = [0; MAX_NODES];
        let mut known = 0;
        for reading in usable.filter_map(|entry| entry.clock) {
            offsets[known] = offset(&reading);
            known += 1;
        }
        let offsets = &mut offsets[..known];
        offsets.sort_unstable();
        let Some(&median) = offsets.get(known / 2) else { return true };
        let uncertain = own.read_at.saturating_since(own.asked_at) / 2;
        let apart = Duration::from_nanos(offset(&own).abs_diff(median)) + uncertain;
        apart > self.settings.max_ttl / SKEW_PART
    }
}

/// For a fingerprint: the part of a reading that matters for the future and does not depend on when
/// it was taken.
#[cfg(feature = "testing")]
pub(super) fn word_of(reading: &Reading) -> u64 {
    let took = reading.read_at.saturating_since(reading.asked_at);
    hash_of(&(offset(reading), took))
}

/// How far the node's clock is ahead of ours, in nanoseconds, by the middle of the reading.
fn offset(reading: &Reading) -> i64 {
    let taken = (reading.asked_at.as_nanos() / 2).saturating_add(reading.read_at.as_nanos() / 2);
    let theirs = i128::from(reading.micros) * 1000;
    let ahead = theirs - i128::from(taken);
    ahead.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}
