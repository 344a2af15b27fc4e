//! `redlatch extend`: by key and token, whoever took the lock.

use std::process::ExitCode;

use redlatch::Token;

use crate::arguments::{Key, Nodes, Output, Timing, token};
use crate::output::Refusal;

/// Extend a lock by its token
#[derive(Debug, clap::Args)]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
pub struct Options {
    #[command(flatten)]
    pub key: Key,

    /// What acquire printed
    #[arg(value_name = "TOKEN", value_parser = token)]
    pub token: Token,

    #[command(flatten)]
    pub nodes: Nodes,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    Refusal::internal("extend is not there yet").tell(&options.output)
}
