//! A forked process: the client in the child has no locks and sends nothing (rule 28).

use super::*;
use redlatch::{AutoExtend, ClosedReason, LockOptions, NodeId, NodeSet};

const FORKED: Error = Error::Closed(ClosedReason::Forked);

#[test]
fn child_of_a_fork_has_no_lock_no_connection_and_sends_nothing() {
    let mut bench = Bench::quiet(3);
    bench.core.report_lock_updates();
    let lock = bench.hold(&[0, 1, 2]);
    let asks = bench.acquire();
    bench.ask(5, LockOptions::new(TTL).wait(TTL));
    bench.core.inspect(b"any", 6, bench.now).unwrap();
    bench.actions();
    bench.core.abandon_after_fork();

    for node in 0..3 {
        let id = NodeId::new(node);
        assert!(bench.core.output(id).is_empty(), "the sockets are the parent's");
        assert_eq!(bench.node_state(node), NodeState::Rejected(NodeError::Forked));
        assert_eq!(bench.core.last_error(id), NodeError::Forked);
        assert_eq!(bench.core.failures(id), 1);
        assert_eq!(bench.core.pending_releases(id), 0);
    }
    assert_eq!((bench.core.open_records(), bench.core.open_timers()), (0, 0));
    assert_eq!(bench.core.stats().held, 0);
    assert_eq!((bench.core.ready(), bench.core.reconnecting()), (NodeSet::EMPTY, NodeSet::EMPTY));
    assert_eq!(bench.core.deadline(&lock), None);
    assert!(bench.core.remaining(&lock, bench.now).is_zero());
    let mut ends: Vec<_> = std::iter::from_fn(|| bench.completion()).collect();
    ends.sort_by_key(|done| done.data);
    assert_eq!(ends.iter().map(|done| done.data).collect::<Vec<_>>(), [1, 5, 6]);
    assert!(ends.iter().all(|done| done.result == Err(FORKED)), "{ends:?}");
    assert!(!bench.core.is_open(asks) && bench.core.open_ops() == 0);

    // A request of the child ends at once, and the child does not release its parent's locks.
    assert_eq!(bench.core.extend(&lock, TTL, 7, bench.now), Err(FORKED));
    bench.core.release_nowait(&lock, bench.now);
    bench.acquire();
    assert_eq!(bench.completion().expect("it ends at once").result, Err(FORKED));
    bench.pass(TTL);
    assert!((0..3).all(|node| bench.sent(node).is_empty()));
    assert!(bench.actions().is_empty(), "no connection is opened");
    assert!(bench.core.poll_lock_update().is_none());
}

#[test]
fn child_of_a_fork_gets_no_update_that_was_meant_for_its_parent() {
    let mut bench = Bench::quiet(3);
    bench.core.report_lock_updates();
    let lock = bench.hold(&[0, 1, 2]);
    bench.core.auto_extend(&lock, AutoExtend::at_most(TTL * 3), bench.now).unwrap();
    bench.pass(TTL);
    assert!(bench.core.has_lock_updates(), "the lock is lost");
    bench.core.abandon_after_fork();
    assert!(!bench.core.has_lock_updates());
    assert_eq!(bench.core.auto_extended_locks(), 0);
}
