//! Two sides run one command under `redlatch exec` (a wrapper), again and again, while wrappers and
//! masters are killed at random. The command itself checks whether another instance of it runs, and
//! must never find one.
//!
//! The check is a file lock, which the kernel releases when the process dies and not before. So the
//! test need not compare two clocks. `REDLATCH_TEST_OVERLAP_RUNS=1000` makes 1000 runs; the default
//! takes a few seconds.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{FlockOperation, flock};

use super::exec::{Desk, exec};
use super::*;

const RUNS: usize = 40;
const NODES: usize = 5;

/// The wrappers' command. Only the shell itself holds the file lock, and not the processes that it
/// starts, because these may outlive a wrapper that is killed.
const CMD: &str = "exec 9>>alone; flock -n 9 || echo \"overlap $REDLATCH_TOKEN\" >> log
    echo \"begin $REDLATCH_TOKEN\" >> log; sleep $WORK 9>&-; echo \"end $REDLATCH_TOKEN\" >> log";

/// The outcomes of one side's wrappers.
#[derive(Debug, Default)]
struct Tally {
    ran: usize,
    killed: usize,
    told: usize,
    lost: usize,
    no_quorum: usize,
}

/// Starts one wrapper after the other until there were enough runs.
fn wrap(fleet: &Fleet, desk: &Desk, seed: u64, begun: &AtomicUsize, runs: usize) -> Tally {
    let (mut dice, mut tally) = (Dice::new(seed), Tally::default());
    while begun.fetch_add(1, Ordering::Relaxed) < runs {
        // The restart guard is on: a master that forgot its keys must not grant.
        let arguments = ["exec", "-t", "1s", "--max-ttl", "1s", "-w", "20s", "key", "--"];
        let mut command = tool(&arguments);
        command.args(["sh", "-c", CMD]).current_dir(desk.path(""));
        command.env("REDLATCH_SERVERS", fleet.urls().join(","));
        // Some runs are so long that the lock can be lost before their end.
        let work = if dice.below(15) == 0 { 1500 } else { dice.below(100) };
        command.env("WORK", format!("{}.{:03}", work / 1000, work % 1000));
        let mut wrapper = Running::start(&mut command);
        let signal = [Signal::KILL, Signal::TERM].get(dice.below(20) as usize).copied();
        if let Some(signal) = signal {
            let (start, length) = (Instant::now(), Duration::from_millis(dice.below(120)));
            eventually(LIMIT, "a random time", || start.elapsed() >= length || wrapper.try_reap());
            if !wrapper.try_reap() {
                wrapper.signal(signal);
            }
        }
        let ended = wrapper.end(2 * LIMIT);
        match ended.code() {
            0 => tally.ran += 1,
            137 => tally.killed += 1,
            143 => tally.told += 1,
            124 => tally.lost += 1,
            69 | 75 => tally.no_quorum += 1,
            _ => panic!("{ended:?}"),
        }
    }
    tally
}

/// Stops, continues, kills and restarts masters, and sometimes stops a majority. Kills only one
/// master at a time, because Redlock is not safe if several masters lose their keys.
fn disturb(fleet: &Fleet, seed: u64, over: &AtomicBool) -> usize {
    let mut dice = Dice::new(seed);
    let mut disturbances = 0;
    let mut last_restart = Instant::now();
    while !over.load(Ordering::Relaxed) {
        let pause = |millis| {
            let start = Instant::now();
            let length = Duration::from_millis(millis);
            eventually(LIMIT, "a pause", || start.elapsed() >= length);
        };
        pause(100 + dice.below(400));
        let first = dice.below(NODES as u64) as usize;
        disturbances += 1;
        match dice.below(8) {
            0 => {
                let stopped = [0, 1, 2].map(|more| &fleet[(first + more) % NODES]);
                stopped.iter().for_each(|node| node.stop());
                pause(dice.below(1500));
                stopped.iter().for_each(|node| node.cont());
            }
            1..4 => {
                fleet[first].stop();
                pause(dice.below(300));
                fleet[first].cont();
            }
            // Restarts a master only some time after the last one, so that the restart guard lets
            // only one master at a time be without its keys.
            _ if last_restart.elapsed() > 2 * SECOND => {
                fleet[first].restart();
                last_restart = Instant::now();
            }
            _ => {}
        }
    }
    disturbances
}

#[test]
fn exec_of_one_command_never_overlaps_whichever_is_killed() {
    let runs = std::env::var("REDLATCH_TEST_OVERLAP_RUNS").ok();
    let runs = runs.map_or(RUNS, |runs| runs.parse().expect("a number"));
    let (fleet, desk) = Desk::with_fleet(NODES);
    let (begun, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (tallies, disturbances) = std::thread::scope(|scope| {
        let disturber = scope.spawn(|| disturb(&fleet, 3, &over));
        let wrappers = [1, 2].map(|seed| {
            scope.spawn({
                let (fleet, desk, begun) = (&fleet, &desk, &begun);
                move || wrap(fleet, desk, seed, begun, runs)
            })
        });
        let tallies = wrappers.map(|wrapper| wrapper.join());
        over.store(true, Ordering::Relaxed);
        (tallies, disturber.join().expect("the masters can be disturbed"))
    });
    let tallies = tallies.map(|tally| tally.expect("no wrapper ends in an odd way"));
    println!("{runs} runs, {disturbances} disturbances: {tallies:?}");
    let log = desk.lines("log");
    let overlaps: Vec<_> = log.iter().filter(|line| line.starts_with("overlap")).collect();
    assert!(overlaps.is_empty(), "{overlaps:?}");
    let ends = log.iter().filter(|line| line.starts_with("end")).count();
    assert!(ends > runs / 2, "{ends} of {runs} runs came to their end");
    assert_command_finds_another_instance(&fleet, &desk);
}

/// Checks that the command reports an overlap if there is one. Otherwise its log would prove
/// nothing.
fn assert_command_finds_another_instance(fleet: &Fleet, desk: &Desk) {
    let alone = std::fs::File::open(desk.path("alone")).expect("the command made it");
    flock(&alone, FlockOperation::LockExclusive).expect("nobody has it any more");
    let mut command = exec(fleet, desk, &[], CMD);
    run(command.env("WORK", "0")).with_code(0);
    let log = desk.lines("log");
    assert!(log.iter().any(|line| line.starts_with("overlap")));
}
