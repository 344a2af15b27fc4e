//! What a lock costs in system calls, counted by strace: one write and one read for each node and
//! question, the wake-ups, and nothing else.
//!
//! What is counted is one thread of a child, this binary once more, between two marks. The hazard
//! is a count that is right by accident: a child that did less would pass, so the child reports
//! what it did.

#![cfg(all(feature = "net", target_os = "linux"))]
#![allow(clippy::disallowed_methods, reason = "a test waits for real servers, on a real clock")]

#[cfg(feature = "tls")]
#[path = "deploy/papers.rs"]
#[allow(dead_code, reason = "only good certificates are needed here")]
mod papers;
mod support;

#[path = "support/engine_loop.rs"]
mod engine_loop;
/// The least that a program has to do.
#[path = "support/floor.rs"]
mod floor;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redlatch::proto::command::Form;
use redlatch::{Config, LockOptions, Outcome, RestartGuard, SharedClient};

use engine_loop::Loop;
use support::{Fleet, Folder, eventually};

/// `in flight, pairs, url...`, separated by spaces: the orders for the child.
const TOLD: &str = "REDLATCH_TRACED_CHILD";

/// The file with the CA, if the nodes are encrypted.
const TRUSTED: &str = "REDLATCH_TRACED_CHILD_TRUSTS";

/// Set for the child that is the floor.
const FLOOR: &str = "REDLATCH_TRACED_CHILD_IS_FLOOR";

/// Files that do not exist; the child looks for them between the counted calls.
const BEGIN: &str = "/redlatch-mark-begin";
const END: &str = "/redlatch-mark-end";

const NODES: u64 = 5;
/// How many system calls a pair may cost more than the floor's, besides the fork checks: a few for
/// a timer or for an answer that came in two parts, and the noise of what else the machine does.
const MORE_THAN_FLOOR: f64 = 1.0;
const TTL: Duration = Duration::from_secs(10);

#[test]
#[ignore = "needs strace: apt-get install strace"]
fn one_lock_in_flight_costs_a_write_and_a_read_for_each_question() {
    let pairs = 1_000;
    let calls = trace(1, pairs);
    let questions = 2 * NODES * pairs;
    assert_eq!(calls.of(WRITES), questions, "writes in {calls:?}");
    // There are fewer reads if a late answer arrives together with the next one. A few reads return
    // nothing: the client reads before it believes a timer.
    assert!(calls.of(READS) <= questions + pairs / 100, "reads in {calls:?}");
    assert!(calls.of(READS) >= questions / 2, "reads in {calls:?}");
    // There is one wake-up for each answer at most, if all of them arrive one by one.
    assert!(calls.of(WAITS) <= questions + 10, "wake-ups in {calls:?}");
    one_fork_check_for_each_turn(&calls);
    // A client sets its timer once for a near event, such as its next probe.
    let others: u64 = calls.others().iter().map(|(_, count)| **count).sum();
    assert!(others <= pairs / 100, "calls that no lock needs: {:?}", calls.others());
}

/// The floor writes and reads once for each node and turn, and waits once a turn. The engine also
/// looks for a fork once a turn, which the last assertion counts apart: how many turns a pair takes
/// depends on how late the nodes after the majority answer.
#[test]
#[ignore = "needs strace: apt-get install strace"]
fn a_pair_costs_the_system_calls_of_the_floor_and_a_fork_check_a_turn() {
    for (in_flight, pairs) in [(1, 1_000), (64, 6_400), (512, 10_240)] {
        let fleet = Fleet::start(NODES as usize);
        let per_pair = |calls: u64| calls as f64 / pairs as f64;
        let difference = || {
            let floor = trace_as(Some(FLOOR), &fleet.urls(), None, in_flight, pairs);
            let ours = trace_at(&fleet.urls(), None, in_flight, pairs);
            one_fork_check_for_each_turn(&ours);
            let checks = per_pair(ours.of(PROCESS));
            let (ours, floor) = (per_pair(ours.0.values().sum()), per_pair(floor.0.values().sum()));
            println!(
                "{in_flight} in flight: {ours:.2} calls a pair, {checks:.2} of them fork checks; \
                 the floor {floor:.2}"
            );
            ours - checks - floor
        };
        // Other programs on the machine change how many answers a turn reads, so three runs are
        // compared.
        let median = kit::median([difference(), difference(), difference()]);
        assert!(median <= MORE_THAN_FLOOR, "{in_flight} in flight: {median:.2} more");
    }
}

