//! Fencing numbers on real servers: a random minority is stopped or killed again and again, nodes
//! come back empty, and clients of other libraries take the same lock in between.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::support::{Dice, again};
use redlatch::proto::counter_key;
use redlatch::{ConfigError, Error, LockOptions};

/// A short `max_ttl`, so that a node that forgot its counters counts again within a test.
const MAX_TTL: Duration = SECOND;

const KEY: &str = "fenced";

/// How many clients request the lock at the same time.
const CLIENTS: usize = 16;

fn guarded(urls: &[String]) -> Config {
    let config = config(urls).restart_guard(RestartGuard::On).max_ttl(MAX_TTL);
    config.node_timeout(millis(100))
}

fn fenced() -> LockOptions {
    LockOptions::new(millis(500)).wait(20 * SECOND).fenced()
}

/// The file in which holders record what they did. Each client is a process and writes one line
/// while it holds the lock, so the lines are in the order of the holds.
struct Journal {
    folder: Folder,
    plain: AtomicU64,
}

/// The environment variable that gives a client's process the path of the journal.
const JOURNAL: &str = "REDLATCH_TEST_JOURNAL";

impl Journal {
    fn new() -> Journal {
        let journal = Journal { folder: Folder::new(), plain: AtomicU64::new(0) };
        std::fs::write(journal.path(), "").expect("a new file");
        journal
    }

    fn path(&self) -> PathBuf {
        self.folder.join("journal")
    }

    /// The file that ends the clients, once it exists.
    fn end(&self) -> PathBuf {
        self.path().with_extension("over")
    }

    fn is_over(&self) -> bool {
        self.end().exists()
    }

    fn fences(&self) -> Vec<u64> {
        self.folder.read("journal").lines().map(|line| line.parse().expect("a number")).collect()
    }
}

/// The process of a client, which is killed at the latest when the test ends.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes the lock with a fencing number again and again, and writes the number while it holds the
/// lock.
fn take_fenced(urls: &[String], path: &Path) {
    let over = path.with_extension("over");
    let mut journal = OpenOptions::new().append(true).open(path).expect("the test has made it");
    let client = client(guarded(urls));
    while !over.exists() {
        let Ok(guard) = client.lock(KEY, fenced()) else { continue };
        let line = format!("{}\n", guard.fence().expect("it asked for one"));
        // A holder that does not run for a while may write its number after the next holder. So it
        // writes only if nearly half of the ttl is left.
        if guard.remaining() > millis(200) {
            journal.write_all(line.as_bytes()).expect("one line is one write");
        }
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

/// Stops one or two nodes of five, or kills one, for a moment. Every few seconds one node comes
/// back empty, and only one: otherwise a majority could forget within one `max_ttl`.
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

/// `REDLATCH_TEST_FENCES=100000` sets the least number of fenced holds. Meanwhile at least three
/// nodes come back empty.
#[test]
fn fences_grow_in_the_order_of_holds_through_faults_and_other_libraries() {
    if let Some(urls) = again::nodes() {
        return take_fenced(&urls, Path::new(&std::env::var_os(JOURNAL).expect("it was set")));
    }
    let wanted: usize = number("REDLATCH_TEST_FENCES").unwrap_or(2_000);
    let fleet = Fleet::start(5);
    let journal = Journal::new();
    let test = "fences_grow_in_the_order_of_holds_through_faults_and_other_libraries";
    let start = || {
        let mut command = again::command(module_path!(), test, &fleet.urls());
        command.env(JOURNAL, journal.path()).stdout(Stdio::null());
        Process(command.spawn().expect("a test binary can be started again"))
    };
    let mut processes: Vec<Process> = (0..CLIENTS).map(|_| start()).collect();
    let (mut restarts, mut rounds) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| take_plain(&fleet, &journal));
        // The nodes are new, so the first lock is granted after their quarantine.
        let is_taken = || !journal.fences().is_empty();
        eventually(60 * SECOND, "the lock is taken", is_taken);
        while journal.fences().len() < wanted || restarts < 3 {
            restarts += trouble(&fleet, 60);
            rounds += 60;
            assert!(rounds < 60_000, "only {} holds", journal.fences().len());
        }
        std::fs::write(journal.end(), "").expect("a new file");
    });
    for process in &mut processes {
        let status = process.0.wait().expect("it is a child");
        assert!(status.success(), "a client panicked");
    }
    let fences = journal.fences();
    let plain = journal.plain.load(Ordering::Relaxed);
    println!(
        "{} fenced holds, {plain} plain holds, {rounds} faults, {restarts} empty",
        fences.len()
    );
    let wrong: Vec<_> = fences.windows(2).filter(|pair| pair[1] <= pair[0]).collect();
    assert!(wrong.is_empty(), "{} of {} pairs: {wrong:?}", wrong.len(), fences.len());
    assert!(plain > 0);
}

