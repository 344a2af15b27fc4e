//! The core by hand: bytes and moments in, bytes and moments out, one rule a test. There is no
//! socket and no clock, and every reply is written out, so that a test can look at the order of
//! requests.

mod bench;
mod doubted;
mod fetching;
mod flushing;
mod found;
mod handing;
mod hazards;
mod healing;
mod holding;
mod keeping;
mod losing;
mod marker;
mod overdue;
mod pending_releases;
mod quarantine;
mod quarantine_extend;
mod renewing;
mod secrets;
mod servers;
mod silence;
mod starting;
mod turns;
mod waiting;

use std::time::Duration;

use bench::{Bench, GONE_AFTER, INFO_OLD, LOSS_BEFORE, TTL};
use redlatch::proto::NodeEvent;
use redlatch::{Error, NodeError, NodeReply, NodeState, Outcome, ReleaseOutcome};

fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}
