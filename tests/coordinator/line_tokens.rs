//! Rare orders of events for a waiter in line: it gives nodes up, a node refuses its line or loses
//! the key that it handed over, or a node is late when the lock is won, handed off or released.

use std::time::Duration;

use redlatch::testing::master::Restart;
use redlatch::{AutoExtend, Error, Lock, LockOptions, LockUpdateKind};

use super::line::{LONG, MS, TTL};
use super::line_strangers::{message_of_a_hand_over, publish, words_of_member};
use super::line_world::{KEY, LINE, World};

/// Whether the client has written a request to the node that was not sent yet.
fn is_asked(world: &World, client: usize, node: usize) -> bool {
    !world.output(client, node).is_empty()
}

/// Fetches completions. Returns whether the request of the client has ended.
fn fetch(world: &mut World, client: usize) -> bool {
    world.take_completions(client);
    !world.done[client].is_empty()
}

/// A waiter that is gone has the key on nodes 0 and 1, and node 4 does not answer. The other waiter
/// has the key on nodes 2 and 3.
#[test]
fn waiter_that_gave_nodes_up_joins_again_after_a_pause_that_doubles() {
    let mut world = World::new(5);
    world.cut_off(&[4]);
    let client = world.client();
    world.pass(1100 * MS);
    let lowest = format!("8{}", "0".repeat(39));
    world.run_on([0, 1], &[b"SET", KEY, lowest.as_bytes(), b"PX", b"3000"]);
    world.ask(client, LONG);
    let splits = |world: &World| world.core(client).stats().splits;
    while splits(&world) == 0 {
        world.pass(MS);
    }
    for (number, longest) in [(1, 8), (2, 16), (3, 32)] {
        assert_eq!(splits(&world), number);
        assert_eq!([2, 3].map(|node| world.value(node)), [""; 2], "it gave these up");
        assert_eq!([0, 1].map(|node| world.in_line(node)), [0; 2]);
        let before = world.now();
        while splits(&world) == number {
            world.pass(MS);
        }
        let pause = world.now().saturating_since(before);
        assert!(pause >= MS * longest / 2 && pause <= MS * longest, "{number}: {pause:?}");
    }
}

#[test]
fn node_whose_line_works_again_does_not_count_as_one_that_refuses_lines() {
    let (mut world, [holder]) = World::with_clients(3);
    let lock = world.acquire(holder, LONG);
    let waiter = world.client();
    world.run(0, &[b"SET", LINE, b"x"]);
    world.ask(waiter, TTL);
    world.pass(100 * MS);
    world.run(0, &[b"DEL", LINE]);
    world.pass(100 * MS);
    assert_eq!(world.in_line(0), 1, "the line is a line again");
    world.run(1, &[b"DEL", LINE]);
    world.run(1, &[b"SET", LINE, b"x"]);
    world.pass(100 * MS);
    world.release_and_settle(holder, lock);
    assert!(world.lock(waiter).is_some());
    assert_eq!(world.core(waiter).stats().handed_over, 1, "it stood in two lines");
}

/// The release of the earlier holder is in flight to node 2 when the next holder makes a token of
/// its lock. After that node 2 hands the key over to this token.
#[test]
fn key_that_is_handed_over_to_a_lock_that_was_handed_off_is_not_released() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    world.release(all[0], lock);
    world.deliver(all[0], [0, 1], all[1]);
    assert!(fetch(&mut world, all[1]));
    let lock = world.won(all[1]);
    let token = world.call(all[1], |core, now| core.into_token(lock, now)).expect("it is held");
    // Node 2 executes the earlier holder's release before the command that takes the token out of
    // the line.
    world.deliver_to_node(all[0], 2);
    world.settle();
    let token = token.to_string();
    assert_eq!([0, 1, 2].map(|node| world.value(node)), [0; 3].map(|_| token.clone()));
}

