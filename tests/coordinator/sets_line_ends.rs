//! How a set gets into a line, and whether its token leaves all lines when the set is released or
//! handed off, or when its client ends.

use redlatch::proto::KeySet;
use redlatch::testing::master::Trouble;
use redlatch::{Lock, LockOptions, LockToken};

use super::line::{LONG, MS};
use super::line_world::World;
use super::sets_world::{
    ask_for, ask_with, assert_nothing_left, delete, has_key_everywhere, held_by_two, holder_of,
    lines_of, take, won_in_line,
};

/// A client wins a set over `a` and `b` in the line of `b`, with another client behind it there.
/// Returns the first client, its lock, and the other client.
fn win_set_with_one_behind() -> (World, usize, Lock, usize) {
    let (mut world, [holder, set, behind]) = World::with_clients(3);
    let lock = won_in_line(&mut world, holder, b"b");
    ask_for(&mut world, set, &[b"a", b"b"]);
    ask_for(&mut world, behind, &[b"b"]);
    assert_eq!(lines_of(&world, b"b"), [2; 3]);
    let lock = world.hand_on(holder, lock, set);
    (world, set, lock, behind)
}

/// The client hands its set off by a token, and the client that adopts it releases it.
#[test]
fn adopted_set_that_was_won_in_line_hands_its_keys_over() {
    let (mut world, set, lock, behind) = win_set_with_one_behind();
    let adopter = world.client();
    let now = world.now();
    let token = world.client_mut(set).into_token(lock, now).expect("it is held");
    world.settle();
    let keys = KeySet::new([b"a", b"b"]).expect("a good set");
    world.client_mut(adopter).adopt(&keys, token, LONG, 1, now).expect("it can be asked for");
    world.settle();
    let lock = world.won(adopter);
    assert!(has_key_everywhere(&world, b"a", &lock) && has_key_everywhere(&world, b"b", &lock));
    world.release_and_settle(adopter, lock);
    assert_eq!(world.now(), now);
    let lock = world.won(behind);
    assert!(has_key_everywhere(&world, b"b", &lock));
    world.release_and_settle(behind, lock);
    assert_nothing_left(&world);
}

/// The client remembers that another client stood behind its set in the line of `b`. So its next
/// request with `b` joins this line first.
#[test]
fn client_joins_at_once_the_line_in_which_others_stood_behind_its_set() {
    let in_line_of_b = |world: &World, client, node| {
        let written = world.output(client, node);
        written.matches("\r\nEVAL").count() == 1
            && written.contains("redlatch:line:{b}")
            && !written.contains("\r\nSET\r\n")
    };
    let wishes: [&[&[u8]]; 3] = [&[b"b"], &[b"a", b"b"], &[b"b", b"c"]];
    for keys in wishes {
        let (mut world, set, lock, behind) = win_set_with_one_behind();
        world.release_and_settle(set, lock);
        ask_with(&mut world, set, keys, LockOptions::new(LONG));
        assert!((0..3).all(|node| in_line_of_b(&world, set, node)), "{}", world.output(set, 0));
        world.settle();
        world.win_and_release(behind);
        assert!(world.lock(set).is_some());
    }
}

/// A set waits in the local queue for a lock of its own client, behind which another client stands
/// in line. When its turn comes, the set joins that line.
#[test]
fn set_that_waited_for_its_own_client_joins_at_once_the_line_in_which_others_stand() {
    let (mut world, set, lock, behind) = win_set_with_one_behind();
    ask_with(&mut world, set, &[b"b", b"c"], LockOptions::new(LONG));
    world.release(set, lock);
    for node in 0..3 {
        let written = world.output(set, node);
        assert!(written.contains("redlatch:line:{b}"), "{written}");
        assert!(!written.contains("\r\n$1\r\nc\r\n"), "it asks for both keys: {written}");
    }
    world.settle();
    world.win_and_release(behind);
    assert!(world.lock(set).is_some());
}

