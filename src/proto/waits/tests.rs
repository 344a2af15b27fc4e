//! The waits by hand, over locks whose nodes are played by the test.

use std::time::Duration;

use super::*;
use crate::proto::cluster::tests::commands;
use crate::proto::error::Error;
use crate::proto::keys::KeysRef;
use crate::proto::locks::AcquireParams;
use crate::proto::locks::completions::{Completion, Outcome};
use crate::proto::locks::tests::{HELD, acquire, ready, receive};
use crate::proto::node_set::NodeId;
use crate::proto::waiting::Mode;

const KEY: &[u8] = b"key";
const WAIT: Duration = Duration::from_secs(5);

/// The waits, the locks that they ask, and the moment.
struct Bench {
    waits: Waits,
    locks: Locks,
    now: Instant,
}

impl Bench {
    fn new(nodes: usize) -> Bench {
        let (mut locks, now) = ready(nodes);
        // Its requests wait without a line.
        locks.note_no_lines(now);
        Bench { waits: Waits::default(), locks, now }
    }

    fn act(&mut self) {
        while let Some(event) = self.locks.poll_wait(self.now) {
            self.waits.handle(event, &mut self.locks, self.now);
        }
    }

    /// Queues a request for the key.
    fn queue_up(&mut self, wait: Duration) -> Op {
        let ttl = self.locks.check_params(KeysRef::One(KEY), WAIT, None).unwrap();
        let give_up_at = self.now.saturating_add(wait);
        let params = AcquireParams {
            ttl,
            since: self.now,
            give_up_at,
            auto_extend: None,
            fenced: false,
            data: 0,
        };
        let current_record = self.locks.current_record(KEY, KeyHash::of(KEY)).unwrap();
        self.waits.queue_up(&mut self.locks, current_record, KEY, params, self.now).unwrap()
    }

    fn receive(&mut self, node: usize, bytes: &str) {
        receive(&mut self.locks, NodeId::new(node), bytes, self.now);
        self.act();
    }

    fn commands(&mut self, node: usize) -> Vec<String> {
        commands(self.locks.cluster_mut(), NodeId::new(node), self.now)
    }

    /// Lets time pass, and lets happen what is due.
    fn pass(&mut self, by: Duration) {
        self.now = self.now.saturating_add(by);
        while self.locks.do_next_due(self.now) {
            self.act();
        }
    }

    /// A client that holds one lock on one node; the commands until then are dropped.
    fn holding() -> (Bench, crate::proto::lock::Lock) {
        let mut bench = Bench::new(1);
        let op = acquire(&mut bench.locks, KEY, Duration::ZERO, bench.now);
        bench.receive(0, "+OK\r\n");
        bench.commands(0);
        let completion = bench.locks.fetch(op, bench.now);
        let Some(Completion { result: Ok(Outcome::Acquired(lock)), .. }) = completion else {
            panic!("it is won")
        };
        (bench, lock)
    }

    fn has_turn(&self, op: Op) -> bool {
        self.locks.ops().get(op).is_some() && self.locks.ops().queue_of(op).is_none()
    }
}

#[test]
fn queue_gives_one_request_after_the_other_its_turn() {
    let (mut bench, lock) = Bench::holding();
    let (first, second) = (bench.queue_up(WAIT), bench.queue_up(WAIT));
    assert!(bench.commands(0).is_empty(), "only the first of a client asks the nodes");
    bench.locks.release_nowait(&lock, bench.now);
    bench.act();
    assert_eq!((bench.has_turn(first), bench.has_turn(second)), (true, false));
    assert_eq!(bench.commands(0).last().unwrap(), "SET key");
    bench.locks.cancel(first, bench.now);
    bench.act();
    assert!(bench.has_turn(second));
}

#[test]
fn queue_is_closed_after_its_last_request_gave_up() {
    let (mut bench, lock) = Bench::holding();
    let (gives_up, cancelled) = (bench.queue_up(WAIT / 2), bench.queue_up(WAIT));
    bench.locks.cancel(cancelled, bench.now);
    bench.pass(WAIT / 2);
    assert!(matches!(bench.locks.ops().error(gives_up), Some(Error::Contended(_))));
    assert_eq!(bench.waits.queues.len(), 1);
    bench.locks.release_nowait(&lock, bench.now);
    bench.act();
    assert!(bench.waits.queues.is_empty());
}

