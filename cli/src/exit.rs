//! How the tool ends: the table of exit codes by name, which error gets which, and what is said
//! when the arguments are not understood.

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use redlatch::Error;

use crate::nodes;
use crate::output::{self, Refusal};

/// Done; free; healthy.
pub const DONE: u8 = 0;
/// `status`: held. `extend`, `release`: the token does not hold the key. `doctor`: a failure.
pub const NO: u8 = 1;
/// No quorum of nodes could answer.
pub const NO_QUORUM: u8 = 69;
/// Another client holds the lock and the wait ran out.
pub const CONTENDED: u8 = 75;
/// The lock was lost, and the command was stopped.
pub const LOST: u8 = 124;
/// Usage, configuration or internal error, and what the argument parser refuses.
pub const INTERNAL: u8 = 125;
/// The command cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// The command is not found.
pub const NOT_FOUND: u8 = 127;

/// The exit code of an end by this signal.
pub const fn by_signal(signal: i32) -> u8 {
    128 + (signal & 0x7f) as u8
}

/// The exit code of a lock that could not be acquired, extended or inspected.
pub fn of(error: &Error) -> u8 {
    match error {
        Error::Contended(_) => CONTENDED,
        // If a majority grants so late that nothing of the ttl is left, it did not answer in time.
        Error::NoQuorum(_) | Error::Expired(_) => NO_QUORUM,
        Error::Lost { .. } => NO,
        _ => INTERNAL,
    }
}

/// The exit code if the parser did not go on; prints its message. Help and the version are no
/// error.
pub fn not_understood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // The help is in colours on a terminal. If the reader has left, there is nothing to do.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    output::complain(nodes::without_passwords(&error.render().to_string()).trim_end());
    tip(error).into_iter().for_each(output::complain);
    ExitCode::from(INTERNAL)
}

/// A line for words that other tools have for ours, and for a token that was left out.
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

/// The end of a verb that only prints.
pub fn with(printed: Result<(), Refusal>) -> ExitCode {
    match printed {
        Ok(()) => ExitCode::from(DONE),
        Err(refusal) => {
            output::complain(&format!("redlatch: {}", refusal.message));
            ExitCode::from(refusal.code)
        }
    }
}
