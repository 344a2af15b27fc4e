//! Orders of steps that would break sets in line, or keep them from their turns.

use std::time::Duration;

use redlatch::proto::NodeId;
use redlatch::testing::master::Restart;
use redlatch::{KeySet, LockOptions};

use super::fair::{LONG, MS};
use super::fair_world::World;

fn ask(world: &mut World, client: usize, keys: &[&[u8]]) {
    let options = LockOptions::new(LONG).wait(Duration::from_secs(1000));
    let now = world.now;
    let core = &mut world.clients[client].core;
    match keys {
        [key] => core.acquire(*key, options, 1, now),
        keys => core.acquire(&KeySet::new(keys).expect("a good set"), options, 1, now),
    }
    .expect("it can be asked for");
}

/// Delivers everything in rounds, as `World::settle` does, but at most so many. Returns how many
/// commands a client wrote.
fn rounds(world: &mut World, client: usize, most: usize) -> usize {
    let mut commands = 0;
    for _ in 0..most {
        let mut moved = false;
        world.act(client);
        for node in 0..world.masters.len() {
            let bytes = world.clients[client].core.output(NodeId::new(node)).to_vec();
            commands += bytes.windows(9).filter(|it| it.starts_with(b"\r\nEVAL")).count();
            moved |= !bytes.is_empty();
            world.deliver_commands(client, node);
        }
        for node in 0..world.masters.len() {
            world.deliver_answers(client, node);
        }
        if !moved {
            break;
        }
    }
    commands
}

/// Each key is free on a majority, but no majority has both free.
#[test]
fn leftovers_on_two_nodes_do_not_make_a_set_ask_without_end() {
    let mut world = World::new(3);
    let set = world.client();
    world.run(1, &[b"SET", b"a", b"left", b"PX", b"60000"]);
    world.run(2, &[b"SET", b"b", b"left", b"PX", b"60000"]);
    ask(&mut world, set, &[b"a", b"b"]);
    // No time passes.
    let commands = rounds(&mut world, set, 1000);
    assert!(commands < 200, "{commands} commands at one moment");
    let mut commands = 0;
    for _ in 0..10_000 {
        world.now = world.now.saturating_add(MS);
        world.clients[set].core.handle_timeout(world.now);
        commands += rounds(&mut world, set, 1000);
    }
    assert!(commands < 5_000, "{commands} commands in 10 s");
}

/// One node is in quarantine, and one key is left on one other node.
#[test]
fn leftover_beside_a_node_in_quarantine_does_not_make_a_set_ask_without_end() {
    let mut world = World::new(3);
    let set = world.client();
    world.restart(2, Restart::Empty);
    world.pass(300 * MS);
    world.run(1, &[b"SET", b"b", b"left", b"PX", b"60000"]);
    ask(&mut world, set, &[b"a", b"b"]);
    let commands = rounds(&mut world, set, 1000);
    assert!(commands < 100, "{commands} commands at one moment");
    // A waiter in line writes three commands for each 75 ms.
    let mut commands = 0;
    for _ in 0..10_000 {
        world.now = world.now.saturating_add(MS);
        world.clients[set].core.handle_timeout(world.now);
        commands += rounds(&mut world, set, 1000);
    }
    assert!(commands < 5_000, "{commands} commands in 10 s");
}

fn line_of(world: &World, node: usize, key: &[u8]) -> usize {
    let line = [&b"redlatch:line:{"[..], key, b"}"].concat();
    world.masters[node].line(world.now, &line).len()
}

/// A caller waits for `a`, which a set keeps that waits for `b`.
#[test]
fn how_long_a_set_keeps_a_key_from_others() {
    let mut all = Vec::new();
    for skipped in 0..12 {
        let mut world = World::new(3);
        for _ in 0..skipped {
            world.client();
        }
        let (set, other) = (world.client(), world.client());
        for node in 0..3 {
            world.run(node, &[b"SET", b"a", b"another"]);
            world.run(node, &[b"SET", b"b", b"another"]);
        }
        let now = world.now;
        let options = LockOptions::new(Duration::from_secs(30)).wait(Duration::from_secs(10_000));
        let keys = KeySet::new([b"a", b"b"]).unwrap();
        world.clients[set].core.acquire(&keys, options, 1, now).unwrap();
        world.settle();
        (0..3).for_each(|node| world.run(node, &[b"DEL", b"a"]));
        world.pass(200 * MS);
        world.clients[other].core.acquire(&b"a"[..], options, 1, world.now).unwrap();
        world.settle();
        assert!(world.clients[other].done.is_empty());
        let since = world.now;
        while world.clients[other].done.is_empty()
            && world.now.saturating_since(since).as_secs() < 900
        {
            world.now = world.now.saturating_add(20 * MS);
            for client in 0..world.clients.len() {
                world.clients[client].core.handle_timeout(world.now);
            }
            world.settle();
        }
        all.push(world.now.saturating_since(since).as_secs());
    }
    assert!(all.iter().sum::<u64>() < 12 * 20, "seconds: {all:?}");
}

