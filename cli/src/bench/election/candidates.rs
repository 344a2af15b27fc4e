//! The candidates of `bench --election` as processes, their lines, and the signals to the bench, on
//! one poller.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use mio::unix::pipe::Receiver;
use mio::{Events, Interest, Poll, Token};
use redlatch::{clock, clock::Instant};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook_mio::v1_0::Signals;

use super::candidate;
use crate::die_with_parent;
use crate::output::Refusal;
use crate::signals;

const SIGNALS: Token = Token(usize::MAX);

const EVENTS: usize = 64;

/// What a turn of the poller brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// This candidate printed that it leads.
    Leads(usize),
    /// This candidate's process ended.
    Ended(usize),
    /// This signal ends the bench.
    Signal(i32),
}

/// The candidates, each by its index.
pub struct Candidates {
    election: String,
    /// The shell command that runs a candidate of another program.
    foreign: Option<String>,
    processes: Vec<Process>,
    poll: Poll,
    events: Events,
    signals: Signals,
}

struct Process {
    child: Child,
    lines: Receiver,
    /// The part of a line that has been read.
    unread: Vec<u8>,
}

impl Candidates {
    /// No candidate runs yet.
    pub fn new(election: String, foreign: Option<String>) -> Result<Candidates, Refusal> {
        let poll = Poll::new().map_err(|error| system("poller", &error))?;
        let signals = signals::listen(poll.registry(), SIGNALS, &signals::ENDING)?;
        let (processes, events) = (Vec::new(), Events::with_capacity(EVENTS));
        Ok(Candidates { election, foreign, processes, poll, events, signals })
    }

    /// Starts one candidate more.
    pub fn add(&mut self) -> Result<(), Refusal> {
        let process = self.start(self.processes.len())?;
        self.processes.push(process);
        Ok(())
    }

    /// Ends this candidate's process, and starts it anew.
    pub fn replace(&mut self, index: usize) -> Result<(), Refusal> {
        end(&mut self.processes[index].child);
        // The poller forgets the old pipe when it is closed.
        self.processes[index] = self.start(index)?;
        Ok(())
    }

    /// Sends a signal to this candidate.
    pub fn signal(&self, index: usize, signal: Signal) -> Result<(), Refusal> {
        kill_process(pid(&self.processes[index].child), signal)
            .map_err(|error| system("signal to a candidate", &error.into()))
    }

    /// Waits until `until` at most. Returns what happened, and when it was seen.
    pub fn turn(&mut self, until: Instant) -> Result<(Vec<Event>, Instant), Refusal> {
        let sleep = until.saturating_since(clock::now());
        match self.poll.poll(&mut self.events, Some(sleep)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                return Err(system("poller", &error));
            }
            _ => {}
        }
        let now = clock::now();
        let mut seen: Vec<Event> = self.signals.pending().map(Event::Signal).collect();
        for event in &self.events {
            let Token(index) = event.token();
            if let Some(process) = self.processes.get_mut(index) {
                process.read(index, &mut seen);
            }
        }
        Ok((seen, now))
    }

    /// Ends all candidates. The leader is the last one: else its lock would be handed over to a
    /// candidate that ends, too, and would stay until its ttl is over.
    pub fn end(&mut self, leader: usize) {
        if leader < self.processes.len() {
            self.processes[leader..].rotate_left(1);
        }
        let last = self.processes.pop();
        let others = std::mem::take(&mut self.processes);
        others.iter().for_each(Process::ask_to_end);
        others.into_iter().for_each(Process::wait);
        last.iter().for_each(Process::ask_to_end);
        last.into_iter().for_each(Process::wait);
    }

    fn start(&self, index: usize) -> Result<Process, Refusal> {
        let name = format!("candidate-{index}");
        let child = match &self.foreign {
            None => self.ours(&name),
            Some(script) => die_with_parent::command(
                Path::new("/bin/sh"),
                &["sh", "-c", script].map(std::ffi::OsString::from),
            ),
        }
        .env("ELECTION", &self.election)
        .env("CANDIDATE", &name)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
        let mut child = child.map_err(|error| system("a candidate cannot be started", &error))?;
        let lines: ChildStdout = child.stdout.take().expect("stdout is a pipe");
        let mut lines = Receiver::from(lines);
        let listen = |lines: &mut Receiver| {
            lines.set_nonblocking(true)?;
            self.poll.registry().register(lines, Token(index), Interest::READABLE)
        };
        listen(&mut lines).map_err(|error| system("pipe of a candidate", &error))?;
        Ok(Process { child, lines, unread: Vec::new() })
    }

    fn ours(&self, name: &str) -> Command {
        let arguments = candidate::arguments(&self.election, name);
        die_with_parent::command(Path::new("/proc/self/exe"), &arguments)
    }
}

/// No candidate outlives the bench, however it ends.
impl Drop for Candidates {
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(|process| end(&mut process.child));
    }
}

impl Process {
    fn ask_to_end(&self) {
        // It may have ended before. A stopped process ends once it goes on.
        let _ = kill_process(pid(&self.child), Signal::TERM);
        let _ = kill_process(pid(&self.child), Signal::CONT);
    }

    fn wait(mut self) {
        let _ = self.child.wait();
    }

    fn read(&mut self, index: usize, seen: &mut Vec<Event>) {
        let mut buffer = [0; 4096];
        loop {
            match self.lines.read(&mut buffer) {
                Ok(0) => return seen.push(Event::Ended(index)),
                Ok(length) => self.take_lines(&buffer[..length], index, seen),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing is there, or nothing can be read any more.
                Err(_) => return,
            }
        }
    }

    fn take_lines(&mut self, read: &[u8], index: usize, seen: &mut Vec<Event>) {
        self.unread.extend_from_slice(read);
        while let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            if line.starts_with(b"leading") {
                seen.push(Event::Leads(index));
            }
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn end(child: &mut Child) {
    // It may have ended before.
    let _ = child.kill();
    let _ = child.wait();
}

fn system(what: &str, error: &io::Error) -> Refusal {
    Refusal::internal(format!("{what}: {}", crate::output::error_text(error)))
}
