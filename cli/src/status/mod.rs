//! `redlatch status`: prints what every node holds, and whether that makes a lock. Changes nothing.
//!
//! The hazard is to rely on the output: the state may have changed before it is read.

pub mod keys;
pub mod nodes;

use std::process::ExitCode;

use redlatch::{Inspection, NodeEvent, Outcome};
use serde_json::Value;

use crate::arguments::Common;
use crate::event_loop::{EventLoop, Patience};
use crate::look::Colours;
use crate::node_events;
use crate::nodes::config;
use crate::output::{self, Refusal};

const EXAMPLES: &str = "\
Examples:
  redlatch status nightly-report           who has it, and for how long
  redlatch status -q deploy && ./deploy    look only (to be sure, take the lock)
  redlatch status                          the nodes themselves
  redlatch status -q --all-nodes           may the next node be restarted?

Exit codes: 0 free, 1 held, 69 no quorum of nodes could answer, 125 usage or configuration. Of \
several keys: 69 if one is not known, else 1 if one is held. Without a key: 0 a quorum of nodes \
can grant, 69 fewer can: a readiness probe. With --all-nodes: 0 all nodes can grant, 1 a quorum \
can and not all, 69 fewer can.";

/// What every node says, and the verdict
///
/// Looks what every node holds at each KEY, and for how long; without KEY, whether the nodes
/// themselves can be used. It changes nothing, and what it saw may be over when you read it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_args(mark_flag_without_effect))]
pub struct Options {
    /// The locks to look at; none: the nodes themselves
    #[arg(value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub keys: Vec<String>,

    /// End with 0 only if all nodes can grant, and with 1 if a quorum can and not all
    ///
    /// For a script that restarts one master after the other: the next one may go when this is 0.
    #[arg(long, conflicts_with = "keys")]
    pub all_nodes: bool,

    #[command(flatten)]
    pub common: Common,
}

/// Says in the help of a flag that it has no effect. `status` takes such flags so that a script can
/// pass the same flags to every verb.
fn mark_flag_without_effect(arg: clap::Arg) -> clap::Arg {
    match arg.get_id().as_str() {
        "ttl" | "wait" | "nonblock" | "no_quorum_wait" => arg
            .help("No effect here; accepted because every verb accepts it")
            .long_help(None::<&str>),
        _ => arg,
    }
}

/// The key that is inspected if none is named. Only the time that the answers take matters, so the
/// key need not exist.
pub const NO_KEY: &str = "redlatch-status";

/// How many inspections are in flight. Each is two small reads on every node.
const IN_FLIGHT: usize = 64;

/// How many nodes have to be able to grant for the exit code 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Quorum,
    All,
}

/// What is printed for one key, or for the nodes.
pub struct View {
    pub text: String,
    pub json: Value,
    code: u8,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(inspect_and_print(options), &options.common.output)
}

fn inspect_and_print(options: &Options) -> Result<u8, Refusal> {
    let mut event_loop = EventLoop::new(config(&options.common.nodes, &options.common.timing)?)?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    let colours = Colours::on(&std::io::stdout());
    let views = if options.keys.is_empty() {
        let seen = inspected(&mut event_loop, &[NO_KEY.to_string()])?;
        let events = event_loop.take_events();
        let wanted = if options.all_nodes { Wanted::All } else { Wanted::Quorum };
        let view = |seen| nodes::view(&event_loop, seen, (&events, wanted), colours);
        seen.iter().map(view).collect()
    } else {
        let seen = inspected(&mut event_loop, &options.keys)?;
        node_events::mention(&mut event_loop, &options.common.output);
        seen.iter().map(|seen| keys::view(seen, colours)).collect::<Vec<View>>()
    };
    if options.common.output.json {
        let all: Vec<Value> = views.iter().map(|view| view.json.clone()).collect();
        output::print(&Value::from(all).to_string())?;
    } else if !options.common.output.quiet {
        let all: Vec<&str> = views.iter().map(|view| view.text.trim_end()).collect();
        output::print(&all.join("\n\n"))?;
    }
    Ok(views.iter().map(|view| view.code).max().unwrap_or_default())
}

/// Inspects the keys. Up to [`IN_FLIGHT`] inspections are in flight, so that thousands of keys do
/// not take a round trip each.
pub fn inspected(
    event_loop: &mut EventLoop,
    keys: &[impl AsRef<[u8]>],
) -> Result<Vec<Inspection>, Refusal> {
    let mut seen: Vec<Option<Inspection>> = keys.iter().map(|_| None).collect();
    let (mut begun, mut over) = (0, 0);
    while over < keys.len() {
        while begun < keys.len() && begun - over < IN_FLIGHT {
            event_loop.engine.inspect(&keys[begun], begun as u64)?;
            begun += 1;
        }
        let Some(done) = event_loop.engine.poll_completion() else {
            event_loop.turn(None)?;
            continue;
        };
        match done.result? {
            Outcome::Inspected(inspection) => seen[done.data as usize] = Some(*inspection),
            other => unreachable!("a look ended as {other:?}"),
        }
        over += 1;
    }
    Ok(seen.into_iter().flatten().collect())
}

/// Makes the view of the nodes. `seen` is an inspection of [`NO_KEY`].
pub fn of_nodes(
    event_loop: &EventLoop,
    seen: &Inspection,
    events: &[NodeEvent],
    colours: Colours,
) -> View {
    nodes::view(event_loop, seen, (events, Wanted::Quorum), colours)
}