/// A poll of the earlier line is in flight when the set goes on to the next one, and its node has
/// said before that the key is the set's.
#[test]
fn late_poll_of_an_earlier_line_leaves_no_member() {
    let mut world = World::new(3);
    let (set, other) = (world.client(), world.client());
    for node in 0..3 {
        world.run(node, &[b"SET", b"b", b"another"]);
    }
    ask(&mut world, other, &[b"a"]);
    world.settle();
    let lock = world.won(other);
    ask(&mut world, set, &[b"a", b"b"]);
    world.settle();
    // The next one in line.
    let third = world.client();
    ask(&mut world, third, &[b"a"]);
    world.settle();
    assert_eq!(line_of(&world, 0, b"a"), 2);
    // The set has `a`, is refused because of `b`, and gives `a` to the third.
    world.release(other, lock);
    world.settle();
    if world.clients[third].done.is_empty() {
        world.pass(150 * MS);
    }
    let lock = world.won(third);
    assert_eq!([0, 1, 2].map(|node| line_of(&world, node, b"a")), [1; 3]);
    // Only node 2 hands it to the set, which polls then.
    world.frozen = vec![0, 1];
    world.release(third, lock);
    world.settle();
    world.frozen = vec![0, 1, 2];
    world.pass(6 * MS);
    assert!(!world.output(set, 2).is_empty(), "it polls");
    world.run(2, &[b"SET", b"a", b"another"]);
    // The others hand it over, too, and the set goes on.
    world.frozen = vec![2];
    world.settle();
    assert_eq!([0, 1].map(|node| line_of(&world, node, b"b")), [1; 2]);
    world.frozen = Vec::new();
    world.settle();
    println!("lines at node 2: a {}, b {}", line_of(&world, 2, b"a"), line_of(&world, 2, b"b"));
    world.pass(300 * MS);
    println!("lines at node 2: a {}, b {}", line_of(&world, 2, b"a"), line_of(&world, 2, b"b"));
    let now = world.now;
    world.clients[set].core.close(now);
    world.settle();
    assert_eq!([0, 1, 2].map(|node| line_of(&world, node, b"a")), [0; 3]);
    assert_eq!([0, 1, 2].map(|node| line_of(&world, node, b"b")), [0; 3]);
}

/// A set of many keys goes through as many lines.
#[test]
fn set_of_many_keys_leaves_no_member() {
    let mut world = World::new(3);
    let set = world.client();
    let keys: Vec<String> = (0..24).map(|key| format!("k{key:02}")).collect();
    world.run(2, &[b"SET", b"k00", b"another"]);
    for key in &keys[1..] {
        (0..2).for_each(|node| world.run(node, &[b"SET", key.as_bytes(), b"another"]));
    }
    let options = LockOptions::new(LONG).wait(Duration::from_secs(1000));
    let now = world.now;
    let all = KeySet::new(keys.iter().map(String::as_bytes)).unwrap();
    world.clients[set].core.acquire(&all, options, 1, now).unwrap();
    world.settle();
    for key in &keys[1..] {
        (0..2).for_each(|node| world.run(node, &[b"DEL", key.as_bytes()]));
        world.pass(150 * MS);
        println!("{key}: {}", line_of(&world, 2, b"k00"));
    }
    let lock = world.won(set);
    world.release(set, lock);
    world.settle();
    for node in 0..3 {
        let lines: Vec<_> =
            keys.iter().filter(|key| line_of(&world, node, key.as_bytes()) > 0).collect();
        assert!(lines.is_empty(), "node {node}: {lines:?}");
    }
}

