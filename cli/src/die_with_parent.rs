//! The hidden verb through which is started what must not outlive redlatch (CMD, and the demo's
//! servers): it asks the kernel to kill it together with redlatch, looks whether redlatch still
//! lives, and becomes that program.
//!
//! It is a program of its own, and no code between fork and exec, so that nothing here is unsafe.
//! The hazard is a redlatch that dies before the kernel was asked: hence the look behind it.
//! What the kernel does holds for the program alone: not for what it starts (a fork clears it), and
//! not for one that takes on another user's rights (set-user-ID, as sudo has it).

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::exit;
use crate::output::{complain, words};

/// What the first argument is where this verb is meant. It is no verb of the parser's, so that it
/// is in no help, completion or manual.
const VERB: &str = "__become";

/// The command that becomes `program` with those words, the first of which is its name. Start it
/// from the first thread: it is killed when the thread that started it ends.
pub fn command(program: &Path, command: &[OsString]) -> Command {
    // Not by its path: the file there may have been replaced since.
    let mut die_with_parent = Command::new("/proc/self/exe");
    die_with_parent.arg0("redlatch").arg(VERB).arg(std::process::id().to_string());
    die_with_parent.arg(program).args(command);
    die_with_parent
}

/// Becomes a command, where that is what this process was started for.
pub fn become_command() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != VERB {
        return None;
    }
    let parent = arguments.next()?.into_string().ok()?.parse().ok()?;
    let (program, name) = (arguments.next()?, arguments.next()?);
    if let Err(error) = die_with(parent) {
        let program = Path::new(&program).display();
        complain(&format!("redlatch: {program} would outlive redlatch: {}", words(&error)));
        return Some(ExitCode::from(exit::INTERNAL));
    }
    let error = Command::new(&program).arg0(name).args(arguments).exec();
    let program = Path::new(&program).display();
    complain(&format!("redlatch: {program}: cannot be run: {}", words(&error)));
    let not_found = error.kind() == io::ErrorKind::NotFound;
    Some(ExitCode::from(if not_found { exit::NOT_FOUND } else { exit::CANNOT_RUN }))
}

/// This process is killed when the thread that started it ends: the parent's first.
fn die_with(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::other("it is gone"))
    }
}
