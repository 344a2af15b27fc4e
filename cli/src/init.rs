//! `redlatch init`: the operator vouches for fresh nodes, so that their grants count immediately.
//! With `--files` it writes the files for new masters instead (`kit`).
//!
//! The hazard is a node that forgets a lock after the nodes were shown and before the operator
//! confirms. So the verb checks the nodes again after the answer, and writes nothing if one has
//! changed.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use redlatch::{
    Error, NodeError, NodeEvent, NodeId, NodeReply, NodeReport, Outcome, Report, RestartGuard,
    clock,
};
use serde_json::{Value, json};

use crate::arguments::{Common, Output};
use crate::event_loop::{EventLoop, Patience};
use crate::exit;
use crate::kit::{self, Kit};
use crate::look::Colours;
use crate::node_events;
use crate::nodes;
use crate::output::{self, Refusal, node_json};
use crate::status::nodes::words;
use crate::table::Table;

const LONG_ABOUT: &str = "\
Vouch for fresh nodes: their grants count at once

The restart guard keeps a node from granting for --max-ttl after it started or lost its keys, \
because a client may still believe in a lock that the node forgot. On nodes that are new there is \
no such lock. The tool cannot know this; you can. redlatch init shows the nodes, asks you to \
vouch, and writes it into the node marker of each node (the key redlatch:node): from then on the \
grants of these nodes count for every client.

Do not vouch for a node that was restarted or flushed while locks were in use: two clients could \
hold one lock. Wait for --max-ttl instead.

There are no masters yet? init --files DIR --for systemd, compose or kubernetes writes their \
configuration, an ACL file with a new password, what starts them, and redlatch.toml for the \
clients. It asks no node.";

const EXAMPLES: &str = "\
Examples:
  redlatch init -s redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  redlatch init --yes && redlatch acquire -n first-lock
  redlatch init --files masters --for systemd

Exit codes: 0 a quorum of nodes took it (a warning names the others), 1 you did not confirm, 69 \
fewer than a quorum took it, 125 usage, configuration, or a node that changed during the question. \
With --files: 0 written, 1 one of the files is there already, 125 usage, or one cannot be written.";

/// What the operator vouches for.
const CLAIM: &str = "no client believes in a lock on these nodes that one of them forgot";

/// Vouch for fresh nodes: their grants count at once
#[derive(Debug, clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("check_members", |arg| arg.hide(true)))]
#[command(mut_arg("replicas", |arg| arg.hide(true)))]
pub struct Options {
    /// Do not ask: you have looked, and you vouch
    #[arg(short, long)]
    pub yes: bool,

    #[command(flatten)]
    pub kit: Kit,

    #[command(flatten)]
    pub common: Common,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(init(options), &options.common.output)
}

fn init(options: &Options) -> Result<u8, Refusal> {
    if let Kit { files: Some(folder), starter: Some(starter), masters } = &options.kit {
        return kit::write(folder, *starter, *masters, &options.common.output);
    }
    let mut config = nodes::config(&options.common.nodes, &options.common.timing)?;
    if !options.yes && !io::stdin().is_terminal() {
        let message = "init: stdin is not a terminal, so it cannot ask; give --yes if \
            you vouch that ";
        return Err(Refusal::config(format!("{message}{CLAIM}")));
    }
    if options.common.timing.no_restart_guard {
        // This client needs a guard to write the markers, which other clients' guards read.
        config = config.restart_guard(RestartGuard::On);
    }
    let mut event_loop = EventLoop::new(config)?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    refuse_without_quorum(&event_loop)?;
    if options.yes {
        node_events::mention(&mut event_loop, &options.common.output);
    } else if !is_confirmed(&mut event_loop)? {
        output::complain("redlatch: not confirmed; nothing was written");
        return Ok(exit::NO);
    }
    let op = event_loop.engine.vouch(0)?;
    match event_loop.end_of(op) {
        Ok(Outcome::Vouched(report)) => print_report(&options.common.output, &report),
        Ok(other) => unreachable!("vouching ended as {other:?}"),
        Err(Error::NoQuorum(report)) => Err(too_few(&report)),
        Err(error) => Err(error.into()),
    }
}

