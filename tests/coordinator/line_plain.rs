//! Waiters in line behind a plain holder, whose release deletes the key instead of handing it over:
//! the nodes notify the first two waiters of that. Also: which tokens say that a release hands the
//! key over.

use redlatch::testing::master::Trouble;
use redlatch::{LockOptions, Outcome, RestartGuard};

use super::line::{LONG, MS, TTL};
use super::line_world::{KEY, World};

/// A client that holds a plain lock, and clients that stand in line behind it.
fn line_behind_a_plain_holder(
    world: &mut World,
    waiters: usize,
) -> (usize, redlatch::Lock, Vec<usize>) {
    let holder = world.client();
    world.ask_with(holder, LockOptions::new(LONG));
    world.settle();
    let lock = world.won(holder);
    let waiters: Vec<usize> = (0..waiters).map(|_| world.client()).collect();
    for &waiter in &waiters {
        world.ask_and_settle(waiter, LONG);
    }
    (holder, lock, waiters)
}

/// Which of these clients have written a request to node 0 that was not sent yet.
fn asking(world: &World, clients: &[usize]) -> Vec<bool> {
    let asks = |&client: &usize| !world.output(client, 0).is_empty();
    clients.iter().map(asks).collect()
}

#[test]
fn waiter_in_line_has_the_key_as_soon_as_a_plain_holder_releases_it() {
    for nodes in 1..=5 {
        let mut world = World::new(nodes);
        let (holder, lock, waiters) = line_behind_a_plain_holder(&mut world, 3);
        assert!(!lock.token().hands_over());
        let lock = world.hand_on(holder, lock, waiters[0]);
        assert!(lock.token().hands_over());
        world.release_and_settle(waiters[0], lock);
        world.win_and_release(waiters[1]);
        world.win_and_release(waiters[2]);
        world.done[holder].clear();
        world.assert_clean();
    }
}

#[test]
fn plain_release_notifies_the_first_two_waiters_only() {
    let mut world = World::new(3);
    let (holder, lock, waiters) = line_behind_a_plain_holder(&mut world, 4);
    world.release(holder, lock);
    world.deliver_to_node(holder, 0);
    waiters.iter().for_each(|&waiter| world.deliver_to_client(waiter, 0));
    assert_eq!(asking(&world, &waiters), [true, true, false, false]);
}

#[test]
fn waiters_behind_a_holder_that_hands_over_are_not_notified() {
    let (mut world, all, _lock) = World::with_line(3, 3, TTL);
    world.run(0, &[b"DEL", KEY]);
    all[1..].iter().for_each(|&waiter| world.deliver_to_client(waiter, 0));
    assert_eq!(asking(&world, &all[1..]), [false, false]);
}

#[test]
fn waiter_that_moves_up_is_notified_of_the_next_plain_release() {
    let mut world = World::new(3);
    let (holder, lock, waiters) = line_behind_a_plain_holder(&mut world, 3);
    // The first two waiters are gone. The third one learns its new place from a poll.
    for &gone in &waiters[..2] {
        (0..3).for_each(|node| world.cut(gone, node));
        world.stop(gone);
    }
    for node in 0..3 {
        let members = world.line(node);
        for member in &members[..2] {
            world.run(node, &[b"ZREM", super::line_world::LINE, member]);
        }
    }
    world.pass(200 * MS);
    let _lock = world.hand_on(holder, lock, waiters[2]);
}

#[test]
fn waiter_that_was_disconnected_is_notified_after_its_next_join() {
    let mut world = World::new(3);
    let (holder, lock, waiters) = line_behind_a_plain_holder(&mut world, 1);
    (0..3).for_each(|node| world.cut(waiters[0], node));
    world.pass(200 * MS);
    let _lock = world.hand_on(holder, lock, waiters[0]);
}

