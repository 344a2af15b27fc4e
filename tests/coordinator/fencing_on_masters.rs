//! Fencing numbers through the whole core, against in-process masters that run the real scripts:
//! all starts of small counters with all majorities, and orders of events step by step.

use std::time::Duration;

use redlatch::proto::counter_key;
use redlatch::proto::{KeySet, NodeSettings, Settings};
use redlatch::testing::net::Net;
use redlatch::{Error, Lock, LockOptions, Op, Outcome};

const KEY: &[u8] = b"k";
const TTL: Duration = Duration::from_secs(10);
/// The counters of a test are this number plus a small one. A smaller counter counts as absent.
pub const START: u64 = 1 << 41;

/// Clients, and masters with counters. Bytes between them arrive when the test says so.
pub struct World {
    pub net: Net,
}

impl World {
    /// Masters whose counters are above [`START`] by these values; a master with 0 has no counter.
    pub fn new(counters: &[u64]) -> World {
        let mut world = World { net: Net::new(counters.len(), 1) };
        for (node, &count) in counters.iter().enumerate().filter(|(_, count)| **count > 0) {
            let digits = (START + count).to_string();
            world.operate(node, &[b"SET", &counter_key(KEY), digits.as_bytes()]);
        }
        world
    }

    /// An operator runs a command on the master.
    pub fn operate(&mut self, node: usize, words: &[&[u8]]) {
        self.net.command(node, words);
    }

    pub fn counter(&self, node: usize) -> u64 {
        let key = counter_key(KEY);
        let digits = self.net.master(node).get(self.net.now(), 0, &key).unwrap_or(b"0");
        std::str::from_utf8(digits).expect("digits").parse().expect("a number")
    }

    /// A new client that is connected to every master and trusts it. Returns the client's number.
    pub fn client(&mut self) -> usize {
        // Without a marker the client judges the nodes by their uptime. If it wrote a marker now,
        // it would have to wait before it trusts them.
        self.client_with_marker("")
    }

    /// Two clients of masters that have markers, after the quarantine that follows: so the clients
    /// know the floor of each counter.
    pub fn clients_with_markers(&mut self) -> [usize; 2] {
        let clients = [(); 2].map(|()| self.client_with_marker("redlatch:node"));
        self.net.advance(Duration::from_secs(70));
        clients.into_iter().for_each(|client| self.net.expire(client));
        clients
    }

    /// A new client of masters with this marker.
    pub fn client_with_marker(&mut self, marker: &str) -> usize {
        let labels = (0..self.net.nodes()).map(|node| NodeSettings::new(format!("n{node}")));
        let mut settings = Settings::new(labels.collect());
        settings.node_marker = marker.into();
        settings.probe_interval = Duration::from_secs(1000);
        let client = self.net.client(settings);
        self.net.write(client);
        for node in 0..self.net.nodes() {
            self.net.open(client, node);
            // Only this client's handshake arrives, and no bytes of other clients.
            (0..4).for_each(|_| self.exchange(client, node));
        }
        client
    }

    /// Delivers all bytes between this client and this master, in both directions.
    pub fn exchange(&mut self, client: usize, node: usize) {
        self.net.deliver_to_node(client, node);
        self.net.deliver_to_client(client, node);
    }

    /// Acquires the lock with these masters, which answer in this order. No request arrives at the
    /// other masters.
    pub fn acquire(&mut self, client: usize, with: &[usize]) -> Lock {
        self.ask(client);
        self.win(client, with)
    }

    /// Acquires several keys with these masters, in the same way.
    pub fn acquire_all(&mut self, client: usize, keys: &KeySet, with: &[usize]) -> Lock {
        let (now, options) = (self.net.now(), LockOptions::once(TTL).fenced());
        let asked = self.net.client_mut(client).acquire(keys, options, 1, now);
        asked.expect("it is fine");
        self.win(client, with)
    }

    pub fn ask(&mut self, client: usize) -> Op {
        let (now, options) = (self.net.now(), LockOptions::once(TTL).fenced());
        self.net.client_mut(client).acquire(KEY, options, 1, now).expect("it is fine")
    }

