//! `redlatch acquire`: takes the lock, prints its token, and leaves it held.

use std::process::ExitCode;

use crate::arguments::{Key, Nodes, Output, Timing};
use crate::output::Refusal;

const EXAMPLES: &str = "\
Examples:
  token=$(redlatch acquire -t 60s deploy) || exit
  ./step-1
  redlatch extend -t 60s deploy \"$token\" || exit
  ./step-2
  redlatch release deploy \"$token\"

Nobody renews it in between: unless it is extended in time, it is over after its ttl. To run one \
command, exec is the better way: it renews, and stops the command when the lock is lost.";

/// Take the lock, print its token, exit: for scripts
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Options {
    #[command(flatten)]
    pub key: Key,
    #[command(flatten)]
    pub nodes: Nodes,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    Refusal::internal("acquire is not there yet").tell(&options.output)
}
