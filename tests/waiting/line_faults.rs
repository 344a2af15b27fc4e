//! Faults of waiters in line, on real servers: a successor that is stopped or killed at each of its
//! steps, connections that the nodes end, lines that differ, and lost messages.
//!
//! The steps of a successor take a millisecond or two: it is in line, the key is handed over to it,
//! it reads that, claims the key, and holds it. The tests stop or kill it after a delay that grows
//! by a tenth of a millisecond from trial to trial, and so meet each of these steps.

use super::line::{three, wait_for_line};
use super::process::{Had, Process};
use super::*;
use crate::support::holds::{assert_no_two_holders, holds_in};

/// The ttl of a key that is handed over.
const HAND_OVER: Duration = millis(150);
/// The successor's ttls, in turn. With the first one it has to claim the key; with the second one
/// the hand-over alone mostly gives it the lock.
const TTLS: [Duration; 2] = [millis(900), HAND_OVER];

/// How long after the end of a ttl the next waiter is expected to have the key. These machines are
/// shared, so the limit is ten times as long.
const LATER: Duration = millis(100);

const TRIALS: u32 = 24;
const STEP: Duration = Duration::from_micros(100);

/// The longest time from the end of a hold, or from a fault, to the next grant.
#[derive(Debug, Default)]
struct Gaps {
    trials: usize,
    longest: Duration,
}

impl Gaps {
    fn note(&mut self, from: u64, until: u64, ttl: Duration) {
        let gap = Duration::from_nanos(until.saturating_sub(from));
        assert!(gap < 10 * (ttl + LATER), "the next one has it after {gap:?}");
        self.trials += 1;
        self.longest = self.longest.max(gap);
    }
}

/// The gaps after faults of a successor that did not have the lock yet, and of one that had it.
#[derive(Debug, Default)]
struct Found {
    waiting: Gaps,
    holding: Gaps,
}

impl Found {
    /// `victim`: the lock that the victim had before the fault.
    fn note(&mut self, victim: Option<Had>, fault: u64, next: Had, ttl: Duration) {
        match victim {
            Some(had) => {
                assert!(had.deadline <= next.have, "held by two: {had:?}, {next:?}");
                self.holding.note(had.have.min(fault), next.have, ttl);
            }
            // The successor may have claimed the key before it was stopped, so its whole ttl may
            // have to pass.
            None => self.waiting.note(fault, next.have, ttl),
        }
    }
}

fn start(fleet: &Fleet) -> Process {
    Process::start_with_hand_over(&fleet.urls(), HAND_OVER)
}

/// The first process waits behind another program's key, so its release hands the key over. The
/// others wait in line, the successor with this ttl.
fn stand_in_line(fleet: &Fleet, all: [&mut Process; 3], ttl: Duration) {
    fleet.command(&["SET", "a", "other", "PX", "50"]);
    for (number, process) in all.into_iter().enumerate() {
        process.ask("a", if number == 1 { ttl } else { TTL });
        match number {
            0 => drop(process.wait_until_locked()),
            _ => wait_for_line(fleet, number),
        }
    }
}

#[test]
fn a_successor_that_is_stopped_at_any_step_never_holds_with_the_next_one() {
    let fleet = Fleet::start(5);
    let [mut holder, mut successor, mut next] = [0; 3].map(|_| start(&fleet));
    let mut found = Found::default();
    for trial in 0..TRIALS {
        let ttl = TTLS[trial as usize % TTLS.len()];
        stand_in_line(&fleet, [&mut holder, &mut successor, &mut next], ttl);
        holder.tell("release");
        let_pass(STEP * trial);
        successor.stop();
        let stopped = now();
        holder.released();
        let had = next.wait_until_locked();
        successor.cont();
        let released = next.release();
        let late = successor.wait_until_locked();
        // The successor may have been stopped after the grant and before it reported the grant.
        let before = (late.have < stopped || late.deadline <= had.have).then_some(late);
        assert!(before.is_some() || late.have > released, "held by two: {late:?}, {had:?}");
        found.note(before, stopped, had, ttl);
        successor.tell("release");
        // If the successor lost its lock while it was stopped, it reports that instead.
        successor.answer();
        wait_until_nothing_is_left(&fleet);
    }
    println!("{found:?}");
}

#[test]
fn a_successor_that_is_killed_at_any_step_never_holds_with_the_next_one() {
    let fleet = Fleet::start(5);
    let [mut holder, mut next] = [0; 2].map(|_| start(&fleet));
    let mut found = Found::default();
    for trial in 0..TRIALS {
        let mut successor = start(&fleet);
        let ttl = TTLS[trial as usize % TTLS.len()];
        stand_in_line(&fleet, [&mut holder, &mut successor, &mut next], ttl);
        holder.tell("release");
        let_pass(STEP * trial);
        successor.kill();
        let killed = now();
        holder.released();
        let had = next.wait_until_locked();
        found.note(successor.had_in_life(), killed, had, ttl);
        next.release();
        wait_until_nothing_is_left(&fleet);
    }
    println!("{found:?}");
}

