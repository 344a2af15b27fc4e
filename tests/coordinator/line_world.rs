//! Several clients that want one key, in the network of `redlatch::testing`, and what the tests of
//! lines ask of it.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use redlatch::proto::{Coordinator, NodeSettings, Settings};
use redlatch::testing::master::Trouble;
use redlatch::testing::net::Net;
use redlatch::{Completion, Error, Lock, LockOptions, Op, Outcome};

pub const KEY: &[u8] = b"k";
pub const LINE: &[u8] = b"redlatch:line:{k}";

/// The clients and masters, each of which has a number.
pub struct World {
    net: Net,
    /// What ended, by client.
    pub done: Vec<Vec<Completion>>,
}

impl Deref for World {
    type Target = Net;

    fn deref(&self) -> &Net {
        &self.net
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Net {
        &mut self.net
    }
}

impl World {
    pub fn new(nodes: usize) -> World {
        World { net: Net::new(nodes, 7), done: Vec::new() }
    }

    /// A new client that is connected to every master. Returns its number.
    pub fn client(&mut self) -> usize {
        self.client_with(|_| {})
    }

    pub fn client_with(&mut self, change: impl FnOnce(&mut Settings)) -> usize {
        let labels = (0..self.nodes()).map(|node| NodeSettings::new(format!("n{node}")));
        let mut settings = Settings::new(labels.collect());
        settings.node_timeout = Duration::from_millis(50);
        settings.probe_interval = Duration::from_secs(1000);
        change(&mut settings);
        let client = self.net.client(settings);
        self.done.push(Vec::new());
        self.settle();
        client
    }

    /// Asks for a lock and waits for it without end.
    pub fn ask(&mut self, client: usize, ttl: Duration) -> Op {
        self.ask_with(client, LockOptions::new(ttl))
    }

    /// Asks for a lock with these options, and waits for it without end.
    pub fn ask_with(&mut self, client: usize, options: LockOptions) -> Op {
        let (options, now) = (options.wait(Duration::from_secs(1000)), self.now());
        let asked = self.client_mut(client).acquire(KEY, options, 1, now);
        asked.expect("it can be asked for")
    }

    /// The client gets a lock after it stood in line behind another program.
    pub fn won_in_line(&mut self, client: usize, ttl: Duration) -> Lock {
        self.won_in_line_with(client, LockOptions::new(ttl))
    }

    /// As `won_in_line`, with these options.
    pub fn won_in_line_with(&mut self, client: usize, options: LockOptions) -> Lock {
        let nodes = self.nodes();
        (0..nodes).for_each(|node| self.run(node, &[b"SET", KEY, b"of another program"]));
        self.ask_with(client, options);
        self.settle();
        (0..nodes).for_each(|node| self.run(node, &[b"DEL", KEY]));
        self.settle();
        if self.done[client].is_empty() {
            // The nodes do not report writes, so the client polls.
            self.pass(100 * Duration::from_millis(1));
        }
        self.won(client)
    }

    /// What the client has to write to a node, as text.
    pub fn output(&self, client: usize, node: usize) -> String {
        String::from_utf8_lossy(&self.unexecuted(client, node)).into_owned()
    }

    pub fn release(&mut self, client: usize, lock: Lock) {
        let now = self.now();
        self.client_mut(client).release(lock, 2, now);
    }

    /// Takes what ended at a client.
    pub fn take_done(&mut self, client: usize) {
        let now = self.now();
        let done = &mut self.done[client];
        done.extend(std::iter::from_fn(|| self.net.client_mut(client).poll_completion(now)));
    }

    fn take_all_done(&mut self) {
        for client in 0..self.clients() {
            if !self.is_stopped(client) {
                self.take_done(client);
            }
        }
    }

    /// Everything is delivered, in the order of the clients and nodes, until nothing moves.
    #[track_caller]
    pub fn settle(&mut self) {
        self.net.settle();
        self.take_all_done();
    }

    /// Lets time pass.
    pub fn pass(&mut self, by: Duration) {
        let until = self.now().saturating_add(by);
        while let Some(client) = self.net.run(until) {
            self.take_done(client);
        }
    }

    /// These nodes are cut off, and no others: nothing arrives there or from there by itself.
    pub fn cut_off(&mut self, nodes: &[usize]) {
        for node in 0..self.nodes() {
            match nodes.contains(&node) {
                true => self.partition(node),
                false => self.heal(node),
            }
        }
    }

    pub fn resume_all(&mut self) {
        (0..self.clients()).for_each(|client| self.resume(client));
    }

    pub fn all_suffer(&mut self, trouble: &Trouble) {
        (0..self.nodes()).for_each(|node| self.master_mut(node).suffer(trouble.clone()));
    }

    /// No client runs for so long that a node takes its waiters for ones that may have stopped.
    pub fn pause_all_clients(&mut self) {
        self.advance(Duration::from_millis(51));
    }

    /// The lock that the client has got, if its last request ended with one.
    pub fn lock(&mut self, client: usize) -> Option<Lock> {
        match self.done[client].pop()?.result {
            Ok(Outcome::Acquired(lock)) => Some(lock),
            Ok(Outcome::Released(_)) => self.lock(client),
            other => panic!("client {client}: {other:?}"),
        }
    }

    pub fn won(&mut self, client: usize) -> Lock {
        self.lock(client).unwrap_or_else(|| panic!("client {client} has no lock"))
    }

    pub fn error(&mut self, client: usize) -> Error {
        self.done[client].pop().expect("it ended").result.expect_err("it failed")
    }

    pub fn remaining(&self, client: usize, lock: &Lock) -> Duration {
        self.core(client).remaining(lock, self.now())
    }

    pub fn core(&self, client: usize) -> &Coordinator {
        self.get_client(client)
    }

    /// An operator, or a client of another library, runs a command.
    pub fn run(&mut self, node: usize, words: &[&[u8]]) {
        self.command(node, words);
    }

    /// The token at the key of a node.
    pub fn value(&self, node: usize) -> String {
        let value = self.master(node).get(self.now(), 0, KEY).unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    }

    /// The members of the line of a node.
    pub fn line(&self, node: usize) -> Vec<Vec<u8>> {
        self.master(node).line(self.now(), LINE)
    }

    /// How many stand in the line of a node.
    pub fn in_line(&self, node: usize) -> usize {
        self.line(node).len()
    }

    /// No key, no line, no record is left.
    pub fn assert_clean(&self) {
        for node in 0..self.nodes() {
            let keys = self.master(node).keys(self.now(), 0);
            let ours = keys.iter().filter(|key| key.starts_with(KEY)).count();
            assert_eq!(ours, 0, "node {node} has {keys:?}");
        }
        for client in 0..self.clients() {
            let open = (self.core(client).open_records(), self.core(client).open_ops());
            assert_eq!(open, (0, 0), "client {client}");
        }
    }
}
