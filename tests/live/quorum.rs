//! A majority decides: with all nodes, without some, and without too many.

use super::*;
use crate::support::{Proxy, Way};
use redlatch::{Error, NodeReply, ReleaseOutcome};

#[test]
fn a_lock_is_the_same_token_on_a_majority_and_its_release_leaves_none() {
    let (fleet, client) = fleet_and_client(5);
    let asked = Instant::now();
    let guard = client.try_lock("invoice:42", TTL).unwrap();
    // The client did not wait for the answers of the minority, but those nodes set the key, too.
    fleet.wait_held("invoice:42", &guard.token());
    for node in fleet.iter() {
        let left = node.pttl("invoice:42");
        let least = 9_999 - i64::try_from(asked.elapsed().as_millis()).unwrap();
        assert!((least..=10_000).contains(&left), "{left} ms of 10,000 are left");
    }
    assert!(guard.remaining() < TTL - TTL / 100, "the drift is taken off");
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    fleet.wait_empty();
}

#[test]
fn a_stopped_minority_costs_nothing() {
    let fleet = Fleet::start(5);
    let client = ready::client(config(&fleet).node_timeout(20 * SECOND));
    fleet[3].stop();
    let start = Instant::now();
    let guard = client.try_lock("a", TTL).unwrap();
    let acquired = start.elapsed();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    let released = start.elapsed() - acquired;
    println!("one of five stopped: acquired in {acquired:?}, released in {released:?}");
    assert!(start.elapsed() < 10 * SECOND, "it waited for the stopped node");
    fleet[3].cont();
    let gone = fleet.wait_empty();
    println!("continued: its key is gone after {gone:?}");
}

#[test]
fn a_stopped_majority_is_no_quorum_at_the_node_timeout_and_leaves_nothing() {
    let fleet = Fleet::start(3);
    let timeout = SILENT;
    let client = ready::client(config(&fleet).node_timeout(timeout));
    fleet.on([0, 2], Node::stop);
    let start = Instant::now();
    let error = client.try_lock("a", 60 * SECOND).unwrap_err();
    let took = start.elapsed();
    println!("two of three stopped, node timeout {timeout:?}: after {took:?}: {error}");
    assert!(took >= timeout && took < 5 * timeout, "{took:?}");
    let Error::NoQuorum(report) = &error else { panic!("{error}") };
    let silent = NodeReply::Failed(redlatch::NodeError::Silent);
    let said: Vec<NodeReply> = report.nodes.iter().map(|node| node.reply).collect();
    assert_eq!(said, [silent, NodeReply::Granted, silent]);
    let text = error.to_string();
    for node in [&fleet[0], &fleet[2]] {
        assert!(text.contains(&format!("127.0.0.1:{} no answer in time", node.port())), "{text}");
    }
    let third = || fleet[1].keys().is_empty();
    eventually(SOON, "the grant of the third is given back at once", third);
    // The test does not drive the client any more. The nodes execute the releases that it wrote
    // after the SETs.
    fleet.on([0, 2], Node::cont);
    let gone = fleet.wait_empty();
    println!("continued: their keys are gone after {gone:?}");
}

#[test]
fn a_key_that_is_held_is_contended_and_names_who_holds_it() {
    let fleet = Fleet::start(3);
    let (first, second) = (client(&fleet), client(&fleet));
    let guard = first.try_lock("a", TTL).unwrap();
    let error = second.try_lock("a", TTL).unwrap_err();
    let Error::Contended(report) = &error else { panic!("{error}") };
    assert!(report.nodes.iter().filter(|node| node.reply == NodeReply::Held).count() >= 2);
    assert!(
        error.to_string().starts_with("held by another client: needed 2 of 3 for \"a\":"),
        "{error}"
    );
    let other = second.try_lock("b", TTL).unwrap();
    assert_eq!(other.release().unwrap(), ReleaseOutcome::Released);
    drop(guard);
    assert!(second.lock("a", TTL).is_ok());
}

#[test]
fn one_node_alone_is_a_quorum_and_an_even_number_needs_more_than_half() {
    let one = Fleet::start(1);
    let client_of_one = client(&one);
    let guard = client_of_one.try_lock("a", TTL).unwrap();
    assert!(client_of_one.try_lock("a", TTL).is_err());
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    drop(client_of_one);
    drop(one);

    let four = Fleet::start(4);
    let client = client(&four);
    for node in 0..2 {
        four[node].command(&["SET", "a", "another's"]);
    }
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(matches!(error, Error::Contended(_)), "two of four are no majority: {error}");
    // The client sends the releases to the other two nodes without delay; the caller does not wait
    // for them.
    eventually(SOON, "only another's are left", || {
        four.values("a") == [b"another's", b"another's"]
    });
}

#[test]
fn node_that_was_down_is_used_when_it_starts() {
    let fleet = Fleet::start(3);
    fleet.on([0, 1], Node::kill);
    let client = Client::connect(config(&fleet)).unwrap();
    client.wait_ready(1);
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    assert!(error.to_string().contains("not connected (Connection refused)"), "{error}");
    assert!(fleet[2].keys().is_empty(), "a minority is not even asked");
    fleet[0].restart();
    let guard = client.lock("a", TTL).expect("two of three are up again");
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
}

#[test]
fn two_addresses_of_one_server_are_refused_at_the_start_and_have_one_vote_later() {
    let fleet = Fleet::start(3);
    let mut urls = fleet.urls();
    urls[2] = format!("redis://localhost:{}", fleet[0].port());
    // This node is needed for a quorum, and connects only after the client has found the second
    // address.
    let slow = Proxy::start(fleet[1].address());
    slow.delay(Way::ToClient, SECOND);
    urls[1] = slow.url();
    let error = Client::connect(plain(urls.clone())).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert!(error.to_string().contains("is the same server as another address"), "{error}");
    // Now the client has connected before it finds the second address. It rejects that address and
    // goes on with two nodes, and one server is no majority.
    slow.delay(Way::ToClient, Duration::ZERO);
    fleet[0].kill();
    let client = Client::connect(plain(urls)).unwrap();
    fleet[0].restart();
    client.drive_until(SOON, "one of the two addresses is in use", || {
        let usable = client.nodes().iter().filter(|it| it.is_usable()).count();
        let rejected = NodeState::Rejected(redlatch::NodeError::SameServer);
        usable == 2 && client.nodes().contains(&rejected)
    });
    fleet[1].command(&["SET", "a", "another's"]);
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(matches!(error, Error::Contended(_)), "{error}");
}

#[test]
fn configuration_that_cannot_work_is_refused_at_once() {
    let fleet = Fleet::with(3, &["--requirepass", "opensesame"]);
    let client = Client::connect(config(&fleet)).unwrap();
    let start = Instant::now();
    let error = client.lock("a", LockOptions::new(TTL).wait(60 * SECOND)).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert!(error.to_string().contains("requires a password"), "{error}");
    assert!(start.elapsed() < 30 * SECOND, "it was retried until the wait ran out");
    let urls = fleet.iter().map(|node| format!("redis://:opensesame@127.0.0.1:{}", node.port()));
    let client = ready::client(plain(urls));
    assert!(client.try_lock("a", TTL).is_ok());
}
