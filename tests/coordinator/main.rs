//! The core (`src/proto`) driven by hand: the test passes bytes and moments in, and reads bytes,
//! actions and completions. It has no socket and no clock, and writes out every reply of a node,
//! so it can check the order of requests. Each test checks one rule.

mod auto_extend;
mod auto_extend_timing;
mod bench;
mod by_token;
mod completions;
mod counters;
mod crowds;
mod extend_release;
mod fenced_sets;
mod fencing;
mod fencing_on_masters;
mod fencing_scripts;
mod fencing_transactions;
mod flushing;
mod foreign_writes;
mod forked;
mod found_by_simulation;
mod hand_off;
mod healing;
#[path = "../support/lan/mod.rs"]
#[allow(dead_code, reason = "the bench uses more of it")]
mod lan;
mod late_turns;
mod limits;
mod line;
mod line_again;
mod line_costs;
mod line_fences;
mod line_orders;
mod line_plain;
mod line_rest;
mod line_strangers;
mod line_tokens;
mod line_troubles;
mod line_world;
mod liveness;
mod lock_options;
mod looking;
mod lost_keys;
mod marker;
mod marker_probes;
mod no_lua;
mod notes;
mod owners;
mod pending_releases;
mod persistent;
mod promoted;
mod quarantine;
mod quarantine_extend;
mod rare_orders;
mod readonly;
mod replicas;
mod reserved_keys;
mod restored_node;
mod secrets;
mod servers;
mod sets;
mod sets_answers;
mod sets_by_token;
mod sets_in_line;
mod sets_kept;
mod sets_line_ends;
mod sets_orders;
mod sets_rounds;
mod sets_waiting;
mod sets_world;
mod starting;
mod updates;
mod wait_turns;
mod waiting;

use std::time::Duration;

use bench::{Bench, FLUSH, GONE_AFTER, INFO_OLD, LOSS_BEFORE, TTL};
use redlatch::proto::NodeEvent;
use redlatch::{Error, NodeError, NodeReply, NodeState, Outcome, ReleaseOutcome};

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
