//! Connections that are lost while a lock is held or released: its keys stay as long as it is held,
//! and go when it is not.

use super::*;
use crate::support::{Cut, Value};
use answers::{end_script, endless_script};
use redlatch::ReleaseOutcome;

#[test]
fn keys_stay_when_connections_are_lost_while_the_lock_is_held() {
    let nodes = Proxied::start(3);
    let client = client(config(nodes.urls()));
    let monitors: Vec<_> = nodes.fleet.iter().map(Node::monitor).collect();
    let mut guard = client.try_lock("a", TTL).unwrap();
    drive_until(&client, SOON, "all have it", || nodes.fleet.values("a").len() == 3);
    let token = guard.token().to_string().into_bytes();
    for how in [Cut::Reset, Cut::Fin, Cut::Reset] {
        nodes.proxies.iter().for_each(|proxy| proxy.cut(how));
        client.drive(millis(2)).unwrap();
        let took = wait_ready(&client, 3);
        println!("{how:?}: all ready again after {took:?}");
        client.drive(millis(200)).unwrap();
        assert_eq!(nodes.fleet.values("a"), vec![token.clone(); 3], "{how:?}");
        guard.check().unwrap();
        guard.extend(TTL).unwrap();
    }
    for monitor in &monitors {
        let lines = monitor.lines();
        assert!(!lines.iter().any(|line| line.contains("\"DEL\" \"a\"")), "{lines:?}");
    }
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    drive_until(&client, SOON, "nothing is left", || nodes.fleet.keys_everywhere().is_empty());
}

#[test]
fn a_connection_that_is_lost_costs_no_attempt() {
    let nodes = Proxied::start(3);
    let client = client(config(nodes.urls()));
    for how in [Cut::Reset, Cut::Fin] {
        nodes.proxies[0].cut(how);
        let start = Instant::now();
        let guard = client.try_lock("a", TTL).unwrap();
        assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
        println!("{how:?} of one: acquired and released in {:?}", start.elapsed());
        assert!(start.elapsed() < NODE_TIMEOUT / 2);
        wait_ready(&client, 3);
    }
    drive_until(&client, SOON, "nothing is left", || nodes.fleet.keys_everywhere().is_empty());
}

#[test]
fn connections_that_are_killed_right_after_an_acquire_leave_nothing() {
    let fleet = Fleet::start(3);
    let client = client(config(fleet.urls()));
    for round in 0..10 {
        let guard = client.try_lock("a", 60 * SECOND).unwrap();
        for node in &fleet {
            let killed = node.client().command(&["CLIENT", "KILL", "TYPE", "normal"]);
            assert!(killed.expect("a reply").int() >= 1);
        }
        let start = Instant::now();
        if round % 2 == 0 {
            let released = guard.release().unwrap();
            println!("released: {released:?} after {:?}", start.elapsed());
        } else {
            drop(guard);
        }
        drive_until(&client, SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
        println!("nothing was left after {:?}", start.elapsed());
        wait_ready(&client, 3);
    }
}

#[test]
fn connections_that_the_servers_close_while_idle_cost_nothing() {
    let fleet = Fleet::with(3, &["--timeout", "1"]);
    let client = client(config(fleet.urls()));
    assert!(client.try_lock("a", TTL).is_ok());
    let ids = || fleet.iter().map(|node| node.client_list().len()).sum::<usize>();
    let_pass(3 * SECOND);
    eventually(SOON, "the servers have closed every connection", || ids() == 0);
    let start = Instant::now();
    let guard = client.try_lock("a", TTL).unwrap();
    println!("idle for 3 s: acquired in {:?}", start.elapsed());
    // On a busy machine the third node may connect too late for this lock.
    drive_until(&client, SOON, "a majority has it", || fleet.values("a").len() >= 2);
    // The servers close the connections once more while the lock is held, so the release needs new
    // ones.
    let_pass(2 * SECOND);
    eventually(SOON, "the servers have closed every connection", || ids() == 0);
    let start = Instant::now();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    println!("idle for 2 s more: released in {:?}", start.elapsed());
    drive_until(&client, SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
}

#[test]
fn a_release_that_a_busy_node_refuses_is_asked_again() {
    let fleet = Fleet::start(3);
    // If a release is refused, the client sends it again after each node timeout.
    let client = client(config(fleet.urls()).node_timeout(millis(2_500)));
    for busy in [1, 2] {
        wait_ready(&client, 3);
        let guard = client.try_lock("a", 60 * SECOND).unwrap();
        drive_until(&client, SOON, "all have it", || fleet.values("a").len() == 3);
        let nodes: Vec<&Node> = fleet.iter().take(busy).collect();
        let scripts: Vec<_> = nodes.iter().map(|node| endless_script(node)).collect();
        let start = Instant::now();
        let released = guard.release().unwrap();
        println!("{busy} of three busy: {released:?} after {:?}", start.elapsed());
        assert_eq!(released == ReleaseOutcome::Released, busy == 1, "{released:?}");
        client.drive(millis(300)).unwrap();
        for node in &nodes {
            assert!(matches!(node.command(&["GET", "a"]), Value::Error(_)), "it is not busy");
            end_script(node);
        }
        assert_eq!(
            nodes.iter().filter(|node| node.get("a").is_some()).count(),
            busy,
            "it was released while busy"
        );
        let took = drive_until(&client, 3 * SOON, "the keys are gone", || {
            fleet.keys_everywhere().is_empty()
        });
        println!("not busy any more: the keys are gone after {took:?}");
        drop(scripts);
    }
}
