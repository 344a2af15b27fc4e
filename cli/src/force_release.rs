//! `redlatch force-release`: shows which client holds a key, and deletes the key from the nodes.
//!
//! The hazard is a lock that changes hands after it was shown: the operator agreed only to delete
//! the lock of the holder that was shown. So each node deletes the key only if it still has the
//! value that was shown.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use redlatch::{
    Inspection, KeyState, NodeError, NodeKeyState, NodeReply, NodeReport, Outcome, Report, clock,
};
use serde_json::{Value, json};

use crate::arguments::{Common, Key};
use crate::event_loop::{EventLoop, Patience};
use crate::look::Colours;
use crate::output::{self, Refusal, trouble};
use crate::status::{inspected, keys};
use crate::wait::failed;
use crate::{exit, node_events, nodes};

const LONG_ABOUT: &str = "\
Delete a lock, whichever client holds it, after showing which one does

For an operator who knows that the holder of KEY is gone for good. redlatch force-release shows \
what each node holds, asks, and deletes on each node exactly what it has shown: a key that changed \
hands meanwhile stays, and is reported.

A holder that still runs goes on without its lock until it notices (with exec: at its next \
renewal, after at most a third of its ttl), and meanwhile another client can take the lock. \
Without this command the lock ends by its ttl, which status shows.";

const EXAMPLES: &str = "\
Examples:
  redlatch force-release nightly-report
  redlatch force-release --yes nightly-report     do not ask: for scripts

Exit codes: 0 what was shown is deleted, or nothing was there (a warning names nodes that did not \
answer); 1 not confirmed, or a node holds something else by now; 69 no quorum of nodes could \
answer; 125 usage, configuration, or no terminal to ask at.";

/// Delete a lock, whichever client holds it, after showing which one does
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
#[command(mut_arg("max_ttl", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("check_members", |arg| arg.hide(true)))]
#[command(mut_arg("replicas", |arg| arg.hide(true)))]
#[command(mut_arg("persistent_nodes", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub key: Key,

    /// Do not ask: you know that the holder is gone
    #[arg(short, long)]
    pub yes: bool,

    #[command(flatten)]
    pub common: Common,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(force_release(options), &options.common.output)
}

fn force_release(options: &Options) -> Result<u8, Refusal> {
    let config = nodes::config(&options.common.nodes, &options.common.timing)?;
    if !options.yes && !io::stdin().is_terminal() {
        let message = "force-release: stdin is no terminal to ask at; give --yes if \
            you know that the holder is gone";
        return Err(Refusal::config(message));
    }
    let mut event_loop = EventLoop::new(config)?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    let key = &options.key.key;
    let seen = inspected(&mut event_loop, std::slice::from_ref(key))?;
    let seen = seen.first().expect("one key was asked for");
    refuse_without_quorum(&event_loop, seen)?;
    let is_held = |node: &NodeKeyState| matches!(node.state, KeyState::Held { .. });
    if seen.nodes.iter().any(is_held) {
        let shows = !options.yes || options.common.output.verbose;
        if shows {
            let colours = Colours::on(&io::stderr());
            output::complain(keys::view(seen, colours).text.trim_end());
        }
        if !options.yes && !is_confirmed(&mut event_loop)? {
            output::complain("redlatch: not confirmed; nothing was deleted");
            return Ok(exit::NO);
        }
    }
    node_events::mention(&mut event_loop, &options.common.output);
    let op = event_loop.engine.dangerously_force_release_seen(seen, 0)?;
    match event_loop.end_of(op)? {
        Outcome::ForceReleased(report) => print_report(options, seen, &report),
        other => unreachable!("a forced release ended as {other:?}"),
    }
}

/// Returns an error if fewer than a quorum of nodes answered, so that nothing is deleted.
fn refuse_without_quorum(event_loop: &EventLoop, seen: &Inspection) -> Result<(), Refusal> {
    let answered = seen.nodes.iter().filter(|node| answered(node.state)).count();
    if answered >= seen.quorum {
        return Ok(());
    }
    event_loop.refuse_lasting_trouble(failed(seen))?;
    let mut report = event_loop.engine.coordinator().report_node_states(clock::now());
    report.key = seen.key.clone();
    for (node, seen) in report.nodes.iter_mut().zip(&seen.nodes) {
        node.reply = match seen.state {
            KeyState::Held { .. } => NodeReply::Held,
            KeyState::Failed(cause) => NodeReply::Failed(cause),
            _ => NodeReply::Absent,
        };
    }
    Err(redlatch::Error::NoQuorum(report).into())
}

