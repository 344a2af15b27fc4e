//! Grants that the replicas of a node have to confirm: `Config::replicas`.

use redlatch::proto::{Coordinator, NodeSettings, Settings};
use redlatch::testing::master::{Flavor, Restart, Trouble};
use redlatch::{ConfigError, KeySet, Lock, LockOptions, RestartGuard};

use super::line_world::{KEY, World};
use super::*;

/// The replies to `PUBLISH` and `WAIT` of a node that has this many replicas.
fn set_replicas(world: &mut World, node: usize, count: u32) {
    let reply = format!(":{count}\r\n").into_bytes();
    let master = world.master_mut(node);
    master.serve();
    master.suffer(Trouble::Answers { commands: vec!["wait".into()], reply });
}

fn set_all(world: &mut World, count: u32) {
    (0..world.nodes()).for_each(|node| set_replicas(world, node, count));
}

/// Nodes with two replicas each, and clients that require both.
fn world(nodes: usize, clients: usize) -> World {
    let mut world = World::new(nodes);
    set_all(&mut world, 2);
    for _ in 0..clients {
        world.client_with(|settings| {
            (settings.replicas, settings.node_timeout) = (2, millis(200));
        });
    }
    world
}

/// What becomes of a request that does not wait.
fn attempt(world: &mut World, client: usize, options: LockOptions) -> Result<Outcome, Error> {
    world.call(client, |core, now| core.acquire(KEY, options, 1, now)).expect("it can be asked");
    world.settle();
    world.pass(millis(100));
    world.done[client].pop().expect("it has ended").result
}

fn keys(world: &World) -> usize {
    let has = |&node: &usize| world.master(node).get(world.now(), 0, KEY).is_some();
    (0..world.nodes()).filter(has).count()
}

#[track_caller]
fn assert_unconfirmed(result: Result<Outcome, Error>, nodes: usize) {
    let error = result.expect_err("too few replicas have it");
    let report = error.report().expect("it is about nodes");
    let failed = NodeReply::Failed(NodeError::NoReplicas);
    let count = report.nodes.iter().filter(|node| node.reply == failed).count();
    assert_eq!(count, nodes, "{report}");
    assert!(report.to_string().contains("has too few replicas"), "{report}");
}

#[test]
fn grant_that_too_few_replicas_have_does_not_count_and_is_taken_back() {
    for options in [LockOptions::once(TTL), LockOptions::once(TTL).fenced()] {
        let mut world = world(1, 1);
        assert!(attempt(&mut world, 0, options).is_ok());
        let mut world = self::world(1, 1);
        set_all(&mut world, 1);
        assert_unconfirmed(attempt(&mut world, 0, options), 1);
        assert_eq!(keys(&world), 0);
    }
}

#[test]
fn nodes_whose_replicas_confirm_are_a_majority_without_the_others() {
    let mut world = world(3, 1);
    set_replicas(&mut world, 2, 1);
    assert!(attempt(&mut world, 0, LockOptions::once(TTL)).is_ok());
    let mut world = self::world(3, 1);
    (1..3).for_each(|node| set_replicas(&mut world, node, 0));
    assert_unconfirmed(attempt(&mut world, 0, LockOptions::once(TTL)), 2);
    assert_eq!(keys(&world), 0);
}

/// A key that another client holds is no grant, so the replicas do not matter.
#[test]
fn key_of_another_client_is_reported_whatever_the_replicas_say() {
    let mut world = world(1, 2);
    assert!(attempt(&mut world, 0, LockOptions::once(TTL)).is_ok());
    set_all(&mut world, 0);
    let error = attempt(&mut world, 1, LockOptions::once(TTL)).expect_err("it is held");
    let replies: Vec<_> =
        error.report().expect("one node").nodes.iter().map(|it| it.reply).collect();
    assert_eq!(replies, [NodeReply::Held]);
}

#[test]
fn refused_wait_or_publish_confirms_nothing() {
    for command in ["wait", "publish"] {
        let mut world = world(1, 1);
        let reply = b"-NOPERM this user has no permissions\r\n".to_vec();
        let refusal = Trouble::Answers { commands: vec![command.into()], reply };
        let master = world.master_mut(0);
        if command == "wait" {
            master.serve();
        }
        master.suffer(refusal);
        assert_unconfirmed(attempt(&mut world, 0, LockOptions::once(TTL)), 1);
        assert_eq!(keys(&world), 0, "{command}");
    }
}

/// How each kind of question that may grant ends, if the replicas confirm it and if they do not.
#[test]
fn each_kind_of_grant_counts_only_with_its_replicas() {
    type Question = fn(&mut Coordinator, &Lock, redlatch::proto::Instant);
    let questions: [(&str, Question); 4] = [
        ("extend", |core, lock, now| {
            core.extend(lock, TTL, 1, now).expect("it is held");
        }),
        ("extend by token", |core, lock, now| {
            core.extend_token(KEY, lock.token(), TTL, 1, now).expect("it can be asked for");
        }),
        ("adopt", |core, lock, now| {
            core.adopt(KEY, lock.token(), LockOptions::new(TTL), 1, now).expect("it can be asked");
        }),
        ("acquire of a set", |core, _, now| {
            let set = KeySet::new([b"a", b"b"]).expect("two keys");
            core.acquire(set, LockOptions::once(TTL).fenced(), 1, now).expect("it can be asked");
        }),
    ];
    for (name, question) in questions {
        for replicas in [2, 1] {
            let mut world = world(1, 2);
            let lock = world.acquire(0, TTL);
            set_all(&mut world, replicas);
            let asking = usize::from(name == "adopt");
            world.call(asking, |core, now| question(core, &lock, now));
            world.settle();
            world.pass(TTL);
            let done = world.done[asking].pop().expect("it has ended").result;
            assert_eq!(done.is_ok(), replicas == 2, "{name} with {replicas}: {done:?}");
        }
    }
}

