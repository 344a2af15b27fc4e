//! Waiters at rest: if nothing changes, they ask the nodes ever more seldom, and still have the key
//! as soon as they can.

use std::time::Duration;

use redlatch::proto::{Action, Coordinator, Instant, LockOptions, NodeId, NodeSettings, Settings};
use redlatch::testing::master::Trouble;
use redlatch::testing::net::{Endpoint, Net};
use redlatch::{AutoExtend, Lock};

use super::line::{LONG, MS, TTL};
use super::line_world::{KEY, LINE, World};

const SECOND: Duration = Duration::from_secs(1);
/// After this time of quiet the pauses of a waiter have their full length.
const AT_REST: Duration = Duration::from_secs(300);

/// A client holds the key and renews it. Its lock was won by a `SET`, and its release deletes the
/// key; or was won `in_line`, and its release hands the key over. Clients stand in line for it.
fn line_behind_a_keeper(
    world: &mut World,
    (ttl, in_line): (Duration, bool),
    waiters: usize,
) -> (usize, Lock, Vec<usize>) {
    let keeper = world.client();
    let options = LockOptions::new(ttl).auto_extend(AutoExtend::at_most(100 * AT_REST));
    let lock = match in_line {
        true => world.won_in_line_with(keeper, options),
        false => {
            world.ask_with(keeper, options);
            world.settle();
            world.won(keeper)
        }
    };
    assert_eq!(lock.token().hands_over(), in_line);
    let waiters: Vec<usize> = (0..waiters).map(|_| world.client()).collect();
    for &waiter in &waiters {
        world.ask_with(waiter, LockOptions::new(LONG));
        world.settle();
    }
    (keeper, lock, waiters)
}

/// Lets time pass until the client has the lock. Returns the lock and the time.
#[track_caller]
fn time_to_lock(world: &mut World, client: usize, longest: Duration) -> (Lock, Duration) {
    let begun = world.now();
    world.settle();
    while world.now().saturating_since(begun) <= longest {
        if let Some(lock) = world.lock(client) {
            return (lock, world.now().saturating_since(begun));
        }
        world.pass(MS);
    }
    panic!("it has no lock after {longest:?}");
}

/// A client that counts the commands that it sends to node 0.
struct CountingClient {
    core: Coordinator,
    sent: usize,
}

impl Endpoint for CountingClient {
    fn poll_action(&mut self) -> Option<Action> {
        self.core.poll_action()
    }

    fn handle_connected(&mut self, node: NodeId, now: Instant) {
        self.core.handle_connected(node, now);
    }

    fn handle_disconnected(&mut self, node: NodeId, words: &str, now: Instant) {
        self.core.handle_disconnected(node, words, now);
    }

    fn output(&self, node: NodeId) -> &[u8] {
        self.core.output(node)
    }

    fn handle_sent(&mut self, node: NodeId, count: usize, now: Instant) {
        if node.index() == 0 {
            // No argument of the commands in these tests begins with an asterisk.
            let bytes = &self.core.output(node)[..count];
            let later = bytes.windows(2).filter(|&two| two == b"\n*").count();
            self.sent += later + usize::from(bytes.first() == Some(&b'*'));
        }
        self.core.handle_sent(node, count, now);
    }

    fn handle_bytes(&mut self, node: NodeId, bytes: &[u8], now: Instant) {
        self.core.handle_bytes(node, bytes, now);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.core.next_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.core.handle_timeout(now);
    }

    fn has_news(&self) -> bool {
        self.core.has_completions()
    }
}

/// A client that will keep locks, and one that will wait for them, and may not send this command.
fn keeper_and_client(refused: Option<&str>) -> (Net<CountingClient>, [usize; 2]) {
    let mut net: Net<CountingClient> = Net::new(3, 7);
    let clients = [1, 2].map(|seed| {
        if let (2, Some(refused)) = (seed, refused) {
            let commands = vec![refused.into()];
            let reply = b"-NOPERM no\r\n".to_vec();
            let refused = Trouble::Answers { commands, reply };
            (0..3).for_each(|node| net.master_mut(node).suffer(refused.clone()));
        }
        let nodes = (0..3).map(|node| NodeSettings::new(format!("n{node}"))).collect();
        let mut settings = Settings::new(nodes);
        settings.probe_interval = 1000 * SECOND;
        let core = Coordinator::new(settings, [seed; 32], net.now()).expect("these settings work");
        let client = net.add(CountingClient { core, sent: 0 });
        net.settle();
        client
    });
    (net, clients)
}

/// The first client gets the locks of so many keys and renews them. The second one begins to wait
/// for each of them.
fn wait_for_kept_keys(
    net: &mut Net<CountingClient>,
    clients: [usize; 2],
    ttl: Duration,
    keys: usize,
) {
    let [keeper, client] = clients;
    let kept = LockOptions::new(ttl).auto_extend(AutoExtend::at_most(10 * AT_REST));
    for (client, options) in [(keeper, kept), (client, LockOptions::new(ttl).wait(10 * AT_REST))] {
        for number in 0..keys {
            let now = net.now();
            let core = &mut net.client_mut(client).core;
            core.acquire(format!("key {number}"), options, 0, now).expect("there is room");
        }
        net.settle();
        let now = net.now();
        while net.client_mut(keeper).core.poll_completion(now).is_some() {}
    }
}

