//! What is told, and where: results on stdout, troubles on stderr, both as text or as JSON.
//!
//! The hazard is a reader who leaves: a closed pipe is no trouble of ours, so nothing here panics,
//! and a verb goes on to its end without being read.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use redlatch::{ConfigError, Error, NodeError, NodeReply, NodeReport};
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use serde_json::{Value, json};

use crate::arguments::Output;
use crate::exit;

/// Why a verb did not do what it was asked to.
#[derive(Debug)]
pub struct Refusal {
    /// The word for it, for scripts.
    pub word: &'static str,
    /// One line that an operator can act on.
    pub message: String,
    /// What every node said, where nodes were asked.
    pub nodes: Vec<NodeReport>,
    /// What the tool ends with.
    pub code: u8,
    /// A line about what an operator can do, for people.
    pub way_out: Option<&'static str>,
}

/// Printed after a refusal of nodes that are in quarantine.
pub const INIT_MAY_HELP: &str = "redlatch init: if no lock can be live on these nodes, \
    `redlatch init` makes their grants count at once";

impl Refusal {
    /// What cannot work as it was given.
    pub fn config(message: impl Into<String>) -> Refusal {
        let (message, code) = (message.into(), exit::INTERNAL);
        Refusal { word: "config", message, nodes: Vec::new(), code, way_out: None }
    }

    /// What should not happen.
    pub fn internal(message: impl Into<String>) -> Refusal {
        Refusal { word: "internal", ..Refusal::config(message) }
    }

    /// Why a lock could not be acquired. The way out is named where `redlatch init` would help: a
    /// quorum of nodes could grant, and only the restart guard keeps them from it.
    pub fn of_acquire(error: Error) -> Refusal {
        let no_quorum = matches!(error, Error::NoQuorum(_));
        let refusal = Refusal::from(error);
        let is_quarantined =
            |node: &&NodeReport| node.said == NodeReply::Failed(NodeError::Quarantined);
        let could = |node: &&NodeReport| node.said == NodeReply::Granted || is_quarantined(node);
        let some = refusal.nodes.iter().any(|node| is_quarantined(&node));
        let enough = refusal.nodes.iter().filter(could).count() > refusal.nodes.len() / 2;
        let way_out = (no_quorum && some && enough).then_some(INIT_MAY_HELP);
        Refusal { way_out, ..refusal }
    }

    /// The JSON of any verb that was refused.
    pub fn json(&self) -> Value {
        let nodes: Vec<Value> = self.nodes.iter().map(node_json).collect();
        json!({ "error": self.word, "message": self.message, "nodes": nodes })
    }

    /// Tells it, and how the tool ends. Where nothing is to be said, only what somebody has to set
    /// right is; and JSON that nobody reads is told in words.
    pub fn tell(&self, output: &Output) -> ExitCode {
        let told = output.json && write(&self.json().to_string()).is_ok();
        if !told && (!output.quiet || self.code == exit::INTERNAL) {
            complain(&format!("redlatch: {}", self.message));
            self.way_out.into_iter().for_each(complain);
        }
        ExitCode::from(self.code)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let nodes = error.report().map(|report| report.nodes.clone()).unwrap_or_default();
        let (word, message, code) = (word(&error), error.to_string(), exit::of(&error));
        Refusal { word, message, nodes, code, way_out: None }
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Refusal {
        Error::Config(error).into()
    }
}

/// What a node said, as it stands in the JSON of any verb.
pub fn node_json(node: &NodeReport) -> Value {
    let in_words = || matches!(node.said, NodeReply::Failed(_)).then(|| node.said.to_string());
    let detail = node.detail.as_deref().map(str::to_string).or_else(in_words);
    json!({ "node": node.label, "outcome": outcome(node.said), "detail": detail })
}

/// The word for why there is no lock, for scripts.
pub fn word(error: &Error) -> &'static str {
    match error {
        Error::Contended(_) => "contended",
        Error::NoQuorum(_) => "no_quorum",
        Error::Expired(_) => "expired",
        Error::Lost { .. } => "lost",
        Error::Busy(_) => "busy",
        Error::Config(_) => "config",
        Error::Closed(_) => "closed",
    }
}

/// The word for what a node said, for scripts.
pub fn outcome(said: NodeReply) -> &'static str {
    match said {
        NodeReply::Nothing => "undecided",
        NodeReply::Granted => "granted",
        NodeReply::Held => "held",
        NodeReply::Absent => "absent",
        NodeReply::Failed(cause) => trouble(cause),
    }
}

/// The word for a node's trouble, for scripts.
pub fn trouble(cause: NodeError) -> &'static str {
    match cause {
        NodeError::Unreachable => "unreachable",
        NodeError::Silent => "silent",
        NodeError::Lost => "connection_lost",
        NodeError::Garbage => "garbage",
        NodeError::Full => "full",
        NodeError::Loading => "loading",
        NodeError::Busy => "busy",
        NodeError::Misconf => "misconf",
        NodeError::NoReplicas => "no_replicas",
        NodeError::OutOfMemory => "out_of_memory",
        NodeError::Replica => "replica",
        NodeError::TooManyClients => "too_many_clients",
        NodeError::NoAuth => "no_auth",
        NodeError::WrongPassword => "wrong_password",
        NodeError::NoPermission => "no_permission",
        NodeError::Protected => "protected",
        NodeError::Cluster => "cluster",
        NodeError::Evicts => "evicts",
        NodeError::Quarantined => "quarantined",
        NodeError::SameServer => "same_server",
        NodeError::NoDatabase => "no_database",
        NodeError::Forked => "forked",
        NodeError::WrongType => "wrong_type",
        NodeError::NoScript => "no_script",
        NodeError::UnknownCommand => "unknown_command",
        NodeError::Other => "other",
    }
}

/// Whether we were started without a stdout (`>&-`). The standard library has put `/dev/null` in
/// its place by now, open for both ways, as nobody opens it who throws away what we print.
pub fn stdout_was_closed() -> bool {
    let stdout = rustix::stdio::stdout();
    let is_null = |file: rustix::fs::Stat| {
        std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == file.st_rdev)
    };
    let both_ways = |flags: OFlags| flags & OFlags::ACCMODE == OFlags::RDWR;
    fstat(stdout).is_ok_and(is_null) && fcntl_getfl(stdout).is_ok_and(both_ways)
}

/// A line, or several, on stdout. That its reader has left is no error.
///
/// # Errors
/// What else keeps it from being written.
pub fn print(text: &str) -> Result<(), Refusal> {
    match write(text) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Refusal::internal(format!("the standard output: {error}")))
        }
        _ => Ok(()),
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
}

/// A line on stderr. Where nobody reads the errors either, the exit code tells.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// What the system says, without the number it ends with.
pub fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// A line on stderr for those who want to know more.
pub fn mention(output: &Output, text: &str) {
    if output.verbose {
        complain(&format!("redlatch: {text}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_trouble_has_a_word_of_its_own() {
        let mut words: Vec<&str> = NodeError::ALL.iter().map(|&cause| trouble(cause)).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), NodeError::ALL.len());
        let fit = |word: &str| word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
        assert!(words.iter().all(|word| fit(word)), "{words:?}");
    }
}
