//! The doors on io_uring: each takes and gives back locks, a refusal leads to epoll, and a client
//! may change its thread. Most other tests run on this driver, too, if `REDLATCH_TEST_IO_URING` is
//! set. Where the kernel has no io_uring, these tests show only that.
#![expect(unsafe_code, reason = "a thread forbids itself the system call")]

use std::cell::RefCell;

use super::event_loops::LOOPS;
use super::*;
use redlatch::{Engine, FdEngine, LockOptions, Outcome, SharedClient, SocketDriver, UringEngine};

/// Whether the driver is io_uring. If not, it says so, and the reason is the kernel's.
#[track_caller]
fn on_ring(driver: &SocketDriver) -> bool {
    if let SocketDriver::Poller { reason } = driver {
        assert!(reason.contains("the kernel refused a ring"), "{reason}");
        println!("{reason}");
    }
    *driver == SocketDriver::IoUring
}

/// Takes and releases `pairs` locks, all of them in flight at once.
#[track_caller]
fn pairs(
    pairs: usize,
    mut act: impl FnMut(&mut dyn FnMut(&mut Engine)),
    mut take: impl FnMut(&mut Vec<redlatch::Completion>),
) {
    act(&mut |engine| {
        for data in 0..pairs {
            let key = format!("ring:{data}");
            engine.acquire(&key, LockOptions::once(TTL), data as u64).expect("there is room");
        }
    });
    let (mut open, mut done) = (pairs, Vec::new());
    let start = Instant::now();
    while open > 0 {
        assert!(start.elapsed() < 2 * LOST, "{open} of {pairs} are open");
        take(&mut done);
        for completion in done.drain(..) {
            match completion.result.expect("a free key, and healthy nodes") {
                Outcome::Acquired(lock) => {
                    let mut lock = Some(lock);
                    act(&mut |engine| {
                        let lock = lock.take().expect("it runs once");
                        engine.release(lock, completion.data);
                    });
                }
                Outcome::Released(_) => open -= 1,
                other => panic!("{other:?}"),
            }
        }
    }
}

fn uring_pairs(engine: &mut UringEngine, count: usize) {
    let engine = RefCell::new(engine);
    pairs(
        count,
        |act| act(engine.borrow_mut().engine_mut()),
        |done| {
            let mut engine = engine.borrow_mut();
            engine.turn(Some(SECOND)).expect("the ring works");
            done.extend(std::iter::from_fn(|| engine.engine_mut().poll_completion()));
        },
    );
}

#[test]
fn every_door_takes_and_gives_back_locks_on_io_uring() {
    let fleet = Fleet::start(5);
    let config = || config(fleet.urls()).io_uring(true);

    let client = client(config());
    if !on_ring(&client.socket_driver()) {
        return;
    }
    for _ in 0..200 {
        client.try_lock("a", TTL).expect("a free key").release().expect("it is held");
    }
    drop(client);

    let shared = SharedClient::connect_blocking(config()).expect("a good configuration");
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                for _ in 0..200 {
                    let lock = shared.try_lock(thread.to_string(), TTL).wait();
                    lock.expect("a free key").release().wait().expect("it is held");
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("its locks were free"));
    assert_eq!(shared.socket_driver(), Ok(SocketDriver::IoUring));
    drop(shared);

    for make in LOOPS {
        let mut embedded = FdEngine::new(config()).expect("a good configuration");
        let outer = RefCell::new(make(&mut embedded));
        let embedded = RefCell::new(embedded);
        pairs(
            1_000,
            |act| act(&mut embedded.borrow_mut().batch()),
            |done| done.push(outer.borrow_mut().completion(&mut embedded.borrow_mut())),
        );
        assert_eq!(embedded.borrow().engine().socket_driver(), SocketDriver::IoUring);
    }

    let mut engine = UringEngine::new(config()).expect("a good configuration");
    uring_pairs(&mut engine, 3_000);
    assert_eq!(engine.engine().socket_driver(), SocketDriver::IoUring);
    drop(engine);
    fleet.wait_empty();
}

/// Each node gets more than its socket takes at once.
#[test]
fn a_socket_that_is_full_gets_the_rest_later() {
    let fleet = Fleet::start(3);
    let mut engine = UringEngine::new(config(fleet.urls())).expect("a good configuration");
    uring_pairs(&mut engine, 1);
    if !on_ring(&engine.engine().socket_driver()) {
        return;
    }
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
    assert_eq!(engine.engine().socket_driver(), SocketDriver::IoUring);
    fleet.wait_empty();
}

/// The first thread ends, and with it, in the kernel, every operation that it began.
#[test]
fn a_client_that_changes_its_thread_takes_its_connections_along() {
    let fleet = Fleet::start(3);
    let mut client = client(config(fleet.urls()).io_uring(true));
    if !on_ring(&client.socket_driver()) {
        return;
    }
    for turn in 0..12 {
        let thread = std::thread::spawn(move || {
            let guard = client.try_lock("a", TTL).expect("a free key");
            drop(guard);
            for _ in 0..20 {
                client.try_lock("b", TTL).expect("a free key").release().expect("it is held");
            }
            client
        });
        client = thread.join().expect("the keys are free");
        let driver = client.socket_driver();
        if turn < 7 {
            assert_eq!(driver, SocketDriver::IoUring);
        } else {
            let SocketDriver::Poller { reason } = driver else { panic!("still a new ring") };
            assert!(reason.contains("changed its thread 8 times"), "{reason}");
        }
    }
    drop(client);
    fleet.wait_empty();
}

/// The same error as in a container whose profile does not allow io_uring.
#[test]
fn where_the_kernel_refuses_it_epoll_is_used_and_the_reason_is_there() {
    let fleet = Fleet::start(3);
    let urls = fleet.urls();
    let thread = std::thread::spawn(move || {
        forbid_io_uring();
        let config = || config(&urls).io_uring(true);
        let client = client(config());
        client.try_lock("a", TTL).expect("a free key").release().expect("it is held");
        let SocketDriver::Poller { reason } = client.socket_driver() else { panic!("a ring") };
        assert!(reason.contains("Operation not permitted"), "{reason}");
        assert!(reason.contains("; Linux 6.1 or newer is needed"), "{reason}");
        let mut engine = UringEngine::new(config()).expect("a good configuration");
        uring_pairs(&mut engine, 100);
        assert!(matches!(engine.engine().socket_driver(), SocketDriver::Poller { .. }));
        // The seccomp filter holds for the driver's thread, too, because threads inherit it.
        let shared = SharedClient::connect_blocking(config()).expect("a good configuration");
        let lock = shared.try_lock("b", TTL).wait().expect("a free key");
        lock.release().wait().expect("it is held");
        let driver = shared.socket_driver().expect("it is open");
        assert!(matches!(driver, SocketDriver::Poller { .. }), "{driver:?}");
    });
    thread.join().expect("epoll is enough");
    fleet.wait_empty();
}

/// From now on `io_uring_setup` fails on this thread and on those that it starts.
fn forbid_io_uring() {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let end = (libc::BPF_RET | libc::BPF_K) as u16;
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(load, 0, 0, 0),
        step(equal, 0, 1, libc::SYS_io_uring_setup as u32),
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
