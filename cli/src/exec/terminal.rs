//! Whose process group CMD is in, and what follows from that for signals of the terminal.
//!
//! The hazard is a signal that arrives twice: a terminal sends ctrl-C to every process of the
//! group in its foreground, so where CMD is in ours it had it already.

use std::io::{self, IsTerminal};

use rustix::process::{Signal, getpid, kill_process};

use super::signals::Caught;

/// The process group that CMD is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// One of its own, which everything that it starts is in as well: they are signalled together.
    OwnGroup,
    /// Ours, so that it may read the terminal and the shell's job control sees one job. Others may
    /// be in it (of the same pipeline), so signals are passed on to CMD alone.
    OurGroup,
}

impl Place {
    /// Where CMD belongs: to us on a terminal, and where that is asked for.
    pub fn of_command(foreground: bool) -> Place {
        let terminal = io::stdin().is_terminal();
        if foreground || terminal { Place::OurGroup } else { Place::OwnGroup }
    }

    /// Whether a signal that we caught has to be passed on to CMD. What is typed on a terminal, and
    /// its new size, the kernel tells the whole group; that it was hung up, only its first process.
    pub fn passes_on(self, caught: &Caught) -> bool {
        let to_all = [Signal::INT, Signal::QUIT, Signal::TSTP, Signal::WINCH];
        let had_it = caught.by_kernel && to_all.contains(&caught.signal);
        self == Place::OwnGroup || !had_it
    }

    /// Whether we stop when CMD was stopped by `signal`: in our group the shell waits for us, and
    /// goes on when both have stopped.
    pub fn stops_with(self, signal: Signal) -> bool {
        let of_terminal = matches!(signal, Signal::TSTP | Signal::TTIN | Signal::TTOU);
        self == Place::OurGroup && of_terminal
    }
}

/// Stops this process until somebody continues it. The lock is not renewed meanwhile.
pub fn stop_ourselves() {
    // It can only fail for a process that is not there.
    let _ = kill_process(getpid(), Signal::STOP);
}
