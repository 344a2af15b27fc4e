//! A client in a process of its own: this test binary, started once more, which reads its orders
//! line by line.
//!
//! The hazard is a parent that dies: the process ends when its input does.

use std::io::{BufRead, stdin};
use std::path::{Path, PathBuf};

use redlatch::{Client, Error, Guard};
use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::support::again::{self, say};
use crate::support::holds::Journal;

/// The variable with the ttl of keys that are handed over to the process, in milliseconds.
const HAND_OVER: &str = "REDLATCH_TEST_HAND_OVER";

/// The parent's end of the process.
pub struct Process(again::Process);

/// A lock that a process has: since when, and its deadline, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Had {
    pub have: u64,
    pub deadline: u64,
}

impl Process {
    /// Starts a process, and waits until all its nodes are ready.
    #[track_caller]
    pub fn start(urls: &[String]) -> Process {
        let mut process = Process::begin(urls);
        process.wait_ready();
        process
    }

    /// Starts a process, which reports when its nodes are ready.
    #[track_caller]
    pub fn begin(urls: &[String]) -> Process {
        Process(again::Process::start(again::command(
            module_path!(),
            "in_a_process_of_its_own",
            urls,
        )))
    }

    /// Starts a process with this ttl of keys that are handed over to it, and waits until it is
    /// ready.
    #[track_caller]
    pub fn start_with_hand_over(urls: &[String], ttl: Duration) -> Process {
        let mut command = again::command(module_path!(), "in_a_process_of_its_own", urls);
        command.env(HAND_OVER, ttl.as_millis().to_string());
        let mut process = Process(again::Process::start(command));
        process.wait_ready();
        process
    }

    #[track_caller]
    pub fn wait_ready(&mut self) {
        assert_eq!(self.answer(), "ready");
    }

    /// Tells the process to acquire the lock, and waits until it has it.
    #[track_caller]
    pub fn lock(&mut self, key: &str, ttl: Duration) -> Had {
        self.ask(key, ttl);
        self.wait_until_locked()
    }

    /// Tells the process to acquire the lock.
    #[track_caller]
    pub fn ask(&mut self, key: &str, ttl: Duration) {
        self.tell(&format!("lock {key} {}", ttl.as_millis()));
    }

    /// Waits for the lock that the process was told to acquire.
    #[track_caller]
    pub fn wait_until_locked(&mut self) -> Had {
        let line = self.answer();
        read(&line).unwrap_or_else(|| panic!("no lock: {line}"))
    }

    /// Tells the process to release its lock. Returns the moment before the release.
    #[track_caller]
    pub fn release(&mut self) -> u64 {
        self.tell("release");
        self.released()
    }

    /// Waits until the process has released its lock. Returns the moment before the release.
    #[track_caller]
    pub fn released(&mut self) -> u64 {
        let line = self.answer();
        let number = line.strip_prefix("released ").and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("not released: {line}"))
    }

    /// The process releases its lock, and another one, which waits for it, has it. Returns how long
    /// after.
    #[track_caller]
    pub fn hand_over_to(&mut self, next: &mut Process) -> Duration {
        let released = self.release();
        let had = next.wait_until_locked();
        assert!(had.have > released, "held by two");
        Duration::from_nanos(had.have - released)
    }

    /// The lock that the process had got before it was killed, if any.
    pub fn had_in_life(&mut self) -> Option<Had> {
        self.0.last_lines().iter().rev().find_map(|line| read(line))
    }

    /// Tells the process to keep its lock until it is killed.
    #[track_caller]
    pub fn keep(&mut self) {
        self.tell("keep");
        assert_eq!(self.answer(), "keeping");
    }

    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        self.0.tell(line);
    }

    /// The next line from the process.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        self.0.answer()
    }

    /// Makes a node end its connections to the process.
    #[track_caller]
    pub fn end_connection(&self, node: &Node) {
        let name = format!(" name={} ", name_of(self.0.child.id()));
        for line in node.client_list().iter().filter(|line| line.contains(&name)) {
            let id = line.split(' ').next().and_then(|word| word.strip_prefix("id="));
            node.command(&["CLIENT", "KILL", "ID", id.expect("each line begins with it")]);
        }
    }

    /// SIGSTOP: the process does nothing until it is continued.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.0.child.id());
        eventually(SOON, "the process is stopped", || {
            let stat = std::fs::read_to_string(&stat).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
        });
    }

    /// SIGCONT.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child's pid is positive"), signal).expect("it is a child");
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        self.0.kill();
    }
}

