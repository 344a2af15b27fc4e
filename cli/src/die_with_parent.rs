//! The hidden verb that starts programs which must not outlive redlatch: CMD, and the demo's
//! servers. The new process asks the kernel to kill it when redlatch ends, checks that redlatch
//! still runs, and then replaces itself by the program.
//!
//! Doing this in a verb of our own, and not in a hook between fork and exec, needs no unsafe code.
//! The hazard is a redlatch that dies before the kernel was asked. So the check comes after the
//! request. The kernel kills only the program itself: not what the program starts (a fork clears
//! the request), and not a program that takes on another user's rights (set-user-ID, like sudo).

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use crate::exit;
use crate::output::{complain, error_text};

/// The name of the hidden verb. The parser does not know it, so no help, completion or manual shows
/// it.
const VERB: &str = "__become";

/// Returns a command that starts `program` with `command` as its arguments; the first is its name.
/// Start it from the main thread, because the kernel kills it when the starting thread ends.
pub fn command(program: &Path, command: &[OsString]) -> Command {
    // redlatch starts itself by /proc/self/exe, because the file at its path may have been
    // replaced.
    let mut die_with_parent = Command::new("/proc/self/exe");
    die_with_parent.arg0("redlatch").arg(VERB).arg(std::process::id().to_string());
    die_with_parent.arg(program).args(command);
    die_with_parent
}

/// If this process was started with the hidden verb, replaces it by the program, and returns only
/// if that fails: the exit code. Returns `None` if the process was started with another verb.
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
            error_text(&error)
        ));
        return Some(ExitCode::from(exit::INTERNAL));
    }
    let error = Command::new(&program).arg0(name).args(arguments).exec();
    let program = Path::new(&program).display();
    complain(&format!("redlatch: {program}: cannot be run: {}", error_text(&error)));
    let not_found = error.kind() == io::ErrorKind::NotFound;
    Some(ExitCode::from(if not_found { exit::NOT_FOUND } else { exit::CANNOT_RUN }))
}

/// Asks the kernel to kill this process when the thread that started it ends (the parent's main
/// thread). Fails if the parent has already ended.
fn die_with(parent: i32) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().map(Pid::as_raw_pid) == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::other("it is gone"))
    }
}