#[test]
#[ignore = "needs strace: apt-get install strace"]
fn many_locks_in_flight_share_their_writes() {
    let pairs = 10_240;
    let calls = trace(512, pairs);
    let questions = 2 * NODES * pairs;
    let turns = calls.of(WAITS);
    assert!(calls.of(WRITES) <= NODES * (turns + 1), "one write a node and turn: {calls:?}");
    assert!(calls.of(READS) <= NODES * (turns + 1), "one read a node and turn: {calls:?}");
    assert!(calls.of(WRITES) <= questions / 10, "{questions} questions: {calls:?}");
    // If a node lags, the tables of its requests still grow: a few system calls for memory.
    let others: u64 = calls.others().iter().map(|(_, count)| **count).sum();
    assert!(others <= pairs / 100, "calls that no lock needs: {:?}", calls.others());
    one_fork_check_for_each_turn(&calls);
}

/// `prepare` looks at the process number once. Completions are handed out without another look.
#[track_caller]
fn one_fork_check_for_each_turn(calls: &Calls) {
    let turns = calls.of(WAITS);
    assert!(calls.of(PROCESS) <= turns + 1, "more fork checks than turns in {calls:?}");
}

/// A thread that waits for a call is in the library from its look to the result. The threads that
/// write look once more, each time that they write.
#[test]
#[ignore = "needs strace: apt-get install strace"]
fn call_that_a_thread_waits_for_looks_for_a_fork_once() {
    let (calls, lines) = calls_of_threads(8, 200);
    let (looks, waits) = (lines("getpid("), lines("epoll_wait("));
    println!("{looks} looks, {calls} calls, {waits} wake-ups of the thread that drives");
    assert!(looks >= calls, "each call looks");
    // The rest is for the start and the end.
    assert!(looks <= calls + waits + 100, "{looks} looks for {calls} calls, {waits} wake-ups");
}

/// A turn of the thread that drives ends many calls, and all their threads sleep at one word.
#[test]
#[ignore = "needs strace: apt-get install strace"]
fn threads_whose_calls_end_in_one_turn_are_woken_by_one_system_call() {
    let (calls, lines) = calls_of_threads(24, 100);
    let (sleeps, wakes) = (lines("FUTEX_WAIT_BITSET"), lines("FUTEX_WAKE_BITSET"));
    println!("{sleeps} sleeps and {wakes} wakes in {calls} calls");
    // A call whose answer comes before its thread sleeps has none.
    assert!(sleeps >= calls / 2, "the threads sleep");
    assert!(wakes * 4 <= calls, "{wakes} wakes in {calls} calls");
    // Only the thread that drives yields, up to three times a turn.
    let (yields, turns) = (lines("sched_yield("), lines("epoll_wait("));
    assert!(yields <= 3 * turns + 10, "{yields} yields in {turns} turns");
}

/// Makes pairs in so many threads of one client. Returns how many calls that took, and a function
/// that counts the lines of strace's output that contain a word.
fn calls_of_threads(threads: usize, pairs: usize) -> (usize, impl Fn(&str) -> usize) {
    let fleet = Fleet::start(NODES as usize);
    let orders = format!("{threads} {pairs} {}", fleet.urls().join(" "));
    let (files, said) = strace("child_process_whose_threads_strace_traces", &orders, &[]);
    assert!(said.contains(&format!("{} pairs", threads * pairs)), "it did its work: {said}");
    let lines = move |word: &str| {
        let count = |file: &String| file.lines().filter(|line| line.contains(word)).count();
        files.iter().map(count).sum::<usize>()
    };
    (2 * threads * pairs, lines)
}

#[test]
#[ignore = "needs strace: the tests above start it"]
fn child_process_whose_threads_strace_traces() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    let [threads, pairs] = [0, 1].map(|index| words[index].parse::<usize>().expect("a number"));
    let config = Config::new(&words[2..]).expect("the urls of the fleet");
    let config = config.restart_guard(RestartGuard::Off).probe_interval(360 * TTL);
    let config = config.node_timeout(Duration::from_secs(5));
    let locks = SharedClient::connect_blocking(config).expect("a client");
    let work = &|number: usize| {
        let key = format!("key:{number}");
        for _ in 0..pairs {
            let guard = locks.lock(&key, TTL).wait().expect("a free key");
            guard.release().wait().expect("it is held");
        }
    };
    std::thread::scope(|scope| {
        (0..threads).for_each(|number| drop(scope.spawn(move || work(number))));
    });
    println!("{} pairs", threads * pairs);
}

