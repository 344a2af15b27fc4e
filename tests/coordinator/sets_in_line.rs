//! Locks over several keys that wait in line, against in-process masters.

use std::time::Duration;

use redlatch::testing::master::Trouble;
use redlatch::{KeySet, LockOptions};

use super::line::{LONG, MS};
use super::line_world::World;
use super::sets_world::{
    ask_for, assert_nothing_left, has_key_everywhere, holder_of, line_of, lines_of,
};

const ALL: [&[u8]; 3] = [b"a", b"b", b"c"];

#[test]
fn set_that_is_refused_stands_in_the_line_of_the_key_in_the_way_and_holds_nothing() {
    let (mut world, [holder, set]) = World::with_clients(3);
    ask_for(&mut world, holder, &[b"b"]);
    let lock = world.won(holder);
    ask_for(&mut world, set, &ALL);
    assert_eq!(ALL.map(|key| line_of(&world, 0, key)), [0, 1, 0]);
    assert!(has_key_everywhere(&world, b"b", &lock));
    assert_eq!(holder_of(&world, b"a").concat() + &holder_of(&world, b"c").concat(), "");
    let lock = world.hand_on(holder, lock, set);
    assert!(ALL.iter().all(|key| has_key_everywhere(&world, key, &lock)));
    world.release_and_settle(set, lock);
    assert_nothing_left(&world);
}

/// Two of five nodes refuse `a`, which leaves a majority, and three refuse `b`, which leaves none.
/// So the set waits for `b`.
#[test]
fn set_waits_for_the_key_that_leaves_no_majority() {
    let (mut world, [set]) = World::with_clients(5);
    world.run_on(0..2, &[b"SET", b"a", b"another", b"PX", b"60000"]);
    world.run_on(2..5, &[b"SET", b"b", b"another", b"PX", b"60000"]);
    ask_for(&mut world, set, &ALL);
    // The set gets `b` on the nodes where it is free, and stands in line for it on the others. It
    // stands in no line for `a`.
    assert_eq!([0, 2].map(|node| line_of(&world, node, b"b")), [0, 1]);
    assert_eq!([0, 2].map(|node| line_of(&world, node, b"a")), [0, 0]);
}

/// A set waits for one key, gets it, and is refused because of another one. From then on it takes
/// its keys in the order of their bytes, and keeps those that it has while it waits for the next.
#[test]
fn set_that_is_refused_again_keeps_its_first_keys_and_waits_for_the_next_one() {
    let (mut world, all) = World::with_clients::<4>(3);
    ask_for(&mut world, all[0], &[b"b"]);
    let b = world.won(all[0]);
    ask_for(&mut world, all[1], &ALL);
    ask_for(&mut world, all[2], &[b"c"]);
    let c = world.won(all[2]);
    // The set gets `b`, and is refused because of `c`. So it takes `a` and `b`, and keeps them.
    world.release_and_settle(all[0], b);
    world.pass(200 * MS);
    assert_eq!(ALL.map(|key| line_of(&world, 0, key)), [0, 0, 1]);
    let kept = holder_of(&world, b"a");
    assert!(!kept[0].is_empty() && holder_of(&world, b"b") == kept);
    // Another client waits for `a` meanwhile.
    ask_for(&mut world, all[3], &[b"a"]);
    world.pass(10 * MS);
    assert_eq!(line_of(&world, 0, b"a"), 1);
    let mut c = Some(c);
    if world.master(0).get(world.now(), 0, b"c").is_some() {
        world.release_and_settle(all[2], c.take().expect("it is held"));
    }
    let lock = world.won(all[1]);
    assert!(ALL.iter().all(|key| has_key_everywhere(&world, key, &lock)));
    assert!(world.done[all[3]].is_empty());
    // The release of the set hands `a` over to this client.
    world.release_and_settle(all[1], lock);
    world.win_and_release(all[3]);
    assert_nothing_left(&world);
}

#[test]
fn kept_keys_are_renewed_while_the_set_waits_for_longer_than_their_ttl() {
    let (mut world, [set]) = World::with_clients(3);
    world.run_on(0..3, &[b"SET", b"b", b"another"]);
    ask_for(&mut world, set, &ALL);
    // The set gets `b`, and then waits for `c`, which another program has.
    for node in 0..3 {
        world.run(node, &[b"SET", b"c", b"another"]);
        world.run(node, &[b"DEL", b"b"]);
    }
    world.pass(200 * MS);
    let mut kept = 0;
    for _ in 0..60 {
        world.pass(1000 * MS);
        kept += usize::from(holder_of(&world, b"a").iter().filter(|it| !it.is_empty()).count() > 1);
    }
    assert!(kept >= 50, "kept at {kept} of 60 moments: it begins anew now and then");
    world.run_on(0..3, &[b"DEL", b"c"]);
    world.pass(2000 * MS);
    world.win_and_release(set);
    assert_nothing_left(&world);
}

