//! The locks as a table, and as JSON.

use redlatch::{Inspection, KeyState, KeySummary, Value as Token};
use serde_json::Value;

use crate::key_names::cut;
use crate::look::{Colours, Look};
use crate::status::keys;
use crate::table::Table;

/// How many waiters in line the table names. JSON has them all.
const LINE_NAMED: usize = 3;

/// Drops the locks that no node holds any more: they ended after the nodes were asked for their
/// keys.
pub fn held(seen: Vec<Inspection>) -> Vec<Inspection> {
    let has_value = |seen: &Inspection| {
        seen.nodes.iter().any(|node| matches!(node.state, KeyState::Held { .. }))
    };
    let is_over = |seen: &Inspection| seen.summary() == KeySummary::Free && !has_value(seen);
    seen.into_iter().filter(|seen| !is_over(seen)).collect()
}

/// The JSON of each lock: the same as that of `status`.
pub fn objects(locks: &[Inspection]) -> Vec<Value> {
    locks.iter().map(|seen| keys::object(seen, seen.summary())).collect()
}

/// A line for each lock.
pub fn text(locks: &[Inspection], colours: Colours) -> String {
    let mut table = Table::new(["key", "holder", "nodes", "left", "waiting"]);
    for seen in locks {
        let (holder, nodes, left) = match seen.summary() {
            KeySummary::Held { value, nodes, left } => {
                let left = left.map_or("for ever".to_owned(), keys::seconds);
                ((name(&value), None), nodes, left)
            }
            // No majority is known to have one token.
            KeySummary::Unknown => {
                (("not known".into(), Some(Look::Bad)), keys::granted(seen), String::new())
            }
            _ => (("none".into(), Some(Look::Odd)), keys::granted(seen), String::new()),
        };
        table.row([
            (cut(&seen.key), Some(Look::Strong)),
            holder,
            (format!("{nodes} of {}", seen.nodes.len()), None),
            (left, None),
            (waiting(seen), None),
        ]);
    }
    table.text(colours)
}

/// How many waiters stand in line, and the first of them.
fn waiting(seen: &Inspection) -> String {
    let line = seen.line();
    let names: Vec<String> = line.iter().take(LINE_NAMED).map(name).collect();
    match line.len() - names.len() {
        _ if line.is_empty() => String::new(),
        0 => format!("{}: {}", line.len(), names.join(", ")),
        more => format!("{}: {} and {more} more", line.len(), names.join(", ")),
    }
}

/// The name of a holder or waiter for people: the owner in its token, or else the token.
fn name(token: &Token) -> String {
    token.owner().map_or_else(|| token.to_string(), str::to_string)
}