/// Returns an error if fewer than a quorum of nodes can be asked, so that nothing is written.
fn refuse_without_quorum(event_loop: &EventLoop) -> Result<(), Refusal> {
    let core = event_loop.engine.coordinator();
    let nodes = core.settings().nodes.len();
    let usable = (0..nodes).filter(|&node| core.node_state(NodeId::new(node)).is_usable()).count();
    if usable > nodes / 2 {
        return Ok(());
    }
    event_loop.refuse_lasting_trouble((0..nodes).map(NodeId::new).collect())?;
    Err(Error::NoQuorum(core.report_node_states(clock::now())).into())
}

/// Shows the nodes and asks on the terminal. Nothing drives the connections meanwhile, so this
/// function reads after the answer what has happened to the nodes.
fn is_confirmed(event_loop: &mut EventLoop) -> Result<bool, Refusal> {
    let events = event_loop.take_events();
    let colours = Colours::on(&io::stderr());
    let mut table = Table::new(["node", "state"]);
    let labels = labels(event_loop);
    for (label, (words, look)) in labels.iter().zip(words(event_loop, &events)) {
        table.row([(label.clone(), None), (words, Some(look))]);
    }
    output::complain(table.text(colours).trim_end());
    output::complain(&format!("\nYou vouch that {CLAIM}."));
    output::complain("Type yes to make their grants count at once, for every client:");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer);
    read.map_err(|error| Refusal::internal(format!("the terminal: {error}")))?;
    if !matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(false);
    }
    event_loop.turn(Some(clock::now()))?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    let changed = event_loop.take_events().into_iter().find_map(|event| match event {
        NodeEvent::Quarantined { node, why, .. } => Some((node, why)),
        _ => None,
    });
    match changed {
        Some((node, why)) => {
            let label = &labels[node.index()];
            let message = "nothing was written; look again, and vouch for what you see then";
            Err(Refusal::config(format!("{label} changed while you were asked: {why}; {message}")))
        }
        None => Ok(true),
    }
}

fn labels(event_loop: &EventLoop) -> Vec<String> {
    let nodes = &event_loop.engine.coordinator().settings().nodes;
    nodes.iter().map(|node| node.label.to_string()).collect()
}

/// Prints the result for each node.
fn print_report(output: &Output, report: &Report) -> Result<u8, Refusal> {
    let took = |node: &&NodeReport| node.reply == NodeReply::Granted;
    let vouched: Vec<&str> = report.nodes.iter().filter(took).map(|node| &*node.label).collect();
    if output.json {
        let nodes: Vec<Value> = report.nodes.iter().map(object).collect();
        output::print(&json!({ "vouched": vouched, "nodes": nodes }).to_string())?;
    } else if !output.quiet {
        let lines = vouched.iter().map(|label| format!("vouched for {label}"));
        output::print(&lines.collect::<Vec<_>>().join("\n"))?;
    }
    if !output.quiet && vouched.len() < report.nodes.len() {
        let left = missing(report);
        output::complain(&format!("redlatch: not vouched for {left}; the restart guard stays"));
    }
    Ok(exit::DONE)
}

fn too_few(report: &Report) -> Refusal {
    let (needed, nodes, left) = (report.needed, report.nodes.len(), missing(report));
    let refusal = Refusal::from(Error::NoQuorum(Box::new(report.clone())));
    let message = format!("init: fewer than {needed} of {nodes} nodes took it: {left}");
    Refusal { message, ..refusal }
}

/// The nodes that did not take the marker, each with its reason.
fn missing(report: &Report) -> String {
    let missing = report.nodes.iter().filter(|node| node.reply != NodeReply::Granted);
    let in_words = |node: &NodeReport| format!("{} ({})", node.label, reason(node));
    missing.map(in_words).collect::<Vec<_>>().join(", ")
}

fn reason(node: &NodeReport) -> String {
    let detail = node.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
    match node.reply {
        NodeReply::Failed(NodeError::WrongType) => {
            "its marker key belongs to another program".to_owned()
        }
        NodeReply::Failed(NodeError::NoPermission) => {
            format!("its marker may not be written{detail}; `redlatch doctor` names the ACL rule")
        }
        reply => format!("{reply}{detail}"),
    }
}

fn object(node: &NodeReport) -> Value {
    let mut object = node_json(node);
    if node.reply == NodeReply::Granted {
        object["outcome"] = "vouched".into();
    } else {
        object["detail"] = reason(node).into();
    }
    object
}
