//! One of five nodes is odd: it has a key without a ttl, or it is frozen. Waiting works with the
//! other four.

use super::hand_over::hand_overs_of;
use super::process::Process;
use super::*;

const ROUNDS: usize = 20;

/// Hand-overs have to be as fast as with five healthy nodes.
const AS_FAST: Duration = millis(300);

/// Lets two processes take turns. Returns how long the hand-overs took, sorted; the lock is free
/// afterwards.
fn hand_overs(processes: &mut [Process; 2]) -> Vec<Duration> {
    let took = hand_overs_of(processes, ROUNDS, |_| {});
    processes[ROUNDS % 2].release();
    took
}

#[test]
fn key_without_a_ttl_on_one_node_is_outvoted() {
    let fleet = Fleet::start(5);
    fleet[2].command(&["SET", "a", "another program's"]);
    let mut processes = [Process::start(&fleet.urls()), Process::start(&fleet.urls())];
    let monitor = fleet[2].monitor();
    let (start, timer) = (Instant::now(), PlainTimer::start());
    let took = hand_overs(&mut processes);
    assert!(took[ROUNDS / 2] < timer.limit(AS_FAST), "{took:?}");
    assert_eq!(fleet[2].get("a").as_deref(), Some(&b"another program's"[..]));
    // No process asks for the key again and again without a pause.
    let asked = monitor.lines().iter().filter(|line| line.contains("\"a\"")).count();
    println!("{asked} questions about it in {:?}", start.elapsed());
    assert!(asked < 100 * ROUNDS, "{asked} questions");
    fleet[2].command(&["DEL", "a"]);
    wait_until_nothing_is_left(&fleet);
}

/// A majority has the key without a ttl: no process gets it, however long it waits, and none asks
/// for it without a pause.
#[test]
fn wait_for_a_key_without_a_ttl_on_a_majority_polls_with_pauses() {
    let fleet = Fleet::start(5);
    for node in fleet.iter().take(3) {
        node.command(&["SET", "a", "another program's"]);
    }
    let mut waiter = Loop::ready(config(fleet.urls()).node_timeout(5 * SECOND));
    let monitors: Vec<_> = fleet.iter().map(Node::monitor).collect();
    let op = waiter.engine.acquire("a", waiting(), 0).unwrap();
    waiter.turn_for(SECOND);
    assert!(waiter.engine.poll_completion().is_none());
    for monitor in &monitors {
        let asked = monitor.lines().iter().filter(|line| line.contains("\"a\"")).count();
        assert!(asked < 1_000, "{asked} questions in a second");
    }
    for node in fleet.iter().take(3) {
        node.command(&["DEL", "a"]);
    }
    let start = Instant::now();
    let lock = waiter.locked(op);
    assert!(start.elapsed() < POLLED_BY, "{:?}", start.elapsed());
    waiter.engine.release_nowait(&lock);
    waiter.comes_to_rest();
    wait_until_nothing_is_left(&fleet);
}

#[test]
fn frozen_node_delays_no_hand_over() {
    let fleet = Fleet::start(5);
    let mut processes = [Process::start(&fleet.urls()), Process::start(&fleet.urls())];
    fleet[4].stop();
    let timer = PlainTimer::start();
    let took = hand_overs(&mut processes);
    assert!(took[ROUNDS / 2] < timer.limit(AS_FAST), "{took:?}");
    fleet[4].cont();
    // The processes make no more calls, so node 4 may get its releases only later.
    let alive = fleet.iter().take(4);
    wait_until_nothing_is_left(alive);
}

#[test]
fn node_that_freezes_during_a_wait_delays_no_waiter() {
    let fleet = Fleet::start(5);
    let mut holder = Process::start(&fleet.urls());
    let mut waiter = Process::start(&fleet.urls());
    for frozen in 0..fleet.len() {
        holder.lock("a", TTL);
        waiter.ask("a", TTL);
        let_pass(millis(50));
        fleet[frozen].stop();
        let gave_back = holder.release();
        let had = waiter.wait_until_locked();
        assert!(had.have >= gave_back, "held by two: since {had:?}, until {gave_back}");
        let took = Duration::from_nanos(had.have - gave_back);
        println!("without node {frozen}: {took:?}");
        assert!(took < POLLED_BY, "{took:?}");
        waiter.release();
        fleet[frozen].cont();
        let_pass(millis(50));
    }
}
