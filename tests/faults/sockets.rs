//! What a peer can do to a connection: replies in pieces or joined, resets, refusals, garbage.

use std::time::Duration;

use super::drive_until;
use crate::ready;
use crate::support::{Canned, Reply, SECOND, SOON, Scripted, healthy, millis};
use redlatch::{Client, Config, Error, NodeState, ReleaseOutcome, RestartGuard};

const TTL: Duration = Duration::from_secs(10);

/// Without the restart guard: these nodes do not report their age.
fn config(urls: impl IntoIterator<Item = String>) -> Config {
    Config::new(urls).unwrap().restart_guard(RestartGuard::Off)
}

fn healthy_node() -> Canned {
    Canned::start(|command| Reply::Bytes(healthy(command)))
}

/// A node that answers `SET` with `bytes`, and all else as a healthy node.
fn answering_set_with(bytes: &'static [u8]) -> Canned {
    Canned::start(move |command| match command[0].as_slice() {
        b"SET" => Reply::Bytes(bytes.to_vec()),
        _ => Reply::Bytes(healthy(command)),
    })
}

fn client(nodes: &[&Canned]) -> Client {
    let urls = nodes.iter().map(|node| node.url());
    ready::client(config(urls).node_timeout(2 * SECOND))
}

#[test]
fn replies_that_arrive_byte_by_byte_are_read_like_whole_ones() {
    let dripping = || Canned::start(|command| Reply::Dripping(healthy(command)));
    let nodes = [dripping(), dripping(), dripping()];
    let client = client(&[&nodes[0], &nodes[1], &nodes[2]]);
    for _ in 0..50 {
        let mut guard = client.try_lock("a", TTL).unwrap();
        guard.extend(TTL).unwrap();
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    }
}

#[test]
fn replies_that_arrive_joined_are_read_like_single_ones() {
    // The server answers a SET only when the release has arrived, and then writes both answers at
    // once.
    let gluing = || {
        Canned::start(|command| match command[0].as_slice() {
            b"SET" => Reply::Silence,
            _ => Reply::Bytes(b"+OK\r\n:1\r\n".to_vec()),
        })
    };
    let nodes = [gluing(), healthy_node(), healthy_node()];
    let client = client(&[&nodes[0], &nodes[1], &nodes[2]]);
    for _ in 0..50 {
        let guard = client.try_lock("a", TTL).unwrap();
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    }
    client.drive(millis(20)).unwrap();
    assert_eq!(client.nodes(), [NodeState::Ready; 3]);
    assert_eq!(nodes[0].connections(), 1);
}

#[test]
fn a_connection_that_is_lost_in_mid_reply_gives_no_vote() {
    let resetting = || {
        Canned::start(|command| match command[0].as_slice() {
            b"SET" => Reply::Reset(b"+O".to_vec()),
            _ => Reply::Bytes(healthy(command)),
        })
    };
    let nodes = [resetting(), resetting(), healthy_node()];
    let client = client(&[&nodes[0], &nodes[1], &nodes[2]]);
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
    assert!(error.to_string().contains("connection lost"), "{error}");
    // The node may have executed the SET, so the client sends the release first on the next
    // connection.
    drive_until(&client, SOON, "both were sent a release", || {
        nodes[..2].iter().all(|node| node.count("EVAL") == 1)
    });
    assert!(nodes.iter().all(|node| node.count("SET") == 1));
}

#[test]
fn garbage_is_never_a_vote() {
    let garbage: [&'static [u8]; 9] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b":1\r\n",
        b"$2\r\nOK\r\n",
        b"+QUEUED\r\n",
        b"*1\r\n+OK\r\n",
        b"%1\r\n+OK\r\n+OK\r\n",
        b"+OK\n",
        b"$99999999999999999999\r\n",
        b"\0\0\0\0\r\n",
    ];
    for bytes in garbage {
        let nodes = [answering_set_with(bytes), answering_set_with(bytes), healthy_node()];
        let client = client(&[&nodes[0], &nodes[1], &nodes[2]]);
        let error = client.try_lock("a", TTL).unwrap_err();
        let text = bytes.escape_ascii();
        assert!(matches!(error, Error::NoQuorum(_)), "{text}: {error}");
        assert!(error.to_string().contains("sent an invalid reply"), "{text}: {error}");
        drive_until(&client, SOON, "they are connected to again, and told to release", || {
            nodes[..2].iter().all(|node| node.connections() >= 2 && node.count("EVAL") == 1)
        });
    }
}

#[test]
fn a_reply_without_a_request_ends_the_connection() {
    let nodes = [answering_set_with(b"+OK\r\n+OK\r\n"), healthy_node(), healthy_node()];
    let client = client(&[&nodes[0], &nodes[1], &nodes[2]]);
    let guard = client.try_lock("a", TTL).unwrap();
    drive_until(&client, SOON, "it is connected to again", || nodes[0].connections() >= 2);
    guard.check().unwrap();
}

#[test]
fn a_node_that_answers_an_unknown_error_is_released_all_the_same() {
    // A proxy may answer a SET like this although it has passed the SET on.
    let strange = b"-UPSTREAM timed out, who knows\r\n";
    let nodes = [answering_set_with(strange), answering_set_with(strange), healthy_node()];
    let client = client(&[&nodes[0], &nodes[1], &nodes[2]]);
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(error.to_string().contains("UPSTREAM timed out"), "{error}");
    drive_until(&client, SOON, "all three were sent a release", || {
        nodes.iter().all(|node| node.count("EVAL") + node.count("EVALSHA") >= 1)
    });
}

#[test]
fn a_refused_connection_is_reported_with_the_systems_words() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = config([format!("redis://127.0.0.1:{port}")]);
    let client = Client::connect(config).unwrap();
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(error.to_string().contains("not connected (Connection refused)"), "{error}");
}

#[test]
fn a_name_that_is_not_found_is_a_node_that_is_down() {
    let nodes = [healthy_node(), healthy_node()];
    let urls = [nodes[0].url(), nodes[1].url(), "redis://no-such-host.invalid".to_string()];
    let client = Client::connect(config(urls)).unwrap();
    drive_until(&client, SOON, "two are ready", || {
        client.nodes()[..2].iter().all(|&state| state == NodeState::Ready)
    });
    assert!(client.try_lock("a", TTL).is_ok());
    assert!(matches!(client.nodes()[2], NodeState::Down(_) | NodeState::Connecting));
}

#[test]
fn a_node_that_does_not_speak_is_given_up_at_the_connect_timeout_and_tried_again() {
    let silent = Scripted::start(|mut stream, _| {
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let config = config([silent.url()]).connect_timeout(millis(50));
    let client = Client::connect(config).unwrap();
    // The client gives up the first connection, and opens the second one only after that.
    drive_until(&client, SOON, "it is given up", || {
        matches!(client.nodes()[0], NodeState::Down(_))
    });
    let error = client.try_lock("a", TTL).unwrap_err();
    let why = "not connected (no answer to HELLO within the connect timeout of 50ms)";
    assert!(error.to_string().contains(why), "{error}");
    drive_until(&client, SOON, "it is tried again", || silent.connections() >= 3);
}

#[test]
fn server_that_has_no_room_for_clients_is_named_in_the_error() {
    let full = Scripted::start(|mut stream, _| {
        use std::io::{Read, Write};
        // If input is unread when a socket is closed, the kernel resets it, which may discard the
        // answer.
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"-ERR max number of clients reached\r\n");
    });
    let client = Client::connect(config([full.url()])).unwrap();
    let error = client.try_lock("a", TTL).unwrap_err();
    assert!(error.to_string().contains("has too many clients"), "{error}");
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
}
