//! The events of a lock and of its CMD, each as text and as JSON. Scripts rely on the names of the
//! events and of their fields.

use std::time::Duration;

use redlatch::proto::Coordinator;
use redlatch::{
    Error, Lock, LostReason, NodeId, NodeReply, NodeReport, NodeSet, ReleaseOutcome, Report,
    majority,
};
use serde_json::{Value, json};

use super::child::Ended;
use super::log::{Log, Weight};
use crate::holder::Holder;
use crate::key_names::{KeyNames, shown};
use crate::output::{Refusal, node_json};
use crate::wall_clock::{self, millis};

/// What is known of a lock that was won.
#[derive(Debug, Clone, Copy)]
pub struct Won {
    pub remaining: Duration,
    pub elapsed: Duration,
    pub granted: usize,
    pub nodes: usize,
}

/// The first attempt did not get the lock, and the tool waits for it.
pub fn waiting(log: &mut Log, error: &Error, holder: Option<Box<Holder>>) {
    let refusal = Refusal::of_acquire(error.clone()).held_by(holder);
    let mut text = format!("waiting for {}: {}", shown(log.key()), refusal.message);
    if let Some(line) = refusal.way_out {
        text = format!("{text}\n{line}");
    }
    log.event(Weight::Normal, "waiting", refusal.json(), &text);
}

/// The lock is held.
pub fn acquired(log: &mut Log, (lock, keys): (&Lock, &KeyNames), won: Won) {
    let Won { remaining, elapsed, granted, nodes } = won;
    let token = lock.token().to_string();
    let text = format!(
        "holds {} on {granted} of {nodes} nodes, for {remaining:.1?}: {token}",
        keys.in_words()
    );
    let mut fields = json!({
        "token": token,
        "deadline_unix_ms": wall_clock::unix_ms(remaining),
        "remaining_ms": millis(remaining),
        "granted": granted,
        "nodes": nodes,
        "elapsed_us": u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
    });
    keys.add_to(&mut fields, lock);
    log.event_with_token(Weight::Detail, "acquired", fields, &text);
}

/// The lock was renewed.
pub fn renewed(log: &mut Log, lock: &Lock, remaining: Duration) {
    let text = format!("renewed {}, for {remaining:.1?}", shown(log.key()));
    let fields = json!({
        "token": lock.token().to_string(),
        "deadline_unix_ms": wall_clock::unix_ms(remaining),
        "remaining_ms": millis(remaining),
    });
    log.event(Weight::Detail, "renewed", fields, &text);
}

/// The lock ends soon, because no renewal has succeeded so far. `signal` names the signal that CMD
/// was sent for that reason.
pub fn expiring(log: &mut Log, core: &Coordinator, remaining: Duration, signal: Option<&str>) {
    let report = core.report_node_states(redlatch::clock::now());
    let sent = signal.map_or(String::new(), |signal| format!("; {signal} to CMD"));
    let node_states = node_states(&report);
    let text = format!("{} ends in {remaining:.1?}{sent}{node_states}", shown(log.key()));
    let fields = json!({
        "remaining_ms": millis(remaining),
        "sent": signal,
        "nodes": nodes_json(&report.nodes),
    });
    log.event(Weight::Normal, "expiring", fields, &text);
}

/// The lock has ended, or was given up because CMD had to be stopped before the lock's end. `then`
/// says what happens to CMD.
pub fn lost(log: &mut Log, error: &Error, then: &str) {
    let reason = match error {
        Error::Lost { reason: LostReason::Gone, .. } => "gone",
        Error::Lost { reason: LostReason::MaxHold, .. } => "max_hold",
        Error::Lost { reason: LostReason::Extensions, .. } => "not_renewed",
        _ => "deadline",
    };
    let nodes = error.report().map_or(Value::Null, |report| nodes_json(&report.nodes));
    let message = format!("{error}; {then}");
    let fields = json!({ "reason": reason, "message": message, "nodes": nodes });
    log.event(Weight::Normal, "lost", fields, &message);
}