/// The client repeats the extend until the deadline, so its last round may have no answer.
#[test]
fn lost_lock_and_the_states_of_the_nodes_name_missing_replicas_until_they_are_back() {
    let mut world = world(1, 1);
    let lock = world.acquire(0, TTL);
    set_all(&mut world, 1);
    world.call(0, |core, now| core.extend(&lock, TTL, 1, now)).expect("it is held");
    world.settle();
    world.pass(TTL);
    let error = world.error(0);
    assert!(error.to_string().contains("has too few replicas"), "{error}");
    let state = |world: &World| world.core(0).report_node_states(world.now()).nodes[0].reply;
    assert_eq!(state(&world), NodeReply::Failed(NodeError::NoReplicas));
    set_all(&mut world, 2);
    assert!(attempt(&mut world, 0, LockOptions::once(TTL)).is_ok());
    assert_eq!(state(&world), NodeReply::NotAsked);
}

/// A node that runs no scripts extends and adopts by a command whose answer says what was there.
#[test]
fn grant_of_a_node_without_scripts_counts_only_with_its_replicas() {
    for replicas in [2, 1] {
        let mut world = World::new(1);
        let set = |world: &mut World, count| {
            set_all(world, count);
            world.master_mut(0).suffer(Trouble::NoLua);
        };
        world.master_mut(0).set_flavor(Flavor::Valkey90);
        set(&mut world, 2);
        for _ in 0..2 {
            world.client_with(|settings| {
                (settings.replicas, settings.node_timeout) = (2, millis(200));
            });
        }
        let lock = world.acquire(0, TTL);
        set(&mut world, replicas);
        world.call(0, |core, now| core.extend(&lock, TTL, 1, now)).expect("it is held");
        world.settle();
        world.pass(TTL / 2);
        let extended = world.done[0].pop().is_some_and(|done| done.result.is_ok());
        assert_eq!(extended, replicas == 2, "extend with {replicas}");
        let options = LockOptions::new(TTL);
        world.call(1, |core, now| core.adopt(KEY, lock.token(), options, 1, now)).expect("a token");
        world.settle();
        world.pass(TTL);
        let adopted = world.done[1].pop().is_some_and(|done| done.result.is_ok());
        assert_eq!(adopted, replicas == 2, "adopt with {replicas}");
    }
}

/// A master that is cut off from its replicas hands the key over, too.
#[test]
fn key_that_was_handed_over_is_held_only_with_the_replicas() {
    for replicas in [2, 1] {
        let mut world = world(1, 2);
        let lock = world.won_in_line(0, TTL);
        world.ask_and_settle(1, TTL);
        set_all(&mut world, replicas);
        world.release_and_settle(0, lock);
        world.pass(millis(30));
        assert_eq!(world.lock(1).is_some(), replicas == 2, "{replicas}");
        if replicas == 1 {
            set_all(&mut world, 2);
            world.pass(TTL);
            assert!(world.lock(1).is_some(), "it has the key once the replicas are back");
        }
    }
}

#[test]
fn connection_that_is_lost_before_the_replicas_confirmed_gives_no_grant() {
    let mut world = world(1, 1);
    let silent = Trouble::Answers { commands: vec!["wait".into()], reply: Vec::new() };
    world.master_mut(0).serve();
    world.master_mut(0).suffer(silent);
    let options = LockOptions::once(TTL);
    world.call(0, |core, now| core.acquire(KEY, options, 1, now)).expect("it can be asked for");
    world.settle();
    assert!(world.done[0].is_empty(), "the replicas have not confirmed it");
    world.restart(0, Restart::Empty);
    world.pass(millis(100));
    let error = world.done[0].pop().expect("it has ended").result.expect_err("no grant");
    assert!(error.report().is_some(), "{error}");
    set_all(&mut world, 2);
    world.pass(millis(120_000));
    assert!(attempt(&mut world, 0, options).is_ok(), "a new connection reads its own replies");
}

#[test]
fn replicas_without_the_restart_guard_or_with_a_short_node_timeout_are_refused() {
    let mut settings = Settings::new(vec![NodeSettings::new("n0")]);
    settings.replicas = 1;
    assert_eq!(settings.validate(), Ok(()));
    for guard in [RestartGuard::Off, RestartGuard::Persistent] {
        settings.restart_guard = guard;
        assert_eq!(settings.validate(), Err(ConfigError::Replicas));
    }
    settings.restart_guard = RestartGuard::On;
    settings.node_timeout = millis(199);
    assert!(matches!(settings.validate(), Err(ConfigError::Setting { name: "node_timeout", .. })));
    settings.node_timeout = millis(200);
    settings.node_marker = "".into();
    assert_eq!(settings.validate(), Err(ConfigError::Replicas));
}
