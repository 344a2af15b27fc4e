//! The network of `redlatch::testing`: when bytes arrive, and which faults it can have.

use std::time::Duration;

use redlatch::proto::{NodeSettings, NodeState, Settings};
use redlatch::testing::master::Restart;
use redlatch::testing::net::Net;
use redlatch::{Error, Lock, LockOptions, NodeId, Outcome};

const TTL: Duration = Duration::from_secs(10);
const KEY: &[u8] = b"k";

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn settings() -> Settings {
    let nodes = (0..3).map(|node| NodeSettings::new(format!("n{node}"))).collect();
    let mut settings = Settings::new(nodes);
    settings.node_timeout = millis(50);
    settings.probe_interval = Duration::from_secs(1000);
    settings
}

/// Three masters, and `clients` clients that are connected to them.
fn net(clients: usize) -> Net {
    let mut net = Net::new(3, 1);
    for _ in 0..clients {
        net.client(settings());
    }
    net.pass(millis(1));
    net
}

fn ask(net: &mut Net, client: usize, options: LockOptions) {
    let now = net.now();
    net.client_mut(client).acquire(KEY, options, 1, now).expect("it can be asked for");
}

fn result(net: &mut Net, client: usize) -> Option<Result<Outcome, Error>> {
    let now = net.now();
    net.client_mut(client).poll_completion(now).map(|done| done.result)
}

fn lock(net: &mut Net, client: usize) -> Option<Lock> {
    match result(net, client)? {
        Ok(Outcome::Acquired(lock)) => Some(lock),
        other => panic!("{other:?}"),
    }
}

fn values(net: &Net) -> Vec<bool> {
    (0..3).map(|node| net.master(node).get(net.now(), 0, KEY).is_some()).collect()
}

#[test]
fn a_message_takes_its_latency_each_way_and_run_says_whose_request_ended() {
    let mut net = net(2);
    net.set_latency(millis(3)..=millis(3));
    net.set_execution_time(millis(1));
    let begun = net.now();
    ask(&mut net, 1, LockOptions::once(TTL));
    assert_eq!(net.run(begun.saturating_add(millis(6))), None);
    assert_eq!(net.now(), begun.saturating_add(millis(6)), "all of the time has passed");
    assert_eq!(values(&net), [true; 3]);
    assert!(result(&mut net, 1).is_none(), "the answers are on their way");
    assert_eq!(net.run(begun.saturating_add(millis(60))), Some(1));
    assert_eq!(net.now(), begun.saturating_add(millis(7)), "there, executed, and back");
    assert!(lock(&mut net, 1).is_some());
}

#[test]
fn run_is_determined_by_its_seed() {
    let run = |seed| {
        let mut net = Net::new(3, seed);
        net.set_latency(Duration::from_micros(50)..=Duration::from_micros(150));
        let client = net.client(settings());
        net.pass(millis(5));
        let end = net.now().saturating_add(millis(5));
        ask(&mut net, client, LockOptions::once(TTL));
        net.run(end).expect("it ends");
        (net.now(), lock(&mut net, client).map(|lock| lock.token()))
    };
    assert_eq!(run(1), run(1));
    let (one, other) = (run(1), run(2));
    assert!(one.0 != other.0 && one.1 != other.1, "{one:?}, {other:?}");
}

#[test]
fn copy_of_a_net_runs_on_independently() {
    let mut net = net(1);
    let mut copy = net.clone();
    ask(&mut net, 0, LockOptions::once(TTL));
    net.pass(millis(1));
    assert!(lock(&mut net, 0).is_some());
    copy.pass(millis(1));
    assert_eq!((values(&net), values(&copy)), (vec![true; 3], vec![false; 3]));
}

/// If the caller fetches no completion, `run` names its client only once for each thing that
/// happens.
#[test]
fn run_ends_though_its_caller_fetches_no_completion() {
    let mut net = net(1);
    ask(&mut net, 0, LockOptions::once(TTL));
    let end = net.now().saturating_add(millis(5));
    let told = std::iter::from_fn(|| {
        let told = net.run(end);
        net.client_mut(0);
        told
    });
    assert!((1..=3).contains(&told.count()), "once for each answer at most");
    assert_eq!(net.now(), end);
    net.cut(0, 1);
    assert_eq!(net.run(end.saturating_add(millis(1))), Some(0), "the lock is there still");
}

