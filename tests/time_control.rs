//! Advancing the clock instead of sleeping, for clients and in-process masters together.
//!
//! First come tests as a user would write them, one for each behaviour: expiry, renewal, loss,
//! waiting, a frozen minority. Then come tests of which drivers an advance wakes.
//!
//! The hazard is a second test at the same time, because all tests of a process share the clock. So
//! each takes `clock::alone` first.

#![allow(clippy::disallowed_methods, reason = "how long a test really takes is what it is about")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use redlatch::testing::clock;
use redlatch::testing::tcp::Masters;
use redlatch::{
    AutoExtend, Client, Config, Error, LockOptions, LostReason, RestartGuard, SharedClient,
    SharedGuard,
};
use redlatch::{Lock, NodeState, Outcome};

const TTL: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Longer than any driver's turn takes, and shorter than all times by which the tests advance the
/// clock.
const SOON: Duration = Duration::from_secs(8);

/// Keeps the clock to this test, and starts three masters.
fn alone_with_masters() -> (clock::Alone, Masters) {
    (clock::alone(), Masters::start(3).expect("ports of this machine"))
}

fn config(masters: &Masters) -> Config {
    // The guard is off because these masters are new. They granted no lock before.
    Config::new(masters.urls()).expect("good addresses").restart_guard(RestartGuard::Off)
}

/// The configuration of a client that has no timer of its own within an hour, so only the test
/// wakes it.
fn quiet(masters: &Masters) -> Config {
    let quiet = config(masters).node_timeout(HOUR).connect_timeout(HOUR);
    quiet.reset_after(HOUR).probe_interval(HOUR)
}

/// Waits until another thread has done something that needs no timer.
#[track_caller]
fn comes_true(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < SOON, "it does not come: {what}");
        std::thread::yield_now();
    }
}

/// Fails if `act` takes longer than the turn of a woken driver: then only its own timer woke it.
#[track_caller]
fn at_once<T>(act: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = act();
    assert!(start.elapsed() < SOON, "after {:?}: by its own timer", start.elapsed());
    done
}

fn is_lost<T: std::fmt::Debug>(result: Result<T, Error>, why: LostReason) -> bool {
    matches!(result, Err(Error::Lost { reason, .. }) if reason == why)
}

#[test]
fn expiry_ends_the_lock_of_a_holder_that_did_not_run() {
    let (_alone, masters) = alone_with_masters();
    let [first, second] = [0, 1].map(|_| Client::connect(config(&masters)).unwrap());
    let mut guard = first.lock("invoice:42", TTL).unwrap();

    clock::advance(TTL - 11 * SECOND);
    assert!(guard.check().is_ok() && !guard.is_expiring());
    clock::advance(10 * SECOND);
    assert!(guard.check().is_ok() && guard.is_expiring() && guard.remaining() < SECOND);
    let error = second.try_lock("invoice:42", TTL).unwrap_err();
    assert!(error.is_contended(), "{error}");

    clock::advance(SECOND);
    assert!(is_lost(guard.check(), LostReason::Expired) && !guard.is_expiring());
    assert!(is_lost(guard.extend(TTL), LostReason::Expired));
    assert!(is_lost(guard.auto_extend(AutoExtend::at_most(TTL)), LostReason::Expired));
    assert!(is_lost(guard.into_token(), LostReason::Expired));
    let next = second.try_lock("invoice:42", TTL).unwrap();
    assert!(next.check().is_ok());

    // Also the bound of a renewed lock is named before the client's thread has noticed it.
    let shared = SharedClient::connect_blocking(config(&masters)).unwrap();
    let options = LockOptions::new(TTL).auto_extend(AutoExtend::at_most(TTL));
    let guard = shared.lock("bounded", options).wait().unwrap();
    clock::advance(TTL);
    assert!(is_lost(guard.check(), LostReason::MaxHold));
}

