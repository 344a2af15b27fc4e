//! Checks whether a file can be written, before there is anything to write. So a bad path is
//! reported at once, and not when the results would be lost.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

/// Opens the file for writing, and leaves things as they were.
///
/// # Errors
/// Why the file cannot be written.
pub fn look(path: &Path) -> io::Result<()> {
    let there = path.exists();
    OpenOptions::new().append(true).create(true).open(path)?;
    // Remove the new file: the tool may end without writing anything to it.
    if there { Ok(()) } else { std::fs::remove_file(path) }
}
