//! The waits by hand, over locks whose nodes are played by the test.

use std::time::Duration;

use super::*;
use crate::proto::cluster::tests::commands;
use crate::proto::error::Error;
use crate::proto::locks::AcquireParams;
use crate::proto::locks::requests::{Completion, Outcome};
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
        let (locks, now) = ready(nodes);
        Bench { waits: Waits::default(), locks, now }
    }

    fn act(&mut self) {
        while let Some(event) = self.locks.poll_wait() {
            self.waits.handle(event, &mut self.locks, self.now);
        }
    }

    /// Queues a request for the key.
    fn queue_up(&mut self, wait: Duration) -> Op {
        let ttl = self.locks.check_params(KEY, WAIT, None).unwrap();
        let give_up_at = self.now.saturating_add(wait);
        let params = AcquireParams {
            ttl,
            since: self.now,
            give_up_at,
            auto_extend: None,
            fair: false,
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
        self.locks.is_open(op) && self.locks.queue_of(op).is_none()
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
    assert!(matches!(bench.locks.error(gives_up), Some(Error::Contended(_))));
    assert_eq!(bench.waits.queues.len(), 1);
    bench.locks.release_nowait(&lock, bench.now);
    bench.act();
    assert!(bench.waits.queues.is_empty());
}

#[test]
fn request_that_would_have_to_wait_and_may_not_is_contended_at_once() {
    let (mut bench, _lock) = Bench::holding();
    let op = bench.queue_up(Duration::ZERO);
    assert!(matches!(bench.locks.error(op), Some(Error::Contended(_))));
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
    assert!(bench.locks.pauses_before(op).is_some());
    // The first node answers that the key is gone there: one of three is no majority.
    bench.receive(0, "+OK\r\n:-2\r\n");
    assert!(bench.locks.pauses_before(op).is_some());
    bench.receive(1, "+OK\r\n:-2\r\n");
    assert_eq!(bench.locks.pauses_before(op), None);
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
    assert!(bench.locks.pauses_before(op).is_some());
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
        self.locks.waiting(op).expect("it waits").mode
    }

    fn set_mode(&mut self, op: Op, mode: Mode) {
        self.locks.waiting(op).expect("it waits").mode = mode;
    }

    fn report_ttl(&mut self, op: Op, node: usize, left: i64) {
        let (node, left) = (NodeId::new(node), Some(left));
        self.waits.on_ttl_reported(&mut self.locks, op, (node, 0), left, self.now);
    }

    /// To how many nodes these commands were written, and nothing to the others.
    fn count(&mut self, nodes: usize, expected: &[&str]) -> usize {
        let written: Vec<_> = (0..nodes).map(|node| self.commands(node)).collect();
        let asked = written.into_iter().filter(|commands| !commands.is_empty());
        asked.inspect(|commands| assert_eq!(commands, expected)).count()
    }
}

#[test]
fn waiter_that_probes_a_node_asks_all_if_the_key_is_free_there() {
    let (mut bench, op) = waiter(3);
    bench.set_mode(op, Mode::Probing { node: NodeId::new(1) });
    bench.report_ttl(op, 0, -2);
    assert_eq!(bench.mode(op), Mode::Probing { node: NodeId::new(1) }, "another node answered");
    assert_eq!(bench.count(3, &[]), 0);
    bench.report_ttl(op, 1, -2);
    assert_eq!(bench.count(3, &["SET key"]), 3);
}

#[test]
fn waiter_that_probes_a_node_where_the_key_is_held_backs_off_twice_and_then_asks() {
    let (mut bench, op) = waiter(3);
    for _ in 0..2 {
        bench.set_mode(op, Mode::Probing { node: NodeId::new(1) });
        bench.report_ttl(op, 1, 5_000);
        assert_eq!(bench.mode(op), Mode::BackingOff);
        assert_eq!(bench.count(3, &[]), 0);
    }
    bench.set_mode(op, Mode::Probing { node: NodeId::new(1) });
    bench.report_ttl(op, 1, 5_000);
    assert_eq!(bench.count(3, &["SET key"]), 3, "one node may be wrong for ever");
}