/// The driver notices the expiry at any moment beside these calls, so this is tried many times.
#[test]
fn reason_of_an_expiry_is_the_same_before_and_after_the_driver_noticed_it() {
    let (_alone, masters) = alone_with_masters();
    let client = SharedClient::connect_blocking(config(&masters)).unwrap();
    let calls: [fn(SharedGuard) -> bool; 4] = [
        |guard| is_lost(guard.check(), LostReason::Expired),
        |mut guard| is_lost(guard.extend(TTL).wait(), LostReason::Expired),
        |mut guard| is_lost(guard.auto_extend(HOUR), LostReason::Expired),
        |guard| is_lost(guard.into_token(), LostReason::Expired),
    ];
    for round in 0..100 {
        for (number, call) in calls.iter().enumerate() {
            for noticed in [false, true] {
                let guard = client.lock(format!("a{number}"), TTL).wait().expect("it is free");
                clock::advance(2 * TTL);
                if noticed {
                    comes_true("the driver notices it", || guard.deadline().is_none());
                }
                assert!(call(guard), "round {round}, call {number}, noticed: {noticed}");
            }
        }
    }
}

#[test]
fn reason_of_an_expiry_stays_after_the_client_is_closed() {
    let (_alone, masters) = alone_with_masters();
    let client = SharedClient::connect_blocking(config(&masters)).unwrap();
    let [expired, held] = ["a", "b"].map(|key| {
        let ttl = if key == "a" { TTL } else { 2 * TTL };
        client.lock(key, ttl).wait().expect("it is free")
    });
    clock::advance(TTL);
    comes_true("the driver notices it", || expired.deadline().is_none());
    client.close(SECOND).wait();
    assert!(is_lost(expired.check(), LostReason::Expired));
    assert!(is_lost(expired.expiring().wait(), LostReason::Expired));
    assert!(matches!(held.check(), Err(Error::Closed(_))), "the close ended this one");
}

#[test]
fn renewal_keeps_a_lock_for_longer_than_its_ttl() {
    let (_alone, masters) = alone_with_masters();
    let client = SharedClient::connect_blocking(config(&masters)).unwrap();
    let options = LockOptions::new(TTL).auto_extend(HOUR);
    let guard = client.lock("invoice:42", options).wait().unwrap();
    for _ in 0..10 {
        let before = guard.deadline();
        clock::advance(TTL / 3);
        comes_true("its driver renews it", || guard.deadline() > before);
        assert!(guard.check().is_ok() && !guard.is_expiring());
    }
    let held = masters.iter().filter(|master| master.pttl("invoice:42") > 20_000).count();
    assert!(held >= 2, "ten renewals, and {held} masters hold it");
}

#[test]
fn loss_is_reported_when_a_majority_does_not_answer_the_renewals() {
    let (_alone, masters) = alone_with_masters();
    let client = SharedClient::connect_blocking(config(&masters)).unwrap();
    let options = LockOptions::new(TTL).auto_extend(HOUR);
    let guard = client.lock("invoice:42", options).wait().unwrap();
    masters[0].freeze();
    masters[1].freeze();

    clock::advance(TTL * 2 / 3);
    let left = at_once(|| guard.expiring().wait()).unwrap();
    assert!(left <= TTL / 3 && guard.check().is_ok());

    clock::advance(left);
    let error = at_once(|| guard.lost().wait());
    assert!(is_lost(Err::<(), _>(error), LostReason::Expired));
    assert!(is_lost(guard.check(), LostReason::Expired));
}

#[test]
fn waiting_client_gets_the_key_when_the_lock_of_a_dead_holder_expires() {
    let (_alone, masters) = alone_with_masters();
    let [dead, waiter] = [0, 1].map(|_| Client::connect(config(&masters)).unwrap());
    let ttl = 5 * SECOND; // less than the wait of 10 s, which passes, too
    std::mem::forget(dead.lock("invoice:42", ttl).unwrap());

    let wait = move || waiter.lock("invoice:42", TTL).map(|guard| guard.remaining());
    let waits = std::thread::spawn(wait);
    comes_true("it stands in line", || !dead.inspect("invoice:42").unwrap().line().is_empty());
    clock::advance(ttl);
    let left = at_once(|| waits.join()).unwrap().unwrap();
    // The ttl may count from earlier: from when the waiter joined the line.
    assert!(left > TTL - ttl - SECOND, "{left:?}");
}

