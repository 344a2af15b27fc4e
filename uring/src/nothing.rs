//! No io_uring on this system: the same interface, and every ring is refused.

use std::convert::Infallible;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::Event;

/// A ring that cannot be made.
#[derive(Debug)]
pub struct Ring(Infallible);

#[allow(missing_docs, reason = "documented on the systems that have it")]
impl Ring {
    pub fn new(_: usize, _: u16, _: usize) -> io::Result<Ring> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub fn is_a_copy(&self) -> bool {
        match self.0 {}
    }

    pub fn watch(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        match self.0 {}
    }

    pub fn attach(&mut self, _: usize, _: BorrowedFd<'_>) -> io::Result<()> {
        match self.0 {}
    }

    pub fn is_attached(&self, _: usize) -> bool {
        match self.0 {}
    }

    pub fn detach(&mut self, _: usize) {
        match self.0 {}
    }

    pub fn send(&mut self, _: usize, _: &[u8]) -> bool {
        match self.0 {}
    }

    pub fn has_unsent(&self, _: usize) -> bool {
        match self.0 {}
    }

    pub fn resume(&mut self, _: usize) {
        match self.0 {}
    }

    pub fn has_queued(&mut self) -> bool {
        match self.0 {}
    }

    pub fn submit(&mut self) -> io::Result<()> {
        match self.0 {}
    }

    pub fn submit_and_wait(&mut self, _: Option<Duration>) -> io::Result<()> {
        match self.0 {}
    }

    pub fn next_event(&mut self) -> Option<Event<'_>> {
        match self.0 {}
    }
}
