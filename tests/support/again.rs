//! Runs one test once more in a process of its own: a test that forks, is stopped, or measures its
//! whole process.
//!
//! The hazard is a test name that does not exist: the process would run no test and succeed. So
//! [`run`] expects the process to report one test that passed.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The environment variable that gives the started process the URLs of the nodes.
const NODES: &str = "REDLATCH_TEST_AGAIN";

/// Begins every line that the process has for its parent, because the test harness prints lines of
/// its own.
const MARK: &str = "@ ";

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

/// The parent's end of a process that reads orders line by line, and answers with [`say`].
pub struct Process {
    pub child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(mut command: Command) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it can be started again");
        let input = child.stdin.take().expect("it was asked for");
        let output = BufReader::new(child.stdout.take().expect("it was asked for"));
        Process { child, input, output }
    }

    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("the process listens");
    }

    /// The next line from the process.
    #[track_caller]
    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let length = self.output.read_line(&mut line).expect("a pipe can be read");
            assert!(length > 0, "the process ended");
            if let Some((_, said)) = line.trim_end().split_once(MARK) {
                return said.to_owned();
            }
        }
    }

    /// The lines that were not read yet of a process that has ended.
    pub fn last_lines(&mut self) -> Vec<String> {
        let mut text = String::new();
        self.output.read_to_string(&mut text).expect("a pipe can be read");
        let lines = text.lines().filter_map(|line| line.split_once(MARK));
        lines.map(|(_, said)| said.to_owned()).collect()
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A line from the process to its parent.
pub fn say(line: &str) {
    println!("{MARK}{line}");
}
