//! How far a step of a change of the list is, as the servers show it, and a tool that is killed in
//! a chosen part of the step.
//!
//! The parts between two waits take a millisecond each. So the tool is stopped again and again, a
//! fraction of a millisecond after it went on, and the servers are asked meanwhile. The hazard is a
//! part that is over when the test looks: then the tool is killed in the part that the test saw.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use super::support::signals::in_own_group;
use super::support::{Fleet, Value};

/// How long the tool goes on between two looks at the servers.
const SLICE: Duration = Duration::from_micros(80);

/// How long the tool may take to reach a part, on a busy machine.
const LONGEST: Duration = Duration::from_secs(90);

/// The parts of a step, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Nothing is written yet.
    Before,
    /// The server that joins is bound to the list.
    Learner,
    /// A member has promised to take part in a ballot.
    Promised,
    /// A member has voted.
    Accepted,
    /// The next list is on one of the servers that get it.
    Telling,
    /// The next list is on all of them.
    Told,
    /// One of them has the mark that the wait is over.
    Agreed,
}

/// The list as one server has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub id: String,
    pub stage: String,
    pub epoch: u64,
    pub members: Vec<String>,
    /// The members of the list before, while not all clients know the list.
    pub previous: Vec<String>,
    is_promised: bool,
    is_accepted: bool,
}

impl Entry {
    fn read(text: &str) -> Entry {
        let ids = |part: &str| -> Vec<String> {
            let pairs = part.split(' ').filter_map(|word| word.split_once('='));
            pairs.map(|(id, _)| id.to_owned()).collect()
        };
        let mut parts = text.split(" ; ");
        let first = parts.next().expect("a text has a first part");
        let words: Vec<&str> = first.split(' ').collect();
        let mut entry = Entry {
            id: words[1].to_owned(),
            stage: words[2].to_owned(),
            epoch: words[4].parse().expect("the epoch is a number"),
            members: ids(first),
            previous: Vec::new(),
            is_promised: false,
            is_accepted: false,
        };
        for part in parts {
            match part.split(' ').next() {
                Some("was") => entry.previous = ids(part),
                Some("promised") => entry.is_promised = true,
                Some("accepted") => entry.is_accepted = true,
                _ => {}
            }
        }
        entry
    }
}

/// The list of each server; `None` where there is none, or the server was killed.
pub fn entries(fleet: &Fleet) -> Vec<Option<Entry>> {
    let read = |node: usize| {
        if !fleet[node].is_running() {
            return None;
        }
        match fleet[node].command(&["GET", "redlatch:members"]) {
            Value::Bulk(text) => Some(Entry::read(&String::from_utf8_lossy(&text))),
            _ => None,
        }
    };
    (0..fleet.len()).map(read).collect()
}

/// How far the step from the list with this epoch is.
pub fn part(entries: &[Option<Entry>], epoch: u64) -> Part {
    let found = || entries.iter().flatten();
    let mut next = found().filter(|entry| entry.epoch > epoch);
    if let Some(first) = next.next() {
        let concerns = |entry: &&Entry| {
            first.members.contains(&entry.id) || first.previous.contains(&entry.id)
        };
        if found().any(|entry| entry.epoch > epoch && entry.stage == "agreed") {
            return Part::Agreed;
        }
        let is_told = found().filter(concerns).all(|entry| entry.epoch > epoch);
        return if is_told { Part::Told } else { Part::Telling };
    }
    let members = || found().filter(|entry| entry.epoch == epoch && entry.stage != "learner");
    let is_learner = |entry: &Entry| entry.epoch == epoch && entry.stage == "learner";
    if members().any(|entry| entry.is_accepted) {
        Part::Accepted
    } else if members().any(|entry| entry.is_promised) {
        Part::Promised
    } else if found().any(is_learner) {
        Part::Learner
    } else {
        Part::Before
    }
}

/// A running `redlatch members`. Dropping it kills it.
#[derive(Debug)]
pub struct Tool {
    child: Child,
    words: String,
}

impl Tool {
    pub fn start(mut command: Command) -> Tool {
        let words = format!("{command:?}");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = in_own_group(&mut command).spawn().expect("the tool was built");
        Tool { child, words }
    }

    /// Lets the tool go on until the step from this epoch has reached a part, and kills it there.
    /// Returns the part in which it was killed.
    #[track_caller]
    pub fn kill_in(mut self, wanted: Part, fleet: &Fleet, epoch: u64) -> Part {
        let start = Instant::now();
        loop {
            self.signal(Signal::STOP);
            self.wait_until_stopped(wanted);
            let part = part(&entries(fleet), epoch);
            if part >= wanted {
                self.kill();
                return part;
            }
            assert!(start.elapsed() < LONGEST, "{}: not {wanted:?}, but {part:?}", self.words);
            self.signal(Signal::CONT);
            let slice = Instant::now();
            while slice.elapsed() < SLICE {
                std::hint::spin_loop();
            }
        }
    }

    /// Kills the tool after this time, and returns how far the step from this epoch is then.
    pub fn kill_after(mut self, time: Duration, fleet: &Fleet, epoch: u64) -> Part {
        std::thread::sleep(time);
        self.signal(Signal::STOP);
        self.wait_until_stopped(Part::Told);
        let part = part(&entries(fleet), epoch);
        self.kill();
        part
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for the tool's end, which has to be a success.
    #[track_caller]
    pub fn end(mut self) -> String {
        let start = Instant::now();
        while self.child.try_wait().expect("it is our child").is_none() {
            assert!(start.elapsed() < LONGEST, "{}: it goes on and on", self.words);
            std::thread::sleep(Duration::from_millis(2));
        }
        let (is_done, words) = self.output();
        assert!(is_done, "{words}");
        words
    }

    fn signal(&self, signal: Signal) {
        // The child was not reaped, so the number is its own.
        kill_process(self.pid(), signal).expect("it is our child");
    }

    fn pid(&self) -> Pid {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        pid.expect("a child's pid is positive")
    }

    /// Waits until all threads of the tool are stopped.
    #[track_caller]
    fn wait_until_stopped(&mut self, wanted: Part) {
        // NOWAIT does not reap the process.
        let look = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.pid()), look).expect("it is our child");
        let is_stopped = status.is_some_and(|status| status.stopped());
        if !is_stopped {
            let (_, words) = self.output();
            panic!("it ended before {wanted:?}: {words}");
        }
    }

    /// Whether the tool ended well, and what it printed, which is too little to fill a pipe.
    fn output(&mut self) -> (bool, String) {
        use std::io::Read;

        let status = self.child.wait().expect("it is our child");
        let mut text = format!("{}: {status}\n", self.words);
        if let Some(out) = &mut self.child.stdout {
            out.read_to_string(&mut text).expect("the tool prints text");
        }
        if let Some(errors) = &mut self.child.stderr {
            errors.read_to_string(&mut text).expect("the tool prints text");
        }
        (status.success(), text)
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        self.kill();
    }
}
