//! Real Sentinels that monitor one master, and a listener that answers as a Sentinel would.
//!
//! The Sentinels find a dead master and elect another in about a second. The one hazard: another
//! process may take a port after it was chosen. So a start counts only if the process that answers
//! there has the pid of the child.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::eventually;
use super::folder::Folder;
use super::ports::free_port;
use super::process::{Server, field, loopback};
use super::redis::Node;
use super::resp_client::{RespClient, Value};

/// The name of the monitored master.
pub const MASTER: &str = "orders";

/// How long the Sentinels may take to find each other and the replica, and a failover to end. It is
/// some seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sentinels, which are ended when this is dropped.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<Sentinel>,
    folder: Folder,
}

#[derive(Debug)]
struct Sentinel {
    child: Child,
    port: u16,
    password: Option<String>,
}

impl Sentinels {
    /// Starts `count` Sentinels of this master, and waits until they know each other and its
    /// `replicas`.
    #[track_caller]
    pub fn start(count: usize, master: &Node, replicas: usize) -> Sentinels {
        let sentinels = Sentinels::with(count, master.port(), None, |_, _| Vec::new());
        sentinels.wait_until_they_know(replicas);
        sentinels
    }

    /// Waits until the Sentinels know each other and as many replicas of the master. Before that
    /// they can promote none.
    #[track_caller]
    pub fn wait_until_they_know(&self, replicas: usize) {
        for sentinel in &self.sentinels {
            eventually(PATIENCE, "each Sentinel knows the others and the replicas", || {
                let known = |name: &str| sentinel.know(name).and_then(|it| it.parse().ok());
                known("num-other-sentinels") == Some(self.sentinels.len() - 1)
                    && known("num-slaves") == Some(replicas)
            });
        }
    }

    /// Starts Sentinels with more lines in the configuration of each, which may name files in its
    /// directory.
    #[track_caller]
    pub fn with(
        count: usize,
        master: u16,
        password: Option<&str>,
        lines: impl Fn(&Path, u16) -> Vec<String>,
    ) -> Sentinels {
        let mut all = Sentinels { sentinels: Vec::new(), folder: Folder::new() };
        for number in 0..count {
            let directory = all.folder.join(number.to_string());
            std::fs::create_dir(&directory).expect("a new directory can be written");
            let port = free_port();
            let quorum = count / 2 + 1;
            let mut conf = vec![
                "bind 127.0.0.1".to_owned(),
                "protected-mode no".to_owned(),
                format!("dir {}", directory.display()),
                format!("sentinel monitor {MASTER} 127.0.0.1 {master} {quorum}"),
                format!("sentinel down-after-milliseconds {MASTER} 60000"),
                format!("sentinel failover-timeout {MASTER} 5000"),
            ];
            conf.extend(password.map(|password| format!("requirepass \"{password}\"")));
            let own = lines(&directory, port);
            if !own.iter().any(|line| line.starts_with("port ")) {
                conf.push(format!("port {port}"));
            }
            conf.extend(own);
            let password = password.map(str::to_owned);
            all.sentinels.push(Sentinel::start(&directory, &conf.join("\n"), port, password));
        }
        all
    }

    /// From now on, a master that is silent for half a second is taken for dead. Before that a
    /// stall of the machine leads to no failover.
    #[track_caller]
    pub fn watch_closely(&self) {
        for sentinel in &self.sentinels {
            let set = ["SENTINEL", "SET", MASTER, "down-after-milliseconds", "500"];
            assert!(sentinel.ask(&set).is_some_and(|it| it.is_ok()), "a Sentinel refuses {set:?}");
        }
    }

    /// `redis+sentinel://127.0.0.1:PORT,.../orders`
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|it| format!("127.0.0.1:{}", it.port)).collect();
        format!("redis+sentinel://{}/{MASTER}", hosts.join(","))
    }

    /// Has a replica promoted, although the master is well, and waits until all Sentinels name it.
    #[track_caller]
    pub fn fail_over(&self, to: &Node) {
        eventually(PATIENCE, "a failover begins", || {
            let answer = self.sentinels[0].ask(&["SENTINEL", "FAILOVER", MASTER]);
            // After an answer that was lost, it says that one is in progress. A second failover
            // would promote the former master again.
            let has_begun = |it: Value| it.is_ok() || format!("{it:?}").starts_with("-INPROG");
            answer.is_some_and(has_begun)
        });
        self.wait_until_they_name(to);
    }

    /// Waits until all Sentinels name this server as the master.
    #[track_caller]
    pub fn wait_until_they_name(&self, master: &Node) {
        let named =
            [Value::Bulk(b"127.0.0.1".into()), Value::Bulk(master.port().to_string().into())];
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER];
        eventually(PATIENCE, "all Sentinels name the new master", || {
            let answer = |it: &Sentinel| it.ask(&question) == Some(Value::Array(named.to_vec()));
            self.sentinels.iter().all(answer)
        });
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        for sentinel in &mut self.sentinels {
            let _ = sentinel.child.kill();
            let _ = sentinel.child.wait();
        }
    }
}

