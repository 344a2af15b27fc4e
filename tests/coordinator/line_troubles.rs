//! Waiting in line when something is missing or goes wrong: no messages, a frozen node, a node that
//! forgot its data, refused commands, and clients that ask for the key without a line.

use std::time::Duration;

use redlatch::proto::NodeId;
use redlatch::testing::master::{Restart, Trouble};
use redlatch::{LockOptions, Outcome, RestartGuard};

use super::line::{LONG, MS, TTL};
use super::line_world::{KEY, LINE, World};

#[test]
fn waiters_that_cannot_be_notified_poll() {
    for (command, reply) in [
        ("subscribe", "-NOPERM no permissions to run the 'subscribe' command\r\n"),
        ("publish", "-NOPERM no\r\n"),
        // An old server, which has no RESP3.
        ("hello", "-ERR unknown command\r\n"),
    ] {
        let mut world = World::new(3);
        world.give_trouble_to_all(&Trouble::Answers {
            commands: vec![command.into()],
            reply: reply.into(),
        });
        let (all, mut lock) = world.line_up(4, TTL);
        for pair in all.windows(2) {
            world.release(pair[0], lock);
            world.pass(100 * MS);
            let won = world.lock(pair[1]);
            lock = won.unwrap_or_else(|| panic!("{} has no lock without {command}", pair[1]));
        }
        world.release_and_settle(all[3], lock);
        world.assert_clean();
    }
}

/// Node 0 hands the key over, and then another program overwrites it. The waiter's next join puts
/// the token into the line, and then fails at a command that the user may not run.
#[test]
fn token_that_a_failed_join_may_have_put_into_a_line_is_taken_out_by_the_release() {
    let refused =
        Trouble::Answers { commands: vec!["pexpire".into()], reply: b"-NOPERM no\r\n".to_vec() };
    let (mut world, [holder, waiter]) = World::with_clients(3);
    let lock = world.acquire(holder, LONG);
    let now = world.now();
    let options = LockOptions::new(LONG).wait(300 * MS);
    world.client_mut(waiter).acquire(KEY, options, 1, now).unwrap();
    world.settle();
    world.cut_off(&[1, 2]);
    world.release_and_settle(holder, lock);
    world.run(0, &[b"SET", KEY, b"another", b"PX", b"60000"]);
    world.master_mut(0).suffer(refused);
    world.pass(60 * MS);
    assert_eq!(world.in_line(0), 1, "the join failed after that");
    world.pass(340 * MS);
    world.error(waiter);
    assert_eq!(world.in_line(0), 0);
}

#[test]
fn a_frozen_node_does_not_delay_a_hand_over() {
    let mut world = World::new(5);
    world.partition(4);
    let all: Vec<usize> = (0..4).map(|_| world.client()).collect();
    world.pass(1100 * MS);
    for &client in &all {
        world.ask_and_settle(client, TTL);
    }
    let mut lock = world.won(all[0]);
    for pair in all.windows(2) {
        lock = world.hand_on(pair[0], lock, pair[1]);
    }
    world.release(all[3], lock);
    world.cut_off(&[]);
    world.pass(2000 * MS);
    world.assert_clean();
}

#[test]
fn plain_clients_beside_a_line_get_the_key_only_when_it_is_free() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let plain = world.client();
    let now = world.now();
    let core = world.client_mut(plain);
    core.acquire(KEY, LockOptions::new(TTL).wait(Duration::from_secs(10)), 1, now).unwrap();
    world.settle();
    world.release_and_settle(all[0], lock);
    assert!(world.done[plain].is_empty());
    let lock = world.won(all[1]);
    world.release(all[1], lock);
    world.pass(50 * MS);
    let lock = world.won(plain);
    world.ask_and_settle(all[0], TTL);
    world.release(plain, lock);
    world.pass(100 * MS);
    world.win_and_release(all[0]);
    world.assert_clean();
}

