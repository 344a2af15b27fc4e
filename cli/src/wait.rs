//! `redlatch wait`: waits until a key is free, and acquires nothing.
//!
//! The verb inspects the key again and again, with two small reads on each node. It cannot wait for
//! a notification, because the library gets one only after an attempt that was denied, and an
//! attempt on a free key would acquire it.
//!
//! The hazard is to rely on the answer: another client may acquire the key before it is read.

use std::process::ExitCode;
use std::time::Duration;

use redlatch::{Inspection, KeyState, KeySummary, NodeError, NodeReply, clock, clock::Instant};
use serde_json::json;

use crate::arguments::{Common, Key};
use crate::event_loop::{EventLoop, Patience};
use crate::key_names::shown;
use crate::key_state::in_words;
use crate::look::Colours;
use crate::nodes;
use crate::output::{self, Refusal};
use crate::status::{inspected, keys};
use crate::wall_clock::millis;
use crate::{exit, node_events};

/// The first pause between two inspections, which then doubles, up to the longest. So a release is
/// noticed after at most the longest pause, and a hundred waiters make 400 inspections a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long after the end of its ttl a key is inspected again.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);

const EXAMPLES: &str = "\
Examples:
  redlatch wait deploy && echo 'the deployment is over'
  redlatch wait -w 5m nightly-report || exit
  redlatch wait -n deploy                  look once: 75 if it is held

Exit codes: 0 free, 75 still held when the wait ran out, 69 no quorum of nodes could answer, 125 \
usage or configuration.";

/// Wait until a key is free; takes nothing
///
/// Ends when a majority of the nodes holds nothing at KEY. Another client may take it at once: to
/// be sure, take the lock. It looks at the nodes again every 250 ms at the latest, and when the ttl
/// of the key is over.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("max_ttl", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("check_members", |arg| arg.hide(true)))]
#[command(mut_arg("replicas", |arg| arg.hide(true)))]
#[command(mut_arg("persistent_nodes", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub key: Key,
    #[command(flatten)]
    pub common: Common,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(wait(options), &options.common.output)
}

fn wait(options: &Options) -> Result<u8, Refusal> {
    let begun = clock::now();
    let (key, timing) = (&options.key.key, &options.common.timing);
    let give_up_at = timing.longest_wait().map(|wait| begun.saturating_add(wait));
    let mut event_loop = EventLoop::new(nodes::config(&options.common.nodes, timing)?)?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    let (mut pause, mut unknown_since) = (FIRST_PAUSE, None);
    loop {
        let seen = inspected(&mut event_loop, std::slice::from_ref(key))?;
        let seen = seen.first().expect("one key was asked for");
        node_events::mention(&mut event_loop, &options.common.output);
        let (now, finding) = (clock::now(), seen.summary());
        if finding == KeySummary::Free {
            return print_outcome(options, now.saturating_since(begun));
        }
        let is_unknown = finding == KeySummary::Unknown;
        if is_unknown {
            event_loop.refuse_lasting_trouble(failed(seen))?;
        }
        unknown_since = is_unknown.then(|| unknown_since.unwrap_or(now));
        let patience = unknown_since.map(|since| since.saturating_add(timing.no_quorum_wait));
        let end = give_up_at.into_iter().chain(patience).min();
        if end.is_some_and(|end| now >= end) {
            return Err(refusal(&event_loop, key, seen, is_unknown));
        }
        let inspect_at = next_inspection(now, pause, finding);
        sleep(&mut event_loop, end.map_or(inspect_at, |end| end.min(inspect_at)))?;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// When to inspect the key again: after the pause, or when its ttl is over, whichever is earlier.
fn next_inspection(now: Instant, pause: Duration, finding: KeySummary) -> Instant {
    let left = match finding {
        KeySummary::Held { left: Some(left), .. } => left.saturating_add(AFTER_EXPIRY),
        _ => pause,
    };
    now.saturating_add(pause.min(left))
}

fn sleep(event_loop: &mut EventLoop, until: Instant) -> Result<(), Refusal> {
    while clock::now() < until {
        event_loop.turn(Some(until))?;
    }
    Ok(())
}

/// The nodes that could not be asked, or did not answer.
pub fn failed(seen: &Inspection) -> redlatch::NodeSet {
    let failed = |(_, state): &(usize, KeyState)| matches!(state, KeyState::Failed(_));
    let sights = seen.nodes.iter().map(|node| node.state).enumerate();
    sights.filter(failed).map(|(index, _)| redlatch::NodeId::new(index)).collect()
}

fn refusal(event_loop: &EventLoop, key: &str, seen: &Inspection, is_unknown: bool) -> Refusal {
    let (word, code) = match is_unknown {
        true => ("no_quorum", exit::NO_QUORUM),
        false => ("contended", exit::CONTENDED),
    };
    let mut report = event_loop.engine.coordinator().report_node_states(clock::now());
    for (node, seen) in report.nodes.iter_mut().zip(&seen.nodes) {
        let (said, detail) = match seen.state {
            KeyState::Held { value, .. } => (NodeReply::Held, Some(format!("by {value}"))),
            KeyState::Failed(cause) => (NodeReply::Failed(cause), words(cause, seen)),
            _ => (NodeReply::Absent, None),
        };
        (node.reply, node.detail) = (said, detail.map(Into::into));
    }
    let message = keys::verdict(seen, seen.summary(), Colours::none());
    let message = format!("waited for {}, and it did not become free: {message}", shown(key));
    Refusal { word, code, nodes: report.nodes, ..Refusal::config(message) }
}

fn words(cause: NodeError, node: &redlatch::NodeKeyState) -> Option<String> {
    node.detail.is_some().then(|| in_words(cause, node))
}

fn print_outcome(options: &Options, waited: Duration) -> Result<u8, Refusal> {
    let key = &options.key.key;
    if options.common.output.json {
        output::print(&json!({ "key": key, "waited_ms": millis(waited) }).to_string())?;
    }
    output::mention(&options.common.output, &format!("{} is free", shown(key)));
    Ok(exit::DONE)
}
