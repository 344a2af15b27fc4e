//! A SET that timed out never outlives its attempt: however late a node executes it, a release
//! follows.

use super::*;
use crate::support::Monitor;
use redlatch::Error;

/// A ttl far above the length of a test: if a key goes within the test, it did not expire.
const LONG: Duration = Duration::from_secs(60);

fn quick(urls: Vec<String>) -> Client {
    client(config(urls).node_timeout(millis(100)))
}

#[track_caller]
fn times_out(client: &Client, ttl: Duration) {
    let start = Instant::now();
    let error = client.try_lock("a", ttl).unwrap_err();
    println!("timed out after {:?}", start.elapsed());
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
}

fn monitors(fleet: &Fleet) -> Vec<Monitor> {
    fleet.iter().map(Node::monitor).collect()
}

/// The commands that the server executed on the key, in its order: SETs, and releases of any form.
fn commands_on_the_key(monitor: &Monitor) -> Vec<&'static str> {
    let lines = monitor.lines();
    // MONITOR also lists the commands that a script runs, marked with `lua`.
    let outer = lines.iter().filter(|line| line.contains("\"a\"") && !line.contains(" lua]"));
    let what = outer.filter_map(|line| match line {
        _ if line.contains("\"SET\"") => Some("SET"),
        _ if line.contains("\"EVAL") || line.contains("\"DEL") => Some("release"),
        _ => None,
    });
    what.collect()
}

/// Drives until no node has the key, and checks for a while that it does not come back.
#[track_caller]
fn wait_until_key_stays_gone(client: &Client, fleet: &Fleet) {
    let took = drive_until(client, SOON, "the key is gone", || fleet.keys_everywhere().is_empty());
    println!("nothing was left {took:?} after healing");
    let end = Instant::now() + millis(600);
    while Instant::now() < end {
        client.drive(millis(10)).unwrap();
        assert_eq!(fleet.keys_everywhere(), [], "a late SET left its key");
    }
}

#[test]
fn a_set_that_arrives_when_the_network_heals_is_followed_by_its_release() {
    let nodes = Proxied::start(3);
    let client = quick(nodes.urls());
    let monitors = monitors(&nodes.fleet);
    nodes.proxies[..2].iter().for_each(Proxy::hold);
    times_out(&client, LONG);
    client.drive(millis(200)).unwrap();
    assert_eq!(commands_on_the_key(&monitors[0]), [""; 0], "nothing came through");
    nodes.proxies[..2].iter().for_each(Proxy::heal);
    wait_until_key_stays_gone(&client, &nodes.fleet);
    for monitor in &monitors {
        let done = commands_on_the_key(monitor);
        assert_eq!(done[..2], ["SET", "release"], "{done:?}");
    }
}

#[test]
fn a_set_that_is_later_than_the_next_connection_is_followed_by_a_release_too() {
    let nodes = Proxied::start(3);
    let client = quick(nodes.urls());
    let monitors = monitors(&nodes.fleet);
    nodes.proxies[..2].iter().for_each(Proxy::hold);
    times_out(&client, LONG);
    drive_until(&client, SOON, "the silent connections are given up", || {
        nodes.proxies[..2].iter().all(|proxy| proxy.accepted() >= 2)
    });
    // Of the bytes on the old connections only the SET arrives, after all bytes on the new ones.
    nodes.proxies[..2].iter().for_each(|proxy| proxy.heal_with_stragglers(millis(400)));
    let took = wait_ready(&client, 3);
    println!("all ready {took:?} after healing");
    wait_until_key_stays_gone(&client, &nodes.fleet);
    for monitor in &monitors[..2] {
        // CLIENT KILL ended the old connection before the SET arrived or, on a busy machine, after
        // it.
        let done = commands_on_the_key(monitor);
        println!("{done:?}");
        assert_eq!(done.last(), Some(&"release"), "{done:?}");
    }
    for node in &nodes.fleet {
        let stats = node.command(&["INFO", "commandstats"]).text();
        let kills = stats.lines().filter(|line| line.starts_with("cmdstat_client|kill:calls="));
        println!("{:?}", kills.collect::<Vec<_>>());
    }
}

#[test]
fn pending_release_is_sent_twice_where_the_old_connection_cannot_be_killed() {
    despite_stalls(millis(20), |_| pending_release_is_sent_twice());
}

