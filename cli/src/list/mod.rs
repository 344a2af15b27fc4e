//! `redlatch list`: prints the locks that are held, and who holds them. Changes nothing.
//!
//! First `scan` asks the nodes for their keys. Then each key that has a token on any node is
//! inspected on all nodes, as `status` does.
//!
//! The hazard is to take the list for a snapshot. The nodes are read in portions, so a lock that
//! was acquired or released meanwhile may be listed or not.

mod rows;
mod scan;

use std::process::ExitCode;

use redlatch::{Error, NodeId, clock, majority};
use serde_json::Value;

use crate::arguments::Common;
use crate::event_loop::{EventLoop, Patience};
use crate::look::Colours;
use crate::nodes::config;
use crate::output::{self, Refusal};
use crate::status::inspected;
use crate::{exit, node_events};

pub use rows::{held, objects, text};
pub use scan::{Found, MOST_LOCKS, Source, scan};

const EXAMPLES: &str = "\
Examples:
  redlatch list                            all locks
  redlatch list 'invoice:*'                those whose keys begin with invoice:
  redlatch list --json | jq -r '.[] | select(.remaining_ms > 3600000).key'

Exit codes: 0 listed, also if there is no lock; 69 fewer than a quorum of nodes could be asked, \
so locks may be missing; 125 usage or configuration.";

/// The locks that are held: key, holder, nodes, time left, waiters
///
/// Lists every key that has a lock's token on any node. A node walks over all keys of its database
/// for that, in portions. It changes nothing, and what it saw may be over when you read it.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub pattern: Pattern,

    #[command(flatten)]
    pub common: Common,
}

/// Which keys.
#[derive(Debug, clap::Args)]
pub struct Pattern {
    /// The keys to list, as a pattern: * is any text, ? any byte, [ab] one of these
    ///
    /// Put it in quotes: a shell replaces it by the names of files. The prefix of --key-prefix
    /// stands before it.
    #[arg(value_name = "PATTERN", default_value = "*", hide_default_value = true)]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub pattern: String,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    output::end(list(options), &options.common.output)
}

fn list(options: &Options) -> Result<u8, Refusal> {
    let (how, pattern) = (&options.common.output, &options.pattern.pattern);
    let config = config(&options.common.nodes, &options.common.timing)?;
    let prefix = config.get_settings().key_prefix.clone();
    let mut sources = Source::all(&config);
    let found = scan(&mut sources, &prefix, pattern);
    let mut event_loop = EventLoop::new(config)?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    let keys: Vec<&Vec<u8>> = found.keys.iter().take(MOST_LOCKS).collect();
    let locks = held(inspected(&mut event_loop, &keys)?);
    node_events::mention(&mut event_loop, how);
    if how.json {
        output::print(&Value::from(objects(&locks)).to_string())?;
    } else if !how.quiet && !locks.is_empty() {
        output::print(text(&locks, Colours::on(&std::io::stdout())).trim_end())?;
    }
    let (all, listed) = (sources.len(), sources.len() - found.troubles.len());
    let is_quorum = is_quorum_usable(&event_loop);
    if !how.quiet {
        complaints(&found).iter().for_each(|line| output::complain(line));
        if locks.is_empty() && found.troubles.is_empty() && is_quorum && !how.json {
            output::complain("redlatch: no lock is held");
        }
    }
    if !is_quorum && !how.quiet {
        let core = event_loop.engine.coordinator();
        let error = Error::NoQuorum(core.report_node_states(clock::now()));
        output::complain(&format!("redlatch: {error}"));
    }
    Ok(if is_quorum && listed >= majority(all) { exit::DONE } else { exit::NO_QUORUM })
}

/// Whether a quorum of nodes can be asked what they hold. If not, it is not known who holds a lock.
pub fn is_quorum_usable(event_loop: &EventLoop) -> bool {
    let core = event_loop.engine.coordinator();
    let all = core.settings().nodes.len();
    let usable = (0..all).filter(|&node| core.node_state(NodeId::new(node)).is_usable()).count();
    usable >= majority(all)
}

/// Why locks may be missing from the list, one line for each reason.
pub fn complaints(found: &Found) -> Vec<String> {
    let trouble = |(label, trouble): &(String, crate::connection::Trouble)| {
        format!("redlatch: {label}: its keys are not listed: {}", trouble.in_words())
    };
    let cut = format!(
        "redlatch: there are more than {MOST_LOCKS} locks, and not all are listed; give a PATTERN"
    );
    found.troubles.iter().map(trouble).chain(found.is_cut.then_some(cut)).collect()
}
