//! CMD as a process: starts it, signals it with all that belongs to it, and waits for it.
//!
//! The hazard is a process number that the system has given to another process since. So CMD is
//! signalled by its pidfd, or before it was waited for. Its group is signalled while a member of it
//! may be left.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use redlatch::clock;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    pidfd_open, pidfd_send_signal, set_child_subreaper, test_kill_process_group, wait,
};

use super::process_tree::{ProcessTree, Strangers, has_no_child};
use super::terminal::Place;
use crate::exit;

/// How long to wait, after SIGKILL, for what CMD started to be gone. That takes milliseconds.
pub const DYING: Duration = Duration::from_secs(1);

/// The poller's token for CMD's end.
const CHILD: Token = Token(2);

/// How CMD ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// CMD exited with this code.
    Exited(u8),
    /// This signal killed CMD.
    Killed(i32),
}

impl Ended {
    /// The exit code that a shell makes of it.
    pub fn code(self) -> u8 {
        match self {
            Ended::Exited(code) => code,
            Ended::Killed(signal) => exit::by_signal(signal),
        }
    }
}

/// What became of CMD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Ended(Ended),
    /// CMD does nothing until it is continued.
    Stopped(Signal),
}

/// CMD, started.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    place: Place,
    /// What CMD started. If CMD has a group of its own, only what is outside that group.
    process_tree: ProcessTree,
    ended: Option<Ended>,
    /// CMD has ended, and so has its group: the group's number may belong to a stranger.
    group_is_gone: bool,
}

impl Child {
    /// Starts CMD; its end is an event of the poller.
    pub fn start(
        mut command: std::process::Command,
        place: Place,
        registry: &Registry,
    ) -> io::Result<Child> {
        use std::os::unix::process::CommandExt;

        if place == Place::OwnGroup {
            command.process_group(0);
        }
        let strangers = Strangers::record();
        // Orphans of CMD become children of redlatch, not those of an init that may never reap
        // them. CMD's group is gone only when its last member was reaped. If this call is refused,
        // that takes longer.
        let _ = set_child_subreaper(Some(getpid()));
        let mut started = command.spawn()?;
        let pid = Pid::from_child(&started);
        let process_tree = ProcessTree::of(pid, place == Place::OwnGroup, strangers);
        let watched = pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from);
        let watched = watched.and_then(|pidfd| {
            registry.register(&mut SourceFd(&pidfd.as_raw_fd()), CHILD, Interest::READABLE)?;
            Ok(pidfd)
        });
        match watched {
            Ok(pidfd) => {
                let (ended, group_is_gone) = (None, false);
                Ok(Child { pid, pidfd, place, process_tree, ended, group_is_gone })
            }
            Err(error) => {
                // CMD was not waited for, so the number is still its own. The caller releases the
                // lock on this error, so CMD must be gone first, with what it may have started.
                if place == Place::OwnGroup {
                    let _ = kill_process_group(pid, Signal::KILL);
                }
                let _ = kill_process(pid, Signal::KILL);
                let _ = started.wait();
                let end = clock::now().saturating_add(DYING);
                while !process_tree.is_gone() && clock::now() < end {
                    let _ = process_tree.send(Signal::KILL);
                }
                Err(error)
            }
        }
    }

    /// How CMD ended, if it did.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Passes a signal on: to CMD's group if it has one, as a terminal would.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        let sent = match self.place {
            Place::OwnGroup if self.group_is_gone => return Ok(()),
            Place::OwnGroup => kill_process_group(self.pid, signal),
            Place::OurGroup => pidfd_send_signal(&self.pidfd, signal),
        };
        match sent {
            // No process is left to signal.
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Sends a signal to CMD and to everything that it started: its group, and our other
    /// descendants. timeout(1) makes a group for itself, too.
    pub fn send_to_all(&self, signal: Signal) -> io::Result<()> {
        let sent = self.send(signal);
        let others = self.process_tree.send(signal);
        sent.and(others)
    }

    /// Whether CMD and its group have ended, and we have no child left. Then nothing of CMD is
    /// left: what it started became our child when its own parent ended. Costs one system call.
    pub fn is_last_gone(&self) -> bool {
        self.is_group_gone() && has_no_child()
    }

    /// Whether nothing is left of CMD, nor of what it started. If CMD itself left its group, the
    /// number stays taken while the group has members, so only members are counted.
    pub fn is_all_gone(&self) -> bool {
        self.is_group_gone() && self.process_tree.is_gone()
    }

    /// Kills what is left of CMD, and returns whether nothing was.
    pub fn kill_what_is_left(&self) -> bool {
        let _ = self.send(Signal::KILL);
        let was_gone = self.process_tree.kill();
        self.is_group_gone() && was_gone
    }

    /// Whether CMD has ended, and its group, if it has one.
    fn is_group_gone(&self) -> bool {
        self.ended.is_some() && (self.group_is_gone || self.place == Place::OurGroup)
    }

    /// The next change of CMD's state. Also waits for the orphans that CMD left.
    pub fn next_change(&mut self) -> Option<Change> {
        let change = self.wait_for_change();
        if self.ended.is_some() && self.place == Place::OwnGroup && !self.group_is_gone {
            self.group_is_gone = test_kill_process_group(self.pid) == Err(Errno::SRCH);
        }
        change
    }

    fn wait_for_change(&mut self) -> Option<Change> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if pid != self.pid {
                continue;
            }
            if let Some(change) = change(status) {
                if let Change::Ended(ended) = change {
                    self.ended = Some(ended);
                }
                return Some(change);
            }
        }
        None
    }
}

fn change(status: WaitStatus) -> Option<Change> {
    if let Some(code) = status.exit_status() {
        return Some(Change::Ended(Ended::Exited((code & 0xff) as u8)));
    }
    if let Some(signal) = status.terminating_signal() {
        return Some(Change::Ended(Ended::Killed(signal)));
    }
    status.stopping_signal().and_then(Signal::from_named_raw).map(Change::Stopped)
}
