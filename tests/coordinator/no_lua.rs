//! Nodes that run no Lua scripts: plain locks by the nodes' own commands, and errors for the rest.
//! The masters are in this process, so the spellings of Redis 8.4 are tested, too.

use std::time::Duration;

use super::millis;
use redlatch::proto::{KeySet, NodeSettings, Settings};
use redlatch::testing::master::{Flavor, Trouble};
use redlatch::testing::net::Net;
use redlatch::{
    Error, KeyState, Keys, Lock, LockOptions, LockToken, NodeError, NodeId, NodeReply, NodeState,
    Outcome, ReleaseOutcome,
};

const KEY: &[u8] = b"k";
const MARKER: &[u8] = b"redlatch:node";
const TTL: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// The servers that have commands of their own, which differ in their spelling.
const FLAVORS: [Flavor; 2] = [Flavor::Valkey90, Flavor::Redis84];

struct World {
    net: Net,
}

impl World {
    /// Three masters of this flavor, of which the first `without` have no Lua.
    fn new(flavor: Flavor, without: usize) -> World {
        let mut world = World { net: Net::new(3, 1) };
        world.net.set_latency(millis(1)..=millis(1));
        for node in 0..3 {
            world.net.master_mut(node).set_flavor(flavor);
        }
        (0..without).for_each(|node| world.unload(node));
        world
    }

    /// As `new`, with a client.
    fn with_client(flavor: Flavor, without: usize) -> (World, usize) {
        let mut world = World::new(flavor, without);
        let client = world.client();
        (world, client)
    }

    fn unload(&mut self, node: usize) {
        self.net.master_mut(node).suffer(Trouble::NoLua);
    }

    /// Takes the right to scripts from the user.
    fn forbid_scripts(&mut self, node: usize) {
        for name in ["eval", "evalsha", "script|load"] {
            let line = format!("-NOPERM User a has no permissions to run the '{name}' command\r\n");
            let trouble = Trouble::Answers { commands: vec![name.into()], reply: line.into() };
            self.net.master_mut(node).suffer(trouble);
        }
    }

    fn settings() -> Settings {
        let mut settings =
            Settings::new((0..3).map(|n| NodeSettings::new(format!("n{n}"))).collect());
        settings.node_timeout = millis(50);
        settings
    }

    fn client(&mut self) -> usize {
        self.client_with(World::settings())
    }

    fn client_with(&mut self, settings: Settings) -> usize {
        let client = self.net.client(settings);
        self.net.pass(millis(20));
        client
    }

    /// The result of the client's oldest request. Time passes until it is known.
    fn result(&mut self, client: usize) -> Result<Outcome, Error> {
        for _ in 0..1000 {
            let now = self.net.now();
            if let Some(done) = self.net.client_mut(client).poll_completion(now) {
                return done.result;
            }
            self.net.pass(millis(1));
        }
        panic!("the request does not end");
    }

    fn acquire(
        &mut self,
        client: usize,
        keys: impl Keys,
        options: LockOptions,
    ) -> Result<Lock, Error> {
        let now = self.net.now();
        self.net.client_mut(client).acquire(keys, options, 1, now)?;
        match self.result(client)? {
            Outcome::Acquired(lock) => Ok(lock),
            other => panic!("{other:?}"),
        }
    }

    fn hold(&mut self, client: usize) -> Lock {
        self.acquire(client, KEY, LockOptions::once(TTL)).expect("the key is free")
    }

    fn extend(&mut self, client: usize, lock: &Lock, ttl: Duration) -> Result<Outcome, Error> {
        let now = self.net.now();
        self.net.client_mut(client).extend(lock, ttl, 2, now)?;
        self.result(client)
    }

