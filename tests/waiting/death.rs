//! A holder that dies without a release: the next waiter has the lock soon after a majority can be
//! free, and never before.

use super::process::Process;
use super::*;

/// How much later than that moment the waiter may have the lock: ten times what is expected.
const AT_ITS_END: Duration = millis(300);

/// How much a node rounds a ttl, and how long the test takes to read it.
const LOOK: Duration = millis(2);

/// The moment, on our clock, at which the key will have expired on a majority by the ttls that the
/// nodes report.
fn free_on_a_majority(fleet: &Fleet) -> u64 {
    let mut ends: Vec<u64> = fleet
        .iter()
        .map(|node| {
            let before = now();
            let left = node.pttl("a");
            before + millis(u64::try_from(left).unwrap_or(0)).as_nanos() as u64
        })
        .collect();
    ends.sort();
    ends[fleet.len() / 2]
}

/// Kills the holder, and checks when the waiter has the lock.
#[track_caller]
fn is_followed(fleet: &Fleet, mut holder: Process, mut waiter: Process, deadline: u64) {
    let timer = PlainTimer::start();
    holder.kill();
    let free = free_on_a_majority(fleet);
    let had = waiter.wait_until_locked();
    assert!(had.have > deadline, "held by two: {had:?}, until {deadline}");
    let earliest = free - LOOK.as_nanos() as u64;
    assert!(had.have >= earliest, "before a majority was free: {had:?}, {free}");
    let late = Duration::from_nanos(had.have.saturating_sub(free));
    println!("the next one has it {late:?} after the earliest moment");
    assert!(late < timer.limit(AT_ITS_END), "{late:?}");
    waiter.release();
    wait_until_nothing_is_left(fleet);
}

#[test]
fn waiter_follows_a_dead_holder_at_its_expiry() {
    for ttl in [300, 700, 1_500] {
        // The test has to read the ttls before the keys expire, so after a stall they are longer.
        despite_stalls(millis(100), |times| {
            let fleet = Fleet::start(5);
            let (mut holder, mut waiter) =
                (Process::start(&fleet.urls()), Process::start(&fleet.urls()));
            let deadline = holder.lock("a", times * millis(ttl)).deadline;
            waiter.ask("a", TTL);
            let_pass(millis(30));
            is_followed(&fleet, holder, waiter, deadline);
        });
    }
}

/// Each renewal makes the ttl wrong that the waiter has seen before.
#[test]
fn waiter_follows_a_dead_holder_with_auto_extend_at_its_expiry() {
    despite_stalls(millis(200), |times| {
        let fleet = Fleet::start(5);
        let (mut holder, mut waiter) =
            (Process::start(&fleet.urls()), Process::start(&fleet.urls()));
        let first = holder.lock("a", times * millis(600));
        holder.keep();
        waiter.ask("a", TTL);
        let_pass(times * millis(1_500));
        assert!(now() > first.deadline, "it was renewed");
        is_followed(&fleet, holder, waiter, first.deadline);
    });
}

/// One of several waiters dies; the others still get the key.
#[test]
fn a_waiter_that_dies_delays_no_other() {
    let fleet = Fleet::start(5);
    let mut holder = Process::start(&fleet.urls());
    let mut waiters: Vec<Process> = (0..4).map(|_| Process::start(&fleet.urls())).collect();
    holder.lock("a", TTL);
    waiters.iter_mut().for_each(|waiter| waiter.ask("a", TTL));
    let_pass(millis(100));
    waiters[1].kill();
    let mut gave_back = holder.release();
    // The process that has the key reports it. Which one comes first is not promised.
    let mut rest: Vec<Process> =
        waiters.into_iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, it)| it).collect();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for mut waiter in rest.drain(..) {
            let tell = tell.clone();
            scope.spawn(move || {
                let had = waiter.wait_until_locked();
                let gave_back = waiter.release();
                tell.send((had.have, gave_back)).expect("it is listened to");
            });
        }
    });
    drop(tell);
    let mut holds: Vec<(u64, u64)> = told.iter().collect();
    holds.sort();
    assert_eq!(holds.len(), 3);
    for (have, next) in holds {
        assert!(have >= gave_back, "held by two");
        assert!(Duration::from_nanos(have - gave_back) < POLLED_BY);
        gave_back = next;
    }
    wait_until_nothing_is_left(&fleet);
}
