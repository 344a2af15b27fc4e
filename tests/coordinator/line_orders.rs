//! Orders of events that once went wrong: a waiter in line got stuck or was overtaken, a lock was
//! lost, or a key was left behind.

use std::time::Duration;

use redlatch::proto::NodeId;
use redlatch::testing::master::Trouble;
use redlatch::{LockOptions, NodeError, Outcome, Stats};

use super::line::{LONG, MS, TTL};
use super::line_world::{KEY, LINE, World};

/// The nodes do not permit the user this command, neither alone nor in a script.
fn denied(command: &str) -> Trouble {
    let reply = format!("-NOPERM no permissions to run the '{command}' command\r\n");
    Trouble::Answers { commands: vec![command.into()], reply: reply.into() }
}

/// What each node holds at the key.
fn values(world: &World) -> Vec<String> {
    (0..world.nodes()).map(|node| world.value(node)).collect()
}

fn ask_elsewhere(world: &mut World, client: usize, key: &[u8], wait: Duration) {
    let now = world.now();
    world
        .client_mut(client)
        .acquire(key, LockOptions::new(TTL).wait(wait), 9, now)
        .expect("it can be asked for");
}

/// The nodes are silent when a client first waits for a lock, and so first subscribes. They answer
/// again on the same connections.
#[test]
fn a_node_that_was_silent_when_the_client_subscribed_is_joined_later() {
    let (mut world, [holder, waiter]) = World::with_clients(3);
    let lock = world.acquire(holder, LONG);
    world.cut_off(&[0, 1, 2]);
    ask_elsewhere(&mut world, waiter, b"other", Duration::ZERO);
    world.pass(70 * MS);
    world.ask(waiter, TTL);
    world.pass(20 * MS);
    world.cut_off(&[]);
    world.pass(200 * MS);
    world.done[waiter].clear();
    assert_eq!([0, 1, 2].map(|node| world.in_line(node)), [1, 1, 1]);
    world.release_and_settle(holder, lock);
    assert!(world.lock(waiter).is_some());
}

/// The waiter's last poll is longer ago than the ttl of a handed-over key, and the ttl counts from
/// this poll. So the message gives the waiter no time, and it has to poll.
#[test]
fn a_hand_over_long_after_the_last_poll_is_followed_by_a_poll() {
    let (mut world, [holder, waiter, later]) = World::with_clients(3);
    let lock = world.won_in_line(holder, LONG);
    for number in 0..320 {
        // A waiter behind so many others, which are dead, polls seldom.
        let member = format!("200 redlatch:{:032x} {:020x} {number:040x}", 1, 1);
        let score = number.to_string();
        world.run_on(0..3, &[b"ZADD", LINE, score.as_bytes(), member.as_bytes()]);
    }
    world.ask_and_settle(waiter, TTL);
    world.pass(700 * MS);
    world.release(holder, lock);
    world.ask_and_settle(later, TTL);
    assert!(world.done[later].is_empty(), "one that came 700 ms later is first");
    assert!(world.lock(waiter).is_some());
}

/// A client that is gone holds the key on nodes 0 and 1, and node 4 does not answer. No waiter can
/// get a majority before these keys have expired.
#[test]
fn waiters_do_not_yield_forever_to_a_token_that_stands_in_no_line() {
    // The first digit of a token says whether its release hands the key over (8) or deletes it (0).
    // A waiter yields only to a token of the first kind, which may be another waiter's.
    for (waiters, first_digit, most) in [(1, '8', 6), (2, '8', 12), (1, '0', 0), (2, '0', 2)] {
        let mut world = World::new(5);
        world.cut_off(&[4]);
        let all: Vec<usize> = (0..waiters).map(|_| world.client()).collect();
        world.pass(1100 * MS);
        let lowest = format!("{first_digit}{}", "0".repeat(39));
        world.run_on([0, 1], &[b"SET", KEY, lowest.as_bytes(), b"PX", b"3000"]);
        for &client in &all {
            world.ask(client, LONG);
        }
        exchange_for(&mut world, &all, 2000 * MS);
        let splits = |world: &World| -> u64 {
            all.iter().map(|&it| world.core(it).stats()).map(|it: &Stats| it.splits).sum()
        };
        assert!(splits(&world) <= most, "{} splits", splits(&world));
        exchange_for(&mut world, &all, 3000 * MS);
        let won = all.iter().filter(|&&it| !world.done[it].is_empty()).count();
        assert_eq!(won, 1, "of {waiters}, after the plain key has expired");
    }
}

/// For this long, delivers everything of these clients and nodes 0 to 3, with a round trip of
/// 200 µs.
fn exchange_for(world: &mut World, clients: &[usize], time: Duration) {
    let until = world.now().saturating_add(time);
    while world.now() < until {
        for &client in clients {
            (0..4).for_each(|node| world.deliver_to_node(client, node));
        }
        world.advance(MS / 5);
        for &client in clients {
            (0..4).for_each(|node| world.deliver_to_client(client, node));
            world.expire(client);
            world.take_completions(client);
        }
    }
}

