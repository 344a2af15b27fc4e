//! Very many threads on one client. No two threads hold one key, every thread has an answer when
//! the client is closed, and nothing but the limit of records bounds the calls.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};

use super::*;
use executor::Task;
use redlatch::proto::{Busy, Limits};
use redlatch::{ClosedReason, Error, LockOptions, SharedGuard};

const THREADS: u32 = 64;
const KEYS: u32 = 1000;

/// The thread that holds each key, as the threads see it.
struct Checker {
    holders: Vec<AtomicU32>,
    held: AtomicU64,
    looked: AtomicU64,
    fleet: Arc<Fleet>,
}

impl Checker {
    fn of(fleet: &Arc<Fleet>) -> Checker {
        let holders = (0..KEYS).map(|_| AtomicU32::new(0)).collect();
        let (held, looked) = (AtomicU64::new(0), AtomicU64::new(0));
        Checker { holders, held, looked, fleet: Arc::clone(fleet) }
    }

    /// Holds the key for a moment, and checks that no other thread believes in it.
    fn hold(&self, key: u32, thread: u32, guard: &SharedGuard, dice: &mut Dice) {
        if guard.check().is_err() {
            return;
        }
        let holder = &self.holders[key as usize];
        let former = holder.swap(thread, Ordering::SeqCst);
        assert_eq!(former, 0, "key {key} is held by {former} and by {thread}");
        self.held.fetch_add(1, Ordering::Relaxed);
        for _ in 0..dice.roll(50) {
            std::thread::yield_now();
        }
        if dice.roll(200) == 0 {
            let tokens = self.fleet.values(&key.to_string());
            let ours = tokens.iter().filter(|it| *it == guard.token().digits()).count();
            // The client may have been closed before this check.
            assert!(ours >= 2 || guard.check().is_err(), "{key}: {tokens:?}");
            self.looked.fetch_add(1, Ordering::Relaxed);
        }
        let former = holder.swap(0, Ordering::SeqCst);
        assert_eq!(former, thread, "key {key} of {thread} was taken by {former}");
    }
}

/// Acquires locks until the client is closed. Returns when the last answer came, and what it was.
fn work(client: &SharedClient, checker: &Checker, thread: u32, mut dice: Dice) -> Error {
    loop {
        // Many threads want the same few keys.
        let key = if dice.roll(3) == 0 { dice.roll(8) } else { dice.roll(KEYS) };
        let mut options = LockOptions::new(TTL).wait(600 * SECOND);
        if dice.roll(4) == 0 {
            options = options.auto_extend(600 * SECOND);
        }
        let mut guard = match client.lock(key.to_string(), options).wait() {
            Ok(guard) => guard,
            Err(error) => return error,
        };
        checker.hold(key, thread, &guard, &mut dice);
        let ended = match dice.roll(3) {
            0 => guard.release().wait().map(|_| ()),
            1 => guard.extend(2 * TTL).wait(),
            _ => Ok(()),
        };
        if let Err(error) = ended {
            return error;
        }
    }
}

#[test]
fn of_64_threads_no_two_hold_a_key_and_all_have_an_answer_when_it_is_closed() {
    let fleet = Arc::new(Fleet::start(3));
    let client = ready::shared(config(&fleet).node_timeout(10 * SECOND));
    let checker = Arc::new(Checker::of(&fleet));
    let kept = LockOptions::new(TTL).auto_extend(600 * SECOND);
    let guards: Vec<_> =
        (0..16).map(|n| client.lock(format!("kept {n}"), kept).wait().unwrap()).collect();
    let mut dice = Dice::of_this_run();
    let (answers, closed_at) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
    let threads: Vec<_> = (1..=THREADS)
        .map(|thread| {
            let (client, checker, dice) = (client.clone(), Arc::clone(&checker), dice.others());
            let answers = Arc::clone(&answers);
            std::thread::spawn(move || {
                let error = work(&client, &checker, thread, dice);
                answers.lock().unwrap().push((Instant::now(), error));
            })
        })
        .collect();
    std::thread::sleep(2 * SECOND);
    assert!(client.gauges().calls > 16, "they are in the middle of it");
    *closed_at.lock().unwrap() = Some(Instant::now());
    let closing = Instant::now();
    assert_eq!(client.close(10 * SECOND).wait(), 0, "what is left");
    let closed_after = closing.elapsed();
    let start = closed_at.lock().unwrap().expect("it was closed");
    in_time("the threads", move || {
        threads.into_iter().for_each(|thread| thread.join().expect("it is alone"));
    });
    let answers = answers.lock().unwrap();
    let slowest = answers.iter().map(|(at, _)| at.saturating_duration_since(start)).max();
    println!(
        "{} locks, {} looked at; the last answer after {:?}, closed after {closed_after:?}",
        checker.held.load(Ordering::Relaxed),
        checker.looked.load(Ordering::Relaxed),
        slowest.expect("there are answers"),
    );
    assert!(slowest.expect("there are answers") < 10 * SECOND);
    assert!(answers.iter().all(|(_, error)| *error == Error::Closed(ClosedReason::Asked)));
    assert!(checker.held.load(Ordering::Relaxed) > 100);
    fleet.wait_empty();
    for guard in guards {
        assert!(guard.remaining().is_zero() && guard.check().is_err());
    }
    assert_eq!(client.gauges(), Gauges::default());
}