/// Single keys and a set with a short ttl, which keeps `a` and stands in a long line for `b`.
#[test]
fn set_with_a_short_ttl_has_its_turn_in_a_long_line() {
    let mut world = World::new(3);
    let set = world.client();
    let others: Vec<usize> = (0..30).map(|_| world.client()).collect();
    for node in 0..3 {
        world.run(node, &[b"SET", b"a", b"another"]);
    }
    for &other in &others {
        ask(&mut world, other, &[b"b"]);
        world.settle();
    }
    let options = LockOptions::new(200 * MS).wait(Duration::from_secs(10_000));
    let keys = KeySet::new([b"a", b"b"]).unwrap();
    let now = world.now;
    world.clients[set].core.acquire(&keys, options, 1, now).unwrap();
    world.settle();
    (0..3).for_each(|node| world.run(node, &[b"DEL", b"a"]));
    let mut held: Vec<(usize, redlatch::Lock, _)> = Vec::new();
    let (since, mut turns) = (world.now, 0);
    while world.clients[set].done.is_empty() && world.now.saturating_since(since).as_secs() < 60 {
        world.pass(10 * MS);
        for &other in &others {
            if !world.clients[other].done.is_empty() {
                if let Some(lock) = world.lock(other) {
                    turns += 1;
                    held.push((other, lock, world.now.saturating_add(100 * MS)));
                }
            }
        }
        let now = world.now;
        let (over, on): (Vec<_>, Vec<_>) = held.into_iter().partition(|it| it.2 <= now);
        held = on;
        for (other, lock, _) in over {
            world.release(other, lock);
            ask(&mut world, other, &[b"b"]);
            world.settle();
        }
    }
    let took = world.now.saturating_since(since);
    println!("after {took:?} and {turns} turns of the others");
    assert!(turns < 100, "{turns} turns of the others before the first one of the set, {took:?}");
}

/// A node is admitted while a set asks for the keys that it keeps: it is asked for a place in the
/// line of the key before. Its answer says nothing of the next line.
#[test]
fn answer_about_the_line_before_is_no_hold_in_the_next_one() {
    let mut world = World::new(3);
    let (set, other, third) = (world.client(), world.client(), world.client());
    (0..3).for_each(|node| world.run(node, &[b"SET", b"b", b"another"]));
    ask(&mut world, other, &[b"a"]);
    world.settle();
    let lock = world.won(other);
    ask(&mut world, set, &[b"a", b"b"]);
    world.settle();
    ask(&mut world, third, &[b"a"]);
    world.settle();
    // The set has `a`, is refused because of `b`, and stands in line for `a` once more.
    world.release(other, lock);
    world.settle();
    if world.clients[third].done.is_empty() {
        world.pass(150 * MS);
    }
    let lock = world.won(third);
    world.frozen = vec![2];
    world.cut(set, 2);
    world.pass(20 * MS);
    world.frozen = vec![0, 1, 2];
    world.release(third, lock);
    (0..3).for_each(|node| world.deliver_commands(third, node));
    (0..2).for_each(|node| world.deliver_answers(set, node));
    for _ in 0..6 {
        let text = world.output(set, 0);
        if text.contains("\r\n$1\r\na\r\n")
            && !text.contains("\r\n$1\r\nb\r\n")
            && !text.contains("line")
        {
            break;
        }
        (0..2).for_each(|node| world.deliver_commands(set, node));
        (0..2).for_each(|node| world.deliver_answers(set, node));
    }
    println!("0: {:?}", world.output(set, 0));
    for _ in 0..20 {
        world.act(set);
        if world.output(set, 2).contains("redlatch:line:{") {
            break;
        }
        world.deliver_commands(set, 2);
        world.deliver_answers(set, 2);
    }
    println!("2: {:?}", world.output(set, 2));
    assert!(world.output(set, 2).contains("redlatch:line:{a}"));
    world.run(0, &[b"DEL", b"b"]);
    let kept = |world: &World| {
        let value = world.masters[0].get(world.now, 0, b"a").unwrap_or_default();
        String::from_utf8_lossy(&value).into_owned()
    };
    let before = kept(&world);
    for _ in 0..2 {
        (0..2).for_each(|node| world.deliver_commands(set, node));
        (0..2).for_each(|node| world.deliver_answers(set, node));
    }
    assert_eq!([0, 1].map(|node| line_of(&world, node, b"b")), [0, 1]);
    world.deliver_commands(set, 2);
    world.deliver_answers(set, 2);
    world.frozen = Vec::new();
    world.settle();
    assert_eq!(kept(&world), before, "it began anew");
}
