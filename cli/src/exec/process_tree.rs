//! Finds and signals the processes that CMD started, directly or not, and that a signal to CMD's
//! group does not reach. Either CMD has no group of its own, or the processes have left it:
//! timeout(1) and a shell with job control make groups for what they run. By /proc, these are all
//! of redlatch's descendants that are in its session and were started no earlier than CMD. A daemon
//! that left the session is not among them.
//!
//! A script may start background jobs and then replace itself by redlatch (`exec`): then the jobs
//! are redlatch's children, but not CMD's. /proc has start times in ticks of 10 ms, so a job may
//! seem to have been started together with CMD. So redlatch's descendants are recorded before CMD
//! is started, as strangers, and whatever descends from a stranger is a stranger, too. When a
//! stranger ends, its children become redlatch's. If CMD has a process group of its own, they are
//! known by redlatch's group, in which no process of CMD is. With --foreground they look like
//! processes that CMD started, and are stopped with CMD.
//!
//! The hazard is a process number that the system has since given to another process. So a process
//! is read again from /proc when a pidfd holds it, before it is signalled. A second hazard is a
//! process that starts another one during a scan of /proc, and ends. So a scan during which
//! processes came or went never says that all are gone, and a caller that kills scans again until
//! none is left.
//!
//! In a container redlatch may belong to a session and a group of the outside, for which the kernel
//! reports 0. This file compares such a 0 like any other number, and makes no system call that
//! needs the real one. If /proc is that of another namespace, its numbers show which processes are
//! left, but no process is signalled by them.

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
    /// The process has ended, and its parent has not reaped it yet. A process whose first thread
    /// has ended is not dead while it has other threads.
    dead: bool,
}

/// What one reading of all of /proc found.
#[derive(Debug)]
struct Scan {
    members: Vec<Process>,
    /// `members` has all members: no process that may be one started or ended during the scan.
    complete: bool,
}

/// The descendants that redlatch had before CMD: the number and start time of each.
#[derive(Debug, Default)]
pub struct Strangers(BTreeSet<(i32, u64)>);

impl Strangers {
    /// Records all descendants of redlatch, and is to be called before CMD is started. If /proc
    /// cannot be read, this records nothing; then [`ProcessTree`] cannot find a process either.
    pub fn record() -> Strangers {
        // Usually redlatch has no child yet.
        if has_no_child() {
            return Strangers::default();
        }
        let all = all_ids().unwrap_or_default().into_iter();
        let all: Vec<Process> = all.filter_map(|id| read_process(id).ok().flatten()).collect();
        let us = read_process("self").ok().flatten().map_or(0, |us| us.id);
        Strangers(
            descendants_of(us, &all).iter().map(|process| (process.id, process.started)).collect(),
        )
    }

    fn contains(&self, process: &Process) -> bool {
        self.0.contains(&(process.id, process.started))
    }
}

/// The processes that CMD started.
#[derive(Debug)]
pub struct ProcessTree {
    cmd: Pid,
    /// When CMD was started. A process that was started before is not CMD's.
    since: u64,
    /// Processes that were started before CMD, also if their start times are equal.
    strangers: Strangers,
    /// CMD has a group of its own, to which the caller sends signals itself.
    has_group: bool,
}

impl ProcessTree {
    /// The processes that `cmd` started, without CMD itself, and without its group if it has one.
    /// If /proc does not show CMD, every descendant counts, however early it was started.
    pub fn of(cmd: Pid, has_group: bool, strangers: Strangers) -> ProcessTree {
        let cmd_itself = read_process(cmd.as_raw_pid()).ok().flatten();
        let since = cmd_itself.map_or(0, |process| process.started);
        ProcessTree { cmd, since, strangers, has_group }
    }

