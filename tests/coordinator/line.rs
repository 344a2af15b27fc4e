//! Waiting in line through the whole core, against in-process masters that run the real scripts.

use std::time::Duration;

use redlatch::testing::master::Restart;
use redlatch::{Error, LockOptions};

use super::line_world::{KEY, LINE, World};

/// Four node timeouts: this is also the short ttl, which a node gives a key that it hands over to a
/// waiter that may have stopped.
pub const TTL: Duration = Duration::from_millis(200);
pub const LONG: Duration = Duration::from_secs(10);
pub const MS: Duration = Duration::from_millis(1);

#[test]
fn waiters_are_served_in_their_order_and_nothing_is_left() {
    for nodes in 1..=5 {
        let (mut world, all, mut lock) = World::with_line(nodes, 6, TTL);
        for pair in all.windows(2) {
            assert_eq!(world.in_line(0), all.len() - pair[1]);
            lock = world.hand_on(pair[0], lock, pair[1]);
            let stats = world.core(pair[1]).stats();
            assert_eq!((stats.handed_over, stats.claims, stats.splits), (1, 0, 0));
        }
        world.release_and_settle(all[5], lock);
        world.assert_clean();
    }
}

#[test]
fn lock_without_waiters_is_one_set_and_one_short_script_on_each_node() {
    let (mut world, [client]) = World::with_clients(3);
    let mut pairs = Vec::new();
    for _ in 0..6 {
        world.ask_with(client, LockOptions::new(LONG));
        let asked = world.output(client, 0);
        world.settle();
        let lock = world.won(client);
        let token = lock.token().to_string();
        world.release(client, lock);
        pairs.push([asked, world.output(client, 0)].map(|bytes| bytes.replace(&token, "TOKEN")));
        world.settle();
        world.assert_clean();
    }
    assert!(pairs.windows(2).all(|two| two[0] == two[1]), "{pairs:?}");
    let [asked, released] = &pairs[1];
    assert!(asked.starts_with("*6\r\n$3\r\nSET\r\n") && asked.matches('*').count() == 1);
    assert!(released.starts_with("*5\r\n$7\r\nEVALSHA\r\n") && released.matches('*').count() == 1);
}

#[test]
fn waiter_that_polled_just_before_is_handed_the_key_for_its_whole_ttl() {
    // A waiter polls every 60 to 90 ms. For 50 ms after a poll, a quarter of the short ttl, a node
    // assumes that the waiter still runs, and would give it the key for its whole ttl.
    for (polls_for, silence, whole) in [
        (Duration::ZERO, 49 * MS, true),
        (Duration::ZERO, 51 * MS, false),
        (95 * MS, 10 * MS, true),
    ] {
        let (mut world, all, lock) = World::with_line(3, 2, LONG);
        world.pass(polls_for);
        world.advance(silence);
        world.release(all[0], lock);
        for node in 0..3 {
            world.deliver_to_node(all[0], node);
            assert_eq!(world.master(node).pttl(world.now(), 0, KEY) > 9_000, whole);
            world.deliver_to_client(all[1], node);
        }
        let now = world.now();
        let core = world.client_mut(all[1]);
        let has_lock = core.poll_completion(now).is_some();
        assert_eq!((has_lock, core.stats().claims), (whole, u64::from(!whole)));
    }
}

#[test]
fn hand_over_with_the_short_ttl_is_claimed_first() {
    let (mut world, all, lock) = World::with_line(3, 2, LONG);
    world.pause_all_clients();
    world.release(all[0], lock);
    for node in 0..3 {
        world.deliver_to_node(all[0], node);
        assert!(world.master(node).pttl(world.now(), 0, KEY) <= 200);
        world.deliver_to_client(all[1], node);
    }
    assert!(world.call(all[1], |core, now| core.poll_completion(now)).is_none(), "it claims");
    world.settle();
    let lock = world.won(all[1]);
    assert!(world.remaining(all[1], &lock) > LONG - 200 * MS);
    assert_eq!(world.core(all[1]).stats().claims, 1);
    world.release_and_settle(all[1], lock);
    world.assert_clean();
}

