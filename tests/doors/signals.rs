//! Signals that interrupt waits in calls of the library: no call ends because of a signal, and none
//! waits longer.
//!
//! The handler is installed without SA_RESTART, so every system call of the thread that gets the
//! signal may come back early. Only that thread gets signals, and the servers are other processes.
#![expect(unsafe_code, reason = "signals go to a thread of the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use event_loops::LOOPS;
use redlatch::{FdEngine, LockOptions, Outcome};

static HEARD: AtomicU64 = AtomicU64::new(0);

extern "C" fn count_signal(_: libc::c_int) {
    HEARD.fetch_add(1, Ordering::Relaxed);
}

/// Runs `what` on a thread that gets signals all the time. Returns how many the thread got.
fn run_interrupted(what: impl FnOnce() + Send) -> u64 {
    // SAFETY: the handler only adds to an atomic number, and nothing else here uses the signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int) = count_signal;
        action.sa_sigaction = handler as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    let before = HEARD.load(Ordering::Relaxed);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (sender, thread) = std::sync::mpsc::channel();
        let worker = scope.spawn(|| {
            // SAFETY: pthread_self only returns the number of this thread.
            sender.send(unsafe { libc::pthread_self() }).expect("the test waits for it");
            drop(sender);
            what();
            over.store(true, Ordering::SeqCst);
            // The other thread signals this one until it clears `over`, so this thread must not end
            // before.
            while over.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        });
        let target = thread.recv().expect("it says its number");
        while !over.load(Ordering::SeqCst) && !worker.is_finished() {
            // SAFETY: the thread waits at its end until `over` is cleared below, so it lives.
            unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
            std::thread::park_timeout(Duration::from_micros(200));
        }
        over.store(false, Ordering::SeqCst);
    });
    HEARD.load(Ordering::Relaxed) - before
}

#[test]
fn signals_end_no_call_of_a_blocking_client() {
    let fleet = Fleet::start(3);
    let urls = fleet.urls();
    let holder = client(config(&urls));
    let heard = run_interrupted(|| {
        // The client's nodes are ready even if signals interrupted its connect.
        let client = client(config(&urls));
        for round in 0..300 {
            let mut guard = client.lock(format!("key:{round}"), TTL).unwrap();
            guard.extend(TTL).unwrap();
            guard.release().unwrap();
        }
        // A wait during which many signals come.
        let start = Instant::now();
        client.drive(millis(200)).unwrap();
        assert!(start.elapsed() >= millis(200), "it came back early: {:?}", start.elapsed());
        let guard = client.lock("a", TTL).unwrap();
        let start = Instant::now();
        let refused = client.lock("a", LockOptions::new(TTL).wait(millis(100))).unwrap_err();
        assert!(start.elapsed() >= millis(90), "{refused}: {:?}", start.elapsed());
        drop(guard);
        assert_eq!(client.close(LOST), 0);
    });
    println!("{heard} signals");
    assert!(heard > 20, "nobody was interrupted");
    drop(holder);
    fleet.wait_empty();
}

#[test]
fn signals_cost_an_engine_behind_a_descriptor_nothing() {
    let fleet = Fleet::start(3);
    let urls = Arc::new(fleet.urls());
    for make in LOOPS {
        let heard = run_interrupted(|| {
            let mut locks = FdEngine::new(config(urls.iter())).unwrap();
            let mut outer = make(&mut locks);
            outer.wait_ready(&mut locks, 3);
            for data in 0..300 {
                locks.batch().acquire("a", LockOptions::once(TTL), data).unwrap();
                let done = outer.completion(&mut locks);
                let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{:?}", done.result) };
                locks.batch().release(lock, data);
                outer.completion(&mut locks);
            }
        });
        println!("{heard} signals");
        assert!(heard > 20, "nobody was interrupted");
    }
    fleet.wait_empty();
}
