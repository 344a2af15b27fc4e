//! Fencing numbers through the whole core, against masters inside the process that run the real
//! scripts: every spread of small counters with all majorities, and orders of events step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use redlatch::proto::counter_key;
use redlatch::proto::{Action, Coordinator, Instant, KeySet, NodeId, NodeSettings, Settings};
use redlatch::testing::master::{ConnectionId, Master};
use redlatch::{Error, Lock, LockOptions, Outcome};

const KEY: &[u8] = b"k";
const TTL: Duration = Duration::from_secs(10);
const A_DAY: u32 = 24 * 60 * 60;

/// The masters, and the time. The network between does what the test says.
pub struct World {
    masters: Vec<Master>,
    now: Instant,
}

/// A client with a connection to each master.
pub struct Client {
    core: Coordinator,
    wires: Vec<ConnectionId>,
}

impl World {
    /// Masters whose counters are at these numbers; 0 for none.
    pub fn new(counters: &[u64]) -> World {
        let now = Instant::from_nanos(1_000_000_000_000);
        let masters = (0..counters.len() as u64).map(|seed| {
            let mut master = Master::new(seed, now);
            master.set_uptime(now, A_DAY);
            master
        });
        let mut world = World { masters: masters.collect(), now };
        for (node, &count) in counters.iter().enumerate().filter(|(_, count)| **count > 0) {
            world.operate(node, &[b"SET", &counter_key(KEY), count.to_string().as_bytes()]);
        }
        world
    }

    /// An operator runs a command on the master itself.
    pub fn operate(&mut self, node: usize, words: &[&[u8]]) {
        let mut command = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            command.extend(format!("${}\r\n", word.len()).bytes());
            command.extend(*word);
            command.extend(b"\r\n");
        }
        let master = &mut self.masters[node];
        let operator = master.connect();
        master.handle_bytes(self.now, operator, &command);
        master.disconnect(operator);
    }

    fn counter(&self, node: usize) -> u64 {
        let digits = self.masters[node].get(self.now, 0, &counter_key(KEY)).unwrap_or(b"0");
        std::str::from_utf8(digits).expect("digits").parse().expect("a number")
    }

    /// A client that is connected to every master, and knows them.
    pub fn client(&mut self, seed: u8) -> Client {
        // This client uses no marker, so it judges the nodes by their uptime. A marker that it
        // wrote now would be too young to trust them.
        self.client_with_marker(seed, "")
    }

    fn client_with_marker(&mut self, seed: u8, marker: &str) -> Client {
        let nodes = self.masters.len();
        let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
        let mut settings = Settings::new(labels.collect());
        settings.node_marker = marker.into();
        settings.probe_interval = Duration::from_secs(1000);
        let core = Coordinator::new(settings, [seed; 32], self.now).expect("good settings");
        let wires = self.masters.iter_mut().map(Master::connect).collect();
        let mut client = Client { core, wires };
        while let Some(action) = client.core.poll_action() {
            let Action::Connect(node) = action else { panic!("{action:?}") };
            client.core.handle_connected(node, self.now);
        }
        for _ in 0..4 {
            (0..nodes).for_each(|node| self.exchange(&mut client, node));
        }
        client
    }

    /// Everything between this client and this master arrives, both ways.
    fn exchange(&mut self, client: &mut Client, node: usize) {
        self.deliver_commands(client, node);
        self.deliver_answers(client, node);
    }

    /// What the client has written arrives at the master, which executes it.
    fn deliver_commands(&mut self, client: &mut Client, node: usize) {
        let id = NodeId::new(node);
        let bytes = client.core.output(id).to_vec();
        client.core.handle_sent(id, bytes.len(), self.now);
        self.masters[node].handle_bytes(self.now, client.wires[node], &bytes);
    }

    /// What the master has answered arrives at the client.
    fn deliver_answers(&mut self, client: &mut Client, node: usize) {
        let mut others = BTreeMap::new();
        while let Some(output) = self.masters[node].poll_output() {
            if output.connection == client.wires[node] {
                client.core.handle_bytes(NodeId::new(node), &output.bytes, self.now);
            } else {
                others.insert(output.connection, output.bytes);
            }
        }
        assert!(others.values().all(|bytes| bytes.starts_with(b">") || bytes.starts_with(b"+OK")));
    }

    /// Acquires the lock with these masters, whose answers come in this order. Nothing arrives at
    /// the others.
    pub fn acquire(&mut self, client: &mut Client, with: &[usize]) -> Lock {
        ask(client, self.now);
        self.win(client, with)
    }

    /// Acquires several keys by the votes of these nodes.
    pub fn acquire_all(&mut self, client: &mut Client, keys: &KeySet, with: &[usize]) -> Lock {
        let now = self.now;
        let asked = client.core.acquire(keys, LockOptions::once(TTL).fenced(), 1, now);
        asked.expect("it is fine");
        self.win(client, with)
    }

    fn win(&mut self, client: &mut Client, with: &[usize]) -> Lock {
        for _ in 0..3 {
            with.iter().for_each(|&node| self.exchange(client, node));
        }
        self.won(client)
    }

    fn won(&self, client: &mut Client) -> Lock {
        match client.core.poll_completion(self.now).map(|done| done.result) {
            Some(Ok(Outcome::Acquired(lock))) => lock,
            other => panic!("no lock: {other:?}"),
        }
    }

    /// Releases the lock on these masters.
    pub fn release(&mut self, client: &mut Client, lock: &Lock, with: &[usize]) {
        client.core.release_nowait(lock, self.now);
        with.iter().for_each(|&node| self.exchange(client, node));
    }
}

