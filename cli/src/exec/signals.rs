//! The signals that reach us, as events of the loop, and who sent them.
//!
//! It is what `signal_hook_mio` makes of a pipe and the handlers of signal_hook, but with what the
//! kernel says of each signal: only that tells ctrl-C on our terminal, which CMD gets by itself,
//! from a `kill -INT` by somebody who knows only us.
//! The hazard is a signal that we were started to ignore (`nohup`, a shell's background job): it
//! stays ignored, by CMD as well, and so it is not listened to.

use std::io;
use std::os::fd::OwnedFd;

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use rustix::process::Signal;
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::raw::WithRawSiginfo;

use crate::signals::ignored;

/// The token of the signals on the poller.
pub const SIGNALS: Token = Token(1);

/// What is listened to: what reaches CMD, what stops us, and what becomes of children.
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
    /// No process sent it: it is a terminal's.
    pub by_kernel: bool,
}

impl Caught {
    /// Whether it ends redlatch while there is no CMD.
    pub fn ends(&self) -> bool {
        matches!(self.signal, Signal::TERM | Signal::INT | Signal::HUP | Signal::QUIT)
    }
}

/// The signals.
#[derive(Debug)]
pub struct Signals(SignalDelivery<UnixStream, WithRawSiginfo>);

impl Signals {
    /// Listens from now on, and tells the poller.
    pub fn listen(registry: &Registry) -> io::Result<Signals> {
        let ignored = ignored();
        // How children end is needed whoever started us: an ignored SIGCHLD would lose it.
        let wanted =
            |signal: &Signal| *signal == Signal::CHILD || ignored >> (signal.as_raw() - 1) & 1 == 0;
        let numbers = LISTENED_TO.into_iter().filter(wanted).map(Signal::as_raw);
        let (mut read, write) = UnixStream::pair()?;
        registry.register(&mut read, SIGNALS, Interest::READABLE)?;
        let write = OwnedFd::from(write);
        Ok(Signals(SignalDelivery::with_pipe(read, write, WithRawSiginfo, numbers)?))
    }

    /// What was caught since it was asked last.
    pub fn caught(&mut self) -> Vec<Caught> {
        let pending = self.0.pending().filter_map(|info| {
            let signal = Signal::from_named_raw(info.si_signo)?;
            Some(Caught { signal, by_kernel: info.si_code > 0 })
        });
        pending.collect()
    }
}
