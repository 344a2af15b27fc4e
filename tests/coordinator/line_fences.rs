//! Fenced locks that are won in line. A hand-over brings no fencing number, so the waiter gets it
//! by a claim after the hand-over.

use std::time::Duration;

use redlatch::testing::master::Restart;
use redlatch::{Lock, LockOptions};

use super::line::{LONG, MS};
use super::line_world::{KEY, World};

const FENCE: &[u8] = b"redlatch:fence:{k}";

fn fenced() -> LockOptions {
    LockOptions::new(LONG).fenced()
}

/// Nodes, and clients, of which the first has the fenced lock and the others stand in line for it
/// in order.
fn line_of(nodes: usize, clients: usize) -> (World, Vec<usize>, Lock) {
    let mut world = World::new(nodes);
    let all: Vec<usize> = (0..clients).map(|_| world.client()).collect();
    let lock = world.won_in_line_with(all[0], fenced());
    for &client in &all[1..] {
        world.ask_with(client, fenced());
        world.settle();
    }
    (world, all, lock)
}

/// The fencing number of the lock.
fn number(lock: &Lock) -> u64 {
    lock.fence().expect("it is fenced")
}

/// The counter on a node; 0 if the node has none.
fn counter(world: &World, node: usize) -> u64 {
    let value = world.master(node).get(world.now(), 0, FENCE).unwrap_or(b"0");
    std::str::from_utf8(value).expect("it is text").parse().expect("it is a number")
}

#[test]
fn fenced_waiters_have_numbers_that_grow_in_the_order_of_their_line() {
    for nodes in 1..=5 {
        let (mut world, all, mut lock) = line_of(nodes, 5);
        for pair in all.windows(2) {
            let before = number(&lock);
            lock = world.hand_on(pair[0], lock, pair[1]);
            assert_eq!(number(&lock), before + 1, "one claim was counted");
            assert!(world.remaining(pair[1], &lock) > LONG - 200 * MS);
            let stats = world.core(pair[1]).stats();
            assert_eq!((stats.handed_over, stats.claims, stats.fenced), (1, 1, 1));
        }
        world.release_and_settle(all[4], lock);
        (0..nodes).for_each(|node| world.run(node, &[b"DEL", FENCE]));
        world.assert_clean();
    }
}

#[test]
fn numbers_of_locks_that_were_won_at_once_and_in_line_grow_together() {
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
            while world.done[client].is_empty() {
                world.pass(MS);
            }
            let lock = world.won(client);
            assert!(number(&lock) > last, "{} after {last}", number(&lock));
            last = number(&lock);
            world.release_and_settle(client, lock);
            world.done[client].clear();
        }
    }
}

#[test]
fn number_of_a_claim_with_different_votes_is_written_back_before_the_lock_is_handed_out() {
    let (mut world, all, lock) = line_of(3, 2);
    let ahead = number(&lock) + 100;
    world.run(0, &[b"SET", FENCE, ahead.to_string().as_bytes()]);
    world.run(1, &[b"SET", FENCE, (ahead + 100).to_string().as_bytes()]);
    let lock = world.hand_on(all[0], lock, all[1]);
    let reached = (0..3).filter(|&node| counter(&world, node) >= number(&lock)).count();
    assert!(number(&lock) > ahead && reached >= 2, "{} of {reached} nodes", number(&lock));
    let stats = world.core(all[1]).stats();
    assert_eq!((stats.claims, stats.written_back), (1, 1));
}

#[test]
fn node_in_quarantine_counts_nothing_in_the_claim_of_a_fenced_lock() {
    let (mut world, all, lock) = line_of(3, 2);
    world.restart(0, Restart::Empty);
    world.pass(Duration::from_millis(300));
    world.cut_off(&[2]);
    world.release(all[0], lock);
    world.pass(Duration::from_millis(300));
    assert_eq!(world.core(all[1]).stats().claims, 0, "node 1 has the only vote");
    assert!(world.lock(all[1]).is_none());
    world.cut_off(&[]);
    world.pass(Duration::from_millis(300));
    let lock = world.won(all[1]);
    assert_eq!(world.master(0).get(world.now(), 0, FENCE), None, "it would count from its clock");
    assert!(world.master(0).pttl(world.now(), 0, KEY) > 5_000, "it was claimed, too");
    assert!(counter(&world, 1) >= number(&lock) && counter(&world, 2) >= number(&lock));
    assert_eq!(world.value(1), lock.token().to_string());
    assert!(world.master(1).get(world.now(), 0, KEY).is_some());
}

