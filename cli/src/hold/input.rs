//! Watches for the end of stdin, which ends `hold`. The bytes of stdin are read and dropped.
//!
//! There are two hazards. A file or `/dev/null` is at its end from the start, which does not mean
//! that the parent has ended; so these are not watched (the poller refuses both). And the terminal
//! stops a background process that reads it, so a terminal is read only in the foreground.

use std::io::IsTerminal;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

/// The poller's token of stdin.
const INPUT: Token = Token(4);

/// Stdin, which is watched if it is a pipe, a socket or a terminal.
#[derive(Debug)]
pub struct Input {
    watched: bool,
}

impl Input {
    /// Watches stdin from now on, so that its end wakes the poller.
    pub fn watch(registry: &Registry) -> Input {
        let stdin = rustix::stdio::stdin().as_raw_fd();
        let watched = registry.register(&mut SourceFd(&stdin), INPUT, Interest::READABLE).is_ok();
        Input { watched }
    }

    /// Reads and drops what stdin has, and returns whether stdin is at its end. Never waits, and
    /// does not make stdin non-blocking, because other programs share it.
    pub fn read_to_its_end(&mut self) -> bool {
        let mut dropped = [0; 4096];
        while self.watched && may_be_read() {
            match rustix::io::read(rustix::stdio::stdin(), &mut dropped) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                // The terminal was closed.
                Err(_) => return true,
            }
        }
        false
    }
}

fn may_be_read() -> bool {
    let stdin = rustix::stdio::stdin();
    let mut polled = [PollFd::from_borrowed_fd(stdin, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready = poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0);
    let foreground = || tcgetpgrp(stdin).is_ok_and(|group| group == getpgrp());
    ready && (!std::io::stdin().is_terminal() || foreground())
}