#[test]
fn deadline_of_a_hand_over_counts_from_the_join_and_not_from_the_message() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let joined = world.now();
    world.pass(40 * MS);
    world.release(all[0], lock);
    (0..3).for_each(|node| world.deliver_to_node(all[0], node));
    world.advance(30 * MS);
    for node in 0..3 {
        world.deliver_to_client(all[1], node);
    }
    world.settle();
    let lock = world.won(all[1]);
    let deadline = world.now().saturating_add(world.remaining(all[1], &lock));
    assert_eq!(
        deadline,
        joined.saturating_add(TTL - 4 * MS),
        "{:?}",
        deadline.saturating_since(joined)
    );
}

#[test]
fn deadline_of_a_hand_over_counts_from_the_base_of_each_node() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let joined = world.now();
    // The poll to node 1 stays in flight, so the ttl on this node counts from the join. The other
    // nodes answer their polls.
    world.partition(1);
    world.pass(95 * MS);
    world.cut_off(&[]);
    world.release(all[0], lock);
    world.deliver(all[0], [1, 2], all[1]);
    world.take_completions(all[1]);
    let lock = world.won(all[1]);
    let deadline = world.now().saturating_add(world.remaining(all[1], &lock));
    assert_eq!(deadline, joined.saturating_add(TTL - 4 * MS));
}

#[test]
fn hand_over_that_is_read_too_late_is_no_lock() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    world.release(all[0], lock);
    (0..3).for_each(|node| world.deliver_to_node(all[0], node));
    // The waiter's thread does not run for longer than the keys live.
    world.advance(300 * MS);
    for node in 0..3 {
        world.deliver_to_client(all[1], node);
        assert!(world.call(all[1], |core, now| core.poll_completion(now)).is_none());
    }
    world.pass(200 * MS);
    world.win_and_release(all[1]);
    world.assert_clean();
}

#[test]
fn hand_over_by_a_node_in_quarantine_is_no_vote() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    // Node 0 forgets all keys, and gives the waiter the key as soon as it joins again.
    world.restart(0, Restart::Empty);
    world.pass(100 * MS);
    assert_eq!(world.lock(all[1]).map(|_| ()), None, "a majority is still the first one's");
    // Node 1 gives the waiter the key, too. Node 0 is in quarantine, so this is still no majority.
    let token = world.value(1);
    world.run(1, &[b"DEL", KEY]);
    world.pass(95 * MS);
    assert_ne!(world.value(1), token, "it was handed over");
    assert_eq!(world.lock(all[1]).map(|_| ()), None, "one vote does not count");
    assert!(world.core(all[0]).key(&lock).is_some());
    drop(lock);
}

#[test]
fn a_dropped_connection_takes_its_hand_over_with_it() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    world.release(all[0], lock);
    (0..3).for_each(|node| world.deliver_to_node(all[0], node));
    // The waiter reads the message of node 0, loses the connections to nodes 0 and 2, and then
    // reads the message of node 1.
    world.deliver_to_client(all[1], 0);
    world.cut(all[1], 0);
    world.cut(all[1], 2);
    world.deliver_to_client(all[1], 1);
    assert!(world.call(all[1], |core, now| core.poll_completion(now)).is_none());
    world.pass(100 * MS);
    let lock = world.won(all[1]);
    world.release(all[1], lock);
    world.pass(100 * MS);
    world.assert_clean();
}

#[test]
fn a_stopped_successor_delays_the_next_waiter_by_the_short_ttl() {
    let (mut world, all, lock) = World::with_line(5, 3, LONG);
    world.stop(all[1]);
    world.pass(51 * MS);
    world.release_and_settle(all[0], lock);
    let released = world.now();
    let mut lock = None;
    while lock.is_none() {
        world.pass(MS);
        lock = world.lock(all[2]);
    }
    let gap = world.now().saturating_since(released);
    assert!(gap > 190 * MS && gap <= 300 * MS, "{gap:?}");
    let tokens: Vec<String> = (0..5).map(|node| world.value(node)).collect();
    world.resume_all();
    world.pass(100 * MS);
    assert!((0..5).filter(|&n| world.value(n) == tokens[n]).count() >= 3, "it kept its lock");
    world.release(all[2], lock.unwrap());
    world.pass(400 * MS);
    let lock = world.won(all[1]);
    world.release(all[1], lock);
    world.pass(100 * MS);
    world.assert_clean();
}

