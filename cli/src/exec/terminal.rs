//! Which process group CMD is in, and so which signals redlatch has to pass on to CMD.
//!
//! The hazard is a signal that CMD gets twice. A terminal sends ctrl-C to every process of its
//! foreground group, so if CMD is in redlatch's group, CMD already got that signal.

use std::io::{self, IsTerminal};

use rustix::process::{Signal, getpid, kill_process};

use super::signals::Caught;

/// The process group that CMD is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A group of its own: CMD and what it starts get each signal together.
    OwnGroup,
    /// redlatch's group, so that CMD may read the terminal, and the shell's job control sees one
    /// job. Other processes of the same pipeline may be in the group, so redlatch passes signals on
    /// to CMD alone.
    OurGroup,
}

impl Place {
    /// `OurGroup` if stdin is a terminal or `foreground` is set, or else `OwnGroup`.
    pub fn of_command(foreground: bool) -> Place {
        let terminal = io::stdin().is_terminal();
        if foreground || terminal { Place::OurGroup } else { Place::OwnGroup }
    }

    /// Whether a signal that redlatch caught has to be passed on to CMD. The kernel sends signals
    /// of the keyboard, and SIGWINCH, to the whole group; so a CMD in our group already got them.
    /// It sends a SIGHUP of the terminal only to the session's first process, so CMD did not get
    /// that.
    pub fn passes_on(self, caught: &Caught) -> bool {
        let to_all = [Signal::INT, Signal::QUIT, Signal::TSTP, Signal::WINCH];
        let had_it = caught.by_kernel && to_all.contains(&caught.signal);
        self == Place::OwnGroup || !had_it
    }

    /// Whether redlatch stops itself after `signal` stopped CMD. If both are in one group, the
    /// shell shows its prompt only when both have stopped.
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