#[test]
fn a_client_is_one_member_of_the_line() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    // The first client holds the key, so its second request waits in its local queue.
    world.ask_and_settle(all[0], TTL);
    assert_eq!(world.in_line(0), 1);
    let lock = world.hand_on(all[0], lock, all[1]);
    assert_eq!(world.in_line(0), 1, "the second request stands in line now");
    world.release_and_settle(all[1], lock);
    world.win_and_release(all[0]);
    world.assert_clean();
}

#[test]
fn a_node_that_restarts_empty_gets_its_line_again() {
    let mut world = World::new(3);
    let guard_off = |settings: &mut redlatch::proto::Settings| {
        settings.restart_guard = RestartGuard::Off;
    };
    let all: Vec<usize> = (0..3).map(|_| world.client_with(guard_off)).collect();
    for &client in &all {
        world.ask_and_settle(client, LONG);
    }
    let lock = world.won(all[0]);
    world.restart(0, Restart::Empty);
    world.pass(400 * MS);
    assert!(world.in_line(0) >= 1);
    assert!(all[1..].iter().all(|&it| world.done[it].is_empty()));
    world.release(all[0], lock);
    world.pass(100 * MS);
    let lock = world.won(all[1]);
    world.release(all[1], lock);
    world.pass(300 * MS);
    let lock = world.won(all[2]);
    world.release(all[2], lock);
    world.pass(300 * MS);
    world.assert_clean();
}

/// The channel of the first waiter in the line of a node.
fn channel(world: &World, node: usize) -> Vec<u8> {
    let member = world.line(node).remove(0);
    member.split(|&byte| byte == b' ').nth(2).unwrap().to_vec()
}

/// A message as the script of a hand-over sends it.
fn message(skipped: &str, mark: &str, token: &str, key: &str) -> String {
    format!("200\n{skipped}\n\n{mark}\n{token}\n{key}")
}

/// The mark and the token of a member of a line.
fn mark_and_token(member: &[u8]) -> (String, String) {
    let member = String::from_utf8(member.to_vec()).unwrap();
    let words: Vec<&str> = member.split(' ').collect();
    (words[3].into(), words[4].into())
}

#[test]
fn message_of_a_node_is_no_vote_of_the_replica_that_relays_it() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let channel = channel(&world, 0);
    let (mark, token) = mark_and_token(&world.line(0)[0]);
    world.release(all[0], lock);
    // Only node 0 executes the release. Node 1 relays its message, as a replica does.
    world.deliver_to_node(all[0], 0);
    world.deliver_to_client(all[1], 0);
    let text = message("0", &mark, &token, "k");
    world.run(1, &[b"PUBLISH", &channel, text.as_bytes()]);
    world.deliver_to_client(all[1], 1);
    let head = format!(">3\r\n$7\r\nmessage\r\n${}\r\n", channel.len());
    let tail = format!("\r\n${}\r\n{text}\r\n", text.len());
    let bytes = [head.as_bytes(), &channel[..], tail.as_bytes()].concat();
    let now = world.now();
    let core = world.client_mut(all[1]);
    core.handle_bytes(NodeId::new(1), &bytes, now);
    assert!(core.poll_completion(now).is_none(), "one node voted twice");
    world.settle();
    world.win_and_release(all[1]);
    world.assert_clean();
}

#[test]
fn a_copied_key_on_a_replica_is_no_answer_to_a_poll() {
    let (mut world, all) = World::with_clients::<2>(3);
    let lock = world.acquire(all[0], LONG);
    world.ask_and_settle(all[1], TTL);
    let member = world.line(0).remove(0);
    let token = member.rsplit(|&byte| byte == b' ').next().unwrap().to_vec();
    // An operator sets the waiter's token on nodes 0 and 1, and node 1 becomes a replica.
    world.run(0, &[b"SET", KEY, &token, b"PX", b"60000"]);
    world.run(1, &[b"SET", KEY, &token, b"PX", b"60000"]);
    world.master_mut(1).suffer(Trouble::Replica);
    world.pass(150 * MS);
    assert!(world.lock(all[1]).is_none(), "the first one has the key on one master only");
    assert!(world.core(all[0]).key(&lock).is_some());
}

