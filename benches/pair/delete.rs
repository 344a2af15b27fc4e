//! How a lock is released: by the script, or by the node's native compare-and-delete.
//!
//! The library uses the native command wherever the node has one. So that it uses the script on the
//! same nodes, it connects as a user who may not ask which commands there are.

use redlatch::proto::command::{Form, Native};

use super::options::Way;
use super::support::{Fleet, Node, Value};

/// A user who may do everything but ask which commands there are.
const USER: &str = "scripted";

/// The way to release: the script or the native command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delete {
    Script,
    /// The native command of these nodes, if they have one.
    Native(Native),
}

impl Delete {
    /// The way that is wanted; by default the native one, if the nodes have it.
    ///
    /// Panics if the native one is wanted, and the nodes do not have it.
    pub fn of(fleet: &Fleet, way: Option<Way>) -> Delete {
        let has = |name: &str| match fleet[0].command(&["COMMAND", "INFO", name]) {
            Value::Array(entries) => matches!(entries.first(), Some(Value::Array(_))),
            _ => false,
        };
        let native = match (has("DELIFEQ"), has("DELEX")) {
            (true, _) => Some(Delete::Native(Native::Delifeq)),
            (false, true) => Some(Delete::Native(Native::Delex)),
            (false, false) => None,
        };
        match (way, native) {
            (Some(Way::Script), _) | (None, None) => Delete::Script,
            (_, Some(native)) => native,
            (_, None) => panic!("these nodes have no native compare-and-delete"),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Delete::Script => "script",
            Delete::Native(_) => "native",
        }
    }

    /// The form in which the floor sends the release.
    pub fn form(self) -> Form {
        match self {
            Delete::Script => Form::Sha,
            Delete::Native(native) => Form::Native(native),
        }
    }

    /// The URLs with which the library releases in this way.
    pub fn urls(self, nodes: &[&Node]) -> Vec<String> {
        if let Delete::Native(_) = self {
            return nodes.iter().map(|node| node.url()).collect();
        }
        for node in nodes {
            let rights = ["~*", "&*", "+@all", "-command"];
            let made = [&["ACL", "SETUSER", USER, "on", "nopass"], &rights[..]].concat();
            assert_eq!(node.command(&made).text(), "OK");
        }
        let url = |node: &&Node| node.url().replace("://", &format!("://{USER}:any@"));
        nodes.iter().map(url).collect()
    }
}
