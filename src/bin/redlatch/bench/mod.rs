//! `redlatch bench`: latency and throughput of locks on the user's own nodes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::arguments::{Nodes, Output, Timing, duration};
use crate::output::Refusal;

/// Measure latency and throughput on your nodes
#[derive(Debug, clap::Args)]
#[command(mut_arg("wait", |arg| arg.hide(true)))]
#[command(mut_arg("nonblock", |arg| arg.hide(true)))]
pub struct Options {
    /// How many locks are on their way at once; several, by commas, are measured in turn
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub in_flight: Vec<usize>,

    /// How long is measured
    #[arg(long, value_name = "DUR", value_parser = duration, default_value = "10s")]
    pub duration: Duration,

    /// How many keys are taken in turn
    #[arg(long, value_name = "N")]
    pub keys: Option<usize>,

    /// Several clients that want the same key: how long they wait
    #[arg(long)]
    pub contended: bool,

    /// Draw the percentiles
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Write the percentiles as HdrHistogram does
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,

    #[command(flatten)]
    pub nodes: Nodes,
    #[command(flatten)]
    pub timing: Timing,
    #[command(flatten)]
    pub output: Output,
}

/// Runs the verb.
pub fn run(options: &Options) -> ExitCode {
    Refusal::internal("bench is not there yet").tell(&options.output)
}
