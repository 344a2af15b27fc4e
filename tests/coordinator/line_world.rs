//! Several clients and the masters inside this process, with the network played by the test.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::proto::{Action, Coordinator, Instant, NodeId, NodeSettings, Settings};
use redlatch::testing::master::{ConnectionId, Master, Restart};
use redlatch::{Completion, Error, Lock, LockOptions, Op, Outcome};

pub const KEY: &[u8] = b"k";
pub const LINE: &[u8] = b"redlatch:line:{k}";
pub const A_DAY: u32 = 24 * 60 * 60;

/// A world of clients and masters, each of which has a number.
pub struct World {
    pub masters: Vec<Master>,
    pub clients: Vec<Client>,
    pub now: Instant,
    /// What a master has sent, and its client has not read yet.
    inbox: BTreeMap<ConnectionId2, Vec<u8>>,
    /// Nodes that execute nothing and answer nothing.
    pub frozen: Vec<usize>,
    /// Clients that do nothing.
    pub stopped: Vec<usize>,
}

type ConnectionId2 = (usize, ConnectionId);

/// How many rounds of deliveries one moment may take. A client that asks again at once, without
/// end, would make the test hang instead.
const MOST_ROUNDS: usize = 1_000;

pub struct Client {
    pub core: Coordinator,
    pub wires: Vec<Option<ConnectionId>>,
    pub done: Vec<Completion>,
}

impl World {
    pub fn new(nodes: usize) -> World {
        let now = Instant::from_nanos(1_000_000_000_000);
        let masters = (0..nodes as u64).map(|seed| {
            let mut master = Master::new(seed, now);
            master.set_uptime(now, A_DAY);
            master
        });
        World {
            masters: masters.collect(),
            clients: Vec::new(),
            now,
            inbox: BTreeMap::new(),
            frozen: Vec::new(),
            stopped: Vec::new(),
        }
    }

    /// A new client that is connected to every master. Returns its number.
    pub fn client(&mut self) -> usize {
        self.client_with(|_| {})
    }

    pub fn client_with(&mut self, change: impl FnOnce(&mut Settings)) -> usize {
        let nodes = self.masters.len();
        let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
        let mut settings = Settings::new(labels.collect());
        settings.node_timeout = Duration::from_millis(50);
        settings.probe_interval = Duration::from_secs(1000);
        change(&mut settings);
        let mut seed = [7; 32];
        seed[..8].copy_from_slice(&(7 + self.clients.len() as u64).to_le_bytes());
        let core = Coordinator::new(settings, seed, self.now).expect("good settings");
        self.clients.push(Client { core, wires: vec![None; nodes], done: Vec::new() });
        let client = self.clients.len() - 1;
        self.settle();
        client
    }

    /// Asks for a lock and waits for it without end.
    pub fn ask(&mut self, client: usize, ttl: Duration) -> Op {
        self.ask_with(client, LockOptions::new(ttl))
    }

    /// Asks for a lock with these options, and waits for it without end.
    pub fn ask_with(&mut self, client: usize, options: LockOptions) -> Op {
        let options = options.wait(Duration::from_secs(1000));
        let core = &mut self.clients[client].core;
        core.acquire(KEY, options, 1, self.now).expect("it can be asked for")
    }

    /// The client gets a lock after it stood in line behind another program.
    pub fn won_in_line(&mut self, client: usize, ttl: Duration) -> Lock {
        self.won_in_line_with(client, LockOptions::new(ttl))
    }

    /// As `won_in_line`, with these options.
    pub fn won_in_line_with(&mut self, client: usize, options: LockOptions) -> Lock {
        let nodes = self.masters.len();
        (0..nodes).for_each(|node| self.run(node, &[b"SET", KEY, b"of another program"]));
        self.ask_with(client, options);
        self.settle();
        (0..nodes).for_each(|node| self.run(node, &[b"DEL", KEY]));
        self.settle();
        if self.clients[client].done.is_empty() {
            // The nodes do not report writes, so the client polls.
            self.pass(100 * Duration::from_millis(1));
        }
        self.won(client)
    }