/// How many commands a waiter that rests sends to a node in ten minutes, and how often its key is
/// renewed meanwhile.
fn commands_at_rest(ttl: Duration, waiters: usize, refused: Option<&str>) -> (usize, usize) {
    let (mut net, [keeper, client]) = keeper_and_client(refused);
    wait_for_kept_keys(&mut net, [keeper, client], ttl, waiters);
    net.pass(AT_REST);
    let renewed = |net: &Net<CountingClient>| net.get_client(keeper).core.stats().renewed as usize;
    let before = (net.get_client(client).sent, renewed(&net));
    net.pass(2 * AT_REST);
    let sent = net.get_client(client).sent - before.0;
    (sent / waiters, (renewed(&net) - before.1) / waiters)
}

#[test]
fn waiter_at_rest_polls_every_15_seconds_and_sends_three_commands_for_each_renewal() {
    for (ttl, waiters) in [(30, 1), (30, 20), (60, 1)] {
        let (sent, renewed) = commands_at_rest(ttl * SECOND, waiters, None);
        println!("ttl {ttl} s, {waiters} waiters: {sent} commands each, {renewed} renewals");
        assert!(renewed >= 2 * 300 / 21);
        assert!(sent <= 3 * renewed + 2 * 300 / 15, "{sent} commands, {renewed} renewals");
    }
}

/// Each of 1,024 waiters may poll once in 240 ms, four times as seldom as one of 256, although it
/// does not know yet whether anything happens.
#[test]
fn waiters_that_come_together_poll_no_more_often_than_256() {
    let (mut net, [keeper, client]) = keeper_and_client(None);
    wait_for_kept_keys(&mut net, [keeper, client], 30 * SECOND, 1_024);
    // Every waiter has polled once with the longer pauses.
    net.pass(400 * MS);
    let before = net.get_client(client).sent;
    net.pass(1_200 * MS);
    let sent = net.get_client(client).sent - before;
    assert!(sent <= 5 * 1_024 + 100, "{sent} commands");
}

/// One waiter rests and polls seldom, another one has just come and polls often.
#[test]
fn join_never_shortens_the_life_of_a_line() {
    let mut world = World::new(3);
    let (_, _lock, _) = line_behind_a_keeper(&mut world, (LONG, false), 1);
    world.pass(AT_REST);
    let left = |world: &World| world.master(0).pttl(world.now(), 0, LINE);
    let later = world.client();
    world.ask_and_settle(later, LONG);
    assert!(left(&world) > 20_000, "{} ms", left(&world));
}

/// The nodes report no writes to the client, or no hand-overs.
#[test]
fn waiter_that_no_node_notifies_does_not_rest() {
    for refused in ["client|tracking", "subscribe"] {
        let (sent, _) = commands_at_rest(30 * SECOND, 1, Some(refused));
        assert!((600 * 11..=600 * 17).contains(&sent), "{refused}: {sent}, one in 60 to 90 ms");
    }
}

/// The longest pause between two polls of a waiter that does not rest, and a little more.
const POLL: Duration = Duration::from_millis(100);

#[test]
fn waiter_at_rest_has_the_key_as_soon_as_the_holder_releases_it() {
    for in_line in [false, true] {
        let mut world = World::new(3);
        let (keeper, lock, all) = line_behind_a_keeper(&mut world, (LONG, in_line), 3);
        world.pass(AT_REST);
        world.release(keeper, lock);
        let (lock, _) = time_to_lock(&mut world, all[0], Duration::ZERO);
        world.pass(AT_REST / 100);
        world.release(all[0], lock);
        let (lock, _) = time_to_lock(&mut world, all[1], Duration::ZERO);
        world.release(all[1], lock);
        let (lock, _) = time_to_lock(&mut world, all[2], Duration::ZERO);
        world.release_and_settle(all[2], lock);
        world.done[keeper].clear();
        world.assert_clean();
    }
}

/// The waiters before it may be gone, too. Then it gets the key up to 90 ms later for each of them.
#[test]
fn waiter_at_rest_has_the_key_of_a_dead_holder_when_it_expires() {
    for (gone, in_line) in [(0, false), (0, true), (4, false), (4, true)] {
        let mut world = World::new(3);
        let (keeper, _lock, all) = line_behind_a_keeper(&mut world, (LONG, in_line), gone + 1);
        world.pass(AT_REST);
        for &client in all[..gone].iter().chain([&keeper]) {
            world.stop(client);
            (0..3).for_each(|node| world.cut(client, node));
        }
        let left = (0..3).map(|node| world.master(node).pttl(world.now(), 0, KEY)).max().unwrap();
        let left = Duration::from_millis(left as u64) + 5 * MS;
        let longest = left + 90 * MS * gone as u32;
        let (_lock, took) = time_to_lock(&mut world, all[gone], longest);
        assert!(took + 10 * MS >= left, "{took:?}, {left:?}");
    }
}

