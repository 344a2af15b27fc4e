//! Fencing numbers on real servers: a random minority is stopped or killed again and again, nodes
//! come back empty, and clients of other libraries take the same lock in between.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::support::Dice;
use redlatch::proto::fencing::counter_key;
use redlatch::{ConfigError, Error, LockOptions};

/// Short, so that a node that forgot its counters counts again while a test runs.
const MAX_TTL: Duration = SECOND;

const KEY: &str = "fenced";

/// How many clients ask for the lock at the same time.
const CLIENTS: usize = 16;

fn guarded(fleet: &Fleet) -> Config {
    let config = config(fleet.urls()).restart_guard(RestartGuard::On).max_ttl(MAX_TTL);
    config.node_timeout(millis(100))
}

fn fenced() -> LockOptions {
    LockOptions::new(millis(500)).wait(20 * SECOND).fenced()
}

/// What the holders did, in the order in which they held the lock.
#[derive(Default)]
struct Journal {
    fences: Mutex<Vec<u64>>,
    plain: AtomicU64,
    is_over: AtomicBool,
}

impl Journal {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

/// Takes the lock with a number again and again, and notes the number while it holds the lock.
fn take_fenced(fleet: &Fleet, journal: &Journal) {
    let client = client(guarded(fleet));
    while !journal.is_over() {
        let Ok(guard) = client.lock(KEY, fenced()) else { continue };
        let mut fences = journal.fences.lock().expect("no holder panics");
        // A holder that was kept from running may be late: its number is in nobody's order.
        if !guard.remaining().is_zero() {
            fences.push(guard.fence().expect("it asked for one"));
        }
        drop(fences);
        let _ = guard.release();
    }
}

/// Takes the lock as a client of another library would: `SET NX PX` on each node in turn.
fn take_plain(fleet: &Fleet, journal: &Journal) {
    let mut dice = Dice::new(77);
    while !journal.is_over() {
        let token = format!("plain-{}", dice.any());
        let set = ["SET", KEY, &token, "NX", "PX", "500"];
        let granted = fleet.iter().filter(|node| {
            node.is_running() && node.try_command(&set).is_ok_and(|reply| reply.is_ok())
        });
        if granted.count() > fleet.len() / 2 {
            journal.plain.fetch_add(1, Ordering::Relaxed);
        }
        let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                      return redis.call('DEL', KEYS[1]) end return 0";
        for node in fleet.iter() {
            let _ = node.try_command(&["EVAL", script, "1", KEY, &token]);
        }
        std::thread::sleep(millis(dice.below(20)));
    }
}

/// Stops one or two nodes of five, or kills one, for a moment; every few seconds a node comes back
/// empty. Only one at a time: otherwise a majority forgets within one `max_ttl`.
fn trouble(fleet: &Fleet, rounds: u64) -> u64 {
    let (mut dice, mut restarts) = (Dice::new(5), 0);
    let mut restarted = Instant::now();
    for _ in 0..rounds {
        let first = dice.place(fleet.len());
        let second = (first + 1 + dice.place(fleet.len() - 1)) % fleet.len();
        if restarted.elapsed() > 3 * MAX_TTL {
            fleet[first].restart();
            (restarted, restarts) = (Instant::now(), restarts + 1);
        } else {
            fleet[first].stop();
            fleet[second].stop();
            std::thread::sleep(millis(50 + dice.below(150)));
            fleet[first].cont();
            fleet[second].cont();
        }
        std::thread::sleep(millis(dice.below(100)));
    }
    restarts
}

#[test]
fn fences_grow_in_the_order_of_holds_through_faults_and_other_libraries() {
    let fleet = Fleet::start(5);
    let journal = Journal::default();
    let restarts = std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| take_fenced(&fleet, &journal));
        }
        scope.spawn(|| take_plain(&fleet, &journal));
        // Until the quarantine of nodes that were just started is over.
        eventually(20 * SECOND, "the lock is taken", || {
            !journal.fences.lock().expect("no holder panics").is_empty()
        });
        let restarts = trouble(&fleet, 60);
        journal.is_over.store(true, Ordering::Relaxed);
        restarts
    });
    let fences = journal.fences.into_inner().expect("no holder panics");
    let plain = journal.plain.into_inner();
    println!("{} fenced holds, {plain} plain holds, {restarts} restarts", fences.len());
    let wrong: Vec<_> = fences.windows(2).filter(|pair| pair[1] <= pair[0]).collect();
    assert!(wrong.is_empty(), "{} of {} pairs: {wrong:?}", wrong.len(), fences.len());
    assert!(fences.len() > 500 && plain > 0 && restarts > 0);
}