#[test]
fn frozen_node_executes_what_arrived_meanwhile_when_it_thaws() {
    let mut net = net(1);
    net.freeze(2);
    ask(&mut net, 0, LockOptions::once(TTL));
    net.pass(millis(10));
    assert!(lock(&mut net, 0).is_some(), "nobody waits for a minority");
    assert_eq!((values(&net), net.is_frozen(2)), (vec![true, true, false], true));
    net.thaw(2);
    net.pass(millis(1));
    assert_eq!(values(&net), [true; 3]);
}

#[test]
fn message_does_not_overtake_an_earlier_one_of_its_connection() {
    let mut net = net(1);
    net.set_latency(millis(10)..=millis(10));
    ask(&mut net, 0, LockOptions::once(TTL));
    net.write(0);
    net.set_latency(Duration::ZERO..=Duration::ZERO);
    let now = net.now();
    net.client_mut(0).acquire(b"other", LockOptions::once(TTL), 2, now).expect("there is room");
    net.pass(millis(9));
    assert_eq!(net.master(0).keys(net.now(), 0), [b"redlatch:node"]);
    net.pass(millis(1));
    assert_eq!(net.master(0).keys(net.now(), 0).len(), 3);
}

/// As the event loop does, `run` reads what has arrived before it lets a timer fire.
#[test]
fn answers_that_arrive_in_the_moment_of_a_timeout_count() {
    let mut net = net(1);
    let due = net.now().saturating_add(millis(50));
    ask(&mut net, 0, LockOptions::once(TTL));
    (0..3).for_each(|node| net.freeze(node));
    net.pass(Duration::from_micros(49_500));
    let left = due.saturating_since(net.now());
    net.set_latency(left..=left);
    (0..3).for_each(|node| net.deliver_to_node(0, node));
    assert_eq!(net.get_client(0).next_timeout(), Some(due), "the node timeout");
    assert_eq!((net.run(due), net.now()), (Some(0), due));
    assert!(lock(&mut net, 0).is_some());
}

#[test]
fn nothing_arrives_through_a_partition_until_it_heals() {
    let mut net = net(1);
    net.set_latency(millis(2)..=millis(2));
    net.partition(0);
    ask(&mut net, 0, LockOptions::once(TTL));
    net.pass(millis(3));
    assert_eq!(values(&net), [false, true, true]);
    net.partition(1);
    net.pass(millis(10));
    assert!(result(&mut net, 0).is_none(), "node 1 has answered before, to no avail");
    assert_eq!(net.unread(0, 1), b"+OK\r\n");
    net.heal(1);
    net.pass(millis(1));
    assert!(lock(&mut net, 0).is_some());
    net.heal(0);
    net.pass(millis(1));
    assert_eq!(values(&net), [true; 3]);
}

/// A stopped process sent its answers before, and its kernel still accepts connections. A partition
/// lets nothing through in either direction.
#[test]
fn partition_delays_answers_that_a_frozen_node_has_already_sent() {
    let mut net = net(1);
    ask(&mut net, 0, LockOptions::once(TTL));
    (0..3).for_each(|node| net.deliver_to_node(0, node));
    (0..3).for_each(|node| net.partition(node));
    net.settle();
    assert!(result(&mut net, 0).is_none(), "the answers do not arrive");
    net.cut(0, 0);
    net.pass(millis(40));
    assert!(!net.is_connected(0, 0), "no connection is opened through a partition");
    (0..3).for_each(|node| net.heal(node));
    (0..3).for_each(|node| net.freeze(node));
    net.pass(millis(5));
    assert!(lock(&mut net, 0).is_some(), "the answers were sent before");
    assert!(net.is_connected(0, 0) && !net.is_partitioned(0));
}