/// Node 2 executes an extend of the new holder first, and the earlier holder's release, which hands
/// the key over, after that.
#[test]
fn a_node_that_hands_the_key_over_to_a_held_lock_counts_in_extends() {
    let (mut world, all, lock) = World::with_line(3, 2, LONG);
    world.release(all[0], lock);
    world.deliver_to_node(all[0], 0);
    world.deliver_to_node(all[0], 1);
    world.stop(all[0]);
    world.settle();
    let lock = world.won(all[1]);
    let extend = |world: &mut World| {
        let done = world.extend(all[1], &lock, LONG).expect("a majority has answered");
        assert!(matches!(done.result, Ok(Outcome::Extended { .. })), "{done:?}");
    };
    extend(&mut world);
    world.resume_all();
    world.settle();
    assert_eq!(world.value(2), world.value(0), "the last node has handed over, too");
    world.cut_off(&[1]);
    extend(&mut world);
}

#[test]
fn client_waits_without_lines_if_one_node_refuses_them_and_one_is_down() {
    let mut world = World::new(3);
    world.cut_off(&[2]);
    let client = world.client();
    world.pass(1100 * MS);
    world.run(0, &[b"SET", LINE, b"x"]);
    world.run_on(0..2, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    world.ask(client, LONG);
    world.pass(200 * MS);
    world.run_on(0..2, &[b"DEL", KEY]);
    world.pass(3000 * MS);
    assert!(world.lock(client).is_some());
}

/// The nodes refuse the commands of the line, so the client waits without a line. Its release must
/// not name a line either, because the nodes would refuse that, too.
#[test]
fn lock_of_a_request_whose_lines_were_refused_is_released_as_a_plain_one() {
    let (mut world, [client]) = World::with_clients(3);
    let commands = ["zadd", "zrange", "zrem"].map(String::from).to_vec();
    let trouble = Trouble::Answers { commands, reply: b"-NOPERM no\r\n".to_vec() };
    for node in 0..3 {
        world.master_mut(node).suffer(trouble.clone());
        world.run(node, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    }
    world.ask(client, LONG);
    world.pass(200 * MS);
    world.run_on(0..3, &[b"DEL", KEY]);
    world.pass(3000 * MS);
    let refusals = |world: &World| {
        let nodes = &world.core(client).stats().nodes;
        nodes.iter().map(|node| node.errors(NodeError::NoPermission)).sum::<u64>()
    };
    let (lock, before) = (world.won(client), refusals(&world));
    assert!(before >= 3, "the joins were refused");
    world.release_and_settle(client, lock);
    assert_eq!(refusals(&world), before);
    world.assert_clean();
}

#[test]
fn messages_about_unknown_tokens_take_no_records() {
    let mut world = World::new(3);
    let client = world.client_with(|it| it.limits = it.limits.records(64).asks(64));
    world.run_on(0..3, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    world.ask_and_settle(client, LONG);
    let member = world.line(0).remove(0);
    let channel = member.split(|&byte| byte == b' ').nth(1).expect("a channel").to_vec();
    let before = world.core(client).open_records();
    for number in 0..200 {
        let text = format!("0\n\n{number:020x}\n{number:040x}\nkey {number}");
        let head = format!(">3\r\n$7\r\nmessage\r\n${}\r\n", channel.len());
        let tail = format!("\r\n${}\r\n{text}\r\n", text.len());
        let bytes = [head.as_bytes(), &channel[..], tail.as_bytes()].concat();
        world.call(client, |core, now| core.handle_bytes(NodeId::new(0), &bytes, now));
    }
    let core = world.core(client);
    assert_eq!(core.open_records(), before);
    assert!(core.output(NodeId::new(0)).is_empty(), "nothing shows that the tokens are its own");
    assert_eq!(core.stats().messages_ignored, 200);
    ask_elsewhere(&mut world, client, b"another", Duration::ZERO);
}

/// The successor that the release names has given up, and another program has overwritten the key
/// of the line.
#[test]
fn a_release_that_names_a_successor_deletes_the_key_where_the_line_is_no_line() {
    let (mut world, all) = World::with_clients::<3>(3);
    let mut ops = Vec::new();
    for &client in &all {
        ops.push(world.ask_and_settle(client, LONG));
    }
    world.win_and_release(all[0]);
    let lock = world.won(all[1]);
    world.call(all[2], |core, now| core.cancel(ops[2], now));
    world.settle();
    world.run_on(0..3, &[b"SET", LINE, b"x"]);
    world.release_and_settle(all[1], lock);
    assert_eq!(values(&world), [""; 3]);
}

/// The nodes forget the scripts, and the waiter is closed before it could read that a release by
/// SHA1 failed. It has to leave the lines all the same.
#[test]
fn a_release_in_line_is_repeated_by_its_source_at_the_end() {
    let mut world = World::new(3);
    world.give_trouble_to_all(&denied("subscribe"));
    let (all, lock) = world.line_up(2, LONG);
    world.run_on(0..3, &[b"SCRIPT", b"FLUSH"]);
    world.call(all[1], |core, now| {
        core.release_all(now);
        core.close(now);
    });
    for node in 0..3 {
        world.deliver_to_node(all[1], node);
        world.cut(all[1], node);
    }
    world.stop(all[1]);
    assert_eq!([0, 1, 2].map(|node| world.in_line(node)), [0; 3]);
    world.release_and_settle(all[0], lock);
    assert_eq!(values(&world), [""; 3], "the key of a client that was closed");
}
