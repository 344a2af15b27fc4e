//! A sheet: the file in shared memory into which one process writes its holds.
//!
//! A record is one hold: its key, when the holder began to use the lock, the deadline that the
//! library reported, and when the holder ended its use. A header has counters of other events. A
//! process that is killed leaves its sheet as it was at that moment, and the checker still reads
//! it.
//!
//! The hazard is a record that is read while it is being written. So the mark that makes a record
//! valid is written last.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use redlatch::clock::{self, Instant};

/// The number of 8-byte words in a record: mark, begin, deadline, end.
const RECORD: usize = 4;
const HEADER: u64 = 256;
const MARK: u64 = 0;
const BEGIN: u64 = 1;
const DEADLINE: u64 = 2;
const END: u64 = 3;

/// The events that are counted, besides the holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Another client held the key until the wait was over.
    Contended,
    NoQuorum,
    Expired,
    /// The lock was over before its holder began to use it.
    Late,
    /// The lock ended while its holder still needed it, and the holder's check reported that.
    LossNoticed,
    /// A holder that went on until its lock ended, as planned.
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

/// A sheet, open for writing.
#[derive(Debug)]
pub struct Sheet {
    file: File,
    next: AtomicU64,
    counts: [AtomicU64; Count::ALL.len()],
}

impl Sheet {
    /// Creates an empty sheet.
    pub fn create(path: &Path) -> Sheet {
        let file = File::create(path).expect("shared memory can be written");
        Sheet { file, next: AtomicU64::new(0), counts: Default::default() }
    }

    pub fn count(&self, what: Count) {
        let count = 1 + self.counts[what as usize].fetch_add(1, Ordering::Relaxed);
        write(&self.file, 8 * what as u64, count);
    }

    /// Reserves the place of a record, which this process or one of its children writes.
    pub fn reserve(&self) -> u64 {
        HEADER + 8 * RECORD as u64 * self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Records that the holder begins to use a lock that lasts until `deadline`. Returns `None` if
    /// the lock is over.
    pub fn begin(&self, key: u64, deadline: Instant) -> Option<Use<'_>> {
        Use::begin(&self.file, self.reserve(), key, deadline)
    }

    /// Records a later deadline for a record that a child writes.
    pub fn lasts_until(&self, place: u64, deadline: Instant) {
        write(&self.file, place + 8 * DEADLINE, deadline.as_nanos());
    }
}

/// Opens the sheet of the parent process, for the one record that its child writes.
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

    /// Records that the library reported this deadline.
    pub fn lasts_until(&mut self, deadline: Instant) {
        if deadline > self.deadline {
            self.deadline = deadline;
            write(self.file, self.place + 8 * DEADLINE, deadline.as_nanos());
        }
    }

    /// Records that the holder has used the lock until now. The last call is the end of its use.
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

/// One hold, as the checker reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub key: u64,
    pub begin: u64,
    pub deadline: u64,
    /// Zero if the holder wrote no end.
    pub end: u64,
    /// The number of the record in its sheet.
    pub number: usize,
}

impl Hold {
    /// The end of the hold: its deadline, or the written end if that is earlier.
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
        // The last record may be incomplete, because its later words were not written yet.
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
