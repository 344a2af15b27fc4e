//! The signals that reach us, as events of the loop, and whether a process or the kernel sent them.
//!
//! `signal_hook_mio` does the same with a pipe and the handlers of signal_hook. Here the kernel's
//! information on each signal is kept. Only that distinguishes ctrl-C on our terminal, which CMD
//! gets by itself, from a `kill -INT` by a sender that knows only our process.
//!
//! The hazard is a signal that we were started to ignore (`nohup`, a shell's background job). It
//! stays ignored, by CMD as well, and so we do not listen to it.

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

/// The signals that we listen to: those that reach CMD, those that stop us, and SIGCHLD.
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
    /// No process sent it: it comes from a terminal.
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

    /// The signal that ends redlatch, if one came. A signal that stops redlatch stops it here.
    pub fn ending(&mut self) -> Option<Signal> {
        let caught = self.caught();
        if caught.iter().any(|caught| caught.signal == Signal::TSTP) {
            stop_ourselves();
        }
        caught.iter().find(|caught| caught.ends()).map(|caught| caught.signal)
    }
}
