//! A hundred plain clients that take the key whenever it is free, while others wait for it in line.
//!
//! They stand for clients of other libraries: each sends `SET NX PX` to all nodes, holds the lock
//! if a majority granted it, and deletes its key where the value is its own. They do not know the
//! line. All holders write into one file, and the checker reads nothing else.

use super::process::Process;
use super::*;
use crate::support::holds::{Journal, assert_no_two_holders, holds_in};
use crate::support::{RespClient, Value};

const FAIR: usize = 6;
const THREADS: u32 = 4;
const PLAIN_OF_A_THREAD: u32 = 25;

/// There is a line from the first to the second of these moments. The plain clients try from the
/// beginning to the third, and get the lock only when there is no line.
const MOMENTS: [Duration; 3] = [millis(500), millis(3_500), millis(4_000)];
const TTL_MILLIS: u64 = 400;

const DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

/// A plain client: one connection to each node.
struct Plain {
    wires: Vec<RespClient>,
    number: u32,
    asked: usize,
}

impl Plain {
    fn connect(fleet: &Fleet, number: u32) -> Plain {
        Plain { wires: fleet.iter().map(Node::client).collect(), number, asked: 0 }
    }

    /// Sends a command to all nodes, and counts the replies that pass `wanted`.
    fn ask(&mut self, command: &[&str], wanted: impl Fn(&Value) -> bool) -> usize {
        for wire in &mut self.wires {
            wire.send(command).expect("the node is there");
        }
        let replies = self.wires.iter_mut().map(|wire| wire.read().expect("the node answers"));
        replies.filter(wanted).count()
    }

    /// Makes one attempt. If it gets the lock, it holds it for a moment and notes that.
    fn try_once(&mut self, dice: &mut Dice, journal: &mut Journal) {
        self.asked += 1;
        let token = format!("plain-{}-{}", self.number, self.asked);
        let ttl = TTL_MILLIS.to_string();
        let asked = now();
        let deadline =
            asked + (millis(TTL_MILLIS) - millis(TTL_MILLIS / 100 + 2)).as_nanos() as u64;
        let granted = self.ask(&["SET", "a", &token, "NX", "PX", &ttl], Value::is_ok);
        let from = now();
        let held = granted > self.wires.len() / 2 && from < deadline;
        if held {
            let_pass(Duration::from_micros(dice.below(1_000)));
            let until = now().min(deadline);
            journal.note_of(self.number, asked, (from, until), &[0]);
        }
        if granted > 0 {
            self.ask(&["EVAL", DELETE, "1", "a", &token], |_| true);
        }
    }
}

/// One thread: makes attempts with each of its clients in turn until `end`.
fn barge(fleet: &Fleet, first: u32, end: u64, path: &std::path::Path) {
    let mut journal = Journal::open(path);
    let mut dice = Dice::new(1 + u64::from(first));
    let numbers = first..first + PLAIN_OF_A_THREAD;
    let mut clients: Vec<Plain> = numbers.map(|number| Plain::connect(fleet, number)).collect();
    while now() < end {
        let client = dice.below(clients.len() as u64) as usize;
        clients[client].try_once(&mut dice, &mut journal);
    }
}

#[test]
fn hundred_plain_clients_beside_a_line_never_hold_with_another() {
    despite_stalls(SECOND, |_| plain_clients_beside_a_line());
}

fn plain_clients_beside_a_line() {
    let fleet = Fleet::start(3);
    let path = fleet[0].directory().join("holds");
    std::fs::write(&path, "").expect("the fleet's directory can be written");
    let mut processes: Vec<Process> = (0..FAIR).map(|_| Process::begin(&fleet.urls())).collect();
    processes.iter_mut().for_each(Process::wait_ready);
    let begin = now();
    let [_, line_ends, end] = MOMENTS.map(|moment| begin + moment.as_nanos() as u64);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (fleet, path) = (&fleet, &path);
            // These numbers are smaller than any process id, which the other processes write.
            scope.spawn(move || barge(fleet, thread * PLAIN_OF_A_THREAD, end, path));
        }
        let_pass(MOMENTS[0]);
        for process in &mut processes {
            process.tell(&format!("contend a {TTL_MILLIS} {line_ends} {}", path.display()));
        }
    });
    for process in &mut processes {
        assert_eq!(process.answer(), "done");
    }
    let holds = holds_in(&path);
    assert_no_two_holders(&holds);
    let plain = |who: u32| who < THREADS * PLAIN_OF_A_THREAD;
    let had: Vec<u32> = holds.iter().filter(|hold| hold.from > 0).map(|hold| hold.who).collect();
    let of_plain = had.iter().filter(|&&who| plain(who)).count();
    let of_line = had.len() - of_plain;
    println!("{of_line} holds of waiters in line, {of_plain} of plain clients");
    assert!(of_line > 20 && of_plain > 20, "the lock hardly moved");
    drop(processes);
    wait_until_nothing_is_left(&fleet);
    eventually(SOON, "no client listens on a channel", || {
        let channels = |node: &Node| node.command(&["PUBSUB", "CHANNELS", "redlatch:*"]);
        fleet.iter().all(|node| channels(node).text_items().is_empty())
    });
}