/// Renewals are due only at multiples of a sixtieth of the ttl, so that the client can send those
/// of many locks together.
#[test]
fn first_renewal_of_a_lock_that_was_won_in_line_counts_from_the_join_and_falls_on_the_grid() {
    let mut world = World::new(3);
    // With so long a node timeout the nodes assume that the waiter runs, and give it the whole ttl.
    let [holder, waiter] = [(); 2].map(|()| world.client_with(|it| it.node_timeout = 500 * MS));
    let ttl = 1800 * MS;
    let lock = world.acquire(holder, LONG);
    let (now, auto_extend) = (world.now(), AutoExtend::at_most(Duration::from_secs(3600)));
    let core = world.client_mut(waiter);
    core.acquire(KEY, LockOptions::new(ttl).wait(LONG).auto_extend(auto_extend), 1, now)
        .expect("it can be asked for");
    world.pass(3000 * MS);
    let _lock = world.hand_on(holder, lock, waiter);
    let won = world.now();
    assert_eq!(world.core(waiter).stats().claims, 0);
    while world.core(waiter).stats().renewed == 0 {
        world.pass(MS);
    }
    let pause = world.now().saturating_since(won);
    // The ttl counts from the waiter's last poll, up to 90 ms before the hand-over, and a multiple
    // of 30 ms is due before the end of a third of the ttl.
    assert!(pause >= ttl / 3 - (90 + 30) * MS && pause <= ttl / 3, "{pause:?}");
    assert_eq!(world.now().as_nanos() % (ttl / 60).as_nanos() as u64, 0);
}

#[test]
fn hand_over_that_is_read_after_the_end_of_the_wait_is_not_claimed() {
    let (mut world, [holder, waiter]) = World::with_clients(3);
    let lock = world.won_in_line(holder, LONG);
    let now = world.now();
    let wait = 60 * MS;
    world.client_mut(waiter).acquire(KEY, LockOptions::new(LONG).wait(wait), 1, now).unwrap();
    world.settle();
    world.pause_all_clients();
    world.release(holder, lock);
    (0..3).for_each(|node| world.deliver_to_node(holder, node));
    // The waiter reads the messages after the end of its wait, while the keys are still its own.
    world.advance(20 * MS);
    for node in 0..3 {
        world.deliver_to_client(waiter, node);
        assert!(!is_asked(&world, waiter, node));
    }
    assert_eq!(world.core(waiter).stats().claims, 0);
    world.pass(MS);
    assert!(matches!(world.error(waiter), Error::Contended(_)));
    world.settle();
    world.done[holder].clear();
    world.assert_clean();
}

/// Nodes 0, 1 and 2 of five hand the key over to a waiter. Node 0 did not answer the last poll, so
/// its ttl counts from an earlier moment and is nearly over. So the waiter claims the three nodes.
fn claim_of_three(world: &mut World) -> usize {
    let (all, lock) = world.line_up(2, TTL);
    world.pass(20 * MS);
    world.cut_off(&[0]);
    world.pass(95 * MS);
    world.release(all[0], lock);
    world.deliver(all[0], 0..3, all[1]);
    assert!(!fetch(world, all[1]), "it claims");
    assert_eq!(world.core(all[1]).stats().claims, 1);
    all[1]
}

#[test]
fn node_that_says_that_it_lost_the_key_is_no_vote_after_the_claim() {
    let mut world = World::new(5);
    let waiter = claim_of_three(&mut world);
    let holder = 0;
    world.run(1, &[b"DEL", KEY]);
    world.deliver_to_node(waiter, 1);
    world.deliver_to_client(waiter, 1);
    world.deliver_to_node(holder, 3);
    world.deliver_to_client(waiter, 3);
    assert!(!fetch(&mut world, waiter), "nodes 0, 2 and 3 have the key, and node 0 for too short");
}

/// Node 0 hands the key over and answers nothing from then on. An operator deletes the key on node
/// 1 before this node executes a claim, so each claim is lost.
#[test]
fn node_that_has_not_answered_two_claims_is_not_asked_a_third() {
    let (mut world, all, lock) = World::with_line(3, 2, LONG);
    world.cut_off(&[0, 1, 2]);
    world.pause_all_clients();
    world.release(all[0], lock);
    world.deliver(all[0], [0, 1], all[1]);
    for claims in 1..=4 {
        while world.core(all[1]).stats().claims < claims {
            world.pass(MS);
            world.deliver_to_node(all[1], 1);
            world.deliver_to_client(all[1], 1);
        }
        world.run(1, &[b"DEL", KEY]);
        world.deliver_to_node(all[1], 1);
        world.deliver_to_client(all[1], 1);
    }
    world.cut_off(&[]);
    world.pass(100 * MS);
    assert!(world.lock(all[1]).is_some());
}