#[test]
fn a_successor_that_is_killed_before_it_reads_the_hand_over_costs_the_hand_over_ttl() {
    let fleet = Fleet::start(5);
    let [mut holder, mut successor, mut next] = [0; 3].map(|_| start(&fleet));
    stand_in_line(&fleet, [&mut holder, &mut successor, &mut next], TTL);
    successor.stop();
    // When the successor gets the key, it has not polled any node for a while.
    let_pass(HAND_OVER / 3);
    let released = holder.release();
    successor.kill();
    let mut gaps = Gaps::default();
    gaps.note(released, next.wait_until_locked().have, HAND_OVER);
    println!("{gaps:?}");
    next.release();
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn waiters_share_a_key_while_the_nodes_end_their_connections() {
    let fleet = Fleet::start(3);
    let file = fleet[0].directory().join("holds");
    std::fs::write(&file, "").expect("the fleet's directory can be written");
    let mut processes: Vec<Process> = (0..6).map(|_| Process::begin(&fleet.urls())).collect();
    processes.iter_mut().for_each(Process::wait_ready);
    let end = now() + (3 * SECOND).as_nanos() as u64;
    for process in &mut processes {
        process.tell(&format!("contend a 300 {end} {}", file.display()));
    }
    let mut dice = Dice::printed(now());
    let mut ended = 0;
    while now() < end {
        let node = &fleet[dice.below(fleet.len() as u64) as usize];
        for kind in ["normal", "pubsub"] {
            ended += node.command(&["CLIENT", "KILL", "TYPE", kind]).int();
        }
        let_pass(millis(dice.below(80)));
    }
    for process in &mut processes {
        assert_eq!(process.answer(), "done");
    }
    let holds = holds_in(&file);
    assert_no_two_holders(&holds);
    let held = holds.iter().filter(|hold| hold.from > 0).count();
    println!("{held} holds while {ended} connections were ended");
    assert!(held > 20 && ended > 20, "{held} holds, {ended} connections");
    drop(processes);
    eventually(15 * SECOND, "what is left ends with its ttl", || {
        fleet.keys_everywhere().is_empty()
    });
}

/// An operator reorders the lines, so that each node has another order.
#[test]
fn waiters_in_lines_that_differ_are_all_served_one_after_the_other() {
    let fleet = Fleet::start(5);
    let [mut holder, mut second, mut third] = three(&fleet, TTL);
    let mut fourth = Process::start(&fleet.urls());
    fourth.ask("a", TTL);
    wait_for_line(&fleet, 3);
    for (number, node) in fleet.iter().enumerate() {
        let members = node.command(&["ZRANGE", "redlatch:line:{a}", "0", "-1"]).text_items();
        for (place, member) in members.iter().enumerate() {
            let score = 10 + (place + number) % members.len();
            node.command(&["ZADD", "redlatch:line:{a}", "XX", &score.to_string(), member]);
        }
    }
    let begin = holder.release();
    let mut turns: Vec<(Had, u64)> = Vec::new();
    std::thread::scope(|scope| {
        let serve = |process: &mut Process| (process.wait_until_locked(), process.release());
        let all = [&mut second, &mut third, &mut fourth];
        let threads = all.map(|process| scope.spawn(move || serve(process)));
        turns = threads.into_iter().map(|thread| thread.join().expect("it is served")).collect();
    });
    turns.sort_by_key(|(had, _)| had.have);
    for pair in turns.windows(2) {
        assert!(pair[0].1 < pair[1].0.have, "held by two: {pair:?}");
    }
    let took = Duration::from_nanos(turns[2].0.have - begin);
    println!("all three are served after {took:?}");
    assert!(took < POLLED_BY, "{took:?}");
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn waiters_whose_messages_are_lost_get_the_key_by_their_polls() {
    let fleet = Fleet::start(5);
    for lossy in [3, 5] {
        let proxies: Vec<Proxy> = fleet.iter().map(|node| Proxy::start(node.address())).collect();
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        let [mut holder, mut successor, mut next] = [0; 3].map(|_| Process::start(&urls));
        stand_in_line(&fleet, [&mut holder, &mut successor, &mut next], TTL);
        proxies.iter().take(lossy).for_each(Proxy::lose_pushes);
        let gap = holder.hand_over_to(&mut successor);
        let released = successor.release();
        let then = next.wait_until_locked();
        assert!(then.have > released, "held by two");
        let second = Duration::from_nanos(then.have - released);
        println!("lost on {lossy} nodes: the next ones have it after {gap:?} and {second:?}");
        assert!(gap < POLLED_BY && second < POLLED_BY, "{gap:?}, {second:?}");
        next.release();
        wait_until_nothing_is_left(&fleet);
    }
}