#[test]
fn waiters_fall_back_to_plain_waiting_where_a_join_keeps_failing() {
    let unknown = Trouble::Answers {
        commands: vec!["evalsha".into(), "eval".into()],
        reply: b"-ERR unknown command 'evalsha'\r\n".to_vec(),
    };
    let odd = Trouble::Answers {
        commands: vec!["evalsha".into()],
        reply: b"-ERR scripts are taking the day off\r\n".to_vec(),
    };
    for trouble in [None, Some(unknown), Some(odd)] {
        let (mut world, [client]) = World::with_clients(3);
        for node in 0..3 {
            world.run(node, &[b"SET", KEY, b"other", b"PX", b"60000"]);
            match &trouble {
                Some(trouble) => world.master_mut(node).suffer(trouble.clone()),
                // The key of the line is of another type.
                None => world.run(node, &[b"SET", LINE, b"x"]),
            }
        }
        world.ask(client, LONG);
        world.pass(200 * MS);
        world.run_on(0..3, &[b"DEL", KEY]);
        world.pass(1000 * MS);
        let done = world.done[client].pop().expect("the key is free");
        assert!(matches!(done.result, Ok(Outcome::Acquired(_))), "{trouble:?}: {done:?}");
    }
}

#[test]
fn a_release_of_an_absent_key_leaves_nothing_for_a_dead_waiter() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    (0..3).for_each(|node| world.cut(all[1], node));
    world.stop(all[1]);
    world.run_on(0..3, &[b"DEL", KEY]);
    world.release_and_settle(all[0], lock);
    let left: Vec<String> = (0..3).map(|node| world.value(node)).collect();
    assert_eq!(left, [""; 3], "the key of a dead waiter");
}

#[test]
fn release_in_line_is_pending_for_the_life_of_the_line_and_of_a_last_key() {
    let (mut world, [client]) = World::with_clients(3);
    world.run_on(0..3, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    let op = world.ask_and_settle(client, LONG);
    let refused = Trouble::Answers {
        commands: vec!["evalsha".into(), "eval".into()],
        reply: b"-ERR not now\r\n".to_vec(),
    };
    world.master_mut(0).suffer(refused);
    world.call(client, |core, now| core.cancel(op, now));
    // The line lives for 10 s. Just before its end a node could hand the key to the token, for
    // another 10 s. So the release stays pending for 20 s.
    world.pass(Duration::from_secs(15));
    assert_eq!(world.core(client).open_records(), 1);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.core(client).open_records(), 0);
}

#[test]
fn a_message_for_a_key_that_cannot_be_locked_is_ignored() {
    let (mut world, all, _lock) = World::with_line(3, 2, TTL);
    let channel = channel(&world, 0);
    // Another program has read the mark and the token of the waiter, and names another key.
    let (mark, token) = mark_and_token(&world.line(0)[0]);
    for key in ["redlatch:node".into(), "k".repeat(64 * 1024 + 1)] {
        world.run(0, &[b"PUBLISH", &channel, message("0", &mark, &token, &key).as_bytes()]);
        world.deliver_to_client(all[1], 0);
        assert!(world.output(all[1], 0).is_empty(), "{}", &key[..9]);
    }
}

#[test]
fn messages_with_the_largest_number_of_skipped_waiters_are_counted() {
    let (mut world, all, mut lock) = World::with_line(3, 2, TTL);
    let channel = channel(&world, 0);
    for turn in 0..2 {
        let (mark, token) = mark_and_token(&world.line(0)[0]);
        let text = message(&u64::MAX.to_string(), &mark, &token, "k");
        world.run(0, &[b"PUBLISH", &channel, text.as_bytes()]);
        world.settle();
        lock = world.hand_on(all[0], lock, all[1]);
        if turn == 0 {
            world.ask_and_settle(all[0], TTL);
            lock = world.hand_on(all[1], lock, all[0]);
            world.ask_and_settle(all[1], TTL);
        }
    }
    assert_eq!(world.core(all[1]).stats().skipped, u64::MAX);
}

