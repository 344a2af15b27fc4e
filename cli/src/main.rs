//! The entry point: runs the verb. Several verbs use `arguments`, `nodes`, `event_loop`, `output`
//! and `exit`.
#![forbid(unsafe_code)]
#![warn(clippy::unwrap_used)]

mod acquire;
mod arguments;
mod bench;
mod completions;
mod config_file;
mod connection;
mod demo;
mod die_with_parent;
mod doctor;
mod elect;
mod event_loop;
mod exec;
mod exit;
mod extend;
mod force_release;
mod hold;
mod holder;
mod init;
mod key_names;
mod key_state;
mod kit;
mod leader;
mod leading;
mod list;
mod lock_wait;
mod look;
mod man;
mod members;
mod node_events;
mod nodes;
mod output;
mod presence;
mod release;
mod resign;
mod signals;
mod status;
mod suspend;
mod table;
mod top;
mod variables;
mod wait;
mod wall_clock;
mod writable;

use std::process::ExitCode;

use arguments::Verb;

fn main() -> ExitCode {
    // This comes first: another redlatch may have started this process to run CMD, while its lock
    // runs out.
    if let Some(code) = die_with_parent::become_command() {
        return code;
    }
    if let Some(code) = bench::election::candidate::run_if_asked() {
        return code;
    }
    let words = leading::after_verb(std::env::args_os().collect(), variables::command);
    let verb = match variables::parse(words) {
        Ok(arguments) => arguments.verb,
        Err(code) => return code,
    };
    match verb {
        Verb::Exec(options) => exec::run(&options),
        Verb::Hold(options) => hold::run(&options),
        Verb::Elect(options) => elect::run(&options),
        Verb::Acquire(options) => acquire::run(&options),
        Verb::Extend(options) => extend::run(&options),
        Verb::Release(options) => release::run(&options),
        Verb::ForceRelease(options) => force_release::run(&options),
        Verb::Wait(options) => wait::run(&options),
        Verb::Status(options) => status::run(&options),
        Verb::Leader(options) => leader::run(&options),
        Verb::Resign(options) => resign::run(&options),
        Verb::List(options) => list::run(&options),
        Verb::Top(options) => top::run(&options),
        Verb::Doctor(options) => doctor::run(&options),
        Verb::Members(options) => members::run(&options),
        Verb::Init(options) => init::run(&options),
        Verb::Bench(options) => bench::run(&options),
        Verb::Demo(options) => demo::run(&options),
        Verb::Completions(options) => completions::run(&options),
        Verb::Man(options) => man::run(&options),
    }
}
