//! How the tool ends: the exit codes by name, the exit code of each error, and what is printed if
//! the arguments are wrong.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use redlatch::Error;

use crate::nodes;
use crate::output::{self, Refusal};

/// The verb succeeded. `status`: the lock is free. `doctor`: the nodes are healthy.
pub const DONE: u8 = 0;
/// `status`: the lock is held. `extend`, `release`: the token does not hold the key. `doctor`: a
/// check failed.
pub const NO: u8 = 1;
/// No quorum of nodes could answer.
pub const NO_QUORUM: u8 = 69;
/// Another client holds the lock and the wait ran out.
pub const CONTENDED: u8 = 75;
/// The lock was lost, and the command was stopped.
pub const LOST: u8 = 124;
/// An error of usage (also one that the argument parser finds) or configuration, or an internal
/// one.
pub const INTERNAL: u8 = 125;
/// The command cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// The command is not found.
pub const NOT_FOUND: u8 = 127;

/// The exit code that shells use for a process that this signal ended.
pub const fn by_signal(signal: i32) -> u8 {
    128 + (signal & 0x7f) as u8
}

/// The exit code of a lock that could not be acquired, extended or inspected.
pub fn of(error: &Error) -> u8 {
    match error {
        Error::Contended(_) => CONTENDED,
        // `Expired` means that a majority granted so late that nothing of the ttl was left.
        Error::NoQuorum(_) | Error::Expired(_) => NO_QUORUM,
        Error::Lost { .. } => NO,
        _ => INTERNAL,
    }
}

/// Prints the parser's message, and returns the exit code. Help and the version are no error.
pub fn not_understood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // `print` uses colours on a terminal. If stdout has no reader, nothing can be done.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    output::complain(nodes::without_passwords(&error.render().to_string()).trim_end());
    tip(error).into_iter().for_each(output::complain);
    ExitCode::from(INTERNAL)
}

/// A tip for verbs by which other tools call ours, and for a token that was left out.
fn tip(error: &clap::Error) -> Option<&'static str> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match text(ContextKind::InvalidSubcommand) {
        Some("lock" | "run" | "with") => Some(
            "tip: `redlatch exec KEY CMD` runs a command under the lock; `redlatch acquire KEY` \
             takes it for a script",
        ),
        Some("unlock") => Some("tip: `redlatch release KEY TOKEN` releases a lock"),
        Some("renew") => Some("tip: `redlatch extend KEY TOKEN` extends a lock"),
        _ if text(ContextKind::InvalidArg) == Some("<TOKEN>") => Some(
            "tip: the last word is the token that `redlatch acquire` printed; if that is a key, \
             its token is missing after it",
        ),
        _ => None,
    }
}

/// The exit code of a verb that only prints. Reports the error if printing failed.
pub fn with(printed: Result<(), Refusal>) -> ExitCode {
    match printed {
        Ok(()) => ExitCode::from(DONE),
        Err(refusal) => {
            output::complain(&format!("redlatch: {}", refusal.message));
            ExitCode::from(refusal.code)
        }
    }
}
