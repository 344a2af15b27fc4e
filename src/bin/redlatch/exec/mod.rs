//! `redlatch exec`: a command that runs while the lock is held.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use crate::arguments::{Key, Nodes, Output, Timing, duration};
use crate::output::Refusal;

const EXAMPLES: &str = "\
Examples:
  redlatch exec nightly-report -- /usr/local/bin/report --all
  redlatch exec -n deploy -- ./deploy.sh          do not wait: 75 if somebody else has it
  redlatch exec -w 5m -t 1m migrate -- ./migrate  wait for 5 minutes at most

CMD gets REDLATCH_KEY, REDLATCH_TOKEN, REDLATCH_TTL_MS, REDLATCH_DEADLINE_UNIX_MS and \
REDLATCH_NODES in its environment, and no password.";

/// Run a command while holding the lock
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    pub key: Key,

    /// The command, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<OsString>,

    /// The exit code where someone else holds the lock and the wait ran out
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::CONTENDED)]
    pub conflict_exit_code: u8,

    /// How long before the deadline CMD is told to stop [default: 5s, at most a third of the ttl]
    #[arg(long, value_name = "DUR", value_parser = duration)]
    pub grace: Option<Duration>,

    /// What happens to CMD when the lock is lost
    #[arg(long, value_name = "HOW", value_enum, default_value_t = OnLost::Term)]
    pub on_lost: OnLost,

    /// Do not renew the lock: CMD has one ttl
    #[arg(long)]
    pub no_renew: bool,

    /// The longest time that the lock is held, however long CMD runs; or none
    #[arg(long, value_name = "DUR", value_parser = max_hold, default_value = "24h")]
    pub max_hold: MaxHold,

    /// Leave CMD in our process group, and signal it alone: for commands that read the terminal
    #[arg(long)]
    pub foreground: bool,

    #[command(flatten)]
    pub nodes: Nodes,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
}

/// What happens to the command when the lock is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OnLost {
    /// SIGTERM when --grace begins, SIGKILL before the deadline
    Term,
    /// SIGKILL before the deadline, without a warning
    Kill,
    /// A warning on stderr; the command runs on
    Warn,
}

/// The longest time that the lock is held; `None`: there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxHold(pub Option<Duration>);

fn max_hold(text: &str) -> Result<MaxHold, String> {
    if text == "none" { Ok(MaxHold(None)) } else { duration(text).map(|read| MaxHold(Some(read))) }
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    Refusal::internal("exec is not there yet").tell(&options.output)
}