/// Clients that want sets in crossed orders, or single keys: each has many turns.
#[test]
fn crossed_sets_and_single_keys_have_their_turns() {
    let wishes: [&[&[u8]]; 6] =
        [&[b"b", b"a"], &[b"a", b"b"], &[b"c", b"b"], &[b"a", b"c"], &[b"a"], &[b"c"]];
    let mut world = World::new(3);
    let all: Vec<usize> = wishes.iter().map(|_| world.client()).collect();
    for (&client, keys) in all.iter().zip(wishes) {
        ask_for(&mut world, client, keys);
    }
    let mut turns = [0; 6];
    for _ in 0..3000 {
        world.pass(MS);
        for (&client, keys) in all.iter().zip(wishes) {
            if world.done[client].is_empty() {
                continue;
            }
            let Some(lock) = world.lock(client) else { continue };
            assert!(keys.iter().all(|key| {
                let token = lock.token().to_string();
                holder_of(&world, key).iter().filter(|value| **value == token).count() > 1
            }));
            turns[client] += 1;
            world.release(client, lock);
            ask_for(&mut world, client, keys);
        }
    }
    assert!(turns.iter().all(|&turns| turns >= 100), "{turns:?}");
}

/// Returns how many holds of others a request had to wait for at most, over so many turns. Each
/// client wants two of three keys, so two sets are never held at the same time.
fn most_holds_before_a_turn(wishes: &[&[&[u8]]], turns: usize, seed: usize) -> usize {
    let mut world = World::new(3);
    let all: Vec<usize> = wishes.iter().map(|_| world.client()).collect();
    for (&client, keys) in all.iter().zip(wishes) {
        ask_for(&mut world, client, keys);
    }
    let mut waited = vec![0; all.len()];
    let mut most = 0;
    for turn in 0..turns {
        let holder = (0..10_000).find_map(|_| {
            let found = all.iter().find_map(|&it| Some((it, world.lock(it)?)));
            if found.is_none() {
                world.pass(MS / 4);
            }
            found
        });
        let (client, lock) = holder.expect("somebody has a turn");
        most = most.max(waited[client]);
        waited[client] = 0;
        all.iter().filter(|&&it| it != client).for_each(|&it| waited[it] += 1);
        // Vary the length of the hold, and which client asks first after it.
        world.pass(MS * ((turn * 7 + seed) % 5) as u32 / 2);
        world.release(client, lock);
        if (turn + seed) % 3 == 0 {
            world.settle();
        }
        ask_for(&mut world, client, wishes[client]);
    }
    most
}

/// n sets compete for K keys. A set that takes its keys in the order of their bytes waits for at
/// most as many holds of others as the sum of the binomial coefficients (n - 1 over i), i = 1..K.
/// Before that it waits for those that stand before it in the line of the first key that it was
/// refused. Here n is 5 and K is 3.
#[test]
fn no_set_waits_for_more_holds_of_others_than_the_bound() {
    let wishes: [&[&[u8]]; 5] =
        [&[b"a", b"b"], &[b"b", b"c"], &[b"a", b"c"], &[b"b", b"c"], &[b"a", b"b"]];
    let (in_order, before) = (4 + 6 + 4, 4);
    let most = (0..6).map(|seed| most_holds_before_a_turn(&wishes, 400, seed)).max();
    assert!(most <= Some(in_order + before), "{most:?} holds of others");
}

#[test]
fn set_that_gives_up_leaves_every_line_and_key() {
    // The wait ends when the set was refused once, when it was refused twice, or while it keeps
    // keys.
    for moment in [5, 50, 4000] {
        let (mut world, [set]) = World::with_clients(3);
        world.run_on(0..3, &[b"SET", b"b", b"another"]);
        let options = LockOptions::new(LONG).wait(Duration::from_millis(moment));
        let now = world.now();
        let keys = KeySet::new(ALL).expect("a good set");
        world.client_mut(set).acquire(&keys, options, 1, now).expect("it can be asked for");
        world.settle();
        if moment > 5 {
            for node in 0..3 {
                world.run(node, &[b"SET", b"c", b"another"]);
                world.run(node, &[b"DEL", b"b"]);
            }
        }
        world.pass((moment + 100) as u32 * MS);
        world.run_on(0..3, &[b"DEL", b"b", b"c"]);
        world.pass(1000 * MS);
        assert_nothing_left(&world);
    }
}

/// A node that refuses the channel has the waiter in line as a member without one. So the release
/// must name a member without one, also after the set has moved on to the line of another key,
/// where this node does not take part.
#[test]
fn set_that_moved_on_leaves_the_line_of_a_node_that_refused_its_channel() {
    let (mut world, [set]) = World::with_clients(3);
    let reply = "-NOPERM no permissions to run the 'subscribe' command\r\n".into();
    world.master_mut(0).suffer(Trouble::Answers { commands: vec!["subscribe".into()], reply });
    world.run_on(0..3, &[b"SET", b"b", b"another"]);
    let op = ask_for(&mut world, set, &ALL);
    world.settle();
    assert_eq!(lines_of(&world, b"b"), [1, 1, 1]);
    world.run(0, &[b"SET", b"a", b"another"]);
    world.freeze(0);
    for node in 1..3 {
        world.run(node, &[b"SET", b"c", b"another"]);
        world.run(node, &[b"DEL", b"b"]);
    }
    world.pass(20 * MS);
    assert_eq!(lines_of(&world, b"c"), [0, 1, 1], "it has moved on");
    world.call(set, |core, now| core.cancel(op, now));
    world.thaw(0);
    world.settle();
    assert_eq!(ALL.map(|key| lines_of(&world, key)), [[0; 3]; 3]);
}
