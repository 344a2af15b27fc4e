//! User and password: in the URL, or from a callback at each connect; and what mistakes lead to.

use std::sync::{Arc, Mutex};

use super::*;
use redlatch::{Credentials, Error, LockOptions, NodeError};

/// A password that is in no other text, so that a test can look for it in every output.
pub const PASSWORD: &str = "op3n:s@same/zebra";
const ENCODED: &str = "op3n%3As%40same%2Fzebra";

fn with_password(n: usize) -> Fleet {
    Fleet::with(n, &["--requirepass", PASSWORD])
}

fn urls(fleet: &Fleet, credentials: &str, db: &str) -> Vec<String> {
    fleet.iter().map(|node| url(node, credentials, db)).collect()
}

/// The error of an acquire on nodes that cannot be used as they are configured.
#[track_caller]
fn misconfigured(config: Config, cause: NodeError) -> String {
    let start = Instant::now();
    let client = Client::connect(config).expect("good addresses");
    let error = client.lock("a", LockOptions::new(TTL).wait(60 * SECOND)).unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    assert!(start.elapsed() < 30 * SECOND, "it was retried until the wait ran out");
    let said = &error.report().expect("nodes were asked").nodes[0].reply;
    assert_eq!(*said, redlatch::NodeReply::Failed(cause), "{error}");
    println!("{error}\n{error:?}\n{client:?}");
    error.to_string()
}

#[test]
fn user_password_and_database_are_those_of_the_url() {
    let fleet = with_password(3);
    for node in &fleet {
        let rule = ["ACL", "SETUSER", "a@n", "on", &format!(">{PASSWORD}"), "~*", "+@all"];
        assert!(node.command(&rule).is_ok());
    }
    for (credentials, db) in [(format!(":{ENCODED}@"), "/3"), (format!("a%40n:{ENCODED}@"), "/3")] {
        let client = ready(config(urls(&fleet, &credentials, db)));
        let guard = client.try_lock("a", TTL).unwrap();
        let mut there = fleet[0].client();
        assert!(there.command(&["SELECT", "3"]).unwrap().is_ok());
        eventually(SOON, "the key is in database 3", || {
            there.command(&["EXISTS", "a"]).unwrap().int() == 1
        });
        assert!(fleet.keys_everywhere().is_empty(), "the key is in database 0");
        drop(guard);
        lock_extend_and_release(&client);
    }
}

#[test]
fn credentials_error_is_a_configuration_error_with_its_reason() {
    let fleet = with_password(3);
    let cases = [
        ("", "", NodeError::NoAuth),
        (":wrong@", "", NodeError::WrongPassword),
        (&format!("nobody:{ENCODED}@"), "", NodeError::WrongPassword),
        (&format!(":{ENCODED}@"), "/16", NodeError::NoDatabase),
    ];
    for (credentials, db, cause) in cases {
        let text = misconfigured(config(urls(&fleet, credentials, db)), cause);
        assert!(text.contains(&cause.to_string()), "{text}");
    }
    drop(fleet);
    // Servers since Redis 6 that have no password accept any, so HELLO shows no mistake.
    let open = Fleet::start(1);
    lock_extend_and_release(&ready(config(urls(&open, ":any@", ""))));
}

#[test]
fn a_node_that_repeats_the_password_does_not_make_the_client_repeat_it() {
    let fleet = Fleet::with(
        3,
        &[
            "--requirepass",
            PASSWORD,
            "--rename-command",
            "HELLO",
            "",
            "--rename-command",
            "INFO",
            "",
        ],
    );
    // A server that does not know a command repeats its arguments in the error.
    let mut client = fleet[0].client();
    let said = client.command(&["HELLO", "3", "AUTH", "default", PASSWORD]).unwrap();
    assert!(format!("{said:?}").contains(PASSWORD), "{said:?}");
    let client = ready(config(urls(&fleet, &format!(":{ENCODED}@"), "")));
    lock_extend_and_release(&client);
    println!("{client:?}");
    let text = misconfigured(config(urls(&fleet, ":wrong-zebra@", "")), NodeError::WrongPassword);
    assert!(!text.contains("wrong-zebra"), "{text}");
    drop(fleet);
    // If the server does not know AUTH either, its error ends with the password.
    let fleet = Fleet::with(1, &["--rename-command", "HELLO", "", "--rename-command", "AUTH", ""]);
    let config = config(urls(&fleet, &format!(":{ENCODED}@"), ""));
    let text = misconfigured(config, NodeError::UnknownCommand);
    assert!(!text.contains(PASSWORD), "{text}");
}

#[test]
fn credentials_are_asked_for_at_each_connect() {
    let fleet = with_password(3);
    let current = Arc::new(Mutex::new(PASSWORD.to_owned()));
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (now, log) = (Arc::clone(&current), Arc::clone(&asked));
    let config = config(fleet.urls()).credentials(move |label| {
        log.lock().unwrap().push(label.to_owned());
        Some(Credentials::password(now.lock().unwrap().as_str()))
    });
    println!("{config:?}");
    let client = ready(config);
    println!("{client:?}");
    lock_extend_and_release(&client);
    let labels: Vec<_> = fleet.iter().map(|node| node.address().to_string()).collect();
    let mut first = asked.lock().unwrap().clone();
    first.sort();
    let mut sorted = labels.clone();
    sorted.sort();
    assert_eq!(first, sorted, "each node once");

    // The password changes, and the nodes end the connections.
    *current.lock().unwrap() = "the-next-zebra".into();
    for node in &fleet {
        let client = &mut node.client();
        for command in [
            &["CONFIG", "SET", "requirepass", "the-next-zebra"][..],
            &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        ] {
            client.command(command).unwrap();
        }
    }
    let guard = client.lock("b", TTL).expect("the new token");
    assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
    assert!(asked.lock().unwrap().len() >= 5, "a majority was connected to again");
}

#[test]
fn a_socket_in_the_file_system_is_a_node_like_others() {
    let fleet = Fleet::each(3, |_, directory| {
        let path = directory.join("a socket");
        vec!["--unixsocket".into(), path.to_str().unwrap().into()]
    });
    let urls = fleet.iter().map(|node| {
        let path = node.directory().join("a%20socket");
        format!("redis+unix://{}?db=2", path.display())
    });
    let client = ready(config(urls));
    lock_extend_and_release(&client);
    // Two nodes end, and later start again with the same sockets.
    fleet.on([0, 1], Node::kill);
    client.drive(millis(100)).unwrap();
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    assert!(error.to_string().contains("/a socket not connected"), "{error}");
    fleet[0].restart();
    let guard = client.lock("a", TTL).expect("two of three");
    assert_eq!(guard.release(), Ok(ReleaseOutcome::Released));
}

#[test]
fn client_list_shows_the_name_of_the_client() {
    let fleet = Fleet::start(1);
    let client = ready(config(fleet.urls()));
    let line = fleet[0].client_list().pop().expect("a connection");
    assert!(line.contains(" name=redlatch "), "{line}");
    let server = crate::support::Server::get();
    if server.version >= (7, 2) {
        let version = concat!(" lib-ver=", env!("CARGO_PKG_VERSION"));
        assert!(line.contains(" lib-name=redlatch") && line.contains(version), "{line}");
    }
    drop(client);
    let _client = ready(config(fleet.urls()).client_name("billing-7"));
    eventually(SOON, "the other name", || {
        fleet[0].client_list().iter().any(|line| line.contains(" name=billing-7 "))
    });
}
