//! What CMD started, directly or not, and what no process group shows. Either CMD has no group of
//! its own, or the processes have left it: timeout(1) and a shell with job control make groups for
//! what they run. By /proc, these are all our descendants that are in our session and no older than
//! CMD. A daemon that left the session is not among them.
//!
//! A script may start background jobs and then become redlatch: then they are our children, and not
//! CMD's. /proc has start times in ticks of 10 ms, so a job may seem no older than CMD. Therefore
//! our descendants are recorded before CMD is started, as strangers. What descends from a stranger
//! is a stranger. A process whose stranger parent ended becomes our child. If CMD has a process
//! group of its own, such a process is known by our group: it was started in that group, and no
//! process of CMD is in it. With --foreground such a process looks like one that CMD started, and
//! is stopped with CMD.
//!
//! The hazard is a process number that the system has given to another process since. So a process
//! is looked at again once a pidfd holds it, before it is signalled. A second hazard is a process
//! that starts another one after our look, and ends. So a look during which processes came or went
//! never says that all are gone, and a caller that kills looks again until none is left.
//!
//! In a namespace of its own (a container) redlatch may be of a session and a group that began
//! outside and have no number inside. The kernel reports such a number as 0. Such a 0 is compared
//! like any other, and no system call is made that has no answer then. If /proc is that of another
//! namespace, its numbers show which processes are left, but no process is signalled by such a
//! number.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal, waitid,
};

/// What /proc says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    id: i32,
    parent: i32,
    group: i32,
    session: i32,
    /// When it was started, in the system's clock ticks.
    started: u64,
    /// The process is dead, and its parent has not waited for it yet. A process whose first thread
    /// has ended lives on in the others.
    dead: bool,
}

/// What was seen at one look.
#[derive(Debug)]
struct Look {
    members: Vec<Process>,
    /// There are no others: all could be read, and no process came or went meanwhile.
    complete: bool,
}

/// Our descendants that were there before CMD: their numbers, each with its start time.
#[derive(Debug, Default)]
pub struct Strangers(BTreeSet<(i32, u64)>);

impl Strangers {
    /// Records all of our descendants; call it before CMD is started. If /proc cannot be read,
    /// nothing is recorded. Then no process can be signalled through it later either.
    pub fn record() -> Strangers {
        // Usually redlatch has no child yet.
        if has_no_child() {
            return Strangers::default();
        }
        let all = all_ids().unwrap_or_default().into_iter();
        let all: Vec<Process> = all.filter_map(|id| look_at(id).ok().flatten()).collect();
        let us = look_at("self").ok().flatten().map_or(0, |us| us.id);
        Strangers(below(us, &all).iter().map(|process| (process.id, process.started)).collect())
    }

    fn contains(&self, process: &Process) -> bool {
        self.0.contains(&(process.id, process.started))
    }
}

/// The processes that CMD started.
#[derive(Debug)]
pub struct ProcessTree {
    cmd: Pid,
    /// When CMD was started. An older process is not CMD's.
    since: u64,
    /// Processes from before CMD, whatever their ticks say.
    strangers: Strangers,
    /// CMD has a group of its own, which is signalled as one.
    has_group: bool,
}

impl ProcessTree {
    /// The tree of `cmd`, without CMD itself, and without its group if it has one. If /proc says
    /// nothing of CMD, no process counts as too old.
    pub fn of(cmd: Pid, has_group: bool, strangers: Strangers) -> ProcessTree {
        let cmd_itself = look_at(cmd.as_raw_pid()).ok().flatten();
        let since = cmd_itself.map_or(0, |process| process.started);
        ProcessTree { cmd, since, strangers, has_group }
    }