fn ask(client: &mut Client, now: Instant) {
    client.core.acquire(KEY, LockOptions::once(TTL).fenced(), 1, now).expect("it is fine");
}

/// Every order of every majority of the nodes, counted apart from the core that is tested.
pub fn majorities(nodes: usize) -> Vec<Vec<usize>> {
    fn grow(nodes: usize, chosen: &mut Vec<usize>, all: &mut Vec<Vec<usize>>) {
        if 2 * chosen.len() > nodes {
            all.push(chosen.clone());
            return;
        }
        for node in (0..nodes).filter(|node| !chosen.contains(node)).collect::<Vec<_>>() {
            chosen.push(node);
            grow(nodes, chosen, all);
            chosen.pop();
        }
    }
    let mut all = Vec::new();
    grow(nodes, &mut Vec::new(), &mut all);
    all
}

/// One holder after another, from these counters, with these majorities.
fn holders_follow(spread: &[u64], first: &[usize], second: &[usize]) {
    let mut world = World::new(spread);
    let [mut a, mut b] = [1, 2].map(|seed| world.client(seed));
    let lock = world.acquire(&mut a, first);
    world.release(&mut a, &lock, first);
    let later = world.acquire(&mut b, second);
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

/// The nodes are alike, so of the spreads that differ only in their order one is enough.
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
    let [mut a, mut b] = [1, 2].map(|seed| world.client(seed));
    let lock = world.acquire(&mut a, &[0, 1]);
    assert_eq!(lock.fence(), Some(6));
    assert_eq!([0, 1, 2].map(|node| world.counter(node)), [6, 6, 1]);
    world.release(&mut a, &lock, &[0, 1]);
    assert_eq!(world.acquire(&mut b, &[1, 2]).fence(), Some(7));
}

#[test]
fn fence_of_an_absent_counter_is_above_every_number_of_its_time() {
    let mut world = World::new(&[0, 0, 0]);
    let [mut a, mut b] = [1, 2].map(|seed| world.client(seed));
    let lock = world.acquire(&mut a, &[0, 1]);
    let seconds = lock.fence().unwrap() >> 20;
    assert!((1_600_000_000..2_000_000_000).contains(&seconds), "{seconds} s since 1970");
    world.release(&mut a, &lock, &[0, 1]);
    assert_eq!(world.acquire(&mut b, &[1, 2]).fence(), lock.fence().map(|fence| fence + 1));
}

