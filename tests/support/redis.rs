//! Real masters: a fleet of independent servers on loopback, and a handle on each of them.
//!
//! A fleet takes one of the machine's places for servers and starts all of them at once. Dropping
//! it ends them and removes their files, also while a test panics. The one hazard: a stopped server
//! keeps its connections open and answers nothing, so a command to it panics after a read timeout.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Index;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::folder::Folder;
use super::lock::ServerLock;
use super::monitor::Monitor;
use super::ports::{free_port, is_free};
use super::process::{Process, Recipe, field, loopback};
use super::resp_client::{RespClient, Value};
use super::{SOON, eventually};

/// The key of the node marker, which clients with the restart guard leave on every node.
const NODE_MARKER: &[u8] = redlatch::proto::NODE_MARKER.as_bytes();

/// While a test waits for all keys to go, it reads the ttl of this many of them.
const MOST_LOOKED_AT: usize = 20;

/// How often a start is tried again if another process has taken the port.
const STARTS: usize = 10;

/// N running servers, all empty, none persistent.
#[derive(Debug)]
pub struct Fleet {
    nodes: Vec<Node>,
    // After the nodes, so that it is removed after the servers have ended.
    folder: Folder,
    // The last field, so that the place is free only after the servers have ended.
    lock: ServerLock,
}

impl Fleet {
    /// Waits for its turn on this machine, then starts `n` servers.
    #[track_caller]
    pub fn start(n: usize) -> Fleet {
        Fleet::with(n, &[])
    }

    /// As [`start`](Fleet::start), with more arguments on each server's command line, such as
    /// `--maxclients 10`.
    ///
    /// With `--requirepass` the connections of the tests' own authenticate themselves.
    #[track_caller]
    pub fn with(n: usize, arguments: &[&str]) -> Fleet {
        Fleet::with_environment(n, arguments, &[])
    }

    /// A fleet with variables in each server's environment.
    #[track_caller]
    pub fn with_environment(n: usize, arguments: &[&str], variables: &[(&str, &str)]) -> Fleet {
        let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
        Fleet::launch(n, |_, _| arguments.clone(), variables)
    }

    /// A fleet with arguments for each server. They may name files in the server's directory.
    #[track_caller]
    pub fn each(n: usize, arguments: impl Fn(usize, &Path) -> Vec<String>) -> Fleet {
        Fleet::launch(n, arguments, &[])
    }

    /// Does this with each of these nodes, in this order: `fleet.on([0, 1], Node::stop)`.
    pub fn on(&self, nodes: impl IntoIterator<Item = usize>, act: impl FnMut(&Node)) {
        nodes.into_iter().map(|node| &self[node]).for_each(act);
    }

