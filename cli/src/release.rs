//! `redlatch release`: releases a lock by its key and token, whichever process acquired it.

use std::process::ExitCode;
use std::time::Duration;

use redlatch::{Inspection, LockToken, NodeId, NodeSet, Outcome, ReleaseOutcome, RestartGuard};
use serde_json::{Value, json};

use crate::arguments::{Common, Keys, Output, token};
use crate::event_loop::{EventLoop, Patience};
use crate::exit;
use crate::key_state::node_json;
use crate::node_events;
use crate::nodes;
use crate::output::{self, Refusal};
use crate::wall_clock;

const EXAMPLES: &str = "\
Examples:
  redlatch release deploy \"$token\"
  redlatch release account:7 account:9 \"$token\"

Exit codes: 0 released, 1 a majority did not hold the key for the token: its ttl was over, or \
another has it, 69 too few nodes answered to know, 125 usage or configuration.";

/// Release a lock by its token
///
/// Deletes each KEY on every node on which TOKEN holds it. A token that does not hold it changes
/// nothing. A node that does not confirm the release may keep the key for its ttl: that is named,
/// with --max-ttl as the bound.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("check_members", |arg| arg.hide(true)))]
#[command(mut_arg("replicas", |arg| arg.hide(true)))]
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
    let asked = event_loop.engine.coordinator().ready();
    let op = event_loop.engine.release_token(keys.set(), options.token.clone(), 0)?;
    let released = match event_loop.end_of(op)? {
        Outcome::Released(released) => released,
        other => unreachable!("a release ended as {other:?}"),
    };
    if let ReleaseOutcome::Unconfirmed { nodes } = released {
        event_loop.refuse_lasting_trouble(nodes)?;
    }
    // The outcome is known, but the other nodes have to get the release, too: waits for them for at
    // most the node timeout.
    event_loop.settle(node_timeout)?;
    let left = Left::after(&event_loop, asked, options);
    if options.common.output.json {
        let seen = inspect_after_release(&mut event_loop, key)?;
        let nodes: Vec<Value> = seen.nodes.iter().map(node_json).collect();
        let mut object = json!({ "key": key, "outcome": word(released), "nodes": nodes });
        left.add_to(&mut object);
        keys.add_keys(&mut object);
        output::print(&object.to_string())?;
    } else {
        print_outcome(&options.common.output, released, &left)?;
    }
    Ok(code(released))
}

/// On which nodes the lock may be left, and for how long.
struct Left {
    /// The nodes that did not confirm the release: those that could not be asked, and those that
    /// have not answered.
    unconfirmed: Vec<String>,
    /// The longest ttl that any client uses, which is how long the keys may stay there.
    max_ttl: Duration,
    several_keys: bool,
}

impl Left {
    fn after(event_loop: &EventLoop, asked: NodeSet, options: &Options) -> Left {
        let unsettled: NodeSet = event_loop.unsettled().collect();
        let nodes = event_loop.engine.coordinator().settings().nodes.iter().enumerate();
        let confirmed = asked.minus(unsettled);
        let unconfirmed = nodes.filter(|&(index, _)| !confirmed.contains(NodeId::new(index)));
        let unconfirmed = unconfirmed.map(|(_, node)| node.label.to_string()).collect();
        let several_keys = options.keys.keys.len() > 1;
        Left { unconfirmed, max_ttl: options.common.timing.max_ttl, several_keys }
    }

    /// Adds the nodes, and until when the keys may stay there. That moment includes the drift of
    /// the nodes' clocks, as the quarantine of the restart guard does.
    fn add_to(&self, object: &mut Value) {
        let is_left = !self.unconfirmed.is_empty();
        let until = || wall_clock::unix_ms(RestartGuard::quarantine(self.max_ttl));
        object["unconfirmed"] = json!(self.unconfirmed);
        object["unconfirmed_until_unix_ms"] = json!(is_left.then(until));
    }

    fn in_words(&self) -> Option<String> {
        let (nodes, max_ttl) = (self.unconfirmed.join(", "), self.max_ttl);
        let what = if self.several_keys { "the keys" } else { "the key" };
        let stays = format!("{what} may stay there for {max_ttl:?} at most (--max-ttl)");
        (!nodes.is_empty()).then(|| format!("no confirmation of {nodes}: {stays}"))
    }
}

/// What the nodes hold after the release.
fn inspect_after_release(
    event_loop: &mut EventLoop,
    key: &str,
) -> Result<Box<Inspection>, Refusal> {
    let op = event_loop.engine.inspect(key, 0)?;
    match event_loop.end_of(op)? {
        Outcome::Inspected(seen) => Ok(seen),
        other => unreachable!("a look ended as {other:?}"),
    }
}

fn print_outcome(output: &Output, released: ReleaseOutcome, left: &Left) -> Result<(), Refusal> {
    if output.quiet {
        return Ok(());
    }
    let text = match released {
        ReleaseOutcome::Released => None,
        ReleaseOutcome::AlreadyExpired => Some("already expired: the key was gone"),
        ReleaseOutcome::TakenByOther => Some("taken by other: another client has the key now"),
        ReleaseOutcome::Unconfirmed { .. } => Some(
            "unconfirmed: too few nodes answered in time to know whether the token held the key",
        ),
    };
    if text.is_none() {
        output::print("released")?;
    }
    let lines = text.map(str::to_owned).into_iter().chain(left.in_words());
    lines.for_each(|line| output::complain(&format!("redlatch: {line}")));
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
