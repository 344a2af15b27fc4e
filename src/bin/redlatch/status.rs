//! `redlatch status`: what every node holds, and what they say together.

use std::process::ExitCode;

use crate::arguments::{Nodes, Output, Timing};
use crate::output::Refusal;

/// What every node says, and the verdict
#[derive(Debug, clap::Args)]
#[command(mut_arg("ttl", |arg| arg.hide(true)))]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
pub struct Options {
    /// The locks to look at; none: the nodes themselves
    #[arg(value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub keys: Vec<String>,

    #[command(flatten)]
    pub nodes: Nodes,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    Refusal::internal("status is not there yet").tell(&options.output)
}