#[test]
fn stopped_client_reads_before_its_timers_fire() {
    let mut net = net(1);
    ask(&mut net, 0, LockOptions::once(TTL));
    net.write(0);
    net.stop(0);
    net.pass(millis(500));
    assert!(result(&mut net, 0).is_none() && net.is_stopped(0));
    net.resume(0);
    net.pass(Duration::ZERO);
    assert!(lock(&mut net, 0).is_some(), "the answers were there before the node timeout counts");
    assert!((0..3).all(|node| net.get_client(0).node_state(NodeId::new(node)).is_usable()));
}

/// Rule 5: a node may execute a command after its connection is gone.
#[test]
fn what_was_on_its_way_to_a_node_arrives_after_the_connection_was_cut() {
    let mut net = net(1);
    net.set_latency(millis(5)..=millis(5));
    ask(&mut net, 0, LockOptions::once(TTL));
    net.write(0);
    (0..3).for_each(|node| net.cut(0, node));
    assert_eq!((net.orphans(), values(&net)), (3, vec![false; 3]));
    net.deliver_orphan(0, 7);
    assert!(!values(&net)[0], "a part of a command does nothing");
    net.pass(millis(5));
    assert_eq!((net.orphans(), &values(&net)[1..]), (0, &[true, true][..]));
}

#[test]
fn killed_node_refuses_connections_until_it_starts() {
    let mut net = net(1);
    net.kill(1);
    net.pass(millis(20));
    let state = |net: &Net| net.get_client(0).node_state(NodeId::new(1));
    assert!(matches!(state(&net), NodeState::Down(_)), "{:?}", state(&net));
    net.start(1, Restart::WithData);
    net.pass(Duration::from_secs(5));
    assert!(state(&net).is_connected(), "{:?}", state(&net));
}

#[test]
fn replaced_client_leaves_its_lock_behind() {
    let mut net = net(2);
    ask(&mut net, 0, LockOptions::once(TTL));
    net.pass(millis(1));
    let held = lock(&mut net, 0).expect("the key is free");
    let next = net.get_client(1).clone();
    let before = net.replace(0, next);
    assert!(!before.remaining(&held, net.now()).is_zero(), "its process believed in it");
    net.pass(millis(1));
    assert_eq!(values(&net), [true; 3]);
    net.pass(TTL);
    assert_eq!(values(&net), [false; 3]);
}

#[test]
fn an_operators_command_has_its_reply_and_others_read_theirs() {
    let mut net = net(1);
    ask(&mut net, 0, LockOptions::once(TTL));
    net.settle();
    assert_eq!(net.command(0, &[b"DEL", KEY]), b":1\r\n");
    assert_eq!(net.command(0, &[b"NONSENSE"])[0], b'-');
    assert!(lock(&mut net, 0).is_some());
}

#[test]
fn bytes_in_flight_can_be_replaced_by_others() {
    let mut net = net(1);
    ask(&mut net, 0, LockOptions::once(TTL));
    for node in 0..3 {
        assert!(net.unexecuted(0, node).starts_with(b"*6\r\n$3\r\nSET\r\n"));
        net.deliver_to_node(0, node);
        assert_eq!(net.unread(0, node), net.take_unread(0, node));
        net.say(0, node, b"_\r\n");
        net.deliver_some_to_client(0, node, 1);
        assert_eq!(net.unread(0, node), b"\r\n");
    }
    net.settle();
    let refused = result(&mut net, 0).expect("it ended");
    assert!(matches!(refused, Err(Error::Contended(_))), "{refused:?}");
}

#[test]
fn timers_fire_when_they_are_due_and_runs_can_skip_to_them() {
    let mut net = net(2);
    ask(&mut net, 0, LockOptions::once(TTL));
    net.settle();
    let _held = lock(&mut net, 0).expect("the key is free");
    (0..3).for_each(|node| net.partition(node));
    let asked = net.now();
    ask(&mut net, 1, LockOptions::once(TTL));
    let refused = net.run(asked.saturating_add(TTL));
    assert_eq!((refused, net.now()), (Some(1), asked.saturating_add(millis(50))));
    net.skip_to_timer(1, millis(1));
    assert!(net.now() <= asked.saturating_add(millis(51)), "no further than that");
}