#[test]
fn release_of_an_adopted_lock_hands_over_only_if_its_token_says_so() {
    for in_line in [true, false] {
        let mut world = World::new(3);
        let [giver, adopter, waiter] = [(); 3].map(|()| world.client());
        let lock = if in_line {
            world.won_in_line(giver, LONG)
        } else {
            world.ask_and_settle(giver, LONG);
            world.won(giver)
        };
        let token = world.call(giver, |core, now| core.into_token(lock, now)).expect("it is held");
        assert_eq!(token.hands_over(), in_line);
        world.ask_and_settle(waiter, LONG);
        let now = world.now();
        world.client_mut(adopter).adopt(KEY, token, LONG, 3, now).expect("there is room");
        world.settle();
        let adopted = world.won(adopter);
        assert_eq!(adopted.token().hands_over(), in_line);
        world.release(adopter, adopted);
        (0..3).for_each(|node| world.deliver_to_node(adopter, node));
        let is_handed_over = !world.value(0).is_empty();
        assert_eq!(is_handed_over, in_line, "no client ran meanwhile");
        world.settle();
        let _lock = world.won(waiter);
    }
}

#[test]
fn release_by_a_token_that_stood_in_line_hands_the_key_over() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let token = lock.token();
    let operator = world.client();
    let now = world.now();
    world.client_mut(operator).release_token(KEY, token, 3, now).expect("there is room");
    (0..3).for_each(|node| world.deliver_to_node(operator, node));
    (0..3).for_each(|node| world.deliver_to_client(all[1], node));
    world.settle();
    let _lock = world.won(all[1]);
}

#[test]
fn first_waiter_has_the_key_of_a_dead_holder_as_soon_as_it_expires() {
    for nodes in 1..=5 {
        let (mut world, [holder]) = World::with_clients(nodes);
        world.ask_with(holder, LockOptions::new(TTL));
        world.settle();
        let _lock = world.won(holder);
        let granted = world.now();
        world.stop(holder);
        world.pass(7 * MS);
        let waiters = [world.client(), world.client()];
        for &waiter in &waiters {
            world.ask_and_settle(waiter, LONG);
        }
        world.pass((TTL + 2 * MS).saturating_sub(world.now().saturating_since(granted)));
        world.win_and_release(waiters[0]);
        world.win_and_release(waiters[1]);
    }
}

#[test]
fn key_without_a_ttl_or_that_lives_for_long_is_not_polled_more_often() {
    for ttl in [None, Some("1000")] {
        let mut world = World::new(3);
        for node in 0..3 {
            match ttl {
                Some(ttl) => world.run(node, &[b"SET", KEY, b"another", b"EX", ttl.as_bytes()]),
                None => world.run(node, &[b"SET", KEY, b"another"]),
            }
        }
        let waiter = world.client();
        world.ask_and_settle(waiter, LONG);
        let mut polls = 0;
        for _ in 0..500 {
            world.advance(MS);
            world.expire(waiter);
            polls += usize::from(asking(&world, &[waiter])[0]);
            world.settle();
        }
        assert!((5..=8).contains(&polls), "one in 60 to 90 ms: {polls}");
    }
}

/// The nodes answer each join that the key is about to expire, but it never does.
#[test]
fn key_that_is_always_about_to_expire_is_not_polled_without_end() {
    let mut world = World::new(3);
    let (_, _, waiters) = line_behind_a_plain_holder(&mut world, 1);
    let reply = b"$11\r\nheld 0 0 x \r\n".to_vec();
    let commands = vec!["evalsha".into(), "eval".into()];
    let says_so = Trouble::Answers { commands, reply };
    world.give_trouble_to_all(&says_so);
    // The next poll is due in at most 90 ms.
    world.pass(90 * MS);
    let mut polls = 0;
    for _ in 0..400 {
        world.advance(MS);
        world.expire(waiters[0]);
        polls += usize::from(asking(&world, &waiters)[0]);
        world.settle();
    }
    assert_eq!(polls, 100, "one in 4 ms");
}

#[test]
fn waiter_that_got_the_key_by_its_join_knows_who_comes_next() {
    let mut world = World::new(3);
    world.run_on(0..3, &[b"SET", KEY, b"of another program"]);
    let [first, second, third] = [world.client(), world.client(), world.client()];
    world.ask_and_settle(first, LONG);
    // On node 2 the third waiter stands before the second one.
    world.ask(second, LONG);
    world.cut_off(&[2]);
    world.settle();
    world.stop(second);
    world.cut_off(&[]);
    world.ask_and_settle(third, LONG);
    world.resume_all();
    world.settle();
    world.run_on(0..3, &[b"DEL", KEY]);
    world.settle();
    let lock = world.won(first);
    world.release(first, lock);
    (0..3).for_each(|node| world.deliver_to_node(first, node));
    assert_eq!(world.value(0), world.value(2), "all nodes hand it to the same waiter");
    world.settle();
    let lock = world.won(second);
    world.release(second, lock);
}