/// A holder releases the key of a plain lock. In its line stand a fenced waiter and, behind it, a
/// plain one. Returns whether the request of each has ended a second later, the world, and the
/// numbers of the two waiters.
fn waiters_for_a_lock(change: impl Fn(&mut World)) -> ([bool; 2], World, [usize; 2]) {
    let mut world = World::new(3);
    change(&mut world);
    let [holder, waiter, next] =
        [(); 3].map(|()| world.client_with(|settings| settings.allow_eviction = true));
    world.ask_and_settle(holder, LONG);
    let lock = world.won(holder);
    world.ask_with(waiter, fenced());
    world.settle();
    world.ask_and_settle(next, LONG);
    world.release(holder, lock);
    world.pass(Duration::from_secs(1));
    let answered = [waiter, next].map(|client| !world.done[client].is_empty());
    (answered, world, [waiter, next])
}

#[test]
fn fenced_waiter_is_refused_if_too_few_nodes_can_ever_count() {
    let (answered, mut world, [waiter, next]) = waiters_for_a_lock(|world| {
        for node in [1, 2] {
            world.master_mut(node).set_info("maxmemory", "100");
            world.master_mut(node).set_info("maxmemory_policy", "allkeys-lru");
        }
    });
    assert_eq!(answered, [true, true]);
    let error = world.error(waiter);
    assert!(error.to_string().contains("may evict"), "{error}");
    let _lock = world.won(next);
}

#[test]
fn fenced_waiter_lets_others_have_the_key_while_too_few_nodes_count() {
    // The clocks of nodes 1 and 2 are far from the median, so these nodes do not count for fences.
    let (answered, mut world, [waiter, next]) = waiters_for_a_lock(|world| {
        world.master_mut(1).step_wall_clock(40_000);
        world.master_mut(2).step_wall_clock(-40_000);
    });
    assert_eq!(answered, [false, true]);
    let lock = world.won(next);
    assert_eq!(world.core(waiter).stats().claims, 0);
    world.release(next, lock);
    world.pass(Duration::from_secs(1));
    assert!(world.done[waiter].is_empty(), "it waits");
}

/// A fenced waiter whose claim is in the outboxes for nodes 0 and 1, behind a poll.
fn claim_behind_a_poll() -> (World, usize) {
    // After two hand-overs the nodes know all scripts of both clients.
    let (mut world, all, mut lock) = line_of(3, 2);
    let order = [(all[0], all[1]), (all[1], all[0]), (all[0], all[1])];
    for (from, to) in &order[..2] {
        lock = world.hand_on(*from, lock, *to);
        world.done[*from].clear();
        world.ask_with(*from, fenced());
        world.settle();
    }
    world.cut_off(&[0, 1, 2]);
    world.pass(95 * MS);
    world.release(all[0], lock);
    world.deliver(all[0], [0, 1], all[1]);
    (world, all[1])
}

#[test]
fn claim_is_not_repeated_on_a_node_that_forgot_its_counters() {
    let (mut world, waiter) = claim_behind_a_poll();
    let claims = world.core(waiter).stats().claims;
    world.run(1, &[b"FLUSHALL"]);
    world.run(1, &[b"SCRIPT", b"FLUSH"]);
    for _ in 0..3 {
        world.deliver_to_node(waiter, 1);
        world.deliver_to_client(waiter, 1);
    }
    assert!(claims > 1, "a claim was in flight");
    assert_eq!(world.master(1).get(world.now(), 0, FENCE), None, "it would start too early");
}

#[test]
fn hand_over_during_the_write_back_counts_only_for_its_short_ttl() {
    let (mut world, all, lock) = line_of(3, 2);
    let ahead = number(&lock) + 100;
    world.run(0, &[b"SET", FENCE, ahead.to_string().as_bytes()]);
    world.pause_all_clients();
    let waiter = all[1];
    world.release(all[0], lock);
    let exchange = |world: &mut World, from: usize, nodes: &[usize]| {
        nodes.iter().for_each(|&node| world.deliver_to_node(from, node));
        nodes.iter().for_each(|&node| world.deliver_to_client(waiter, node));
    };
    exchange(&mut world, all[0], &[0, 1]);
    exchange(&mut world, waiter, &[0, 1]);
    let stats = world.core(waiter).stats();
    assert_eq!((stats.claims, stats.written_back), (1, 1));
    // Node 2 hands the key over during the write-back, for 200 ms.
    exchange(&mut world, all[0], &[2]);
    exchange(&mut world, waiter, &[0, 1]);
    world.take_completions(waiter);
    let lock = world.won(waiter);
    world.advance(300 * MS);
    assert_eq!(world.value(2), "", "the key has ended there");
    world.run(2, &[b"FLUSHALL"]);
    world.deliver_to_client(waiter, 2);
    world.run(2, &[b"SET", KEY, lock.token().to_string().as_bytes(), b"PX", b"60000"]);
    world.cut_off(&[0]);
    let extended = world.extend(waiter, &lock, LONG);
    assert!(extended.is_none(), "only node 1 has a vote: {extended:?}");
}

