//! The command-line tool as a script uses it: the built binary on real servers, its output and its
//! exit codes.
//!
//! The tests have to pass on a shared machine at a load of twenty and more. The tool goes on when a
//! quorum of nodes is connected, and ends when a majority has answered. So if a test needs a
//! certain node, it waits for that node. If a rule is about time, the tests check the order of
//! events, or a bound of ten times the expected time. A tool that does not end is killed when its
//! handle is dropped.

#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, on a real clock")]

#[path = "../../../tests/support/mod.rs"]
mod support;

mod bench;
mod bench_election;
mod configuration;
mod contrib;
mod contrib_kubernetes;
mod debian;
mod demo;
mod doctor;
mod elect;
mod elect_faults;
mod elections;
#[cfg(feature = "tls")]
mod encrypted;
mod exec;
mod exec_containers;
mod exec_edges;
mod exec_lost;
mod exec_pipes;
mod exec_signals;
mod exec_terminal;
mod fenced;
mod force_release;
mod frozen;
mod hold;
mod hold_unread;
mod init;
mod kit;
mod leader;
mod line;
mod list;
mod max_hold;
mod members;
mod members_change;
mod no_lua;
mod no_quorum_wait;
mod outcomes;
mod overlap;
#[cfg(feature = "tls")]
#[path = "../../../tests/deploy/papers.rs"]
#[allow(dead_code, reason = "it is shared with other tests, which need more of it")]
mod papers;
mod pipes;
mod presence;
mod presence_files;
mod refusals;
mod release_left;
mod resign;
mod scripts;
mod secrets;
mod sentinels;
mod sets;
mod signals;
mod status;
mod top;
mod usage;
mod wait;

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::signals::{in_own_group, with_default_signals};
use support::{Dice, Fleet, Folder, Node, PlainTimer, SECOND, SOON, despite_stalls, eventually};

/// How long a tool may take if it has nothing to wait for: many times what it needs.
const LIMIT: Duration = Duration::from_secs(30);

/// The tool with these arguments, but without its environment variables and the machine's
/// configuration file.
fn tool(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlatch"));
    command.args(arguments);
    without_configuration(command)
}

/// A command that runs the tool: without its environment variables and the machine's configuration
/// file.
fn without_configuration(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("REDLATCH_") {
            command.env_remove(name);
        }
    }
    command.env_remove("REDISCLI_AUTH").env_remove("NO_COLOR").env_remove("CREDENTIALS_DIRECTORY");
    command.env("REDLATCH_CONFIG", "/dev/null");
    command
}

/// A node timeout that no healthy node exceeds, however busy the machine is.
const NODE_TIMEOUT: &str = "5s";

/// The tool with a verb and its flags, on the nodes of this fleet. It runs without the restart
/// guard, because these servers have just been started, and with [`NODE_TIMEOUT`].
fn tool_on(fleet: &Fleet, arguments: &[&str]) -> Command {
    let flags = ["--no-restart-guard", "--node-timeout", NODE_TIMEOUT];
    tool_at(&fleet.urls(), &flags, arguments)
}

/// The tool with a verb, these flags and the other arguments of the verb, on these servers.
fn tool_at(urls: &[String], flags: &[&str], arguments: &[&str]) -> Command {
    let (verb, rest) = arguments.split_first().expect("a verb");
    let mut command = tool(&[verb]);
    command.args(flags).args(rest).env("REDLATCH_SERVERS", urls.join(","));
    command
}

/// Runs a command to its end.
#[track_caller]
fn run(command: &mut Command) -> Ended {
    Running::start(command).end(LIMIT)
}

/// Runs the tool on this fleet to its end.
#[track_caller]
fn run_on(fleet: &Fleet, arguments: &[&str]) -> Ended {
    run(&mut tool_on(fleet, arguments))
}

/// A running tool. Threads read its output as it comes.
struct Running {
    started: Instant,
    child: Child,
    out: Option<JoinHandle<String>>,
    errors: Option<JoinHandle<String>>,
}

/// A tool that has ended.
#[derive(Debug)]
struct Ended {
    status: ExitStatus,
    out: String,
    errors: String,
    /// How long the tool ran, counted from before its start.
    ran: Duration,
    /// How long the test waited for the tool's end.
    took: Duration,
}

impl Running {
    /// Starts the command in a process group of its own, with the default action for every signal.
    /// Reads its outputs, except those that are not piped or that the test has taken.
    #[track_caller]
    fn start(command: &mut Command) -> Running {
        Running::spawn(in_own_group(command))
    }

    /// Starts the command as it is.
    #[track_caller]
    fn spawn(command: &mut Command) -> Running {
        let started = Instant::now();
        let mut child = command.spawn().expect("the binary was built with this test");
        let out = child.stdout.take().map(reader);
        let errors = child.stderr.take().map(reader);
        Running { started, child, out, errors }
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends the tool a signal. The tool has not been reaped, so its number is its own.
    #[track_caller]
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child's id is positive"), signal).expect("it is our child");
    }

    fn try_reap(&mut self) -> bool {
        self.child.try_wait().expect("it is our child").is_some()
    }

