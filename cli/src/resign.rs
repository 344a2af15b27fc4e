//! `redlatch resign`: asks the leader of an election to step down, and waits until it has.
//!
//! The hazard is to ask the wrong leader. So the message names the token that was seen, and a later
//! leader does not take it as meant for itself.

use std::process::ExitCode;
use std::time::Duration;

use redlatch::{Error, Leader, Leadership, NodeReply, Outcome, clock};
use serde_json::{Value, json};

use crate::arguments::{Common, Key, duration};
use crate::event_loop::{EventLoop, Patience};
use crate::key_names::cut;
use crate::leader::{next_leadership, refuse_lasting_trouble};
use crate::output::{self, Refusal};
use crate::wall_clock::millis;
use crate::{exit, node_events, nodes};

/// How often the message to the leader is written again, because a node that could not be reached
/// before does not have it.
const ASK_AGAIN: Duration = Duration::from_secs(2);

const EXAMPLES: &str = "\
Examples:
  redlatch resign scheduler                      another candidate leads, for 30 s at least
  redlatch resign --pause 10m -w 1m scheduler    before this machine is repaired

A leader that elect or the library runs reads the message within a second. It stops what only a \
leader may do (elect: CMD gets SIGTERM, and SIGKILL after --grace), and then releases the lock. \
If it is the only candidate, nobody leads until its pause is over.

Exit codes: 0 it has stepped down, 1 nobody led, 69 no quorum of nodes could answer, 75 it still \
leads at the end of the wait, 125 usage or configuration.";

/// Ask the leader to step down, and wait until it has
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("wait", |arg| arg.help(WAIT).long_help(None::<&str>)))]
#[command(mut_arg("nonblock", |arg| arg.help("Ask, and do not wait: --wait 0")))]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("check_members", |arg| arg.hide(true)))]
#[command(mut_arg("replicas", |arg| arg.hide(true)))]
#[command(mut_arg("persistent_nodes", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub key: Key,

    /// How long the leader is no candidate after it has stepped down
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "30s")]
    pub pause: Duration,

    #[command(flatten)]
    pub common: Common,
}

/// What `--wait` means here.
const WAIT: &str = "How long to wait until it has stepped down [default: --max-ttl]";

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(resign(options), &options.common.output)
}

fn resign(options: &Options) -> Result<u8, Refusal> {
    let (begun, timing) = (clock::now(), &options.common.timing);
    let longest_wait = timing.longest_wait().unwrap_or(timing.max_ttl);
    let ends_at = begun.saturating_add(longest_wait);
    let mut event_loop = EventLoop::new(nodes::config(&options.common.nodes, timing)?)?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    event_loop.engine.observe(&options.key.key, 0)?;
    let mut asked: Option<Leader> = None;
    let mut is_known = false;
    // With `--wait 0`, too, the verb waits for the first answer of who leads.
    let mut until = None;
    loop {
        let seen = next_leadership(&mut event_loop, until, &mut || false)?;
        node_events::mention(&mut event_loop, &options.common.output);
        is_known = seen.as_ref().map_or(is_known, |seen| *seen != Leadership::Unknown);
        let has_ended = |leader: &Leader| match &seen {
            Some(Leadership::Leader(now)) => now.token() != leader.token(),
            Some(Leadership::Nobody) => true,
            _ => false,
        };
        match (&asked, &seen) {
            (Some(leader), Some(seen)) if has_ended(leader) => {
                let waited = clock::now().saturating_since(begun);
                return print_end(options, Some(leader), seen.leader(), waited);
            }
            (None, Some(Leadership::Nobody)) => {
                return print_end(options, None, None, Duration::ZERO);
            }
            (None, Some(Leadership::Leader(leader))) => asked = Some(leader.clone()),
            (None, Some(_)) => refuse_lasting_trouble(&event_loop)?,
            _ => {}
        }
        if let Some(leader) = &asked {
            ask(&mut event_loop, options, leader)?;
        }
        let now = clock::now();
        if now >= ends_at {
            return Err(refusal(options, &event_loop, asked.filter(|_| is_known)));
        }
        until = Some(now.saturating_add(ASK_AGAIN).min(ends_at));
    }
}

/// Writes the message, and returns an error if no node has taken it.
fn ask(event_loop: &mut EventLoop, options: &Options, leader: &Leader) -> Result<(), Refusal> {
    let op = event_loop.engine.ask_to_resign(&options.key.key, leader, options.pause, 0)?;
    match event_loop.end_of(op)? {
        Outcome::Noted(report) => {
            let is_taken = report.nodes.iter().any(|node| node.reply == NodeReply::Granted);
            if is_taken { Ok(()) } else { Err(Error::NoQuorum(report).into()) }
        }
        other => unreachable!("a note ended as {other:?}"),
    }
}

/// The refusal at the end of the wait. `leader` is the one that was asked, if it still leads.
fn refusal(options: &Options, event_loop: &EventLoop, leader: Option<Leader>) -> Refusal {
    let report = event_loop.engine.coordinator().report_node_states(clock::now());
    let key = cut(options.key.key.as_bytes());
    match leader {
        None => {
            let message = format!("{key}: it is not known who leads");
            Refusal { message, ..Error::NoQuorum(report).into() }
        }
        Some(leader) => {
            let message = format!("{key}: {leader} still leads at the end of the wait");
            let (word, code) = ("contended", exit::CONTENDED);
            Refusal { word, code, nodes: report.nodes, ..Refusal::config(message) }
        }
    }
}

/// Prints who stepped down, and who leads now.
fn print_end(
    options: &Options,
    resigned: Option<&Leader>,
    leads: Option<&Leader>,
    waited: Duration,
) -> Result<u8, Refusal> {
    let key = &options.key.key;
    let candidate = |leader: Option<&Leader>| -> Value { leader.map(Leader::to_string).into() };
    if options.common.output.json {
        let outcome = if resigned.is_some() { "stepped_down" } else { "nobody" };
        let line = json!({
            "key": key,
            "outcome": outcome,
            "resigned": candidate(resigned),
            "leader": candidate(leads),
            "waited_ms": millis(waited),
        });
        output::print(&line.to_string())?;
    } else if !options.common.output.quiet {
        let now = leads.map_or("nobody leads".to_owned(), |leader| format!("{leader} leads"));
        let words = match resigned {
            Some(leader) => format!("{leader} has stepped down; {now}"),
            None => now,
        };
        output::print(&format!("{}: {words}", cut(key.as_bytes())))?;
    }
    Ok(if resigned.is_some() { exit::DONE } else { exit::NO })
}
