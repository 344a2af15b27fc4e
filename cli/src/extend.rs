//! `redlatch extend`: extends a lock by its key and token, whichever process acquired it.

use std::process::ExitCode;

use redlatch::{LockToken, Outcome, clock};
use serde_json::json;

use crate::arguments::{Common, Keys, token};
use crate::event_loop::{EventLoop, Patience};
use crate::exit;
use crate::look::time;
use crate::node_events;
use crate::nodes;
use crate::output::{self, Refusal};
use crate::wall_clock::{self, micros, millis};

const EXAMPLES: &str = "\
Examples:
  redlatch extend -t 60s deploy \"$token\" || echo 'the lock is lost: stop here'
  redlatch extend -t 60s account:7 account:9 \"$token\"

Exit codes: 0 the lock is yours for longer, 1 the token does not hold the key (any more), 69 no \
quorum of nodes could answer, 125 usage or configuration.";

/// Prolong a lock by its token
///
/// Prolongs the lock on KEY to at least --ttl from now, if TOKEN holds it. A token that does not
/// hold it changes nothing. Several KEYs are prolonged together: each node prolongs all of them, or
/// none if one of them is lost.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
#[command(mut_arg("no_quorum_wait", |arg| arg.hide(true)))]
#[command(mut_arg("no_restart_guard", |arg| arg.hide(true)))]
#[command(mut_arg("check_members", |arg| arg.hide(true)))]
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
    output::end(extend(options).map(|()| exit::DONE), &options.common.output)
}

fn extend(options: &Options) -> Result<(), Refusal> {
    let start = clock::now();
    let (key, ttl) = (&options.keys.keys[0], options.common.timing.ttl);
    let keys = options.keys.named()?;
    let mut event_loop =
        EventLoop::new(nodes::config(&options.common.nodes, &options.common.timing)?)?;
    event_loop.gather(Patience::Thorough, |_| false)?;
    node_events::mention(&mut event_loop, &options.common.output);
    let op = event_loop.engine.extend_token(keys.set(), options.token.clone(), ttl, 0)?;
    let deadline = match event_loop.end_of(op)? {
        Outcome::Extended { deadline } => deadline,
        other => unreachable!("an extend ended as {other:?}"),
    };
    let now = clock::now();
    let remaining = deadline.saturating_since(now);
    if options.common.output.json {
        let mut object = json!({
            "key": key,
            "token": options.token.to_string(),
            "deadline_unix_ms": wall_clock::unix_ms(remaining),
            "remaining_ms": millis(remaining),
            "elapsed_us": micros(now.saturating_since(start)),
        });
        keys.add_keys(&mut object);
        return output::print(&object.to_string());
    }
    if options.common.output.quiet {
        Ok(())
    } else {
        output::print(&format!("extended: {} left", time(remaining)))
    }
}