    pub fn win(&mut self, client: usize, with: &[usize]) -> Lock {
        for _ in 0..3 {
            with.iter().for_each(|&node| self.exchange(client, node));
        }
        self.won(client)
    }

    pub fn result(&mut self, client: usize) -> Option<Result<Outcome, Error>> {
        let now = self.net.now();
        self.net.client_mut(client).poll_completion(now).map(|done| done.result)
    }

    pub fn won(&mut self, client: usize) -> Lock {
        match self.result(client) {
            Some(Ok(Outcome::Acquired(lock))) => lock,
            other => panic!("no lock: {other:?}"),
        }
    }

    /// Releases the lock on these masters.
    pub fn release(&mut self, client: usize, lock: &Lock, with: &[usize]) {
        let now = self.net.now();
        self.net.client_mut(client).release_nowait(lock, now);
        with.iter().for_each(|&node| self.exchange(client, node));
    }
}

/// Every order of every smallest majority, computed without the core that is tested.
pub fn majorities(nodes: usize) -> Vec<Vec<usize>> {
    fn add_majorities(nodes: usize, chosen: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if 2 * chosen.len() > nodes {
            all.push(chosen.clone());
            return;
        }
        for node in (0..nodes).filter(|node| !chosen.contains(node)).collect::<Vec<_>>() {
            chosen.push(node);
            add_majorities(nodes, chosen, all);
            chosen.pop();
        }
    }
    let mut all = Vec::new();
    add_majorities(nodes, &mut Vec::new(), &mut all);
    all
}

/// Two holders one after the other, by these majorities. The counters start at `spread`.
fn holders_follow(spread: &[u64], first: &[usize], second: &[usize]) {
    let mut world = World::new(spread);
    let [a, b] = [(); 2].map(|()| world.client());
    let lock = world.acquire(a, first);
    world.release(a, &lock, first);
    let later = world.acquire(b, second);
    let (before, after) = (lock.fence(), later.fence());
    assert!(after > before, "{spread:?}, {first:?}, {second:?}: {before:?}, {after:?}");
}

#[test]
fn fences_grow_through_the_core_from_every_spread_of_counters() {
    let (most, nodes) = (4_u64, 3);
    let mut seen = 0;
    for number in 0..most.pow(nodes as u32) {
        let spread: Vec<u64> = (0..nodes as u32).map(|n| 1 + number / most.pow(n) % most).collect();
        for first in majorities(nodes) {
            for second in majorities(nodes) {
                holders_follow(&spread, &first, &second);
                seen += 1;
            }
        }
    }
    println!("{seen} pairs of holders");
}

