//! Chaos: real servers, real client processes and real faults, with an independent checker.
//!
//! There are two groups of servers. The *volatile* group has five servers without persistence. They
//! restart empty, one of them or several together, and the clients rely on the restart guard. The
//! *durable* group has three servers with `--appendonly yes --appendfsync always`. They restart
//! with all that they acknowledged, and the clients declare that (`RestartGuard::Persistent`).
//!
//! The clients are blocking clients, shared clients with three threads, `redlatch exec`, and a
//! client of another library (`plain.rs`). That one has no quarantine, so after an empty restart it
//! could take a key that another client holds. So it uses only the durable group.
//!
//! The faults (`faults.rs`): servers are stopped, killed and restarted. Clients are killed, and
//! stopped, often past their ttl. `redlatch exec` is stopped and killed without its CMD. The
//! connections of some clients go through proxies that delay, hold and cut them. There is no packet
//! loss below TCP, and no clock is set: `tests/faults` tests these two.
//!
//! Each holder writes into shared memory when it begins to use a lock, the deadline that the
//! library reported, and when it ends its use. `checker.rs` reads only these records. After each
//! round of faults there is a quiet time, in which every client and every key has to progress.
//!
//! `lists.rs` has a run of its own, in which the list of masters is changed.
//!
//! `CHAOS_SECS` sets how long the faults last, `CHAOS_SEED` which faults are drawn. The clients are
//! processes, so a seed repeats the faults and not the run. `CHAOS_GUARD=off` turns the restart
//! guard off, and then the test has to fail.
//!
//! The hazard is a process that outlives the test. Each worker leads a process group, which is
//! killed when its handle is dropped; the kernel kills a worker when the test itself is killed.

#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, on a real clock")]

mod checker;
mod faults;
mod keepers;
mod lists;
mod plain;
mod sheet;
mod stages;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod worker;
mod workers;
mod wrapper;

use std::path::Path;
use std::time::{Duration, Instant};

use checker::Summary;
use faults::Faults;
use redlatch::clock;
use sheet::Count;
use support::{Dice, Fleet, Folder, millis, number};
use worker::Errand;
use workers::Workers;

/// The longest ttl of all clients. It is short because the quarantine lasts as long.
const MAX_TTL: Duration = millis(2000);

const NODE_TIMEOUT: Duration = millis(100);

const VOLATILE: std::ops::Range<usize> = 0..5;
const DURABLE: std::ops::Range<usize> = 5..8;

/// The keys of the volatile and of the durable group. The last key of each is held for a long time.
const VOLATILE_KEYS: std::ops::Range<u64> = 0..6;
const DURABLE_KEYS: std::ops::Range<u64> = 6..10;

/// How long the faults last between two quiet times.
const ROUND: Duration = Duration::from_secs(40);

/// How long a client may take to progress in a quiet time. It is long because a quarantine of the
/// volatile servers may just have begun.
const QUIET: Duration = Duration::from_secs(40);

/// How long the faults last, in seconds, if `CHAOS_SECS` is not set.
const USUALLY: u64 = 35;

fn key_name(key: u64) -> String {
    format!("chaos:{key}")
}

/// The command line that starts this test binary again.
fn this_test() -> Vec<String> {
    let program = std::env::current_exe().expect("a test binary has a path");
    let program = program.into_os_string().into_string().expect("the path is text");
    let name = "no_two_holders_of_one_key_and_everyone_progresses";
    vec![program, "--exact".into(), name.into(), "--test-threads=1".into(), "--nocapture".into()]
}

fn without_guard() -> bool {
    std::env::var("CHAOS_GUARD").is_ok_and(|guard| guard == "off")
}

/// A folder in shared memory, if the system has that.
fn folder() -> Folder {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { Folder::under(shared) } else { Folder::new() }
}

/// Starts the servers of both groups. The append-only files are in the directory in shared memory,
/// because a killed process loses nothing that it has written to a file, on any file system.
fn start_servers(folder: &Path) -> Fleet {
    Fleet::each(DURABLE.end, |node, _| {
        if !DURABLE.contains(&node) {
            return Vec::new();
        }
        let directory = folder.join(format!("node-{node}"));
        std::fs::create_dir(&directory).expect("shared memory can be written");
        let directory = directory.display().to_string();
        // The limit is small, so that the files are rewritten while faults happen.
        let rewrite = ["--auto-aof-rewrite-min-size", "4mb"];
        let arguments = ["--appendonly", "yes", "--appendfsync", "always", "--dir", &directory];
        arguments.into_iter().chain(rewrite).map(str::to_owned).collect()
    })
}

