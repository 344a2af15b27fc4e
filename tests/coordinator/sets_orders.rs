//! Orders of events that could leave keys or members of lines behind, make sets ask without end, or
//! keep them from their turns.

use std::time::Duration;

use redlatch::testing::master::Restart;
use redlatch::{Lock, LockOptions};

use super::line::{LONG, MS};
use super::line_world::World;
use super::sets_world::{
    ask_for, ask_with, behind_the_first_key, delete, holder_of, lines_of, take,
};

const BOTH: [&[u8]; 2] = [b"a", b"b"];

/// Delivers everything without letting time pass, in at most 1,000 round trips. Returns how many
/// scripts the client sent.
fn scripts_at_one_moment(world: &mut World, client: usize) -> usize {
    let mut scripts = 0;
    for _ in 0..1_000 {
        world.write(client);
        let nodes = 0..world.nodes();
        let written: String = nodes.clone().map(|node| world.output(client, node)).collect();
        if written.is_empty() {
            break;
        }
        scripts += written.matches("\r\nEVAL").count();
        nodes.clone().for_each(|node| world.deliver_to_node(client, node));
        nodes.for_each(|node| world.deliver_to_client(client, node));
    }
    scripts
}

/// Lets so many milliseconds pass. Returns how many scripts the client sent.
fn scripts_within(world: &mut World, client: usize, millis: usize) -> usize {
    let step = |_| {
        world.advance(MS);
        world.expire(client);
        scripts_at_one_moment(world, client)
    };
    (0..millis).map(step).sum()
}

/// Another program left the key at this node, for a minute.
fn leave_over(world: &mut World, node: usize, key: &[u8]) {
    world.run(node, &[b"SET", key, b"left", b"PX", b"60000"]);
}

/// Each key is free on a majority, but no majority has both keys free.
#[test]
fn leftovers_on_two_nodes_do_not_make_a_set_ask_without_end() {
    let (mut world, [set]) = World::with_clients(3);
    leave_over(&mut world, 1, b"a");
    leave_over(&mut world, 2, b"b");
    ask_with(&mut world, set, &BOTH, LockOptions::new(LONG));
    let scripts = scripts_at_one_moment(&mut world, set);
    assert!(scripts < 200, "{scripts} scripts at one moment");
    let scripts = scripts_within(&mut world, set, 10_000);
    assert!(scripts < 5_000, "{scripts} scripts in 10 s");
}

/// Node 2 is in quarantine, and on node 1 another program left `b`, so no majority can grant it.
#[test]
fn leftover_and_a_node_in_quarantine_do_not_make_a_set_ask_without_end() {
    let (mut world, [set]) = World::with_clients(3);
    world.restart(2, Restart::Empty);
    world.pass(300 * MS);
    leave_over(&mut world, 1, b"b");
    ask_with(&mut world, set, &BOTH, LockOptions::new(LONG));
    let scripts = scripts_at_one_moment(&mut world, set);
    assert!(scripts < 100, "{scripts} scripts at one moment");
    // A waiter in line sends three scripts in 75 ms.
    let scripts = scripts_within(&mut world, set, 10_000);
    assert!(scripts < 5_000, "{scripts} scripts in 10 s");
}

/// How many seconds a client waits for `a`, which a set keeps that waits for `b` without end. When
/// the set gives `a` up is random, and depends on the number of its client.
fn seconds_until_a_kept_key_is_given_up(number: usize) -> u64 {
    let mut world = World::new(3);
    for _ in 0..number {
        world.client();
    }
    let (set, other) = (world.client(), world.client());
    take(&mut world, &[0, 1, 2], b"a");
    take(&mut world, &[0, 1, 2], b"b");
    let options = LockOptions::new(Duration::from_secs(30));
    ask_with(&mut world, set, &BOTH, options);
    world.settle();
    delete(&mut world, &[0, 1, 2], b"a");
    world.pass(200 * MS);
    ask_with(&mut world, other, &[b"a"], options);
    world.settle();
    assert!(world.done[other].is_empty(), "the set keeps `a`");
    for steps in 1..=900 * 50 {
        world.advance(20 * MS);
        for client in [set, other] {
            world.expire(client);
        }
        world.settle();
        if !world.done[other].is_empty() {
            return steps / 50;
        }
    }
    panic!("the set keeps `a` for more than 900 s");
}

/// In each second the set gives its key up with a chance of one in eight, so 8 s are the mean.
#[test]
fn set_that_keeps_a_key_and_makes_no_progress_gives_it_up_within_seconds() {
    let all: Vec<u64> = (0..12).map(seconds_until_a_kept_key_is_given_up).collect();
    assert!(all.iter().sum::<u64>() < 12 * 20, "seconds: {all:?}");
}

/// Node 2 hands `a` over to the set, and then another program takes it. A poll of the line of `a`
/// is in flight to this node when the set goes on to the line of `b`.
#[test]
fn late_poll_of_an_earlier_line_leaves_no_member() {
    let (mut world, set, holder, lock) = behind_the_first_key();
    world.cut_off(&[0, 1]);
    world.release_and_settle(holder, lock);
    world.cut_off(&[0, 1, 2]);
    world.pass(6 * MS);
    assert!(!world.output(set, 2).is_empty(), "it polls");
    take(&mut world, &[2], b"a");
    // Now nodes 0 and 1 hand `a` over, too.
    world.cut_off(&[2]);
    world.settle();
    assert_eq!(lines_of(&world, b"b")[..2], [1; 2]);
    world.cut_off(&[]);
    world.settle();
    world.pass(300 * MS);
    assert_eq!((lines_of(&world, b"a")[2], lines_of(&world, b"b")), (1, vec![1; 3]));
    world.call(set, |core, now| core.close(now));
    world.settle();
    assert_eq!((lines_of(&world, b"a"), lines_of(&world, b"b")), (vec![0; 3], vec![0; 3]));
}

