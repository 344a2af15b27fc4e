//! What CMD started, and what those started, where no process group tells: CMD has none of its own,
//! or they have left it, as timeout(1) and a shell with job control make one for what they run. It
//! is every process below us that is no older than CMD, of our session, as /proc tells. A daemon
//! that left the session is none of them.
//!
//! A script may start background jobs and then become redlatch: they are our children then, and
//! not CMD's. /proc tells start times in ticks of 10 ms, so a job may seem no older than CMD.
//! Therefore our descendants are recorded before CMD is started, as strangers, and what descends
//! from a stranger is a stranger. A process whose stranger parent ended becomes our child. Where
//! CMD has a process group of its own, such a process is known by our group, in which it was
//! started and in which nothing of CMD is. With --foreground it cannot be told from what CMD left
//! behind, and is stopped with CMD.
//!
//! The hazard is a process number that is somebody else's by now: what is signalled is looked at
//! again when it is held by a pidfd. And a process that starts another behind our look, and ends:
//! nobody is called gone by a look during which somebody came or went, and whoever kills looks
//! until nobody is left. In a namespace of its own (a container) redlatch may be of a
//! session and a group that began outside and have no number inside, which the kernel tells as 0:
//! such a 0 is compared like any other, and no system call is asked that has no answer then. Where
//! /proc is that of another namespace, its numbers tell who is left, but nobody is signalled by
//! one.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal, waitid,
};

/// What /proc tells of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    id: i32,
    parent: i32,
    group: i32,
    session: i32,
    /// When it was started, in the system's ticks.
    started: u64,
    /// It is dead, and nobody waited for it yet. One whose first thread has ended lives on in the
    /// others.
    dead: bool,
}

/// What was seen at one look.
#[derive(Debug)]
struct Look {
    members: Vec<Process>,
    /// There is nobody else: all could be read, and nobody came or went meanwhile.
    complete: bool,
}

/// Our descendants that were there before CMD: their numbers, each with its start time.
#[derive(Debug, Default)]
pub struct Strangers(BTreeSet<(i32, u64)>);

impl Strangers {
    /// Records all of our descendants; call it before CMD is started. Where /proc cannot be read,
    /// nothing is recorded, and nobody can be signalled by it later.
    pub fn record() -> Strangers {
        // Usually redlatch has no child yet, and the kernel says so in one call.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(waitid(WaitId::All, options), Err(Errno::CHILD)) {
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

/// What CMD started, by what is known of CMD.
#[derive(Debug)]
pub struct ProcessTree {
    cmd: Pid,
    /// When CMD was started. What is older is not its.
    since: u64,
    /// Who was there before CMD, whatever the ticks tell.
    strangers: Strangers,
    /// CMD has a group of its own, which is signalled as one.
    has_group: bool,
}

impl ProcessTree {
    /// That of `cmd`, without CMD itself and without its group where it has one. Where nothing is
    /// told of CMD, nothing is too old.
    pub fn of(cmd: Pid, has_group: bool, strangers: Strangers) -> ProcessTree {
        let cmd_itself = look_at(cmd.as_raw_pid()).ok().flatten();
        let since = cmd_itself.map_or(0, |process| process.started);
        ProcessTree { cmd, since, strangers, has_group }
    }

    /// Sends a signal to all of them. The error is of one that would not take it.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        let members = self.look()?.members;
        let us = getpid().as_raw_pid();
        if !members.is_empty() && look_at("self")?.is_none_or(|told| told.id != us) {
            let why = "/proc, which is of another namespace, has other numbers";
            return Err(io::Error::other(why));
        }
        let mut result = Ok(());
        for process in members {
            let Some(id) = Pid::from_raw(process.id) else { continue };
            let Ok(held) = pidfd_open(id, PidfdFlags::empty()) else { continue };
            // Whose parent has died meanwhile has fallen to us.
            let is_it = |now: Process| [process.parent, us].contains(&now.parent);
            if look_at(process.id)?.is_some_and(is_it) {
                match pidfd_send_signal(held, signal) {
                    // It ended behind our look.
                    Err(Errno::SRCH) => {}
                    sent => result = result.and(sent.map_err(io::Error::from)),
                }
            }
        }
        result
    }

    /// Whether nobody is left of them. Where that cannot be told, somebody may be.
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

    /// What a look comes to, by those who were read, those who had gone by then, and those who had
    /// come behind it.
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
        // What a stranger started is below us by that stranger alone, and so it is not found.
        let (young, came) = (without_strangers(young), without_strangers(came));
        let below = below(us.id, &young);
        // Who was started by somebody who is gone has fallen to us by now.
        let orphaned = young.iter().any(|it| lives_here(it) && gone.contains(&it.parent));
        let known: BTreeSet<i32> = below.iter().chain(&came).map(|process| process.id).collect();
        let ours = |id: i32| id == us.id || known.contains(&id) || gone.contains(&id);
        let added = came.iter().any(|it| lives_here(it) && ours(it.parent));
        let is_one = |it: &Process| lives_here(it) && !self.is_signalled(it);
        let members = below.into_iter().filter(is_one).collect();
        Look { members, complete: !orphaned && !added }
    }

