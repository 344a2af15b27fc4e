//! What a contender runs: the core of a client, or a bare loop. Bytes and moments go in, bytes and
//! moments come out, as with the core itself.

use redlatch::proto::Instant;

/// A program that takes a lock and gives it back.
pub trait Program {
    /// Asks for a lock over the keys of these names.
    fn ask(&mut self, keys: Vec<String>, now: Instant);

    /// Releases the lock that the program holds.
    fn release(&mut self, now: Instant);

    /// The connection to a master that the program asked for is open.
    fn on_connected(&mut self, node: usize, now: Instant);

    /// A master sent these bytes to the program.
    fn hear(&mut self, node: usize, bytes: &[u8], now: Instant);

    /// The timer of the program is due.
    fn on_timer(&mut self, now: Instant);

    /// What happened to the program since the last call.
    fn progress(&mut self, now: Instant) -> Progress;

    /// The bytes that the program sends to a master.
    fn take_output(&mut self, node: usize, now: Instant) -> Vec<u8>;

    /// When its timer is due.
    fn next_timeout(&self) -> Option<Instant>;
}

/// What happened to a program.
#[derive(Debug, Default)]
pub struct Progress {
    /// The masters that it wants to be connected to.
    pub connects: Vec<usize>,
    /// The program has the lock from now on.
    pub won: bool,
    /// The lock that it gave back is released.
    pub released: bool,
}
