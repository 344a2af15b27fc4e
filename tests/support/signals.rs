//! Starts programs that tests send signals to, as a shell starts a program in its foreground.
//!
//! The hazard is what a child inherits. A child of `nohup` ignores SIGHUP, and a shell cannot trap
//! a signal that it was started to ignore. In an orphaned process group SIGTSTP stops no process; a
//! group is orphaned when no member has a parent in another group of the same session.
#![expect(unsafe_code, reason = "a child restores its signals before it becomes another program")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The program starts with the default action for every signal, whatever this process ignores.
pub fn with_default_signals(command: &mut Command) -> &mut Command {
    let restore = || -> io::Result<()> {
        for signal in 1..=31 {
            // SAFETY: `SIG_DFL` installs no handler, and signal(2) may be called after fork().
            // For SIGKILL and SIGSTOP it fails: their actions cannot change.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec these are system calls alone; nothing is allocated or locked.
    unsafe { command.pre_exec(restore) }
}

/// Runs the command in a process group of its own. Its parent, this process, is in another group of
/// the same session, so the group is not orphaned.
pub fn in_own_group(command: &mut Command) -> &mut Command {
    with_default_signals(command).process_group(0)
}
