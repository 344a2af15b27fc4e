//! Five masters that can be frozen, killed, restarted and inspected: real ones or in-process ones.

use super::Stop;

/// How many there are: the smallest number of nodes of which two may fail at once.
pub const COUNT: usize = 5;

/// What a look at a node found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The node exists and executes nothing.
    Frozen,
    /// The node is not there.
    Dead,
    /// Its keys, and what each of them holds.
    Keys(Vec<(String, String)>),
}

/// The masters. A node is named by its place in the list, from 0 on.
///
/// Each action returns what was done, in words for the screen. Dropping the masters ends every one.
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

    /// Looks into a node, without the library.
    fn look(&mut self, node: usize) -> Result<Seen, Stop>;
}
