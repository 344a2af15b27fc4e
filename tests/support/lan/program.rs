//! What a contender runs: the core of a client, or a bare loop. Bytes and moments go in, bytes and
//! moments come out, as with the core itself.

use redlatch::proto::Instant;

/// A program that takes a lock and gives it back.
pub trait Program {
    /// Asks for a lock over the keys of these names.
    fn ask(&mut self, keys: Vec<String>, now: Instant);

    /// Gives the lock back that it holds.
    fn release(&mut self, now: Instant);

    /// The connection to a master that it asked for is open.
    fn on_connected(&mut self, node: usize, now: Instant);

    /// A master sent it something.
    fn hear(&mut self, node: usize, bytes: &[u8], now: Instant);

    /// Its timer is due.
    fn on_timer(&mut self, now: Instant);

    /// What became of it since the last time.
    fn progress(&mut self, now: Instant) -> Progress;

    /// What it has to send to a master.
    fn take_output(&mut self, node: usize, now: Instant) -> Vec<u8>;

    /// When its timer is due.
    fn next_timeout(&self) -> Option<Instant>;
}

/// What became of a program.
#[derive(Debug, Default)]
pub struct Progress {
    /// The masters that it wants to be connected to.
    pub connects: Vec<usize>,
    /// It has the lock from now on.
    pub won: bool,
    /// The lock that it gave back is released.
    pub released: bool,
}