/// The user may run no script, so it cannot stand in line, and its keys end only with their ttl.
/// The client remembers the refusal and does not try to join for each lock.
#[test]
fn user_without_lines_is_refused_once_and_joins_again_after_a_while() {
    let commands = vec!["evalsha".into(), "eval".into()];
    let refused = Trouble::Answers { commands, reply: b"-NOPERM no\r\n".to_vec() };
    let (mut world, [holder, waiter]) = World::with_clients(3);
    let joined = |world: &World| world.core(waiter).stats().joined;
    let wait_for_a_holder = |world: &mut World| {
        let lock = world.acquire(holder, TTL);
        world.ask_and_settle(waiter, TTL);
        world.release(holder, lock);
        world.pass(1000 * MS);
        let lock = world.won(waiter);
        world.release(waiter, lock);
        world.pass(300 * MS);
    };
    world.give_trouble_to_all(&refused);
    wait_for_a_holder(&mut world);
    assert_eq!(joined(&world), 1);
    wait_for_a_holder(&mut world);
    assert_eq!(joined(&world), 1, "it remembers for ten seconds that lines are refused");
    world.pass(10_000 * MS);
    wait_for_a_holder(&mut world);
    assert_eq!(joined(&world), 2);
}

/// Nodes notify a waiter of writes to its key, so it gets the key without a poll: also with a key
/// prefix, after a flush, and after its own client deleted the key.
#[test]
fn waiter_has_the_key_at_once_when_it_is_deleted_in_any_way() {
    let holds = |world: &mut World, key: &[u8]| {
        world.run_on(0..3, &[b"SET", key, b"another"]);
    };
    for prefix in ["", "app:"] {
        let mut world = World::new(3);
        let waiter = world.client_with(|settings| settings.key_prefix = prefix.into());
        let key = [prefix.as_bytes(), KEY].concat();
        holds(&mut world, &key);
        world.ask_and_settle(waiter, LONG);
        world.run_on(0..2, &[b"DEL", &key]);
        world.settle();
        let lock = world.won(waiter);
        assert!(lock.token().hands_over(), "{prefix}");
    }
    let mut world = World::new(3);
    // With the restart guard the client would not trust the flushed nodes for a while.
    let waiter = world.client_with(|settings| settings.restart_guard = RestartGuard::Off);
    holds(&mut world, KEY);
    world.ask_and_settle(waiter, LONG);
    world.run_on(0..3, &[b"FLUSHALL"]);
    world.settle();
    let lock = world.won(waiter);
    assert!(lock.token().hands_over());
    let (mut world, [waiter]) = World::with_clients(3);
    holds(&mut world, KEY);
    world.ask_and_settle(waiter, LONG);
    world.call(waiter, |core, now| core.force_release(KEY, 7, now)).expect("it can be asked for");
    world.settle();
    let results = world.done[waiter].drain(..).map(|done| done.result);
    assert!(results.into_iter().any(|it| matches!(it, Ok(Outcome::Acquired(_)))));
}

/// Three clients ask again and again, one of them with three requests at a time. Each client is one
/// member of the line, so each has one turn in three.
#[test]
fn client_serves_one_of_its_callers_in_each_of_its_turns() {
    let (mut world, all) = World::with_clients::<3>(3);
    for client in [0, 0, 0, 1, 2] {
        world.ask(all[client], LONG);
    }
    world.settle();
    let mut turns = Vec::new();
    for _ in 0..600 {
        let Some(&client) = all.iter().find(|&&it| !world.done[it].is_empty()) else {
            world.pass(MS);
            continue;
        };
        let Some(lock) = world.lock(client) else { continue };
        turns.push(client);
        world.release(client, lock);
        world.ask_and_settle(client, LONG);
    }
    let begun = turns.iter().position(|&client| client != all[0]).expect("others have turns");
    assert!(begun <= 65, "after the first one and {begun} - 1 that were asked for again at once");
    // From then on each client has a turn after the other two.
    let steady = &turns[begun + 3..];
    assert!(steady.len() > 100);
    for turns in steady.chunks_exact(3) {
        assert!(all.iter().all(|client| turns.contains(client)), "{turns:?}");
    }
}
