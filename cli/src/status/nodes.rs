//! The view of the nodes: whether each can be asked, and if not, why.

use std::net::SocketAddr;
use std::time::Duration;

use redlatch::{Inspection, NodeEvent, NodeId, NodeReply, NodeReport, NodeState};
use serde_json::{Value, json};

use super::{View, Wanted};
use crate::event_loop::EventLoop;
use crate::exit;
use crate::look::{Colours, Look, time};
use crate::node_events::left;
use crate::output::{INIT_MAY_HELP, trouble};
use crate::table::Table;
use crate::wall_clock::micros;

/// Makes the view of the nodes. `seen` is the inspection of any key: it has the time that each node
/// took to answer.
pub(super) fn view(
    event_loop: &EventLoop,
    seen: &Inspection,
    (events, wanted): (&[NodeEvent], Wanted),
    colours: Colours,
) -> View {
    let core = event_loop.engine.coordinator();
    let node_states: Vec<NodeState> =
        (0..seen.nodes.len()).map(|index| core.node_state(NodeId::new(index))).collect();
    let usable = node_states.iter().filter(|node_state| node_state.is_usable()).count();
    let report = core.report_node_states(redlatch::clock::now());

    let mut table = Table::new(["node", "state", "answered in"]);
    let mut per_node = Vec::new();
    let all_words = words(event_loop, events);
    let nodes = seen.nodes.iter().zip(&node_states).zip(all_words).enumerate();
    for (index, ((node, &node_state), (words, look))) in nodes {
        let took = (!node.took.is_zero()).then_some(node.took);
        table.row([
            (node.label.to_string(), None),
            (words, Some(look)),
            (took.map(time).unwrap_or_default(), Some(Look::Faint)),
        ]);
        per_node.push(json!({
            "node": node.label,
            "state": state(node_state, report.nodes[index].reply),
            "token": null,
            "ttl_ms": null,
            "rtt_us": took.map(micros),
        }));
    }
    let counted = node_states.iter().filter(|&&node_state| node_state == NodeState::Ready).count();
    let (quorum, all) = (seen.quorum, seen.nodes.len());
    let (code, look) = match counted {
        few if few < quorum => (exit::NO_QUORUM, Look::Bad),
        some if some < all && wanted == Wanted::All => (exit::NO, Look::Odd),
        _ => (exit::DONE, Look::Good),
    };
    let verdict = colours.styled(&format!("{counted} of {all} nodes can grant"), look);
    let mut text = format!("{verdict}, {quorum} are needed\n{}", table.text(colours));
    if counted < quorum && usable >= quorum {
        let mut left: Vec<Duration> = node_states.iter().filter_map(grants_in).collect();
        left.sort_unstable();
        let seconds = left[quorum - 1].as_secs() + 1;
        text = format!("{text}\nwait {seconds} s: nothing else is needed");
        let is_unmarked = |node: &NodeReport| node.quarantine.is_some_and(|it| it.is_unmarked);
        if report.nodes.iter().all(is_unmarked) {
            text = format!("{text}\n{INIT_MAY_HELP}");
        }
    }
    View { text, json: object(quorum, counted, per_node), code }
}

/// How long it takes until the grants of a node count; `None` if the node cannot be asked.
fn grants_in(node_state: &NodeState) -> Option<Duration> {
    match *node_state {
        NodeState::Ready => Some(Duration::ZERO),
        NodeState::Quarantined(until) => Some(left(until)),
        _ => None,
    }
}

/// The present state of each node in words, in the order of the list.
pub fn words(event_loop: &EventLoop, events: &[NodeEvent]) -> Vec<(String, Look)> {
    let core = event_loop.engine.coordinator();
    let report = core.report_node_states(redlatch::clock::now());
    let words = |(index, node): (usize, &NodeReport)| {
        let id = NodeId::new(index);
        let master = event_loop.engine.master_address(id);
        in_words(core.node_state(id), node.detail.as_deref(), why(events, id), master)
    };
    report.nodes.iter().enumerate().map(words).collect()
}

fn object(quorum: usize, counted: usize, per_node: Vec<Value>) -> Value {
    json!({
        "key": null,
        "held": null,
        "holder": null,
        "granted": counted,
        "quorum": quorum,
        "nodes": per_node.len(),
        "remaining_ms": null,
        "per_node": per_node,
    })
}

/// Why a node's grants do not count.
fn why(events: &[NodeEvent], wanted: NodeId) -> Option<String> {
    events.iter().rev().find_map(|event| match event {
        NodeEvent::Quarantined { node, why, .. } if *node == wanted => Some(why.to_string()),
        _ => None,
    })
}

fn in_words(
    node_state: NodeState,
    detail: Option<&str>,
    why: Option<String>,
    master: Option<SocketAddr>,
) -> (String, Look) {
    let at = master.map(|master| format!(" at {master}")).unwrap_or_default();
    let with = |text: String| match detail {
        Some(detail) => format!("{text} ({detail})"),
        None => text,
    };
    match node_state {
        NodeState::Ready => (format!("ready{at}"), Look::Good),
        NodeState::Quarantined(until) => {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            (format!("does not grant for {}{why}{at}", time(left(until))), Look::Odd)
        }
        NodeState::Suspect => ("does not answer".to_string(), Look::Bad),
        NodeState::Down(cause) | NodeState::Rejected(cause) => (with(cause.to_string()), Look::Bad),
        _ => (with("not connected yet".into()), Look::Bad),
    }
}

/// The word for a node's state, for scripts.
fn state(node_state: NodeState, reply: NodeReply) -> &'static str {
    match (node_state, reply) {
        (NodeState::Ready, _) => "ready",
        (NodeState::Quarantined(_), _) => "quarantined",
        (NodeState::Suspect, _) => "silent",
        (NodeState::Down(cause) | NodeState::Rejected(cause), _)
        | (_, NodeReply::Failed(cause)) => trouble(cause),
        _ => "unreachable",
    }
}
