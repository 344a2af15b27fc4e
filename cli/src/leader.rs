//! `redlatch leader`: says who leads an election. Changes nothing.
//!
//! The hazard is to rely on the answer: the leader may have changed before it is read.

use std::process::ExitCode;
use std::time::Duration;

use mio::Token;
use redlatch::proto::check_owner;
use redlatch::{
    Candidate, Leader, Leadership, NodeId, NodeReply, NodeSet, Standing, clock, clock::Instant,
    majority,
};
use serde_json::{Value, json};

use crate::arguments::{Common, Key};
use crate::event_loop::{EventLoop, Patience};
use crate::key_names::cut;
use crate::output::{self, Refusal};
use crate::signals::{ENDING, listen};
use crate::status::keys::seconds;
use crate::wall_clock::{millis, unix_ms};
use crate::{exit, node_events, nodes};

/// The poller's token of the signals.
const SIGNALS: Token = Token(0);

const EXAMPLES: &str = "\
Examples:
  redlatch leader scheduler                who leads, in which term, how long, and who is next
  redlatch leader --watch scheduler        a line whenever that changes, until ctrl-C
  redlatch leader -q --is web-1 scheduler  a readiness probe; not for liveness

Exit codes: 0 a candidate leads (with --is, this one), 1 nobody leads (with --is, or another), 69 \
not known: no quorum of nodes could answer, or the leader is just changing; 125 usage or \
configuration. With --watch 0, ended by ctrl-C, or its reader has left.";

/// Who leads an election, and who is next
///
/// Looks at the nodes: what a majority of them says. It changes nothing, and what it saw may be
/// over when you read it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
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

    /// Print a line now, and one whenever the leader changes
    ///
    /// The nodes are asked once a second.
    #[arg(long)]
    pub watch: bool,

    /// End with 0 if the candidate of this name leads, and with 1 if not
    #[arg(long, value_name = "NAME", conflicts_with = "watch", value_parser = name)]
    pub is: Option<String>,

    #[command(flatten)]
    pub common: Common,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(show(options), &options.common.output)
}

fn show(options: &Options) -> Result<u8, Refusal> {
    let mut event_loop =
        EventLoop::new(nodes::config(&options.common.nodes, &options.common.timing)?)?;
    let mut signals = match options.watch {
        true => Some(listen(event_loop.registry(), SIGNALS, &ENDING)?),
        false => None,
    };
    if !event_loop.gather(Patience::Thorough, |others| others.contains(&SIGNALS))? {
        return Ok(exit::DONE);
    }
    event_loop.engine.observe(&options.key.key, 0)?;
    let mut has_signal =
        || signals.as_mut().is_some_and(|signals| signals.pending().next().is_some());
    while let Some(seen) = next_leadership(&mut event_loop, None, &mut has_signal)? {
        node_events::mention(&mut event_loop, &options.common.output);
        if !options.watch && seen == Leadership::Unknown {
            refuse_lasting_trouble(&event_loop)?;
        }
        let has_reader = print(options, &event_loop, &seen)?;
        if !options.watch {
            return Ok(code(options, &seen));
        }
        if !has_reader {
            break;
        }
    }
    Ok(exit::DONE)
}

/// Waits for the next change of who leads, until `until` at most; `None` if that moment or `stop`
/// ended the wait.
pub fn next_leadership(
    event_loop: &mut EventLoop,
    until: Option<Instant>,
    stop: &mut impl FnMut() -> bool,
) -> Result<Option<Leadership>, Refusal> {
    loop {
        while event_loop.engine.poll_completion().is_some() {}
        while let Some(change) = event_loop.engine.poll_standing() {
            if let Standing::Observed(seen) = change.standing {
                return Ok(Some(seen));
            }
        }
        if stop() || until.is_some_and(|until| clock::now() >= until) {
            return Ok(None);
        }
        event_loop.turn(until)?;
    }
}

/// Returns an error if so many nodes fail for a lasting reason that the others are no quorum.
pub fn refuse_lasting_trouble(event_loop: &EventLoop) -> Result<(), Refusal> {
    let core = event_loop.engine.coordinator();
    let all: NodeSet = (0..core.settings().nodes.len()).map(NodeId::new).collect();
    Ok(event_loop.refuse_lasting_trouble(all.minus(core.ready()))?)
}

fn code(options: &Options, seen: &Leadership) -> u8 {
    let is_meant = |leader: &Leader| options.is.as_ref().is_none_or(|name| leader.name() == name);
    match seen {
        Leadership::Leader(leader) if is_meant(leader) => exit::DONE,
        Leadership::Leader(_) | Leadership::Nobody => exit::NO,
        _ => exit::NO_QUORUM,
    }
}

/// Prints who leads. Returns `false` if nothing reads the output any more.
fn print(options: &Options, event_loop: &EventLoop, seen: &Leadership) -> Result<bool, Refusal> {
    let key = &options.key.key;
    if options.common.output.json {
        let mut line = json!({ "key": key, "known": *seen != Leadership::Unknown });
        add_to(&mut line, seen.leader());
        line["observed_unix_ms"] = unix_ms(Duration::ZERO).into();
        return output::print_to_reader(&line.to_string());
    }
    if options.common.output.quiet {
        return Ok(true);
    }
    let words = match seen {
        Leadership::Leader(leader) => in_words(leader),
        Leadership::Nobody => "nobody leads".to_string(),
        _ => format!("not known: {}", what_is_missing(event_loop)),
    };
    output::print_to_reader(&format!("{}: {words}", cut(key.as_bytes())))
}

/// A leader for people.
pub fn in_words(leader: &Leader) -> String {
    let at = leader.address().map(|address| format!(" at {address}")).unwrap_or_default();
    let term = leader.term().map(|term| format!(", term {term}")).unwrap_or_default();
    let left = leader.remaining().map(|left| format!(", {} left", seconds(left)));
    let left = left.unwrap_or_default();
    let next = leader.next().map(|next| format!("; next in line: {next}")).unwrap_or_default();
    format!("{}{at} leads{term}{left}{next}", leader.name())
}

/// Adds a leader to the fields of a JSON object; without one, they are `null`.
pub fn add_to(object: &mut Value, leader: Option<&Leader>) {
    object["name"] = json!(leader.map(Leader::name));
    object["address"] = json!(leader.and_then(Leader::address));
    object["term"] = json!(leader.and_then(Leader::term));
    object["token"] = json!(leader.map(|leader| leader.token().to_string()));
    object["remaining_ms"] = json!(leader.and_then(Leader::remaining).map(millis));
    object["next"] = json!(leader.and_then(Leader::next).map(Candidate::to_string));
}

/// Why it is not known who leads.
fn what_is_missing(event_loop: &EventLoop) -> String {
    let core = event_loop.engine.coordinator();
    let (nodes, asked) = (core.settings().nodes.len(), core.ready().len());
    let quorum = majority(nodes);
    if asked >= quorum {
        return "no majority of the nodes names one leader, or says that there is none".to_owned();
    }
    let report = core.report_node_states(clock::now());
    let failed = report.nodes.iter().filter(|node| matches!(node.reply, NodeReply::Failed(_)));
    let failed: Vec<String> = failed.map(|node| format!("{} {}", node.label, node.reply)).collect();
    format!("{asked} of {nodes} nodes can be asked, {quorum} are needed: {}", failed.join(", "))
}

/// Reads the name of a candidate.
pub fn name(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('@') {
        return Err("the name of a candidate is not empty, and has no @".to_owned());
    }
    check_owner(text).map_err(str::to_owned)?;
    Ok(text.to_owned())
}
