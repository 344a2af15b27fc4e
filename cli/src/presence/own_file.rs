//! Writes a file to a path that an operator named, and checks what exists there before.
//!
//! The hazard is a path that names something else. To remove or replace `/dev/null`, the target of
//! a link or a file of another program does harm, most of all as root. So callers replace only a
//! plain file with contents that redlatch can have written. No link is followed, and no FIFO or
//! device is opened.

use std::ffi::OsString;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use crate::output::error_text;

/// How many bytes are read of a file, to find out whether redlatch wrote it.
const HEAD: u64 = 64;

/// A plain file that was found at the path.
#[derive(Debug)]
pub struct Found {
    pub file: File,
    /// Its first bytes.
    pub head: Vec<u8>,
}

/// The file at the path; `None` if nothing is there.
///
/// # Errors
/// It is not a plain file, or cannot be read.
pub fn find(path: &Path) -> Result<Option<Found>, String> {
    let kind = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found.map_err(|error| error_text(&error))?.file_type(),
    };
    if !kind.is_file() {
        return Err(format!("{} is there; name a plain file", in_words(kind)));
    }
    // Another file may have replaced it since the check: so the open follows no link, and does not
    // wait for a FIFO.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()).map_err(io::Error::from) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => File::from(opened.map_err(|error| error_text(&error))?),
    };
    let mut head = Vec::new();
    let read = (&file).take(HEAD).read_to_end(&mut head);
    read.map_err(|error| error_text(&error))?;
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

/// The path of the temporary file for `path`: in the same directory, hidden, and with another
/// ending.
///
/// # Errors
/// The path names no file.
pub fn temporary_path(path: &Path) -> Result<PathBuf, String> {
    let mut name = OsString::from(".");
    name.push(path.file_name().ok_or("it is no name of a file")?);
    name.push(format!(".{}", std::process::id()));
    Ok(path.with_file_name(name))
}

/// Writes a new file to the path `temporary`, calls `prepare` with it, and renames it to `path`.
/// This replaces whatever is at `path`, so the caller has to check that before.
///
/// # Errors
/// The file cannot be written. Then the temporary file is removed.
pub fn put(
    path: &Path,
    temporary: &Path,
    text: &str,
    prepare: impl FnOnce(&File),
) -> Result<File, String> {
    let written = create(temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        prepare(&file);
        fs::rename(temporary, path).map(|()| file)
    });
    written.map_err(|error| {
        // The temporary file may exist, and may be incomplete.
        if let Ok(Some(_)) = find(temporary) {
            let _ = fs::remove_file(temporary);
        }
        error_text(&error)
    })
}

/// Creates the file. If one exists, a process with the same number was killed and left it: it is
/// replaced.
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