    /// Waits for the tool's end.
    #[track_caller]
    fn end(mut self, limit: Duration) -> Ended {
        let start = Instant::now();
        eventually(limit, "the tool ends", || self.try_reap());
        let (ran, took) = (self.started.elapsed(), start.elapsed());
        let status = self.child.wait().expect("it has ended");
        let read = |it: Option<JoinHandle<String>>| {
            it.map(|it| it.join().expect("its reader reads")).unwrap_or_default()
        };
        let (out, errors) = (read(self.out.take()), read(self.errors.take()));
        Ended { status, out, errors, ran, took }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Kills a tool that hangs in a failed test. If the tool has ended, this does nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads to the end on another thread, because a full pipe would keep the tool from ending.
fn reader(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("a pipe can be read");
        String::from_utf8(bytes).expect("the tool speaks UTF-8")
    })
}

impl Ended {
    /// The exit code of the run, as a shell reports it.
    fn code(&self) -> i32 {
        self.status
            .code()
            .unwrap_or_else(|| 128 + self.status.signal().expect("a code or a signal"))
    }

    /// Asserts this exit code.
    #[track_caller]
    fn with_code(self, code: i32) -> Ended {
        assert_eq!(self.code(), code, "{self:?}");
        assert!(!self.errors.contains("panicked"), "{self:?}");
        self
    }

    /// The output of the run, as one JSON value.
    #[track_caller]
    fn json(&self) -> Value {
        match serde_json::from_str(&self.out) {
            Ok(value) => value,
            Err(error) => panic!("{error}: {self:?}"),
        }
    }
}

/// The names of the fields of a JSON object, in their order.
#[track_caller]
fn fields(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// How the tool names a node.
fn label(node: &Node) -> String {
    node.address().to_string()
}

/// The value of this key on every running node, in the order of the list.
fn values(fleet: &Fleet, key: &str) -> Vec<Option<String>> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("a token is text");
    fleet.iter().map(|node| node.get(key).map(text)).collect()
}

/// Waits until a majority of the nodes has the same token at this key, and returns the token.
#[track_caller]
fn held_by_majority(fleet: &Fleet, key: &str) -> String {
    let mut found = None;
    eventually(LIMIT, "a majority holds one token", || {
        let held: Vec<String> = values(fleet, key).into_iter().flatten().collect();
        let count = |token: &String| held.iter().filter(|it| *it == token).count();
        found = held.iter().find(|token| count(token) > fleet.len() / 2).cloned();
        found.is_some()
    });
    found.expect("the wait ends with it")
}

/// Waits until no node has any key.
#[track_caller]
fn nothing_is_left(fleet: &Fleet) {
    eventually(10 * SECOND, "nothing is left on any node", || fleet.keys_everywhere().is_empty());
}

/// Waits until every node holds this token at the key. The tool may end before: when it has a
/// majority, the last node may not have read the request, or may not be connected.
#[track_caller]
fn is_held_everywhere(fleet: &Fleet, key: &str, token: &str) {
    give_to_late_nodes(fleet, key, token);
    let held = vec![Some(token.to_string()); fleet.len()];
    eventually(LIMIT, "every node holds the token", || values(fleet, key) == held);
}

/// Acquires the lock on the key that is the last argument, with the tool. Returns the token when
/// all nodes hold it.
#[track_caller]
fn acquired(fleet: &Fleet, arguments: &[&str]) -> String {
    let key = arguments.last().expect("a key");
    let arguments = [&["acquire"], arguments].concat();
    let ended = run_on(fleet, &arguments).with_code(0);
    let token = ended.out.strip_suffix('\n').expect("one line");
    let (digits, owner) = token.split_once(':').expect("the tool has an owner");
    assert!(digits.len() == 40 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{token:?}");
    assert!(owner.rsplit_once(':').is_some_and(|it| it.1.parse::<u32>().is_ok()), "{token:?}");
    is_held_everywhere(fleet, key, token);
    token.to_string()
}

/// A fleet, and the token of a lock that is acquired there as `acquired` does.
#[track_caller]
fn fleet_with_lock(nodes: usize, arguments: &[&str]) -> (Fleet, String) {
    let fleet = Fleet::start(nodes);
    let token = acquired(&fleet, arguments);
    (fleet, token)
}

/// Writes the key to nodes that lack it, and checks that a majority had it. On a busy machine a
/// node may be connected so late that `acquire` leaves it out, but many tests need a lock on all
/// nodes.
fn give_to_late_nodes(fleet: &Fleet, key: &str, token: &str) {
    let own = values(fleet, key).iter().filter(|value| value.as_deref() == Some(token)).count();
    assert!(own > fleet.len() / 2, "{own} of {} nodes hold the token of {key:?}", fleet.len());
    let left = fleet.iter().map(|node| node.pttl(key)).max().expect("there are nodes").to_string();
    for node in fleet.iter().filter(|node| node.pttl(key) == -2) {
        let _ = node.command(&["SET", key, token, "NX", "PX", &left]);
    }
}

/// A token that no client has.
fn foreign_token() -> String {
    "0123456789".repeat(4)
}