    /// Whether it is known to be none of CMD's: it was there before CMD, or it is in our group
    /// although CMD has another.
    fn is_stranger(&self, process: &Process, us: Process) -> bool {
        self.strangers.contains(process) || (self.has_group && process.group == us.group)
    }

    /// Whether somebody else signals it: with CMD's group, or as CMD.
    fn is_signalled(&self, process: &Process) -> bool {
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

/// What is told of a process, if it is there.
fn look_at(process: impl Display) -> io::Result<Option<Process>> {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => Ok(parse(&stat)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Other users' processes may be hidden from us: they are none of ours.
fn visible(looked: io::Result<Option<Process>>) -> io::Result<Option<Process>> {
    match looked {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        other => other,
    }
}

fn parse(stat: &str) -> Option<Process> {
    let id = stat.split_whitespace().next()?.parse().ok()?;
    // Behind the name, which may contain anything: state, parent, group, session.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let ended = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Behind thirteen others (the terminal, and what it has used): its threads, and one further on
    // when it was started.
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
        let told = Process { id: 7, parent: 5, group, session, started, dead: false };
        assert_eq!(parsed, Some(told));
        let dead = parse(&format!("7 (x) Z 5 6 9 {rest}"));
        assert!(dead.is_some_and(|process| process.dead));
        // Its first thread has ended, and the other has not.
        let two = rest.replace("20 0 1 0", "20 0 2 0");
        let halved = parse(&format!("7 (x) Z 5 6 9 {two}"));
        assert!(halved.is_some_and(|process| !process.dead));
        assert_eq!(parse("7 (x) R 5"), None);
        // The real thing.
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
    fn nobody_is_called_gone_while_somebody_of_them_comes_or_goes() {
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
        // It was started by one who had gone when it was to be read: before that, and behind it.
        assert_eq!(look(&[process(12, 11)], &[11], &[]), (0, false));
        assert_eq!(look(&[], &[11], &[process(12, 11)]), (0, false));
        // By one that is dead but there, by one who came as well, or fallen to us already.
        let dead = Process { dead: true, ..process(11, 9) };
        assert_eq!(look(&[dead], &[], &[process(12, 11)]), (0, false));
        assert_eq!(look(&[], &[11], &[process(13, 12), process(12, 11)]), (0, false));
        assert_eq!(look(&[], &[], &[process(12, 9)]), (0, false));
        // What strangers start is theirs, and so is another session.
        assert_eq!(look(&[stranger], &[], &[process(31, 30)]), (0, true));
        let daemon = Process { session: 12, ..process(12, 9) };
        assert_eq!(look(&[], &[], &[daemon]), (0, true));
    }

    #[test]
    fn who_was_there_before_cmd_is_a_stranger_in_the_same_tick_too_and_so_are_its_children() {
        let cmd = Pid::from_raw(10).expect("a process number");
        let us = process(9, 8);
        // CMD, what CMD started, a job from before CMD, and what the job started; all in one tick.
        let all = [(10, 9), (11, 10), (20, 9), (21, 20)].map(|(id, parent)| process(id, parent));
        let found = |has_group, young: &[Process], came: &[Process]| {
            let strangers = Strangers([(20, 1)].into());
            let process_tree = ProcessTree { cmd, since: 1, strangers, has_group };
            let look = process_tree.judge(us, young, &BTreeSet::new(), came);
            let members: Vec<i32> = look.members.iter().map(|process| process.id).collect();
            (members, look.complete)
        };
        assert_eq!(found(false, &all, &[]), (vec![11], true));
        // What the job starts during the look is the job's.
        assert_eq!(found(false, &all, &[process(22, 20)]), (vec![11], true));
        // Another process may get the job's number, once the job has been waited for.
        let later = Process { started: 2, ..process(20, 9) };
        assert_eq!(found(false, &[later], &[]), (vec![20], true));
        // The job's child fell to us when the job ended: our group tells where CMD has its own.
        let of_cmd = Process { group: 10, ..process(11, 9) };
        let apart = Process { group: 12, ..process(12, 11) };
        let orphan = process(21, 9);
        assert_eq!(found(true, &[of_cmd, apart, orphan], &[orphan]), (vec![12], true));
    }
}
