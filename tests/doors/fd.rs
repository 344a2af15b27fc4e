//! Cases in which an engine behind one descriptor could miss its wake-up: a request that ends
//! inside the call that made it, and completions while the descriptor is silent. The third case is
//! input that the poller does not report a second time; it is tested next to the source
//! (`src/net/embed.rs`), where the reads can be made short.

use super::*;
use crate::support::free_port;
use event_loops::{LOOPS, ready_loops};
use redlatch::{Error, FdEngine, LockOptions, LockUpdateKind, Outcome, ReleaseOutcome};

/// A configuration in which every node refuses connections, and the client does not connect again
/// during the test.
fn nobody() -> Config {
    let urls = (0..3).map(|_| format!("redis://127.0.0.1:{}", free_port()));
    config(urls.collect::<Vec<_>>()).reconnect(HOUR, HOUR)
}

#[test]
fn a_request_that_ends_inside_its_own_call_wakes_the_loop() {
    for make in LOOPS {
        let mut locks = FdEngine::new(nobody()).unwrap();
        let mut outer = make(&mut locks);
        outer.drive_until(&mut locks, "all refused", |locks| {
            let core = locks.engine().coordinator();
            (0..3).all(|node| core.failures(redlatch::NodeId::new(node)) > 0)
        });
        outer.until_silent(&mut locks);
        for data in 0..20 {
            locks.batch().acquire("a", LockOptions::once(TTL), data).unwrap();
            assert!(outer.wakes(&locks, LOST), "nobody said that it is over: {locks:?}");
            locks.tick().unwrap();
            let done = locks.poll_completion().expect("it is over");
            assert!(
                matches!((done.data, done.result), (it, Err(Error::NoQuorum(_))) if it == data)
            );
            // After every second completion the test does not ask whether there are more.
            if data % 2 == 0 {
                assert!(locks.poll_completion().is_none());
            }
        }
        // The same if the caller makes several requests before its loop looks at the descriptor.
        for data in 0..3 {
            locks.batch().acquire("a", LockOptions::once(TTL), data).unwrap();
        }
        let ended: Vec<u64> = (0..3).map(|_| outer.completion(&mut locks).data).collect();
        assert_eq!(ended, [0, 1, 2]);
        outer.until_silent(&mut locks);
    }
}

#[test]
fn the_release_of_a_lock_that_is_over_wakes_the_loop() {
    let fleet = Fleet::start(3);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls())) {
        locks.batch().acquire("a", LockOptions::once(3 * SECOND), 1).unwrap();
        let lock = outer.won(&mut locks);
        // Nothing but the deadline of the lock makes the descriptor readable.
        outer.drive_until(&mut locks, "the lock is over", |locks| {
            locks.engine().deadline(&lock).is_none()
        });
        outer.until_silent(&mut locks);
        locks.batch().release(lock, 2);
        assert!(outer.wakes(&locks, LOST), "nobody said that it is over: {locks:?}");
        let released = locks.poll_completion().expect("it needs no tick");
        let already = Ok(Outcome::Released(ReleaseOutcome::AlreadyExpired));
        assert_eq!((released.data, released.result), (2, already));
        assert!(locks.poll_completion().is_none());
        outer.until_silent(&mut locks);
        eventually(10 * SECOND, "the key is gone", || fleet.keys_everywhere().is_empty());
    }
}

/// Requests this many locks in one turn, and ticks until all of them are granted.
fn acquire_all(outer: &mut Outer, locks: &mut FdEngine, fleet: &Fleet, count: u64) {
    {
        let mut ask = locks.batch();
        for data in 0..count {
            ask.acquire(format!("key:{data}"), LockOptions::once(TTL), data).unwrap();
        }
    }
    let everywhere = count as usize * fleet.len();
    eventually(LOST, "all nodes have all keys", || fleet.keys_everywhere().len() == everywhere);
    let unanswered = |locks: &FdEngine| {
        let core = locks.engine().coordinator();
        (0..3).map(|node| core.unanswered(redlatch::NodeId::new(node))).sum::<usize>()
    };
    outer.drive_until(locks, "all nodes answered", |locks| unanswered(locks) == 0);
}

