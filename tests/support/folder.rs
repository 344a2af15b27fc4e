//! A folder of a test's own, which is removed at its end.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A new, empty folder. Dropping it removes it and all that is in it.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a folder among the temporary files of this machine.
    #[track_caller]
    pub fn new() -> Folder {
        Folder::under(&std::env::temp_dir())
    }

    /// Makes a folder in this one.
    #[track_caller]
    pub fn under(place: &Path) -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        loop {
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = place.join(format!("redlatch-test-{}-{count}", std::process::id()));
            match std::fs::create_dir(&path) {
                Ok(()) => return Folder(path),
                // A process that was killed and had the same id left the folder.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{} cannot be made: {error}", path.display()),
            }
        }
    }

    /// The path of a file in it, as text.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).into_os_string().into_string().expect("temporary files have plain paths")
    }

    /// The text of a file in it.
    #[track_caller]
    pub fn read(&self, name: &str) -> String {
        match std::fs::read(self.0.join(name)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) => panic!("{name} in {}: {error}", self.0.display()),
        }
    }

    /// Compiles this C code to a library that a server can preload, and returns its path.
    pub fn compile(&self, code: &str) -> String {
        let [source, library] = ["shim.c", "shim.so"].map(|name| self.path(name));
        std::fs::write(&source, code).expect("a new file");
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-fPIC", "-O1", "-o", &library, &source, "-ldl"]);
        assert!(gcc.status().expect("gcc is installed").success(), "the shim is compiled");
        library
    }

    /// The names of all files in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("it is there").flatten();
        let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = entries.map(name).collect();
        names.sort();
        names
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