#[test]
fn a_dead_successor_is_skipped_at_once() {
    let (mut world, all, lock) = World::with_line(5, 4, TTL);
    for dead in [all[1], all[2]] {
        (0..5).for_each(|node| world.cut(dead, node));
        world.stop(dead);
    }
    let lock = world.hand_on(all[0], lock, all[3]);
    assert_eq!(world.core(all[3]).stats().skipped, 2);
    world.release_and_settle(all[3], lock);
    assert!((0..5).all(|node| world.in_line(node) == 0 && world.value(node).is_empty()));
}

#[test]
fn a_waiter_that_gives_up_leaves_the_lines_and_is_not_handed_the_key() {
    let (mut world, all) = World::with_clients::<3>(3);
    let lock = world.acquire(all[0], TTL);
    let op = world.ask_and_settle(all[1], TTL);
    world.ask_and_settle(all[2], TTL);
    world.call(all[1], |core, now| core.cancel(op, now));
    world.settle();
    assert!((0..3).all(|node| world.in_line(node) == 1));
    let lock = world.hand_on(all[0], lock, all[2]);
    assert_eq!(world.core(all[2]).stats().skipped, 0);
    world.release_and_settle(all[2], lock);
    world.assert_clean();
}

#[test]
fn a_wait_that_is_over_ends_as_contended_and_leaves_nothing() {
    let (mut world, all) = World::with_clients::<2>(3);
    let lock = world.acquire(all[0], LONG);
    let now = world.now();
    let wait = 150 * MS;
    world.client_mut(all[1]).acquire(KEY, LockOptions::new(LONG).wait(wait), 1, now).unwrap();
    world.pass(160 * MS);
    assert!(matches!(world.error(all[1]), Error::Contended(_)));
    assert!((0..3).all(|node| world.in_line(node) == 0));
    world.release_and_settle(all[0], lock);
    world.assert_clean();
}

#[test]
fn a_withdrawn_token_is_not_sent_again_for_a_script_that_was_forgotten() {
    let (mut world, all) = World::with_clients::<3>(3);
    let lock = world.acquire(all[0], TTL);
    let op = world.ask(all[1], TTL);
    world.deliver(all[1], 0..3, all[1]);
    // The nodes forget the scripts before the joins, which name them by their SHA1, arrive.
    world.run_on(0..3, &[b"SCRIPT", b"FLUSH"]);
    (0..3).for_each(|node| world.deliver_to_node(all[1], node));
    // Another client sends the sources, so the nodes know the scripts when the release arrives.
    world.ask(all[2], TTL);
    (0..3).for_each(|node| world.deliver_to_node(all[2], node));
    world.call(all[1], |core, now| core.cancel(op, now));
    world.settle();
    assert!((0..3).all(|node| world.in_line(node) == 1), "only the third one's token is there");
    world.release_and_settle(all[0], lock);
    world.win_and_release(all[2]);
    world.assert_clean();
}

#[test]
fn a_key_that_is_handed_to_a_token_without_a_record_is_given_back_there() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let gone = world.client();
    let op = world.ask_and_settle(gone, TTL);
    let member = world.line(0).pop().expect("it came last");
    world.call(gone, |core, now| core.cancel(op, now));
    world.settle();
    // Node 0 now executes a join that an earlier connection of the client sent.
    world.run(0, &[b"ZADD", LINE, b"0", &member]);
    let lock = world.hand_on(all[0], lock, all[1]);
    assert!(!member.ends_with(world.value(0).as_bytes()), "it was given back");
    world.release_and_settle(all[1], lock);
    world.assert_clean();
}

