//! The view of one key: which token a majority of the nodes holds, and what each node holds.

use std::time::Duration;

use redlatch::{Inspection, KeyState, KeySummary, NodeError, NodeKeyState, Value as Token};
use serde_json::{Value, json};

use super::View;
use crate::exit;
use crate::key_names::cut;
use crate::key_state::{in_words, state};
use crate::look::{Colours, Look, time};
use crate::table::Table;
use crate::wall_clock::{micros, millis};

/// How many waiters in line the text names. JSON has them all.
const LINE_NAMED: usize = 10;

/// Makes the view of one key.
pub fn view(seen: &Inspection, colours: Colours) -> View {
    let summary = seen.summary();
    let code = match summary {
        // `NoLock` counts as held: no client can lock a key that has another type of value.
        KeySummary::Held { .. } | KeySummary::NoLock => exit::NO,
        KeySummary::Free | KeySummary::Split => exit::DONE,
        _ => exit::NO_QUORUM,
    };
    View { text: text(seen, summary, colours), json: object(seen, summary), code }
}

/// The JSON of one key.
pub fn object(seen: &Inspection, summary: KeySummary) -> Value {
    let (held, holder, remaining) = match summary {
        KeySummary::Held { value, left, .. } => (Some(true), Some(value), left),
        KeySummary::NoLock => (Some(true), None, None),
        KeySummary::Free | KeySummary::Split => (Some(false), None, None),
        // It is not known whether the key is held or free.
        _ => (None, None, None),
    };
    let per_node: Vec<Value> = seen.nodes.iter().map(node_object).collect();
    json!({
        "key": String::from_utf8_lossy(&seen.key),
        "held": held,
        "holder": holder.map(|value| value.to_string()),
        "owner": holder.as_ref().and_then(Token::owner),
        "granted": granted(seen),
        "quorum": seen.quorum,
        "nodes": seen.nodes.len(),
        "remaining_ms": remaining.map(millis),
        "line": line_objects(seen),
        "per_node": per_node,
    })
}

/// The waiters in line, the next one first.
fn line_objects(seen: &Inspection) -> Vec<Value> {
    let object = |token: &Token| {
        let on = seen.nodes.iter().filter(|node| node.line.contains(token)).count();
        json!({ "token": token.to_string(), "owner": token.owner(), "nodes": on })
    };
    seen.line().iter().map(object).collect()
}

fn node_object(node: &NodeKeyState) -> Value {
    let (token, ttl) = match node.state {
        KeyState::Held { value, left } => (Some(value.to_string()), left.map(millis)),
        _ => (None, None),
    };
    let answered = !node.took.is_zero();
    json!({
        "node": node.label,
        "state": state(node.state),
        "token": token,
        "ttl_ms": ttl,
        "rtt_us": answered.then(|| micros(node.took)),
    })
}

/// The number of nodes that hold the most common token.
pub fn granted(seen: &Inspection) -> usize {
    let values = || seen.nodes.iter().filter_map(|node| value(node.state));
    values().map(|one| values().filter(|other| *other == one).count()).max().unwrap_or(0)
}

fn value(state: KeyState) -> Option<Token> {
    match state {
        KeyState::Held { value, .. } => Some(value),
        _ => None,
    }
}

/// What the nodes together hold, in words.
pub fn verdict(seen: &Inspection, summary: KeySummary, colours: Colours) -> String {
    let (nodes, quorum) = (seen.nodes.len(), seen.quorum);
    match summary {
        KeySummary::Free => colours.styled("free", Look::Good),
        KeySummary::Held { nodes: by, left, value } => {
            let held = colours.styled("held", Look::Odd);
            let owner = value.owner().map(|owner| format!(" by {owner}")).unwrap_or_default();
            format!("{held}{owner} on {by} of {nodes} nodes, {}", for_how_long(left))
        }
        KeySummary::Split => {
            let split = colours.styled("split", Look::Odd);
            format!("{split}: no client has {quorum} of {nodes} nodes, and fewer are free")
        }
        KeySummary::NoLock => {
            let in_use = colours.styled("not a lock", Look::Bad);
            format!("{in_use}: another program keeps something else at this key")
        }
        _ => {
            let unknown = colours.styled("not known", Look::Bad);
            format!("{unknown}: {}", what_is_missing(seen))
        }
    }
}

fn text(seen: &Inspection, summary: KeySummary, colours: Colours) -> String {
    let key = colours.styled(&cut(&seen.key), Look::Strong);
    let verdict = verdict(seen, summary, colours);
    let mut table = Table::new(["node", "state", "left", "answered in", "token"]);
    for node in &seen.nodes {
        let (word, look) = match node.state {
            KeyState::Absent => ("free".to_string(), Look::Good),
            KeyState::Failed(cause) => (in_words(cause, node), Look::Bad),
            other => (state(other).to_string(), Look::Odd),
        };
        let left = match node.state {
            KeyState::Held { left: Some(left), .. } => seconds(left),
            KeyState::Held { left: None, .. } => "for ever".to_string(),
            _ => String::new(),
        };
        let took = if node.took.is_zero() { String::new() } else { time(node.took) };
        let token = value(node.state).map(|value| value.to_string()).unwrap_or_default();
        table.row([
            (node.label.to_string(), None),
            (word, Some(look)),
            (left, None),
            (took, Some(Look::Faint)),
            (token, None),
        ]);
    }
    format!("{key}: {verdict}\n{}{}", table.text(colours), line_in_words(seen))
}

/// The line of waiters in words, the next one first; empty if no client waits in line.
fn line_in_words(seen: &Inspection) -> String {
    let line = seen.line();
    if line.is_empty() {
        return String::new();
    }
    let name = |token: &Token| token.owner().map_or_else(|| token.to_string(), str::to_string);
    let names: Vec<String> = line.iter().take(LINE_NAMED).map(name).collect();
    let more = match line.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} in line: {}{more}", line.len(), names.join(", "))
}

/// Why it is not known whether the key is held.
fn what_is_missing(seen: &Inspection) -> String {
    let (nodes, quorum) = (seen.nodes.len(), seen.quorum);
    let no_answer = |cause: NodeError| cause != NodeError::WrongType;
    let silent = seen.nodes.iter();
    let silent =
        silent.filter(|it| matches!(it.state, KeyState::Failed(cause) if no_answer(cause)));
    let silent: Vec<&str> = silent.map(|it| &*it.label).collect();
    if nodes - silent.len() < quorum {
        return format!("fewer than {quorum} of {nodes} nodes answered");
    }
    format!("it depends on {}, which did not answer", silent.join(", "))
}

fn for_how_long(left: Option<Duration>) -> String {
    match left {
        Some(left) => format!("{} left", seconds(left)),
        None => "for ever (it has no ttl, so it is not a lock of redlatch)".to_string(),
    }
}

/// A time in seconds.
pub fn seconds(left: Duration) -> String {
    format!("{:.3} s", left.as_secs_f64())
}