#[test]
fn request_that_would_have_to_wait_and_may_not_is_contended_at_once() {
    let (mut bench, _lock) = Bench::holding();
    let op = bench.queue_up(Duration::ZERO);
    assert!(matches!(bench.locks.ops().error(op), Some(Error::Contended(_))));
    assert!(bench.waits.queues.is_empty());
}

#[test]
fn waiter_subscribes_and_asks_again_when_a_majority_can_be_free() {
    let mut bench = Bench::new(3);
    let op = acquire(&mut bench.locks, KEY, WAIT, bench.now);
    for node in 0..2 {
        bench.receive(node, HELD);
    }
    let expected = ["SET key", "CLIENT CACHING", "PTTL key"];
    for node in 0..2 {
        let commands = bench.commands(node);
        let commands: Vec<&str> =
            commands.iter().map(String::as_str).filter(|s| expected.contains(s)).collect();
        assert_eq!(commands, expected);
    }
    assert!(bench.locks.ops().pauses_before(op).is_some());
    // The first node answers that the key is gone there: one of three is no majority.
    bench.receive(0, "+OK\r\n:-2\r\n");
    assert!(bench.locks.ops().pauses_before(op).is_some());
    bench.receive(1, "+OK\r\n:-2\r\n");
    assert_eq!(bench.locks.ops().pauses_before(op), None);
    assert_eq!(bench.commands(2).last().unwrap(), "SET key");
}

#[test]
fn waiter_without_notifications_asks_again() {
    let mut bench = Bench::new(1);
    let op = acquire(&mut bench.locks, KEY, WAIT, bench.now);
    bench.receive(0, HELD);
    bench.commands(0);
    let (_, longest) = bench.locks.cluster().settings().retry;
    // The node answers that the key lives for a minute, and then nothing more.
    bench.receive(0, "+OK\r\n:60000\r\n");
    assert!(bench.locks.ops().pauses_before(op).is_some());
    bench.pass(2 * longest);
    assert_eq!(bench.commands(0).first().unwrap(), "SET key");
}

/// A request that waits for the key, and whose timer is set. The commands until then are dropped.
fn waiter(nodes: usize) -> (Bench, Op) {
    let mut bench = Bench::new(nodes);
    let op = acquire(&mut bench.locks, KEY, WAIT, bench.now);
    for node in 0..nodes {
        bench.receive(node, HELD);
    }
    for node in 0..nodes {
        bench.commands(node);
    }
    assert_eq!(bench.mode(op), Mode::Subscribed);
    (bench, op)
}

impl Bench {
    fn mode(&mut self, op: Op) -> Mode {
        self.locks.ops_mut().waiting_mut(op).expect("it waits").mode
    }

    fn set_mode(&mut self, op: Op, mode: Mode) {
        self.locks.ops_mut().waiting_mut(op).expect("it waits").mode = mode;
    }

    /// To how many nodes these commands were written, and nothing to the others.
    fn count(&mut self, nodes: usize, expected: &[&str]) -> usize {
        let written: Vec<_> = (0..nodes).map(|node| self.commands(node)).collect();
        let asked = written.into_iter().filter(|commands| !commands.is_empty());
        asked.inspect(|commands| assert_eq!(commands, expected)).count()
    }
}

#[test]
fn waiter_that_backed_off_asks_a_few_times_and_then_subscribes_at_every_node() {
    let (mut bench, op) = waiter(5);
    bench.locks.ops_mut().waiting_mut(op).unwrap().note_lost(true, Duration::from_millis(5));
    bench.set_mode(op, Mode::BackingOff);
    (0..3).for_each(|_| bench.locks.ops_mut().waiting_mut(op).unwrap().asks(true));
    assert!(bench.locks.ops_mut().interrupt(op));
    bench.waits.on_waiter_due(&mut bench.locks, op, bench.now);
    assert_eq!(bench.mode(op), Mode::Subscribed);
    assert_eq!(bench.count(5, &["CLIENT CACHING", "PTTL key"]), 5);
    bench.set_mode(op, Mode::BackingOff);
    assert!(bench.locks.ops_mut().interrupt(op));
    bench.waits.on_waiter_due(&mut bench.locks, op, bench.now);
    assert_eq!(bench.count(5, &["SET key"]), 5, "its tries count anew");
}