    fn release(&mut self, client: usize, lock: Lock) -> ReleaseOutcome {
        let now = self.net.now();
        self.net.client_mut(client).release(lock, 3, now);
        match self.result(client) {
            Ok(Outcome::Released(outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    fn pttls(&self) -> [i64; 3] {
        [0, 1, 2].map(|node| self.net.master(node).pttl(self.net.now(), 0, KEY))
    }

    fn value(&self, node: usize, key: &[u8]) -> Option<String> {
        let value = self.net.master(node).get(self.net.now(), 0, key);
        value.map(|value| String::from_utf8_lossy(value).into_owned())
    }

    fn state(&self, client: usize, node: usize) -> NodeState {
        self.net.get_client(client).node_state(NodeId::new(node))
    }
}

/// What each node said, if the request failed.
fn replies(error: &Error) -> Vec<NodeReply> {
    error.report().expect("it has a report").nodes.iter().map(|node| node.reply).collect()
}

const NO_LUA: NodeReply = NodeReply::Failed(NodeError::NoLua);

#[test]
fn plain_lock_is_acquired_extended_and_released_where_nodes_run_no_scripts() {
    for flavor in FLAVORS {
        for without in [1, 3] {
            let mut world = World::new(flavor, without);
            let (client, other) = (world.client(), world.client());
            let lock = world.hold(client);
            let refused = world.acquire(other, KEY, LockOptions::once(TTL)).unwrap_err();
            assert!(matches!(refused, Error::Contended(_)), "{refused:?}");
            world.net.pass(SECOND);
            let extended = world.extend(client, &lock, 2 * TTL);
            assert!(matches!(extended, Ok(Outcome::Extended { .. })), "{extended:?}");
            assert!(world.pttls().iter().all(|&left| left > 19_000), "{:?}", world.pttls());
            assert_eq!(world.release(client, lock), ReleaseOutcome::Released);
            assert_eq!(world.pttls(), [-2; 3], "{flavor:?}");
        }
    }
}

#[test]
fn extend_by_set_ifeq_shortens_no_key_and_asks_for_no_more_than_needed() {
    let (mut world, client) = World::with_client(Flavor::Valkey90, 3);
    let lock = world.hold(client);
    world.net.pass(2 * SECOND);
    let before = world.net.get_client(client).remaining(&lock, world.net.now());
    world.extend(client, &lock, millis(500)).unwrap();
    let after = world.net.get_client(client).remaining(&lock, world.net.now());
    assert!(after <= before, "the deadline moved");
    for left in world.pttls() {
        let left = Duration::from_millis(u64::try_from(left).expect("the key is there"));
        assert!(left >= after, "{left:?} are left on a node, and {after:?} to the holder");
        assert!(left < TTL - SECOND, "{left:?}: much more than needed");
    }
    // The holder believes in its lock until its deadline, and no other client gets the key before.
    let other = world.client();
    while !world.net.get_client(client).remaining(&lock, world.net.now()).is_zero() {
        let got = world.acquire(other, KEY, LockOptions::once(TTL));
        let held = !world.net.get_client(client).remaining(&lock, world.net.now()).is_zero();
        assert!(got.is_err() || !held, "two holders");
        world.net.pass(millis(100));
    }
}

#[test]
fn extend_by_set_ifeq_distinguishes_an_absent_key_from_that_of_another_client() {
    let (mut world, client) = World::with_client(Flavor::Redis84, 3);
    let lock = world.hold(client);
    world.net.command(0, &[b"DEL", KEY]);
    world.net.command(1, &[b"SET", KEY, b"other"]);
    let error = world.extend(client, &lock, TTL).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    let said = replies(&error);
    assert_eq!(said[..2], [NodeReply::Absent, NodeReply::Held], "{error:?}");
    world.net.pass(SECOND);
    assert_eq!(world.value(0, KEY), None, "an extend creates nothing");
    assert_eq!(world.value(1, KEY).as_deref(), Some("other"));

    // If only one node lost the key, it is healed.
    world.net.command(1, &[b"DEL", KEY]);
    let lock = world.hold(client);
    world.net.command(0, &[b"DEL", KEY]);
    world.extend(client, &lock, TTL).unwrap();
    world.net.pass(millis(20));
    assert!(world.value(0, KEY).is_some(), "it was not healed");
}

#[test]
fn extend_that_an_old_request_may_shorten_does_not_count() {
    for may_kill in [true, false] {
        let mut world = World::new(Flavor::Valkey90, 3);
        if !may_kill {
            for node in 0..3 {
                let (commands, reply) = (vec!["client|kill".into()], b"-NOPERM no\r\n".to_vec());
                world.net.master_mut(node).suffer(Trouble::Answers { commands, reply });
            }
        }
        let client = world.client();
        let lock = world.hold(client);
        // Extends for a short time are in flight to two nodes when their connections are lost.
        (0..2).for_each(|node| world.net.freeze(node));
        let now = world.net.now();
        world.net.client_mut(client).extend(&lock, 3 * SECOND, 2, now).unwrap();
        world.net.pass(millis(5));
        (0..2).for_each(|node| world.net.cut(client, node));
        (0..2).for_each(|node| world.net.thaw(node));
        world.net.pass(SECOND);
        let now = world.net.now();
        while world.net.client_mut(client).poll_completion(now).is_some() {}
        let extended = world.extend(client, &lock, 3 * TTL);
        match may_kill {
            true => assert!(extended.is_ok(), "{extended:?}"),
            false => assert!(extended.is_err(), "the old requests may come yet: {extended:?}"),
        }
    }
}

#[test]
fn lock_is_adopted_by_set_ifeq_under_a_new_token() {
    for flavor in FLAVORS {
        let mut world = World::new(flavor, 2);
        let (client, other) = (world.client(), world.client());
        let lock = world.hold(client);
        let now = world.net.now();
        let token = world.net.client_mut(client).into_token(lock, now).expect("it is held");
        let adopt = |world: &mut World, client: usize, token: &LockToken| {
            let now = world.net.now();
            let core = world.net.client_mut(client);
            core.adopt(KEY, token.clone(), 2 * TTL, 4, now).expect("it can be asked");
            world.result(client)
        };
        let Ok(Outcome::Acquired(adopted)) = adopt(&mut world, other, &token) else {
            panic!("not adopted");
        };
        let first = token.to_string();
        assert!((0..3).all(|node| world.value(node, KEY).is_some_and(|value| value != first)));
        assert!(world.pttls().iter().all(|&left| left > 19_000), "{:?}", world.pttls());
        let again = adopt(&mut world, client, &token);
        assert!(matches!(again, Err(Error::Lost { .. })), "{again:?}");
        assert!(world.extend(other, &adopted, 2 * TTL).is_ok());
        assert_eq!(world.release(other, adopted), ReleaseOutcome::Released);
    }
}

#[test]
fn lock_that_needs_scripts_is_refused_and_names_the_reason() {
    let names = KeySet::new([&b"a"[..], b"b"]).expect("two keys");
    let (mut world, client) = World::with_client(Flavor::Valkey90, 2);
    let options = LockOptions::new(TTL).wait(SECOND);
    for error in [
        world.acquire(client, &names, options).unwrap_err(),
        world.acquire(client, KEY, options.fenced()).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Config(_)), "{error:?}");
        assert!(error.to_string().contains("runs no Lua scripts"), "{error}");
    }
    assert_eq!(world.pttls(), [-2; 3], "nothing was written");
    // One such node is a minority.
    let (mut world, client) = World::with_client(Flavor::Valkey90, 1);
    for fenced in [false, true] {
        let options = if fenced { LockOptions::once(TTL).fenced() } else { LockOptions::once(TTL) };
        let lock = world.acquire(client, &names, options).expect("two nodes run scripts");
        assert!(world.extend(client, &lock, TTL).is_ok());
        assert_eq!(world.release(client, lock), ReleaseOutcome::Released);
    }
    world.net.kill(2);
    world.net.pass(SECOND);
    let error = world.acquire(client, &names, LockOptions::once(TTL)).unwrap_err();
    assert_eq!(replies(&error)[0], NO_LUA, "{error:?}");
    assert!(error.to_string().contains("runs no Lua scripts"), "{error}");
}

#[test]
fn extend_by_token_needs_scripts_and_release_by_token_does_not() {
    for forbidden in [false, true] {
        let mut world = World::new(Flavor::Valkey90, 0);
        for node in 0..3 {
            if forbidden { world.forbid_scripts(node) } else { world.unload(node) }
        }
        let client = world.client();
        let lock = world.hold(client);
        let now = world.net.now();
        let token = world.net.client_mut(client).into_token(lock, now).expect("it is held");
        world.net.client_mut(client).extend_token(KEY, token.clone(), TTL, 5, now).unwrap();
        let error = world.result(client).unwrap_err();
        assert!(error.to_string().contains("runs no Lua scripts"), "{error}");
        let now = world.net.now();
        world.net.client_mut(client).release_token(KEY, token, 6, now).unwrap();
        let done = world.result(client);
        assert!(matches!(done, Ok(Outcome::Released(ReleaseOutcome::Released))), "{done:?}");
        assert_eq!(world.pttls(), [-2; 3]);
    }
}

#[test]
fn forced_release_deletes_only_what_was_seen_by_the_nodes_own_command() {
    for flavor in FLAVORS {
        let (mut world, client) = World::with_client(flavor, 3);
        drop(world.hold(client));
        let now = world.net.now();
        world.net.client_mut(client).inspect(KEY, 7, now).unwrap();
        let Ok(Outcome::Inspected(seen)) = world.result(client) else { panic!("not inspected") };
        assert!(seen.nodes.iter().all(|node| matches!(node.state, KeyState::Held { .. })));
        world.net.command(0, &[b"SET", KEY, b"other"]);
        let now = world.net.now();
        world.net.client_mut(client).force_release_seen(&seen, 8, now).unwrap();
        let Ok(Outcome::ForceReleased(report)) = world.result(client) else { panic!("refused") };
        let said: Vec<_> = report.nodes.iter().map(|node| node.reply).collect();
        assert_eq!(said, [NodeReply::Held, NodeReply::Granted, NodeReply::Granted]);
        assert_eq!(world.value(0, KEY).as_deref(), Some("other"));
        assert_eq!([1, 2].map(|node| world.value(node, KEY)), [None, None]);
    }
}

#[test]
fn waiter_gets_the_key_after_pauses_where_nodes_run_no_scripts() {
    let mut world = World::new(Flavor::Valkey90, 3);
    let (client, other) = (world.client(), world.client());
    let lock = world.hold(client);
    let now = world.net.now();
    let options = LockOptions::new(TTL).wait(5 * SECOND);
    world.net.client_mut(other).acquire(KEY, options, 1, now).unwrap();
    world.net.pass(SECOND);
    assert_eq!(world.release(client, lock), ReleaseOutcome::Released);
    let Ok(Outcome::Acquired(lock)) = world.result(other) else { panic!("it never got the key") };
    assert_eq!(world.release(other, lock), ReleaseOutcome::Released);
    assert_eq!(world.pttls(), [-2; 3]);
}

/// The token of a lock that is asked for soon after a release is one for the line.
#[test]
fn lock_for_the_line_is_released_by_a_client_that_ends_where_nodes_run_no_scripts() {
    let (mut world, client) = World::with_client(Flavor::Valkey90, 3);
    let lock = world.hold(client);
    world.net.pass(millis(20));
    assert_eq!(world.release(client, lock), ReleaseOutcome::Released);
    let lock = world.hold(client);
    let now = world.net.now();
    world.net.client_mut(client).release_nowait(&lock, now);
    world.net.client_mut(client).close(now);
    world.net.write(client);
    // The client reads no answer any more.
    world.net.stop(client);
    world.net.pass(millis(20));
    assert_eq!(world.pttls(), [-2; 3]);
}

/// The clients know the nodes as ones without scripts. The nodes run scripts again when a client
/// begins to wait, so it stands in line there.
#[test]
fn waiter_leaves_no_line_on_nodes_that_run_scripts_again() {
    let mut world = World::new(Flavor::Valkey90, 3);
    let (client, other) = (world.client(), world.client());
    let lock = world.hold(client);
    (0..3).for_each(|node| world.net.master_mut(node).serve());
    let now = world.net.now();
    let options = LockOptions::new(TTL).wait(5 * SECOND);
    let op = world.net.client_mut(other).acquire(KEY, options, 1, now).unwrap();
    world.net.pass(millis(100));
    let keys = |world: &World| world.net.master(0).keys(world.net.now(), 0);
    let in_line = keys(&world).iter().any(|key| key.starts_with(b"redlatch:line:"));
    assert!(in_line, "the waiter stands in no line");
    let now = world.net.now();
    world.net.client_mut(other).cancel(op, now);
    world.net.pass(millis(20));
    assert_eq!(world.release(client, lock), ReleaseOutcome::Released);
    assert_eq!(keys(&world), [MARKER]);
}

#[test]
fn node_that_loses_its_scripts_under_a_held_lock_is_asked_by_its_own_commands() {
    for forbidden in [false, true] {
        let (mut world, client) = World::with_client(Flavor::Valkey90, 0);
        let lock = world.hold(client);
        assert!(world.extend(client, &lock, TTL).is_ok());
        for node in 0..3 {
            if forbidden { world.forbid_scripts(node) } else { world.unload(node) }
        }
        world.net.pass(SECOND);
        assert!(world.extend(client, &lock, 2 * TTL).is_ok(), "{forbidden}");
        assert!(world.pttls().iter().all(|&left| left > 19_000), "{:?}", world.pttls());
        assert_eq!(world.release(client, lock), ReleaseOutcome::Released);
    }
}

#[test]
fn extend_by_set_ifeq_is_refused_by_a_node_without_memory() {
    let (mut world, client) = World::with_client(Flavor::Valkey90, 3);
    let lock = world.hold(client);
    for node in 0..2 {
        world.net.master_mut(node).suffer(Trouble::OutOfMemory);
    }
    let now = world.net.now();
    world.net.client_mut(client).extend(&lock, TTL, 2, now).unwrap();
    world.net.pass(TTL);
    let error = world.result(client).unwrap_err();
    assert_eq!(replies(&error)[0], NodeReply::Failed(NodeError::OutOfMemory), "{error:?}");
}

#[test]
fn node_with_neither_scripts_nor_commands_of_its_own_is_rejected() {
    let (mut world, client) = World::with_client(Flavor::Redis70, 3);
    let error = world.acquire(client, KEY, LockOptions::once(TTL)).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error:?}");
    assert_eq!(replies(&error), [NO_LUA; 3]);
    assert_eq!(world.state(client, 0), NodeState::Rejected(NodeError::NoLua));
}

#[test]
fn marker_is_written_without_a_script_and_its_time_is_not_before_its_writing() {
    for flavor in FLAVORS {
        let (mut world, client) = World::with_client(flavor, 3);
        assert_eq!(world.state(client, 0), NodeState::Ready);
        let since = |world: &World, node: usize| -> Option<u64> {
            let marker = world.value(node, MARKER)?;
            marker.split(' ').nth(3).expect("a time").parse().ok()
        };
        let clock = |world: &mut World, node: usize| -> u64 {
            let time = world.net.command(node, &[b"TIME"]);
            let text = String::from_utf8_lossy(&time).into_owned();
            let words: Vec<&str> = text.split("\r\n").collect();
            words[2].parse::<u64>().unwrap() * 1_000_000 + words[4].parse::<u64>().unwrap()
        };
        world.net.command(0, &[b"FLUSHALL"]);
        let flushed = clock(&mut world, 0);
        world.net.pass(millis(20));
        assert!(matches!(world.state(client, 0), NodeState::Quarantined(_)));
        let written = since(&world, 0).expect("a marker is written");
        let now = clock(&mut world, 0);
        assert!(written >= flushed, "the marker vouches for more than was seen");
        assert!(written <= now + 500_000, "the marker lies in the future");
        assert_eq!(world.net.master(0).pttl(world.net.now(), 0, MARKER), -1, "it has a ttl");
        // A second client finds the marker, and waits for the rest of the quarantine.
        let second = world.client();
        assert!(matches!(world.state(second, 0), NodeState::Quarantined(_)));
        assert_eq!(since(&world, 0), Some(written));
        assert_eq!(world.state(second, 1), NodeState::Ready);
        world.net.pass(70 * SECOND);
        assert_eq!(world.state(second, 0), NodeState::Ready);
        let third = world.client();
        assert_eq!(world.state(third, 0), NodeState::Ready);
        // The clock of node 1 jumps back: the client replaces the marker, whatever the time in it
        // is.
        world.net.master_mut(1).step_wall_clock(-3_600_000);
        world.net.pass(30 * SECOND);
        let (since, now) = (since(&world, 1).expect("a marker"), clock(&mut world, 1));
        assert!(since <= now + 500_000, "{since} is an hour ahead of {now}");
    }
}

/// A node that executes the write of its marker late has none, because the time in it is too old.
#[test]
fn marker_that_is_written_late_without_a_script_is_not_kept() {
    let (mut world, client) = World::with_client(Flavor::Valkey90, 3);
    // When the node freezes, the client's reaction to the flush is on its way to it: a new marker.
    world.net.command(0, &[b"FLUSHALL"]);
    world.net.pass(Duration::from_micros(1_500));
    world.net.freeze(0);
    world.net.pass(SECOND);
    // The frozen node has not executed the write of the marker yet.
    let now = world.net.now();
    assert_eq!(world.net.master(0).get(now, 0, MARKER), None, "it is executed already");
    world.net.thaw(0);
    world.net.pass(Duration::from_micros(100));
    assert_eq!(world.value(0, MARKER), None, "its time is before the moment of its writing");
    // The next probe finds no marker, so the client writes one.
    world.net.pass(30 * SECOND);
    assert!(world.value(0, MARKER).is_some());
    assert!(matches!(world.state(client, 0), NodeState::Quarantined(_)));
}

#[test]
fn operator_vouches_for_a_node_that_runs_no_scripts() {
    let (mut world, client) = World::with_client(Flavor::Valkey90, 3);
    (0..3).for_each(|node| drop(world.net.command(node, &[b"FLUSHALL"])));
    world.net.pass(SECOND);
    assert!((0..3).all(|node| matches!(world.state(client, node), NodeState::Quarantined(_))));
    let now = world.net.now();
    world.net.client_mut(client).vouch(9, now).unwrap();
    let vouched = world.result(client);
    assert!(matches!(vouched, Ok(Outcome::Vouched(_))), "{vouched:?}");
    assert!(
        (0..3).all(|node| world.value(node, MARKER).is_some_and(|it| it.ends_with(" vouched")))
    );
    assert!((0..3).all(|node| world.state(client, node) == NodeState::Ready));
    // A marker that the node forgot meanwhile is not vouched for.
    let (mut world, client) = World::with_client(Flavor::Valkey90, 3);
    let now = world.net.now();
    world.net.client_mut(client).vouch(9, now).unwrap();
    (0..3).for_each(|node| drop(world.net.command(node, &[b"DEL", MARKER])));
    let vouched = world.result(client);
    assert!(matches!(vouched, Err(Error::NoQuorum(_))), "{vouched:?}");
}

#[test]
fn list_of_masters_is_agreed_and_written_again_without_scripts() {
    let mut world = World::new(Flavor::Valkey90, 3);
    let mut settings = World::settings();
    settings.check_members = true;
    let client = world.client_with(settings);
    world.net.pass(SECOND);
    let list = |world: &World, node| world.value(node, b"redlatch:members");
    let lists = [0, 1, 2].map(|node| list(&world, node).expect("a list"));
    assert!(lists.iter().all(|list| list.starts_with(lists[0].split(' ').next().unwrap())));
    world.net.command(1, &[b"DEL", b"redlatch:members"]);
    world.net.pass(60 * SECOND);
    assert!(list(&world, 1).is_some(), "the list was not written again");
    let lock = world.hold(client);
    assert_eq!(world.release(client, lock), ReleaseOutcome::Released);
}
