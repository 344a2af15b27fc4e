//! The copy of the tree with the patch, and the tests that run in it.
//!
//! A file is written only if it differs. Cargo compares the times of files, and would otherwise
//! compile all of them again.
//!
//! The hazard is a test that does not run or does not compile, and is taken for one that fails. So
//! the result line of the test harness decides: one test passed, or one test failed.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::patch::Patch;

/// The parts of the tree that are copied. Cargo also reads the manifests of all members of the
/// workspace, and looks for the targets that they name.
const PARTS: [&str; 8] =
    ["Cargo.toml", "Cargo.lock", "src", "tests", "benches", "examples", "cli", "doctests"];

/// How a test ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    /// The check did not run.
    Unknown,
}

/// A copy of the tree.
pub struct Tree {
    source: PathBuf,
    build: PathBuf,
}

impl Tree {
    /// Copies the tree, and applies the patch to the copy.
    pub fn of(patch: &Patch) -> Tree {
        // The folder is next to target/debug, wherever that is.
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("planted");
        let (source, build) = (folder.join("tree"), folder.join("build"));
        let mut files = BTreeMap::new();
        for part in PARTS {
            read_all(&root(), Path::new(part), &mut files);
        }
        files.extend(patched(patch).into_iter().map(|(path, text)| (path, text.into_bytes())));
        let mut old = BTreeMap::new();
        if source.exists() {
            read_all(&source, Path::new(""), &mut old);
        }
        for path in old.keys().filter(|path| !files.contains_key(*path)) {
            fs::remove_file(source.join(path)).expect("a file of the copy can be deleted");
        }
        for (path, bytes) in files.iter().filter(|(path, bytes)| old.get(*path) != Some(bytes)) {
            let path = source.join(path);
            let folder = path.parent().expect("a file is in a folder");
            fs::create_dir_all(folder).expect("a folder of the copy can be made");
            fs::write(&path, bytes).expect("a file of the copy can be written");
        }
        Tree { source, build }
    }

    /// Compiles the tests before they run, so that none fails because it does not compile.
    ///
    /// # Panics
    /// If they do not compile.
    pub fn build(&self) {
        let mut cargo = self.cargo();
        cargo.args(["--test", "model", "--test", "sim", "--test", "coordinator"]);
        cargo.args(["--test", "members", "--no-run"]);
        let status = cargo.status().expect("cargo can be started: it started this test");
        assert!(status.success(), "the tree with the faults does not compile. {HELP}");
    }

    /// Runs a test by its full name, with a fault or without. Also returns its output.
    pub fn run(&self, binary: &str, test: &str, fault: Option<&str>) -> (Outcome, String) {
        let mut cargo = self.cargo();
        cargo.args(["--quiet", "--test", binary, "--", "--exact", test, "--nocapture"]);
        if let Some(fault) = fault {
            cargo.env("PLANTED_FAULT", fault);
        }
        let output = cargo
            .stdin(Stdio::null())
            .output()
            .expect("cargo can be started: it started this test");
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        let outcome = match output.status.success() {
            true if printed.contains(" 1 passed; 0 failed;") => Outcome::Passed,
            false if printed.contains(" 0 passed; 1 failed;") => Outcome::Failed,
            _ => Outcome::Unknown,
        };
        (outcome, printed)
    }

    /// `cargo test` for the core alone, without a network.
    fn cargo(&self) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut cargo = Command::new(cargo);
        cargo.current_dir(&self.source).env("CARGO_TARGET_DIR", &self.build);
        cargo.args(["test", "--offline", "--locked", "--release"]);
        cargo.args(["--no-default-features", "--features", "testing"]);
        cargo.env_remove("PLANTED_FAULT");
        cargo
    }
}

const HELP: &str = "To write tests/planted/faults.patch again: bash tests/planted/edit \
                    makes a copy of the tree with the faults, and says what to do there.";

/// The texts of the files that the patch changes, with its changes.
///
/// # Panics
/// If the patch does not apply.
pub fn patched(patch: &Patch) -> BTreeMap<PathBuf, String> {
    let (mut files, mut wrong) = (BTreeMap::new(), Vec::new());
    for file in &patch.files {
        let text = fs::read_to_string(root().join(&file.path)).map_err(|error| error.to_string());
        let text = text.map_err(|error| vec![format!("{}: {error}", file.path)]);
        match text.and_then(|text| file.apply(&text)) {
            Ok(text) => {
                files.insert(PathBuf::from(&file.path), text);
            }
            Err(words) => wrong.extend(words),
        }
    }
    let what = "tests/planted/faults.patch does not apply to this tree";
    assert!(wrong.is_empty(), "{what}:\n{}\n{HELP}\n", wrong.join("\n"));
    files
}

/// Reads every file below `path`, without build results.
fn read_all(root: &Path, path: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
    let whole = root.join(path);
    if !whole.is_dir() {
        let bytes = fs::read(&whole).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        files.insert(path.to_owned(), bytes);
        return;
    }
    for entry in fs::read_dir(&whole).expect("a folder of the tree") {
        let name = entry.expect("an entry of a folder").file_name();
        if name != "target" && name != ".git" {
            read_all(root, &path.join(name), files);
        }
    }
}

/// The tree under test.
pub fn root() -> PathBuf {
    // The variable of the run comes before that of the build, because two checkouts with one target
    // folder share this binary.
    let now = std::env::var_os("CARGO_MANIFEST_DIR");
    now.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from)
}
