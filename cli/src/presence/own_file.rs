//! A file of ours at a path that an operator named: what may stand there, and how a new file takes
//! its place as a whole.
//!
//! The hazard is a path of something else: to remove or replace `/dev/null`, the target of a link
//! or a file of another program does harm, most of all as root. So only a plain file is touched,
//! and only one that we can have written. No link is followed, and no FIFO or device is opened.

use std::ffi::OsString;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use crate::output::words;

/// How much is read of a file to know whether it is ours.
const HEAD: u64 = 64;

/// A plain file that was found at the path.
#[derive(Debug)]
pub struct Found {
    pub file: File,
    /// Its first bytes.
    pub head: Vec<u8>,
}

/// What stands at the path, if something does.
///
/// # Errors
/// It is no plain file, or cannot be read.
pub fn find(path: &Path) -> Result<Option<Found>, String> {
    let kind = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found.map_err(|error| words(&error))?.file_type(),
    };
    if !kind.is_file() {
        return Err(format!("{} is there; name a plain file", in_words(kind)));
    }
    // The file may have changed since: the open follows no link, and does not wait for a FIFO.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()).map_err(io::Error::from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => File::from(opened.map_err(|error| words(&error))?),
    };
    let mut head = Vec::new();
    let read = (&file).take(HEAD).read_to_end(&mut head);
    read.map_err(|error| words(&error))?;
    Ok(Some(Found { file, head }))
}

fn in_words(kind: FileType) -> &'static str {
    if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

/// Whether the path still names this file.
pub fn is_at(file: &File, path: &Path) -> bool {
    let same = |one: fs::Metadata, other: fs::Metadata| {
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    };
    file.metadata().ok().zip(fs::symlink_metadata(path).ok()).is_some_and(|(a, b)| same(a, b))
}

/// The path beside which a new file is written: hidden, and not ending as `path` does.
///
/// # Errors
/// The path names no file.
pub fn beside(path: &Path) -> Result<PathBuf, String> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or("it is no name of a file")?);
    name.push(format!(".{}", std::process::id()));
    Ok(path.with_file_name(name))
}

/// Writes a new file beside the path, and puts it there as a whole when `prepare` has seen it.
/// What stands at the path is replaced, so look at it first.
///
/// # Errors
/// It cannot be written. Then nothing of it is left.
pub fn put(
    path: &Path,
    beside: &Path,
    text: &str,
    prepare: impl FnOnce(&File),
) -> Result<File, String> {
    let written = create(beside).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        prepare(&file);
        fs::rename(beside, path).map(|()| file)
    });
    written.map_err(|error| {
        // A part of the file may be there.
        if let Ok(Some(_)) = find(beside) {
            let _ = fs::remove_file(beside);
        }
        words(&error)
    })
}

/// Creates the file. One of that name is left of a killed process that had our number.
fn create(path: &Path) -> io::Result<File> {
    let new = || OpenOptions::new().write(true).create_new(true).open(path);
    match new() {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if let Ok(Some(_)) = find(path) {
                fs::remove_file(path)?;
            }
            new()
        }
        created => created,
    }
}