    /// Sends a signal to all of these processes. Returns an error if one could not be signalled.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        self.send_to(self.scan()?.members, signal)
    }

    /// Kills all of these processes, and returns whether there were none. Returns `false` also if
    /// /proc does not show that for certain.
    pub fn kill(&self) -> bool {
        let Ok(scan) = self.scan() else { return false };
        let was_gone = scan.complete && scan.members.is_empty();
        let _ = self.send_to(scan.members, Signal::KILL);
        was_gone
    }

    fn send_to(&self, members: Vec<Process>, signal: Signal) -> io::Result<()> {
        let us = getpid().as_raw_pid();
        if !members.is_empty() && read_process("self")?.is_none_or(|seen| seen.id != us) {
            let why = "/proc, which is of another namespace, has other numbers";
            return Err(io::Error::other(why));
        }
        let mut result = Ok(());
        for process in members {
            let Some(id) = Pid::from_raw(process.id) else { continue };
            let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { continue };
            // If the parent has ended since the scan, the process has become redlatch's child.
            let is_it = |now: Process| [process.parent, us].contains(&now.parent);
            if read_process(process.id)?.is_some_and(is_it) {
                match pidfd_send_signal(held, signal) {
                    // The process has ended since the scan.
                    Err(Errno::SRCH) => {}
                    sent => result = result.and(sent.map_err(io::Error::from)),
                }
            }
        }
        result
    }

    /// Whether none of these processes is left. `false` also if /proc does not show it for certain.
    pub fn is_gone(&self) -> bool {
        self.scan().is_ok_and(|scan| scan.complete && scan.members.is_empty())
    }

    fn scan(&self) -> io::Result<Scan> {
        let us = read_process("self")?.ok_or(io::ErrorKind::NotFound)?;
        let ids = all_ids()?;
        let (mut candidates, mut gone) = (Vec::new(), BTreeSet::new());
        for &id in &ids {
            match read_process(id) {
                Ok(Some(process)) if process.started >= self.since => candidates.push(process),
                Ok(None) => {
                    gone.insert(id);
                }
                other => drop(absent_if_hidden(other)?),
            }
        }
        let mut came = Vec::new();
        for &id in all_ids()?.difference(&ids) {
            came.extend(absent_if_hidden(read_process(id))?);
        }
        Ok(self.judge(us, &candidates, &gone, &came))
    }

    /// The result of a scan. `candidates` were started no earlier than CMD; `gone` ended after the
    /// list of numbers was read and before their own files were; `came` started after the list was
    /// read.
    fn judge(
        &self,
        us: Process,
        candidates: &[Process],
        gone: &BTreeSet<i32>,
        came: &[Process],
    ) -> Scan {
        let lives_here = |it: &Process| it.session == us.session && !it.dead;
        let without_strangers = |all: &[Process]| -> Vec<Process> {
            all.iter().copied().filter(|it| !self.is_stranger(it, us)).collect()
        };
        // Without the strangers, their children are not found as descendants of redlatch.
        let (candidates, came) = (without_strangers(candidates), without_strangers(came));
        let descendants = descendants_of(us.id, &candidates);
        // A process whose parent is gone may have become redlatch's child.
        let orphaned = candidates.iter().any(|it| lives_here(it) && gone.contains(&it.parent));
        let known: BTreeSet<i32> =
            descendants.iter().chain(&came).map(|process| process.id).collect();
        let ours = |id: i32| id == us.id || known.contains(&id) || gone.contains(&id);
        let added = came.iter().any(|it| lives_here(it) && ours(it.parent));
        let is_member = |it: &Process| lives_here(it) && !self.is_signalled_by_caller(it);
        let members = descendants.into_iter().filter(is_member).collect();
        Scan { members, complete: !orphaned && !added }
    }

    /// Whether a process is known not to be CMD's: it was recorded before CMD was started, or it is
    /// in redlatch's group although CMD has another.
    fn is_stranger(&self, process: &Process, us: Process) -> bool {
        self.strangers.contains(process) || (self.has_group && process.group == us.group)
    }

    /// Whether the caller signals this process itself: as a member of CMD's group, or as CMD.
    fn is_signalled_by_caller(&self, process: &Process) -> bool {
        let cmd = self.cmd.as_raw_pid();
        if self.has_group {
            process.group == cmd
        } else {
            process.id == cmd && process.started == self.since
        }
    }
}

/// Whether this process has no child, neither running nor to be reaped. Costs one system call.
pub fn has_no_child() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, options), Err(Errno::CHILD))
}

