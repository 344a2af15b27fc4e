//! The holds of processes that lock the same keys while nodes come and go, and the check that no
//! two held one key at one time.
//!
//! The processes write their holds into one file, and the check reads nothing else. The hazard is
//! two lines that mix: so each line is one write to a file that is opened to append.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use super::{Dice, Fleet};

/// One line of the file, with moments of a clock that all processes share, in nanoseconds.
#[derive(Debug, Clone)]
pub struct Hold {
    pub who: u32,
    pub asked: u64,
    /// 0: the process did not get the lock.
    pub from: u64,
    pub until: u64,
    /// The numbers of the keys.
    pub keys: Vec<usize>,
}

impl Hold {
    fn read(line: &str) -> Hold {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [who, asked, from, until, ref keys @ ..] = numbers[..] else {
            panic!("not a line of ours: {line}")
        };
        let keys = keys.iter().map(|&key| key as usize).collect();
        Hold { who: who as u32, asked, from, until, keys }
    }
}

/// The file, as one of those who hold writes it.
pub struct Journal {
    file: File,
    who: u32,
}

impl Journal {
    pub fn open(path: impl AsRef<Path>) -> Journal {
        let file = OpenOptions::new().append(true).open(path).expect("the test made it");
        Journal { file, who: std::process::id() }
    }

    /// Writes a hold of this process.
    pub fn note(&mut self, asked: u64, held: (u64, u64), keys: &[usize]) {
        self.note_of(self.who, asked, held, keys);
    }

    /// Writes a hold of a client of this process. The number of the client is no process id.
    pub fn note_of(&mut self, who: u32, asked: u64, held: (u64, u64), keys: &[usize]) {
        let (from, until) = held;
        let keys: String = keys.iter().map(|key| format!(" {key}")).collect();
        let line = format!("{who} {asked} {from} {until}{keys}\n");
        self.file.write_all(line.as_bytes()).expect("the file can be written");
    }
}

/// The holds that the processes have written.
pub fn holds_in(file: &Path) -> Vec<Hold> {
    let text = std::fs::read_to_string(file).expect("the file can be read");
    text.lines().map(Hold::read).collect()
}

/// Checks that no two processes held one key at one time.
#[track_caller]
pub fn assert_no_two_holders(holds: &[Hold]) {
    let mut by_key: BTreeMap<usize, Vec<&Hold>> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.from > 0) {
        assert!(!hold.keys.is_empty(), "no key: {hold:?}");
        hold.keys.iter().for_each(|&key| by_key.entry(key).or_default().push(hold));
    }
    for (key, mut held) in by_key {
        held.sort_by_key(|hold| hold.from);
        for pair in held.windows(2) {
            assert!(pair[0].until <= pair[1].from, "key {key} is held by two: {pair:?}");
        }
    }
}

/// Stops and continues, or kills and restarts, a minority of the nodes, again and again while
/// `goes_on`, with pauses up to this long. Returns how often.
pub fn trouble(fleet: &Fleet, pause: Duration, goes_on: impl Fn() -> bool) -> usize {
    let mut dice = Dice::of_this_run();
    let pause = pause.as_millis() as u64;
    let mut troubles = 0;
    while goes_on() {
        let mut nodes: Vec<usize> = (0..fleet.len()).collect();
        dice.shuffle(&mut nodes);
        nodes.truncate(1 + dice.place(fleet.len() / 2));
        let kills: Vec<bool> = nodes.iter().map(|_| dice.chance(500)).collect();
        for (&node, &kill) in nodes.iter().zip(&kills) {
            if kill { fleet[node].kill() } else { fleet[node].stop() }
        }
        std::thread::sleep(Duration::from_millis(dice.below(pause)));
        for (&node, &kill) in nodes.iter().zip(&kills) {
            if kill { fleet[node].restart() } else { fleet[node].cont() }
        }
        std::thread::sleep(Duration::from_millis(dice.below(pause)));
        troubles += nodes.len();
    }
    troubles
}