/// Whether the node answered. That its key has another type is an answer, too.
fn answered(state: KeyState) -> bool {
    !matches!(state, KeyState::Failed(cause) if cause != NodeError::WrongType)
}

/// Asks on the terminal. Nothing drives the connections meanwhile, so this function then connects
/// again to nodes that closed theirs.
fn is_confirmed(event_loop: &mut EventLoop) -> Result<bool, Refusal> {
    output::complain("\nIf its holder still runs, it goes on without the lock until it notices.");
    output::complain("Type yes to delete exactly what is shown:");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.map_err(|error| Refusal::internal(format!("the terminal: {error}")))?;
    if !matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(false);
    }
    event_loop.turn(Some(clock::now()))?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    Ok(true)
}

/// The outcome of all nodes together, as a word and an exit code.
fn verdict(report: &Report) -> (&'static str, u8) {
    let said = |wanted: fn(NodeReply) -> bool| {
        report.nodes.iter().filter(|node| wanted(node.reply)).count()
    };
    let stays = |said| matches!(said, NodeReply::Held | NodeReply::Failed(NodeError::WrongType));
    if said(stays) > 0 {
        ("changed", exit::NO)
    } else if said(|said| !matches!(said, NodeReply::Failed(_))) < report.needed {
        ("unconfirmed", exit::NO_QUORUM)
    } else if said(|said| said == NodeReply::Granted) > 0 {
        ("released", exit::DONE)
    } else {
        ("already_free", exit::DONE)
    }
}

/// Prints the result for each node.
fn print_report(options: &Options, seen: &Inspection, report: &Report) -> Result<u8, Refusal> {
    let (outcome, code) = verdict(report);
    let nodes = || report.nodes.iter().zip(&seen.nodes);
    if options.common.output.json {
        let nodes: Vec<Value> = nodes().map(|(node, seen)| object(node, seen)).collect();
        let told = json!({ "key": options.key.key, "outcome": outcome, "nodes": nodes });
        output::print(&told.to_string())?;
        return Ok(code);
    }
    if options.common.output.quiet {
        return Ok(code);
    }
    let deleted = nodes().filter(|(node, _)| node.reply == NodeReply::Granted);
    let lines: Vec<String> =
        deleted.map(|(node, seen)| format!("deleted {} on {}", held(seen), node.label)).collect();
    if lines.is_empty() && outcome == "already_free" {
        output::print("nothing to delete: the key is free")?;
    } else if !lines.is_empty() {
        output::print(&lines.join("\n"))?;
    }
    let left =
        nodes().filter(|(node, _)| !matches!(node.reply, NodeReply::Granted | NodeReply::Absent));
    for (node, _) in left {
        output::complain(&format!("redlatch: not deleted on {}: {}", node.label, reason(node)));
    }
    Ok(code)
}

/// The value that was shown for a node.
fn held(seen: &NodeKeyState) -> String {
    match seen.state {
        KeyState::Held { value, .. } => value.to_string(),
        _ => "nothing".to_string(),
    }
}

fn reason(node: &NodeReport) -> String {
    let detail = node.detail.as_deref().map(|detail| format!(" ({detail})")).unwrap_or_default();
    match node.reply {
        NodeReply::Held => "it holds something else by now; look again".to_string(),
        said => format!("{said}{detail}"),
    }
}

fn object(node: &NodeReport, seen: &NodeKeyState) -> Value {
    let token = match seen.state {
        KeyState::Held { value, .. } => Some(value.to_string()),
        _ => None,
    };
    let outcome = match node.reply {
        NodeReply::Granted => "deleted",
        NodeReply::Held => "changed",
        NodeReply::Failed(cause) => trouble(cause),
        _ => "free",
    };
    let stays = !matches!(node.reply, NodeReply::Granted | NodeReply::Absent);
    let detail = stays.then(|| reason(node));
    json!({ "node": node.label, "outcome": outcome, "token": token, "detail": detail })
}