/// Reads a process's line about a lock that it has.
fn read(line: &str) -> Option<Had> {
    let words = line.strip_prefix("have ")?;
    let numbers: Vec<u64> = words.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [have, deadline] = numbers[..] else { return None };
    Some(Had { have, deadline })
}

/// The client name of a process.
fn name_of(process: u32) -> String {
    format!("waiting-{process}")
}

/// This is no test by itself: the other tests start it as their process.
#[test]
fn in_a_process_of_its_own() {
    let Some(urls) = again::nodes() else { return };
    let mut config = config(&urls).client_name(name_of(std::process::id()));
    if let Ok(ttl) = std::env::var(HAND_OVER) {
        config = config.hand_over_ttl(millis(number(&ttl)));
    }
    let client = ready::client(config);
    say("ready");
    let mut held = None;
    for line in stdin().lock().lines() {
        let line = line.expect("a pipe can be read");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["lock", key, ttl] => held = wait_for(&client, key, options(ttl)),
            ["release"] => {
                let guard: Guard<'_> = held.take().expect("it is held");
                let moment = now();
                match guard.release() {
                    Ok(_) => say(&format!("released {moment}")),
                    Err(error) => say(&format!("{error}")),
                }
            }
            ["keep"] => keep_on(&client, held.as_mut().expect("it is held")),
            ["contend", key, ttl, end, file] => {
                contend(&client, key, options(ttl), number(end), file);
                say("done");
            }
            _ => panic!("what is {line}?"),
        }
    }
}

fn number(word: &str) -> u64 {
    word.parse().expect("a number")
}

fn options(ttl: &str) -> LockOptions {
    LockOptions::new(millis(number(ttl)))
}

fn wait_for<'a>(client: &'a Client, key: &str, options: LockOptions) -> Option<Guard<'a>> {
    match client.lock(key, options.wait(60 * SECOND)) {
        Ok(guard) => {
            let have = now();
            let deadline = guard.deadline().map_or(0, |deadline| deadline.as_nanos());
            say(&format!("have {have} {deadline}"));
            Some(guard)
        }
        Err(error) => {
            say(&format!("{error}"));
            None
        }
    }
}

fn keep_on(client: &Client, guard: &mut Guard<'_>) {
    guard.auto_extend(60 * SECOND).expect("it is held");
    say("keeping");
    loop {
        client.drive(millis(5)).expect("the poller works");
        guard.check().expect("it is kept");
    }
}

/// Makes the processes that write into this file end before their time.
pub fn end_processes(file: &Path) {
    std::fs::write(over(file), "").expect("the fleet's directory can be written");
}

/// The file whose existence tells them so.
fn over(file: &Path) -> PathBuf {
    file.with_extension("over")
}

/// Acquires and releases the lock again and again, and notes each request in the file.
fn contend(client: &Client, key: &str, options: LockOptions, end: u64, file: &str) {
    let (over, mut journal) = (over(Path::new(file)), Journal::open(file));
    let mut dice = Dice::new(now().wrapping_mul(u64::from(std::process::id())));
    loop {
        let asked = now();
        if asked >= end || over.exists() {
            return;
        }
        // The wait is limited, so that the process soon notices the end of the test.
        let wait = Duration::from_nanos(end - asked).min(POLLED_BY);
        let held = match client.lock(key, options.wait(wait)) {
            Ok(guard) => {
                let from = now();
                let_pass(Duration::from_micros(dice.below(2_000)));
                let deadline = guard.deadline().map_or(from, |deadline| deadline.as_nanos());
                if dice.below(200) == 0 {
                    // The guard is forgotten and not released, so the client holds the lock up to
                    // its deadline.
                    std::mem::forget(guard);
                    (from, deadline)
                } else {
                    let until = now().min(deadline);
                    drop(guard.release());
                    (from, until)
                }
            }
            Err(error @ Error::Config(_)) => panic!("{error}"),
            Err(_) => (0, 0),
        };
        // All processes want the same key, number 0.
        journal.note(asked, held, &[0]);
    }
}
