//! What a node holds for a key, in words and as JSON, for several verbs.

use redlatch::{KeyState, NodeError, NodeKeyState};
use serde_json::{Value, json};

use crate::output::trouble;

/// The word for what a node holds, for scripts.
pub fn state(state: KeyState) -> &'static str {
    match state {
        KeyState::Absent => "free",
        KeyState::Held { .. } => "held",
        KeyState::Failed(cause) => trouble(cause),
        _ => "other",
    }
}

/// What a node holds, as in a report: `{"node","outcome","detail"}`.
pub fn node_json(node: &NodeKeyState) -> Value {
    let detail = match node.state {
        KeyState::Held { value, .. } => Some(format!("by {value}")),
        KeyState::Failed(cause) => Some(in_words(cause, node)),
        _ => None,
    };
    json!({ "node": node.label, "outcome": state(node.state), "detail": detail })
}

/// A node's error, with the text that the node sent, if any.
pub fn in_words(cause: NodeError, node: &NodeKeyState) -> String {
    match &node.detail {
        Some(detail) => format!("{cause} ({detail})"),
        None => cause.to_string(),
    }
}
