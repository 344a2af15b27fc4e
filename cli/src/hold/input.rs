//! The end of stdin, as an event of the loop. What stdin says is read and dropped.
//!
//! Two hazards. A file or `/dev/null` is at its end from the start; it says nothing about whoever
//! started us, so it is not watched (the poller refuses both). And a background process that reads
//! its terminal is stopped by it, so a terminal is read only in the foreground.

use std::io::IsTerminal;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsRawFd;
use rustix::io::Errno;
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;

/// The poller's token for stdin.
const INPUT: Token = Token(4);

/// Stdin, if its end means something.
#[derive(Debug)]
pub struct Input {
    watched: bool,
}

impl Input {
    /// Watches stdin: from now on its end wakes the poller.
    pub fn watch(registry: &Registry) -> Input {
        let stdin = rustix::stdio::stdin().as_raw_fd();
        let watched = registry.register(&mut SourceFd(&stdin), INPUT, Interest::READABLE).is_ok();
        Input { watched }
    }

    /// Reads what stdin has, drops it, and returns whether stdin has come to its end. Never waits,
    /// and leaves the mode of the file as it is, because other programs share it.
    pub fn read_to_its_end(&mut self) -> bool {
        let mut dropped = [0; 4096];
        while self.watched && may_be_read() {
            match rustix::io::read(rustix::stdio::stdin(), &mut dropped) {
                Ok(0) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                // The terminal is gone.
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
