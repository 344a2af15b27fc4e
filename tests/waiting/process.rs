//! A client in a process of its own: this test binary once more, which reads its orders line by
//! line.
//!
//! Its lines go through the output of the test harness, so they begin with a mark. The hazard is a
//! parent that is gone: the process ends with its input.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use redlatch::{Client, Error, Guard};
use rustix::process::{Pid, Signal, kill_process};

use super::*;
use crate::support::again;

/// Stands before every line to the parent.
const MARK: &str = "@ ";

/// The variable with how long keys live that are handed over to the process, in milliseconds.
const HAND_OVER: &str = "REDLATCH_TEST_HAND_OVER";

/// The process, seen from the test.
pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// A lock that a process has: since when, and when it ends, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Had {
    pub have: u64,
    pub deadline: u64,
}

impl Process {
    /// Starts one, and waits until all its nodes are ready.
    #[track_caller]
    pub fn start(urls: &[String]) -> Process {
        let mut process = Process::begin(urls);
        process.wait_ready();
        process
    }

    /// Starts one, which says so when it is ready.
    #[track_caller]
    pub fn begin(urls: &[String]) -> Process {
        Process::spawn(again::command(module_path!(), "in_a_process_of_its_own", urls))
    }

    /// Starts one to which keys are handed over for this time, and waits until it is ready.
    #[track_caller]
    pub fn start_with_hand_over(urls: &[String], ttl: Duration) -> Process {
        let mut command = again::command(module_path!(), "in_a_process_of_its_own", urls);
        command.env(HAND_OVER, ttl.as_millis().to_string());
        let mut process = Process::spawn(command);
        process.wait_ready();
        process
    }

    fn spawn(mut command: Command) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it can be started again");
        let input = child.stdin.take().expect("it was asked for");
        let output = BufReader::new(child.stdout.take().expect("it was asked for"));
        Process { child, input, output }
    }

    #[track_caller]
    pub fn wait_ready(&mut self) {
        assert_eq!(self.answer(), "ready");
    }

    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&mut self, key: &str, ttl: Duration) -> Had {
        self.ask(key, ttl);
        self.had()
    }

    /// Begins to wait for the lock.
    #[track_caller]
    pub fn ask(&mut self, key: &str, ttl: Duration) {
        self.tell(&format!("lock {key} {}", ttl.as_millis()));
    }

    /// Begins to wait for a lock.
    #[track_caller]
    pub fn ask_in_line(&mut self, key: &str, ttl: Duration) {
        self.tell(&format!("wait {key} {}", ttl.as_millis()));
    }

    /// The lock that was waited for.
    #[track_caller]
    pub fn had(&mut self) -> Had {
        let line = self.answer();
        read(&line).unwrap_or_else(|| panic!("no lock: {line}"))
    }

    /// Gives it back; the moment before that.
    #[track_caller]
    pub fn release(&mut self) -> u64 {
        self.tell("release");
        self.released()
    }

    /// The moment before it gave back what it was told to release.
    #[track_caller]
    pub fn released(&mut self) -> u64 {
        let line = self.answer();
        let number = line.strip_prefix("released ").and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("not released: {line}"))
    }

    /// The lock that it had got when it was killed.
    pub fn had_in_life(&mut self) -> Option<Had> {
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("a pipe can be read");
        text.lines().rev().filter_map(|line| line.split_once(MARK)).find_map(|(_, line)| read(line))
    }

    /// Keeps the lock that it has until it is killed.
    #[track_caller]
    pub fn keep(&mut self) {
        self.tell("keep");
        assert_eq!(self.answer(), "keeping");
    }

    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the process listens");
    }

    /// The next line from it.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).expect("a pipe can be read");
            assert!(length > 0, "the process ended");
            if let Some((_, said)) = line.trim_end().split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    /// Ends its connection to a node, from the node's side.
    #[track_caller]
    pub fn end_connection(&self, node: &Node) {
        let name = format!(" name={} ", name_of(self.child.id()));
        for line in node.client_list().iter().filter(|line| line.contains(&name)) {
            let id = line.split(' ').next().and_then(|word| word.strip_prefix("id="));
            node.command(&["CLIENT", "KILL", "ID", id.expect("each line begins with it")]);
        }
    }

    /// SIGSTOP: it does nothing until it goes on.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.child.id());
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
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child's pid is positive"), signal).expect("it is a child");
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads what a process says of a lock that it has.
fn read(line: &str) -> Option<Had> {
    let words = line.strip_prefix("have ")?;
    let numbers: Vec<u64> = words.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [have, deadline] = numbers[..] else { return None };
    Some(Had { have, deadline })
}

/// The name of its connections.
fn name_of(process: u32) -> String {
    format!("waiting-{process}")
}

/// No test by itself: the life of the processes that the tests start.
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
            ["wait", key, ttl] => held = wait_for(&client, key, options(ttl)),
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
            ["contend-in-line", key, ttl, end, file] => {
                contend(&client, key, options(ttl), number(end), file);
                say("done");
            }
            _ => panic!("what is {line}?"),
        }
    }
}

fn say(line: &str) {
    println!("{MARK}{line}");
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

/// Ends what the processes do that write into this file, before the moment that they were given.
pub fn let_them_end(file: &Path) {
    std::fs::write(over(file), "").expect("the fleet's directory can be written");
}

/// The file that says so.
fn over(file: &Path) -> PathBuf {
    file.with_extension("over")
}

/// Takes the lock and gives it back again and again. Writes every hold into the file: the process
/// id, when it asked, from when and until when it held. A wait that got no lock holds from 0.
fn contend(client: &Client, key: &str, options: LockOptions, end: u64, file: &str) {
    // Many processes append to the file, so each line is one write.
    let over = over(Path::new(file));
    let mut file = OpenOptions::new().append(true).open(file).expect("the parent made it");
    let who = std::process::id();
    let mut dice = Dice::new(now().wrapping_mul(u64::from(who)));
    loop {
        let asked = now();
        if asked >= end || over.exists() {
            return;
        }
        // The wait is no longer than a look for the end of the test takes.
        let wait = Duration::from_nanos(end - asked).min(LOOKED_BY);
        let (from, until) = match client.lock(key, options.wait(wait)) {
            Ok(guard) => {
                let from = now();
                let_pass(Duration::from_micros(dice.below(2_000)));
                let deadline = guard.deadline().map_or(from, |deadline| deadline.as_nanos());
                if dice.below(200) == 0 {
                    // The guard is forgotten instead of released: the client holds the lock up to
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
        let line = format!("{who} {asked} {from} {until}\n");
        file.write_all(line.as_bytes()).expect("the file can be written");
    }
}
