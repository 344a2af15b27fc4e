//! The file that is there while the lock is held.
//!
//! The hazard is a file that an earlier run left there after `kill -9`: it would report a lock
//! that is not held. So it is removed before the lock is asked for.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::output::{Refusal, words};

/// The file of `--ready-file`.
#[derive(Debug)]
pub struct ReadyFile {
    path: PathBuf,
    is_there: bool,
}

impl ReadyFile {
    /// Removes an old file, and looks whether the folder is there.
    pub fn prepare(path: &Path) -> Result<ReadyFile, Refusal> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(refused(path, &words(&error))),
            _ if !folder.is_dir() => Err(refused(path, "its folder does not exist")),
            _ => Ok(ReadyFile { path: path.to_owned(), is_there: false }),
        }
    }

    /// Writes our process number.
    pub fn write(&mut self) -> Result<(), Refusal> {
        // From here on it may be there, also if not all of it could be written.
        self.is_there = true;
        let written = fs::write(&self.path, format!("{}\n", std::process::id()));
        written.map_err(|error| refused(&self.path, &words(&error)))
    }

    /// Removes the file, once.
    pub fn remove(&mut self) {
        if std::mem::take(&mut self.is_there) {
            // If it cannot be removed, it is gone already, or its folder is: nothing can be done.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn refused(path: &Path, why: &str) -> Refusal {
    Refusal::config(format!("--ready-file {}: {why}", path.display()))
}