/// Encrypted requests need one write for each node and turn, too, and their answers are decrypted
/// in the same number of reads.
#[cfg(feature = "tls")]
#[test]
#[ignore = "needs strace: apt-get install strace"]
fn tls_costs_no_more_system_calls() {
    use support::free_port;

    let (ca, pairs) = (papers::Ca::new(), 1_000);
    let ports: Vec<u16> = (0..NODES).map(|_| free_port()).collect();
    let fleet = Fleet::each(NODES as usize, |index, folder| {
        ca.arguments(folder, ports[index], &ca.paper("127.0.0.1"), "no")
    });
    let urls: Vec<_> = ports.iter().map(|port| format!("rediss://127.0.0.1:{port}")).collect();
    let ca_file = fleet[0].directory().join("ca.pem");
    let calls = trace_at(&urls, Some(&ca_file), 1, pairs);
    let questions = 2 * NODES * pairs;
    assert_eq!(calls.of(WRITES), questions, "writes in {calls:?}");
    assert!(calls.of(READS) <= questions + pairs / 100, "reads in {calls:?}");
    assert!(calls.of(READS) >= questions / 2, "reads in {calls:?}");
}

/// The calls of one thread, by name.
#[derive(Debug)]
struct Calls(BTreeMap<String, u64>);

const WRITES: &[&str] = &["write", "writev", "sendto", "sendmsg"];
const READS: &[&str] = &["read", "readv", "recvfrom", "recvmsg"];
const PROCESS: &[&str] = &["getpid"];
const WAITS: &[&str] = &["epoll_wait", "epoll_pwait", "epoll_pwait2"];

impl Calls {
    /// The calls that strace wrote of a thread, between the marks; `None` for a thread that set
    /// none.
    fn between_marks(trace: &str) -> Option<Calls> {
        let (_, marked) = trace.split_once(BEGIN)?;
        let (marked, _) = marked.split_once(END).expect("the child came to its end");
        let mut calls = BTreeMap::new();
        // The first line is the rest of the first mark's write, and the last line is the beginning
        // of the second mark's.
        let lines: Vec<&str> = marked.lines().collect();
        for line in &lines[1..lines.len() - 1] {
            let name = line.split('(').next().unwrap_or(line);
            *calls.entry(name.to_owned()).or_default() += 1;
        }
        Some(Calls(calls))
    }

    fn of(&self, names: &[&str]) -> u64 {
        names.iter().filter_map(|&name| self.0.get(name)).sum()
    }

    fn others(&self) -> Vec<(&String, &u64)> {
        let known = [WRITES, READS, WAITS, PROCESS].concat();
        self.0.iter().filter(|(name, _)| !known.contains(&name.as_str())).collect()
    }
}

/// Runs the child under strace and counts what it calls.
fn trace(in_flight: usize, pairs: u64) -> Calls {
    let fleet = Fleet::start(NODES as usize);
    trace_at(&fleet.urls(), None, in_flight, pairs)
}

fn trace_at(urls: &[String], ca: Option<&Path>, in_flight: usize, pairs: u64) -> Calls {
    trace_as(None, urls, ca, in_flight, pairs)
}

/// `mark`: a variable that is set for the child.
fn trace_as(
    mark: Option<&str>,
    urls: &[String],
    ca: Option<&Path>,
    in_flight: usize,
    pairs: u64,
) -> Calls {
    let orders = format!("{in_flight} {pairs} {}", urls.join(" "));
    let trusted = ca.map(|ca| (TRUSTED, ca.as_os_str()));
    let floor = mark.map(|mark| (mark, OsStr::new("1")));
    let variables: Vec<_> = trusted.into_iter().chain(floor).collect();
    let (files, said) = strace("child_process_that_strace_traces", &orders, &variables);
    assert!(said.contains(&format!("{pairs} pairs")), "the child did its work: {said}");
    let calls = files.iter().find_map(|file| Calls::between_marks(file));
    let calls = calls.expect("one thread of the child sets the marks");
    println!("{pairs} pairs, {in_flight} in flight: {:?}", calls.0);
    calls
}

/// Runs a test of this binary under strace. Returns what was written of its threads, and what the
/// test said.
fn strace(test: &str, orders: &str, variables: &[(&str, &OsStr)]) -> (Vec<String>, String) {
    let folder = Folder::new();
    let mut strace = Command::new("strace");
    // strace writes one file for each thread, so that no line breaks a line of another thread.
    strace.args(["-ff", "-qq", "-e", "signal=none", "-o"]).arg(folder.join("thread"));
    strace.arg(std::env::current_exe().expect("this binary has a path"));
    strace.args(["--exact", test, "--ignored", "--nocapture"]);
    strace.env(TOLD, orders).envs(variables.iter().copied());
    let output = strace.output().unwrap_or_else(|error| {
        panic!("strace cannot be started ({error}); install it: apt-get install strace")
    });
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    (folder.names().iter().map(|name| folder.read(name)).collect(), said)
}

