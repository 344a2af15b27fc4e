//! `redlatch doctor`: do these nodes meet what Redlock assumes of them?

use std::process::ExitCode;

use crate::arguments::{Nodes, Output, Timing};
use crate::output::Refusal;

/// Look whether these nodes are fit for locks
#[derive(Debug, clap::Args)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub nodes: Nodes,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    Refusal::internal("doctor is not there yet").tell(&options.output)
}