#[test]
fn fence_goes_on_growing_when_every_node_has_forgotten_its_counter() {
    let fleet = Fleet::start(3);
    let client = client(guarded(&fleet));
    let mut before = 0;
    let mut take = |what: &str| {
        let guard = client.lock(KEY, fenced()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let fence = guard.fence().expect("it asked for one");
        assert!(fence > before, "{what}: {fence} after {before}");
        before = fence;
        guard.release().expect("it is held");
        fence
    };
    let first = take("at first");
    let counter = counter_key(KEY.as_bytes());
    let stored = fleet.iter().filter(|node| {
        let digits = node.get(&counter).unwrap_or_default();
        String::from_utf8_lossy(&digits).parse() == Ok(first)
    });
    assert!(stored.count() >= 2, "a majority has the number, in plain digits");
    let left = fleet[0].pttl(&counter);
    assert!((9_000..=10_000).contains(&left), "it lives for ten max_ttl: {left} ms");
    assert_eq!(take("the next"), first + 1);
    for node in 0..3 {
        fleet[node].restart();
        take("after a restart without keys");
        drive_until(&client, 5 * SECOND, "the quarantine is over", || {
            client.nodes().iter().all(|state| *state == NodeState::Ready)
        });
        take("and after its quarantine");
    }
}

#[test]
fn fenced_lock_survives_forgotten_scripts_and_heals_its_counter() {
    let fleet = Fleet::start(3);
    let client = client(guarded(&fleet));
    let mut guard = client.lock(KEY, fenced()).unwrap();
    let fence = guard.fence().unwrap();
    let counter = counter_key(KEY.as_bytes());
    for node in fleet.iter() {
        assert!(node.command(&["SCRIPT", "FLUSH"]).is_ok());
    }
    assert_eq!(fleet[0].command(&[&b"DEL"[..], KEY.as_bytes(), &counter]).int(), 2);
    guard.extend(millis(900)).unwrap();
    drive_until(&client, 5 * SECOND, "the lock and its counter are healed", || {
        fleet[0].get(KEY).is_some() && fleet[0].get(&counter).is_some()
    });
    let healed = String::from_utf8(fleet[0].get(&counter).unwrap()).unwrap();
    assert!(healed.parse::<u64>().unwrap() >= fence, "{healed} is below {fence}");
    assert_eq!(guard.fence(), Some(fence), "it stays the same");
    guard.release().unwrap();
    for node in fleet.iter() {
        assert!(node.command(&["SCRIPT", "FLUSH"]).is_ok());
    }
    let next = client.lock(KEY, fenced()).unwrap();
    assert!(next.fence().unwrap() > fence);
}

#[test]
fn fence_is_not_given_where_another_program_uses_the_counter() {
    let fleet = Fleet::start(3);
    let client = client(guarded(&fleet));
    let counter = counter_key(KEY.as_bytes());
    for (node, value) in fleet.iter().zip(["text", "-5", "1e30"]) {
        assert!(node.command(&[&b"SET"[..], &counter, value.as_bytes()]).is_ok());
    }
    let error = client.try_lock(KEY, LockOptions::once(millis(500)).fenced()).unwrap_err();
    assert!(error.to_string().contains("the fencing counter is not a number"), "{error}");
    drive_until(&client, 5 * SECOND, "nothing is left", || {
        fleet.iter().all(|node| node.get(KEY).is_none())
    });
    let values: Vec<Vec<u8>> = fleet.iter().filter_map(|node| node.get(&counter)).collect();
    assert_eq!(values, [&b"text"[..], b"-5", b"1e30"], "they are as they were");
    // A plain lock needs no counter.
    assert_eq!(client.lock(KEY, millis(500)).unwrap().fence(), None);
}

#[test]
fn fence_without_the_restart_guard_is_refused_by_every_door() {
    let fleet = Fleet::start(1);
    let unguarded = || config(fleet.urls());
    let refused = |error: &Error| matches!(error, Error::Config(ConfigError::Fence { .. }));
    let error = client(unguarded()).lock(KEY, fenced()).unwrap_err();
    assert!(refused(&error), "{error}");
    let shared = redlatch::SharedClient::connect(unguarded()).unwrap();
    let error = shared.lock(KEY, fenced()).wait().unwrap_err();
    assert!(refused(&error), "{error}");
}
