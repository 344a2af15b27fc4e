//! The signals that redlatch gets, as events of the loop, and whether a process or the kernel sent
//! them.
//!
//! `signal_hook_mio` does the same, but loses the kernel's information on each signal, which this
//! file keeps. Only that distinguishes ctrl-C on the terminal, which CMD gets from the kernel, from
//! a `kill -INT` to redlatch alone.
//!
//! The hazard is a signal that redlatch was started to ignore (`nohup`, a shell's background job).
//! redlatch and CMD have to go on ignoring it, so redlatch does not listen to it.

use std::io;
use std::os::fd::OwnedFd;

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use rustix::process::Signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

use super::terminal::stop_ourselves;
use crate::signals::ignored;

/// The poller's token for the signals.
pub const SIGNALS: Token = Token(1);

/// The signals that redlatch listens to: those that it passes on to CMD, SIGTSTP, which stops it,
/// and SIGCHLD.
const LISTENED_TO: [Signal; 10] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
    Signal::TSTP,
    Signal::CHILD,
];

/// A signal that was caught.
#[derive(Debug, Clone, Copy)]
pub struct Caught {
    pub signal: Signal,
    /// The kernel sent this signal for a terminal, and not a process.
    pub by_kernel: bool,
}

impl Caught {
    /// Whether the signal ends redlatch while there is no CMD.
    pub fn ends(&self) -> bool {
        matches!(self.signal, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT)
    }
}

/// The signals.
#[derive(Debug)]
pub struct Signals(SignalDelivery<UnixStream, WithRawSiginfo>);

impl Signals {
    /// Listens from now on; signals are events of the poller.
    pub fn listen(registry: &Registry) -> io::Result<Signals> {
        let ignored = ignored();
        // redlatch has to see how children end, so it takes SIGCHLD even if its parent ignored it.
        let wanted =
            |signal: &Signal| *signal == Signal::CHILD || ignored >> (signal.as_raw() - 1) & 1 == 0;
        let numbers = LISTENED_TO.into_iter().filter(wanted).map(Signal::as_raw);
        let (mut read, write) = UnixStream::pair()?;
        registry.register(&mut read, SIGNALS, Interest::READABLE)?;
        let write = OwnedFd::from(write);
        Ok(Signals(SignalDelivery::with_pipe(read, write, WithRawSiginfo, numbers)?))
    }

    /// The signals that were caught since the last call.
    pub fn caught(&mut self) -> Vec<Caught> {
        let pending = self.0.pending().filter_map(|info| {
            let signal = Signal::from_named_raw(info.si_signo)?;
            Some(Caught { signal, by_kernel: info.si_code > 0 })
        });
        pending.collect()
    }

    /// The signal that ends redlatch, if one came. After a SIGTSTP this call stops the process, and
    /// goes on when it is continued.
    pub fn ending(&mut self) -> Option<Signal> {
        let caught = self.caught();
        if caught.iter().any(|caught| caught.signal == Signal::TSTP) {
            stop_ourselves();
        }
        caught.iter().find(|caught| caught.ends()).map(|caught| caught.signal)
    }
}
