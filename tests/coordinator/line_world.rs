//! `World`: several clients that want one key, on the network of `redlatch::testing`, and the steps
//! that the tests of lines are made of.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use redlatch::proto::{Coordinator, Instant, NodeSettings, Settings};
use redlatch::testing::master::{Restart, Trouble};
use redlatch::testing::net::Net;
use redlatch::{Completion, Error, Lock, LockOptions, NodeId, NodeState, Op, Outcome};

pub const KEY: &[u8] = b"k";
pub const LINE: &[u8] = b"redlatch:line:{k}";

/// The clients and masters. Each has a number, counted from 0.
pub struct World {
    net: Net,
    /// The completions of each client that the test has not used yet.
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

    /// Nodes, and clients that know them.
    pub fn with_clients<const CLIENTS: usize>(nodes: usize) -> (World, [usize; CLIENTS]) {
        let mut world = World::new(nodes);
        let all = [(); CLIENTS].map(|()| world.client());
        (world, all)
    }

    /// Nodes, and clients as `line_up` makes them.
    pub fn with_line(nodes: usize, clients: usize, ttl: Duration) -> (World, Vec<usize>, Lock) {
        let mut world = World::new(nodes);
        let (all, lock) = world.line_up(clients, ttl);
        (world, all, lock)
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

    /// Asks for a lock, and waits for it longer than any test lasts.
    pub fn ask(&mut self, client: usize, ttl: Duration) -> Op {
        self.ask_with(client, LockOptions::new(ttl))
    }

    /// Clients, of which the first has the lock and the others stand in line for it in their order.
    /// The first one got the lock in line, behind another program, so its release hands the key
    /// over.
    pub fn line_up(&mut self, clients: usize, ttl: Duration) -> (Vec<usize>, Lock) {
        let all: Vec<usize> = (0..clients).map(|_| self.client()).collect();
        let lock = self.won_in_line(all[0], ttl);
        for &client in &all[1..] {
            self.ask_and_settle(client, ttl);
        }
        (all, lock)
    }

    #[track_caller]
    pub fn ask_and_settle(&mut self, client: usize, ttl: Duration) -> Op {
        let op = self.ask(client, ttl);
        self.settle();
        op
    }

    /// The client acquires the lock, which is free.
    #[track_caller]
    pub fn acquire(&mut self, client: usize, ttl: Duration) -> Lock {
        self.ask_and_settle(client, ttl);
        self.won(client)
    }

    /// Asks for a lock with these options, and waits for it longer than any test lasts.
    pub fn ask_with(&mut self, client: usize, options: LockOptions) -> Op {
        let (options, now) = (options.wait(Duration::from_secs(1000)), self.now());
        let asked = self.client_mut(client).acquire(KEY, options, 1, now);
        asked.expect("it can be asked for")
    }

    /// The client wins a lock in line: it joins while another program has the key, and gets the key
    /// when that is deleted. The release of such a lock hands the key over.
    pub fn won_in_line(&mut self, client: usize, ttl: Duration) -> Lock {
        self.won_in_line_with(client, LockOptions::new(ttl))
    }

    /// As `won_in_line`, with these options.
    pub fn won_in_line_with(&mut self, client: usize, options: LockOptions) -> Lock {
        let nodes = self.nodes();
        self.run_on(0..nodes, &[b"SET", KEY, b"of another program"]);
        self.ask_with(client, options);
        self.settle();
        self.run_on(0..nodes, &[b"DEL", KEY]);
        self.settle();
        if self.done[client].is_empty() {
            // If the nodes do not notify the client of the deletion, its next poll finds it.
            self.pass(100 * Duration::from_millis(1));
        }
        self.won(client)
    }

    /// What the client has written to a node and the node has not executed yet, as text.
    pub fn output(&self, client: usize, node: usize) -> String {
        String::from_utf8_lossy(&self.unexecuted(client, node)).into_owned()
    }

    /// Calls the core of the client at the present moment.
    pub fn call<T>(
        &mut self,
        client: usize,
        call: impl FnOnce(&mut Coordinator, Instant) -> T,
    ) -> T {
        let now = self.now();
        call(self.client_mut(client), now)
    }

    pub fn release(&mut self, client: usize, lock: Lock) {
        self.call(client, |core, now| core.release(lock, 2, now));
    }

    #[track_caller]
    pub fn release_and_settle(&mut self, client: usize, lock: Lock) {
        self.release(client, lock);
        self.settle();
    }

    /// The client extends its lock, and everything is delivered. Returns the completion of the
    /// extend; `None` if too few nodes have a vote.
    #[track_caller]
    pub fn extend(&mut self, client: usize, lock: &Lock, ttl: Duration) -> Option<Completion> {
        self.call(client, |core, now| core.extend(lock, ttl, 3, now)).expect("it is held");
        self.settle();
        self.done[client].pop()
    }

    /// The node restarts with data in which the key has this token, though its own key has ended.
    pub fn restart_with_key(&mut self, node: usize, token: &str) {
        self.run(node, &[b"SET", KEY, token.as_bytes(), b"PX", b"10000"]);
        self.restart(node, Restart::WithData);
    }

    /// One client releases its lock. Then the other client has it.
    #[track_caller]
    pub fn hand_on(&mut self, from: usize, lock: Lock, to: usize) -> Lock {
        self.release_and_settle(from, lock);
        self.won(to)
    }

    /// The client has won its lock, and releases it.
    #[track_caller]
    pub fn win_and_release(&mut self, client: usize) {
        let lock = self.won(client);
        self.release_and_settle(client, lock);
    }

    /// The nodes execute what the first client sent, and the other client reads what they then
    /// sent to it.
    pub fn deliver(&mut self, from: usize, nodes: impl IntoIterator<Item = usize>, to: usize) {
        for node in nodes {
            self.deliver_to_node(from, node);
            self.deliver_to_client(to, node);
        }
    }

    #[track_caller]
    pub fn assert_quarantined(&self, client: usize, node: usize) {
        let state = self.core(client).node_state(NodeId::new(node));
        assert!(matches!(state, NodeState::Quarantined(_)), "{state:?}");
    }

    /// Fetches the completions of a client into `done`.
    pub fn take_completions(&mut self, client: usize) {
        let now = self.now();
        let done = &mut self.done[client];
        done.extend(std::iter::from_fn(|| self.net.client_mut(client).poll_completion(now)));
    }

    fn take_all_completions(&mut self) {
        for client in 0..self.clients() {
            if !self.is_stopped(client) {
                self.take_completions(client);
            }
        }
    }

    /// Delivers everything, in the order of the clients and nodes, until nothing is in flight.
    #[track_caller]
    pub fn settle(&mut self) {
        self.net.settle();
        self.take_all_completions();
    }

    /// Lets time pass. Meanwhile bytes arrive and timers expire.
    pub fn pass(&mut self, by: Duration) {
        let until = self.now().saturating_add(by);
        while let Some(client) = self.net.run(until) {
            self.take_completions(client);
        }
    }

    /// Cuts off these nodes and no others: between them and the clients nothing arrives, unless the
    /// test delivers it.
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

    pub fn give_trouble_to_all(&mut self, trouble: &Trouble) {
        (0..self.nodes()).for_each(|node| self.master_mut(node).suffer(trouble.clone()));
    }

    /// Lets time pass in which no client runs: so much that the nodes assume that each waiter may
    /// have stopped, and give it only the short ttl.
    pub fn pause_all_clients(&mut self) {
        self.advance(Duration::from_millis(51));
    }

    /// Takes the client's last completions up to that of an acquire. Returns the lock, or `None` if
    /// there is no such completion.
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

    /// An operator or another program runs a command on a node.
    pub fn run(&mut self, node: usize, words: &[&[u8]]) {
        self.command(node, words);
    }

    /// As `run`, on each of these nodes.
    pub fn run_on(&mut self, nodes: impl IntoIterator<Item = usize>, words: &[&[u8]]) {
        nodes.into_iter().for_each(|node| self.run(node, words));
    }

    /// The value of the key on a node; empty if the key is absent.
    pub fn value(&self, node: usize) -> String {
        let value = self.master(node).get(self.now(), 0, KEY).unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    }

    /// The members of the line of a node.
    pub fn line(&self, node: usize) -> Vec<Vec<u8>> {
        self.master(node).line(self.now(), LINE)
    }

    /// How many members the line of a node has.
    pub fn in_line(&self, node: usize) -> usize {
        self.line(node).len()
    }

    /// Asserts that no key, line, record or request is left.
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
