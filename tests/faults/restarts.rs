//! The restart guard: a node that may have forgotten a live lock grants none until that lock is
//! over.

use super::*;
use redlatch::{Error, LockOptions, NodeError, NodeEvent, NodeReply, ReleaseOutcome};

/// The longest ttl here. A quarantine lasts for this time and the drift.
const MAX_TTL: Duration = Duration::from_secs(2);

fn guarded(urls: Vec<String>, guard: RestartGuard) -> Config {
    config(urls).max_ttl(MAX_TTL).restart_guard(guard)
}

/// A client that trusts all of these nodes because they have been up for long enough.
fn trusting(fleet: &Fleet, guard: RestartGuard) -> Client {
    client(guarded(fleet.urls(), guard))
}

fn forget_by_restart(node: &Node) {
    node.restart();
}

fn forget_by_flush(node: &Node) {
    assert!(node.command(&["FLUSHALL"]).is_ok());
}

fn forget_by_flush_of_another_database(node: &Node) {
    assert!(node.command(&["DEL", "a"]).int() == 1);
    let mut other = node.client();
    assert!(other.command(&["SELECT", "7"]).expect("a reply").is_ok());
    assert!(other.command(&["FLUSHDB"]).expect("a reply").is_ok());
}

/// The first client has a lock on a bare majority, and one node of that forgets it. How much was
/// left of the lock when a second client got it, and how long that one waited.
struct Handover {
    first_remaining: Duration,
    waited: Duration,
}

/// `knew`: the second client was connected before the node forgot its keys.
fn hand_over(guard: RestartGuard, forget: fn(&Node), knew: bool) -> Handover {
    let fleet = Fleet::start(3);
    let first = trusting(&fleet, guard);
    let second = knew.then(|| trusting(&fleet, guard));
    fleet[2].command(&["SET", "a", "another's"]);
    let held = first.try_lock("a", MAX_TTL).unwrap();
    drive_until(&first, SOON, "two have it", || fleet.values("a").len() == 3);
    forget(&fleet[1]);
    fleet[2].command(&["DEL", "a"]);
    let start = Instant::now();
    let second = second.unwrap_or_else(|| Client::connect(guarded(fleet.urls(), guard)).unwrap());
    let taken = second.lock("a", LockOptions::new(MAX_TTL).wait(60 * SECOND)).unwrap();
    let handover = Handover { first_remaining: held.remaining(), waited: start.elapsed() };
    println!(
        "{guard:?}, known before: {knew}: the second one waited {:?}, the first one had {:?}",
        handover.waited, handover.first_remaining,
    );
    assert_eq!(taken.release().unwrap(), ReleaseOutcome::Released);
    handover
}

/// Shows that without the guard there are two holders, so that the tests can fail. It tries several
/// times, because on a busy machine the first lock may be over before the second client gets it.
#[track_caller]
fn shows_two_holders_without_the_guard(forget: fn(&Node), knew: bool) {
    let show = || hand_over(RestartGuard::Off, forget, knew).first_remaining;
    assert!((0..10).any(|_| !show().is_zero()), "without the guard nothing was shown");
}

#[test]
fn a_restart_gives_nobody_a_lock_that_is_held() {
    despite_stalls(millis(700), |_| restart_gives_nobody_a_held_lock());
}

fn restart_gives_nobody_a_held_lock() {
    for knew in [true, false] {
        let guarded = hand_over(RestartGuard::On, forget_by_restart, knew);
        assert_eq!(guarded.first_remaining, Duration::ZERO, "two held it at once");
        assert!(guarded.waited < 10 * MAX_TTL, "{:?}", guarded.waited);
        shows_two_holders_without_the_guard(forget_by_restart, knew);
    }
}

#[test]
fn a_flush_gives_nobody_a_lock_that_is_held() {
    despite_stalls(millis(700), |_| flush_gives_nobody_a_held_lock());
}

fn flush_gives_nobody_a_held_lock() {
    let guarded = hand_over(RestartGuard::On, forget_by_flush, true);
    assert_eq!(guarded.first_remaining, Duration::ZERO, "two held it at once");
    let guarded = hand_over(RestartGuard::On, forget_by_flush_of_another_database, true);
    assert_eq!(guarded.first_remaining, Duration::ZERO, "two held it at once");
    shows_two_holders_without_the_guard(forget_by_flush, true);
}

