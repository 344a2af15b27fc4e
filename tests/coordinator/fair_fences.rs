//! Fair locks with fencing numbers: a hand-over brings no number, the claim after it does.

use std::time::Duration;

use redlatch::testing::master::Restart;
use redlatch::{Lock, LockOptions};

use super::fair::{LONG, MS};
use super::fair_world::{KEY, World};

const FENCE: &[u8] = b"redlatch:fence:{k}";

fn fenced() -> LockOptions {
    LockOptions::new(LONG).fair().fenced()
}

/// Clients that wait in their order for the fenced lock that the first one has.
fn line_of(world: &mut World, clients: usize) -> (Vec<usize>, Lock) {
    let all: Vec<usize> = (0..clients).map(|_| world.client()).collect();
    for &client in &all {
        world.ask_with(client, fenced());
        world.settle();
    }
    let lock = world.won(all[0]);
    (all, lock)
}

fn number(lock: &Lock) -> u64 {
    lock.fence().expect("it is fenced")
}

/// The counter on a node.
fn counter(world: &World, node: usize) -> u64 {
    let value = world.masters[node].get(world.now, 0, FENCE).expect("it was counted");
    std::str::from_utf8(value).expect("it is text").parse().expect("it is a number")
}

#[test]
fn fenced_waiters_have_numbers_that_grow_in_the_order_of_their_line() {
    for nodes in 1..=5 {
        let mut world = World::new(nodes);
        let (all, mut lock) = line_of(&mut world, 5);
        for pair in all.windows(2) {
            let before = number(&lock);
            world.release(pair[0], lock);
            world.settle();
            lock = world.won(pair[1]);
            assert_eq!(number(&lock), before + 1, "one claim was counted");
            assert!(world.remaining(pair[1], &lock) > LONG - 200 * MS);
            let stats = world.clients[pair[1]].core.stats();
            assert_eq!((stats.handed_over, stats.claims, stats.fenced), (1, 1, 1));
        }
        world.release(all[4], lock);
        world.settle();
        (0..nodes).for_each(|node| world.run(node, &[b"DEL", FENCE]));
        world.assert_clean();
    }
}

#[test]
fn numbers_of_plain_and_of_fair_fenced_locks_grow_together() {
    let mut world = World::new(3);
    let clients = [world.client(), world.client(), world.client()];
    let plain = LockOptions::new(LONG).fenced();
    let mut last = 0;
    for options in [plain, fenced(), plain, fenced()] {
        for client in clients {
            world.ask_with(client, options);
            world.settle();
        }
        for client in clients {
            while world.clients[client].done.is_empty() {
                world.pass(MS);
            }
            let lock = world.won(client);
            assert!(number(&lock) > last, "{} after {last}", number(&lock));
            last = number(&lock);
            world.release(client, lock);
            world.settle();
            world.clients[client].done.clear();
        }
    }
}

#[test]
fn number_of_a_claim_with_different_votes_is_written_back_before_the_lock_is_handed_out() {
    let mut world = World::new(3);
    let (all, lock) = line_of(&mut world, 2);
    let ahead = number(&lock) + 100;
    world.run(0, &[b"SET", FENCE, ahead.to_string().as_bytes()]);
    world.run(1, &[b"SET", FENCE, (ahead + 100).to_string().as_bytes()]);
    world.release(all[0], lock);
    world.settle();
    let lock = world.won(all[1]);
    let reached = (0..3).filter(|&node| counter(&world, node) >= number(&lock)).count();
    assert!(number(&lock) > ahead && reached >= 2, "{} of {reached} nodes", number(&lock));
    let stats = world.clients[all[1]].core.stats();
    assert_eq!((stats.claims, stats.written_back), (1, 1));
}

#[test]
fn node_in_quarantine_counts_nothing_in_the_claim_of_a_fenced_lock() {
    let mut world = World::new(3);
    let (all, lock) = line_of(&mut world, 2);
    world.restart(0, Restart::Empty);
    world.pass(Duration::from_millis(300));
    world.frozen = vec![2];
    world.release(all[0], lock);
    world.pass(Duration::from_millis(300));
    assert_eq!(world.masters[0].get(world.now, 0, FENCE), None, "it would count from its clock");
    assert!(world.clients[all[1]].core.stats().claims > 0);
    assert!(world.lock(all[1]).is_none(), "node 1 has the only vote");
    world.frozen.clear();
    world.pass(Duration::from_millis(300));
    let lock = world.won(all[1]);
    assert!(counter(&world, 1) >= number(&lock) && counter(&world, 2) >= number(&lock));
    assert_eq!(world.value(1), lock.token().to_string());
    assert!(world.masters[1].get(world.now, 0, KEY).is_some());
}