#[test]
fn frozen_minority_is_suspected_and_delays_nothing() {
    let (_alone, masters) = alone_with_masters();
    let client = Client::connect(config(&masters).node_timeout(10 * SECOND)).unwrap();
    let drive_until = |what: &str, holds: &dyn Fn(&NodeState) -> bool| {
        comes_true(what, || {
            client.drive(Duration::from_millis(1)).unwrap();
            holds(&client.nodes()[2])
        });
    };
    drive_until("it is ready", &|node| matches!(node, NodeState::Ready));
    masters[2].freeze();
    let guard = client.lock("invoice:42", TTL).unwrap();

    clock::advance(11 * SECOND);
    drive_until("it was silent for a node timeout", &|node| !matches!(node, NodeState::Ready));
    assert!(guard.check().is_ok());
    at_once(|| client.lock("invoice:43", TTL)).unwrap().release().unwrap();

    masters[2].thaw();
    // The client asks the node again after a back-off.
    clock::advance(10 * SECOND);
    drive_until("it is ready again", &|node| matches!(node, NodeState::Ready));
    assert!(guard.check().is_ok());
}

/// Its call sleeps until an hour is over.
#[test]
fn advance_wakes_a_blocking_client() {
    let (_alone, masters) = alone_with_masters();
    let client = Client::connect(quiet(&masters)).unwrap();
    client.drive(Duration::from_millis(50)).unwrap();
    let [asleep, awake] = [0, 1].map(|_| Arc::new(AtomicBool::new(false)));
    let flags = [Arc::clone(&asleep), Arc::clone(&awake)];
    // If the client is not woken, its thread still sleeps when the test has failed.
    std::thread::spawn(move || {
        flags[0].store(true, Ordering::SeqCst);
        client.drive(HOUR).unwrap();
        flags[1].store(true, Ordering::SeqCst);
    });
    comes_true("it is about to sleep", || asleep.load(Ordering::SeqCst));
    comes_true("it is awake", || {
        // The thread may have read the clock only after the last advance, so the test advances
        // again.
        clock::advance(HOUR);
        awake.load(Ordering::SeqCst)
    });
}

/// The driver had set its timer before the clock advanced.
#[test]
fn advance_brings_the_timer_of_a_shared_client_forward() {
    let (_alone, masters) = alone_with_masters();
    let client = SharedClient::connect_blocking(quiet(&masters)).unwrap();
    let guard = client.lock("a", 2 * SOON).wait().unwrap();
    let lost = guard.lost();
    comes_true("it sleeps", || client.gauges().unanswered == 0);
    clock::advance(2 * SOON - SECOND);
    assert_eq!(guard.check(), Ok(()));
    let error = at_once(|| lost.wait());
    assert!(is_lost(Err::<(), _>(error), LostReason::Expired));
}

#[cfg(feature = "tokio")]
#[test]
fn advance_wakes_a_task_that_drives() {
    let (_alone, masters) = alone_with_masters();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let client = SharedClient::connect_tokio(quiet(&masters)).await.unwrap();
        let guard = client.lock("a", TTL).await.unwrap();
        let start = Instant::now();
        let advances = std::thread::spawn(move || {
            // After this time the task sleeps.
            while start.elapsed() < SECOND / 10 {
                std::thread::yield_now();
            }
            clock::advance(TTL);
        });
        assert!(is_lost(Err::<(), _>(guard.lost().await), LostReason::Expired));
        assert!(start.elapsed() < SOON);
        advances.join().unwrap();
    });
}

/// A program with its own poller, which sleeps for as long as the engine says.
#[test]
fn advance_wakes_the_poller_of_an_engine() {
    let (_alone, masters) = alone_with_masters();
    let (mut poll, mut events) = (mio::Poll::new().unwrap(), mio::Events::with_capacity(16));
    let mut engine =
        redlatch::Engine::new(quiet(&masters), poll.registry(), mio::Token(0)).unwrap();
    engine.acquire("a", LockOptions::new(TTL).auto_extend(HOUR), 7).unwrap();
    let mut held: Option<(Lock, redlatch::clock::Instant)> = None;
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < SOON, "it slept, and was not woken");
        let timeout = engine.prepare();
        poll.poll(&mut events, timeout).unwrap();
        events.iter().for_each(|event| assert!(engine.handle_event(event)));
        while let Some(done) = engine.poll_completion() {
            let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{done:?}") };
            let first = engine.deadline(&lock).unwrap();
            held = Some((lock, first));
            std::thread::spawn(|| clock::advance(TTL / 3));
        }
        if held.as_ref().is_some_and(|(lock, first)| engine.deadline(lock) > Some(*first)) {
            return;
        }
    }
}

