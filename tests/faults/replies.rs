//! Replies that come late, in pieces, joined, or longer than a reply may be: the client takes each
//! as the answer to its own request and to no other.

use super::*;
use crate::support::{Canned, Reply, RespClient, Value, Way, healthy};
use redlatch::{Error, LockOptions, NodeError, NodeReply, ReleaseOutcome};

/// The values of the key, read over connections of the test's own.
fn held(looks: &mut [RespClient], key: &str) -> Vec<Vec<u8>> {
    let values = looks.iter_mut().map(|look| look.command(&["GET", key]).expect("a reply"));
    values
        .filter_map(|value| if let Value::Bulk(token) = value { Some(token) } else { None })
        .collect()
}

#[test]
fn thousand_timeouts_between_good_calls_confuse_no_replies() {
    const TIMEOUTS: usize = 1000;
    let nodes = Proxied::start(3);
    let timeout = millis(4);
    let settings = config(nodes.urls()).node_timeout(timeout).reset_after(5 * SECOND);
    let client = client(settings.retry(millis(1), millis(3)));
    let mut looks: Vec<RespClient> = nodes.fleet.iter().map(Node::client).collect();
    let slow = |by| nodes.proxies[..2].iter().for_each(|it| it.delay(Way::ToClient, by));
    let (mut timeouts, mut calls, mut refused, mut in_spite) = (0, 0, 0, 0);
    let start = Instant::now();
    while timeouts < TIMEOUTS {
        slow(timeout + millis(1));
        match client.try_lock("late", TTL) {
            Err(error) if is_timeout(&error) => timeouts += 1,
            Err(Error::NoQuorum(_) | Error::Contended(_)) => refused += 1,
            // Some calls succeed: answers that a node sent before it was suspect are still in
            // flight.
            Ok(_) => in_spite += 1,
            Err(error) => panic!("{error}"),
        }
        slow(Duration::ZERO);
        let wait = LockOptions::new(TTL).wait(20 * SECOND);
        let mut guard = client.lock("good", wait).unwrap();
        calls += 1;
        let token = guard.token().to_string().into_bytes();
        // A node may still hold the token of an earlier call, whose release is pending.
        let ours = held(&mut looks, "good").into_iter().filter(|held| *held == token).count();
        assert!(ours >= 2, "call {calls}: {ours} of three hold its token");
        if calls % 7 == 0 {
            guard.extend(TTL).unwrap();
        }
        // The client sends a release even if it is not confirmed in time, and no other client holds
        // the key here.
        let released = guard.release().unwrap();
        assert!(matches!(released, ReleaseOutcome::Released | ReleaseOutcome::Unconfirmed { .. }));
    }
    let took = start.elapsed();
    println!("{timeouts} timeouts, {refused} refusals, {in_spite} locks in spite of the delay");
    println!("and {calls} good calls between them in {took:?}");
    drive_until(&client, SOON, "nothing is left", || nodes.fleet.keys_everywhere().is_empty());
    assert!(nodes.proxies.iter().all(|proxy| proxy.accepted() == 1), "a connection was replaced");
}

/// Whether the call waited for two nodes that it had asked.
fn is_timeout(error: &Error) -> bool {
    let Error::NoQuorum(report) = error else { return false };
    report.nodes[2].reply == NodeReply::Granted
        && report.nodes[..2].iter().all(|node| node.reply == NodeReply::Failed(NodeError::Silent))
}

/// The timeouts and the ttl of the locks in a fixed sequence of calls.
const LONG: Duration = Duration::from_secs(600);

/// Makes a fixed sequence of calls, and returns what each of them returned.
fn make_calls(nodes: &Proxied) -> Vec<String> {
    // The timeouts are long, because on a busy machine a handshake of some thousand single bytes
    // takes long: a minute for a script at a load of twenty.
    let patient = config(nodes.urls()).connect_timeout(LONG).node_timeout(LONG).max_ttl(LONG);
    let client = client(patient);
    let mut seen = Vec::new();
    for node in &nodes.fleet {
        node.command(&["SET", "another's", "x"]);
        node.command(&["SCRIPT", "FLUSH"]);
    }
    for _ in 0..5 {
        let mut guard = client.try_lock("a", LONG).unwrap();
        drive_until(&client, LONG, "all have it", || nodes.fleet.values("a").len() == 3);
        seen.push(format!("{:?}", guard.extend(LONG)));
        seen.push(format!("{:?}", guard.release()));
        let error = client.try_lock("another's", TTL).unwrap_err();
        seen.push(format!("contended: {}", matches!(error, Error::Contended(_))));
        let gone = client.try_lock("gone", LONG).unwrap();
        drive_until(&client, LONG, "all have it", || nodes.fleet.values("gone").len() == 3);
        nodes.fleet.command(&["DEL", "gone"]);
        seen.push(format!("{:?}", gone.release()));
    }
    client.drive(millis(50)).unwrap();
    seen.push(format!("{:?}", client.nodes()));
    nodes.fleet.command(&["DEL", "another's"]);
    assert_eq!(nodes.fleet.keys_everywhere(), []);
    assert!(nodes.proxies.iter().all(|proxy| proxy.accepted() == 1), "a connection was replaced");
    seen
}

#[test]
fn replies_in_pieces_or_joined_make_no_difference() {
    let plain = make_calls(&Proxied::start(3));
    println!("{plain:?}");
    let nodes = Proxied::start(3);
    nodes.proxies.iter().for_each(Proxy::split_into_bytes);
    assert_eq!(make_calls(&nodes), plain, "a byte at a time");
    drop(nodes);
    // The proxy delays answers by 10 ms, and passes on in one piece what came within that time.
    let nodes = Proxied::start(3);
    nodes.proxies.iter().for_each(|proxy| proxy.delay(Way::ToClient, millis(10)));
    assert_eq!(make_calls(&nodes), plain, "glued");
}

#[test]
fn error_lines_of_any_length_are_no_votes_and_are_reported_shortly() {
    // A line may have 64 KiB. The client ends the connection after a longer one.
    let cases = [
        (4_000, true, NodeError::OutOfMemory),
        (65_000, false, NodeError::OutOfMemory),
        (70_000, false, NodeError::Garbage),
    ];
    for (length, dripping, cause) in cases {
        let line = [b"-OOM ".to_vec(), vec![b'x'; length], b"\r\n".to_vec()].concat();
        let reply = if dripping { Reply::Dripping(line) } else { Reply::Bytes(line) };
        let ok = Reply::Bytes(b"+OK\r\n".to_vec());
        let nodes = [reply.clone(), reply, ok].map(answering_set_with);
        // The timeouts are long, because on a busy machine a reply of some thousand single bytes
        // takes long.
        let patient = config(nodes.iter().map(Canned::url)).node_timeout(60 * SECOND);
        let client = client(patient);
        let start = Instant::now();
        let error = client.try_lock("a", 60 * SECOND).unwrap_err();
        println!("{length} bytes: after {:?}: {} bytes", start.elapsed(), error.to_string().len());
        let Error::NoQuorum(report) = &error else { panic!("{error}") };
        let said: Vec<NodeReply> = report.nodes.iter().take(2).map(|node| node.reply).collect();
        assert_eq!(said, [NodeReply::Failed(cause); 2]);
        assert!(error.to_string().len() < 2000, "an operator has to read it");
    }
}

fn answering_set_with(reply: Reply) -> Canned {
    Canned::start(move |command| match command[0].as_slice() {
        b"SET" => reply.clone(),
        _ => Reply::Bytes(healthy(command)),
    })
}