impl Sentinel {
    #[track_caller]
    fn start(directory: &Path, conf: &str, port: u16, password: Option<String>) -> Sentinel {
        let file = directory.join("sentinel.conf");
        std::fs::write(&file, conf).expect("the Sentinel's directory can be written");
        let log = directory.join("log");
        let out = std::fs::File::create(&log).expect("the Sentinel's directory can be written");
        let mut command = Command::new(&Server::get().binary);
        let errors = out.try_clone().expect("a file can be cloned");
        command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(out).stderr(errors);
        let child = command.spawn().expect("a server whose version was asked can be started");
        let mut sentinel = Sentinel { child, port, password };
        let plain = conf.contains(&format!("port {port}")) && !conf.contains("\nport 0");
        eventually(PATIENCE, "a Sentinel answers", || {
            if let Ok(Some(status)) = sentinel.child.try_wait() {
                let log = std::fs::read_to_string(&log).unwrap_or_default();
                panic!("the Sentinel ended with {status}: {log}");
            }
            if !plain {
                // It speaks only TLS: then its log says whether it has the port.
                return std::fs::read_to_string(&log).is_ok_and(|log| log.contains("+monitor"));
            }
            let Some(Value::Bulk(info)) = sentinel.ask(&["INFO", "server"]) else { return false };
            let info = String::from_utf8_lossy(&info);
            let pid = field(&info, "process_id").and_then(|pid| pid.parse().ok());
            assert_eq!(pid, Some(sentinel.child.id()), "another process has port {port}");
            true
        });
        if plain {
            // A server before 7.0 does not know this and takes its usual times, which are longer.
            let faster = ["SENTINEL", "DEBUG", "INFO-PERIOD", "200", "PUBLISH-PERIOD", "200"];
            let _ = sentinel.ask(&faster);
        }
        sentinel
    }

    /// `None` if there is no answer.
    fn ask(&self, words: &[&str]) -> Option<Value> {
        let mut client = RespClient::connect(loopback(self.port)).ok()?;
        if let Some(password) = &self.password {
            client.command(&["AUTH", password]).ok()?;
        }
        client.command(words).ok()
    }

    /// A field of what it knows of the master.
    fn know(&self, field: &str) -> Option<String> {
        let fields = self.ask(&["SENTINEL", "MASTER", MASTER])?.text_items();
        let at = fields.iter().position(|name| name == field)?;
        fields.get(at + 1).cloned()
    }
}

/// A listener that answers each command with the present reply, whatever the command is.
#[derive(Debug)]
pub struct FakeSentinel {
    port: u16,
    reply: Arc<Mutex<String>>,
}

impl FakeSentinel {
    /// Answers with this reply, in RESP; with an empty one it is silent.
    pub fn start(reply: &str) -> FakeSentinel {
        let listener = TcpListener::bind(loopback(0)).expect("loopback has ports");
        let port = listener.local_addr().expect("it is bound").port();
        let reply = Arc::new(Mutex::new(reply.to_owned()));
        let shared = Arc::clone(&reply);
        // The thread ends with the process.
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let Ok(copy) = stream.try_clone() else { continue };
                let reply = shared.lock().expect("no test panics with it").clone();
                if reply.is_empty() {
                    silent.push(stream);
                    continue;
                }
                // A command of three words, such as the question, has seven lines.
                let lines = BufReader::new(copy).lines();
                if lines.take(7).all(|line| line.is_ok()) {
                    let _ = stream.write_all(reply.as_bytes());
                }
            }
        });
        FakeSentinel { port, reply }
    }

    /// Names a server as the master.
    pub fn naming(node: &Node) -> FakeSentinel {
        FakeSentinel::start(&FakeSentinel::naming_reply(node))
    }

    /// Names another server from now on.
    pub fn name(&self, node: &Node) {
        self.answer(&FakeSentinel::naming_reply(node));
    }

    /// Answers with this reply from now on, in RESP.
    pub fn answer(&self, reply: &str) {
        *self.reply.lock().expect("no test panics with it") = reply.to_owned();
    }

    fn naming_reply(node: &Node) -> String {
        let port = node.port().to_string();
        format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}
