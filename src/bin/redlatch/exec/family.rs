//! What CMD started, and what those started, where no process group tells: CMD has none of its own,
//! or they have left it, as timeout(1) and a shell with job control make one for what they run. It
//! is every process below us that is no older than CMD, of our session, as /proc tells. A daemon
//! that left the session is none of them, and neither is what was there before us (a script that
//! became redlatch may have started things).
//!
//! The hazard is a process number that is somebody else's by now: what is signalled is looked at
//! again when it is held by a pidfd. And a process that starts another behind our look: whoever
//! kills looks until nobody is left.

use std::collections::BTreeSet;
use std::io;

use rustix::process::{Pid, PidfdFlags, Signal, getpid, getsid, pidfd_open, pidfd_send_signal};

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
    /// When CMD was started. What is older is not its.
    since: u64,
    /// The group that is signalled as one.
    group: Option<Pid>,
}

impl Family {
    /// That of `cmd`, without the members of that group. Where nothing is told of CMD, nothing is
    /// too old.
    pub fn of(cmd: Pid, group: Option<Pid>) -> Family {
        let since = look_at(cmd.as_raw_pid()).map_or(0, |process| process.started);
        Family { since, group }
    }

    /// Sends a signal to all of them. The error is of one that would not take it.
    pub fn send(self, signal: Signal) -> io::Result<()> {
        let us = getpid().as_raw_pid();
        let mut result = Ok(());
        for process in self.members() {
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
        let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
        let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let young = |process: &Process| process.started >= self.since;
        let young: Vec<Process> = ids.filter_map(look_at).filter(young).collect();
        let session = getsid(None).map_or(0, Pid::as_raw_pid);
        let group = self.group.map_or(0, Pid::as_raw_pid);
        let is_one = |process: &Process| {
            process.session == session && process.group != group && !process.dead
        };
        below(getpid().as_raw_pid(), &young).into_iter().filter(is_one).collect()
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

fn look_at(id: i32) -> Option<Process> {
    parse(id, &std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

fn parse(id: i32, stat: &str) -> Option<Process> {
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
        let parsed = parse(7, &format!("7 (a) S 1 (b)) R 5 6 9 {rest}"));
        let (group, session, started) = (6, 9, 4711);
        let told = Process { id: 7, parent: 5, group, session, started, dead: false };
        assert_eq!(parsed, Some(told));
        let dead = parse(7, &format!("7 (x) Z 5 6 9 {rest}"));
        assert!(dead.is_some_and(|process| process.dead));
        assert_eq!(parse(7, "7 (x) R 5"), None);
        // The real thing.
        let us = std::process::id().try_into().expect("a process number");
        assert!(look_at(us).is_some_and(|process| process.started > 0 && !process.dead));
    }

    #[test]
    fn those_below_are_found_however_far_and_in_whatever_order() {
        let all = [process(5, 4), process(4, 3), process(2, 1), process(3, 9), process(9, 1)];
        let found: Vec<i32> = below(9, &all).iter().map(|process| process.id).collect();
        assert_eq!(found, [5, 4, 3]);
        assert_eq!(below(5, &all), []);
    }
}
