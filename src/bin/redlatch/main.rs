//! The command line: which verb is asked for, and what the exit codes mean.
#![forbid(unsafe_code)]

mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Usage, configuration or internal errors, and what the argument parser refuses.
const EXIT_INTERNAL: u8 = 125;

/// Distributed locks over N independent Redis masters.
#[derive(Debug, Parser)]
#[command(name = "redlatch", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(demo::Options),
}

fn main() -> ExitCode {
    match Arguments::try_parse() {
        Ok(Arguments { verb: Verb::Demo(options) }) => demo::run(&options),
        Err(error) => {
            // Where a reader of the help has left there is nobody to tell.
            let _ = error.print();
            let is_help = !error.use_stderr();
            if is_help { ExitCode::SUCCESS } else { ExitCode::from(EXIT_INTERNAL) }
        }
    }
}
