//! A sheet: the file in shared memory on which one process writes what it believes.
//!
//! A record is one hold: its key, when the holder began to use it, until when the library said that
//! the lock lasts, and when the holder ended its use. A header counts what else happened. A process
//! that is killed leaves its sheet as it was at that moment, and the checker reads it all the same.
//!
//! The hazard is a record that is read while it is written. So the mark that makes a record valid
//! is written last.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use redlatch::clock::{self, Instant};

/// Words of 8 bytes in a record: mark, begin, deadline, end.
const RECORD: usize = 4;
const HEADER: u64 = 256;
const MARK: u64 = 0;
const BEGIN: u64 = 1;
const DEADLINE: u64 = 2;
const END: u64 = 3;

/// What is counted beside the holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Another client held the key until the wait was over.
    Contended,
    NoQuorum,
    Expired,
    /// The lock was over before its holder began to use it.
    Late,
    /// The lock was over while its holder still wanted it, and the holder's own check said so.
    LossNoticed,
    /// A holder that meant to go on until then, past its deadline.
    Overstayed,
    Extended,
    NotExtended,
    /// Holds that the library renewed by itself.
    AutoExtended,
    Released,
    /// A release that removed nothing, or that no majority confirmed.
    NotReleased,
    Dropped,
    WrapperKilled,
    WrapperStopped,
}

impl Count {
    pub const ALL: [Count; 14] = [
        Count::Contended,
        Count::NoQuorum,
        Count::Expired,
        Count::Late,
        Count::LossNoticed,
        Count::Overstayed,
        Count::Extended,
        Count::NotExtended,
        Count::AutoExtended,
        Count::Released,
        Count::NotReleased,
        Count::Dropped,
        Count::WrapperKilled,
        Count::WrapperStopped,
    ];
}

/// A sheet that is written to.
#[derive(Debug)]
pub struct Sheet {
    file: File,
    next: AtomicU64,
    counts: [AtomicU64; Count::ALL.len()],
}

impl Sheet {
    /// An empty sheet.
    pub fn create(path: &Path) -> Sheet {
        let file = File::create(path).expect("shared memory can be written");
        Sheet { file, next: AtomicU64::new(0), counts: Default::default() }
    }

    pub fn count(&self, what: Count) {
        let count = 1 + self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
        write(&self.file, 8 * what as u64, count);
    }

    /// The place of a record that this process or one of its children writes.
    pub fn reserve(&self) -> u64 {
        HEADER + 8 * RECORD as u64 * self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The holder begins to use a lock that lasts until `deadline`. `None`: the lock is over.
    pub fn begin(&self, key: u64, deadline: Instant) -> Option<Use<'_>> {
        Use::begin(&self.file, self.reserve(), key, deadline)
    }

    /// A record that a child writes lasts until this later deadline.
    pub fn lasts_until(&self, place: u64, deadline: Instant) {
        write(&self.file, place + 8 * DEADLINE, deadline.as_nanos());
    }
}

/// The sheet of a parent, for the one record that its child writes.
pub fn open(path: &Path) -> File {
    OpenOptions::new().write(true).open(path).expect("the parent made its sheet")
}

/// A lock in use.
#[derive(Debug)]
pub struct Use<'a> {
    file: &'a File,
    place: u64,
    deadline: Instant,
}

impl<'a> Use<'a> {
    pub fn begin(file: &'a File, place: u64, key: u64, deadline: Instant) -> Option<Use<'a>> {
        let begin = clock::now();
        if begin >= deadline {
            return None;
        }
        write(file, place + 8 * BEGIN, begin.as_nanos());
        write(file, place + 8 * DEADLINE, deadline.as_nanos());
        write(file, place + 8 * MARK, key + 1);
        Some(Use { file, place, deadline })
    }

    /// The library said that the lock lasts until then.
    pub fn lasts_until(&mut self, deadline: Instant) {
        if deadline > self.deadline {
            self.deadline = deadline;
            write(self.file, self.place + 8 * DEADLINE, deadline.as_nanos());
        }
    }

    /// The holder is alive, and uses the lock until this moment at least; or it ends its use now.
    /// The last call counts.
    pub fn ends_now(&self) {
        write(self.file, self.place + 8 * END, clock::now().as_nanos());
    }
}

fn write(file: &File, at: u64, word: u64) {
    file.write_all_at(&word.to_le_bytes(), at).expect("shared memory can be written");
}

/// A sheet as the checker reads it.
#[derive(Debug, Default)]
pub struct Page {
    pub counts: Vec<u64>,
    pub holds: Vec<Hold>,
}

/// One hold: from its begin until the holder does not believe in it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub key: u64,
    pub begin: u64,
    pub deadline: u64,
    /// Zero: the holder wrote no end.
    pub end: u64,
    /// The place in its sheet.
    pub number: usize,
}

impl Hold {
    /// A holder that wrote no end believes in its lock up to the deadline.
    pub fn until(&self) -> u64 {
        if self.end == 0 { self.deadline } else { self.end.min(self.deadline) }
    }
}

impl Page {
    pub fn read(path: &Path) -> Page {
        let bytes = std::fs::read(path).unwrap_or_default();
        let word = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().expect("8 bytes"));
        let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        let header = (HEADER / 8) as usize;
        let counts = (0..Count::ALL.len()).map(|at| words.get(at).copied().unwrap_or(0)).collect();
        let mut holds = Vec::new();
        // The last record may be cut: its later words were not written yet.
        for (number, record) in words.get(header..).unwrap_or_default().chunks(RECORD).enumerate() {
            let at = |field: u64| record.get(field as usize).copied().unwrap_or(0);
            if at(MARK) > 0 {
                let (key, begin, deadline, end) = (at(MARK) - 1, at(BEGIN), at(DEADLINE), at(END));
                holds.push(Hold { key, begin, deadline, end, number });
            }
        }
        Page { counts, holds }
    }
}
