//! Whether a file can be written, asked before there is anything to write: a place that cannot be
//! written is told of at once, not when what it was for would be lost.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

/// Tries it, and leaves things as they were.
///
/// # Errors
/// Why it cannot be written.
pub fn look(path: &Path) -> io::Result<()> {
    let there = path.exists();
    OpenOptions::new().append(true).create(true).open(path)?;
    // Nothing may come to be written to it after all.
    if there { Ok(()) } else { std::fs::remove_file(path) }
}
