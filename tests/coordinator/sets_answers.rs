//! Sets that wait in line: messages and answers that are about only one key of the set, about the
//! line of an earlier key, or about an earlier round. None of them may count for more than that.

use redlatch::testing::master::Restart;
use redlatch::{Lock, LockOptions};

use super::line::{LONG, MS};
use super::line_world::World;
use super::sets_kept::{
    HELD, MINE, asked, asks_in_order, joins_in_order, keeps_the_first_key, until_asked,
};
use super::sets_world::{
    ANOTHER, ask_for, ask_with, assert_nothing_left, behind_the_first_key, delete,
    has_key_everywhere, held_by_two, holder_of, lines_of, take, won_in_line,
};
use crate::bench::{Bench, TTL};

/// Whether the client has written a request for `b` and `c` together to the node.
fn asks_for_b_and_c(world: &World, client: usize, node: usize) -> bool {
    world.output(client, node).contains("\r\n2\r\n$1\r\nb\r\n$1\r\nc\r\n")
}

/// The node executes what the client wrote, and the client reads everything from the node.
fn exchange(world: &mut World, client: usize, node: usize) {
    world.deliver_to_node(client, node);
    world.deliver_to_client(client, node);
}

fn extend(world: &mut World, client: usize, lock: &Lock) {
    world.call(client, |core, now| core.extend(lock, LONG, 3, now)).expect("it is held");
}

/// Node 2 refuses the round over both keys because `c` is another client's, and then hands `b` over
/// to the set while the round is in flight. This must not prove that the set has `c` there, not
/// even when node 2 restarts with data in which both keys are the set's.
#[test]
fn hand_over_during_the_round_over_all_keys_does_not_prove_the_set() {
    let (mut world, [holder, set]) = World::with_clients(3);
    let lock = won_in_line(&mut world, holder, b"b");
    ask_for(&mut world, set, &[b"b", b"c"]);
    assert_eq!(lines_of(&world, b"b"), [1; 3]);
    take(&mut world, &[2], b"c");
    world.release(holder, lock);
    world.deliver(holder, [0, 1], set);
    assert!(asks_for_b_and_c(&world, set, 0));
    // Node 2 executes the request for both keys before the release of `b`.
    exchange(&mut world, set, 2);
    world.deliver_to_node(holder, 2);
    world.deliver_to_client(set, 2);
    assert_eq!(world.core(set).stats().messages_ignored, 0);
    world.settle();
    let lock = world.won(set);
    let token = lock.token().to_string();
    assert_eq!(holder_of(&world, b"b"), [0; 3].map(|_| token.clone()));
    assert_eq!(holder_of(&world, b"c")[2].as_bytes(), ANOTHER);
    world.run(2, &[b"SET", b"c", token.as_bytes(), b"PX", b"10000"]);
    world.restart(2, Restart::WithData);
    world.pass(300 * MS);
    world.assert_quarantined(set, 2);
    world.cut_off(&[0]);
    extend(&mut world, set, &lock);
    world.settle();
    let extended = world.done[set].pop();
    assert!(extended.is_none(), "only node 1 has a vote: {extended:?}");
}

/// Node 2 answers an extend that `a` is gone, and then hands `b` over to the set. The set has not
/// come back there by that: the client has to heal the node.
#[test]
fn hand_over_of_one_key_does_not_replace_the_heal_of_a_set() {
    let (mut world, set, lock, holder) = held_by_two();
    extend(&mut world, set, &lock);
    exchange(&mut world, set, 2);
    world.deliver_to_node(holder, 2);
    assert_eq!(holder_of(&world, b"b")[2], lock.token().to_string(), "it was handed over");
    world.deliver_to_client(set, 2);
    world.settle();
    assert!(world.done[set].pop().expect("nodes 0 and 1 agree").result.is_ok());
    assert!(
        has_key_everywhere(&world, b"a", &lock) && has_key_everywhere(&world, b"b", &lock),
        "node 2 has all keys again"
    );
    assert_eq!(world.core(set).stats().healed, 1);
}