/// The order of events: the first one's write-back is under way when its key is deleted on that
/// node, and another client gets the lock there and elsewhere, with the same number. The first
/// one's write-back must find that its token is gone.
#[test]
fn fence_is_not_written_back_where_another_client_has_the_key() {
    let mut world = World::new(&[5, 1, 5]);
    let [mut first, mut second] = [1, 2].map(|seed| world.client(seed));
    ask(&mut first, world.now);
    world.exchange(&mut first, 0);
    world.exchange(&mut first, 1);
    assert_eq!([0, 1].map(|node| world.counter(node)), [6, 2]);
    world.operate(1, &[b"DEL", KEY]);
    let lock = world.acquire(&mut second, &[1, 2]);
    assert_eq!(lock.fence(), Some(6));
    world.exchange(&mut first, 1);
    world.exchange(&mut first, 2);
    let result = first.core.poll_completion(world.now).expect("it has ended").result;
    assert!(matches!(result, Err(Error::Contended(_))), "a second fence 6: {result:?}");
}

/// The order of events: a client has its votes, is kept from running past the ttl, and runs on.
#[test]
fn fence_of_a_client_that_was_away_between_the_rounds_is_no_fence() {
    let mut world = World::new(&[5, 1, 1]);
    let [mut first, mut second] = [1, 2].map(|seed| world.client(seed));
    ask(&mut first, world.now);
    world.exchange(&mut first, 0);
    world.exchange(&mut first, 1);
    world.now = world.now.saturating_add(2 * TTL);
    let lock = world.acquire(&mut second, &[1, 2]);
    world.exchange(&mut first, 1);
    first.core.handle_timeout(world.now);
    let result = first.core.poll_completion(world.now).expect("it has ended").result;
    assert!(result.is_err(), "{result:?} beside {:?}", lock.fence());
}

/// The order of events: the second holder comes while the first one's key is there on a node that
/// was not in its majority, with a low vote.
#[test]
fn fence_is_greater_also_through_a_node_that_voted_late_for_the_earlier_holder() {
    let mut world = World::new(&[5, 5, 1]);
    let [mut first, mut second] = [1, 2].map(|seed| world.client(seed));
    ask(&mut first, world.now);
    for node in 0..3 {
        world.deliver_commands(&mut first, node);
    }
    for node in 0..3 {
        world.deliver_answers(&mut first, node);
    }
    let lock = world.won(&mut first);
    assert_eq!((lock.fence(), world.counter(2)), (Some(6), 2), "the third counter is smaller");
    first.core.extend(&lock, TTL, 2, world.now).unwrap();
    (0..3).for_each(|node| world.exchange(&mut first, node));
    assert_eq!(world.counter(2), 6, "an extend raises it");
    world.release(&mut first, &lock, &[0, 1, 2]);
    assert_eq!(world.acquire(&mut second, &[2, 0]).fence(), Some(7));
}

/// The order of events: a fenced acquire is in flight when its node is flushed, and starts a
/// counter there at once. The number that was given before came from a clock that was ahead, by
/// less than a client accepts. After the quarantine, that early counter must not count.
#[test]
fn fence_does_not_rest_on_a_counter_that_was_started_just_after_a_flush() {
    let given = (1_700_001_070 + 10) << 20;
    let mut world = World::new(&[given + 5, given + 1, given + 1]);
    let markers = |world: &mut World| {
        let [a, b] = [1, 2].map(|seed| world.client_with_marker(seed, "redlatch:node"));
        world.now = world.now.saturating_add(Duration::from_secs(70));
        [a, b]
    };
    let [mut a, mut b] = markers(&mut world);
    [&mut a, &mut b].into_iter().for_each(|client| client.core.handle_timeout(world.now));
    let lock = world.acquire(&mut a, &[0, 1]);
    assert_eq!(lock.fence(), Some(given + 6));
    world.release(&mut a, &lock, &[0, 1]);
    ask(&mut b, world.now);
    world.operate(1, &[b"FLUSHALL"]);
    world.deliver_commands(&mut b, 1);
    assert!(world.counter(1) > 0, "it was started at once");
    for client in [&mut a, &mut b] {
        (0..3).for_each(|_| world.exchange(client, 1));
    }
    world.now = world.now.saturating_add(Duration::from_secs(62));
    let mut late = world.client_with_marker(3, "redlatch:node");
    let later = world.acquire(&mut late, &[1, 2]);
    assert!(later.fence() > lock.fence(), "{:?} after {:?}", later.fence(), lock.fence());
}