#[test]
fn error_on_new_nodes_says_when_their_grants_count() {
    let fleet = Fleet::start(3);
    let client = Client::connect(config(fleet.urls()).restart_guard(RestartGuard::On)).unwrap();
    let start = Instant::now();
    let error = client.lock("a", LockOptions::new(TTL).wait(millis(100))).unwrap_err();
    println!("{error} (after {:?})", start.elapsed());
    let Error::NoQuorum(report) = &error else { panic!("{error}") };
    for node in &report.nodes {
        assert!(
            matches!(node.reply, NodeReply::Failed(NodeError::Quarantined) | NodeReply::Nothing),
            "{node:?}"
        );
    }
    let told = report.nodes.iter().filter_map(|node| node.detail.as_deref());
    let told: Vec<&str> = told.filter(|detail| detail.contains("its grants count in ")).collect();
    assert!(told.len() >= 2, "{error}");
    drive_until(&client, SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

/// A quarantined node still counts when it denies, extends or releases.
#[test]
fn a_quarantined_node_denies_extends_and_releases() {
    despite_stalls(millis(700), |_| quarantined_node_denies());
}

fn quarantined_node_denies() {
    let fleet = Fleet::start(3);
    let client = trusting(&fleet, RestartGuard::On);
    let mut guard = client.try_lock("a", MAX_TTL).unwrap();
    drive_until(&client, SOON, "all have it", || fleet.values("a").len() == 3);
    // The test flushes another database, so that all nodes keep the key.
    for node in &fleet {
        let mut other = node.client();
        assert!(other.command(&["SELECT", "7"]).expect("a reply").is_ok());
        assert!(other.command(&["FLUSHDB"]).expect("a reply").is_ok());
    }
    let quarantined = |it: &NodeState| matches!(it, NodeState::Quarantined(_));
    let all = || client.nodes().iter().all(quarantined);
    drive_until(&client, SOON, "all are quarantined", all);
    let error = client.try_lock("a", MAX_TTL).unwrap_err();
    assert!(matches!(error, Error::Contended(_)), "{error}");
    let error = client.try_lock("b", MAX_TTL).unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    guard.extend(MAX_TTL).unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    drive_until(&client, SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    let start = Instant::now();
    let guard = client.lock("b", LockOptions::new(MAX_TTL).wait(60 * SECOND)).unwrap();
    println!("trusted again after {:?}", start.elapsed());
    assert!(start.elapsed() < 10 * MAX_TTL);
    drop(guard);
}

#[test]
fn a_node_that_was_promoted_is_not_trusted_by_its_uptime() {
    let fleet = Fleet::start(3);
    // From now on the nodes have been up long enough for every client to trust them by their
    // uptime.
    drop(trusting(&fleet, RestartGuard::On));
    for node in &fleet {
        assert!(node.command(&["REPLICAOF", "127.0.0.1", "1"]).is_ok());
        assert!(node.command(&["REPLICAOF", "NO", "ONE"]).is_ok());
    }
    let client = Client::connect(guarded(fleet.urls(), RestartGuard::On)).unwrap();
    let error = client.try_lock("a", MAX_TTL).unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    assert!(error.to_string().contains("promoted"), "{error}");
    let guard = client.lock("a", LockOptions::new(MAX_TTL).wait(60 * SECOND)).unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
}

#[test]
fn a_minority_that_restarts_costs_nothing() {
    despite_stalls(millis(700), |_| restarted_minority_costs_nothing());
}

fn restarted_minority_costs_nothing() {
    let fleet = Fleet::start(3);
    let client = trusting(&fleet, RestartGuard::On);
    // On a busy machine a restart may take longer than the lock lives; then the test tries again.
    let mut guard = None;
    eventually(30 * SECOND, "it restarts under a lock", || {
        guard = None;
        wait_ready(&client, 3);
        guard = Some(client.try_lock("a", MAX_TTL).unwrap());
        fleet[0].restart();
        guard.as_ref().is_some_and(|guard| guard.remaining() > MAX_TTL / 2)
    });
    let guard = guard.expect("it was acquired");
    let start = Instant::now();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    let guard = client.try_lock("b", MAX_TTL).unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    println!("one of three restarted: a release and a pair in {:?}", start.elapsed());
    assert!(start.elapsed() < NODE_TIMEOUT / 2);
    let is_back = || matches!(client.nodes()[0], NodeState::Quarantined(_));
    let back = drive_until(&client, SOON, "it is back, in quarantine", is_back);
    println!("back, in quarantine, after {back:?}");
    wait_ready(&client, 3);
    drive_until(&client, SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn two_addresses_of_one_server_are_refused_and_an_address_that_moves_has_no_vote() {
    let nodes = Proxied::start(3);
    let mut urls = nodes.urls();
    urls[2] = nodes.fleet[0].url();
    match Client::connect(config(urls)) {
        Err(error) => assert!(matches!(error, Error::Config(_)), "{error}"),
        // A quorum was ready before the client found the server at its second address.
        Ok(client) => {
            let rejected = NodeState::Rejected(NodeError::SameServer);
            drive_until(&client, SOON, "one is rejected", || client.nodes().contains(&rejected));
        }
    }
    let client = client(config(nodes.urls()));
    // The address of the third node now leads to the first.
    nodes.proxies[2].lead_to(nodes.fleet[0].address());
    nodes.proxies[2].cut(crate::support::Cut::Reset);
    drive_until(&client, SOON, "it is rejected", || {
        client.nodes()[2] == NodeState::Rejected(NodeError::SameServer)
    });
    nodes.fleet[1].command(&["SET", "a", "another's"]);
    assert!(matches!(client.try_lock("a", TTL), Err(Error::Contended(_))), "one had two votes");
    assert!(client.try_lock("b", TTL).is_ok());
    nodes.proxies[2].lead_to(nodes.fleet[2].address());
    let took = wait_ready(&client, 3);
    println!("an address that moved back: ready after {took:?}");
}

#[test]
fn node_events_report_each_change_of_state() {
    let fleet = Fleet::start(1);
    let mut embedded = Loop::new(guarded(fleet.urls(), RestartGuard::On));
    let mut told = Vec::new();
    let mut tell_until = |wanted: fn(&NodeEvent) -> bool| {
        embedded.turn_until("the event is reported", |engine| {
            let new: Vec<NodeEvent> = std::iter::from_fn(|| engine.poll_node_event()).collect();
            told.extend_from_slice(&new);
            new.iter().any(wanted)
        });
    };
    let is_ready =
        |event: &NodeEvent| matches!(event, NodeEvent::State { state: NodeState::Ready, .. });
    tell_until(is_ready);
    fleet[0].command(&["FLUSHALL"]);
    tell_until(|event| matches!(event, NodeEvent::Quarantined { .. }));
    tell_until(is_ready);
    fleet[0].kill();
    tell_until(|event| matches!(event, NodeEvent::State { state: NodeState::Down(_), .. }));
    println!("{told:?}");
}