/// A node that lost keys of the set has no vote in an extend before the client heals it, even if
/// the set's token is at all keys again.
#[test]
fn node_that_lost_keys_of_a_set_and_hands_one_over_has_no_vote_before_it_is_healed() {
    let (mut world, set, lock, holder) = held_by_two();
    extend(&mut world, set, &lock);
    exchange(&mut world, set, 2);
    // Too few nodes have granted the extend yet, so the client does not heal node 2.
    world.deliver_to_node(holder, 2);
    world.deliver_to_client(set, 2);
    let token = lock.token().to_string();
    world.run(2, &[b"SET", b"a", token.as_bytes(), b"PX", b"10000"]);
    world.cut_off(&[0]);
    // The client repeats the extend all the time.
    world.pass(2000 * MS);
    let extended = world.done[set].pop();
    assert!(extended.is_none(), "only node 1 has a vote: {extended:?}");
}

/// Node 2 hands `a` over when the set already stands in line for `b`. The message has the mark of
/// the line of `a`, so it must not count for `b`.
#[test]
fn message_about_an_earlier_key_does_not_count_for_the_next_one() {
    let (mut world, set, holder, lock) = behind_the_first_key();
    world.release(holder, lock);
    world.stop(holder);
    (0..2).for_each(|node| world.deliver_to_node(holder, node));
    world.settle();
    world.pass(100 * MS);
    assert_eq!((lines_of(&world, b"a"), lines_of(&world, b"b")), (vec![0, 0, 1], vec![1; 3]));
    let kept = holder_of(&world, b"a");
    let ignored = |world: &World| world.core(set).stats().messages_ignored;
    assert_eq!(ignored(&world), 0);
    world.deliver_to_node(holder, 2);
    assert_eq!(holder_of(&world, b"a"), [0; 3].map(|_| kept[0].clone()), "it was handed over");
    world.deliver_to_client(set, 2);
    let ignored = ignored(&world);
    // Node 0 hands `b` over, and is the only node that does.
    delete(&mut world, &[0], b"b");
    world.pass(100 * MS);
    assert_eq!(holder_of(&world, b"b")[0], kept[0], "the set began anew");
    assert_eq!((lines_of(&world, b"b"), ignored), (vec![0, 1, 1], 1));
    delete(&mut world, &[1], b"b");
    world.pass(100 * MS);
    let lock = world.won(set);
    world.release(set, lock);
    delete(&mut world, &[2], b"b");
    world.resume_all();
    world.settle();
    world.done[holder].clear();
    assert_nothing_left(&world);
}