/// Whether the descriptor becomes readable within this real time.
#[cfg(target_os = "linux")]
fn is_readable(locks: &redlatch::FdEngine, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let (tv_sec, tv_nsec) = (limit.as_secs() as i64, limit.subsec_nanos().into());
    let limit = Timespec { tv_sec, tv_nsec };
    poll(&mut [PollFd::new(locks, PollFlags::IN)], Some(&limit)).unwrap() == 1
}

#[cfg(target_os = "linux")]
#[test]
fn advance_makes_an_fd_engine_readable() {
    let (_alone, masters) = alone_with_masters();
    let mut locks = redlatch::FdEngine::new(quiet(&masters)).unwrap();
    locks.batch().acquire("a", LockOptions::new(TTL).auto_extend(HOUR), 7).unwrap();
    let lock = loop {
        assert!(is_readable(&locks, SOON), "it is not granted");
        locks.tick().unwrap();
        if let Some(done) = locks.poll_completion() {
            let Ok(Outcome::Acquired(lock)) = done.result else { panic!("{done:?}") };
            break lock;
        }
    };
    let first = locks.engine().deadline(&lock);
    while is_readable(&locks, SECOND) {
        locks.tick().unwrap();
    }
    clock::advance(TTL / 3);
    while locks.engine().deadline(&lock) == first {
        assert!(is_readable(&locks, SOON), "its renewal is due");
        locks.tick().unwrap();
    }
}

/// Advancing only the masters leaves the clocks of their clients behind.
#[test]
fn advance_of_masters_alone_leaves_a_holder_that_notices_nothing() {
    let (_alone, masters) = alone_with_masters();
    let client = Client::connect(config(&masters)).unwrap();
    let before = redlatch::clock::now();
    let mut guard = client.lock("a", TTL).unwrap();
    masters.advance(TTL);
    assert!(redlatch::clock::now() < before.saturating_add(TTL));
    assert!(guard.check().is_ok());
    assert!(is_lost(guard.extend(TTL), LostReason::Gone));
}

/// With the restart guard on, the client compares the nodes' clocks with its own.
#[test]
fn advance_is_no_jump_of_a_clock_and_ends_a_quarantine() {
    let (_alone, masters) = alone_with_masters();
    let guarded = Config::new(masters.urls()).unwrap().max_ttl(TTL);
    let client = Client::connect(guarded).unwrap();
    let ready = || client.nodes().iter().filter(|it| matches!(it, NodeState::Ready)).count();
    comes_true("they answer", || {
        client.drive(Duration::from_millis(1)).unwrap();
        client.nodes().iter().all(|it| it.is_usable())
    });
    assert_eq!(ready(), 0, "they started a moment ago");
    clock::advance(2 * TTL);
    for _ in 0..20 {
        comes_true("they are trusted", || {
            client.drive(Duration::from_millis(1)).unwrap();
            ready() == 3
        });
        clock::advance(TTL);
    }
}

/// The masters do not answer for a while, and a request is in flight.
#[cfg(target_os = "linux")]
#[test]
fn advance_waits_until_the_masters_have_answered() {
    let (_alone, masters) = alone_with_masters();
    let mut locks = redlatch::FdEngine::new(config(&masters).node_timeout(SECOND)).unwrap();
    while locks.engine().coordinator().ready().len() < 3 {
        assert!(is_readable(&locks, SOON), "they do not answer");
        locks.tick().unwrap();
    }
    let (busy, free) = (&Barrier::new(4), &Barrier::new(4));
    std::thread::scope(|scope| {
        for master in &masters {
            scope.spawn(move || master.with(|_, _| (busy.wait(), free.wait())));
        }
        busy.wait();
        locks.batch().acquire("a", LockOptions::once(TTL), 7).unwrap();
        let advances = scope.spawn(|| clock::advance(5 * SECOND));
        let start = Instant::now();
        while start.elapsed() < SECOND / 5 && !advances.is_finished() {
            std::thread::yield_now();
        }
        let early = advances.is_finished();
        free.wait();
        assert!(!early, "it did not wait for them");
    });
    let done = loop {
        locks.tick().unwrap();
        match locks.poll_completion() {
            Some(done) => break done,
            None => assert!(is_readable(&locks, SOON), "it does not end"),
        }
    };
    assert!(matches!(done.result, Ok(Outcome::Acquired(_))), "{done:?}");
}
