//! The steps that tests of sets in line are made of, on in-process masters: requests for several
//! keys, what each master has at a key, and how long the line of a key is.

use std::time::Duration;

use redlatch::proto::Op;
use redlatch::{KeySet, Lock, LockOptions};

use super::line::{LONG, MS};
use super::line_world::World;

/// The value that another program writes to a key.
pub const ANOTHER: &[u8] = b"another";

/// The length of the line of the key at one node.
pub fn line_of(world: &World, node: usize, key: &[u8]) -> usize {
    let line = [&b"redlatch:line:{"[..], key, b"}"].concat();
    world.master(node).line(world.now(), &line).len()
}

/// The length of the line of the key at every node.
pub fn lines_of(world: &World, key: &[u8]) -> Vec<usize> {
    (0..world.nodes()).map(|node| line_of(world, node, key)).collect()
}

/// The client asks for the lock over these keys, and waits for it longer than any test lasts.
pub fn ask_for(world: &mut World, client: usize, keys: &[&[u8]]) -> Op {
    let op = ask_with(world, client, keys, LockOptions::new(LONG));
    world.settle();
    op
}

/// As `ask_for`, with these options. Nothing is delivered yet.
pub fn ask_with(world: &mut World, client: usize, keys: &[&[u8]], options: LockOptions) -> Op {
    let options = options.wait(Duration::from_secs(10_000));
    let now = world.now();
    let core = world.client_mut(client);
    match keys {
        [key] => core.acquire(*key, options, 1, now),
        keys => core.acquire(KeySet::new(keys).expect("a good set"), options, 1, now),
    }
    .expect("it can be asked for")
}

/// The value of the key at each node; empty if the key is absent.
pub fn holder_of(world: &World, key: &[u8]) -> Vec<String> {
    let value = |node| {
        let value = world.master(node).get(world.now(), 0, key).unwrap_or_default();
        String::from_utf8_lossy(value).into_owned()
    };
    (0..world.nodes()).map(value).collect()
}

/// Whether the key is this lock's at every node.
pub fn has_key_everywhere(world: &World, key: &[u8], lock: &Lock) -> bool {
    let token = lock.token().to_string();
    holder_of(world, key).iter().all(|value| *value == token)
}

/// Another program sets the key at these nodes, without a ttl.
pub fn take(world: &mut World, nodes: &[usize], key: &[u8]) {
    nodes.iter().for_each(|&node| world.run(node, &[b"SET", key, ANOTHER]));
}

/// An operator deletes the key at these nodes.
pub fn delete(world: &mut World, nodes: &[usize], key: &[u8]) {
    nodes.iter().for_each(|&node| world.run(node, &[b"DEL", key]));
}

/// The client wins the lock in line: it joins while another program has the key, and gets the key
/// when that is deleted. The release of such a lock hands the key over.
pub fn won_in_line(world: &mut World, client: usize, key: &[u8]) -> Lock {
    let nodes: Vec<usize> = (0..world.nodes()).collect();
    take(world, &nodes, key);
    ask_for(world, client, &[key]);
    delete(world, &nodes, key);
    world.settle();
    let lock = world.won(client);
    assert!(lock.token().hands_over());
    lock
}

/// A client waits for a set over `a` and `b`, and takes its keys in the order of their bytes. It
/// stands in line for `a`, which another client holds. On all nodes `b` is another program's.
/// Returns the first client, the client that holds `a`, and its lock.
pub fn behind_the_first_key() -> (World, usize, usize, Lock) {
    let (mut world, [set, first, second]) = World::with_clients(3);
    take(&mut world, &[0, 1, 2], b"b");
    ask_for(&mut world, first, &[b"a"]);
    let lock = world.won(first);
    ask_for(&mut world, set, &[b"a", b"b"]);
    ask_for(&mut world, second, &[b"a"]);
    assert_eq!(lines_of(&world, b"a"), [2; 3]);
    // The release hands `a` over to the set. The set is refused because of `b`, so it gives `a`
    // back, which hands it over to the second client.
    world.release_and_settle(first, lock);
    if world.done[second].is_empty() {
        world.pass(150 * MS);
    }
    let lock = world.won(second);
    assert_eq!((lines_of(&world, b"a"), lines_of(&world, b"b")), (vec![1; 3], vec![0; 3]));
    (world, set, second, lock)
}

/// A client holds a set on nodes 0 and 1. On node 2 `a` is free, and `b` is the earlier holder's
/// until its release arrives there. Returns the client, its lock, and the earlier holder.
pub fn held_by_two() -> (World, usize, Lock, usize) {
    let (mut world, [holder, set]) = World::with_clients(3);
    let lock = won_in_line(&mut world, holder, b"b");
    ask_for(&mut world, set, &[b"a", b"b"]);
    world.release(holder, lock);
    world.deliver(holder, [0, 1], set);
    world.stop(holder);
    world.settle();
    let lock = world.won(set);
    assert_eq!(lines_of(&world, b"b"), [0, 0, 1]);
    assert_eq!(holder_of(&world, b"a")[2], "");
    (world, set, lock, holder)
}

/// Asserts that no key and no line is left at any node.
pub fn assert_nothing_left(world: &World) {
    for node in 0..world.nodes() {
        let keys = world.master(node).keys(world.now(), 0);
        let ours: Vec<_> = keys.iter().filter(|key| **key != b"redlatch:node"[..]).collect();
        assert!(ours.is_empty(), "node {node} has {ours:?}");
    }
}