#[test]
fn no_two_holders_of_one_key_and_everyone_progresses() {
    if wrapper::command_of_this_process().is_some() {
        return;
    }
    if let Some(errand) = Errand::of_this_process() {
        errand.run();
    }
    let seconds = number("CHAOS_SECS").unwrap_or(USUALLY);
    let seed = number("CHAOS_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("chaos: CHAOS_SECS={seconds} CHAOS_SEED={seed}");
    let mut dice = Dice::new(seed);
    let folder = folder();
    let fleet = start_servers(&folder);
    let workers = Workers::start(&fleet, &folder, dice.others());
    let mut run = Run { faults: Faults::new(&fleet, workers, dice), start: Instant::now() };
    let mut left = Duration::from_secs(seconds);
    run.quiet();
    while !left.is_zero() {
        let round = left.min(ROUND);
        run.round(round);
        left -= round;
        run.quiet();
    }
    run.faults.workers.kill_all();
    let summary = run.check();
    report(&summary, &run.faults, run.start.elapsed());
    assert!(without_guard() || summary.total() >= seconds * 20, "too few holds to prove anything");
}

/// A run of the test.
struct Run<'a> {
    faults: Faults<'a>,
    start: Instant,
}

impl Run<'_> {
    /// Lets faults begin and end for this time, and checks the sheets now and then.
    fn round(&mut self, length: Duration) {
        let start = Instant::now();
        let mut checked = Instant::now();
        let mut pause = Duration::from_secs(2);
        while start.elapsed() < length {
            self.faults.turn();
            std::thread::sleep(millis(10));
            if checked.elapsed() >= pause {
                let before = Instant::now();
                self.check();
                // A check reads all records, of which a long run has many, so the pause grows with
                // its duration.
                pause = pause.max(20 * before.elapsed());
                checked = Instant::now();
            }
        }
        self.faults.end_all();
    }

    /// Waits, without faults, until every client and every key has progressed.
    fn quiet(&mut self) {
        let start = (Instant::now(), clock::now().as_nanos());
        loop {
            let summary = self.check();
            let workers = self.faults.workers.names().into_iter().filter(|name| {
                summary.last_of_worker.get(name).is_none_or(|&last| last <= start.1)
            });
            let keys = VOLATILE_KEYS
                .chain(DURABLE_KEYS)
                .filter(|key| summary.last_of_key.get(key).is_none_or(|&last| last <= start.1));
            let waiting: Vec<String> = workers.chain(keys.map(key_name)).collect();
            if waiting.is_empty() {
                break;
            }
            assert!(
                start.0.elapsed() < QUIET,
                "no progress in {QUIET:?} without faults: {waiting:?}"
            );
            std::thread::sleep(millis(250));
        }
        let (took, summary) = (start.0.elapsed(), self.check());
        let seconds = self.start.elapsed().as_secs_f64();
        println!("{seconds:7.1} s: {} holds; quiet for {took:.1?}", summary.total());
        self.faults.longest_quiet = self.faults.longest_quiet.max(took);
    }

    #[track_caller]
    fn check(&self) -> Summary {
        self.faults.workers.look_for_ended();
        let summary = checker::check(self.faults.workers.sources());
        if !summary.overlaps.is_empty() {
            let seconds = self.start.elapsed().as_secs_f64();
            report(&summary, &self.faults, self.start.elapsed());
            println!("{}", self.faults.last_lines());
            panic!("two holders, seen after {seconds:.1} s:\n{}", summary.overlaps.join("\n"));
        }
        summary
    }
}

fn report(summary: &Summary, faults: &Faults, took: Duration) {
    let total = summary.total();
    println!(
        "{total} holds in {took:.1?}, {:.1} a second; the longest {:.0} ms; {} pairs overlap; \
         without faults everyone progressed within {:.1?}",
        total as f64 / took.as_secs_f64(),
        summary.longest as f64 / 1e6,
        summary.overlaps.len(),
        faults.longest_quiet,
    );
    counts(summary);
    println!("faults:");
    for (name, count) in &faults.counts {
        println!("  {name:<40}{count:>8}");
    }
}

/// Prints what happened, by kind of holder.
fn counts(summary: &Summary) {
    let kinds: Vec<&str> = summary.holds.keys().copied().collect();
    let row = |name: &str, cells: Vec<u64>| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>14}")).collect();
        println!("  {name:<16}{cells}");
    };
    let header: String = kinds.iter().map(|kind| format!("{kind:>14}")).collect();
    println!("  {:<16}{header}", "");
    row("holds", kinds.iter().map(|kind| summary.holds[kind]).collect());
    for what in Count::ALL {
        row(&format!("{what:?}"), kinds.iter().map(|kind| summary.count(kind, what)).collect());
    }
}
