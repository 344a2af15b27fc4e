//! Many locks through one client: memory and queues stay bounded, and no key is left.

use super::*;
use redlatch::{Lock, Outcome, ReleaseOutcome};

const KEYS: u64 = 10_000;

/// Enough requests to show that a full node gets no new one. They are over within 10 s: after that
/// the kernel gives up a connection on which a stopped node reads nothing.
const FEW: u64 = 500;

/// Acquires `keys` keys in one turn.
fn acquire_all(embedded: &mut Loop, keys: u64) -> Vec<Lock> {
    for data in 0..keys {
        embedded
            .engine
            .acquire(format!("key:{data}"), LockOptions::once(60 * SECOND), data)
            .unwrap();
    }
    let start = Instant::now();
    let locks = (0..keys).map(|_| match embedded.completion().result {
        Ok(Outcome::Acquired(lock)) => lock,
        other => panic!("{other:?}"),
    });
    let locks = locks.collect();
    println!("{keys} locks in {:?}", start.elapsed());
    locks
}

fn release_all(embedded: &mut Loop, locks: Vec<Lock>) {
    let (start, count) = (Instant::now(), locks.len());
    for lock in locks {
        embedded.engine.release(lock, 0);
    }
    for _ in 0..count {
        let released = embedded.completion().result;
        assert_eq!(released, Ok(Outcome::Released(ReleaseOutcome::Released)));
    }
    println!("{count} releases in {:?}", start.elapsed());
}

fn is_idle(embedded: &mut Loop) -> bool {
    embedded.turn();
    let core = embedded.engine.coordinator();
    core.open_records() == 0 && core.open_ops() == 0
}

#[test]
fn ten_thousand_locks_at_one_time_leave_nothing() {
    let fleet = Fleet::start(3);
    let mut embedded = Loop::ready(config(&fleet).node_timeout(2 * SECOND));
    let locks = acquire_all(&mut embedded, KEYS);
    eventually(SOON, "all keys are on all nodes", || {
        embedded.turn();
        fleet.iter().all(|node| node.command(&["DBSIZE"]).int() == KEYS as i64)
    });
    release_all(&mut embedded, locks);
    eventually(SOON, "nothing is open", || is_idle(&mut embedded));
    fleet.wait_empty();
}

#[test]
fn ten_thousand_locks_with_one_node_stopped_take_bounded_memory() {
    let fleet = Fleet::start(3);
    let timeout = 2 * SECOND;
    let config = config(&fleet).node_timeout(timeout).reset_after(600 * SECOND);
    let mut embedded = Loop::ready(config);
    fleet[1].stop();
    let stopped = NodeId::new(1);
    let waiting = |embedded: &Loop| {
        let core = embedded.engine.coordinator();
        (core.output(stopped).len(), core.unanswered(stopped), core.open_records())
    };
    let locks = acquire_all(&mut embedded, KEYS);
    release_all(&mut embedded, locks);
    eventually(10 * timeout, "the stopped node is suspect", || {
        embedded.turn();
        embedded.engine.node_state(stopped) == NodeState::Suspect
    });
    let before = waiting(&embedded);
    println!("waiting for the stopped node: {before:?} (bytes, questions, records)");
    assert!(before.0 <= 16 << 20 && before.1 <= 2 * KEYS as usize + 1, "{before:?}");
    for _ in 0..3 {
        let locks = acquire_all(&mut embedded, FEW);
        release_all(&mut embedded, locks);
    }
    assert_eq!(waiting(&embedded), before, "a suspect node is asked for nothing new");
    fleet[1].cont();
    eventually(10 * SECOND, "nothing is open", || is_idle(&mut embedded));
    assert_eq!(embedded.engine.node_state(stopped), NodeState::Ready);
    fleet.wait_empty();
}

#[test]
fn a_node_at_its_limit_votes_full_and_the_others_decide() {
    let fleet = Fleet::start(3);
    let limits = redlatch::Limits::default().asks(200);
    let mut embedded = Loop::ready(config(&fleet).node_timeout(60 * SECOND).limits(limits));
    fleet[2].stop();
    let full = NodeId::new(2);
    for round in 0..500_u64 {
        embedded
            .engine
            .acquire(format!("key:{round}"), LockOptions::once(60 * SECOND), round)
            .unwrap();
        let Ok(Outcome::Acquired(lock)) = embedded.completion().result else { panic!("no lock") };
        embedded.engine.release(lock, round);
        let released = embedded.completion().result;
        assert_eq!(released, Ok(Outcome::Released(ReleaseOutcome::Released)), "round {round}");
    }
    // Half of the node's room is for new requests, and one TIME may go beyond it. The other half is
    // kept for the releases of held locks.
    let unanswered = embedded.engine.coordinator().unanswered(full);
    assert!((100..=101).contains(&unanswered), "{unanswered}");
    fleet[2].cont();
    eventually(10 * SECOND, "nothing is open", || is_idle(&mut embedded));
    fleet.wait_empty();
}