/// The nodes are alike, so the test takes only one of the spreads that differ in their order.
#[test]
fn fences_grow_through_the_core_from_spreads_of_five_counters() {
    let sets = || majorities(5).into_iter().filter(|set| set.is_sorted());
    let spreads = (0..3_u64.pow(5))
        .map(|number| (0..5).map(|node| 1 + number / 3_u64.pow(node) % 3).collect::<Vec<u64>>());
    let mut seen = 0;
    for spread in spreads.filter(|spread| spread.is_sorted_by(|a, b| a >= b)) {
        for first in sets() {
            for second in sets() {
                holders_follow(&spread, &first, &second);
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 2_100);
}

#[test]
fn fence_of_counters_five_one_one_is_stored_before_the_lock_is_handed_out() {
    let mut world = World::new(&[5, 1, 1]);
    let [a, b] = [(); 2].map(|()| world.client());
    let lock = world.acquire(a, &[0, 1]);
    assert_eq!(lock.fence(), Some(START + 6));
    assert_eq!([0, 1, 2].map(|node| world.counter(node) - START), [6, 6, 1]);
    world.release(a, &lock, &[0, 1]);
    assert_eq!(world.acquire(b, &[1, 2]).fence(), Some(START + 7));
}

#[test]
fn fence_of_an_absent_counter_is_above_every_number_of_its_time() {
    let mut world = World::new(&[0, 0, 0]);
    let [a, b] = [(); 2].map(|()| world.client());
    let lock = world.acquire(a, &[0, 1]);
    let seconds = lock.fence().unwrap() >> 20;
    assert!((1_600_000_000..2_000_000_000).contains(&seconds), "{seconds} s since 1970");
    world.release(a, &lock, &[0, 1]);
    assert_eq!(world.acquire(b, &[1, 2]).fence(), lock.fence().map(|fence| fence + 1));
}

/// The first client's write-back is in flight to node 1. An operator deletes the key there, and the
/// second client gets the lock on nodes 1 and 2, with the same number. The write-back has to find
/// that the first client's token is gone.
#[test]
fn fence_is_not_written_back_where_another_client_has_the_key() {
    let mut world = World::new(&[5, 1, 5]);
    let [first, second] = [(); 2].map(|()| world.client());
    world.ask(first);
    world.exchange(first, 0);
    world.exchange(first, 1);
    assert_eq!([0, 1].map(|node| world.counter(node) - START), [6, 2]);
    world.operate(1, &[b"DEL", KEY]);
    let lock = world.acquire(second, &[1, 2]);
    assert_eq!(lock.fence(), Some(START + 6));
    world.exchange(first, 1);
    world.exchange(first, 2);
    let result = world.result(first).expect("it has ended");
    assert!(matches!(result, Err(Error::Contended(_))), "a second fence 6: {result:?}");
}

/// The first client has its votes, does not run until its ttl is over, and then goes on. Meanwhile
/// the second client gets the lock.
#[test]
fn fence_of_a_client_that_did_not_run_between_the_rounds_is_no_fence() {
    let mut world = World::new(&[5, 1, 1]);
    let [first, second] = [(); 2].map(|()| world.client());
    world.ask(first);
    world.exchange(first, 0);
    world.exchange(first, 1);
    world.net.advance(2 * TTL);
    let lock = world.acquire(second, &[1, 2]);
    world.exchange(first, 1);
    world.net.expire(first);
    let result = world.result(first).expect("it has ended");
    assert!(result.is_err(), "{result:?} beside {:?}", lock.fence());
}

/// Node 2 voted late for the first holder, and its counter is too low. An extend of the first
/// holder raises this counter, so the second holder, who needs node 2, gets a greater number.
#[test]
fn fence_is_greater_also_through_a_node_that_voted_late_for_the_earlier_holder() {
    let mut world = World::new(&[5, 5, 1]);
    let [first, second] = [(); 2].map(|()| world.client());
    world.ask(first);
    for node in 0..3 {
        world.net.deliver_to_node(first, node);
    }
    for node in 0..3 {
        world.net.deliver_to_client(first, node);
    }
    let lock = world.won(first);
    assert_eq!(
        (lock.fence(), world.counter(2)),
        (Some(START + 6), START + 2),
        "the third counter is smaller"
    );
    let now = world.net.now();
    world.net.client_mut(first).extend(&lock, TTL, 2, now).unwrap();
    (0..3).for_each(|node| world.exchange(first, node));
    assert_eq!(world.counter(2), START + 6, "an extend raises it");
    world.release(first, &lock, &[0, 1, 2]);
    assert_eq!(world.acquire(second, &[2, 0]).fence(), Some(START + 7));
}

/// A fenced acquire is in flight when its node is flushed, so it starts a new counter there. The
/// earlier lock has a number from a clock that was ahead, by less than a client accepts. After the
/// quarantine the new counter, which is smaller, must count as absent.
#[test]
fn fence_ignores_a_counter_that_was_started_just_after_a_flush() {
    let given = (1_700_001_070 + 10) << 20;
    let mut world = World::new(&[5, 1, 1].map(|count| given - START + count));
    let [a, b] = world.clients_with_markers();
    let lock = world.acquire(a, &[0, 1]);
    assert_eq!(lock.fence(), Some(given + 6));
    world.release(a, &lock, &[0, 1]);
    world.ask(b);
    world.operate(1, &[b"FLUSHALL"]);
    world.net.deliver_to_node(b, 1);
    assert!(world.counter(1) > 0, "it was started at once");
    for client in [a, b] {
        (0..3).for_each(|_| world.exchange(client, 1));
    }
    world.net.advance(Duration::from_secs(62));
    let late = world.client_with_marker("redlatch:node");
    let later = world.acquire(late, &[1, 2]);
    assert!(later.fence() > lock.fence(), "{:?} after {:?}", later.fence(), lock.fence());
}
