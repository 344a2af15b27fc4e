//! A client that asks for a lock again soon after it released it: its `SET NX` reaches each
//! node before a waiter in line has heard of the release and asked.

use std::time::Duration;

use super::line::{LONG, MS};
use super::line_world::World;

/// The number of locks in a row that are deleted at most before one is handed over.
const MOST: usize = 65;

/// How near the client is to the nodes that has the key, compared with the waiter.
#[derive(Clone, Copy)]
enum Asks {
    /// The client asks in the write that releases the key.
    WithTheRelease,
    /// The client reads all answers to its release before it asks, and the waiter is still slower.
    AfterAllAnswers,
}

/// A client that has the key, and one that stands in line for it.
fn holder_and_waiter() -> (World, usize, usize) {
    let mut world = World::new(3);
    let [holder, waiter] = [(); 2].map(|()| world.client());
    world.ask(holder, LONG);
    world.settle();
    world.ask(waiter, LONG);
    world.settle();
    (world, holder, waiter)
}

/// A client releases its lock after this hold, and asks for the next one, until a waiter has the
/// key. Returns how many locks the client got.
fn locks_before_a_waiter(asks: Asks, hold: Duration) -> usize {
    let (mut world, holder, waiter) = holder_and_waiter();
    for locks in 1..1_000 {
        let lock = world.won(holder);
        world.stop(waiter);
        world.pass(hold);
        world.release(holder, lock);
        if let Asks::AfterAllAnswers = asks {
            world.settle();
        }
        world.ask(holder, LONG);
        world.settle();
        world.resume_all();
        world.settle();
        if world.lock(waiter).is_some() {
            return locks;
        }
    }
    panic!("the waiter got nothing");
}

#[test]
fn client_that_asks_again_at_once_leaves_the_key_to_a_waiter_after_some_locks() {
    for asks in [Asks::WithTheRelease, Asks::AfterAllAnswers] {
        assert_eq!(locks_before_a_waiter(asks, Duration::ZERO), MOST);
        assert_eq!(locks_before_a_waiter(asks, 3 * MS), MOST);
    }
}

#[test]
fn client_that_asks_again_at_once_after_a_long_hold_leaves_the_next_turn_to_a_waiter() {
    for asks in [Asks::WithTheRelease, Asks::AfterAllAnswers] {
        assert_eq!(locks_before_a_waiter(asks, 10 * MS), 2);
    }
}

#[test]
fn client_that_asks_again_after_a_while_never_hands_over() {
    let mut world = World::new(5);
    let client = world.client();
    for _ in 0..3 * MOST {
        world.ask(client, LONG);
        world.settle();
        let lock = world.won(client);
        assert!(!lock.token().hands_over());
        world.pass(11 * MS);
        world.release(client, lock);
        world.settle();
        world.pass(10 * MS);
    }
}

/// The lock is given away and adopted, or released by its token, before the client asks again.
#[test]
fn client_that_gives_its_lock_away_leaves_the_key_to_a_waiter_after_some_locks() {
    for adopts in [true, false] {
        let (mut world, holder, waiter) = holder_and_waiter();
        let served = (0..MOST).any(|_| {
            let lock = world.won(holder);
            let (now, core) = (world.now(), world.client_mut(holder));
            let token = core.into_token(lock, now).expect("it is held");
            if adopts {
                core.adopt(super::line_world::KEY, token, LONG, 3, now).expect("there is room");
                world.settle();
                let lock = world.won(holder);
                world.release(holder, lock);
            } else {
                let key = super::line_world::KEY;
                core.release_token(key, token, 3, now).expect("there is room");
            }
            world.ask(holder, LONG);
            world.settle();
            world.lock(waiter).is_some()
        });
        assert!(served, "adopts: {adopts}");
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
    assert!(turns[..MOST].iter().all(|&client| client == 0), "it knows of no other client yet");
    let rest = &turns[MOST..];
    assert!(rest.chunks(2).all(|pair| pair[0] == 1), "each client has one turn: {rest:?}");
    assert!(rest.chunks_exact(2).all(|pair| pair[1] == 0), "each client has one turn: {rest:?}");
}

/// Requests that wait for each other inside a client have its key for a bounded time
/// before a plain waiter of another client has a turn.
#[test]
fn requests_that_wait_for_each_other_leave_a_plain_waiter_a_turn() {
    let mut world = World::new(3);
    let [many, plain] = [(); 2].map(|()| world.client());
    (0..2).for_each(|_| _ = world.ask(many, LONG));
    world.settle();
    world.ask_with(plain, redlatch::LockOptions::new(LONG));
    world.settle();
    for _ in 0..1_000 {
        world.pass(MS);
        if world.lock(plain).is_some() {
            return;
        }
        if let Some(lock) = world.lock(many) {
            world.release(many, lock);
            world.ask(many, LONG);
        }
        world.settle();
    }
    panic!("the plain waiter got nothing");
}