#[test]
fn waiter_that_probes_a_node_without_an_answer_asks_all_after_a_while() {
    let (mut bench, op) = waiter(3);
    bench.set_mode(op, Mode::Holding { probe: true });
    assert!(bench.locks.interrupt(op));
    bench.waits.waiter_is_due(&mut bench.locks, op, bench.now);
    assert_eq!(bench.count(3, &["CLIENT CACHING", "PTTL key"]), 1);
    assert!(matches!(bench.mode(op), Mode::Probing { .. }));
    bench.pass(contention::patience(bench.waits.round_trip.usual()) - Duration::from_nanos(1));
    assert_eq!(bench.count(3, &[]), 0, "it may answer yet");
    bench.pass(Duration::from_nanos(1));
    assert_eq!(bench.count(3, &["SET key"]), 3);
}

#[test]
fn waiter_among_others_holds_back_when_the_key_may_be_free_and_probes_if_that_is_long() {
    let (mut bench, op) = waiter(3);
    bench.locks.waiting(op).unwrap().note_lost_wake_up();
    bench.locks.waiting(op).unwrap().free_at.fill(bench.now);
    // It holds back for as long as the key was held, up to some round trips.
    bench.now = bench.now.saturating_add(Duration::from_micros(150));
    let round_trip = bench.waits.round_trip.usual();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        bench.set_mode(op, Mode::Subscribed);
        bench.locks.interrupt(op);
        bench.waits.waiter_is_due(&mut bench.locks, op, bench.now);
        let due = bench.locks.next_timeout().expect("it holds back");
        let probe = due.saturating_since(bench.now) > round_trip;
        assert_eq!(bench.mode(op), Mode::Holding { probe });
        seen.insert(probe);
    }
    assert_eq!(seen.len(), 2, "some pauses are short, and some are long");
    assert_eq!(bench.count(3, &[]), 0);
}

#[test]
fn waiter_that_backed_off_asks_a_few_times_and_then_subscribes_at_one_more_than_a_quorum() {
    let (mut bench, op) = waiter(5);
    bench.locks.waiting(op).unwrap().note_lost_wake_up();
    bench.set_mode(op, Mode::BackingOff);
    (0..3).for_each(|_| bench.locks.waiting(op).unwrap().asks(true));
    assert!(bench.locks.interrupt(op));
    bench.waits.waiter_is_due(&mut bench.locks, op, bench.now);
    assert_eq!(bench.mode(op), Mode::Subscribed);
    assert_eq!(bench.count(5, &["CLIENT CACHING", "PTTL key"]), 4);
    bench.set_mode(op, Mode::BackingOff);
    assert!(bench.locks.interrupt(op));
    bench.waits.waiter_is_due(&mut bench.locks, op, bench.now);
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
fn waits_take_note_of_round_trips_and_of_the_wait_for_a_key() {
    let (mut bench, op) = waiter(1);
    let before = bench.waits.round_trip.usual();
    bench.waits.note_round_trip(Duration::from_millis(4));
    assert!(bench.waits.round_trip.usual() > before);
    let (hash, now) = (KeyHash::of(KEY), bench.now.saturating_add(Duration::from_millis(5)));
    bench.waits.note_contention(&mut bench.locks, op, hash, now);
    assert!(bench.waits.contention.at(hash, now).is_zero(), "no other client was faster");
    bench.locks.waiting(op).unwrap().note_lost_wake_up();
    bench.waits.note_contention(&mut bench.locks, op, hash, now);
    assert_eq!(bench.waits.contention.at(hash, now), Duration::from_millis(5));
}

#[test]
fn probes_go_to_every_node_in_time() {
    let (mut bench, op) = waiter(3);
    let mut probed = std::collections::BTreeSet::new();
    for _ in 0..50 {
        bench.set_mode(op, Mode::Holding { probe: true });
        assert!(bench.locks.interrupt(op));
        bench.waits.waiter_is_due(&mut bench.locks, op, bench.now);
        let Mode::Probing { node } = bench.mode(op) else { panic!("it probes a node") };
        probed.insert(node.index());
    }
    assert_eq!(probed.len(), 3);
}

#[test]
fn waiter_that_woke_and_lost_backs_off_before_it_asks_again() {
    let (mut bench, op) = waiter(3);
    assert!(!bench.locks.waiting(op).unwrap().is_contended());
    bench.locks.waiting(op).unwrap().asks(true);
    assert!(bench.locks.interrupt(op));
    bench.locks.attempt_again(op, bench.now);
    assert_eq!(bench.count(3, &["SET key"]), 3);
    (0..3).for_each(|node| bench.receive(node, "+OK\r\n:5000\r\n_\r\n"));
    assert_eq!(bench.mode(op), Mode::BackingOff);
    assert!(bench.locks.waiting(op).unwrap().is_contended(), "another client was faster");
    assert!(bench.locks.next_timeout().is_some_and(|due| due > bench.now));
}
