//! The engine on io_uring: it takes and gives back locks, is woken by what it has taken already,
//! and goes on with epoll if the kernel refuses a ring or a ring fails. Where the kernel has no
//! io_uring, these tests show only that.
#![expect(unsafe_code, reason = "a thread forbids itself a system call, and a process forks")]

use super::*;
use crate::support::again;
use redlatch::{ClosedReason, Error, LockOptions, Outcome, SocketDriver, UringEngine};

/// Whether the driver is io_uring. If not, it says so, and the reason is the kernel's.
#[track_caller]
fn on_ring(driver: &SocketDriver) -> bool {
    if let SocketDriver::Poller { reason } = driver {
        assert!(reason.contains("the kernel refused a ring"), "{reason}");
        println!("{reason}");
    }
    *driver == SocketDriver::IoUring
}

/// An engine on the nodes of this fleet.
fn engine(fleet: &Fleet) -> UringEngine {
    UringEngine::new(config(fleet.urls())).expect("a good configuration")
}

/// Takes and releases `count` locks, all of them in flight at once.
#[track_caller]
fn pairs(locks: &mut UringEngine, count: usize) {
    for data in 0..count {
        let (key, options) = (format!("ring:{data}"), LockOptions::once(TTL));
        locks.engine_mut().acquire(&key, options, data as u64).expect("there is room");
    }
    let (mut open, start) = (count, Instant::now());
    while open > 0 {
        assert!(start.elapsed() < 2 * LOST, "{open} of {count} are open");
        locks.turn(Some(SECOND)).expect("the poller works");
        while let Some(done) = locks.engine_mut().poll_completion() {
            match done.result.expect("a free key, and healthy nodes") {
                Outcome::Acquired(lock) => drop(locks.engine_mut().release(lock, done.data)),
                Outcome::Released(_) => open -= 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn the_engine_takes_and_gives_back_locks_on_io_uring() {
    let fleet = Fleet::start(5);
    let mut locks = engine(&fleet);
    if !on_ring(&locks.socket_driver()) {
        return;
    }
    pairs(&mut locks, 3_000);
    assert_eq!(locks.socket_driver(), SocketDriver::IoUring);
    drop(locks);
    fleet.wait_empty();
}

/// A flush submits, and takes the answers that are there by then: the kernel does not report them
/// to the turn after it. No node sends anything else, and no timer is due for minutes.
#[test]
fn answers_that_a_flush_took_end_the_next_turn() {
    let fleet = Fleet::start(3);
    let mut locks = engine(&fleet);
    if !on_ring(&locks.socket_driver()) {
        return;
    }
    pairs(&mut locks, 1);
    let all_answered = |locks: &UringEngine| {
        let core = locks.engine().coordinator();
        core.ready().len() == 3 && core.ready().iter().all(|node| core.unanswered(node) == 0)
    };
    while !all_answered(&locks) {
        locks.turn(Some(millis(10))).expect("the ring works");
    }
    let options = LockOptions::once(TTL);
    locks.engine_mut().acquire("answered", options, 1).expect("there is room");
    locks.engine_mut().flush();
    eventually(SOON, "all nodes hold it", || fleet.iter().all(|it| it.get("answered").is_some()));
    fleet.iter().for_each(Node::stop);
    locks.engine_mut().acquire("silent", options, 2).expect("there is room");
    locks.engine_mut().flush();
    let start = Instant::now();
    locks.turn(Some(2 * LOST)).expect("the ring works");
    assert!(start.elapsed() < LOST, "a wake-up was lost");
    assert!(locks.engine_mut().poll_completion().is_some());
    fleet.iter().for_each(Node::cont);
}

/// Each node gets more than its socket takes at once.
#[test]
fn a_socket_that_is_full_gets_the_rest_later() {
    let fleet = Fleet::start(3);
    let mut engine = engine(&fleet);
    if !on_ring(&engine.socket_driver()) {
        return;
    }
    pairs(&mut engine, 1);
    // No node reads: the sockets fill up.
    fleet.iter().for_each(Node::stop);
    let count = 30_000;
    for data in 0..count {
        let key = format!("{data}{}", "x".repeat(200));
        engine.engine_mut().acquire(&key, LockOptions::once(HOUR), data).expect("there is room");
        if data % 500 == 0 {
            engine.turn(Some(Duration::ZERO)).expect("the ring works");
        }
    }
    fleet.iter().for_each(Node::cont);
    let (mut held, start) = (Vec::new(), Instant::now());
    while held.len() < count as usize {
        assert!(start.elapsed() < 3 * LOST, "{} of {count} are held", held.len());
        engine.turn(Some(SECOND)).expect("the ring works");
        while let Some(done) = engine.engine_mut().poll_completion() {
            match done.result.expect("a free key, and healthy nodes") {
                Outcome::Acquired(lock) => held.push(lock),
                other => panic!("{other:?}"),
            }
        }
    }
    for lock in held {
        engine.engine_mut().release(lock, 0);
    }
    while engine.engine().coordinator().open_ops() > 0
        || engine.engine().coordinator().open_records() > 0
    {
        assert!(start.elapsed() < 6 * LOST, "the releases are over");
        engine.turn(Some(SECOND)).expect("the ring works");
        while engine.engine_mut().poll_completion().is_some() {}
    }
    assert_eq!(engine.socket_driver(), SocketDriver::IoUring);
    fleet.wait_empty();
}

/// The same error as in a container whose profile does not allow io_uring.
#[test]
fn where_the_kernel_refuses_a_ring_epoll_is_used_and_the_reason_is_there() {
    let fleet = Fleet::start(3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            forbid(libc::SYS_io_uring_setup);
            let mut locks = engine(&fleet);
            let SocketDriver::Poller { reason } = locks.socket_driver() else { panic!("a ring") };
            assert!(reason.contains("Operation not permitted"), "{reason}");
            assert!(reason.contains("; Linux 6.1 or newer is needed"), "{reason}");
            pairs(&mut locks, 100);
        });
    });
    fleet.wait_empty();
}

#[test]
fn a_ring_that_fails_leaves_its_connections_to_epoll() {
    let fleet = Fleet::start(3);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut locks = engine(&fleet);
            if !on_ring(&locks.socket_driver()) {
                return;
            }
            pairs(&mut locks, 100);
            let connections = locks.engine().stats().nodes[0].connections;
            forbid(libc::SYS_io_uring_enter);
            locks.turn(Some(Duration::ZERO)).expect("epoll works");
            pairs(&mut locks, 100);
            let SocketDriver::Poller { reason } = locks.socket_driver() else { panic!("a ring") };
            assert!(reason.contains("the ring failed (Operation not permitted"), "{reason}");
            assert_eq!(locks.engine().stats().nodes[0].connections, connections);
        });
    });
    fleet.wait_empty();
}