    /// What the client has to write to a node, as text.
    pub fn output(&self, client: usize, node: usize) -> String {
        let bytes = self.clients[client].core.output(NodeId::new(node));
        String::from_utf8_lossy(bytes).into_owned()
    }

    pub fn release(&mut self, client: usize, lock: Lock) {
        self.clients[client].core.release(lock, 2, self.now);
    }

    /// Carries out what the client asked of its sockets.
    pub fn act(&mut self, client: usize) {
        while let Some(action) = self.clients[client].core.poll_action() {
            match action {
                Action::Connect(node) => {
                    let wire = self.masters[node.index()].connect();
                    self.clients[client].wires[node.index()] = Some(wire);
                    self.clients[client].core.handle_connected(node, self.now);
                }
                Action::Disconnect(node) => {
                    if let Some(wire) = self.clients[client].wires[node.index()].take() {
                        self.masters[node.index()].disconnect(wire);
                    }
                }
            }
        }
    }

    /// What the client has written arrives at the master, which executes it.
    pub fn deliver_commands(&mut self, client: usize, node: usize) {
        let Some(wire) = self.clients[client].wires[node] else { return };
        let core = &mut self.clients[client].core;
        let bytes = core.output(NodeId::new(node)).to_vec();
        core.handle_sent(NodeId::new(node), bytes.len(), self.now);
        self.masters[node].handle_bytes(self.now, wire, &bytes);
        self.collect(node);
    }

    fn collect(&mut self, node: usize) {
        while let Some(output) = self.masters[node].poll_output() {
            self.inbox.entry((node, output.connection)).or_default().extend(output.bytes);
            if output.closes {
                let closed = Some(output.connection);
                for client in &mut self.clients {
                    if client.wires[node] == closed {
                        client.wires[node] = None;
                        client.core.handle_disconnected(NodeId::new(node), "reset", self.now);
                    }
                }
            }
        }
    }

    /// What the master has sent to this client arrives there.
    pub fn deliver_answers(&mut self, client: usize, node: usize) {
        let Some(wire) = self.clients[client].wires[node] else { return };
        let bytes = self.inbox.remove(&(node, wire)).unwrap_or_default();
        if !bytes.is_empty() {
            self.clients[client].core.handle_bytes(NodeId::new(node), &bytes, self.now);
        }
    }

    /// What a master has sent to this client, and the client has not read yet.
    pub fn unread(&self, client: usize, node: usize) -> Vec<u8> {
        let wire = self.clients[client].wires[node].expect("it is connected");
        self.inbox.get(&(node, wire)).cloned().unwrap_or_default()
    }

    /// What a master has sent to this client is lost with its connection.
    pub fn cut(&mut self, client: usize, node: usize) {
        let Some(wire) = self.clients[client].wires[node].take() else { return };
        self.inbox.remove(&(node, wire));
        self.masters[node].disconnect(wire);
        self.clients[client].core.handle_disconnected(NodeId::new(node), "cut", self.now);
    }

    pub fn restart(&mut self, node: usize, memory: Restart) {
        self.masters[node].restart(self.now, memory);
        self.collect(node);
    }

    fn awake(&self) -> Vec<usize> {
        (0..self.clients.len()).filter(|client| !self.stopped.contains(client)).collect()
    }

    fn served(&self) -> Vec<usize> {
        (0..self.masters.len()).filter(|node| !self.frozen.contains(node)).collect()
    }

