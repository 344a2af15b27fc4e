//! A client that asks for a lock again soon after its release: its `SET NX` reaches each node
//! before the request of a waiter in line, which first has to hear of the release.

use std::time::Duration;

use redlatch::{KeySet, LockOptions};

use super::line::{LONG, MS};
use super::line_world::{KEY, World};

/// A client gets at most so many locks in a row before it hands the key over.
const MOST: usize = 65;

/// When the client that has the key asks for it again. In both cases it is faster than the waiter.
#[derive(Clone, Copy)]
enum Asks {
    /// In the same write as the release.
    WithTheRelease,
    /// After it has read all answers to its release.
    AfterAllAnswers,
}

/// A client that has the key, and one that stands in line for it.
fn holder_and_waiter() -> (World, usize, usize) {
    let mut world = World::new(3);
    let [holder, waiter] = [(); 2].map(|()| world.client());
    world.ask_and_settle(holder, LONG);
    world.ask_and_settle(waiter, LONG);
    (world, holder, waiter)
}

/// A client holds each lock for `hold`, releases it and asks again, until the waiter has the key.
/// Returns how many locks the client got.
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
        world.ask_and_settle(holder, LONG);
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
    let (mut world, [client]) = World::with_clients(5);
    for _ in 0..3 * MOST {
        let lock = world.acquire(client, LONG);
        assert!(!lock.token().hands_over());
        world.pass(11 * MS);
        world.release_and_settle(client, lock);
        world.pass(10 * MS);
    }
}

/// Each of the client's sets has another second key. Only the first key is asked for again.
#[test]
fn client_that_asks_again_for_one_key_of_its_sets_leaves_it_to_a_waiter_after_some_locks() {
    let mut world = World::new(3);
    let [holder, waiter] = [(); 2].map(|()| world.client());
    let ask_for_set = |world: &mut World, number: usize| {
        let (now, second) = (world.now(), format!("z{number}"));
        let keys = KeySet::new([KEY, second.as_bytes()]).expect("a good set");
        let options = LockOptions::new(LONG).wait(LONG);
        let asked = world.client_mut(holder).acquire(&keys, options, 1, now);
        asked.expect("it can be asked for");
    };
    ask_for_set(&mut world, 0);
    world.settle();
    world.ask_and_settle(waiter, LONG);
    for locks in 1..3 * MOST {
        let lock = world.won(holder);
        world.stop(waiter);
        world.release(holder, lock);
        ask_for_set(&mut world, locks);
        world.settle();
        world.resume_all();
        world.settle();
        if world.lock(waiter).is_some() {
            return;
        }
    }
    panic!("the waiter got nothing");
}

/// The client makes a token of its lock and adopts that, or releases the lock by the token, before
/// it asks again. This must not reset its count of locks in a row.
#[test]
fn client_that_hands_its_lock_off_leaves_the_key_to_a_waiter_after_some_locks() {
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
            world.ask_and_settle(holder, LONG);
            world.lock(waiter).is_some()
        });
        assert!(served, "adopts: {adopts}");
    }
}

/// A client with several requests for the key, which queue inside it, and a client with one. Both
/// ask again as soon as they have had the key. Returns which client had the key, in order.
fn turns(of_first: usize, times: usize) -> Vec<usize> {
    let mut world = World::new(3);
    let [many, alone] = [(); 2].map(|()| world.client());
    for _ in 0..of_first {
        world.ask(many, LONG);
    }
    world.settle();
    world.ask_and_settle(alone, LONG);
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
fn client_with_many_requests_leaves_the_key_to_another_client_after_some_locks() {
    let turns = turns(3, 100);
    assert!(turns[..MOST].iter().all(|&client| client == 0), "it knows of no other client yet");
    let rest = &turns[MOST..];
    assert!(rest.chunks(2).all(|pair| pair[0] == 1), "each client has one turn: {rest:?}");
    assert!(rest.chunks_exact(2).all(|pair| pair[1] == 0), "each client has one turn: {rest:?}");
}

/// A client that passes the key from one of its requests to the next has to leave it to a waiter of
/// another client after a bounded time.
#[test]
fn client_with_many_requests_leaves_a_plain_waiter_a_turn() {
    let mut world = World::new(3);
    let [many, plain] = [(); 2].map(|()| world.client());
    (0..2).for_each(|_| _ = world.ask_and_settle(many, LONG));
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
