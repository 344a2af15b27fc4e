//! The events of a candidate, each as text and as JSON, beside those of `exec`. Scripts rely on the
//! names of the events and of their fields.

use std::time::Duration;

use redlatch::{Candidate, Leader};
use serde_json::json;

use crate::exec::log::{Log, Weight};
use crate::key_names::shown;
use crate::leader;
use crate::wall_clock::millis;

/// Another candidate leads, or nobody.
pub fn following(log: &mut Log, leader: Option<&Leader>) {
    let weight = if leader.is_some() { Weight::Normal } else { Weight::Detail };
    let words = leader.map_or("nobody leads".into(), leader::in_words);
    let text = format!("{}: {words}", shown(log.key()));
    let mut fields = json!({});
    leader::add_to(&mut fields, leader);
    log.event(weight, "following", fields, &text);
}

/// This candidate leads.
pub fn leading(log: &mut Log, candidate: &Candidate, term: u64) {
    let text = format!("{}: {candidate} leads, term {term}", shown(log.key()));
    let fields = json!({ "candidate": candidate.to_string(), "term": term });
    log.event(Weight::Normal, "leading", fields, &text);
}

/// An operator asked this leader to step down.
pub fn asked_to_resign(log: &mut Log, pause: Duration) {
    let text = format!("{}: asked to step down; SIGTERM to CMD", shown(log.key()));
    log.event(Weight::Normal, "asked_to_resign", json!({ "pause_ms": millis(pause) }), &text);
}

/// This candidate stays out of the election.
pub fn pausing(log: &mut Log, pause: Duration, was_asked: bool) {
    let why = if was_asked { "it was asked to" } else { "CMD failed" };
    let text = format!("{}: stays out for {pause:?}: {why}", shown(log.key()));
    log.event(Weight::Normal, "pausing", json!({ "pause_ms": millis(pause) }), &text);
}