/// The lock could not be renewed, and CMD ended when it got SIGTERM, `left` before the deadline.
pub fn not_renewed(log: &mut Log, report: &Report, left: Duration) {
    let (node_states, key) = (node_states(report), shown(log.key()));
    let text = format!(
        "{key} could not be renewed: CMD was stopped, and ended {left:.1?} before the \
         deadline{node_states}"
    );
    let nodes = nodes_json(&report.nodes);
    let fields = json!({ "reason": "not_renewed", "message": text, "nodes": nodes });
    log.event(Weight::Normal, "lost", fields, &text);
}

/// The lock was released. The nodes in `unsettled` have not confirmed the release yet, so the key
/// may stay on them for its ttl. If there are any, the event is printed without `-v`, too, even if
/// a majority has confirmed the release.
pub fn released(log: &mut Log, released: ReleaseOutcome, unsettled: NodeSet, core: &Coordinator) {
    let all = core.settings().nodes.len();
    let (outcome, weight, text) = match released {
        ReleaseOutcome::Released if !unsettled.is_empty() => (
            "released",
            Weight::Normal,
            "released; the key may stay for its ttl where no answer came",
        ),
        ReleaseOutcome::Released => ("released", Weight::Detail, "released"),
        ReleaseOutcome::AlreadyExpired => {
            ("already_expired", Weight::Normal, "expired on the nodes before it was released")
        }
        ReleaseOutcome::TakenByOther => (
            "taken_by_other",
            Weight::Normal,
            "was acquired by another client before it was released",
        ),
        // The outcome came before some answers: a majority has confirmed the release by now.
        ReleaseOutcome::Unconfirmed { .. } if unsettled.len() <= all - majority(all) => (
            "unconfirmed",
            Weight::Normal,
            "released; too few nodes said in time whether it was held until then",
        ),
        ReleaseOutcome::Unconfirmed { .. } => (
            "unconfirmed",
            Weight::Normal,
            "could not be released on enough nodes; it ends by its ttl",
        ),
    };
    let label = |node: NodeId| &*core.settings().nodes[node.index()].label;
    let unconfirmed: Vec<&str> = unsettled.iter().map(label).collect();
    let list = unconfirmed.join(", ");
    let list = if list.is_empty() { list } else { format!(" ({list})") };
    let text = format!("{} {text}{list}", shown(log.key()));
    let fields = json!({ "outcome": outcome, "unconfirmed": unconfirmed });
    log.event(weight, "released", fields, &text);
}

/// CMD ended.
pub fn child_exit(log: &mut Log, ended: Ended, exit_code: u8) {
    let (code, signal, text) = match ended {
        Ended::Exited(code) => (Some(code), None, format!("CMD ended with {code}")),
        Ended::Killed(signal) => (None, Some(signal), format!("CMD was ended by signal {signal}")),
    };
    let fields = json!({ "code": code, "signal": signal, "exit_code": exit_code });
    log.event(Weight::Detail, "child_exit", fields, &text);
}

/// Which nodes cannot be asked, or whose grants do not count, and why.
fn node_states(report: &Report) -> String {
    let trouble = |node: &NodeReport| match (node.reply, node.quarantine) {
        (NodeReply::Failed(_), _) => Some(format!("{} {}", node.label, node.reply)),
        (_, Some(quarantine)) => Some(format!(
            "{} may have forgotten the lock, so its answers do not count for {:.1?}",
            node.label, quarantine.left
        )),
        _ => None,
    };
    let away: Vec<String> = report.nodes.iter().filter_map(trouble).collect();
    if away.is_empty() { String::new() } else { format!(": {}", away.join(", ")) }
}

fn nodes_json(nodes: &[NodeReport]) -> Value {
    nodes.iter().map(node_json).collect()
}
