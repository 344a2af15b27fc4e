//! Five real redis-servers on free ports of this machine. Dropping them ends them, also during a
//! panic. When the demo itself is killed, the kernel kills them: a frozen server would not handle
//! the ctrl-C that ends the demo.
//!
//! A signal goes only to a process that was started here and is not reaped yet, so it never hits
//! another process that got the same number. The hazard is the port: another process may take it
//! after the demo chose it and before the server binds it. So a start succeeds only if the process
//! that answers on the port is the one that was started.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redlatch::clock;
use rustix::process::{Pid, Signal, kill_process};

use super::Stop;
use super::masters::{COUNT, Masters, Seen};
use super::peek::Peek;
use crate::die_with_parent;

const BINARY: &str = "redis-server";
const INSTALL: &str = "apt-get install redis-server";

/// The ports to choose from. They lie below the range from which systems take the ports of outgoing
/// connections. In that range a client that keeps connecting to a killed node can get the node's
/// port as its own, and so connect to itself.
const PORTS: std::ops::Range<u16> = 21_000..32_000;

/// How often a start is tried, each time on another port.
const STARTS: usize = 10;

/// How long a server may take to start, stop or continue.
const PATIENCE: Duration = Duration::from_secs(5);

/// Five servers.
pub struct Servers {
    version: String,
    nodes: Vec<Node>,
}

struct Node {
    port: u16,
    /// `None` after it was killed.
    process: Option<Process>,
}

impl Servers {
    /// Starts all five, and then waits until each is ready.
    pub fn start() -> Result<Servers, Stop> {
        let mut servers = Servers { version: version()?, nodes: Vec::with_capacity(COUNT) };
        let directory = Directory::create()?;
        let mut last = None;
        for _ in 0..COUNT {
            let port = free_port(last)?;
            last = Some(port);
            let process = Process::spawn(&directory, port)?;
            servers.nodes.push(Node { port, process: Some(process) });
        }
        for index in 0..COUNT {
            servers.nodes[index].wait_until_ready(&directory, &mut last)?;
        }
        Ok(servers)
    }

    fn running(&mut self, node: usize) -> Result<&mut Process, Stop> {
        let gone = || Stop::Failed(format!("node {} is not running", node + 1));
        self.nodes[node].process.as_mut().ok_or_else(gone)
    }
}

impl Node {
    /// Waits until the node is ready. If its process fails, starts another one on another port.
    fn wait_until_ready(
        &mut self,
        directory: &Directory,
        last: &mut Option<u16>,
    ) -> Result<(), Stop> {
        let mut starts = 1;
        loop {
            let Some(process) = &mut self.process else { return Ok(()) };
            match process.wait_until_ready(directory, self.port) {
                Err(_) if starts < STARTS => starts += 1,
                outcome => return outcome,
            }
            self.port = free_port(*last)?;
            *last = Some(self.port);
            self.process = Some(Process::spawn(directory, self.port)?);
        }
    }
}

impl Masters for Servers {
    fn describe(&self) -> String {
        let ports: Vec<String> = self.nodes.iter().map(|node| node.port.to_string()).collect();
        let (version, ports) = (&self.version, ports.join(" "));
        format!("Five {BINARY} {version}, on ports {ports} of this machine.")
    }

    fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("redis://{}", loopback(node.port))).collect()
    }

    fn freeze(&mut self, node: usize) -> Result<String, Stop> {
        let process = self.running(node)?;
        process.signal(Signal::STOP)?;
        until("a server to stop", || (process.state() == Some('T')).then_some(Ok(())))?;
        Ok(format!("SIGSTOP to process {}", process.child.id()))
    }

    fn thaw(&mut self, node: usize) -> Result<String, Stop> {
        let process = self.running(node)?;
        process.signal(Signal::CONT)?;
        until("a server to go on", || (process.state() != Some('T')).then_some(Ok(())))?;
        Ok(format!("SIGCONT to process {}", process.child.id()))
    }

    fn kill(&mut self, node: usize) -> Result<String, Stop> {
        let process = self.running(node)?;
        let id = process.child.id();
        // The drop kills the process and waits for its end.
        self.nodes[node].process = None;
        Ok(format!("SIGKILL to process {id}"))
    }

    fn restart(&mut self, node: usize) -> Result<String, Stop> {
        let port = self.nodes[node].port;
        let directory = Directory::create()?;
        let mut process = Process::spawn(&directory, port)?;
        process.wait_until_ready(&directory, port)?;
        let id = process.child.id();
        self.nodes[node].process = Some(process);
        Ok(format!("as process {id}"))
    }

    fn inspect(&mut self, node: usize) -> Result<Seen, Stop> {
        let Node { port, process } = &mut self.nodes[node];
        let Some(process) = process else { return Ok(Seen::Dead) };
        if process.check_ended() {
            return Ok(Seen::Dead);
        }
        if process.state() == Some('T') {
            return Ok(Seen::Frozen);
        }
        let keys = Peek::open(loopback(*port)).and_then(|mut peek| peek.keys());
        let failed = |error| Stop::Failed(format!("a look into node {}: {error}", node + 1));
        keys.map(Seen::Keys).map_err(failed)
    }
}

