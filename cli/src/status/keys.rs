//! One key: who has it by the word of a majority, and what each node holds.

use std::time::Duration;

use redlatch::{Finding, Inspection, NodeSight, Sight, Value as Token};
use serde_json::{Value, json};

use super::View;
use crate::exit;
use crate::look::{Colours, Look, time};
use crate::sights::{in_words, state};
use crate::table::Table;
use crate::wall_clock::{micros, millis};

/// What is told of one key.
pub fn view(seen: &Inspection, colours: Colours) -> View {
    let finding = seen.finding();
    let code = match finding {
        Finding::Held { .. } => exit::NO,
        Finding::Free | Finding::Split => exit::DONE,
        Finding::Unknown => exit::NO_QUORUM,
    };
    View { text: text(seen, finding, colours), json: object(seen, finding), code }
}

fn object(seen: &Inspection, finding: Finding) -> Value {
    let (held, holder, remaining) = match finding {
        Finding::Held { value, left, .. } => (Some(true), Some(value), left),
        Finding::Free | Finding::Split => (Some(false), None, None),
        // Neither yes nor no.
        Finding::Unknown => (None, None, None),
    };
    let per_node: Vec<Value> = seen.nodes.iter().map(node_object).collect();
    json!({
        "key": String::from_utf8_lossy(&seen.key),
        "held": held,
        "holder": holder.map(|value| value.to_string()),
        "granted": granted(seen),
        "quorum": seen.quorum,
        "nodes": seen.nodes.len(),
        "remaining_ms": remaining.map(millis),
        "per_node": per_node,
    })
}

fn node_object(node: &NodeSight) -> Value {
    let (token, ttl) = match node.sight {
        Sight::Held { value, left } => (Some(value.to_string()), left.map(millis)),
        Sight::Absent | Sight::Failed(_) => (None, None),
    };
    let answered = !node.took.is_zero();
    json!({
        "node": node.label,
        "state": state(node.sight),
        "token": token,
        "ttl_ms": ttl,
        "rtt_us": answered.then(|| micros(node.took)),
    })
}

/// On how many nodes the token is that most of them hold.
fn granted(seen: &Inspection) -> usize {
    let values = || seen.nodes.iter().filter_map(|node| value(node.sight));
    values().map(|one| values().filter(|other| *other == one).count()).max().unwrap_or(0)
}

fn value(sight: Sight) -> Option<Token> {
    match sight {
        Sight::Held { value, .. } => Some(value),
        Sight::Absent | Sight::Failed(_) => None,
    }
}

fn text(seen: &Inspection, finding: Finding, colours: Colours) -> String {
    let key = colours.styled(&seen.key.escape_ascii().to_string(), Look::Strong);
    let (nodes, quorum) = (seen.nodes.len(), seen.quorum);
    let verdict = match finding {
        Finding::Free => colours.styled("free", Look::Good),
        Finding::Held { nodes: by, left, .. } => {
            let held = colours.styled("held", Look::Odd);
            format!("{held} on {by} of {nodes} nodes, {}", for_how_long(left))
        }
        Finding::Split => {
            let split = colours.styled("split", Look::Odd);
            format!("{split}: nobody has {quorum} of {nodes} nodes, and fewer are free")
        }
        Finding::Unknown => {
            let unknown = colours.styled("not known", Look::Bad);
            format!("{unknown}: fewer than {quorum} of {nodes} nodes answered")
        }
    };
    let mut table = Table::new(["node", "state", "left", "answered in", "token"]);
    for node in &seen.nodes {
        let (word, look) = match node.sight {
            Sight::Absent => ("free".to_string(), Look::Good),
            Sight::Held { .. } => ("held".to_string(), Look::Odd),
            Sight::Failed(cause) => (in_words(cause, node), Look::Bad),
        };
        let left = match node.sight {
            Sight::Held { left: Some(left), .. } => seconds(left),
            Sight::Held { left: None, .. } => "for ever".to_string(),
            Sight::Absent | Sight::Failed(_) => String::new(),
        };
        let took = if node.took.is_zero() { String::new() } else { time(node.took) };
        let token = value(node.sight).map(|value| value.to_string()).unwrap_or_default();
        table.row([
            (node.label.to_string(), None),
            (word, Some(look)),
            (left, None),
            (took, Some(Look::Faint)),
            (token, None),
        ]);
    }
    format!("{key}: {verdict}\n{}", table.text(colours))
}

fn for_how_long(left: Option<Duration>) -> String {
    match left {
        Some(left) => format!("{} left", seconds(left)),
        None => "for ever (it has no ttl: that is no lock of ours)".to_string(),
    }
}

fn seconds(left: Duration) -> String {
    format!("{:.3} s", left.as_secs_f64())
}