/// A client that won the lock in line before any node executed the poll that it sent. Another
/// program has the key on node 0.
fn won_before_its_poll_is_executed() -> (World, usize, Lock) {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    world.cut_off(&[0, 1, 2]);
    world.pass(95 * MS);
    assert!(is_asked(&world, all[1], 0), "it polls");
    world.release(all[0], lock);
    world.deliver(all[0], 0..3, all[1]);
    assert!(fetch(&mut world, all[1]));
    let lock = world.won(all[1]);
    world.run(0, &[b"SET", KEY, b"other", b"PX", b"60000"]);
    (world, all[1], lock)
}

/// Node 0 executes a poll after the lock was won, which puts the token into its line again. The
/// answer is lost with the connection.
#[test]
fn release_takes_the_token_out_of_a_line_that_a_late_poll_joined() {
    let (mut world, waiter, lock) = won_before_its_poll_is_executed();
    world.deliver_to_node(waiter, 0);
    assert_eq!(world.in_line(0), 1, "the key is another's there");
    world.cut(waiter, 0);
    world.cut_off(&[]);
    while world.core(waiter).stats().nodes[0].connections < 2 {
        world.pass(MS);
    }
    world.pass(5 * MS);
    world.release_and_settle(waiter, lock);
    assert_eq!([0, 1, 2].map(|node| world.in_line(node)), [0; 3]);
}

/// A node in quarantine hands the key over to a lock that is held already. The node must get no
/// vote in an extend by that.
#[test]
fn hand_over_by_a_node_in_quarantine_to_a_held_lock_is_no_vote_in_an_extend() {
    let (mut world, all, lock) = World::with_line(3, 2, LONG);
    world.release(all[0], lock);
    world.deliver_to_node(all[0], 0);
    world.deliver_to_node(all[0], 1);
    world.stop(all[0]);
    world.settle();
    let lock = world.won(all[1]);
    assert!(world.extend(all[1], &lock, LONG).expect("nodes 0 and 1 agree").result.is_ok());
    // Node 2 answered the extend that the key is another client's. It restarts with its data, and
    // then executes the earlier holder's release.
    world.restart(2, Restart::WithData);
    world.pass(300 * MS);
    world.resume_all();
    while world.value(2) != world.value(0) {
        world.pass(MS);
    }
    world.assert_quarantined(all[1], 2);
    world.cut_off(&[0]);
    let extended = world.extend(all[1], &lock, LONG);
    assert!(extended.is_none(), "only node 1 has a vote: {extended:?}");
}

/// The client gave up an earlier wait for the key, and the node executes a join of that wait late.
#[test]
fn hand_over_to_an_earlier_token_of_the_same_client_is_no_vote() {
    let (mut world, [holder, waiter]) = World::with_clients(1);
    let lock = world.acquire(holder, TTL);
    let op = world.ask_and_settle(waiter, TTL);
    let earlier = world.line(0).remove(0);
    world.call(waiter, |core, now| core.cancel(op, now));
    world.ask_and_settle(waiter, TTL);
    world.run(0, &[b"ZADD", LINE, b"-1", &earlier]);
    world.release(holder, lock);
    world.deliver_to_node(holder, 0);
    assert!(earlier.ends_with(world.value(0).as_bytes()));
    world.deliver_to_client(waiter, 0);
    assert!(!fetch(&mut world, waiter));
    let written = world.unexecuted(waiter, 0);
    let commands = written.windows(3).filter(|bytes| bytes == b"\r\n*").count() + 1;
    assert_eq!(commands, 1, "the key is given back, and nothing else is written");
    world.settle();
    assert!(world.lock(waiter).is_some());
}

