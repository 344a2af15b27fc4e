//! Finds CMD as a shell would, before any node is asked for the lock: a mistyped command must not
//! make other clients wait, and must not be reported as one that ran.
//!
//! The hazard is a command that is found here but is gone when it is started. Then
//! `die_with_parent.rs` reports the failure by the same exit codes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::exit;
use crate::output::{Refusal, error_text};

/// The directories that are searched if there is no PATH.
const USUAL_PATH: &str = "/bin:/usr/bin";

/// The longest first line of a script that the kernel reads, in bytes.
const FIRST_LINE: u64 = 256;

/// The program that `name` stands for.
pub fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL_PATH.into());
    find_in(name, &path)
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, Refusal> {
    if name.is_empty() {
        return Err(not_found(name, "its name is empty"));
    }
    if name.as_bytes().contains(&b'/') {
        let program = PathBuf::from(name);
        return match problem(&program) {
            None => Ok(program),
            Some(Problem::Missing) => Err(not_found(name, "no such file")),
            Some(Problem::Cannot(why)) => Err(cannot_run(name, &why)),
        };
    }
    let mut refused = None;
    for directory in std::env::split_paths(path) {
        // An empty entry stands for the current directory. The `./` gives the path a slash, so that
        // the system does not search PATH for it again.
        let program = Path::new(".").join(directory).join(name);
        match problem(&program) {
            None => return Ok(program),
            Some(Problem::Missing) => {}
            Some(Problem::Cannot(why)) => {
                refused.get_or_insert((program, why));
            }
        }
    }
    Err(match refused {
        Some((program, why)) => cannot_run(program.as_os_str(), &why),
        None => not_found(name, "it is in no directory of PATH"),
    })
}

enum Problem {
    Missing,
    Cannot(String),
}

/// What keeps a file from being run.
fn problem(program: &Path) -> Option<Problem> {
    let file = match program.metadata() {
        Ok(file) => file,
        Err(error) => return Some(of_error(&error)),
    };
    if !file.is_file() {
        return Some(Problem::Cannot("it is not a file".into()));
    }
    if let Err(error) = access(program, Access::EXEC_OK) {
        return Some(of_error(&error.into()));
    }
    let interpreter = interpreter(program)?;
    let error = access(&interpreter, Access::EXEC_OK).err()?;
    let error = error_text(&error.into());
    Some(Problem::Cannot(format!("its interpreter {interpreter:?}: {error}")))
}

/// The interpreter that a script names in its first line. A file that cannot be read yields none: a
/// program may be run without read permission.
fn interpreter(program: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(program).ok()?.take(FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    // The kernel takes only space and tab as blanks; the `\r` of a Windows line end belongs to the
    // name.
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t'));
    let word = words.find(|word| !word.is_empty())?;
    Some(OsString::from(OsStr::from_bytes(word)).into())
}

fn of_error(error: &io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Problem::Missing,
        _ => Problem::Cannot(error_text(error)),
    }
}

fn not_found(name: &OsStr, why: &str) -> Refusal {
    let message = format!("{}: command not found: {why}", Path::new(name).display());
    Refusal { word: "not_found", code: exit::NOT_FOUND, ..Refusal::config(message) }
}

fn cannot_run(name: &OsStr, why: &str) -> Refusal {
    let message = format!("{}: cannot be run: {why}", Path::new(name).display());
    Refusal { word: "cannot_run", code: exit::CANNOT_RUN, ..Refusal::config(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(name: &str, path: &str) -> Result<PathBuf, u8> {
        find_in(name.as_ref(), path.as_ref()).map_err(|refusal| refusal.code)
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert_eq!(code("sh", "/nowhere:/bin"), Ok("/bin/sh".into()));
        assert_eq!(code("/bin/sh", ""), Ok("/bin/sh".into()));
        // A file between the directories is skipped.
        assert_eq!(code("sh", "/bin/sh:/bin"), Ok("/bin/sh".into()));
    }

    #[test]
    fn exec_distinguishes_missing_commands_from_those_it_cannot_run() {
        for (name, path, expected) in [
            ("no-such-command", "/bin:/usr/bin", exit::NOT_FOUND),
            ("sh", "", exit::NOT_FOUND),
            ("", "/bin", exit::NOT_FOUND),
            ("/no/such/command", "/bin", exit::NOT_FOUND),
            ("/", "/bin", exit::CANNOT_RUN),
            ("/etc/passwd", "/bin", exit::CANNOT_RUN),
            ("passwd", "/etc", exit::CANNOT_RUN),
        ] {
            assert_eq!(code(name, path), Err(expected), "{name} in {path}");
        }
    }
}
