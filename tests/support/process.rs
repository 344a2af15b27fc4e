//! One server process: which program it is, how it is started, signalled and ended.
//!
//! This module only signals a process that it started itself and has not waited for, so it never
//! hits a process to which the kernel has given the pid anew. The one hazard is the port: another
//! process may take it after it was chosen. So a start counts only if the server that answers there
//! has the pid of the child.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::eventually;
use super::ports::{free_port, is_free};
use super::resp_client::{RespClient, Value};

const INSTALL: &str = "$(command -v sudo) apt-get install -y redis-server";
const START_LIMIT: Duration = Duration::from_secs(20);

/// The program that the tests start: redis-server, or what `REDLATCH_TEST_SERVER` names.
#[derive(Debug)]
pub struct Server {
    pub binary: String,
    pub valkey: bool,
    /// Major and minor number.
    pub version: (u32, u32),
}

impl Server {
    /// Found once per test binary. Panics if there is none, with the command that installs it.
    #[track_caller]
    pub fn get() -> &'static Server {
        static SERVER: OnceLock<Server> = OnceLock::new();
        SERVER.get_or_init(|| {
            let named = std::env::var("REDLATCH_TEST_SERVER").ok().filter(|name| !name.is_empty());
            Server::examine(named.as_deref().unwrap_or("redis-server"))
        })
    }

    /// What `binary --version` prints.
    #[track_caller]
    pub fn examine(binary: &str) -> Server {
        let output = match Command::new(binary).arg("--version").output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => panic!("{binary} cannot be started ({error}); install it: {INSTALL}"),
        };
        let number = output.split_once("v=").map_or("", |(_, rest)| rest);
        let mut parts = number.split(['.', ' ']).map_while(|part| part.parse().ok());
        let (Some(major), Some(minor)) = (parts.next(), parts.next()) else {
            panic!("{binary} --version says {output:?}: not a redis-server; install it: {INSTALL}")
        };
        let valkey = output.to_lowercase().contains("valkey");
        Server { binary: binary.to_owned(), valkey, version: (major, minor) }
    }

    /// Whether it was built with TLS; if not, prints that a test is not run.
    pub fn can_encrypt(&self) -> bool {
        // The server is started for TLS without a certificate. It does not start, but one that was
        // built with TLS says what it lacks.
        let port = free_port().to_string();
        let attempt =
            Command::new(&self.binary).args(["--port", "0", "--tls-port", &port]).output();
        let said = String::from_utf8_lossy(&attempt.expect("it was there").stdout).into_owned();
        let can = said.contains("tls-cert-file");
        if !can {
            println!("not run: {} was built without TLS", self.binary);
        }
        can
    }
}

/// How one server is started, and started again after it was killed.
#[derive(Debug, Clone)]
pub(super) struct Recipe {
    pub directory: PathBuf,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Recipe {
    /// The password that `--requirepass` sets, so that the tests' own connections get in.
    pub fn password(&self) -> Option<&str> {
        let at = self.arguments.iter().position(|argument| argument == "--requirepass")?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// Opens a connection and authenticates it.
    pub fn connect(&self, port: u16) -> std::io::Result<RespClient> {
        let mut client = RespClient::connect(loopback(port))?;
        if let Some(password) = self.password() {
            client.command(&["AUTH", password])?;
        }
        Ok(client)
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }
}

/// A child that this process started and has not waited for yet.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    port: u16,
}

impl Process {
    /// Starts a server without waiting until it answers.
    pub fn spawn(recipe: &Recipe, port: u16) -> Process {
        let server = Server::get();
        let log = File::create(recipe.log()).expect("the server's directory can be written");
        let errors = log.try_clone().expect("a file can be cloned");
        let mut command = Command::new(&server.binary);
        command.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
        command.args(["--protected-mode", "no", "--port", &port.to_string()]).arg("--dir");
        command.arg(&recipe.directory);
        if server.valkey || server.version >= (7, 0) {
            command.args(["--enable-debug-command", "yes"]);
        }
        command.args(&recipe.arguments).envs(recipe.environment.iter().cloned());
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = command.spawn().expect("a server whose version was asked can be started");
        Process { child, port }
    }

    /// Waits until the server answers, and returns the connection on which it did; `Err` says why
    /// this process never will.
    pub fn wait_ready(&mut self, recipe: &Recipe) -> Result<RespClient, String> {
        let mut outcome = None;
        eventually(START_LIMIT, &format!("a server answers on port {}", self.port), || {
            outcome = self.look(recipe);
            outcome.is_some()
        });
        outcome.expect("the wait ends only with an outcome")
    }

    fn look(&mut self, recipe: &Recipe) -> Option<Result<RespClient, String>> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(Err(format!("it ended with {status}: {}", recipe.log_text())));
        }
        let mut client = recipe.connect(self.port).ok()?;
        match client.command(&["INFO", "server"]).ok()? {
            Value::Bulk(info) => {
                let info = String::from_utf8_lossy(&info);
                let pid = field(&info, "process_id").and_then(|pid| pid.parse().ok());
                if pid == Some(self.pid()) {
                    Some(Ok(client))
                } else {
                    Some(Err(format!("port {} belongs to the process {pid:?}", self.port)))
                }
            }
            // The arguments forbid INFO: then the server's log says whether it has the port.
            _ => recipe.log_text().contains("eady to accept connections").then_some(Ok(client)),
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// SIGSTOP; returns when the kernel says that the process is stopped.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        eventually(Duration::from_secs(5), "the server is stopped", || self.state() == Some('T'));
    }

    /// SIGCONT; returns when the kernel says that the process is not stopped any more.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
        eventually(Duration::from_secs(5), "the server goes on", || self.state() != Some('T'));
    }

    /// SIGKILL and wait. A stopped process dies of it too, without executing what it has received.
    pub fn kill(mut self) {
        self.end();
    }

    /// The letter of the state in /proc, as in ps.
    pub fn state(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // The program's name comes before the state, in parentheses, and may contain parentheses.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.trim_start().chars().next()
    }

    fn signal(&self, signal: Signal) {
        // The child has not been waited for, so its pid is still its own, dead or alive.
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a child's pid is positive"), signal).expect("a child can be told");
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

pub(super) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// The value of one `name:value` line of INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}