#[test]
fn release_in_line_is_pending_while_the_line_of_a_lost_node_lives() {
    let mut world = World::new(3);
    let client = world.client_with(|settings| settings.max_ttl = 300 * MS);
    world.run_on(0..3, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    let op = world.ask_and_settle(client, TTL);
    world.partition(0);
    world.cut(client, 0);
    world.call(client, |core, now| core.cancel(op, now));
    // A release of a key would have lapsed after 300 ms, the longest ttl. The line lives for 10 s.
    world.pass(Duration::from_secs(5));
    assert_eq!(world.in_line(0), 1);
    world.cut_off(&[]);
    world.pass(Duration::from_secs(4));
    assert_eq!(world.in_line(0), 0, "a token that nobody waits for");
    assert_eq!(world.core(client).open_records(), 0);
}

/// Node 1 hands the key over while a poll of the waiter is in flight to it. Then it is flushed, and
/// the poll creates the key anew. Another client may have held the key in between, so the new key
/// must not count.
#[test]
fn a_poll_that_creates_the_key_anew_on_a_flushed_node_confirms_nothing() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    world.cut_off(&[0, 1, 2]);
    world.pass(95 * MS);
    let polls = |world: &World| {
        let of = |node| world.output(all[1], node).len();
        [of(0), of(1), of(2)]
    };
    assert!(polls(&world).iter().all(|&length| length > 0), "{:?}", polls(&world));
    world.release(all[0], lock);
    world.deliver(all[0], [0, 1], all[1]);
    world.take_completions(all[1]);
    let lock = world.won(all[1]);

    let token = world.value(1);
    world.run(1, &[b"FLUSHALL"]);
    assert_eq!(world.value(1), "");
    world.cut_off(&[2]);
    world.settle();
    assert_eq!(world.value(1), token, "the poll created the key anew");
    let extend = world.call(all[1], |core, now| core.extend(&lock, TTL, 3, now));
    extend.expect("it can be asked for");
    world.pass(150 * MS);
    let error = world.error(all[1]);
    assert!(matches!(error, redlatch::Error::Lost { .. }), "{error:?}");
}

/// Node 1 hands the key over, and is flushed before it executes the next poll, which creates the
/// key anew. The hand-over, which counts also in quarantine, must not count for the new key.
#[test]
fn hand_over_does_not_count_after_a_later_poll_created_the_key() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    world.cut_off(&[0, 1, 2]);
    world.release(all[0], lock);
    world.deliver_to_node(all[0], 1);
    world.deliver_to_client(all[1], 1);
    // A waiter that has the key on a node polls early.
    world.pass(5 * MS);
    let token = world.value(1);
    world.run(1, &[b"FLUSHALL"]);
    world.deliver_to_node(all[1], 1);
    assert_eq!(world.value(1), token, "the poll created the key anew");
    world.deliver_to_client(all[1], 1);
    for node in [0, 2] {
        world.deliver_to_node(all[0], node);
        world.deliver_to_node(all[1], node);
        world.deliver_to_client(all[1], node);
    }
    world.cut_off(&[]);
    world.pass(20 * MS);
    let lock = world.won(all[1]);
    world.assert_quarantined(all[1], 1);
    world.cut_off(&[0]);
    let extended = world.extend(all[1], &lock, TTL);
    assert!(extended.is_none(), "only node 2 has a vote: {extended:?}");
}