/// Threads of one client are kept apart by the client, those of two clients only by the nodes.
#[test]
fn of_the_threads_of_two_clients_no_two_hold_a_key() {
    let fleet = Arc::new(Fleet::start(3));
    let clients = [(); 2].map(|()| {
        let settings = config(&fleet).node_timeout(10 * SECOND);
        ready::shared(settings)
    });
    let checker = Arc::new(Checker::of(&fleet));
    let mut dice = Dice::of_this_run();
    let threads: Vec<_> = (1..=16)
        .map(|thread| {
            let client = clients[thread as usize % 2].clone();
            let (checker, mut dice) = (Arc::clone(&checker), dice.others());
            std::thread::spawn(move || {
                let start = Instant::now();
                while start.elapsed() < 2 * SECOND {
                    let key = dice.roll(4);
                    let wait = LockOptions::new(TTL).wait(600 * SECOND);
                    let guard = client.lock(key.to_string(), wait).wait().expect("it is free");
                    checker.hold(key, thread, &guard, &mut dice);
                }
            })
        })
        .collect();
    in_time("the threads", move || {
        threads.into_iter().for_each(|thread| thread.join().expect("it is alone"));
    });
    println!("{} locks of two clients", checker.held.load(Ordering::Relaxed));
    assert!(checker.held.load(Ordering::Relaxed) > 20, "they were at it");
    fleet.wait_empty();
}

#[test]
fn handles_come_and_go_while_others_wait() {
    let (fleet, client) = fleet_and_client(3);
    let held = client.lock("a", TTL).wait().unwrap();
    let waiters: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            std::thread::spawn(move || {
                let call = client.lock("a", TTL);
                drop(client);
                call.wait().map(|guard| guard.check())
            })
        })
        .collect();
    eventually(10 * SECOND, "they wait", || client.gauges().calls == 8);
    let stop = Arc::new(AtomicBool::new(false));
    let storms: Vec<_> = (0..8)
        .map(|_| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let copies: Vec<_> = (0..10).map(|_| client.clone()).collect();
                    drop(copies[3].lock("a", TTL));
                    drop(Task::new(copies[4].lock("a", TTL)).poll());
                    drop(client.try_lock("a", TTL));
                }
            })
        })
        .collect();
    drop(client);
    std::thread::sleep(millis(200));
    stop.store(true, Ordering::Relaxed);
    storms.into_iter().for_each(|storm| storm.join().unwrap());
    // The last handles belong to the calls and to the guard.
    drop(held);
    in_time("the waiters", move || {
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Ok(Ok(())));
        }
    });
    fleet.wait_empty();
    eventually(10 * SECOND, "no connection of ours is left", || {
        fleet.iter().all(|node| node.client_list().len() <= 1)
    });
}

#[test]
fn client_is_busy_only_at_the_bound_of_its_records() {
    const RECORDS: usize = 100;
    let fleet = Fleet::start(3);
    let limits = Limits::default().records(RECORDS);
    let client = ready::shared(config(&fleet).limits(limits));
    let before = client.gauges();
    let start = Arc::new(Barrier::new(RECORDS + 20));
    let threads: Vec<_> = (0..RECORDS + 20)
        .map(|number| {
            let (client, start) = (client.clone(), Arc::clone(&start));
            std::thread::spawn(move || {
                start.wait();
                client.try_lock(number.to_string(), TTL).wait()
            })
        })
        .collect();
    let results: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let (held, busy): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!((held.len(), busy.len()), (RECORDS, 20));
    assert!(busy.iter().all(|it| matches!(it, Err(Error::Busy(Busy::Records)))), "{busy:?}");
    // A caller that would wait for another lock is refused, too; calls for a held lock are not.
    let key = held[0].as_ref().unwrap().key().to_vec();
    let refused = client.lock(&key, TTL).wait();
    assert!(matches!(refused, Err(Error::Busy(Busy::Records))), "{refused:?}");
    let mut held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
    held[1].extend(2 * TTL).wait().unwrap();
    held[2].auto_extend(TTL).unwrap();
    held.pop().unwrap().release().wait().unwrap();
    eventually(SOON, "there is room for one", || client.gauges().records == RECORDS - 1);
    let one = client.try_lock("one more", TTL).wait().unwrap();
    assert!(matches!(client.try_lock("two", TTL).wait(), Err(Error::Busy(Busy::Records))));
    drop((held, one));
    fleet.wait_empty();
    nothing_is_open(&client, before);
}
