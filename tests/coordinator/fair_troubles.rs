//! Fair locks where something is missing or goes wrong: no messages, a frozen node, a node that
//! forgot, and plain clients beside the line.

use std::time::Duration;

use redlatch::RestartGuard;
use redlatch::testing::master::{Restart, Trouble};

use super::fair::{LONG, MS, TTL, line_of};
use super::fair_world::{KEY, World};

#[test]
fn waiters_that_cannot_be_notified_poll() {
    let refused =
        Trouble::Answers { commands: vec!["subscribe".into()], reply: b"-NOPERM no\r\n".to_vec() };
    let old = Trouble::Answers {
        commands: vec!["hello".into()],
        reply: b"-ERR unknown command\r\n".to_vec(),
    };
    for trouble in [refused, old] {
        let mut world = World::new(3);
        world.masters.iter_mut().for_each(|master| master.suffer(trouble.clone()));
        let (all, mut lock) = line_of(&mut world, 4, TTL);
        for pair in all.windows(2) {
            world.release(pair[0], lock);
            world.pass(100 * MS);
            lock = world.won(pair[1]);
        }
        world.release(all[3], lock);
        world.settle();
        world.assert_clean();
    }
}

#[test]
fn messages_that_may_not_be_sent_are_replaced_by_polls() {
    let refused =
        Trouble::Answers { commands: vec!["publish".into()], reply: b"-NOPERM no\r\n".to_vec() };
    let mut world = World::new(3);
    world.masters.iter_mut().for_each(|master| master.suffer(refused.clone()));
    let (all, mut lock) = line_of(&mut world, 3, TTL);
    for pair in all.windows(2) {
        world.release(pair[0], lock);
        world.pass(100 * MS);
        lock = world.won(pair[1]);
    }
    world.release(all[2], lock);
    world.settle();
    world.assert_clean();
}

#[test]
fn a_frozen_node_does_not_delay_a_hand_over() {
    let mut world = World::new(5);
    world.frozen.push(4);
    let all: Vec<usize> = (0..4).map(|_| world.client()).collect();
    world.pass(1100 * MS);
    for &client in &all {
        world.ask(client, TTL);
        world.settle();
    }
    let mut lock = world.won(all[0]);
    for pair in all.windows(2) {
        world.release(pair[0], lock);
        world.settle();
        lock = world.won(pair[1]);
    }
    world.release(all[3], lock);
    world.frozen.clear();
    world.pass(2000 * MS);
    world.assert_clean();
}

#[test]
fn plain_clients_beside_a_line_get_the_key_only_when_it_is_free() {
    let mut world = World::new(3);
    let (all, lock) = line_of(&mut world, 2, TTL);
    let plain = world.client();
    let now = world.now;
    let core = &mut world.clients[plain].core;
    core.acquire(KEY, TTL, Duration::from_secs(10), 1, now).unwrap();
    world.settle();
    world.release(all[0], lock);
    world.settle();
    assert!(world.clients[plain].done.is_empty());
    let lock = world.won(all[1]);
    world.release(all[1], lock);
    world.pass(50 * MS);
    let lock = world.won(plain);
    world.ask(all[0], TTL);
    world.settle();
    world.release(plain, lock);
    world.pass(100 * MS);
    let lock = world.won(all[0]);
    world.release(all[0], lock);
    world.settle();
    world.assert_clean();
}

#[test]
fn a_client_is_one_member_of_the_line() {
    let mut world = World::new(3);
    let (all, lock) = line_of(&mut world, 2, TTL);
    // A second request of the first client waits inside it.
    world.ask(all[0], TTL);
    world.settle();
    assert_eq!(world.in_line(0), 1);
    world.release(all[0], lock);
    world.settle();
    let lock = world.won(all[1]);
    assert_eq!(world.in_line(0), 1, "the second request stands in line now");
    world.release(all[1], lock);
    world.settle();
    let lock = world.won(all[0]);
    world.release(all[0], lock);
    world.settle();
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
        world.ask(client, LONG);
        world.settle();
    }
    let lock = world.won(all[0]);
    world.restart(0, Restart::Empty);
    world.pass(400 * MS);
    assert!(world.in_line(0) >= 1);
    assert!(all[1..].iter().all(|&it| world.clients[it].done.is_empty()));
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