#[test]
fn a_lock_that_was_extended_leaves_the_lines_that_it_joined() {
    let (mut world, all) = World::with_clients::<2>(5);
    world.run_on(3..5, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    let now = world.now();
    world.client_mut(all[0]).acquire(KEY, LockOptions::new(TTL).wait(LONG), 1, now).unwrap();
    world.settle();
    let lock = world.won(all[0]);
    world.ask_and_settle(all[1], TTL / 2);
    let lock = world.hand_on(all[0], lock, all[1]);
    world.call(all[1], |core, now| core.extend(&lock, LONG, 3, now)).unwrap();
    world.settle();
    world.done[all[1]].clear();
    world.release_and_settle(all[1], lock);
    assert!((0..5).all(|node| world.in_line(node) == 0));
}

#[test]
fn a_lock_that_is_handed_off_leaves_the_lines_and_is_not_released() {
    let (mut world, all) = World::with_clients::<2>(5);
    // On nodes 3 and 4 another program has the key, so these nodes hand nothing over.
    world.run_on(3..5, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    let lock = world.acquire(all[0], TTL);
    world.ask_and_settle(all[1], TTL);
    let lock = world.hand_on(all[0], lock, all[1]);
    assert_eq!(world.in_line(4), 1, "it stands in line there");
    let token = world.call(all[1], |core, now| core.into_token(lock, now)).expect("it is held");
    world.settle();
    assert!((0..5).all(|node| world.in_line(node) == 0));
    let kept = (0..5).filter(|&node| world.value(node) == token.to_string()).count();
    assert_eq!(kept, 3);
}

#[test]
fn lines_that_differ_are_served_by_the_successor_that_the_holder_names() {
    let (mut world, all) = World::with_clients::<4>(5);
    let lock = world.won_in_line(all[0], TTL);
    world.ask_and_settle(all[1], TTL);
    // The last two waiters join the nodes in different orders.
    for client in [all[2], all[3]] {
        world.ask(client, TTL);
        (0..5).for_each(|node| world.deliver_to_node(client, node));
        (0..5).for_each(|node| world.deliver_to_client(client, node));
    }
    (0..2).for_each(|node| world.deliver_to_node(all[3], node));
    world.settle();
    assert_ne!(world.line(0)[1], world.line(4)[1]);
    world.release_and_settle(all[0], lock);
    world.win_and_release(all[1]);
    let lock = world.won(all[2]);
    let first = (0..5).filter(|&node| world.value(node) == world.value(4)).count();
    assert_eq!(first, 5, "all nodes agree");
    world.release_and_settle(all[2], lock);
    world.win_and_release(all[3]);
    world.assert_clean();
}

/// Three waiters, each the first in line on some of the nodes, and a holder that knows none of them
/// and so names no successor.
#[test]
fn a_split_is_resolved_for_the_one_with_the_most_nodes() {
    let (mut world, all) = World::with_clients::<4>(5);
    for &client in &all[1..] {
        // A client subscribes to its channels when it first waits, so each waits once here.
        let lock = world.won_in_line(client, TTL);
        world.release_and_settle(client, lock);
        world.done[client].clear();
    }
    world.pass(600 * MS);
    let lock = world.acquire(all[0], TTL);
    for &client in &all[1..] {
        world.ask(client, TTL);
        (0..5).for_each(|node| world.deliver_to_node(client, node));
        (0..5).for_each(|node| world.deliver_to_client(client, node));
    }
    for (client, nodes) in [(all[1], [0, 1]), (all[2], [2, 3]), (all[3], [4, 4])] {
        nodes.into_iter().for_each(|node| world.deliver_to_node(client, node));
    }
    world.settle();
    world.release_and_settle(all[0], lock);
    assert!(all[1..].iter().all(|&it| world.done[it].is_empty()), "nobody has a majority");
    let mut waiting: Vec<usize> = all[1..].to_vec();
    for _ in 0..3 {
        let mut winner = None;
        for _ in 0..100 {
            world.pass(MS);
            winner = waiting.iter().copied().find(|&it| !world.done[it].is_empty());
            if winner.is_some() {
                break;
            }
        }
        let winner = winner.expect("a waiter wins in 100 ms");
        waiting.retain(|&it| it != winner);
        world.win_and_release(winner);
    }
    let splits: u64 = all.iter().map(|&it| world.core(it).stats().splits).sum();
    assert!(splits >= 1);
    world.pass(100 * MS);
    world.assert_clean();
}