fn pending_release_is_sent_twice() {
    let nodes = Proxied::start(3);
    for node in &nodes.fleet {
        let rules = ["ACL", "SETUSER", "lock", "on", ">pw", "~*", "&*", "+@all", "-client"];
        assert!(node.command(&rules).is_ok());
    }
    let urls = nodes.proxies.iter().map(|it| format!("redis://lock:pw@127.0.0.1:{}", it.port()));
    let client = quick(urls.collect());
    let monitors = monitors(&nodes.fleet);
    nodes.proxies[..2].iter().for_each(Proxy::hold);
    times_out(&client, LONG);
    drive_until(&client, SOON, "the silent connections are given up", || {
        nodes.proxies[..2].iter().all(|proxy| proxy.accepted() >= 2)
    });
    // The SET arrives within a node timeout after the first release.
    nodes.proxies[..2].iter().for_each(|proxy| proxy.heal_with_stragglers(millis(50)));
    client.drive(millis(500)).unwrap();
    for monitor in &monitors[..2] {
        assert_eq!(commands_on_the_key(monitor), ["release", "SET", "release"]);
    }
    wait_until_key_stays_gone(&client, &nodes.fleet);
}

/// How many bytes of this connection the server has not read yet, by the kernel's count.
fn unread_by_the_server(client: &crate::support::RespClient, node: &Node) -> usize {
    let ports = format!(":{:04X} 0100007F:{:04X}", node.port(), client.local_address().port());
    let table = std::fs::read_to_string("/proc/net/tcp").expect("Linux has it");
    let line = table.lines().find(|line| line.contains(&ports)).expect("it is connected");
    let unread = line.split_whitespace().nth(4).and_then(|queues| queues.split_once(':'));
    usize::from_str_radix(unread.expect("two queues").1, 16).expect("a number")
}

/// Stalls the node by DEBUG SLEEP, and makes it execute `then` before it serves any other client.
fn stall(node: &Node, seconds: &str, then: &[&str]) -> crate::support::RespClient {
    let other = node.client();
    let commands =
        [crate::support::encode(&["DEBUG", "SLEEP", seconds]), crate::support::encode(then)]
            .concat();
    std::io::Write::write_all(&mut other.socket(), &commands).expect("a running server reads");
    eventually(SOON, "the server has read them, and is stalled", || {
        unread_by_the_server(&other, node) == 0
    });
    other
}

fn a_stall_leaves_nothing(then: &[&str], reset_after: Duration) {
    despite_stalls(millis(300), |_| a_stall_leaves_nothing_once(then, reset_after));
}

fn a_stall_leaves_nothing_once(then: &[&str], reset_after: Duration) {
    let fleet = Fleet::start(3);
    let settings = config(fleet.urls()).node_timeout(millis(100)).reset_after(reset_after);
    let client = client(settings);
    let monitors = monitors(&fleet);
    let start = Instant::now();
    let mut stalled = [0, 1].map(|index| stall(&fleet[index], "2", then));
    // The ttl ends for the client long before the node executes the SET. From then on the key lives
    // for its whole ttl.
    let ttl = SECOND;
    times_out(&client, ttl);
    while start.elapsed() < millis(1900) {
        client.drive(millis(10)).unwrap();
    }
    println!("before the stall ends: {:?}", client.nodes());
    for stalled in &mut stalled {
        stalled.read().expect("the stall is over");
        stalled.read().expect("and so is what follows it");
    }
    // The release deletes the key before the key's ttl ends.
    let took = drive_until(&client, SOON, "the key is gone", fleet.emptied());
    println!("after the stall: nothing was left after {took:?}");
    wait_until_key_stays_gone(&client, &fleet);
    for monitor in &monitors[..2] {
        let done = commands_on_the_key(monitor);
        println!("{done:?}");
        assert_eq!(done[..2], ["SET", "release"], "{done:?}");
    }
    wait_ready(&client, 3);
    assert!(client.try_lock("a", TTL).is_ok());
}

#[test]
fn stall_for_longer_than_the_ttl_leaves_nothing() {
    a_stall_leaves_nothing(&["PING"], 60 * SECOND);
}

#[test]
fn stall_while_the_next_connection_opens_leaves_nothing() {
    a_stall_leaves_nothing(&["PING"], millis(200));
}

#[test]
fn stall_with_a_flush_of_scripts_leaves_nothing() {
    a_stall_leaves_nothing(&["SCRIPT", "FLUSH"], millis(200));
    a_stall_leaves_nothing(&["SCRIPT", "FLUSH"], 60 * SECOND);
}

#[test]
fn a_client_that_ends_leaves_nothing_on_a_stalled_server() {
    let fleet = Fleet::start(3);
    let client = quick(fleet.urls());
    let mut stalled = [0, 1].map(|index| stall(&fleet[index], "1", &["SCRIPT", "FLUSH"]));
    times_out(&client, LONG);
    let guards = client.try_lock("b", LONG);
    drop(guards);
    drop(client);
    for stalled in &mut stalled {
        stalled.read().expect("the stall is over");
    }
    let start = Instant::now();
    eventually(SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    println!("the client is gone: nothing was left after {:?}", start.elapsed());
    let_pass(millis(300));
    assert_eq!(fleet.keys_everywhere(), []);
}
