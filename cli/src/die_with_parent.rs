//! The hidden verb that starts what must not outlive redlatch (CMD, and the demo's servers). It
//! asks the kernel to kill this process together with redlatch, checks that redlatch still lives,
//! and becomes that program.
//!
//! The verb is a program of its own, and no code between fork and exec, so that nothing here is
//! unsafe. The hazard is a redlatch that dies before the kernel was asked: so the check comes
//! afterwards. The kernel's promise holds for the program alone. It does not hold for what the
//! program starts (a fork clears it), nor for a program that takes on another user's rights
//! (set-user-ID, as sudo has it).
//! has it).

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::exit;
use crate::output::{complain, words};

/// The first argument that means this verb. The parser does not know it, so that it is in no help,
/// completion or manual.
const VERB: &str = "__become";

/// The command that becomes `program` with these words, the first of which is its name. Start it
/// from the first thread: it is killed when the thread that started it ends.
pub fn command(program: &Path, command: &[OsString]) -> Command {
    // The program is found by /proc/self/exe, because the file at its path may have been replaced.
    let mut die_with_parent = Command::new("/proc/self/exe");
    die_with_parent.arg0("redlatch").arg(VERB).arg(std::process::id().to_string());
    die_with_parent.arg(program).args(command);
    die_with_parent
}

/// Becomes a command, if this process was started for that.
pub fn become_command() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != VERB {
        return None;
    }
    let parent = arguments.next()?.into_string().ok()?.parse().ok()?;
    let (program, name) = (arguments.next()?, arguments.next()?);
    if let Err(error) = die_with(parent) {
        let program = Path::new(&program).display();
        complain(&format!(
            "redlatch: {program}: it cannot be tied to redlatch's life: {}",
            words(&error)
        ));
        return Some(ExitCode::from(exit::INTERNAL));
    }
    let error = Command::new(&program).arg0(name).args(arguments).exec();
    let program = Path::new(&program).display();
    complain(&format!("redlatch: {program}: cannot be run: {}", words(&error)));
    let not_found = error.kind() == io::ErrorKind::NotFound;
    Some(ExitCode::from(if not_found { exit::NOT_FOUND } else { exit::CANNOT_RUN }))
}

/// The kernel kills this process when the thread that started it ends: the parent's first.
fn die_with(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::other("it is gone"))
    }
}
