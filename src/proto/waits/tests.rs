//! Drives the waits by hand, over locks whose nodes the test plays.

use std::time::Duration;

use super::*;
use crate::proto::cluster::tests::commands;
use crate::proto::error::Error;
use crate::proto::keys::KeysRef;
use crate::proto::locks::AcquireParams;
use crate::proto::locks::completions::{Completion, Outcome};
use crate::proto::locks::tests::{HELD, acquire, ready, receive};
use crate::proto::node_set::NodeId;

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
        // The requests of this client wait without a line.
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
            give_up_at,
            auto_extend: None,
            fenced: false,
            owner: None,
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

    /// Lets time pass, and handles what is due.
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

/// A request that nodes without lines have refused. The commands until then are dropped.
fn refused(nodes: usize, wait: Duration) -> (Bench, Op) {
    let mut bench = Bench::new(nodes);
    let op = acquire(&mut bench.locks, KEY, wait, bench.now);
    (0..nodes).for_each(|node| bench.receive(node, HELD));
    (0..nodes).for_each(|node| drop(bench.commands(node)));
    (bench, op)
}

#[test]
fn request_that_nodes_without_lines_refuse_asks_again_after_a_pause() {
    let (mut bench, op) = refused(3, WAIT);
    let (shortest, longest) = bench.locks.cluster().settings().retry;
    assert!(bench.locks.ops().pauses_before(op).is_some());
    bench.pass(shortest / 2 - Duration::from_micros(1));
    assert!((0..3).all(|node| bench.commands(node).is_empty()), "the pause is not over");
    bench.pass(longest);
    assert!((0..3).all(|node| bench.commands(node) == ["SET key"]), "it registers nothing");
}

#[test]
fn attempts_that_met_another_one_make_the_pauses_longer() {
    let (mut bench, op) = refused(3, WAIT);
    let pauses = |bench: &mut Bench| bench.locks.ops_mut().waiting_mut(op).unwrap().pauses;
    let before = pauses(&mut bench);
    bench.pass(bench.locks.cluster().settings().retry.1);
    // One node grants the key, and two refuse it: another client may have got it there.
    (0..3).for_each(|node| bench.receive(node, if node == 0 { "+OK\r\n" } else { HELD }));
    let bounds = bench.locks.cluster().settings().retry;
    let (mut met, mut refused) = (before, before);
    assert!(met.after(true, bounds).1 > refused.after(false, bounds).1);
    assert_eq!(pauses(&mut bench), met);
}

#[test]
fn wait_that_ends_within_a_pause_is_contended() {
    let wait = Duration::from_millis(2);
    let (mut bench, op) = refused(1, wait);
    bench.pass(wait);
    assert!(matches!(bench.locks.ops().error(op), Some(Error::Contended(_))));
}

/// Lets a client without lines take one lock after the other, each asked for in one write with the
/// release of the one before. Returns after how many it left the others a pause.
fn locks_until_a_pause() -> Option<usize> {
    let (mut bench, mut lock) = Bench::holding();
    for count in 1..200 {
        let op = bench.queue_up(WAIT);
        bench.locks.release_nowait(&lock, bench.now);
        bench.act();
        assert!(bench.has_turn(op));
        let commands = bench.commands(0);
        if bench.locks.ops().pauses_before(op).is_some() {
            assert!(!commands.contains(&"SET key".into()), "{commands:?}");
            bench.pass(WAIT / 2);
            assert_eq!(bench.commands(0), ["SET key"], "then it asks");
            return Some(count);
        }
        bench.receive(0, ":1\r\n+OK\r\n");
        let completion = bench.locks.fetch(op, bench.now);
        let Some(Completion { result: Ok(Outcome::Acquired(next)), .. }) = completion else {
            panic!("it is won: {completion:?}")
        };
        lock = next;
    }
    None
}

#[test]
fn client_without_lines_leaves_others_a_pause_now_and_then() {
    let count = locks_until_a_pause().expect("it leaves one");
    assert!((32..=64).contains(&count), "after {count} locks");
}

#[test]
fn waits_remember_whether_others_stand_in_line() {
    let (mut bench, op) = refused(1, WAIT);
    let (hash, now) = (KeyHash::of(KEY), bench.now);
    bench.waits.note_line(&mut bench.locks, op, hash, now);
    assert!(!bench.waits.has_line(hash, now), "the waiter stood in no line");
    bench.locks.ops_mut().waiting_mut(op).unwrap().is_in_line = true;
    bench.waits.note_line(&mut bench.locks, op, hash, now);
    assert!(bench.waits.has_line(hash, now));
    bench.locks.ops_mut().waiting_mut(op).unwrap().was_alone = true;
    bench.waits.note_line(&mut bench.locks, op, hash, now);
    assert!(!bench.waits.has_line(hash, now));
}
