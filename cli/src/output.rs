//! Prints results on stdout and errors on stderr, as text. With `--json` both are JSON on stdout.
//!
//! The hazard is a reader that closes the pipe. That is no error of the verb, so nothing here
//! panics, and the verb goes on to its end.

use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use redlatch::{ConfigError, Error, InvalidTtl, NodeError, NodeReply, NodeReport};
use rustix::fs::{OFlags, fcntl_getfl, fstat};
use serde_json::{Value, json};

use crate::arguments::Output;
use crate::exit;
use crate::holder::Holder;

/// Why a verb did not do what was asked.
#[derive(Debug)]
pub struct Refusal {
    /// The word for the reason, for scripts.
    pub word: &'static str,
    /// One line that an operator can act on.
    pub message: String,
    /// The reply of each node, if nodes were asked.
    pub nodes: Vec<NodeReport>,
    /// The tool's exit code.
    pub code: u8,
    /// A line for people about what an operator can do.
    pub way_out: Option<&'static str>,
    /// The client that holds the key, if the nodes were asked.
    pub holder: Option<Box<Holder>>,
}

/// The tip after a refusal if all nodes seem to be new. It is not printed if any of them was used
/// before, because a lock may be live there.
pub const INIT_MAY_HELP: &str = "redlatch init: on masters that are new, and that no client has \
    used yet, it makes their grants count at once";

/// The tip after a refusal if a node has another list of masters than this client.
pub const COMPARE_LISTS: &str = "redlatch members: shows the list that each server has; compare it \
    with the servers of this client, and of the others";

impl Refusal {
    /// A refusal of options that cannot work.
    pub fn config(message: impl Into<String>) -> Refusal {
        let (message, code) = (message.into(), exit::INTERNAL);
        Refusal { word: "config", message, nodes: Vec::new(), code, way_out: None, holder: None }
    }

    /// A refusal for something that should not happen.
    pub fn internal(message: impl Into<String>) -> Refusal {
        Refusal { word: "internal", ..Refusal::config(message) }
    }

    /// The refusal for a lock that could not be acquired. Sets `way_out` if `redlatch init` may
    /// help: that is, if only the restart guard keeps the nodes from granting, and all of them seem
    /// to be new.
    pub fn of_acquire(error: Error) -> Refusal {
        let no_quorum = matches!(error, Error::NoQuorum(_));
        let refusal = Refusal::from(error);
        let is_unmarked =
            |node: &NodeReport| node.quarantine.is_some_and(|quarantine| quarantine.is_unmarked);
        let are_new =
            no_quorum && !refusal.nodes.is_empty() && refusal.nodes.iter().all(is_unmarked);
        let way_out = refusal.way_out.or(are_new.then_some(INIT_MAY_HELP));
        Refusal { way_out, ..refusal }
    }

    /// The JSON object of the refusal, the same for every verb.
    pub fn json(&self) -> Value {
        let nodes: Vec<Value> = self.nodes.iter().map(node_json).collect();
        let mut object = json!({ "error": self.word, "message": self.message, "nodes": nodes });
        self.holder.iter().for_each(|holder| holder.add_to(&mut object));
        object
    }

    /// The refusal, with the client that holds the key.
    #[must_use]
    pub fn held_by(mut self, holder: Option<Box<Holder>>) -> Refusal {
        if let Some(holder) = &holder {
            self.message = format!("{}; {}", self.message, holder.words());
        }
        Refusal { holder, ..self }
    }

    /// Prints the refusal and returns the exit code. With `--quiet`, prints only errors that an
    /// operator has to correct. If the JSON cannot be written, prints text instead.
    pub fn report(&self, output: &Output) -> ExitCode {
        let written = output.json && write(&self.json().to_string()).is_ok();
        if !written && (!output.quiet || self.code == exit::INTERNAL) {
            complain(&format!("redlatch: {}", self.message));
            self.way_out.into_iter().for_each(complain);
        }
        ExitCode::from(self.code)
    }
}

