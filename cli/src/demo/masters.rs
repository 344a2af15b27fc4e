//! Five masters that can be frozen, killed, brought back and looked into, wherever they come from.

use super::Stop;

/// How many there are: the smallest number of which two may fail at once.
pub const COUNT: usize = 5;

/// What a look at a node found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// It exists and executes nothing.
    Frozen,
    /// It is not there.
    Dead,
    /// Its keys, and what each of them holds.
    Keys(Vec<(String, String)>),
}

/// The masters. A node is named by its place in the list, from 0 on.
///
/// What is done to a node is told in words, for the screen. Dropping them ends every one.
pub trait Masters {
    /// What they are and where, in words.
    fn describe(&self) -> String;

    /// Their URLs, in the order of the list.
    fn urls(&self) -> Vec<String>;

    /// Stops a node in the middle of whatever it does. Its connections stay open.
    fn freeze(&mut self, node: usize) -> Result<String, Stop>;

    /// Lets a frozen node go on.
    fn thaw(&mut self, node: usize) -> Result<String, Stop>;

    /// Ends a node, with all it holds.
    fn kill(&mut self, node: usize) -> Result<String, Stop>;

    /// Brings a killed node back where it was, empty.
    fn restart(&mut self, node: usize) -> Result<String, Stop>;

    /// Looks into a node, by other means than the library's.
    fn look(&mut self, node: usize) -> Result<Seen, Stop>;
}
