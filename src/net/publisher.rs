//! Passes the counters of a client to the recorder of the crate `metrics`. The caller decides when,
//! so no request takes longer because of it.
//!
//! The hazard is a process with two clients, which share the metrics. So the publisher adds to each
//! shared metric what is new since its last call, and never sets it.

use std::time::Duration;

use metrics::{counter, gauge, histogram};

use crate::proto::cluster::state::NodeState;
use crate::proto::stats::{NodeStats, Stats};

/// Publishes the counters of one client over the `metrics` facade. The names are those of
/// [`prometheus::Text`](crate::prometheus::Text), and begin with `redlatch_`.
///
/// Call [`publish`](MetricsPublisher::publish) at intervals, with the counters of any interface:
///
/// ```
/// use redlatch::{MetricsPublisher, SharedClient};
///
/// fn publish(client: &SharedClient, publisher: &mut MetricsPublisher) {
///     let states = client.nodes();
///     let nodes: Vec<_> = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].into_iter().zip(states).collect();
///     publisher.publish(&client.stats(), &nodes);
/// }
/// ```
///
/// `Stats` counts durations in classes. So each duration is recorded as the middle of its class,
/// which is at most 50 % longer, or 25 % shorter, than the duration.
#[derive(Debug, Default)]
pub struct MetricsPublisher {
    /// The counters at the last call.
    last: Stats,
}

impl MetricsPublisher {
    /// A publisher that has published nothing. Each client needs one of its own.
    pub fn new() -> MetricsPublisher {
        MetricsPublisher::default()
    }

    /// Publishes what is new since the last call, and the state of each node. `nodes` has the label
    /// and state of each node, in the order of the list. Calls the recorder of the program.
    pub fn publish(&mut self, stats: &Stats, nodes: &[(&str, NodeState)]) {
        let last = std::mem::replace(&mut self.last, stats.clone());
        publish_locks(stats, &last);
        for (index, (label, state)) in nodes.iter().enumerate() {
            gauge!("redlatch_node_up", "node" => label.to_string())
                .set(f64::from(u8::from(state.is_usable())));
            gauge!("redlatch_node_can_grant", "node" => label.to_string())
                .set(f64::from(u8::from(*state == NodeState::Ready)));
            if let Some(node) = stats.nodes.get(index) {
                let last = last.nodes.get(index).copied().unwrap_or_default();
                publish_node(label, node, &last);
            }
        }
    }
}

fn publish_locks(stats: &Stats, last: &Stats) {
    let outcomes = [
        ("won", stats.won, last.won),
        ("contended", stats.contended, last.contended),
        ("no_quorum", stats.no_quorum, last.no_quorum),
        ("expired", stats.expired, last.expired),
        ("misconfigured", stats.misconfigured, last.misconfigured),
    ];
    for (outcome, now, before) in outcomes {
        counter!("redlatch_attempts_total", "outcome" => outcome)
            .increment(now.saturating_sub(before));
    }
    let plain = [
        ("redlatch_locks_released_total", stats.released, last.released),
        ("redlatch_locks_lost_total", stats.lost, last.lost),
        ("redlatch_extends_total", stats.extended, last.extended),
        ("redlatch_renewals_total", stats.renewed, last.renewed),
        ("redlatch_keys_healed_total", stats.healed, last.healed),
        ("redlatch_line_joins_total", stats.joined, last.joined),
        ("redlatch_line_hand_overs_total", stats.handed_over, last.handed_over),
        ("redlatch_line_skipped_total", stats.skipped, last.skipped),
        ("redlatch_line_messages_ignored_total", stats.messages_ignored, last.messages_ignored),
        ("redlatch_line_claims_total", stats.claims, last.claims),
        ("redlatch_line_splits_total", stats.splits, last.splits),
        ("redlatch_fences_total", stats.fenced, last.fenced),
        ("redlatch_fence_write_backs_total", stats.written_back, last.written_back),
    ];
    for (name, now, before) in plain {
        counter!(name).increment(now.saturating_sub(before));
    }
    gauge!("redlatch_locks_held").increment(stats.held as f64 - last.held as f64);
    let waits = histogram!("redlatch_wait_seconds");
    record(&waits, stats.waits.classes(), last.waits.classes());
    let holds = histogram!("redlatch_hold_seconds");
    record(&holds, stats.holds.classes(), last.holds.classes());
}

fn publish_node(label: &str, stats: &NodeStats, last: &NodeStats) {
    let counters = [
        ("redlatch_node_grants_total", stats.grants, last.grants),
        ("redlatch_node_denials_total", stats.denials, last.denials),
        ("redlatch_node_connections_total", stats.connections, last.connections),
        ("redlatch_node_connection_failures_total", stats.failures, last.failures),
        ("redlatch_node_flushes_total", stats.flushes, last.flushes),
        (
            "redlatch_node_pending_releases_sent_total",
            stats.pending_releases_sent,
            last.pending_releases_sent,
        ),
        (
            "redlatch_node_pending_releases_dropped_total",
            stats.pending_releases_dropped,
            last.pending_releases_dropped,
        ),
    ];
    for (name, now, before) in counters {
        counter!(name, "node" => label.to_string()).increment(now.saturating_sub(before));
    }
    for (cause, count) in stats.all_errors() {
        let name = "redlatch_node_errors_total";
        counter!(name, "node" => label.to_string(), "cause" => cause.word())
            .increment(count.saturating_sub(last.errors(cause)));
    }
    let trips = histogram!("redlatch_node_round_trip_seconds", "node" => label.to_string());
    record(&trips, stats.round_trips.classes(), last.round_trips.classes());
}

/// Records what is new in each class.
fn record(
    into: &metrics::Histogram,
    now: impl Iterator<Item = (Option<Duration>, u64)>,
    last: impl Iterator<Item = (Option<Duration>, u64)>,
) {
    let mut begin = Duration::ZERO;
    for ((end, count), (_, before)) in now.zip(last) {
        let middle = end.map_or(begin, |end| (begin + end) / 2);
        let new = count.saturating_sub(before);
        if new > 0 {
            into.record_many(middle.as_secs_f64(), usize::try_from(new).unwrap_or(usize::MAX));
        }
        begin = end.unwrap_or(begin);
    }
}