#[test]
fn message_that_is_repeated_causes_one_poll_with_a_new_mark() {
    let (mut world, all, lock) = World::with_line(3, 2, TTL);
    let [_, _, channel, _, token] = words_of_member(&world, 0, 0);
    let message = message_of_a_hand_over(&mut world, &all, lock, &channel);
    world.deliver_to_client(all[1], 0);
    assert!(!is_asked(&world, all[1], 0));
    for _ in 0..3 {
        publish(&mut world, 0, &channel, &message);
        world.deliver_to_client(all[1], 0);
    }
    let written = world.unexecuted(all[1], 0);
    let written = String::from_utf8(written).expect("it is text");
    assert_eq!(written.matches("redlatch:line:{k}").count(), 1);
    assert_eq!(written.matches(&token).count(), 3, "two members with it: {written}");
    // After the lock is won, a repeated message causes no poll: a poll would put the token into the
    // line again.
    world.settle();
    let _lock = world.won(all[1]);
    publish(&mut world, 0, &channel, &message);
    world.deliver_to_client(all[1], 0);
    assert!(!is_asked(&world, all[1], 0));
}

#[test]
fn poll_after_a_repeated_message_gives_a_node_in_quarantine_no_vote() {
    let (mut world, all, _lock) = World::with_line(1, 2, TTL);
    let [_, _, channel, mark, token] = words_of_member(&world, 0, 0);
    world.restart(0, Restart::Empty);
    while world.value(0) != token {
        world.pass(MS);
    }
    publish(&mut world, 0, &channel, &format!("200\n0\n\n{mark}\n{token}\nk"));
    world.deliver_to_client(all[1], 0);
    assert!(is_asked(&world, all[1], 0));
    world.settle();
    assert!(world.lock(all[1]).is_none(), "the holder has the lock");
}

/// Node 0 restarts with its data. It had handed the key over, so no other client can have had it
/// there, and its vote counts in an extend also in quarantine.
#[test]
fn key_that_was_handed_over_counts_after_a_restart_of_its_node() {
    let mut world = World::new(3);
    let [holder, waiter] = [(); 2].map(|()| world.client_with(|it| it.node_timeout = 500 * MS));
    let ttl = 2000 * MS;
    for client in [holder, waiter] {
        world.ask_and_settle(client, ttl);
    }
    world.win_and_release(holder);
    let lock = world.won(waiter);
    world.restart(0, Restart::WithData);
    world.pass(600 * MS);
    world.assert_quarantined(waiter, 0);
    world.cut_off(&[1]);
    let extended = world.extend(waiter, &lock, ttl).expect("nodes 0 and 2 have a vote");
    assert!(extended.result.is_ok(), "{extended:?}");
}

/// A client wins so many locks in line, one after the other, and makes a token of each. Then the
/// node hands the key over to the first of these tokens. Returns whether the client releases it
/// there, because it does not know any more that the token was handed off.
fn first_is_released_after(given_away: usize) -> bool {
    let (mut world, [holder, waiter]) = World::with_clients(1);
    let mut first = Vec::new();
    for _ in 0..given_away {
        let lock = world.won_in_line(holder, TTL);
        world.ask_and_settle(waiter, TTL);
        if first.is_empty() {
            first = world.line(0).remove(0);
        }
        world.release_and_settle(holder, lock);
        let (lock, now) = (world.won(waiter), world.now());
        world.client_mut(waiter).into_token(lock, now).expect("it is held");
        world.settle();
        world.run(0, &[b"DEL", KEY]);
    }
    let lock = world.won_in_line(holder, TTL);
    world.run(0, &[b"ZADD", LINE, b"-1", &first]);
    world.release_and_settle(holder, lock);
    world.value(0).is_empty()
}

#[test]
fn tokens_that_were_handed_off_are_remembered_up_to_a_number() {
    assert!(!first_is_released_after(1));
    assert!(!first_is_released_after(64));
    assert!(first_is_released_after(65));
}