    #[track_caller]
    fn launch(
        n: usize,
        arguments: impl Fn(usize, &Path) -> Vec<String>,
        variables: &[(&str, &str)],
    ) -> Fleet {
        let lock = ServerLock::take();
        let mut fleet = Fleet { nodes: Vec::new(), folder: Folder::new(), lock };
        let recipes: Vec<Recipe> = (0..n).map(|i| fleet.recipe(i, &arguments, variables)).collect();
        let spawned: Vec<(Recipe, Process)> = recipes
            .into_iter()
            .map(|recipe| {
                let process = Process::spawn(&recipe, free_port());
                (recipe, process)
            })
            .collect();
        for (recipe, process) in spawned {
            let (process, client) = ready(&recipe, process, free_port);
            fleet.nodes.push(Node::new(recipe, process, client));
        }
        fleet
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Sends a command to every node. No node may answer an error.
    #[track_caller]
    pub fn command(&self, arguments: &[&str]) {
        for node in self.iter() {
            let reply = node.command(arguments);
            assert!(!matches!(reply, Value::Error(_)), "{arguments:?}: {reply:?}");
        }
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Node> {
        self.nodes.iter()
    }

    /// `redis://127.0.0.1:PORT` of each, in order.
    pub fn urls(&self) -> Vec<String> {
        self.iter().map(Node::url).collect()
    }

    /// Every key on every server that was not killed, each with the index of its server. The node
    /// markers are left out, because they stay.
    #[track_caller]
    pub fn keys_everywhere(&self) -> Vec<(usize, Vec<u8>)> {
        let running = self.iter().enumerate().filter(|(_, node)| node.is_running());
        let keys = running.flat_map(|(i, node)| node.keys().into_iter().map(move |key| (i, key)));
        keys.filter(|(_, key)| key != NODE_MARKER).collect()
    }

    /// The values of the key, one for each server that has it.
    pub fn values(&self, key: &str) -> Vec<Vec<u8>> {
        self.iter().filter_map(|node| node.get(key)).collect()
    }

    /// Waits until every server holds this token at the key, because a call already returns when a
    /// majority does.
    #[track_caller]
    pub fn wait_held(&self, key: &str, token: &impl ToString) {
        let held = vec![token.to_string().into_bytes(); self.len()];
        eventually(SOON, "all nodes hold it", || self.values(key) == held);
    }

    /// Waits until no server has a key, because a release may be on its way that no caller waits
    /// for. Returns how long that took. Panics if a key may have gone by its ttl.
    #[track_caller]
    pub fn wait_empty(&self) -> Duration {
        let start = Instant::now();
        eventually(SOON, "no key is left", self.emptied());
        start.elapsed()
    }

    /// Returns a function that says whether all keys are gone, to be called again and again. It
    /// panics if a key that it saw is gone only after its ttl ended: then no release may have
    /// deleted it.
    pub fn emptied(&self) -> impl FnMut() -> bool + '_ {
        // The moments at which the keys that were seen would expire.
        let mut ends: BTreeMap<(usize, Vec<u8>), Instant> = BTreeMap::new();
        move || {
            let mut left = self.keys_everywhere();
            let looked = Instant::now();
            for (key, end) in &ends {
                let (node, name) = (key.0, key.1.escape_ascii());
                let is_told = left.contains(key) || looked < *end;
                assert!(is_told, "node {node}: {name} may have gone by its ttl");
            }
            let is_empty = left.is_empty();
            left.truncate(MOST_LOOKED_AT);
            let seen = std::mem::take(&mut ends);
            let end = |key: &(usize, Vec<u8>)| self.end_of(key, seen.get(key).copied());
            ends = left.into_iter().filter_map(|key| end(&key).map(|end| (key, end))).collect();
            is_empty
        }
    }

    /// When this key would expire; `None` if it never would. If the key is gone by now, the moment
    /// that was computed for it before.
    fn end_of(&self, (node, key): &(usize, Vec<u8>), seen: Option<Instant>) -> Option<Instant> {
        let before = Instant::now();
        match self[*node].pttl(key) {
            -2 => seen,
            left => Some(before + Duration::from_millis(u64::try_from(left).ok()?)),
        }
    }

    fn recipe(
        &self,
        index: usize,
        arguments: impl Fn(usize, &Path) -> Vec<String>,
        variables: &[(&str, &str)],
    ) -> Recipe {
        let directory = self.folder.join(index.to_string());
        std::fs::create_dir(&directory).expect("a new directory can be written");
        let arguments = arguments(index, &directory);
        let own = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let environment = variables.iter().map(own).collect();
        Recipe { directory, arguments, environment }
    }
}

impl Index<usize> for Fleet {
    type Output = Node;