/// The processes of `all` that descend from `ancestor`.
fn descendants_of(ancestor: i32, all: &[Process]) -> Vec<Process> {
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
fn read_process(process: impl Display) -> io::Result<Option<Process>> {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => Ok(parse(&stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Takes a process that we have no right to read as absent: it belongs to another user, so CMD did
/// not start it.
fn absent_if_hidden(read: io::Result<Option<Process>>) -> io::Result<Option<Process>> {
    match read {
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
    // Thirteen fields (the terminal, and the resources that were used) precede the number of
    // threads. One field follows it, and then the start time.
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
        // The first thread of this process has ended, and its second has not.
        let two = rest.replace("20 0 1 0", "20 0 2 0");
        let halved = parse(&format!("7 (x) Z 5 6 9 {two}"));
        assert!(halved.is_some_and(|process| !process.dead));
        assert_eq!(parse("7 (x) R 5"), None);
        // The line of the real file is read, too.
        let us = read_process("self").expect("its own /proc").expect("it is there");
        assert!(us.started > 0 && !us.dead);
        assert_eq!(read_process(us.id).expect("the same").map(|process| process.id), Some(us.id));
    }

    #[test]
    fn descendants_are_found_at_any_depth_and_in_any_order() {
        let all = [process(5, 4), process(4, 3), process(2, 1), process(3, 9), process(9, 1)];
        let found: Vec<i32> = descendants_of(9, &all).iter().map(|process| process.id).collect();
        assert_eq!(found, [5, 4, 3]);
        assert_eq!(descendants_of(5, &all), []);
    }

    #[test]
    fn no_process_is_called_gone_while_one_of_them_comes_or_goes() {
        let cmd = Pid::from_raw(10).expect("a process number");
        let strangers = Strangers::default();
        let process_tree = ProcessTree { cmd, since: 1, strangers, has_group: false };
        let (us, stranger) = (process(9, 8), process(30, 8));
        let scan = |candidates: &[Process], gone: &[i32], came: &[Process]| {
            let scan = process_tree.judge(us, candidates, &gone.iter().copied().collect(), came);
            (scan.members.len(), scan.complete)
        };
        assert_eq!(scan(&[stranger], &[40], &[]), (0, true));
        assert_eq!(scan(&[process(11, 9), stranger], &[], &[]), (1, true));
        // The parent had ended before its file was read. Its child was in the first list, or was
        // started later.
        assert_eq!(scan(&[process(12, 11)], &[11], &[]), (0, false));
        assert_eq!(scan(&[], &[11], &[process(12, 11)]), (0, false));
        // In the next three cases the parent is dead but still listed; or was started after the
        // first list, too; or has ended, so that the child is redlatch's now.
        let dead = Process { dead: true, ..process(11, 9) };
        assert_eq!(scan(&[dead], &[], &[process(12, 11)]), (0, false));
        assert_eq!(scan(&[], &[11], &[process(13, 12), process(12, 11)]), (0, false));
        assert_eq!(scan(&[], &[], &[process(12, 9)]), (0, false));
        // Children of strangers are strangers, and so are processes of another session.
        assert_eq!(scan(&[stranger], &[], &[process(31, 30)]), (0, true));
        let daemon = Process { session: 12, ..process(12, 9) };
        assert_eq!(scan(&[], &[], &[daemon]), (0, true));
    }

    #[test]
    fn a_process_from_before_cmd_is_a_stranger_in_the_same_tick_too_and_so_are_its_children() {
        let cmd = Pid::from_raw(10).expect("a process number");
        let us = process(9, 8);
        // CMD, a child of CMD, a job that was started before CMD, and a child of the job. All have
        // the same start time.
        let all = [(10, 9), (11, 10), (20, 9), (21, 20)].map(|(id, parent)| process(id, parent));
        let found = |has_group, candidates: &[Process], came: &[Process]| {
            let strangers = Strangers([(20, 1)].into());
            let process_tree = ProcessTree { cmd, since: 1, strangers, has_group };
            let scan = process_tree.judge(us, candidates, &BTreeSet::new(), came);
            let members: Vec<i32> = scan.members.iter().map(|process| process.id).collect();
            (members, scan.complete)
        };
        assert_eq!(found(false, &all, &[]), (vec![11], true));
        // A process that the job starts during the scan is the job's.
        assert_eq!(found(false, &all, &[process(22, 20)]), (vec![11], true));
        // Another process may get the job's number, once the job has been reaped.
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
