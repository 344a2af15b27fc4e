//! Limits how many fleets of servers run at a time on this machine: each fleet takes one of a few
//! places, which all tests share.
//!
//! The places are flocks on files, so they work between threads and processes alike, and the kernel
//! frees them when a test dies. Other tests of the same process run meanwhile, so a test that
//! measures its whole process runs in one of its own: see `again`. The one hazard: if each thread
//! held a place and waited for a second one, all would wait for ever. So a thread that takes a
//! second place panics.

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How many fleets run at a time. Most tests spend most of their time waiting for a timeout, so two
/// cores are enough for this many. By default a test binary has as many threads as there are cores.
pub const PLACES: usize = 4;

/// How long the first test in the queue sleeps before it looks for a free place again.
const LOOK: Duration = Duration::from_millis(2);

/// The threads of this process that hold a place.
static HOLDERS: Mutex<Vec<ThreadId>> = Mutex::new(Vec::new());

/// The right to run one fleet of servers, until it is dropped.
#[derive(Debug)]
pub struct ServerLock {
    /// The locked file of the place. Closing it unlocks it.
    place: Option<File>,
    holder: ThreadId,
}

impl ServerLock {
    /// Waits for one place, however long the tests before this one take.
    #[track_caller]
    pub fn take() -> ServerLock {
        let holder = std::thread::current().id();
        assert!(!holders(|it| it.contains(&holder)), "this thread has a fleet already: drop it");
        // This lock is the queue: only the test that holds it looks for a place.
        let turn = lock("");
        let place = loop {
            match (0..PLACES).find_map(|n| try_lock(&format!("-{n}"))) {
                Some(place) => break place,
                None => std::thread::sleep(LOOK),
            }
        };
        drop(turn);
        holders(|it| it.push(holder));
        ServerLock { place: Some(place), holder }
    }
}

impl Drop for ServerLock {
    fn drop(&mut self) {
        let holder = self.holder;
        holders(|it| it.retain(|&other| other != holder));
        self.place = None;
    }
}

fn holders<T>(act: impl FnOnce(&mut Vec<ThreadId>) -> T) -> T {
    act(&mut HOLDERS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Waits until no other test has this file locked.
#[track_caller]
fn lock(name: &str) -> File {
    let file = open(name).expect("a lock file of the tests can be opened");
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Ok(()) => return file,
            Err(Errno::INTR) => {}
            Err(error) => panic!("flock of a lock file of the tests: {error}"),
        }
    }
}

/// As `lock`, but returns `None` if another test has the file locked at this moment.
#[track_caller]
fn try_lock(name: &str) -> Option<File> {
    let file = open(name).expect("a lock file of the tests can be opened");
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Some(file),
        Err(Errno::WOULDBLOCK) => None,
        Err(error) => panic!("flock of a lock file of the tests: {error}"),
    }
}

/// Opens the file for reading if it exists. A lock needs no more, and the file of another user may
/// not be writable.
fn open(name: &str) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("redlatch-tests{name}.lock"));
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)
        }
        opened => opened,
    }
}
