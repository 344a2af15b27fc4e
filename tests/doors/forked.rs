//! A process that forks while an engine is embedded by its descriptor. Parent and child share the
//! poller and the timer; whatever the child does with its copy of the engine, the descriptor wakes
//! the parent as before.
//!
//! The hazard is fork() among the threads of a test harness. So the test starts this test binary
//! once more, for itself alone and without other threads, and that process forks.
#![expect(unsafe_code, reason = "fork() is tried in a real child")]

use super::*;
use crate::support::again;
use redlatch::{ClosedReason, Error, FdEngine, Lock, LockOptions, Outcome, ReleaseOutcome};

#[test]
fn child_of_a_fork_leaves_descriptor_and_timer_to_its_parent() {
    if let Some(urls) = again::nodes() {
        return check_the_parent(config(urls));
    }
    let fleet = Fleet::start(3);
    let test = "child_of_a_fork_leaves_descriptor_and_timer_to_its_parent";
    again::run(module_path!(), test, &fleet.urls());
    eventually(10 * SECOND, "nothing is left", || fleet.keys_everywhere().is_empty());
}

/// Forks, lets the child run `what` on its copy of the engine, and waits until the child ends.
fn run_in_a_child(locks: &mut FdEngine, what: impl FnOnce(&mut FdEngine)) {
    // SAFETY: this process runs one test and has no other thread that could hold a lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        what(locks);
        // SAFETY: _exit ends the child at once; only the parent reports the result of the test.
        unsafe { libc::_exit(0) }
    }
    let mut status = 0;
    // SAFETY: waitpid waits for the child that was just made, and writes one number.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child failed");
}

/// A lock whose deadline is three seconds away. The timer is set to this deadline, and no other
/// event is near.
fn short_lock(outer: &mut Outer, locks: &mut FdEngine) -> Lock {
    locks.batch().acquire("short", LockOptions::once(3 * SECOND), 1).unwrap();
    let Ok(Outcome::Acquired(lock)) = outer.completion(locks).result else { panic!("no lock") };
    outer.until_silent(locks);
    lock
}

fn check_the_parent(config: Config) {
    let mut locks = FdEngine::new(config).unwrap();
    let mut outer = Outer::edge(&mut locks);
    outer.wait_ready(&mut locks, 3);

    // A request of the child ends at once, with an error. The child must not set the timer, because
    // its descriptor and the parent's are for the same timer.
    let lock = short_lock(&mut outer, &mut locks);
    run_in_a_child(&mut locks, |locks| {
        locks.batch().acquire("of the child", LockOptions::once(TTL), 2).unwrap();
        let done = locks.poll_completion().expect("it is over");
        assert_eq!(done.result, Err(Error::Closed(ClosedReason::Forked)));
        assert!(locks.poll_completion().is_none());
        for _ in 0..3 {
            locks.tick().unwrap();
        }
    });
    outer.drive_until(&mut locks, "the deadline of the parent's lock", |locks| {
        locks.engine().deadline(&lock).is_none()
    });

    // The child polls the descriptor that the parent waits for, and takes nothing away from the
    // parent.
    let lock = short_lock(&mut outer, &mut locks);
    locks.batch().acquire("asked before", LockOptions::once(TTL), 3).unwrap();
    run_in_a_child(&mut locks, |locks| {
        let start = Instant::now();
        while start.elapsed() < millis(200) {
            locks.tick().unwrap();
            while let Some(done) = locks.poll_completion() {
                assert!(done.result.is_err(), "the child has the parent's lock");
            }
        }
        assert!(locks.engine().deadline(&lock).is_none(), "the lock is the parent's");
    });
    let done = outer.completion(&mut locks);
    let Ok(Outcome::Acquired(before)) = done.result else { panic!("no lock") };
    outer.drive_until(&mut locks, "the deadline of the parent's lock", |locks| {
        locks.engine().deadline(&lock).is_none()
    });

    // The child drops its copy of the engine; neither the parent nor the nodes notice.
    let lock = short_lock(&mut outer, &mut locks);
    run_in_a_child(&mut locks, |locks| {
        let own =
            std::mem::replace(locks, FdEngine::new(self::config(["redis://[::1]:1"])).unwrap());
        drop(own);
    });
    outer.drive_until(&mut locks, "the deadline of the parent's lock", |locks| {
        locks.engine().deadline(&lock).is_none()
    });
    assert_eq!(locks.engine().coordinator().ready().len(), 3);
    locks.batch().release(before, 4);
    let released = outer.completion(&mut locks).result;
    assert_eq!(released, Ok(Outcome::Released(ReleaseOutcome::Released)));
}