    fn index(&self, index: usize) -> &Node {
        &self.nodes[index]
    }
}

impl<'a> IntoIterator for &'a Fleet {
    type Item = &'a Node;
    type IntoIter = std::slice::Iter<'a, Node>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// One server. Everything takes `&self`, so that threads can share a fleet.
#[derive(Debug)]
pub struct Node {
    recipe: Recipe,
    port: u16,
    /// `None` once it was killed.
    process: Mutex<Option<Process>>,
    /// Kept between commands, so that AUTH, SELECT and the like last. It has a mutex of its own, so
    /// that one thread can wait for a stopped server's reply while another continues the server.
    client: Mutex<Option<RespClient>>,
}

impl Node {
    fn new(recipe: Recipe, process: Process, client: RespClient) -> Node {
        let port = process.port();
        Node { recipe, port, process: Mutex::new(Some(process)), client: Mutex::new(Some(client)) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The server's own directory, with its log.
    pub fn directory(&self) -> &Path {
        &self.recipe.directory
    }

    /// Panics if the server was killed.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.with_process(Process::pid)
    }

    /// False between `kill` and `restart`; a stopped server is running.
    pub fn is_running(&self) -> bool {
        held(&self.process).is_some()
    }

    /// SIGSTOP, and waits until the process is stopped. The kernel still accepts connections.
    #[track_caller]
    pub fn stop(&self) {
        self.with_process(Process::stop);
    }

    /// SIGCONT, after which the server executes what it has received meanwhile.
    #[track_caller]
    pub fn cont(&self) {
        self.with_process(Process::cont);
    }

    /// The state of the process as in ps: `T` is stopped. `None` if it was killed.
    pub fn process_state(&self) -> Option<char> {
        held(&self.process).as_ref().and_then(Process::state)
    }

    /// SIGKILL, and waits until the process is gone. Its port refuses connections from then on.
    ///
    /// Does nothing if the server was killed before.
    pub fn kill(&self) {
        if let Some(process) = held(&self.process).take() {
            process.kill();
        }
        // Only after the kill, which ends the wait of a thread that is reading from the server.
        *held(&self.client) = None;
    }

    /// Kills the server if it runs, and starts it again, empty, on the same port with the same
    /// arguments.
    #[track_caller]
    pub fn restart(&self) {
        self.restart_with(&[]);
    }

    /// Restarts with more arguments, for this start only.
    #[track_caller]
    pub fn restart_with(&self, arguments: &[&str]) {
        let mut recipe = self.recipe.clone();
        recipe.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self.kill();
        eventually(Duration::from_secs(20), "the port of a killed server is free again", || {
            is_free(self.port)
        });
        let process = Process::spawn(&recipe, self.port);
        let (process, client) = ready(&recipe, process, || self.port);
        *held(&self.process) = Some(process);
        *held(&self.client) = Some(client);
    }

    /// Sends a command over a connection that this handle keeps, and returns the reply.
    ///
    /// Panics when there is no reply; `Value::Error` is a reply.
    #[track_caller]
    pub fn command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Value {
        match self.try_command(arguments) {
            Ok(value) => value,
            Err(error) => panic!("{}: no reply: {error}", self.address()),
        }
    }

    /// As `command`, for a server that may be gone or stopped.
    pub fn try_command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> std::io::Result<Value> {
        let mut slot = held(&self.client);
        // If the server has closed the kept connection, a new one replaces it before the command is
        // sent.
        let kept = slot.take().filter(RespClient::is_idle);
        let mut client = match kept {
            Some(client) => client,
            None => self.recipe.connect(self.port)?,
        };
        let value = client.command(arguments)?;
        *slot = Some(client);
        Ok(value)
    }

    /// A new connection that the caller owns: another client of the same server.
    #[track_caller]
    pub fn client(&self) -> RespClient {
        self.recipe.connect(self.port).expect("a running server accepts connections")
    }

    #[track_caller]
    pub fn get(&self, key: impl AsRef<[u8]>) -> Option<Vec<u8>> {
        match self.command(&[b"GET".as_slice(), key.as_ref()]) {
            Value::Bulk(bytes) => Some(bytes),
            Value::Nil => None,
            other => panic!("GET: {other:?}"),
        }
    }

    /// In milliseconds; -2 if the key is absent, -1 if it has no ttl.
    #[track_caller]
    pub fn pttl(&self, key: impl AsRef<[u8]>) -> i64 {
        self.command(&[b"PTTL".as_slice(), key.as_ref()]).int()
    }

    /// Every key, sorted.
    #[track_caller]
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let Value::Array(items) = self.command(&["KEYS", "*"]) else { panic!("KEYS is refused") };
        let mut keys: Vec<Vec<u8>> = items
            .into_iter()
            .map(|item| match item {
                Value::Bulk(key) => key,
                other => panic!("KEYS: {other:?}"),
            })
            .collect();
        keys.sort();
        keys
    }

    /// One field of INFO, such as `run_id` or `connected_clients`.
    #[track_caller]
    pub fn info(&self, name: &str) -> String {
        let info = self.command(&["INFO"]).text();
        match field(&info, name) {
            Some(value) => value.to_owned(),
            None => panic!("INFO has no {name}"),
        }
    }

    /// Starts to collect the commands of all clients of the server.
    #[track_caller]
    pub fn monitor(&self) -> Monitor {
        Monitor::start(|| self.client())
    }

    /// The lines of CLIENT LIST, without the connections of this handle and of monitors' readers.
    ///
    /// A connection that the kernel has accepted and the server has not is missing.
    #[track_caller]
    pub fn client_list(&self) -> Vec<String> {
        let text = self.command(&["CLIENT", "LIST"]).text();
        let own = held(&self.client).as_ref().map(RespClient::local_address);
        let own = own.map_or(String::new(), |address| format!("addr={address}"));
        let is_ours = |line: &str| line.split(' ').any(|word| word == own || word == "flags=O");
        text.lines().filter(|line| !is_ours(line)).map(str::to_owned).collect()
    }

    #[track_caller]
    fn with_process<T>(&self, act: impl FnOnce(&Process) -> T) -> T {
        match &*held(&self.process) {
            Some(process) => act(process),
            None => panic!("{} was killed", self.address()),
        }
    }
}

/// Locks the mutex also after a test panicked, so that the fleet can still clean up.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until a started server is ready. If its port was taken, starts it again on the next port.
#[track_caller]
fn ready(
    recipe: &Recipe,
    mut process: Process,
    next_port: impl Fn() -> u16,
) -> (Process, RespClient) {
    let mut last = String::new();
    for _ in 0..STARTS {
        match process.wait_ready(recipe) {
            Ok(client) => return (process, client),
            Err(why) => last = why,
        }
        process = Process::spawn(recipe, next_port());
    }
    panic!("a server could not be started {STARTS} times; the last time {last}");
}