#[test]
#[ignore = "needs strace: the tests above start it"]
fn child_process_that_strace_traces() {
    let Ok(told) = std::env::var(TOLD) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    let [in_flight, pairs] = [0, 1].map(|index| words[index].parse().expect("a number"));
    if std::env::var_os(FLOOR).is_some() {
        run_floor(&words[2..], in_flight, pairs);
        return;
    }
    let mut locks = Locks::connect(&words[2..], in_flight);
    locks.pairs(2 * in_flight);
    let _ = std::fs::metadata(BEGIN);
    let done = locks.pairs(pairs);
    let _ = std::fs::metadata(END);
    println!("{done} pairs");
}

/// Runs the floor's pairs.
fn run_floor(urls: &[&str], in_flight: usize, pairs: usize) {
    let address = |url: &&str| url.trim_start_matches("redis://").to_owned();
    let addresses: Vec<String> = urls.iter().map(address).collect();
    load_script(urls);
    let quorum = redlatch::majority(addresses.len());
    let mut floor = floor::Floor::connect(&addresses, quorum, "bare", in_flight, Form::Sha);
    floor.run(in_flight, &mut tally::Tally::of(2 * in_flight, in_flight));
    let mut counted = tally::Tally::of(pairs, in_flight);
    let _ = std::fs::metadata(BEGIN);
    floor.run(in_flight, &mut counted);
    let _ = std::fs::metadata(END);
    println!("{} pairs", counted.done);
}

/// An engine's handshake loads the script into every node.
fn load_script(urls: &[&str]) {
    drop(Locks::connect(urls, 0));
}

/// Ends a run of the floor after so many pairs, instead of after a time.
mod tally {
    use std::time::Instant;

    pub struct Tally {
        pub done: usize,
        to_begin: usize,
    }

    impl Tally {
        pub fn of(pairs: usize, in_flight: usize) -> Tally {
            Tally { done: 0, to_begin: pairs - in_flight }
        }

        pub fn acquired(&mut self, _asked: Instant) {}

        pub fn released(&mut self) -> Option<Instant> {
            self.done += 1;
            let more = self.to_begin.checked_sub(1)?;
            self.to_begin = more;
            Some(Instant::now())
        }
    }
}

fn config<A: AsRef<str>>(urls: &[A]) -> Config {
    let config = Config::new(urls).expect("the urls of the fleet");
    let config = config.restart_guard(RestartGuard::Off).probe_interval(360 * TTL);
    // Everything is slow under strace, so the timeouts are long: no node may be found silent.
    let config = config.node_timeout(Duration::from_secs(5));
    #[cfg(feature = "tls")]
    let config = match std::env::var(TRUSTED) {
        Ok(file) => {
            let ca = std::fs::read(file).expect("the test wrote it");
            config.tls(redlatch::Tls::trusting(&ca).expect("a CA"))
        }
        Err(_) => config,
    };
    config
}

/// The engine and the loop of a program that uses it.
struct Locks {
    inner: Loop,
    keys: Vec<String>,
    options: LockOptions,
}

impl Locks {
    fn connect(urls: &[&str], in_flight: usize) -> Locks {
        let keys = (0..in_flight).map(|slot| format!("key:{slot:04}")).collect();
        let options = LockOptions::once(TTL);
        let mut locks = Locks { inner: Loop::new(config(urls)), keys, options };
        eventually(Duration::from_secs(10), "the nodes are ready", || {
            locks.turn();
            locks.inner.engine.coordinator().ready().len() == urls.len()
        });
        locks
    }

    fn turn(&mut self) {
        self.inner.turn_within(TTL);
    }

    fn acquire(&mut self, slot: u64) {
        let asked = self.inner.engine.acquire(&self.keys[slot as usize], self.options, slot);
        asked.expect("there is room");
    }

    /// Runs this many pairs with all keys in flight, up to the last answer of the last one.
    fn pairs(&mut self, count: usize) -> usize {
        let (mut begun, mut done) = (self.keys.len(), 0);
        (0..begun as u64).for_each(|slot| self.acquire(slot));
        while self.inner.engine.coordinator().open_records() > 0 {
            self.turn();
            while let Some(end) = self.inner.engine.poll_completion() {
                match end.result {
                    Ok(Outcome::Acquired(lock)) => {
                        self.inner.engine.release(lock, end.data);
                    }
                    Ok(Outcome::Released(_)) => {
                        done += 1;
                        if begun < count {
                            begun += 1;
                            self.acquire(end.data);
                        }
                    }
                    other => panic!("a free key came to {other:?}"),
                }
            }
        }
        done
    }
}
