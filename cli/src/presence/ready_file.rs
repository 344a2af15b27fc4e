//! The file that exists while the lock is held.
//!
//! There are two hazards. A file that an earlier run left after `kill -9` reports a lock that is
//! not held, so it is removed. The file of another redlatch that still holds its lock must stay. A
//! holder keeps its file locked (flock), and the system unlocks it when that process ends. So this
//! distinguishes the two files even if another process got the number in the file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::own_file::{self, Found};
use crate::output::Refusal;

/// The file of `--ready-file`.
#[derive(Debug)]
pub struct ReadyFile {
    path: PathBuf,
    temporary: PathBuf,
    /// The file that this process wrote and keeps locked.
    ours: Option<File>,
}

impl ReadyFile {
    /// Removes the file of an earlier run, and checks whether a new one can be written.
    pub fn prepare(path: &Path) -> Result<ReadyFile, Refusal> {
        let refused = |why: String| refused(path, &why);
        let temporary = own_file::temporary_path(path).map_err(refused)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let AtPath::Left(file) = find_at_path(path).map_err(refused)? {
            if own_file::is_at(&file, path) {
                fs::remove_file(path)
                    .map_err(|error| refused(crate::output::error_text(&error)))?;
            }
        }
        if !folder.unwrap_or(Path::new(".")).is_dir() {
            return Err(refused("its folder does not exist".into()));
        }
        Ok(ReadyFile { path: path.to_owned(), temporary, ours: None })
    }

    /// Writes the file, with our process number, and locks it.
    pub fn write(&mut self) -> Result<(), Refusal> {
        let refused = |why: String| refused(&self.path, &why);
        // If a killed process left a file here, our lock on it lasts until our new file has
        // replaced it, so that no other process can take it in between.
        let _left = match find_at_path(&self.path).map_err(refused)? {
            AtPath::Nothing => None,
            AtPath::Left(file) => Some(file),
            AtPath::InUse(process) => {
                let advice = "give each lock a file of its own";
                return Err(refused(format!("process {process} holds a lock with it; {advice}")));
            }
        };
        let text = format!("{}\n", std::process::id());
        let lock = |file: &File| {
            // If the file system has no locks, the next run takes this file for one that a killed
            // process left.
            let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
        };
        let put = own_file::put(&self.path, &self.temporary, &text, lock);
        self.ours = Some(put.map_err(refused)?);
        Ok(())
    }

    /// Removes the file if it is still the one that this process wrote.
    pub fn remove(&mut self) {
        if let Some(file) = self.ours.take() {
            if own_file::is_at(&file, &self.path) {
                // If the file cannot be removed, nothing can be done.
                let _ = fs::remove_file(&self.path);
            }
        }
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        self.remove();
    }
}

/// What is at the path of the file.
enum AtPath {
    Nothing,
    /// A file that an earlier run left. It stays locked while this value exists.
    Left(File),
    /// The file of this running process, which holds its lock.
    InUse(String),
}

fn find_at_path(path: &Path) -> Result<AtPath, String> {
    let Some(Found { file, head }) = own_file::find(path)? else { return Ok(AtPath::Nothing) };
    let text = String::from_utf8(head).unwrap_or_default();
    let process = text.strip_suffix('\n').filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(process) = process.filter(|process| !process.is_empty()) else {
        return Err("a file of another program is there; name another one, or remove it".into());
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(AtPath::InUse(process.to_owned())),
        _ => Ok(AtPath::Left(file)),
    }
}

fn refused(path: &Path, why: &str) -> Refusal {
    Refusal::config(format!("--ready-file {}: {why}", path.display()))
}