/// The client writes a poll, wins the lock, and writes its release, all on one connection. The poll
/// puts the token into the line, and the release has to take it out.
#[test]
fn release_takes_out_the_token_that_a_poll_before_it_puts_into_the_line() {
    let (mut world, waiter, lock) = won_before_its_poll_is_executed();
    world.release(waiter, lock);
    world.cut_off(&[]);
    world.settle();
    assert_eq!([0, 1, 2].map(|node| world.in_line(node)), [0; 3]);
}

#[test]
fn claim_that_a_node_in_quarantine_grants_is_no_vote_and_proves_nothing() {
    let (mut world, [holder, waiter]) = World::with_clients(3);
    let lock = world.acquire(holder, LONG);
    world.restart(0, Restart::Empty);
    world.pass(300 * MS);
    world.ask_and_settle(waiter, LONG);
    assert!(!world.value(0).is_empty(), "the waiter has the key there");
    world.run(1, &[b"DEL", KEY]);
    world.pass(100 * MS);
    assert!(world.core(waiter).stats().claims > 0);
    assert!(world.lock(waiter).is_none(), "node 1 has the only vote");
    world.release(holder, lock);
    world.pass(100 * MS);
    let lock = world.won(waiter);
    assert_eq!(world.value(0), lock.token().to_string());
    world.cut_off(&[1]);
    let extended = world.extend(waiter, &lock, LONG);
    assert!(extended.is_none(), "only node 2 has a vote: {extended:?}");
}

/// Node 2 handed the key over, but the claim that won the lock did not ask it. So the client may
/// rely on node 2 only for the short ttl of the hand-over.
#[test]
fn node_that_was_not_claimed_counts_only_for_its_hand_over() {
    let (mut world, all, lock) = World::with_line(3, 2, LONG);
    world.pause_all_clients();
    world.release(all[0], lock);
    world.deliver(all[0], 0..3, all[1]);
    world.settle();
    let lock = world.won(all[1]);
    world.pass(250 * MS);
    assert_eq!(world.value(2), "", "the key has ended there");
    // From now on node 2 could have granted the key to another client. It restarts with data in
    // which the key is this client's.
    let token = world.value(1);
    world.restart_with_key(2, &token);
    world.pass(500 * MS);
    world.assert_quarantined(all[1], 2);
    world.cut_off(&[0]);
    let extended = world.extend(all[1], &lock, LONG);
    assert!(extended.is_none(), "only node 1 has a vote: {extended:?}");
}

/// All nodes execute a claim, but the client reads the answers after the short ttl, so the claim is
/// lost. The answers to its next polls show that the keys live for the whole ttl, which wins the
/// lock.
#[test]
fn lock_that_is_won_by_a_poll_after_a_lost_claim_warns_as_early_as_others() {
    let mut world = World::new(3);
    let [holder, waiter] = [(); 2].map(|()| world.client());
    let lock = world.won_in_line(holder, LONG);
    let (now, auto_extend) = (world.now(), AutoExtend::at_most(Duration::from_secs(3600)));
    let core = world.client_mut(waiter);
    core.acquire(KEY, LockOptions::new(LONG).wait(LONG).auto_extend(auto_extend), 1, now)
        .expect("it can be asked for");
    world.settle();
    world.pause_all_clients();
    world.release(holder, lock);
    world.deliver(holder, 0..3, waiter);
    assert_eq!(world.core(waiter).stats().claims, 1);
    (0..3).for_each(|node| world.deliver_to_node(waiter, node));
    world.cut_off(&[0, 1, 2]);
    world.pass(300 * MS);
    world.cut_off(&[]);
    world.pass(MS);
    let _lock = world.won(waiter);
    let stats = world.core(waiter).stats();
    assert_eq!((stats.claims, stats.handed_over), (1, 1), "it was won by a poll");
    world.cut_off(&[0, 1, 2]);
    let deadline = loop {
        world.pass(MS);
        let update = world.client_mut(waiter).poll_lock_update();
        if let Some(LockUpdateKind::Expiring { deadline, .. }) = update.map(|it| it.kind) {
            break deadline;
        }
    };
    let left = deadline.saturating_since(world.now());
    assert!(left > LONG / 4, "{left:?}");
}
