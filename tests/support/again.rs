//! Runs one test once more in a process of its own: a test that forks, is stopped, or measures its
//! whole process.
//!
//! The hazard is a test name that does not exist: the process would run no test and succeed. So
//! [`run`] expects the process to report one test that passed.

use std::process::Command;

/// The environment variable that gives the started process the URLs of the nodes.
const NODES: &str = "REDLATCH_TEST_AGAIN";

/// The URLs of the nodes in the started process; `None` in the test run itself.
pub fn nodes() -> Option<Vec<String>> {
    let urls = std::env::var(NODES).ok()?;
    Some(urls.split(' ').map(str::to_owned).collect())
}

/// The command that runs one test of this binary alone. `module` is `module_path!()`.
pub fn command(module: &str, test: &str, urls: &[String]) -> Command {
    let (_, module) = module.split_once("::").expect("a module below the root of a test binary");
    let program = std::env::current_exe().expect("a test binary has a path");
    let mut command = Command::new(program);
    command.args(["--exact", &format!("{module}::{test}"), "--test-threads=1", "--nocapture"]);
    command.env(NODES, urls.join(" "));
    command
}

/// Runs that command to its end, prints its output, and panics unless the test passed in it.
#[track_caller]
pub fn run(module: &str, test: &str, urls: &[String]) {
    let output = command(module, test, urls).output().expect("a test binary can be started again");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed && !errors.contains("panicked"), "{test} in its own process: {errors}");
}
