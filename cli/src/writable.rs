//! Checks whether a file can be written before there is anything to write, so that a bad path is
//! reported at the start of a run, and not when its results would be lost.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

/// Opens the file for writing, and changes nothing.
///
/// # Errors
/// The file cannot be written.
pub fn check_writable(path: &Path) -> io::Result<()> {
    let there = path.exists();
    OpenOptions::new().append(true).create(true).open(path)?;
    // Removes a file that this call created, because the tool may end without writing to it.
    if there { Ok(()) } else { std::fs::remove_file(path) }
}
