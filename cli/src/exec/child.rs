//! CMD as a process: starts CMD, signals CMD and what it started, and waits for its end.
//!
//! The hazard is a process number that the system has since given to another process. So a signal
//! goes to CMD by its pidfd, or by its number before it is reaped. A signal goes to CMD's group
//! only while a member of the group may be left.

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

/// How long to wait, after SIGKILL, until the processes that CMD started are gone. They usually
/// need milliseconds.
pub const DYING: Duration = Duration::from_secs(1);

/// The poller's token of the event that CMD ended.
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
    /// The exit code by which a shell would report this end.
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
    /// CMD was stopped by this signal, and does nothing until SIGCONT.
    Stopped(Signal),
}

/// CMD after its start.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
    place: Place,
    /// The processes that CMD started. If CMD has a group of its own, only those outside the group.
    process_tree: ProcessTree,
    ended: Option<Ended>,
    /// CMD and all of its group have ended: the group's number may belong to other processes now,
    /// so no signal is sent to it.
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
        // Makes orphans of CMD children of redlatch, which reaps them. An init may never do so, and
        // CMD's group counts as gone only after its last member was reaped. If the kernel refuses
        // this call, redlatch only waits longer.
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
                // CMD was not reaped, so its number is still its own. The caller releases the lock
                // on this error, so CMD and what it started must be gone before this returns.
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

    /// How CMD ended; `None` while it runs.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Passes a signal on to CMD's own group, as a terminal would, or to CMD alone if it is in
    /// redlatch's group.
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

    /// Sends a signal to CMD and to everything that it started: to its group, and to descendants
    /// that left the group, as timeout(1) does.
    pub fn send_to_all(&self, signal: Signal) -> io::Result<()> {
        let sent = self.send(signal);
        let others = self.process_tree.send(signal);
        sent.and(others)
    }

    /// Whether CMD and its group have ended, and redlatch has no child. Then no process that CMD
    /// started is left, because each became redlatch's child when its own parent ended. Costs one
    /// system call.
    pub fn is_known_gone(&self) -> bool {
        self.is_group_gone() && has_no_child()
    }

    /// Whether no process of CMD is left, by the list of all processes. If CMD itself left its
    /// group, the group's number stays taken while the group has members.
    pub fn is_all_gone(&self) -> bool {
        self.is_group_gone() && self.process_tree.is_gone()
    }

    /// Kills the processes of CMD that are left, and returns whether there were none.
    pub fn kill_what_is_left(&self) -> bool {
        let _ = self.send(Signal::KILL);
        let was_gone = self.process_tree.kill();
        self.is_group_gone() && was_gone
    }

    /// Whether CMD has ended and, if it has a group of its own, all of that group too.
    fn is_group_gone(&self) -> bool {
        self.ended.is_some() && (self.group_is_gone || self.place == Place::OurGroup)
    }

    /// The next change of CMD's state. Also reaps the orphans that CMD left.
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
