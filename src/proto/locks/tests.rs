//! What the locks report to the waits, and what memory they give back. The test plays the nodes.

use std::time::Duration;

use super::*;
use crate::proto::cluster::Received;
use crate::proto::cluster::tests::{commands, reply_to};
use crate::proto::error::Error;
use crate::proto::keys::KeysRef;
use crate::proto::locks::completions::{Completion, Outcome};
use crate::proto::settings::NodeSettings;
use crate::proto::surplus::{FEW, INTERVAL};

const TTL: Duration = Duration::from_secs(10);
const KEY: &[u8] = b"key";
/// What a node answers to a `SET` of a key that another client holds.
pub const HELD: &str = "_\r\n";

/// The locks of a client whose nodes are ready, and the present moment.
pub fn ready(nodes: usize) -> (Locks, Instant) {
    let now = Instant::from_nanos(1_000_000_000_000);
    let labels = (0..nodes).map(|node| NodeSettings::new(format!("n{node}")));
    let mut locks = Locks::new(Settings::new(labels.collect()), [9; 32], now);
    for node in locks.cluster().all_nodes().iter() {
        locks.cluster_mut().handle_connected(node, now);
        while !locks.cluster().node_state(node).is_usable() {
            let run_id = char::from(b'a' + node.index() as u8);
            let asked = commands(locks.cluster_mut(), node, now);
            let replies: String =
                asked.iter().map(|command| reply_to(command, (run_id, 86_400), now)).collect();
            receive(&mut locks, node, &replies, now);
        }
        // A node that is ready is asked for its time.
        assert_eq!(commands(locks.cluster_mut(), node, now), ["TIME"]);
        receive(&mut locks, node, &reply_to("TIME", ('a', 0), now), now);
    }
    (locks, now)
}

/// Passes the answers of a node to the locks.
pub fn receive(locks: &mut Locks, node: NodeId, bytes: &str, now: Instant) {
    let mut input = bytes.as_bytes();
    while let Some(received) = locks.cluster_mut().receive(node, &mut input, now) {
        locks.act_on_changes(now);
        match received {
            Received::Lock(ask, reply) => locks.on_answer(node, ask, reply, now),
            Received::Registered(record, left) => {
                locks.on_registered(node, record, left, now);
            }
            _ => {}
        }
        locks.act_on_verdicts(now);
    }
}

/// Asks for the key, and waits for it for `wait` at most.
pub fn acquire(locks: &mut Locks, key: &[u8], wait: Duration, now: Instant) -> Op {
    let ttl = locks.check_params(KeysRef::One(key), TTL, None).unwrap();
    let give_up_at = now.saturating_add(wait);
    let (auto_extend, fenced, owner, data) = (None, false, None, 0);
    let params = AcquireParams { ttl, give_up_at, auto_extend, fenced, owner, data };
    locks.acquire(key, KeyHash::of(key), params, false, now).unwrap()
}

fn hold(locks: &mut Locks, now: Instant) -> (Lock, RecordId) {
    let op = acquire(locks, KEY, Duration::ZERO, now);
    for node in locks.cluster().all_nodes().iter() {
        receive(locks, node, "+OK\r\n", now);
    }
    let Some(Completion { result: Ok(Outcome::Acquired(lock)), .. }) = locks.fetch(op, now) else {
        panic!("it is won")
    };
    (lock, locks.current_record(KEY, KeyHash::of(KEY)).unwrap())
}

fn events(locks: &mut Locks, now: Instant) -> Vec<WaitEvent> {
    std::iter::from_fn(|| locks.poll_wait(now)).collect()
}

#[test]
fn lock_without_waiters_reports_no_event_to_the_waits() {
    let (mut locks, now) = ready(3);
    let (lock, _) = hold(&mut locks, now);
    locks.release(lock, 0, now);
    assert!(events(&mut locks, now).is_empty());
}

#[test]
fn attempt_lost_to_another_client_is_reported_with_the_record_of_the_next_one() {
    let (mut locks, now) = ready(3);
    let asked = acquire(&mut locks, KEY, TTL, now);
    for node in locks.cluster().all_nodes().iter() {
        assert!(events(&mut locks, now).is_empty(), "a minority decides nothing");
        receive(&mut locks, node, HELD, now);
        if node.index() == 1 {
            break;
        }
    }
    let reported = events(&mut locks, now);
    let [WaitEvent::AttemptLost { op, next, last: Error::Contended(_) }] = reported[..] else {
        panic!("{reported:?}")
    };
    assert_eq!((op, &locks.records.get(next).key[..]), (asked, KEY));
    assert_eq!(locks.ops().pauses_before(op), None, "when it asks again is not decided here");
}

#[test]
fn attempt_without_a_wait_ends_where_it_is_lost() {
    let (mut locks, now) = ready(1);
    let op = acquire(&mut locks, KEY, Duration::ZERO, now);
    receive(&mut locks, NodeId::new(0), HELD, now);
    assert!(events(&mut locks, now).is_empty());
    assert!(matches!(locks.ops().error(op), Some(Error::Contended(_))));
}

#[test]
fn key_with_a_queue_is_reported_when_its_lock_is_over() {
    for is_released in [true, false] {
        let (mut locks, now) = ready(3);
        let (lock, id) = hold(&mut locks, now);
        assert_eq!(locks.queue_for(id, KEY, |key| if key == KEY { 7 } else { 8 }), 7);
        if is_released {
            locks.release(lock, 0, now);
        } else {
            locks.hand_off(lock, now);
        }
        let reported = events(&mut locks, now);
        assert!(matches!(reported[..], [WaitEvent::Vacated { queue: 7 }]), "{reported:?}");
        assert_eq!(locks.current_record(KEY, KeyHash::of(KEY)), None);
    }
}

