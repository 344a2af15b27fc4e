//! Whose process group CMD is in, and what follows from that for signals of the terminal.
//!
//! The hazard is a signal that arrives twice. A terminal sends ctrl-C to every process of its
//! foreground group, so if CMD is in our group, it had that signal already.

use std::io::{self, IsTerminal};

use rustix::process::{Signal, getpid, kill_process};

use super::signals::Caught;

/// The process group that CMD is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A group of its own, with everything that CMD starts: they are signalled together.
    OwnGroup,
    /// Our group, so that CMD may read the terminal and the shell's job control sees one job. Other
    /// processes of the same pipeline may be in it, so signals are passed on to CMD alone.
    OurGroup,
}

impl Place {
    /// Where CMD belongs: in our group on a terminal, or if `foreground` is set.
    pub fn of_command(foreground: bool) -> Place {
        let terminal = io::stdin().is_terminal();
        if foreground || terminal { Place::OurGroup } else { Place::OwnGroup }
    }

    /// Whether a signal that we caught has to be passed on to CMD. The kernel sends typed signals,
    /// and SIGWINCH, to the whole group. It sends a SIGHUP of the terminal only to the session's
    /// first process.
    pub fn passes_on(self, caught: &Caught) -> bool {
        let to_all = [Signal::INT, Signal::QUIT, Signal::TSTP, Signal::WINCH];
        let had_it = caught.by_kernel && to_all.contains(&caught.signal);
        self == Place::OwnGroup || !had_it
    }

    /// Whether we stop too when `signal` stopped CMD. In our group the shell waits for us, and goes
    /// on when both have stopped.
    pub fn stops_with(self, signal: Signal) -> bool {
        let of_terminal = matches!(signal, Signal::TSTP | Signal::TTIN | Signal::TTOU);
        self == Place::OurGroup && of_terminal
    }
}

/// Stops this process until another process continues it. The lock is not renewed meanwhile.
pub fn stop_ourselves() {
    // This fails only if the process does not exist.
    let _ = kill_process(getpid(), Signal::STOP);
}