    /// Sends a signal to all of them. An error comes from a process that could not be signalled.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        self.send_to(self.look()?.members, signal)
    }

    /// Kills all of them, and returns whether none was left. `false` also if that cannot be found
    /// out.
    pub fn kill(&self) -> bool {
        let Ok(look) = self.look() else { return false };
        let was_gone = look.complete && look.members.is_empty();
        let _ = self.send_to(look.members, Signal::KILL);
        was_gone
    }

    fn send_to(&self, members: Vec<Process>, signal: Signal) -> io::Result<()> {
        let us = getpid().as_raw_pid();
        if !members.is_empty() && look_at("self")?.is_none_or(|seen| seen.id != us) {
            let why = "/proc, which is of another namespace, has other numbers";
            return Err(io::Error::other(why));
        }
        let mut result = Ok(());
        for process in members {
            let Some(id) = Pid::from_raw(process.id) else { continue };
            let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { continue };
            // If its parent has died, the process has become redlatch's child.
            let is_it = |now: Process| [process.parent, us].contains(&now.parent);
            if look_at(process.id)?.is_some_and(is_it) {
                match pidfd_send_signal(held, signal) {
                    // The process ended after the look.
                    Err(Errno::SRCH) => {}
                    sent => result = result.and(sent.map_err(io::Error::from)),
                }
            }
        }
        result
    }

    /// Whether none of them is left. `false` also if that cannot be found out.
    pub fn is_gone(&self) -> bool {
        self.look().is_ok_and(|look| look.complete && look.members.is_empty())
    }

    fn look(&self) -> io::Result<Look> {
        let us = look_at("self")?.ok_or(io::ErrorKind::NotFound)?;
        let ids = all_ids()?;
        let (mut young, mut gone) = (Vec::new(), BTreeSet::new());
        for &id in &ids {
            match look_at(id) {
                Ok(Some(process)) if process.started >= self.since => young.push(process),
                Ok(None) => {
                    gone.insert(id);
                }
                other => drop(visible(other)?),
            }
        }
        let mut came = Vec::new();
        for &id in all_ids()?.difference(&ids) {
            came.extend(visible(look_at(id))?);
        }
        Ok(self.judge(us, &young, &gone, &came))
    }

    /// The result of a look: `young` were read, `gone` had ended by then, and `came` started after
    /// the first list of numbers was read.
    fn judge(
        &self,
        us: Process,
        young: &[Process],
        gone: &BTreeSet<i32>,
        came: &[Process],
    ) -> Look {
        let lives_here = |it: &Process| it.session == us.session && !it.dead;
        let without_strangers = |all: &[Process]| -> Vec<Process> {
            all.iter().copied().filter(|it| !self.is_stranger(it, us)).collect()
        };
        // A stranger's children descend from redlatch only through that stranger, so they are not
        // found.
        let (young, came) = (without_strangers(young), without_strangers(came));
        let below = below(us.id, &young);
        // A process whose parent is gone may have become redlatch's child.
        let orphaned = young.iter().any(|it| lives_here(it) && gone.contains(&it.parent));
        let known: BTreeSet<i32> = below.iter().chain(&came).map(|process| process.id).collect();
        let ours = |id: i32| id == us.id || known.contains(&id) || gone.contains(&id);
        let added = came.iter().any(|it| lives_here(it) && ours(it.parent));
        let is_one = |it: &Process| lives_here(it) && !self.is_signalled(it);
        let members = below.into_iter().filter(is_one).collect();
        Look { members, complete: !orphaned && !added }
    }

    /// Whether a process is known not to be CMD's. Either it was there before CMD, or it is in our
    /// group although CMD has another.
    fn is_stranger(&self, process: &Process, us: Process) -> bool {
        self.strangers.contains(process) || (self.has_group && process.group == us.group)
    }

    /// Whether a process is signalled elsewhere: with CMD's group, or as CMD.
    fn is_signalled(&self, process: &Process) -> bool {
        let cmd = self.cmd.as_raw_pid();
        if self.has_group {
            process.group == cmd
        } else {
            process.id == cmd && process.started == self.since
        }
    }
}

/// Whether this process has no child, alive or dead; the kernel says so in one call.
pub fn has_no_child() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// The processes of `all` that descend from `ancestor`.
fn below(ancestor: i32, all: &[Process]) -> Vec<Process> {
    let mut process_tree = BTreeSet::from([ancestor]);
    loop {
        let known = process_tree.len();
        let children = all.iter().filter(|process| process_tree.contains(&process.parent));
        let children: Vec<i32> = children.map(|process| process.id).collect();
        process_tree.extend(children);
        if process_tree.len() == known {
            break;
        }
    }
    process_tree.remove(&ancestor);
    all.iter().copied().filter(|process| process_tree.contains(&process.id)).collect()
}