/// As in `forked`: the fork is made in a process without other threads.
#[test]
fn a_child_leaves_the_ring_to_its_parent() {
    if let Some(urls) = again::nodes() {
        return the_parent(UringEngine::new(config(urls)).expect("a good configuration"));
    }
    let fleet = Fleet::start(3);
    again::run(module_path!(), "a_child_leaves_the_ring_to_its_parent", &fleet.urls());
    fleet.wait_empty();
}

fn the_parent(mut locks: UringEngine) {
    pairs(&mut locks, 100);
    locks.engine_mut().acquire("asked before", LockOptions::once(TTL), 1).expect("there is room");
    let connections = locks.engine().stats().nodes[0].connections;
    // SAFETY: this process runs one test and has no other thread that could hold a lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        locks.turn(Some(SECOND)).expect("it does nothing");
        let done = locks.engine_mut().poll_completion().expect("it is over");
        assert_eq!(done.result, Err(Error::Closed(ClosedReason::Forked)));
        drop(locks);
        // SAFETY: _exit ends the child at once; only the parent reports the result of the test.
        unsafe { libc::_exit(0) }
    }
    let mut status = 0;
    // SAFETY: waitpid waits for the child that was just made, and writes one number.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "the child failed");
    let start = Instant::now();
    let done = loop {
        assert!(start.elapsed() < LOST, "it is over");
        locks.turn(Some(SECOND)).expect("the ring works");
        if let Some(done) = locks.engine_mut().poll_completion() {
            break done;
        }
    };
    let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{done:?}") };
    locks.engine_mut().release(lock, 2);
    while locks.engine_mut().poll_completion().is_none() {
        assert!(start.elapsed() < LOST, "it is released");
        locks.turn(Some(SECOND)).expect("the ring works");
    }
    pairs(&mut locks, 100);
    assert_eq!(locks.engine().stats().nodes[0].connections, connections);
}

/// From now on this system call fails on this thread.
fn forbid(call: libc::c_long) {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let end = (libc::BPF_RET | libc::BPF_K) as u16;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(load, 0, 0, 0),
        step(equal, 0, 1, call as u32),
        step(end, 0, 0, refuse),
        step(end, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls concern this thread only. The second reads `program` and the filter that
    // it points to, which live until it returns.
    let (first, second) = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        )
    };
    assert_eq!((first, second), (0, 0), "{}", std::io::Error::last_os_error());
}