/// Ends a verb: prints its refusal, if there is one, and returns the exit code.
pub fn end(result: Result<u8, Refusal>, output: &Output) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => refusal.report(output),
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Refusal {
        let nodes = error.report().map(|report| report.nodes.clone()).unwrap_or_default();
        let (word, code) = (word(&error), exit::of(&error));
        let message = match flag_to_change(&error) {
            Some(advice) => format!("{error}; {advice}"),
            None => error.to_string(),
        };
        let has_other_list = |it: &NodeReport| it.reply == NodeReply::Failed(NodeError::OtherList);
        let way_out = nodes.iter().any(has_other_list).then_some(COMPARE_LISTS);
        Refusal { word, message, nodes, code, way_out, holder: None }
    }
}

/// The flag that an operator can change so that the option is not refused.
fn flag_to_change(error: &Error) -> Option<&'static str> {
    match error {
        Error::Config(ConfigError::Ttl(InvalidTtl::TooLong { .. })) => {
            Some("shorten --ttl, or raise --max-ttl in every client of these nodes")
        }
        Error::Config(ConfigError::Ttl(InvalidTtl::TooShort { .. })) => Some("raise --ttl"),
        _ => None,
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Refusal {
        Error::Config(error).into()
    }
}

/// A node's reply as JSON, the same for every verb.
pub fn node_json(node: &NodeReport) -> Value {
    let in_words = || matches!(node.reply, NodeReply::Failed(_)).then(|| node.reply.to_string());
    let detail = node.detail.as_deref().map(str::to_string).or_else(in_words);
    json!({ "node": node.label, "outcome": outcome(node.reply), "detail": detail })
}

/// The word for an error, for scripts.
pub fn word(error: &Error) -> &'static str {
    match error {
        Error::Contended(_) => "contended",
        Error::NoQuorum(_) => "no_quorum",
        Error::Expired(_) => "expired",
        Error::Lost { .. } => "lost",
        Error::Busy(_) => "busy",
        Error::Config(_) => "config",
        Error::Closed(_) => "closed",
        _ => "other",
    }
}

/// The word for a node's reply, for scripts.
pub fn outcome(reply: NodeReply) -> &'static str {
    match reply {
        NodeReply::Granted => "granted",
        NodeReply::Held => "held",
        NodeReply::Absent => "absent",
        NodeReply::Failed(cause) => trouble(cause),
        _ => "undecided",
    }
}

/// The word for a node's error, for scripts.
pub fn trouble(cause: NodeError) -> &'static str {
    cause.word()
}

/// Whether redlatch was started without a stdout (`>&-`). The standard library has then opened
/// `/dev/null` as stdout, for reading and writing. A shell's `> /dev/null` opens it only for
/// writing, so the two can be distinguished.
pub fn stdout_was_closed() -> bool {
    let stdout = rustix::stdio::stdout();
    let is_null = |file: rustix::fs::Stat| {
        std::fs::metadata("/dev/null").is_ok_and(|null| null.rdev() == file.st_rdev)
    };
    let both_ways = |flags: OFlags| flags & OFlags::ACCMODE == OFlags::RDWR;
    fstat(stdout).is_ok_and(is_null) && fcntl_getfl(stdout).is_ok_and(both_ways)
}

/// Prints one line or several on stdout. If the reader has closed the pipe, that is no error.
///
/// # Errors
/// The text cannot be written for another reason.
pub fn print(text: &str) -> Result<(), Refusal> {
    print_to_reader(text).map(|_| ())
}

/// As [`print`], and returns whether the output still has a reader.
pub fn print_to_reader(text: &str) -> Result<bool, Refusal> {
    match write(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Refusal::internal(format!("the standard output: {error}"))),
        Ok(()) => Ok(true),
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
}

/// Prints a line on stderr. Ignores errors, because nothing is left where they could be reported.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The system's error text, without the number at its end.
pub fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// Prints a line on stderr for users that want to know more (`-v`).
pub fn mention(output: &Output, text: &str) {
    if output.verbose {
        complain(&format!("redlatch: {text}"));
    }
}
