//! Each timer that is due makes the descriptor readable without any other event, and an idle client
//! does not wake its loop.

use super::*;
use event_loops::ready_loops;
use redlatch::{AutoExtend, Error, FdEngine, LockOptions, LockUpdateKind, NodeId};

#[test]
fn an_idle_client_leaves_its_loop_alone() {
    let fleet = Fleet::start(3);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls())) {
        locks.batch().acquire("a", LockOptions::once(TTL), 1).unwrap();
        let lock = outer.won(&mut locks);
        outer.drive_until(&mut locks, "all nodes answered", |locks| {
            let core = locks.engine().coordinator();
            (0..3).all(|node| core.unanswered(NodeId::new(node)) == 0)
        });
        outer.until_silent(&mut locks);
        // The client holds a lock whose deadline is far away, and has no request.
        let (start, mut woken) = (Instant::now(), 0);
        while start.elapsed() < SECOND {
            if outer.wakes(&locks, millis(100)) {
                woken += 1;
                locks.tick().unwrap();
            }
        }
        // The node timeout of the acquire wakes the loop once. The client does not disarm that
        // timer when the answers come, because this would cost a system call for each request.
        assert!(woken <= 1, "woken {woken} times for nothing");
        assert!(!locks.engine().remaining(&lock).is_zero());
        locks.batch().release(lock, 2);
        outer.completion(&mut locks);
    }
}

#[test]
fn a_frozen_majority_ends_a_request_at_the_node_timeout() {
    let fleet = Fleet::start(3);
    let timeout = millis(300);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls()).node_timeout(timeout)) {
        outer.until_silent(&mut locks);
        fleet.on([0, 1], Node::stop);
        let start = Instant::now();
        locks.batch().acquire("a", LockOptions::once(TTL), 1).unwrap();
        let done = outer.completion(&mut locks);
        let took = start.elapsed();
        assert!(matches!(done.result, Err(Error::NoQuorum(_))), "{:?}", done.result);
        assert!(took >= timeout && took < 10 * timeout + LOST, "{took:?}");
        println!("no quorum after {took:?}");
        fleet.on([0, 1], Node::cont);
        outer.wait_ready(&mut locks, 3);
        outer.drive_until(&mut locks, "what is owed is paid", |locks| {
            locks.engine().coordinator().open_records() == 0
        });
        assert!(fleet.keys_everywhere().is_empty());
    }
}

#[test]
fn auto_extend_and_its_loss_are_driven_by_timers_alone() {
    let fleet = Fleet::start(3);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls()).node_timeout(millis(200))) {
        let keep = AutoExtend::at_most(HOUR);
        locks.batch().acquire("a", LockOptions::new(4 * SECOND).auto_extend(keep), 1).unwrap();
        let lock = outer.won(&mut locks);
        let first = locks.engine().deadline(&lock).expect("it is held");
        let mut deadline = first;
        outer.drive_until(&mut locks, "it is renewed twice", |locks| {
            let now = locks.engine().deadline(&lock).expect("it is held");
            let renewed = now > deadline && deadline > first;
            deadline = deadline.max(now);
            renewed
        });
        fleet.iter().for_each(Node::stop);
        let mut lost = None;
        outer.drive_until(&mut locks, "its loss is reported", |locks| {
            let updates = std::iter::from_fn(|| locks.poll_lock_update());
            lost = updates.filter(|it| matches!(it.kind, LockUpdateKind::Lost(_))).last();
            lost.is_some()
        });
        let lost = lost.expect("it was reported");
        assert_eq!((lost.data, lost.key(), &lost.token), (1, Some(&b"a"[..]), &lock.token()));
        assert!(locks.poll_completion().is_none(), "the request completed before");
        fleet.iter().for_each(Node::cont);
        drop(locks);
        eventually(10 * SECOND, "nothing is left", || fleet.keys_everywhere().is_empty());
    }
}

#[test]
fn a_node_that_comes_back_is_connected_to_by_timers_alone() {
    let fleet = Fleet::start(3);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls())) {
        fleet[2].kill();
        let failures = |locks: &FdEngine| locks.engine().coordinator().failures(NodeId::new(2));
        outer.drive_until(&mut locks, "it was tried again", |locks| failures(locks) > 3);
        fleet[2].restart();
        outer.wait_ready(&mut locks, 3);
    }
}

#[test]
fn waiter_has_the_lock_when_the_holder_releases_it() {
    let fleet = Fleet::start(3);
    let holder = client(config(fleet.urls()));
    for (mut locks, mut outer) in ready_loops(config(fleet.urls())) {
        for data in 0..10 {
            let guard = holder.try_lock("a", TTL).unwrap();
            locks.batch().acquire("a", LockOptions::new(TTL).wait(HOUR), data).unwrap();
            for _ in 0..3 {
                let _ = outer.wakes(&locks, millis(20)) && locks.tick().is_ok();
            }
            drop(guard);
            let lock = outer.won(&mut locks);
            locks.batch().release(lock, data);
            outer.completion(&mut locks);
        }
    }
}
