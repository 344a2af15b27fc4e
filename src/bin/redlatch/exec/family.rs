//! What CMD started, and what those started, where no process group tells: CMD has none of its own,
//! or they have left it, as timeout(1) and a shell with job control make one for what they run. It
//! is every process below us that is no older than CMD, of our session, as /proc tells. A daemon
//! that left the session is none of them, and neither is what was there before us (a script that
//! became redlatch may have started things).
//!
//! The hazard is a process number that is somebody else's by now: what is signalled is looked at
//! again when it is held by a pidfd. And a process that starts another behind our look: whoever
//! kills looks until nobody is left. In a namespace of its own (a container) redlatch may be of a
//! session and a group that began outside and have no number inside, which the kernel tells as 0:
//! such a 0 is compared like any other, and no system call is asked that has no answer then. Where
//! /proc is that of another namespace, its numbers tell who is left, but nobody is signalled by
//! one.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// What /proc tells of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    id: i32,
    parent: i32,
    group: i32,
    session: i32,
    /// When it was started, in the system's ticks.
    started: u64,
    /// It is dead, and nobody waited for it yet.
    dead: bool,
}

/// What CMD started, by what is known of CMD.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    cmd: Pid,
    /// When CMD was started. What is older is not its.
    since: u64,
    /// CMD has a group of its own, which is signalled as one.
    has_group: bool,
}

impl Family {
    /// That of `cmd`, without CMD itself and without its group where it has one. Where nothing is
    /// told of CMD, nothing is too old.
    pub fn of(cmd: Pid, has_group: bool) -> Family {
        let since = look_at(cmd.as_raw_pid()).map_or(0, |process| process.started);
        Family { cmd, since, has_group }
    }

    /// Sends a signal to all of them. The error is of one that would not take it.
    pub fn send(self, signal: Signal) -> io::Result<()> {
        let members = self.members();
        let us = getpid().as_raw_pid();
        if !members.is_empty() && look_at("self").is_none_or(|told| told.id != us) {
            let why = "/proc, which is of another namespace, has other numbers";
            return Err(io::Error::other(why));
        }
        let mut result = Ok(());
        for process in members {
            let Some(id) = Pid::from_raw(process.id) else { continue };
            let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { continue };
            // Whose parent has died meanwhile has fallen to us.
            let is_it = |now: Process| [process.parent, us].contains(&now.parent);
            if look_at(process.id).is_some_and(is_it) {
                result = result.and(pidfd_send_signal(held, signal).map_err(io::Error::from));
            }
        }
        result
    }

    /// Whether nobody is left of them.
    pub fn is_gone(self) -> bool {
        self.members().is_empty()
    }

    fn members(self) -> Vec<Process> {
        let Some(us) = look_at("self") else { return Vec::new() };
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let young = |process: &Process| process.started >= self.since;
        let young: Vec<Process> = ids.filter_map(|id: i32| look_at(id)).filter(young).collect();
        let is_one = |process: &Process| {
            process.session == us.session && !process.dead && !self.is_signalled(process)
        };
        below(us.id, &young).into_iter().filter(is_one).collect()
    }

    /// Whether somebody else signals it: with CMD's group, or as CMD.
    fn is_signalled(self, process: &Process) -> bool {
        let cmd = self.cmd.as_raw_pid();
        if self.has_group {
            process.group == cmd
        } else {
            process.id == cmd && process.started == self.since
        }
    }
}

/// Those of `all` that come down from `ancestor`.
fn below(ancestor: i32, all: &[Process]) -> Vec<Process> {
    let mut family = BTreeSet::from([ancestor]);
    loop {
        let known = family.len();
        let children = all.iter().filter(|process| family.contains(&process.parent));
        let children: Vec<i32> = children.map(|process| process.id).collect();
        family.extend(children);
        if family.len() == known {
            break;
        }
    }
    family.remove(&ancestor);
    all.iter().copied().filter(|process| family.contains(&process.id)).collect()
}

fn look_at(process: impl Display) -> Option<Process> {
    parse(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Process> {
    let id = stat.split_whitespace().next()?.parse().ok()?;
    // Behind the name, which may contain anything: state, parent, group, session.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Behind fifteen others: the terminal, and what it has used.
    let started = fields.nth(15)?.parse().ok()?;
    Some(Process { id, parent, group, session, started, dead })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: i32, parent: i32) -> Process {
        Process { id, parent, group: 1, session: 1, started: 1, dead: false }
    }

    #[test]
    fn a_line_of_proc_is_read_whatever_the_name_is() {
        let rest = "0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1000";
        let parsed = parse(&format!("7 (a) S 1 (b)) R 5 6 9 {rest}"));
        let (group, session, started) = (6, 9, 4711);
        let told = Process { id: 7, parent: 5, group, session, started, dead: false };
        assert_eq!(parsed, Some(told));
        let dead = parse(&format!("7 (x) Z 5 6 9 {rest}"));
        assert!(dead.is_some_and(|process| process.dead));
        assert_eq!(parse("7 (x) R 5"), None);
        // The real thing.
        let us = look_at("self").expect("its own /proc");
        assert!(us.started > 0 && !us.dead);
        assert_eq!(look_at(us.id).map(|process| process.id), Some(us.id));
    }

    #[test]
    fn those_below_are_found_however_far_and_in_whatever_order() {
        let all = [process(5, 4), process(4, 3), process(2, 1), process(3, 9), process(9, 1)];
        let found: Vec<i32> = below(9, &all).iter().map(|process| process.id).collect();
        assert_eq!(found, [5, 4, 3]);
        assert_eq!(below(5, &all), []);
    }
}
