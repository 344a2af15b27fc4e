//! `redlatch init --files`: the files with which an operator starts new masters, and the
//! configuration of their clients.
//!
//! It writes files and asks no node. The hazard is a file of the operator's that is replaced, or a
//! second password beside a first one that is in use: so nothing is written if any of the files is
//! there already.

mod template;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use rand::SeedableRng;
use rand::rngs::{StdRng, SysRng};
use redlatch::{LockToken, majority};
use serde_json::json;

use crate::arguments::Output;
use crate::exit;
use crate::output::{self, Refusal};

/// The numbers of masters that are offered: an even number tolerates no more failures than the odd
/// one below it.
const COUNTS: [&str; 4] = ["1", "3", "5", "7"];

/// The words of the ACL rule, for locks that begin with `lock:` and every feature of the library.
/// The last line has what the tool needs besides: `status` and `list` read tokens and scan, and
/// `doctor` reads settings.
const RIGHTS: &str = include_str!("locks.acl");

/// The words that no Redis before 7.2 knows, and no Valkey before 8: such a server refuses the
/// whole ACL file.
const OF_NEWER_SERVERS: [&str; 3] = ["+client|setinfo", "+delifeq", "+delex"];

/// The word that Valkey, which the containers run, does not know.
const OF_REDIS_ALONE: [&str; 1] = ["+delex"];

/// What starts the masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Starter {
    Systemd,
    Compose,
    Kubernetes,
}

/// Which files are written, instead of vouching for nodes.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Files for new masters")]
pub struct Kit {
    /// Write files with which new masters are started into this folder, and ask no node
    ///
    /// redis.conf, an ACL file with a new password, what starts the masters, redlatch.toml for the
    /// clients, and a README with the steps. Nothing is written if any of the files is there.
    #[arg(long, value_name = "DIR", requires = "starter", conflicts_with = "yes")]
    pub files: Option<PathBuf>,

    /// What starts the masters
    #[arg(long = "for", id = "starter", value_name = "STARTER", value_enum, requires = "files")]
    pub starter: Option<Starter>,

    /// How many masters
    #[arg(long = "nodes", id = "masters", value_name = "N", default_value = "3")]
    #[arg(requires = "files", value_parser = count())]
    pub masters: usize,
}

fn count() -> impl TypedValueParser<Value = usize> {
    let read = |text: String| text.parse().expect("each of COUNTS is a number");
    PossibleValuesParser::new(COUNTS).map(read)
}

/// A file of a kit.
#[derive(Debug)]
struct File {
    name: &'static str,
    text: String,
    /// It has the password: only its owner may read it.
    is_secret: bool,
}

/// Writes the files, and prints their names.
///
/// # Errors
/// A file is there already, or cannot be written. Then no file of this call is left.
pub fn write(
    folder: &Path,
    starter: Starter,
    masters: usize,
    output: &Output,
) -> Result<u8, Refusal> {
    let files = files(starter, masters, &new_password()?);
    let written = write_all(folder, &files)?;
    if output.json {
        let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
        output::print(&json!({ "files": names }).to_string())?;
    } else if !output.quiet {
        let lines: Vec<String> =
            written.iter().map(|it| format!("wrote {}", it.display())).collect();
        output::print(&lines.join("\n"))?;
        output::complain(&format!("redlatch: next: read {}", folder.join("README").display()));
    }
    Ok(exit::DONE)
}

/// A new password: 40 hex digits, which need no quotes in any of the files.
fn new_password() -> Result<String, Refusal> {
    let rng = StdRng::try_from_rng(&mut SysRng);
    let mut rng = rng.map_err(|error| Refusal::internal(format!("random numbers: {error}")))?;
    let token = LockToken::random(&mut rng);
    Ok(String::from_utf8_lossy(token.digits()).into_owned())
}

