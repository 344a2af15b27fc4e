//! A client in a process of its own, which locks random sets of keys again and again.

use std::io::{BufRead, stdin};

use redlatch::{LockOptions, clock};

use super::*;
use crate::support::{Dice, again, holds::Journal};

/// The ttl: how long a lock lives if its release does not arrive.
const SHORT: Duration = millis(1500);

/// The orders for a process.
#[derive(Debug, Clone, Copy)]
pub struct Contest<'a> {
    /// How many keys there are.
    pub keys: usize,
    /// How many of them a set has.
    pub of: usize,
    /// When it ends, on the clock of deadlines, in nanoseconds.
    pub end: u64,
    /// The file into which the processes write their holds.
    pub file: &'a str,
}

pub fn begin(urls: &[String]) -> again::Process {
    again::Process::start(again::command(module_path!(), "in_a_process_of_its_own", urls))
}

impl Contest<'_> {
    /// The order to lock random sets until the end of the contest. Then the process answers `done`.
    pub fn order(&self) -> String {
        let Contest { keys, of, end, file } = self;
        format!("{keys} {of} {end} {file}")
    }
}

/// This is no test by itself: the other tests start it as their process.
#[test]
fn in_a_process_of_its_own() {
    let Some(urls) = again::nodes() else { return };
    let client = ready::client(config(urls).node_timeout(millis(50)));
    again::say("ready");
    for line in stdin().lock().lines() {
        let line = line.expect("a pipe can be read");
        let words: Vec<&str> = line.split(' ').collect();
        let [keys, of, end, file] = words[..] else { panic!("what is {line}?") };
        let number = |word: &str| word.parse::<u64>().expect("a number");
        let (keys, of) = (number(keys) as usize, number(of) as usize);
        contend(&client, Contest { keys, of, end: number(end), file });
        again::say("done");
    }
    let left = client.close(5 * SECOND);
    assert!(left == 0, "{left} records are left");
}

/// Locks random sets until the end, and notes each request in the file.
fn contend(client: &Client, Contest { keys, of, end, file }: Contest<'_>) {
    let mut journal = Journal::open(file);
    let now = || clock::now().as_nanos();
    let mut dice = Dice::new(now().wrapping_mul(u64::from(std::process::id())));
    let mut all: Vec<usize> = (0..keys).collect();
    loop {
        dice.shuffle(&mut all);
        let names = all[..of].iter().map(|key| format!("k{key}")).collect::<Vec<_>>();
        let asked = now();
        if asked >= end {
            break;
        }
        let options = LockOptions::new(SHORT).wait(20 * SECOND);
        let held = match client.lock(names, options) {
            Ok(guard) => {
                let from = now();
                std::thread::sleep(Duration::from_micros(dice.below(2_000)));
                let deadline = guard.deadline().map_or(from, |deadline| deadline.as_nanos());
                let until = now().min(deadline);
                drop(guard.release());
                (from, until)
            }
            Err(error @ Error::Config(_)) => panic!("{error}"),
            Err(_) => (0, 0),
        };
        journal.note(asked, held, &all[..of]);
    }
    // Sends the releases that are pending for nodes that were down, once they are back.
    client.drive(2 * SECOND).expect("the poller works");
}
