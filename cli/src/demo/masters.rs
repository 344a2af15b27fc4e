//! Five masters that can be frozen, killed, restarted and inspected: real ones or in-process ones.

use super::Stop;

/// The number of masters: the smallest of which two may be down at the same time.
pub const COUNT: usize = 5;

/// What an inspection of a node found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The node's process exists but executes nothing.
    Frozen,
    /// The node does not run.
    Dead,
    /// Its keys, and what each of them holds.
    Keys(Vec<(String, String)>),
}

/// The masters. The argument `node` is a node's place in the list, from 0.
///
/// Each action returns a text for the screen that says what was done. Dropping the value ends all
/// masters.
pub trait Masters {
    /// What the masters are and where, in words.
    fn describe(&self) -> String;

    /// Their URLs, in the order of the list.
    fn urls(&self) -> Vec<String>;

    /// Stops a node in the middle of whatever it does. Its connections stay open.
    fn freeze(&mut self, node: usize) -> Result<String, Stop>;

    /// Lets a frozen node go on.
    fn thaw(&mut self, node: usize) -> Result<String, Stop>;

    /// Ends a node, with all its keys.
    fn kill(&mut self, node: usize) -> Result<String, Stop>;

    /// Restarts a killed node at its old address, without keys.
    fn restart(&mut self, node: usize) -> Result<String, Stop>;

    /// Reads the state and the keys of a node, without a client of the library.
    fn inspect(&mut self, node: usize) -> Result<Seen, Stop>;
}
