//! One lock for all tests of this machine that start servers: two cores carry one fleet, not ten.
//!
//! The lock is an flock on a file, so it works between threads and processes alike, and the kernel
//! releases it when a test dies. The one hazard: taking it twice on one thread would wait for ever,
//! so that panics instead.

use std::fs::{File, OpenOptions};
use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Which thread of this process took the lock last and has not given it back.
static HOLDER: Mutex<Option<ThreadId>> = Mutex::new(None);

/// The right to run servers, until it is dropped.
#[derive(Debug)]
pub struct ServerLock {
    file: Option<File>,
}

impl ServerLock {
    /// Waits for the lock, however long the tests before this one take.
    #[track_caller]
    pub fn take() -> ServerLock {
        let holder = *HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
        let me = std::thread::current().id();
        assert!(holder != Some(me), "this thread has a fleet already: drop it first");
        let file = open().expect("the lock file of the tests can be opened");
        loop {
            match flock(&file, FlockOperation::LockExclusive) {
                Ok(()) => return ServerLock::taken(file),
                Err(Errno::INTR) => {}
                Err(error) => panic!("flock of the tests' lock file: {error}"),
            }
        }
    }

    /// The lock, if no process has it at this moment.
    pub fn try_take() -> Option<ServerLock> {
        let file = open().expect("the lock file of the tests can be opened");
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Some(ServerLock::taken(file)),
            Err(Errno::WOULDBLOCK) => None,
            Err(error) => panic!("flock of the tests' lock file: {error}"),
        }
    }

    fn taken(file: File) -> ServerLock {
        *HOLDER.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current().id());
        ServerLock { file: Some(file) }
    }
}

impl Drop for ServerLock {
    fn drop(&mut self) {
        // The holder is cleared before the file is closed: the next one may write its name at once.
        *HOLDER.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.file = None;
    }
}

/// Reading is enough for a lock, and the file of another user can be read but not created again.
fn open() -> io::Result<File> {
    let path = std::env::temp_dir().join("redlatch-tests.lock");
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)
        }
        opened => opened,
    }
}