/// The client reads node 2's answer to a poll after it won the lock and extended it without node 2.
/// There the key lives only for the ttl of the hand-over, and not as long as the lock.
#[test]
fn late_answer_to_a_poll_counts_only_for_the_ttl_that_it_reports() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    world.cut_off(&[0, 1, 2]);
    world.pass(95 * MS);
    world.release(all[0], lock);
    for node in 0..3 {
        world.deliver_to_node(all[0], node);
        // The nodes execute the release before the waiter's poll, which finds the key handed over.
        world.deliver_to_node(all[1], node);
    }
    for node in [0, 1] {
        world.deliver_to_client(all[1], node);
    }
    world.take_completions(all[1]);
    let lock = world.won(all[1]);
    world.cut_off(&[2]);
    world.pass(90 * MS);
    let state = world.core(all[1]).node_state(NodeId::new(2));
    assert!(matches!(state, redlatch::NodeState::Suspect), "so it is not asked: {state:?}");
    assert!(world.extend(all[1], &lock, LONG).expect("nodes 0 and 1 agree").result.is_ok());
    // The client reads the answer of node 2, and then loses this connection.
    world.deliver_to_client(all[1], 2);
    world.cut(all[1], 2);
    world.pass(250 * MS);
    assert_eq!(world.value(2), "", "the key has ended there");
    // From now on node 2 could have granted the key to another client. It restarts with data in
    // which the key is this client's.
    let token = world.value(1);
    world.restart_with_key(2, &token);
    world.cut_off(&[]);
    world.pass(500 * MS);
    world.assert_quarantined(all[1], 2);
    world.cut_off(&[0]);
    let extended = world.extend(all[1], &lock, LONG);
    assert!(extended.is_none(), "only node 1 has a vote: {extended:?}");
}

#[test]
fn an_inspection_shows_the_line_in_its_order() {
    let (mut world, all, lock) = World::with_line(3, 4, TTL);
    let seen = |world: &mut World| {
        world.call(all[0], |core, now| core.inspect(KEY, 9, now)).expect("it can be asked for");
        world.settle();
        match world.done[all[0]].pop().expect("it ended").result {
            Ok(Outcome::Inspected(seen)) => *seen,
            other => panic!("no inspection: {other:?}"),
        }
    };
    let before = seen(&mut world);
    assert_eq!(before.line().len(), 3, "the holder stands in line no more");
    assert!(before.nodes.iter().all(|node| node.line == before.line()));
    let lock = world.hand_on(all[0], lock, all[1]);
    let after = seen(&mut world);
    assert_eq!(after.line(), before.line()[1..], "the first one of the line has the lock");
    assert_eq!(before.line()[0].token(), Some(lock.token()));
    // Of a node that refuses ZRANGE the inspection shows no line, but still what it holds.
    let refused =
        Trouble::Answers { commands: vec!["zrange".into()], reply: b"-NOPERM no\r\n".to_vec() };
    world.master_mut(0).suffer(refused);
    let seen = seen(&mut world);
    assert_eq!((seen.nodes[0].line.len(), seen.nodes[1].line.len()), (0, 2));
    assert_eq!(seen.nodes[0].state, seen.nodes[1].state);
}

/// The jump ends the key and the line on node 0 before their time. The first waiter that polls gets
/// the key there, but this is only one vote.
#[test]
fn a_node_whose_clock_jumps_ahead_is_one_vote_of_three() {
    let (mut world, all) = World::with_clients::<3>(3);
    for (&client, ttl) in all.iter().zip([LONG, TTL, TTL]) {
        world.ask_and_settle(client, ttl);
    }
    let mut lock = world.won(all[0]);
    world.master_mut(0).step_wall_clock(3_600_000);
    let held = world.value(1);
    world.pass(200 * MS);
    assert_ne!(world.value(0), held, "a waiter has the key there");
    for pair in all.windows(2) {
        assert!(all.iter().all(|&client| world.lock(client).is_none()), "held by two");
        world.release_and_settle(pair[0], lock);
        world.pass(100 * MS);
        lock = world.won(pair[1]);
    }
    world.release_and_settle(all[2], lock);
    world.pass(100 * MS);
    world.assert_clean();
}
