//! The nodes themselves: may they be asked, and if not, why.

use redlatch::{Event, Inspection, NodeId, NodeReport, Said, Standing};
use serde_json::{Value, json};

use super::View;
use crate::exit;
use crate::look::{Colours, Look, time};
use crate::news::left;
use crate::output::{INIT_MAY_HELP, trouble};
use crate::table::Table;
use crate::turning::Turning;
use crate::wall_clock::micros;

/// What is told of the nodes: `seen` is how long each took to answer a look at a key.
pub(super) fn view(
    turning: &Turning,
    seen: &Inspection,
    events: &[Event],
    colours: Colours,
) -> View {
    let core = turning.engine.coordinator();
    let standings: Vec<Standing> =
        (0..seen.nodes.len()).map(|index| core.standing(NodeId::new(index))).collect();
    let usable = standings.iter().filter(|standing| standing.is_usable()).count();
    let code = if usable >= seen.quorum { exit::DONE } else { exit::NO_QUORUM };
    let report = core.report_standings(redlatch::clock::now());

    let mut table = Table::new(["node", "state", "answered in"]);
    let mut per_node = Vec::new();
    let all_words = words(turning, events);
    let nodes = seen.nodes.iter().zip(&standings).zip(all_words).enumerate();
    for (index, ((node, &standing), (words, look))) in nodes {
        let took = (!node.took.is_zero()).then_some(node.took);
        table.row([
            (node.label.to_string(), None),
            (words, Some(look)),
            (took.map(time).unwrap_or_default(), Some(Look::Faint)),
        ]);
        per_node.push(json!({
            "node": node.label,
            "state": state(standing, report.nodes[index].said),
            "token": null,
            "ttl_ms": null,
            "rtt_us": took.map(micros),
        }));
    }
    let counted = standings.iter().filter(|&&standing| standing == Standing::Ready).count();
    let look = if counted >= seen.quorum { Look::Good } else { Look::Bad };
    let (quorum, all) = (seen.quorum, seen.nodes.len());
    let verdict = colours.styled(&format!("{counted} of {all} nodes can grant"), look);
    let mut text = format!("{verdict}, {quorum} are needed\n{}", table.text(colours));
    if counted < quorum && usable >= quorum {
        text = format!("{text}\n{INIT_MAY_HELP}");
    }
    View { text, json: object(quorum, counted, per_node), code }
}

/// What each node is at the moment, in words, in the order of the list.
pub fn words(turning: &Turning, events: &[Event]) -> Vec<(String, Look)> {
    let core = turning.engine.coordinator();
    let report = core.report_standings(redlatch::clock::now());
    let words = |(index, node): (usize, &NodeReport)| {
        let id = NodeId::new(index);
        in_words(core.standing(id), node.detail.as_deref(), why(events, id))
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

/// Why what a node grants does not count.
fn why(events: &[Event], wanted: NodeId) -> Option<String> {
    events.iter().rev().find_map(|event| match event {
        Event::Distrusted { node, why, .. } if *node == wanted => Some(why.to_string()),
        _ => None,
    })
}

fn in_words(standing: Standing, detail: Option<&str>, why: Option<String>) -> (String, Look) {
    let with = |text: String| match detail {
        Some(detail) => format!("{text} ({detail})"),
        None => text,
    };
    match standing {
        Standing::Ready => ("ready".to_string(), Look::Good),
        Standing::Quarantined(until) => {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            (format!("does not grant for {}{why}", time(left(until))), Look::Odd)
        }
        Standing::Suspect => ("does not answer".to_string(), Look::Bad),
        Standing::Connecting | Standing::Greeting => (with("not connected yet".into()), Look::Bad),
        Standing::Down(cause) | Standing::Rejected(cause) => (with(cause.to_string()), Look::Bad),
    }
}

/// The word for a node's standing, for scripts.
fn state(standing: Standing, said: Said) -> &'static str {
    match (standing, said) {
        (Standing::Ready, _) => "ready",
        (Standing::Quarantined(_), _) => "quarantined",
        (Standing::Suspect, _) => "silent",
        (Standing::Down(cause) | Standing::Rejected(cause), _) | (_, Said::Failed(cause)) => {
            trouble(cause)
        }
        (Standing::Connecting | Standing::Greeting, _) => "unreachable",
    }
}