/// The waiters at the front are gone: they gave up, or their connections were lost together with
/// their processes. Those after them have not polled since.
#[test]
fn waiter_at_rest_has_the_key_at_once_although_those_before_it_are_gone() {
    for (killed, in_line) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut world = World::new(3);
        let (keeper, lock, all) = line_behind_a_keeper(&mut world, (LONG, in_line), 10);
        world.pass(AT_REST);
        let (gone, last) = (&all[..9], all[9]);
        for &client in gone {
            if killed {
                world.stop(client);
                (0..3).for_each(|node| world.cut(client, node));
            } else {
                let now = world.now();
                world.client_mut(client).close(now);
            }
        }
        world.settle();
        world.release(keeper, lock);
        let _lock = time_to_lock(&mut world, last, Duration::ZERO);
    }
}

/// A successor that is stopped gets the key for the hand-over ttl, and the next one has it after
/// that, as if it did not rest. With several of them it has the key after as many of these ttls.
#[test]
fn stopped_successors_delay_a_waiter_at_rest_by_the_hand_over_ttl_each() {
    for (stopped, in_line) in [(1, true), (1, false), (5, true), (5, false)] {
        let mut world = World::new(3);
        let (keeper, lock, all) = line_behind_a_keeper(&mut world, (LONG, in_line), stopped + 1);
        world.pass(AT_REST);
        all[..stopped].iter().for_each(|&client| world.stop(client));
        // A node gives the short ttl to a client that it has not heard from for so long.
        world.pass(51 * MS);
        world.release(keeper, lock);
        let longest = (TTL + POLL) * stopped as u32;
        let (_lock, took) = time_to_lock(&mut world, all[stopped], longest);
        assert!(took >= (TTL - 5 * MS) * stopped as u32, "{took:?}");
    }
}

/// The node reports the write only once, so a waiter that did not register the key again would not
/// notice the next one.
#[test]
fn waiter_at_rest_has_the_key_at_once_after_its_holder_renewed_it() {
    for ttl in [60 * MS, 300 * MS, LONG] {
        let mut world = World::new(3);
        let (keeper, lock, all) = line_behind_a_keeper(&mut world, (ttl, false), 1);
        world.pass(AT_REST / 10);
        let renewals = world.core(keeper).stats().renewed;
        while world.core(keeper).stats().renewed < renewals + 2 {
            world.pass(MS);
        }
        world.release(keeper, lock);
        // A holder with such a short ttl renews its lock more often than waiters register a key.
        let longest = if ttl < POLL { POLL } else { Duration::ZERO };
        let _lock = time_to_lock(&mut world, all[0], longest);
    }
}

#[test]
fn waiter_at_rest_stands_in_line_again_after_its_connections_were_lost() {
    for in_line in [false, true] {
        let mut world = World::new(3);
        let (keeper, lock, all) = line_behind_a_keeper(&mut world, (LONG, in_line), 1);
        world.pass(AT_REST);
        (0..3).for_each(|node| world.cut(all[0], node));
        world.pass(SECOND);
        world.release(keeper, lock);
        let _lock = time_to_lock(&mut world, all[0], Duration::ZERO);
    }
}

/// A waiter at rest gives up. Its token stays in the line of a node that refuses the release, for
/// as long as its last join let that line live. Until then the node may still hand the key to it.
#[test]
fn release_of_a_waiter_at_rest_is_pending_for_as_long_as_its_line_lives() {
    let mut world = World::new(3);
    let (_, _lock, _) = line_behind_a_keeper(&mut world, (LONG, false), 1);
    let late = world.client();
    let op = world.ask_and_settle(late, LONG);
    world.pass(AT_REST);
    let reply = b"-BUSY a script runs\r\n".to_vec();
    let commands = vec!["eval".into(), "evalsha".into()];
    world.master_mut(0).suffer(Trouble::Answers { commands, reply });
    let begun = world.now();
    world.call(late, |core, now| core.cancel(op, now));
    while world.core(late).open_records() > 0 {
        world.pass(SECOND);
        assert!(world.now().saturating_since(begun) < LONG + 100 * SECOND, "it never lapses");
    }
    let took = world.now().saturating_since(begun);
    assert!(took > LONG + 25 * SECOND, "{took:?}");
}

/// The `max_ttl` is so short that ten of them are over before the line of a waiter at rest ends.
#[test]
fn release_of_a_waiter_at_a_node_that_is_gone_is_pending_for_as_long_as_a_line_can_live() {
    let mut world = World::new(3);
    let short = 2 * SECOND;
    let [keeper, waiter] = [0, 1].map(|_| world.client_with(|it| it.max_ttl = short));
    world.ask_with(keeper, LockOptions::new(short).auto_extend(AutoExtend::at_most(AT_REST)));
    world.settle();
    let op = world.ask_and_settle(waiter, short);
    world.kill(0);
    world.settle();
    world.call(waiter, |core, now| core.cancel(op, now));
    let pending = |world: &World| world.core(waiter).pending_releases(NodeId::new(0));
    world.pass(60 * SECOND);
    assert_eq!(pending(&world), 1);
    world.pass(20 * SECOND);
    assert_eq!(pending(&world), 0);
}