fn all_ids() -> io::Result<BTreeSet<i32>> {
    let mut ids = BTreeSet::new();
    for entry in std::fs::read_dir("/proc")? {
        ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    Ok(ids)
}

/// What /proc says of a process; `None` if it is not there.
fn look_at(process: impl Display) -> io::Result<Option<Process>> {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => Ok(parse(&stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Processes of other users may be hidden from us: they are none of ours.
fn visible(looked: io::Result<Option<Process>>) -> io::Result<Option<Process>> {
    match looked {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        other => other,
    }
}

fn parse(stat: &str) -> Option<Process> {
    let id = stat.split_whitespace().next()?.parse().ok()?;
    // After the name, which may contain anything, stand the state, the parent, the group and the
    // session.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Thirteen fields later (the terminal, and the resources that were used) stands the number of
    // threads, and one field after that the start time.
    let threads: u32 = fields.nth(13)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    Some(Process { id, parent, group, session, started, dead: ended && threads <= 1 })
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
        let process = Process { id: 7, parent: 5, group, session, started, dead: false };
        assert_eq!(parsed, Some(process));
        let dead = parse(&format!("7 (x) Z 5 6 9 {rest}"));
        assert!(dead.is_some_and(|process| process.dead));
        // The process's first thread has ended, and the other one has not.
        let two = rest.replace("20 0 1 0", "20 0 2 0");
        let halved = parse(&format!("7 (x) Z 5 6 9 {two}"));
        assert!(halved.is_some_and(|process| !process.dead));
        assert_eq!(parse("7 (x) R 5"), None);
        // The line of the real file is read, too.
        let us = look_at("self").expect("its own /proc").expect("it is there");
        assert!(us.started > 0 && !us.dead);
        assert_eq!(look_at(us.id).expect("the same").map(|process| process.id), Some(us.id));
    }

    #[test]
    fn those_below_are_found_however_far_and_in_whatever_order() {
        let all = [process(5, 4), process(4, 3), process(2, 1), process(3, 9), process(9, 1)];
        let found: Vec<i32> = below(9, &all).iter().map(|process| process.id).collect();
        assert_eq!(found, [5, 4, 3]);
        assert_eq!(below(5, &all), []);
    }

    #[test]
    fn no_process_is_called_gone_while_one_of_them_comes_or_goes() {
        let cmd = Pid::from_raw(10).expect("a process number");
        let strangers = Strangers::default();
        let process_tree = ProcessTree { cmd, since: 1, strangers, has_group: false };
        let (us, stranger) = (process(9, 8), process(30, 8));
        let look = |young: &[Process], gone: &[i32], came: &[Process]| {
            let look = process_tree.judge(us, young, &gone.iter().copied().collect(), came);
            (look.members.len(), look.complete)
        };
        assert_eq!(look(&[stranger], &[40], &[]), (0, true));
        assert_eq!(look(&[process(11, 9), stranger], &[], &[]), (1, true));
        // The parent had ended before its file was read. Its child was in the first list, or came
        // later.
        assert_eq!(look(&[process(12, 11)], &[11], &[]), (0, false));
        assert_eq!(look(&[], &[11], &[process(12, 11)]), (0, false));
        // The parent is dead but still listed, or came late as well, or the child is redlatch's
        // already.
        let dead = Process { dead: true, ..process(11, 9) };
        assert_eq!(look(&[dead], &[], &[process(12, 11)]), (0, false));
        assert_eq!(look(&[], &[11], &[process(13, 12), process(12, 11)]), (0, false));
        assert_eq!(look(&[], &[], &[process(12, 9)]), (0, false));
        // Children of strangers are strangers, and so are processes of another session.
        assert_eq!(look(&[stranger], &[], &[process(31, 30)]), (0, true));
        let daemon = Process { session: 12, ..process(12, 9) };
        assert_eq!(look(&[], &[], &[daemon]), (0, true));
    }

    #[test]
    fn a_process_from_before_cmd_is_a_stranger_in_the_same_tick_too_and_so_are_its_children() {
        let cmd = Pid::from_raw(10).expect("a process number");
        let us = process(9, 8);
        // CMD, a child of CMD, a job from before CMD, and a child of the job; all in one tick.
        let all = [(10, 9), (11, 10), (20, 9), (21, 20)].map(|(id, parent)| process(id, parent));
        let found = |has_group, young: &[Process], came: &[Process]| {
            let strangers = Strangers([(20, 1)].into());
            let process_tree = ProcessTree { cmd, since: 1, strangers, has_group };
            let look = process_tree.judge(us, young, &BTreeSet::new(), came);
            let members: Vec<i32> = look.members.iter().map(|process| process.id).collect();
            (members, look.complete)
        };
        assert_eq!(found(false, &all, &[]), (vec![11], true));
        // A process that the job starts during the look is the job's.
        assert_eq!(found(false, &all, &[process(22, 20)]), (vec![11], true));
        // Another process may get the job's number, once the job has been waited for.
        let later = Process { started: 2, ..process(20, 9) };
        assert_eq!(found(false, &[later], &[]), (vec![20], true));
        // The job's child became redlatch's when the job ended. If CMD has a group, the child is
        // known by its group, which is redlatch's.
        let of_cmd = Process { group: 10, ..process(11, 9) };
        let apart = Process { group: 12, ..process(12, 11) };
        let orphan = process(21, 9);
        assert_eq!(found(true, &[of_cmd, apart, orphan], &[orphan]), (vec![12], true));
    }
}