/// Nodes 0 and 1 hand the key over, and the waiter claims it there. After that node 2 hands it
/// over, and the waiter sends its claim there, too, so that all counters stay equal.
#[test]
fn node_that_hands_over_after_the_claim_counts_as_the_others_do() {
    let (mut world, all, lock) = line_of(3, 3);
    let mut holder = (all[0], lock);
    for next in [all[1], all[2]] {
        world.cut_off(&[0, 1, 2]);
        world.release(holder.0, holder.1);
        world.deliver(holder.0, 0..3, next);
        assert!(world.done[next].is_empty(), "it claims");
        world.cut_off(&[]);
        world.settle();
        holder = (next, world.won(next));
        let counters: Vec<u64> = (0..3).map(|node| counter(&world, node)).collect();
        assert_eq!(counters, [number(&holder.1); 3]);
        assert_eq!(world.core(next).stats().written_back, 0);
    }
}

/// Node 0 hands the key over and then stops answering. When another node hands it over, too, the
/// waiter cannot ask node 0, so its claim is lost before it asks any node. Then node 2 hands over.
#[test]
fn hand_over_after_a_claim_that_asked_no_node_is_claimed() {
    // After 45 ms the answer of node 0 is late, after 80 ms node 0 is suspect. A claim that is lost
    // at once is repeated at the next hand-over.
    for (late, claims_after) in [(45, [1, 1]), (80, [1, 2])] {
        let (mut world, all, lock) = line_of(3, 2);
        world.cut_off(&[0, 1, 2]);
        world.release(all[0], lock);
        world.deliver_to_node(all[0], 0);
        world.deliver_to_client(all[1], 0);
        for _ in 0..late {
            world.pass(MS);
            world.deliver(all[1], [1, 2], all[1]);
        }
        let claims = |world: &World| world.core(all[1]).stats().claims;
        assert_eq!(claims(&world), 0);
        for (node, expected) in [1, 2].into_iter().zip(claims_after) {
            world.deliver_to_node(all[0], node);
            world.deliver_to_client(all[1], node);
            assert_eq!(claims(&world), expected, "node {node}, {late} ms");
        }
        world.cut_off(&[0]);
        world.pass(200 * MS);
        let lock = world.won(all[1]);
        assert!(number(&lock) > 0 && claims(&world) > 1);
    }
}

/// Node 0 is in quarantine. It gives the waiter the key in its answer to a join, after the waiter
/// sent the claim to the other nodes. The waiter must not ask node 0 to raise its counter.
#[test]
fn node_in_quarantine_that_gives_the_key_after_the_claim_counts_nothing() {
    let (mut world, all, lock) = line_of(3, 2);
    let waiter = all[1];
    world.restart(0, Restart::Empty);
    world.run(0, &[b"SET", KEY, b"of another program", b"PX", b"60000"]);
    world.pass(300 * MS);
    assert_eq!(world.in_line(0), 1);
    world.cut_off(&[0, 1, 2]);
    world.run(0, &[b"DEL", KEY]);
    world.deliver_to_client(waiter, 0);
    world.deliver_to_node(waiter, 0);
    world.release(all[0], lock);
    world.deliver(all[0], [1, 2], waiter);
    assert_eq!(world.core(waiter).stats().claims, 1);
    // Now the waiter reads the answer to its join.
    world.deliver_to_client(waiter, 0);
    world.cut_off(&[]);
    world.settle();
    let lock = world.won(waiter);
    assert_eq!(world.master(0).get(world.now(), 0, FENCE), None, "it would count from its clock");
    assert_eq!([1, 2].map(|node| counter(&world, node)), [number(&lock); 2]);
}

/// A claim is lost, and then node 2 hands the key over. Only the next claim raises its counter.
#[test]
fn node_that_hands_over_after_a_lost_claim_counts_once() {
    let (mut world, all, lock) = line_of(3, 2);
    let waiter = all[1];
    let before = counter(&world, 2);
    world.cut_off(&[0, 1, 2]);
    world.release(all[0], lock);
    world.deliver(all[0], [0, 1], waiter);
    world.run(1, &[b"DEL", KEY]);
    world.deliver(waiter, [1, 0], waiter);
    assert_eq!(world.core(waiter).stats().claims, 1, "it was lost");
    world.deliver_to_node(all[0], 2);
    world.deliver_to_client(waiter, 2);
    assert_eq!(world.core(waiter).stats().claims, 2);
    world.deliver_to_node(waiter, 2);
    assert_eq!(counter(&world, 2), before + 1);
    world.cut_off(&[]);
    world.settle();
    assert!(world.lock(waiter).is_some());
}
