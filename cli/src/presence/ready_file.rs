//! The file that is there while the lock is held.
//!
//! The hazards are a file that an earlier run left there after `kill -9`, which would report a lock
//! that is not held, and the file of another redlatch that holds its lock: the first is removed,
//! the second is left alone. The holder keeps its file locked (flock), and the system unlocks it
//! when the process is gone, so the two differ whatever became of the process number.

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
    beside: PathBuf,
    /// Our file, locked.
    ours: Option<File>,
}

impl ReadyFile {
    /// Removes the file of an earlier run, and looks whether ours can be written.
    pub fn prepare(path: &Path) -> Result<ReadyFile, Refusal> {
        let refused = |why: String| refused(path, &why);
        let beside = own_file::beside(path).map_err(refused)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Standing::Left(file) = standing(path).map_err(refused)? {
            if own_file::is_at(&file, path) {
                fs::remove_file(path).map_err(|error| refused(crate::output::words(&error)))?;
            }
        }
        if !folder.unwrap_or(Path::new(".")).is_dir() {
            return Err(refused("its folder does not exist".into()));
        }
        Ok(ReadyFile { path: path.to_owned(), beside, ours: None })
    }

    /// Writes our process number.
    pub fn write(&mut self) -> Result<(), Refusal> {
        let refused = |why: String| refused(&self.path, &why);
        // A file that a killed process left is locked until the new one has replaced it.
        let _left = match standing(&self.path).map_err(refused)? {
            Standing::Nothing => None,
            Standing::Left(file) => Some(file),
            Standing::InUse(process) => {
                let advice = "give each lock a file of its own";
                return Err(refused(format!("process {process} holds a lock with it; {advice}")));
            }
        };
        let text = format!("{}\n", std::process::id());
        let lock = |file: &File| {
            // Where files cannot be locked, the next start takes this file for one that a killed
            // process left.
            let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
        };
        let put = own_file::put(&self.path, &self.beside, &text, lock);
        self.ours = Some(put.map_err(refused)?);
        Ok(())
    }

    /// Removes the file, once, and only if it is still ours.
    pub fn remove(&mut self) {
        if let Some(file) = self.ours.take() {
            if own_file::is_at(&file, &self.path) {
                // If it cannot be removed, nothing can be done.
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

/// What stands where the file is to be.
enum Standing {
    Nothing,
    /// A run that is over left it. It is locked while this is kept.
    Left(File),
    /// This process holds a lock, and keeps the file.
    InUse(String),
}

fn standing(path: &Path) -> Result<Standing, String> {
    let Some(Found { file, head }) = own_file::find(path)? else { return Ok(Standing::Nothing) };
    let text = String::from_utf8(head).unwrap_or_default();
    let process = text.strip_suffix('\n').filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(process) = process.filter(|process| !process.is_empty()) else {
        return Err("a file of another program is there; name another one, or remove it".into());
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(Standing::InUse(process.to_owned())),
        _ => Ok(Standing::Left(file)),
    }
}

fn refused(path: &Path, why: &str) -> Refusal {
    Refusal::config(format!("--ready-file {}: {why}", path.display()))
}
