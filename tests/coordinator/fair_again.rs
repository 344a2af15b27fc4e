//! A client that asks for a fair lock again in the write that releases it: its `SET NX` reaches
//! each node right behind its release, before a waiter in line can ask.

use std::time::Duration;

use super::fair::{LONG, MS};
use super::fair_world::World;

/// As often as a lock is deleted in a row, at most, before one is handed over.
const MOST: usize = 64;

/// The client releases its lock and asks for the next one in one write, until a waiter has the key.
/// Before each of these writes so much time passes. Returns how many locks the client got.
fn locks_before_a_waiter(pause: Duration) -> usize {
    let mut world = World::new(3);
    let [holder, waiter] = [(); 2].map(|()| world.client());
    world.ask(holder, LONG);
    world.settle();
    world.ask(waiter, LONG);
    world.settle();
    for locks in 1..1_000 {
        let lock = world.won(holder);
        world.pass(pause);
        world.release(holder, lock);
        world.ask(holder, LONG);
        world.settle();
        if world.lock(waiter).is_some() {
            return locks;
        }
    }
    panic!("the waiter got nothing");
}

#[test]
fn client_that_asks_again_with_its_release_leaves_the_key_to_a_waiter_after_some_locks() {
    assert_eq!(locks_before_a_waiter(Duration::ZERO), 1 + MOST);
}

#[test]
fn client_that_asks_again_with_its_release_leaves_the_key_to_a_waiter_after_some_time() {
    assert_eq!(locks_before_a_waiter(3 * MS), 1 + 1 + 4);
    assert_eq!(locks_before_a_waiter(10 * MS), 3);
}

#[test]
fn client_that_asks_again_after_a_majority_acknowledged_its_release_never_hands_over() {
    let mut world = World::new(5);
    let client = world.client();
    for _ in 0..3 * MOST {
        world.ask(client, LONG);
        world.settle();
        let lock = world.won(client);
        assert!(!lock.token().hands_over());
        world.pass(MS);
        world.release(client, lock);
        for node in 0..3 {
            world.deliver_commands(client, node);
            world.deliver_answers(client, node);
        }
    }
}

/// A client whose requests wait for each other, and one that waits alone; both ask again as soon as
/// they have had the key. Returns who had it, in order.
fn turns(of_first: usize, times: usize) -> Vec<usize> {
    let mut world = World::new(3);
    let [many, alone] = [(); 2].map(|()| world.client());
    for _ in 0..of_first {
        world.ask(many, LONG);
    }
    world.settle();
    world.ask(alone, LONG);
    world.settle();
    let mut turns = Vec::new();
    while turns.len() < times {
        let locks = [many, alone].map(|client| world.lock(client).map(|lock| (client, lock)));
        for (client, lock) in locks.into_iter().flatten() {
            turns.push(client);
            world.release(client, lock);
            world.ask(client, LONG);
        }
        world.settle();
    }
    turns
}

#[test]
fn requests_that_wait_for_each_other_leave_the_key_to_another_client_after_some_locks() {
    let turns = turns(3, 100);
    assert!(turns[..MOST + 1].iter().all(|&client| client == 0), "it met nobody yet");
    let rest = &turns[MOST + 1..];
    assert!(rest.chunks(2).all(|pair| pair[0] == 1), "each client has one turn: {rest:?}");
    assert!(rest.chunks_exact(2).all(|pair| pair[1] == 0), "each client has one turn: {rest:?}");
}