/// Node 2 is slow: it answers a join of the line of `a` when the set already waits for `b`.
#[test]
fn late_answer_about_an_earlier_key_does_not_count_for_the_next_one() {
    let mut bench = Bench::without_tracking(3);
    joins_in_order(&mut bench, "take a+b", TTL);
    (0..2).for_each(|node| bench.reply(node, MINE));
    until_asked(&mut bench, 2, "take a+b");
    (0..2).for_each(|node| bench.reply(node, ":-2\r\n"));
    until_asked(&mut bench, 2, "take a");
    (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
    until_asked(&mut bench, 2, "join b");
    bench.reply(2, MINE);
    bench.reply(0, MINE);
    assert!(asked(&mut bench, 0).is_empty(), "one node has handed `b` over");
    bench.reply(1, MINE);
    until_asked(&mut bench, 2, "take a+b");
}

/// Node 2 is slow: it refuses the earlier round because of `b`. In the present round, which is to
/// keep `a`, node 0 fails and node 1 answers that `a` is another client's. The late refusal must
/// not count as a sign that node 2 has `a`.
#[test]
fn late_refusal_of_an_earlier_round_does_not_count_for_kept_keys() {
    let mut bench = Bench::without_tracking(3);
    asks_in_order(&mut bench, "take a+b", TTL);
    (0..2).for_each(|node| bench.reply(node, ":-2\r\n"));
    until_asked(&mut bench, 3, "take a");
    bench.reply(2, ":-2\r\n");
    bench.reply(0, "-ERR oops\r\n");
    bench.reply(1, ":-1\r\n");
    assert_eq!(asked(&mut bench, 1), ["give back a+b", "join a"], "it begins anew");
}

/// The client does not run for longer than the ttl. Then one node refuses the round over all keys
/// because of `b`, and one fails. No majority has `a` any more, so the set cannot keep it.
#[test]
fn set_whose_round_is_refused_after_its_ttl_keeps_nothing() {
    let mut bench = Bench::without_tracking(3);
    let ttl = 1000 * MS;
    asks_in_order(&mut bench, "take a+b", ttl);
    bench.now = bench.now.saturating_add(ttl);
    bench.reply(0, ":-2\r\n");
    bench.reply(1, "-ERR oops\r\n");
    let said = asked(&mut bench, 0);
    assert!(said.contains(&"give back a+b".to_owned()), "{said:?}");
    assert!(!said.contains(&"take a".to_owned()), "{said:?}");
}

/// Two of three nodes do not answer the round over all keys, so the set cannot keep any key.
#[test]
fn set_gives_up_what_it_keeps_if_too_few_nodes_answer() {
    let mut bench = Bench::without_tracking(3);
    asks_in_order(&mut bench, "take a+b", TTL);
    bench.reply(0, ":-2\r\n");
    bench.pass(60 * MS);
    assert_eq!(asked(&mut bench, 0), ["give back a+b"]);
}

#[test]
fn kept_keys_are_renewed_at_half_their_ttl() {
    let mut bench = Bench::without_tracking(3);
    let ttl = 1000 * MS;
    keeps_the_first_key(&mut bench, "take a+b", ttl);
    let taken = bench.now;
    (0..2).for_each(|node| bench.reply(node, ":1\r\n"));
    until_asked(&mut bench, 2, "join b");
    let mut joined = vec![0, 1];
    let renewed = loop {
        // Another client holds `b` all the time.
        joined.drain(..).for_each(|node| bench.reply(node, HELD));
        bench.pass(MS);
        let said = [0, 1].map(|node| asked(&mut bench, node).join(", "));
        joined.extend((0..2).filter(|&node| said[node] == "join b"));
        if joined.is_empty() && said != [""; 2] {
            break said;
        }
        assert!(bench.now < taken.saturating_add(ttl), "it is not renewed");
    };
    assert_eq!(renewed, ["take a"; 2]);
    let after = bench.now.saturating_since(taken);
    assert!(after > ttl * 2 / 5 && after <= ttl / 2, "{after:?}");
}

/// Bytes arrive only every 45 ms, nearly a quarter of the ttl. The set has to renew `a`, which it
/// keeps, in time, although another client waits for it.
#[test]
fn kept_key_does_not_change_hands_while_commands_are_slow() {
    let mut world = World::new(3);
    let [set, other] = [(); 2].map(|()| world.client_with(|it| it.node_timeout = 100 * MS));
    take(&mut world, &[0, 1, 2], b"a");
    take(&mut world, &[0, 1, 2], b"b");
    ask_with(&mut world, set, &[b"a", b"b"], LockOptions::new(200 * MS));
    world.settle();
    delete(&mut world, &[0, 1, 2], b"a");
    world.pass(100 * MS);
    ask_for(&mut world, other, &[b"a"]);
    assert_eq!((lines_of(&world, b"a"), lines_of(&world, b"b")), (vec![1; 3], vec![1; 3]));
    let kept = holder_of(&world, b"a");
    // The test ends before a set that makes no progress for a second may give its keys up.
    for millis in 1..=800 {
        world.cut_off(if millis % 45 == 0 { &[] } else { &[0, 1, 2] });
        world.pass(MS);
        assert_eq!(holder_of(&world, b"a"), kept, "after {millis} ms");
    }
}