/// A child that has not been reaped.
struct Process {
    child: Child,
}

impl Process {
    /// Starts a server and does not wait for it.
    fn spawn(directory: &Directory, port: u16) -> Result<Process, Stop> {
        let failed = |error| Stop::Failed(format!("{BINARY} cannot be started: {error}"));
        let log = File::create(directory.log(port)).map_err(failed)?;
        let errors = log.try_clone().map_err(failed)?;
        let child = die_with_parent::command(Path::new(BINARY), &[BINARY.into()])
            .args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"])
            .args(["--port", &port.to_string(), "--dir"])
            .arg(&directory.0)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn();
        Ok(Process { child: child.map_err(failed)? })
    }

    /// Waits until this process, and not another one, answers on its port.
    fn wait_until_ready(&mut self, directory: &Directory, port: u16) -> Result<(), Stop> {
        until("a server to answer", || {
            if self.check_ended() {
                let log = fs::read_to_string(directory.log(port)).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                return Some(Err(Stop::Failed(format!("{BINARY} ended at once: {last}"))));
            }
            let mut peek = Peek::open(loopback(port)).ok()?;
            let answers = peek.process_id().ok()?;
            let ours = answers == Some(self.child.id());
            let taken = || Stop::Failed(format!("port {port} belongs to another process"));
            Some(if ours { Ok(()) } else { Err(taken()) })
        })
    }

    fn check_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The letter of the process's state in /proc: `T` if it is stopped.
    fn state(&self) -> Option<char> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // The program's name comes before the state, in parentheses, and may contain parentheses.
        let (_, rest) = stat.rsplit_once(')')?;
        rest.trim_start().chars().next()
    }

    fn signal(&mut self, signal: Signal) -> Result<(), Stop> {
        let id = self.child.id();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        match pid.filter(|_| !self.check_ended()) {
            Some(pid) => kill_process(pid, signal)
                .map_err(|error| Stop::Failed(format!("a signal to process {id}: {error}"))),
            None => Err(Stop::Failed(format!("process {id} ended by itself"))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.signal(Signal::CONT);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory of this process's own, for servers to start in.
///
/// The directory is removed as soon as the servers are ready, because they save nothing, and their
/// logs are needed only for a failed start. So nothing is left however the demo ends.
struct Directory(PathBuf);

impl Directory {
    fn create() -> Result<Directory, Stop> {
        for count in 0.. {
            let name = format!("redlatch-demo-{}-{count}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Directory(path)),
                // An earlier process with the same number was killed and left its directory.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let path = path.display();
                    return Err(Stop::Failed(format!("the directory {path}: {error}")));
                }
            }
        }
        unreachable!("one name of so many is free")
    }

    fn log(&self, port: u16) -> PathBuf {
        self.0.join(format!("{port}.log"))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The output of `redis-server --version`; without a server, an error that says how to get one.
fn version() -> Result<String, Stop> {
    let output = Command::new(BINARY).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        let way = format!("install it ({INSTALL}), or leave --real away: then nothing is needed");
        Stop::Failed(format!("{BINARY} cannot be started ({error}); {way}"))
    })?;
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.split_once("v=").map_or("", |(_, rest)| rest).split(' ').next();
    Ok(number.unwrap_or_default().to_string())
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A port on which no process listens now: the next one after `last`, or after a random one.
fn free_port(last: Option<u16>) -> Result<u16, Stop> {
    let count = PORTS.len() as u64;
    let somewhere = || RandomState::new().build_hasher().finish() % count;
    let start = last.map_or_else(somewhere, |port| u64::from(port - PORTS.start) + 1);
    let ports = (0..count).map(|step| PORTS.start + ((start + step) % count) as u16);
    let mut free = ports.filter(|&port| TcpListener::bind(loopback(port)).is_ok());
    free.next().ok_or_else(|| Stop::Failed(format!("no port is free in {PORTS:?}")))
}

/// Polls until there is an outcome.
fn until<T>(what: &str, mut check: impl FnMut() -> Option<Result<T, Stop>>) -> Result<T, Stop> {
    let start = clock::now();
    loop {
        if let Some(outcome) = check() {
            return outcome;
        }
        if clock::now().saturating_since(start) > PATIENCE {
            return Err(Stop::Failed(format!(
                "waited {PATIENCE:?} for {what}, and it did not happen"
            )));
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a process does not report that it is ready"
        )]
        std::thread::sleep(Duration::from_millis(2));
    }
}
