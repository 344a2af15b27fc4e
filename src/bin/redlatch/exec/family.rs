//! What CMD started, and what those started, where it has no process group of its own to be known
//! by: every process below us, of our session, as /proc tells. A daemon that left the session is
//! none of them, as it is in no group either.
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
    session: i32,
    /// It is dead, and nobody waited for it yet.
    dead: bool,
}

/// Sends a signal to all of them. The error is of one that would not take it.
pub fn send(signal: Signal) -> io::Result<()> {
    let us = getpid().as_raw_pid();
    let mut result = Ok(());
    for process in below_us() {
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
pub fn is_gone() -> bool {
    below_us().is_empty()
}

fn below_us() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = ids.filter_map(look_at).collect();
    let session = getsid(None).map_or(0, Pid::as_raw_pid);
    let below = below(getpid().as_raw_pid(), &all);
    below.into_iter().filter(|process| process.session == session && !process.dead).collect()
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
    let session = fields.nth(1)?.parse().ok()?;
    Some(Process { id, parent, session, dead })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: i32, parent: i32) -> Process {
        Process { id, parent, session: 1, dead: false }
    }

    #[test]
    fn a_line_of_proc_is_read_whatever_the_name_is() {
        let parsed = parse(7, "7 (a) S 1 (b)) R 5 6 9 0 -1 4194560 0");
        assert_eq!(parsed, Some(Process { id: 7, parent: 5, session: 9, dead: false }));
        assert!(parse(7, "7 (x) Z 5 6 9 0").is_some_and(|process| process.dead));
        assert_eq!(parse(7, "7 (x) R 5"), None);
    }

    #[test]
    fn those_below_are_found_however_far_and_in_whatever_order() {
        let all = [process(5, 4), process(4, 3), process(2, 1), process(3, 9), process(9, 1)];
        let found: Vec<i32> = below(9, &all).iter().map(|process| process.id).collect();
        assert_eq!(found, [5, 4, 3]);
        assert_eq!(below(5, &all), []);
    }
}
