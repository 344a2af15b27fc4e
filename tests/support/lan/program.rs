//! What a contender runs: the core of a client, or a bare loop.

use redlatch::proto::Instant;
use redlatch::testing::net::Endpoint;

/// A program that takes a lock and gives it back.
pub trait Program: Endpoint {
    /// Asks for a lock over the keys of these names.
    fn ask(&mut self, keys: Vec<String>, now: Instant);

    /// Releases the lock that the program holds.
    fn release(&mut self, now: Instant);

    /// What happened to the program since the last call.
    fn progress(&mut self, now: Instant) -> Progress;
}

/// What happened to a program.
#[derive(Debug, Default)]
pub struct Progress {
    /// The program has the lock from now on.
    pub won: bool,
    /// The lock that it gave back is released.
    pub released: bool,
}
