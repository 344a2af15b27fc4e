//! Users that may not call every command: which ones a client can do without, and which ones not.

use super::answers::Trouble;
use super::*;
use redlatch::{LockOptions, NodeError, ReleaseOutcome};

/// Starts nodes with a user that may still do everything.
fn fleet_with_a_user() -> (Fleet, Vec<String>) {
    let fleet = Fleet::start(3);
    fleet.iter().for_each(|node| acl(node, &["on", ">opensesame", "~*", "&*", "+@all"]));
    let url = |node: &Node| format!("redis://lock:opensesame@127.0.0.1:{}", node.port());
    let urls = fleet.iter().map(url).collect();
    (fleet, urls)
}

#[track_caller]
fn acl(node: &Node, rules: &[&str]) {
    let reply = node.command(&[&["ACL", "SETUSER", "lock"], rules].concat());
    assert!(reply.is_ok(), "ACL SETUSER {rules:?}: {reply:?}");
}

#[test]
fn missing_right_to_set_is_named_in_the_error() {
    let (fleet, urls) = fleet_with_a_user();
    Trouble {
        cause: NodeError::NoPermission,
        provoke: |node| acl(node, &["-set"]),
        heal: |node| acl(node, &["+set"]),
        meets_the_connected: true,
    }
    .show_on(&fleet, &urls);
}

#[test]
fn missing_right_to_the_key_is_named_in_the_error() {
    let (fleet, urls) = fleet_with_a_user();
    Trouble {
        cause: NodeError::NoPermission,
        provoke: |node| acl(node, &["resetkeys", "~other:*"]),
        heal: |node| acl(node, &["~*"]),
        meets_the_connected: true,
    }
    .show_on(&fleet, &urls);
}

#[test]
fn wrong_password_of_a_user_ends_a_wait_at_once() {
    let (fleet, _) = fleet_with_a_user();
    let url = |node: &Node| format!("redis://lock:guess@127.0.0.1:{}", node.port());
    let urls: Vec<String> = fleet.iter().map(url).collect();
    let client = Client::connect(config(urls)).unwrap();
    let start = Instant::now();
    let error = client.lock("a", LockOptions::new(TTL).wait(60 * SECOND)).unwrap_err();
    println!("{error} (after {:?})", start.elapsed());
    assert!(matches!(error, redlatch::Error::Config(_)), "{error}");
    assert!(error.to_string().contains(&NodeError::WrongPassword.to_string()), "{error}");
    assert!(start.elapsed() < 30 * SECOND, "it was retried until the wait ran out");
}

/// A user that could take a lock and not release it must not take one.
#[test]
fn user_without_scripting_gets_no_lock() {
    let (fleet, urls) = fleet_with_a_user();
    let trouble = Trouble {
        cause: NodeError::NoPermission,
        provoke: |node| acl(node, &["-@scripting"]),
        heal: |node| acl(node, &["+@scripting"]),
        meets_the_connected: false,
    };
    let before = client(config(&urls));
    (trouble.provoke)(&fleet[0]);
    trouble.assert_calls_succeed(&before, "connected before");
    let between = Client::connect(config(&urls)).unwrap();
    wait_ready(&between, 2);
    trouble.assert_calls_succeed(&between, "connected to two");
    (trouble.provoke)(&fleet[1]);
    let after = Client::connect(config(&urls)).unwrap();
    trouble.assert_is_named(&after, &fleet);
    [&fleet[0], &fleet[1]].into_iter().for_each(trouble.heal);
    answers::wait_until_nothing_is_left(&[&before, &between, &after], &fleet);
}

/// A client cannot find this out without writing a key. So only the release reports it, and the
/// lock ends by its ttl.
#[test]
fn a_user_whose_scripts_may_not_delete_learns_that_nothing_was_released() {
    let (fleet, urls) = fleet_with_a_user();
    let client = client(config(&urls).node_timeout(3 * SECOND));
    acl(&fleet[0], &["-del"]);
    let guard = client.try_lock("a", 4 * SECOND).unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released, "a minority costs nothing");
    acl(&fleet[1], &["-del"]);
    drive_until(&client, SOON, "the first is over", || fleet.values("a").is_empty());
    let guard = client.try_lock("a", 4 * SECOND).unwrap();
    let released = guard.release().unwrap();
    println!("without DEL on two of three: {released:?}");
    assert!(matches!(released, ReleaseOutcome::Unconfirmed { .. }), "{released:?}");
    drive_until(&client, 3 * SOON, "the ttl is over", || fleet.values("a").is_empty());
}

/// Managed servers refuse some of these commands. Without each of them the client works in a
/// defined way.
#[test]
fn refused_optional_commands_do_no_harm() {
    let (fleet, urls) = fleet_with_a_user();
    let optional = ["client", "info", "script", "hello", "command", "time", "ping"];
    let works = |without: &str| {
        let client = client(config(&urls));
        let mut guard = client.try_lock("a", TTL).unwrap_or_else(|e| panic!("{without}: {e}"));
        guard.extend(TTL).unwrap_or_else(|e| panic!("{without}: {e}"));
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released, "{without}");
        client.drive(millis(20)).unwrap();
        assert_eq!(client.nodes(), [NodeState::Ready; 3], "{without}");
        answers::wait_until_nothing_is_left(&[&client], &fleet);
    };
    for name in optional {
        fleet.iter().for_each(|node| acl(node, &[&format!("-{name}")]));
        works(name);
        fleet.iter().for_each(|node| acl(node, &[&format!("+{name}")]));
    }
    let all: Vec<String> = optional.iter().map(|name| format!("-{name}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    fleet.iter().for_each(|node| acl(node, &all));
    works("any of them");
}