/// Clients that contend for one key split the grants, so the counters of the nodes differ. Prints
/// how often that takes a second round trip.
#[test]
fn fence_of_a_contended_key_is_written_back_where_the_votes_differ() {
    let fleet = Fleet::start(5);
    let (urls, holds) = (fleet.urls(), 100);
    let contend = || {
        let client = client(guarded(&urls));
        let mut held = 0;
        while held < holds {
            let Ok(guard) = client.lock(KEY, fenced()) else { continue };
            held += 1;
            let _ = guard.release();
        }
        let stats = client.stats();
        (stats.fenced, stats.written_back)
    };
    for clients in [1, 2, 4, 16] {
        let figures: Vec<(u64, u64)> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients).map(|_| scope.spawn(contend)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no client panics")).collect()
        });
        let fences: u64 = figures.iter().map(|it| it.0).sum();
        let written_back: u64 = figures.iter().map(|it| it.1).sum();
        println!("{clients} clients: {fences} fences, {written_back} written back");
        assert!(fences >= holds * clients && written_back <= fences);
    }
}

#[test]
fn fence_goes_on_growing_when_every_node_has_forgotten_its_counter() {
    despite_stalls(millis(400), |_| fence_goes_on_growing());
}

fn fence_goes_on_growing() {
    let fleet = Fleet::start(3);
    let client = client(guarded(&fleet.urls()));
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
    take("the next");
    for node in 0..3 {
        fleet[node].restart();
        take("after a restart without keys");
        drive_until(&client, SOON, "the quarantine is over", || {
            client.nodes().iter().all(|state| *state == NodeState::Ready)
        });
        take("and after its quarantine");
    }
}

/// A counter has to be deleted `max_ttl` after its start or later. Before that the number may fall,
/// because nothing else on the nodes has it.
#[test]
fn fence_grows_though_counters_were_deleted_max_ttl_after_their_start() {
    let fleet = Fleet::start(3);
    let client = client(guarded(&fleet.urls()));
    let take = || {
        let guard = client.lock(KEY, fenced()).expect("it is free");
        let fence = guard.fence().expect("it asked for one");
        guard.release().expect("it is held");
        fence
    };
    let last = (0..20).map(|_| take()).max().expect("there are some");
    std::thread::sleep(MAX_TTL);
    for node in [0, 1] {
        assert_eq!(fleet[node].command(&["DEL".as_bytes(), &counter_key(KEY.as_bytes())]).int(), 1);
    }
    let next = take();
    assert!(next > last, "{next} after {last}");
}

#[test]
fn fenced_lock_survives_forgotten_scripts_and_heals_its_counter() {
    despite_stalls(millis(150), |_| fenced_lock_heals_its_counter());
}

fn fenced_lock_heals_its_counter() {
    let fleet = Fleet::start(3);
    let client = client(guarded(&fleet.urls()));
    let mut guard = client.lock(KEY, fenced()).unwrap();
    let fence = guard.fence().unwrap();
    let counter = counter_key(KEY.as_bytes());
    fleet.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(fleet[0].command(&[&b"DEL"[..], KEY.as_bytes(), &counter]).int(), 2);
    guard.extend(millis(900)).unwrap();
    drive_until(&client, SOON, "the lock and its counter are healed", || {
        fleet[0].get(KEY).is_some() && fleet[0].get(&counter).is_some()
    });
    let healed = String::from_utf8(fleet[0].get(&counter).unwrap()).unwrap();
    assert!(healed.parse::<u64>().unwrap() >= fence, "{healed} is below {fence}");
    assert_eq!(guard.fence(), Some(fence), "it stays the same");
    guard.release().unwrap();
    fleet.command(&["SCRIPT", "FLUSH"]);
    let next = client.lock(KEY, fenced()).unwrap();
    assert!(next.fence().unwrap() > fence);
}

#[test]
fn fence_is_not_given_where_another_program_uses_the_counter() {
    despite_stalls(millis(40), |_| fence_is_not_given());
}

fn fence_is_not_given() {
    let fleet = Fleet::start(3);
    let client = client(guarded(&fleet.urls()));
    let counter = counter_key(KEY.as_bytes());
    for (node, value) in fleet.iter().zip(["text", "-5", "1e30"]) {
        assert!(node.command(&[&b"SET"[..], &counter, value.as_bytes()]).is_ok());
    }
    let error = client.try_lock(KEY, LockOptions::once(millis(500)).fenced()).unwrap_err();
    assert!(error.to_string().contains("the fencing counter is not a number"), "{error}");
    drive_until(&client, SOON, "nothing is left", || {
        fleet.iter().all(|node| node.get(KEY).is_none())
    });
    let values: Vec<Vec<u8>> = fleet.iter().filter_map(|node| node.get(&counter)).collect();
    assert_eq!(values, [&b"text"[..], b"-5", b"1e30"], "they are as they were");
    // A plain lock needs no counter, so it is granted.
    assert_eq!(client.lock(KEY, millis(500)).unwrap().fence(), None);
}

#[test]
fn fence_without_the_restart_guard_is_refused_by_every_door() {
    let fleet = Fleet::start(1);
    let unguarded = || config(fleet.urls());
    let refused = |error: &Error| matches!(error, Error::Config(ConfigError::Fence { .. }));
    let error = client(unguarded()).lock(KEY, fenced()).unwrap_err();
    assert!(refused(&error), "{error}");
    let shared = redlatch::SharedClient::connect_blocking(unguarded()).unwrap();
    let error = shared.lock(KEY, fenced()).wait().unwrap_err();
    assert!(refused(&error), "{error}");
}