/// No other client stood in the line of `a`, so the client does not join that first.
#[test]
fn client_asks_at_once_for_the_other_keys_of_a_set_that_was_won_in_line() {
    let (mut world, set, lock, _) = win_set_with_one_behind();
    world.release_and_settle(set, lock);
    world.pass(20 * MS);
    ask_with(&mut world, set, &[b"a"], LockOptions::new(LONG));
    assert!(world.output(set, 0).contains("\r\nSET\r\n"), "{}", world.output(set, 0));
}

/// On node 2 `b` is still the earlier holder's when the set is won and handed off.
#[test]
fn set_that_is_handed_off_leaves_the_line_of_a_minority() {
    let (mut world, set, lock, _) = held_by_two();
    world.call(set, |core, now| core.into_token(lock, now)).expect("it is held");
    world.settle();
    assert_eq!((lines_of(&world, b"a"), lines_of(&world, b"b")), (vec![0; 3], vec![0; 3]));
    world.resume_all();
    world.settle();
    assert_eq!(holder_of(&world, b"b")[2], "", "it was not handed to a token without an owner");
}

/// The set takes its keys in order. It has `a` on nodes 0 and 1, while its token stays in the line
/// of `a` on node 2. It is won in the line of `c`.
#[test]
fn release_of_a_set_takes_its_token_out_of_the_line_of_an_earlier_key() {
    let (mut world, [set]) = World::with_clients(3);
    take(&mut world, &[2], b"a");
    take(&mut world, &[0, 1], b"b");
    take(&mut world, &[0, 1], b"c");
    ask_for(&mut world, set, &[b"a", b"b", b"c"]);
    delete(&mut world, &[0, 1], b"b");
    world.pass(150 * MS);
    assert_eq!(
        [b"a", b"b", b"c"].map(|key| lines_of(&world, key)),
        [[0, 0, 1], [0, 0, 0], [1, 1, 0]]
    );
    delete(&mut world, &[0, 1], b"c");
    world.pass(150 * MS);
    world.win_and_release(set);
    assert_eq!(lines_of(&world, b"a"), [0; 3]);
    delete(&mut world, &[2], b"a");
    assert_nothing_left(&world);
}

/// The client asks for its keys again soon after a long hold, so its token says that a release
/// hands them over. The nodes do not permit the user the commands of the line.
#[test]
fn client_without_the_rights_of_the_line_leaves_no_key_when_it_is_closed() {
    let keys: [&[&[u8]]; 2] = [&[b"a"], &[b"a", b"b"]];
    let cases = keys.into_iter().flat_map(|keys| {
        [
            (keys, "zrange", false),
            (keys, "zrange", true),
            (keys, "zrem", false),
            (keys, "zrem", true),
        ]
    });
    for (keys, command, answers_are_read) in cases {
        let case = format!("{} keys, {command}, answers read: {answers_are_read}", keys.len());
        let (mut world, [client]) = World::with_clients(3);
        ask_for(&mut world, client, keys);
        let lock = world.won(client);
        world.pass(20 * MS);
        world.release_and_settle(client, lock);
        let reply = format!("-NOPERM no permissions to run the '{command}' command\r\n");
        let denied = Trouble::Answers { commands: vec![command.into()], reply: reply.into() };
        world.give_trouble_to_all(&denied);
        ask_with(&mut world, client, keys, LockOptions::new(LONG));
        for node in 0..3 {
            world.deliver_to_node(client, node);
            if answers_are_read {
                world.deliver_to_client(client, node);
            }
        }
        let taken = holder_of(&world, b"a");
        assert!(taken.iter().all(|value| LockToken::value_hands_over(value.as_bytes())), "{case}");
        world.call(client, |core, now| core.close(now));
        (0..3).for_each(|node| world.deliver_to_node(client, node));
        let left: Vec<_> = keys.iter().flat_map(|key| holder_of(&world, key)).collect();
        assert!(left.iter().all(String::is_empty), "{case}: {left:?}");
        assert_nothing_left(&world);
    }
}
