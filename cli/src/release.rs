//! `redlatch release`: releases a lock by its key and token, whichever process took it.

use std::process::ExitCode;

use redlatch::{Inspection, LockToken, Outcome, ReleaseOutcome};
use serde_json::{Value, json};

use crate::arguments::{Common, Keys, Output, token};
use crate::event_loop::{EventLoop, Patience};
use crate::exit;
use crate::key_state::node_json;
use crate::node_events;
use crate::nodes;
use crate::output::{self, Refusal};

const EXAMPLES: &str = "\
Examples:
  redlatch release deploy \"$token\"
  redlatch release account:7 account:9 \"$token\"

Exit codes: 0 released, 1 the token does not hold the key: its ttl was over, or another has it, 69 \
no quorum of nodes could confirm it, 125 usage or configuration.";

/// Release a lock by its token
///
/// Deletes each KEY on every node on which TOKEN holds it. A token that does not hold it changes
/// nothing.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
#[command(mut_arg("max_ttl", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("persistent_nodes", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub keys: Keys,

    /// What acquire printed
    #[arg(value_name = "TOKEN", value_parser = token)]
    pub token: LockToken,

    #[command(flatten)]
    pub common: Common,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(release(options), &options.common.output)
}

fn release(options: &Options) -> Result<u8, Refusal> {
    let (key, node_timeout) = (&options.keys.keys[0], options.common.timing.node_timeout);
    let keys = options.keys.named()?;
    let mut event_loop =
        EventLoop::new(nodes::config(&options.common.nodes, &options.common.timing)?)?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    node_events::mention(&mut event_loop, &options.common.output);
    let op = event_loop.engine.release_token_all(keys.set(), options.token.clone(), 0)?;
    let released = match event_loop.end_of(op)? {
        Outcome::Released(released) => released,
        other => unreachable!("a release ended as {other:?}"),
    };
    if let ReleaseOutcome::Unconfirmed { nodes } = released {
        event_loop.refuse_lasting_trouble(nodes)?;
    }
    // A majority has released the lock. The others get the release too, and a bounded time to
    // answer.
    event_loop.settle(node_timeout)?;
    if options.common.output.json {
        let left = looked_at(&mut event_loop, key)?;
        let nodes: Vec<Value> = left.nodes.iter().map(node_json).collect();
        let mut object = json!({ "key": key, "outcome": word(released), "nodes": nodes });
        keys.add_keys(&mut object);
        output::print(&object.to_string())?;
    } else {
        print_outcome(&options.common.output, released, &event_loop)?;
    }
    Ok(code(released))
}

/// What the nodes hold after the release.
fn looked_at(event_loop: &mut EventLoop, key: &str) -> Result<Box<Inspection>, Refusal> {
    let op = event_loop.engine.inspect(key, 0)?;
    match event_loop.end_of(op)? {
        Outcome::Inspected(seen) => Ok(seen),
        other => unreachable!("a look ended as {other:?}"),
    }
}

fn print_outcome(
    output: &Output,
    released: ReleaseOutcome,
    event_loop: &EventLoop,
) -> Result<(), Refusal> {
    let text = match released {
        _ if output.quiet => return Ok(()),
        ReleaseOutcome::Released => return output::print("released"),
        ReleaseOutcome::AlreadyExpired => "already expired: the key was gone".to_string(),
        ReleaseOutcome::TakenByOther => {
            "taken by other: another client has the lock now".to_string()
        }
        ReleaseOutcome::Unconfirmed { nodes } => {
            let settings = event_loop.engine.coordinator().settings();
            let labels = nodes.iter().map(|node| &*settings.nodes[node.index()].label);
            let labels = labels.collect::<Vec<_>>().join(", ");
            format!("unconfirmed: no answer of {labels}; the key may stay there for its ttl")
        }
    };
    output::complain(&format!("redlatch: {text}"));
    Ok(())
}

fn word(released: ReleaseOutcome) -> &'static str {
    match released {
        ReleaseOutcome::Released => "released",
        ReleaseOutcome::AlreadyExpired => "already_expired",
        ReleaseOutcome::TakenByOther => "taken_by_other",
        ReleaseOutcome::Unconfirmed { .. } => "unconfirmed",
    }
}

fn code(released: ReleaseOutcome) -> u8 {
    match released {
        ReleaseOutcome::Released => exit::DONE,
        ReleaseOutcome::AlreadyExpired | ReleaseOutcome::TakenByOther => exit::NO,
        ReleaseOutcome::Unconfirmed { .. } => exit::NO_QUORUM,
    }
}