#[test]
fn completions_that_are_not_taken_keep_the_descriptor_readable() {
    let fleet = Fleet::start(3);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls())) {
        acquire_all(&mut outer, &mut locks, &fleet, 6);
        let mut held = Vec::new();
        for data in 0..6 {
            assert!(outer.wakes(&locks, LOST), "{data} were taken: {locks:?}");
            locks.tick().unwrap();
            // In every second run the loop ticks once more, as if something else had woken it.
            if data % 2 == 0 {
                locks.tick().unwrap();
            }
            let done = locks.poll_completion().expect("one of those that wait");
            assert_eq!(done.data, data);
            held.push(done.result.unwrap());
        }
        // The test has not asked yet whether there are more, so one wake-up more is allowed.
        assert!(outer.until_silent(&mut locks) <= 2, "all were taken");
        let mut ask = locks.batch();
        for outcome in held {
            let Outcome::Acquired(lock) = outcome else { panic!("no lock") };
            ask.release(lock, 7);
        }
        drop(ask);
        for _ in 0..6 {
            assert_eq!(outer.completion(&mut locks).data, 7);
        }
        outer.until_silent(&mut locks);
        fleet.wait_empty();
    }
}

#[test]
fn descriptor_stays_readable_without_a_tick_until_all_completions_are_taken() {
    let fleet = Fleet::start(3);
    let mut locks = FdEngine::new(config(fleet.urls())).unwrap();
    let mut outer = Outer::Level;
    outer.wait_ready(&mut locks, 3);
    acquire_all(&mut outer, &mut locks, &fleet, 3);
    for data in 0..3 {
        for _ in 0..3 {
            assert!(outer.wakes(&locks, LOST), "{data} were taken");
        }
        assert_eq!(locks.poll_completion().expect("one of three").data, data);
    }
    assert!(outer.wakes(&locks, LOST), "nobody has said that there are no more");
    assert!(locks.poll_completion().is_none());
    assert!(!outer.wakes(&locks, millis(100)), "all were taken");
}

#[test]
fn a_request_that_is_cancelled_leaves_the_descriptor_silent() {
    let fleet = Fleet::start(3);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls())) {
        for ticks in 0..4 {
            let op = locks.batch().acquire("a", LockOptions::once(TTL), ticks).unwrap();
            for _ in 0..ticks {
                assert!(outer.wakes(&locks, LOST));
                locks.tick().unwrap();
            }
            locks.batch().cancel(op);
            assert!(locks.poll_completion().is_none());
            outer.until_silent(&mut locks);
            assert_eq!(locks.engine().coordinator().open_records(), 0);
            fleet.wait_empty();
        }
    }
}

#[test]
fn lock_updates_that_are_not_taken_keep_the_descriptor_readable() {
    let fleet = Fleet::start(3);
    for (mut locks, mut outer) in ready_loops(config(fleet.urls())) {
        locks.batch().report_lock_updates();
        let mut held = Vec::new();
        for (data, ttl) in [(1, millis(3_000)), (2, millis(3_001)), (3, TTL)] {
            locks.batch().acquire(data.to_string(), LockOptions::once(ttl), data).unwrap();
            held.push(outer.won(&mut locks));
        }
        outer.drive_until(&mut locks, "two are over", |locks| {
            held.iter().filter(|lock| locks.engine().deadline(lock).is_none()).count() == 2
        });
        for data in 1..=2 {
            assert!(outer.wakes(&locks, LOST), "{data}: {locks:?}");
            locks.tick().unwrap();
            let update = locks.poll_lock_update().expect("one of those that wait");
            assert_eq!(
                (update.data, update.token.clone()),
                (data, held[data as usize - 1].token())
            );
            assert!(matches!(update.kind, LockUpdateKind::Lost(Error::Lost { .. })), "{update:?}");
        }
        assert_eq!(locks.poll_lock_update(), None);
        outer.drive_until(&mut locks, "their releases are answered", |locks| {
            locks.engine().coordinator().open_records() == 1
        });
        assert!(outer.until_silent(&mut locks) <= 2, "all were taken");
        locks.batch().release_all();
        eventually(10 * SECOND, "no key is left", || {
            locks.tick().unwrap();
            fleet.keys_everywhere().is_empty()
        });
    }
}