#[test]
fn waiter_that_leaves_others_a_turn_subscribes_when_another_client_wrote_to_the_key() {
    for ours in [true, false] {
        let (mut bench, op) = waiter(3);
        bench.set_mode(op, Mode::Yielding);
        bench.waits.notify_waiter(&mut bench.locks, op, (NodeId::new(0), 0), ours, bench.now);
        let expected = if ours { Mode::Yielding } else { Mode::Subscribed };
        assert_eq!(bench.mode(op), expected);
    }
}

#[test]
fn waits_take_note_of_round_trips_and_of_lines() {
    let (mut bench, op) = waiter(1);
    let before = bench.waits.round_trip.usual();
    bench.waits.note_round_trip(Duration::from_millis(4));
    assert!(bench.waits.round_trip.usual() > before);
    let (hash, now) = (KeyHash::of(KEY), bench.now);
    bench.waits.note_line(&mut bench.locks, op, hash, now);
    assert!(!bench.waits.has_line(hash, now), "the waiter stood in no line");
    bench.set_mode(op, Mode::InLine);
    bench.waits.note_line(&mut bench.locks, op, hash, now);
    assert!(bench.waits.has_line(hash, now));
    bench.locks.ops_mut().waiting_mut(op).unwrap().was_alone = true;
    bench.waits.note_line(&mut bench.locks, op, hash, now);
    assert!(!bench.waits.has_line(hash, now));
}

#[test]
fn waiter_that_woke_and_lost_backs_off_before_it_asks_again() {
    let (mut bench, op) = waiter(3);
    assert!(!bench.locks.ops_mut().waiting_mut(op).unwrap().is_contended());
    bench.locks.ops_mut().waiting_mut(op).unwrap().asks(true);
    assert!(bench.locks.ops_mut().interrupt(op));
    bench.locks.attempt_again(op, bench.now);
    assert_eq!(bench.count(3, &["SET key"]), 3);
    (0..3).for_each(|node| bench.receive(node, "+OK\r\n:5000\r\n_\r\n"));
    assert_eq!(bench.mode(op), Mode::BackingOff);
    assert!(
        bench.locks.ops_mut().waiting_mut(op).unwrap().is_contended(),
        "another client was faster"
    );
    assert!(bench.locks.next_timeout().is_some_and(|due| due > bench.now));
}

/// Lets the waiter wake and lose; what the nodes are asked afterwards is dropped.
fn wake_and_lose(bench: &mut Bench, op: Op, nodes: usize) {
    bench.locks.ops_mut().waiting_mut(op).unwrap().asks(true);
    assert!(bench.locks.ops_mut().interrupt(op));
    bench.locks.attempt_again(op, bench.now);
    for node in 0..nodes {
        bench.commands(node);
        bench.receive(node, "+OK\r\n:5000\r\n_\r\n");
    }
}

#[test]
fn waiter_with_little_time_left_backs_off_for_a_quarter_of_it_at_most() {
    let mut bench = Bench::new(1);
    let wait = Duration::from_millis(2);
    let op = acquire(&mut bench.locks, KEY, wait, bench.now);
    bench.receive(0, HELD);
    bench.commands(0);
    for _ in 0..10 {
        bench.locks.ops_mut().waiting_mut(op).unwrap().note_lost(true, Duration::from_millis(5));
    }
    wake_and_lose(&mut bench, op, 1);
    assert_eq!(bench.mode(op), Mode::BackingOff);
    let due = bench.locks.next_timeout().expect("it has a timer");
    assert!(due <= bench.now.saturating_add(wait / 4), "it asks a few times until its end");
}

#[test]
fn waiter_that_registers_again_forgets_what_the_nodes_said_before() {
    let (mut bench, op) = waiter(3);
    // A majority answers that the key has a millisecond left there.
    (0..2).for_each(|node| bench.receive(node, "+OK\r\n:1\r\n"));
    bench.set_mode(op, Mode::BackingOff);
    (0..3).for_each(|_| bench.locks.ops_mut().waiting_mut(op).unwrap().asks(true));
    assert!(bench.locks.ops_mut().interrupt(op));
    bench.waits.on_waiter_due(&mut bench.locks, op, bench.now);
    assert_eq!(bench.count(3, &["CLIENT CACHING", "PTTL key"]), 3);
    bench.pass(Duration::from_millis(5));
    assert_eq!(bench.count(3, &[]), 0, "no node has answered yet");
}
