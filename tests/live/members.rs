//! The list of masters that real servers keep for clients with `Config::check_members`.

use super::*;
use redlatch::proto::MEMBERS;
use redlatch::{NodeError, NodeReply};

/// The connect timeout is long, because no list is agreed while a node cannot be reached.
fn checking(fleet: &Fleet, nodes: &[usize]) -> Config {
    let urls = nodes.iter().map(|&node| fleet[node].url());
    let config = Config::new(urls).expect("good addresses").node_timeout(NODE_TIMEOUT);
    config.connect_timeout(20 * SECOND).check_members(true)
}

/// What each server has as its list.
fn lists(fleet: &Fleet) -> Vec<Option<String>> {
    let text = |bytes| String::from_utf8(bytes).expect("a list is text");
    fleet.iter().map(|node| node.get(MEMBERS).map(text)).collect()
}

#[test]
fn list_is_written_once_and_another_one_is_refused_before_the_client_holds() {
    let fleet = Fleet::start(5);
    ready::vouched(checking(&fleet, &[2, 3, 4]).check_members(false));
    let first = ready::vouched(checking(&fleet, &[0, 1, 2]));
    first.wait_ready(3);
    let mut guard = first.lock("invoice:42", TTL).unwrap();
    first.drive_until(SOON, "each server knows that the list is agreed", || {
        lists(&fleet)[..3].iter().flatten().filter(|list| list.contains(" agreed ")).count() == 3
    });
    let written = lists(&fleet);
    let again = ready::client(checking(&fleet, &[2, 1, 0]));
    assert!(again.try_lock("invoice:42", TTL).is_err(), "the first client holds it");
    assert_eq!(lists(&fleet), written);
    let other = Client::connect(checking(&fleet, &[2, 3, 4])).unwrap();
    let error = other.lock("invoice:42", LockOptions::new(TTL).wait(60 * SECOND)).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    let nodes = &error.report().expect("it is about nodes").nodes;
    let refused = NodeReply::Failed(NodeError::OtherList);
    assert!(nodes[1..].iter().all(|node| node.reply == refused), "{error}");
    let named = nodes[1].detail.as_deref().unwrap_or_default();
    for node in fleet.iter().take(3) {
        assert!(named.contains(&node.address().to_string()), "the list is not named: {error}");
    }
    assert_eq!(lists(&fleet), written);
    assert!(guard.extend(TTL).is_ok());
}

#[test]
fn list_that_a_flush_deleted_is_written_again() {
    let fleet = Fleet::start(3);
    let client = ready::vouched(checking(&fleet, &[0, 1, 2]));
    let all_agreed = || lists(&fleet).iter().flatten().all(|list| list.contains(" agreed "));
    client.drive_until(SOON, "the list is agreed", || {
        lists(&fleet).iter().all(Option::is_some) && all_agreed()
    });
    let written = lists(&fleet);
    assert!(fleet[1].command(&["FLUSHALL"]).is_ok());
    let given_back = |list: Option<String>| list.map(|it| it.replace(" returned ", " agreed "));
    client.drive_until(SOON, "the list is there again", || {
        lists(&fleet).into_iter().map(given_back).collect::<Vec<_>>() == written
    });
    assert!(lists(&fleet)[1].as_ref().is_some_and(|list| list.contains(" returned ")));
    assert!(client.try_lock("a", TTL).is_ok());
}