/// A set of many keys goes through the lines of all of them. All the time its token stands in the
/// line of the first key on node 2.
#[test]
fn set_of_many_keys_leaves_no_member() {
    let (mut world, [set]) = World::with_clients(3);
    let names: Vec<String> = (0..24).map(|key| format!("k{key:02}")).collect();
    let keys: Vec<&[u8]> = names.iter().map(String::as_bytes).collect();
    take(&mut world, &[2], keys[0]);
    keys[1..].iter().for_each(|key| take(&mut world, &[0, 1], key));
    ask_for(&mut world, set, &keys);
    for (passed, key) in keys[1..].iter().enumerate() {
        delete(&mut world, &[0, 1], key);
        world.pass(150 * MS);
        assert_eq!(lines_of(&world, keys[0])[2], 1, "after {passed} lines");
    }
    world.win_and_release(set);
    for key in keys {
        assert_eq!(lines_of(&world, key), [0; 3], "{}", String::from_utf8_lossy(key));
    }
}

/// The other clients take turns with `b`, 100 ms each, while a set waits. Returns how many turns
/// they have before the set has its first.
fn turns_before(world: &mut World, set: usize, others: &[usize]) -> usize {
    let mut held: Vec<(usize, Lock, usize)> = Vec::new();
    let mut turns = 0;
    for step in 0..6_000 {
        world.pass(10 * MS);
        if !world.done[set].is_empty() {
            return turns;
        }
        for &other in others {
            if !world.done[other].is_empty() {
                held.extend(world.lock(other).map(|lock| (other, lock, step + 10)));
            }
        }
        let over = |&(_, _, until): &(usize, Lock, usize)| until <= step;
        let (ended, rest): (Vec<_>, Vec<_>) = held.into_iter().partition(over);
        held = rest;
        for (other, lock, _) in ended {
            turns += 1;
            world.release(other, lock);
            ask_for(world, other, &[b"b"]);
        }
    }
    panic!("{turns} turns of the others in 60 s, and none of the set");
}

/// The set keeps `a` with a short ttl, and renews it many times while it waits in the long line of
/// `b`.
#[test]
fn set_with_a_short_ttl_has_its_turn_in_a_long_line() {
    let (mut world, [set]) = World::with_clients(3);
    let others: Vec<usize> = (0..30).map(|_| world.client()).collect();
    take(&mut world, &[0, 1, 2], b"a");
    for &other in &others {
        ask_for(&mut world, other, &[b"b"]);
    }
    ask_with(&mut world, set, &BOTH, LockOptions::new(200 * MS));
    world.settle();
    delete(&mut world, &[0, 1, 2], b"a");
    let turns = turns_before(&mut world, set, &others);
    assert!(turns < 100, "{turns} turns of the others before the first one of the set");
}

/// Delivers what the client writes to nodes 0 and 1, and what they answer, until the client has
/// written a request to node 0 for which `is_next` returns true.
fn exchange_until(world: &mut World, client: usize, is_next: impl Fn(&str) -> bool) {
    for _ in 0..6 {
        if is_next(&world.output(client, 0)) {
            return;
        }
        (0..2).for_each(|node| world.deliver_to_node(client, node));
        (0..2).for_each(|node| world.deliver_to_client(client, node));
    }
    panic!("the client writes {:?}", world.output(client, 0));
}

/// Node 2 becomes ready while the set asks for `a`, to keep it, so the set joins the line of `a`
/// there. The answer must not count for the line of `b`.
#[test]
fn answer_about_an_earlier_line_does_not_count_for_the_next_one() {
    let (mut world, set, holder, lock) = behind_the_first_key();
    world.cut_off(&[2]);
    world.cut(set, 2);
    world.pass(20 * MS);
    world.cut_off(&[0, 1, 2]);
    world.release(holder, lock);
    (0..3).for_each(|node| world.deliver_to_node(holder, node));
    (0..2).for_each(|node| world.deliver_to_client(set, node));
    let names = |text: &str, key: &str| text.contains(&format!("\r\n$1\r\n{key}\r\n"));
    exchange_until(&mut world, set, |text| {
        names(text, "a") && !names(text, "b") && !text.contains("line")
    });
    world.open(set, 2);
    for _ in 0..20 {
        if world.output(set, 2).contains("redlatch:line:{") {
            break;
        }
        world.deliver_to_node(set, 2);
        world.deliver_to_client(set, 2);
    }
    assert!(world.output(set, 2).contains("redlatch:line:{a}"));
    delete(&mut world, &[0], b"b");
    let kept = holder_of(&world, b"a");
    for _ in 0..2 {
        (0..2).for_each(|node| world.deliver_to_node(set, node));
        (0..2).for_each(|node| world.deliver_to_client(set, node));
    }
    assert_eq!(lines_of(&world, b"b")[..2], [0, 1]);
    world.deliver_to_node(set, 2);
    world.deliver_to_client(set, 2);
    world.cut_off(&[]);
    world.settle();
    assert_eq!(holder_of(&world, b"a")[0], kept[0], "it began anew");
}