    /// Everything is delivered, in the order of the clients and nodes, until nothing moves.
    ///
    /// # Panics
    /// If the clients and the masters go on without end while no time passes.
    #[track_caller]
    pub fn settle(&mut self) {
        for _ in 0..MOST_ROUNDS {
            let mut moved = false;
            for client in self.awake() {
                self.act(client);
                for node in self.served() {
                    let id = NodeId::new(node);
                    moved |= !self.clients[client].core.output(id).is_empty();
                    self.deliver_commands(client, node);
                }
            }
            for client in self.awake() {
                for node in self.served() {
                    if let Some(wire) = self.clients[client].wires[node] {
                        moved |= self.inbox.contains_key(&(node, wire));
                    }
                    self.deliver_answers(client, node);
                }
                let entry = &mut self.clients[client];
                while let Some(done) = entry.core.poll_completion(self.now) {
                    entry.done.push(done);
                    moved = true;
                }
                moved |= entry.core.has_actions();
            }
            if !moved {
                return;
            }
        }
        let outputs = |client: &Client| {
            let nodes = (0..self.masters.len()).map(NodeId::new);
            let written = nodes.map(|node| client.core.output(node).len());
            written.collect::<Vec<usize>>()
        };
        let written: Vec<_> = self.clients.iter().map(outputs).collect();
        panic!(
            "after {MOST_ROUNDS} rounds at one moment clients still write, in bytes: {written:?}"
        );
    }

    /// Lets time pass in small steps, in which all messages are delivered.
    #[track_caller]
    pub fn pass(&mut self, by: Duration) {
        let until = self.now.saturating_add(by);
        while self.now < until {
            self.now = self.now.saturating_add(Duration::from_millis(1)).min(until);
            for client in self.awake() {
                self.clients[client].core.handle_timeout(self.now);
            }
            self.settle();
        }
    }

    /// No client runs for so long that a node takes its waiters for ones that may have stopped.
    pub fn pause_all_clients(&mut self) {
        self.now = self.now.saturating_add(Duration::from_millis(51));
    }

    /// The lock that the client has got, if its last request ended with one.
    pub fn lock(&mut self, client: usize) -> Option<Lock> {
        match self.clients[client].done.pop()?.result {
            Ok(Outcome::Acquired(lock)) => Some(lock),
            Ok(Outcome::Released(_)) => self.lock(client),
            other => panic!("client {client}: {other:?}"),
        }
    }

    pub fn won(&mut self, client: usize) -> Lock {
        self.lock(client).unwrap_or_else(|| panic!("client {client} has no lock"))
    }

    pub fn error(&mut self, client: usize) -> Error {
        self.clients[client].done.pop().expect("it ended").result.expect_err("it failed")
    }

    pub fn remaining(&self, client: usize, lock: &Lock) -> Duration {
        self.clients[client].core.remaining(lock, self.now)
    }

    /// An operator, or a client of another library, runs a command.
    pub fn run(&mut self, node: usize, words: &[&[u8]]) {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend(format!("${}\r\n", word.len()).bytes());
            command.extend(*word);
            command.extend(b"\r\n");
        }
        let operator = self.masters[node].connect();
        self.masters[node].handle_bytes(self.now, operator, &command);
        self.masters[node].disconnect(operator);
        self.collect(node);
    }

    /// The token at the key of a node.
    pub fn value(&self, node: usize) -> String {
        let value = self.masters[node].get(self.now, 0, KEY).unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    }

    /// How many stand in the line of a node.
    pub fn in_line(&self, node: usize) -> usize {
        self.masters[node].line(self.now, LINE).len()
    }

    /// No key, no line, no record is left.
    pub fn assert_clean(&self) {
        for (node, master) in self.masters.iter().enumerate() {
            let keys = master.keys(self.now, 0);
            let ours = keys.iter().filter(|key| key.starts_with(KEY)).count();
            assert_eq!(ours, 0, "node {node} has {keys:?}");
        }
        for (number, client) in self.clients.iter().enumerate() {
            let open = (client.core.open_records(), client.core.open_ops());
            assert_eq!(open, (0, 0), "client {number}");
        }
    }
}