#[test]
fn interrupted_pause_has_no_timer_until_it_is_set_again() {
    let (mut locks, now) = ready(1);
    let op = acquire(&mut locks, KEY, TTL, now);
    receive(&mut locks, NodeId::new(0), HELD, now);
    let Some(WaitEvent::AttemptLost { next, last, .. }) = locks.poll_wait(now) else { panic!() };
    let timers = locks.open_timers();
    locks.ops_mut().pause(op, next, now.saturating_add(TTL / 2), last);
    assert_eq!((locks.open_timers(), locks.ops().pauses_before(op)), (timers + 1, Some(next)));
    assert!(locks.ops_mut().interrupt(op));
    assert_eq!(locks.open_timers(), timers);
    locks.ops_mut().pause_on(op, now.saturating_add(Duration::from_millis(1)));
    let later = now.saturating_add(Duration::from_millis(1));
    while locks.do_next_due(later) {}
    assert!(
        matches!(events(&mut locks, now)[..], [WaitEvent::PauseOver { op: over }] if over == op)
    );
}

fn only() -> NodeId {
    NodeId::new(0)
}

/// Makes this many requests before the node answers one. All are denied, and fetched.
fn burst(locks: &mut Locks, count: usize, now: Instant) {
    let ops: Vec<Op> = (0..count)
        .map(|n| acquire(locks, format!("key{n}").as_bytes(), Duration::ZERO, now))
        .collect();
    let bytes = locks.cluster().output(only()).len();
    locks.handle_sent(only(), bytes, now);
    receive(locks, only(), &HELD.repeat(count), now);
    for op in ops {
        assert!(locks.fetch(op, now).is_some());
    }
    assert_eq!((locks.open_records(), locks.ops().len()), (0, 0));
}

/// For how many records, requests and timers there is room.
fn capacities(locks: &Locks) -> [usize; 3] {
    [locks.records.capacity(), locks.ops.capacity(), locks.timers.capacity()]
}

/// Lets an interval of the tidying pass. The node answers what it is asked.
fn pass_an_interval(locks: &mut Locks, now: &mut Instant) {
    *now = now.saturating_add(INTERVAL);
    while locks.do_next_due(*now) {}
    for command in commands(locks.cluster_mut(), only(), *now) {
        receive(locks, only(), &reply_to(&command, ('a', 0), *now), *now);
    }
}

#[test]
fn tidying_gives_back_the_room_of_a_burst_after_an_interval_without_it() {
    let (mut locks, mut now) = ready(1);
    burst(&mut locks, 5 * FEW, now);
    assert!(locks.tidying.due.is_some_and(|due| due == now.saturating_add(INTERVAL)));
    let before = capacities(&locks);
    assert!(before[0] >= 5 * FEW && before[1] >= 5 * FEW, "{before:?}");
    pass_an_interval(&mut locks, &mut now);
    assert_eq!(capacities(&locks), before, "the burst was in this interval");
    assert!(locks.tidying.due.is_some());
    pass_an_interval(&mut locks, &mut now);
    let after = capacities(&locks);
    assert!(after.iter().all(|&capacity| capacity <= FEW), "{after:?}");
    assert_eq!(locks.tidying.due, None, "there is nothing to give back any more");
}

#[test]
fn tidying_has_no_timer_while_few_requests_are_open() {
    let (mut locks, now) = ready(1);
    burst(&mut locks, FEW, now);
    assert_eq!(locks.tidying.due, None);
    burst(&mut locks, FEW + 1, now);
    let due = locks.tidying.due;
    assert!(due.is_some());
    burst(&mut locks, FEW + 1, now.saturating_add(Duration::from_secs(1)));
    assert_eq!(locks.tidying.due, due, "the interval has begun");
}

#[test]
fn tidying_goes_on_while_many_requests_come() {
    let (mut locks, mut now) = ready(1);
    burst(&mut locks, FEW + 1, now);
    pass_an_interval(&mut locks, &mut now);
    assert!(locks.tidying.due.is_some());
    burst(&mut locks, FEW + 1, now);
    pass_an_interval(&mut locks, &mut now);
    assert!(locks.tidying.due.is_some(), "this interval had many, too");
}

#[test]
fn tidying_goes_on_until_the_room_of_a_burst_is_given_back() {
    let (mut locks, mut now) = ready(1);
    burst(&mut locks, 2 * FEW + 1, now);
    let before = capacities(&locks);
    pass_an_interval(&mut locks, &mut now);
    // A quarter of the room was in use in this interval, so all of it is kept.
    burst(&mut locks, FEW, now);
    pass_an_interval(&mut locks, &mut now);
    assert_eq!(capacities(&locks), before);
    assert!(locks.tidying.due.is_some());
}

#[test]
fn verdicts_of_one_lost_connection_do_not_pile_up() {
    let (mut locks, now) = ready(1);
    for number in 0..5 * FEW {
        acquire(&mut locks, number.to_string().as_bytes(), Duration::ZERO, now);
    }
    commands(locks.cluster_mut(), only(), now);
    locks.cluster_mut().handle_disconnected(only(), "reset", now);
    locks.act_on_changes(now);
    assert!(locks.verdicts.is_empty() && locks.verdicts.capacity() <= FEW);
}