/// The files of a kit, the README first.
fn files(starter: Starter, masters: usize, password: &str) -> Vec<File> {
    let (readme, own_name, own) = match starter {
        Starter::Systemd => (
            include_str!("systemd/README"),
            "redlatch-redis.service",
            include_str!("systemd/redlatch-redis.service"),
        ),
        Starter::Compose => {
            (include_str!("compose/README"), "compose.yaml", include_str!("compose/compose.yaml"))
        }
        Starter::Kubernetes => {
            (include_str!("kubernetes/README"), "redis.yaml", include_str!("kubernetes/redis.yaml"))
        }
    };
    let (host, password_file) = match starter {
        Starter::Systemd => ("redis-{{I}}.example", "/etc/redlatch/password"),
        Starter::Compose => ("redis-{{I}}", "/run/secrets/redlatch-password"),
        Starter::Kubernetes => ("redlatch-redis-{{I}}", "/etc/redlatch/password"),
    };
    let values = [
        ("HOST", host.to_owned()),
        ("PASSWORD_FILE", password_file.to_owned()),
        ("MASTERS", in_words(masters)),
    ];
    let public = |name, text| {
        let text = template::fill(text, masters, &values);
        File { name, text, is_secret: false }
    };
    let secret = |name, text| File { name, text, is_secret: true };
    vec![
        public("README", readme),
        public("redis.conf", include_str!("redis.conf")),
        secret("users.acl", acl_file(starter, password)),
        public(own_name, own),
        public("redlatch.toml", include_str!("redlatch.toml")),
        secret("password", format!("{password}\n")),
    ]
}

/// What this number of masters gives.
fn in_words(masters: usize) -> String {
    if masters == 1 {
        return "There is 1 master: while it is away, no lock is granted.".to_owned();
    }
    let may_fail = masters - majority(masters);
    format!("There are {masters} masters, of which {may_fail} may fail.")
}

/// The ACL file. Such a file has no comments, and a user on each line.
fn acl_file(starter: Starter, password: &str) -> String {
    let unknown: &[&str] = match starter {
        Starter::Systemd => &OF_NEWER_SERVERS,
        Starter::Compose | Starter::Kubernetes => &OF_REDIS_ALONE,
    };
    let rights: Vec<&str> =
        RIGHTS.split_ascii_whitespace().filter(|word| !unknown.contains(word)).collect();
    format!("user default off\nuser locks on >{password} {}\n", rights.join(" "))
}

/// Writes all files or none, and returns their paths.
fn write_all(folder: &Path, files: &[File]) -> Result<Vec<PathBuf>, Refusal> {
    let paths: Vec<PathBuf> = files.iter().map(|file| folder.join(file.name)).collect();
    // A link that leads nowhere is there, too.
    if let Some(path) = paths.iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(is_there(path));
    }
    fs::create_dir_all(folder).map_err(|error| cannot_write(folder, &error))?;
    for (index, (file, path)) in files.iter().zip(&paths).enumerate() {
        if let Err(error) = write_new(file, path) {
            // These files are of this call, because each was created anew.
            paths[..index].iter().for_each(|path| drop(fs::remove_file(path)));
            let is_there_now = error.kind() == io::ErrorKind::AlreadyExists;
            return Err(if is_there_now { is_there(path) } else { cannot_write(path, &error) });
        }
    }
    Ok(paths)
}

fn write_new(file: &File, path: &Path) -> io::Result<()> {
    let mode = if file.is_secret { 0o600 } else { 0o644 };
    let mut open = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    open.write_all(file.text.as_bytes()).inspect_err(|_| drop(fs::remove_file(path)))
}

fn is_there(path: &Path) -> Refusal {
    let path = path.display();
    let message = format!("init: {path}: it is there already; nothing was written");
    Refusal { word: "exists", code: exit::NO, ..Refusal::config(message) }
}

fn cannot_write(path: &Path, error: &io::Error) -> Refusal {
    Refusal::config(format!("init: {}: {error}; nothing was written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kit_has_no_placeholder_left_and_its_password_only_in_secret_files() {
        for starter in [Starter::Systemd, Starter::Compose, Starter::Kubernetes] {
            for masters in [1, 3, 7] {
                for file in files(starter, masters, "p4ssw0rd") {
                    let (name, text) = (file.name, &file.text);
                    assert!(!text.contains("{{") && !text.contains("}}"), "{name}: {text}");
                    assert_eq!(text.contains("p4ssw0rd"), file.is_secret, "{name}");
                    assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{name}");
                }
            }
        }
    }

    #[test]
    fn kit_file_that_cannot_be_written_leaves_no_other() {
        let folder = std::env::temp_dir().join(format!("redlatch-kit-{}", std::process::id()));
        let secret = |name, is_secret| File { name, text: String::new(), is_secret };
        let refusal = write_all(&folder, &[secret("a", true), secret("b/c", false)]).unwrap_err();
        assert_eq!(refusal.code, exit::INTERNAL, "{refusal:?}");
        let left = fs::read_dir(&folder).expect("the folder was made").count();
        fs::remove_dir(&folder).expect("it is empty");
        assert_eq!(left, 0);
    }
}
