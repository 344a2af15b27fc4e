//! Partitions as a network makes them: two network namespaces, a veth pair between them, and a
//! filter that drops packets.
//!
//! The servers run in one namespace and the client's thread in the other. The one hazard: a thread
//! that enters a namespace stays there. So only threads that the test started itself enter one, and
//! they end there.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use redlatch::{Error, NodeError, ReleaseOutcome};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The address of the servers, seen from the clients.
const SERVERS: &str = "10.231.77.1";
const CLIENTS: &str = "10.231.77.2";

/// Two network namespaces, joined by a veth pair.
struct Lan {
    servers: String,
    clients: String,
}

impl Lan {
    fn new() -> Lan {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("redlatch{}-{count}", std::process::id());
        let lan = Lan { servers: format!("{name}-s"), clients: format!("{name}-c") };
        let (servers, clients) = (lan.servers.as_str(), lan.clients.as_str());
        run("ip", &["netns", "add", servers]);
        run("ip", &["netns", "add", clients]);
        let peer = ["type", "veth", "peer", "name", "veth0", "netns", clients];
        let link = ["link", "add", "veth0", "netns", servers];
        run("ip", &[&link[..], &peer[..]].concat());
        for (namespace, address) in [(servers, SERVERS), (clients, CLIENTS)] {
            let address = format!("{address}/24");
            run("ip", &["-n", namespace, "addr", "add", &address, "dev", "veth0"]);
            run("ip", &["-n", namespace, "link", "set", "veth0", "up"]);
            run("ip", &["-n", namespace, "link", "set", "lo", "up"]);
        }
        lan
    }

    /// Drops all packets between the client and the node, in both directions.
    fn cut_off(&self, node: &Node) {
        self.drop_questions(node);
        self.drop_answers(node);
    }

    fn drop_questions(&self, node: &Node) {
        self.add_filter_rule(&["-A", "OUTPUT", "-p", "tcp", "--dport", &node.port().to_string()]);
    }

    fn drop_answers(&self, node: &Node) {
        self.add_filter_rule(&["-A", "INPUT", "-p", "tcp", "--sport", &node.port().to_string()]);
    }

    fn add_filter_rule(&self, rule: &[&str]) {
        let inside = ["netns", "exec", &self.clients, "iptables"];
        run("ip", &[&inside[..], rule, &["-j", "DROP"]].concat());
    }

    fn heal(&self) {
        run("ip", &["netns", "exec", &self.clients, "iptables", "-F"]);
    }

    /// Starts three servers in one namespace, and runs `work` in the other.
    fn run_beside_three(&self, work: impl FnOnce(&Fleet, Vec<String>) + Send) {
        std::thread::scope(|scope| {
            let servers = scope.spawn(|| {
                enter(&self.servers);
                let fleet = Fleet::with(3, &["--bind", "0.0.0.0"]);
                let url = |node: &Node| format!("redis://{SERVERS}:{}", node.port());
                let urls = fleet.iter().map(url).collect();
                std::thread::scope(|scope| {
                    let clients = scope.spawn(|| {
                        enter(&self.clients);
                        work(&fleet, urls);
                    });
                    clients.join().expect("the client's side fails the test");
                });
            });
            servers.join().expect("the servers' side fails the test");
        });
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        // The kernel deletes the interfaces together with their namespaces.
        for namespace in [&self.servers, &self.clients] {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

#[track_caller]
fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("it is installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
}

/// Moves this thread into the namespace, with all that it opens and starts from now on.
fn enter(namespace: &str) {
    let file = File::open(format!("/var/run/netns/{namespace}")).expect("it was just made");
    let kind = Some(LinkNameSpaceType::Network);
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind).expect("root may move");
}

fn settings(urls: Vec<String>) -> Config {
    config(urls).node_timeout(millis(100)).connect_timeout(millis(300))
}

fn lock_and_release(client: &Client) -> Duration {
    let start = Instant::now();
    let guard = client.try_lock("a", TTL).unwrap();
    assert_eq!(guard.release().unwrap(), ReleaseOutcome::Released);
    start.elapsed()
}

#[test]
#[ignore = "needs netns: root and apt-get install iproute2 iptables"]
fn a_minority_that_is_partitioned_costs_nothing() {
    let lan = Lan::new();
    lan.run_beside_three(|fleet, urls| {
        let client = client(settings(urls));
        let usual = (0..50).map(|_| lock_and_release(&client)).max().expect("fifty pairs");
        lan.cut_off(&fleet[0]);
        let (start, mut slowest, mut pairs) = (Instant::now(), Duration::ZERO, 0);
        while start.elapsed() < 2 * SECOND {
            slowest = slowest.max(lock_and_release(&client));
            pairs += 1;
            client.drive(millis(2)).unwrap();
        }
        println!("slowest of 50 pairs {usual:?}, of {pairs} with one node cut off {slowest:?}");
        assert!(slowest < millis(100), "{slowest:?}");
        lan.heal();
        let back = wait_ready(&client, 3);
        println!("back {back:?} after healing");
        assert!(back < 2 * SECOND);
        lock_and_release(&client);
        drive_until(&client, SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    });
}

#[test]
#[ignore = "needs netns: root and apt-get install iproute2 iptables"]
fn a_majority_that_is_partitioned_is_no_quorum_and_nothing_outlives_the_attempt() {
    // The partition is healed before the client gives the connections up, or long after. Long
    // after, the kernel also retransmits what was sent on the old connection.
    for length in [millis(200), millis(1500)] {
        let lan = Lan::new();
        lan.run_beside_three(|fleet, urls| {
            let client = client(settings(urls));
            lan.cut_off(&fleet[0]);
            lan.cut_off(&fleet[1]);
            let start = Instant::now();
            let error = client.try_lock("a", 60 * SECOND).unwrap_err();
            println!("{error} (after {:?})", start.elapsed());
            assert!(matches!(error, Error::NoQuorum(_)), "{error}");
            client.drive(length).unwrap();
            lan.heal();
            let end = Instant::now() + 2 * SECOND;
            while Instant::now() < end {
                client.drive(millis(10)).unwrap();
            }
            assert_eq!(fleet.keys_everywhere(), [], "a SET outlived its attempt");
            println!("cut off for {length:?}: {:?}", client.nodes());
            wait_ready(&client, 3);
            lock_and_release(&client);
        });
    }
}

#[test]
#[ignore = "needs netns: root and apt-get install iproute2 iptables"]
fn answers_that_are_lost_leave_nothing() {
    let lan = Lan::new();
    lan.run_beside_three(|fleet, urls| {
        let client = client(settings(urls));
        lan.drop_answers(&fleet[0]);
        lan.drop_answers(&fleet[1]);
        let error = client.try_lock("a", 60 * SECOND).unwrap_err();
        println!("{error}");
        assert!(matches!(error, Error::NoQuorum(_)), "{error}");
        let took = drive_until(&client, SOON, "the SETs are released", || {
            fleet.keys_everywhere().is_empty()
        });
        println!("the SETs were executed and are released after {took:?}, with no answer at all");
        lan.heal();
        let back = wait_ready(&client, 3);
        println!("back {back:?} after healing");
        lock_and_release(&client);
        drive_until(&client, SOON, "nothing is left", || fleet.keys_everywhere().is_empty());
    });
}

#[test]
#[ignore = "needs netns: root and apt-get install iproute2 iptables"]
fn node_in_protected_mode_is_named_in_the_error() {
    let lan = Lan::new();
    lan.run_beside_three(|fleet, urls| {
        let client = client(settings(urls));
        let protect = |node: &Node, on: &str| {
            assert!(node.command(&["CONFIG", "SET", "protected-mode", on]).is_ok());
            node.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        };
        protect(&fleet[0], "yes");
        client.drive(millis(100)).unwrap();
        lock_and_release(&client);
        protect(&fleet[1], "yes");
        client.drive(millis(100)).unwrap();
        let start = Instant::now();
        let error = client.lock("a", TTL).unwrap_err();
        println!("{error} (after {:?})", start.elapsed());
        assert!(matches!(error, Error::Config(_)), "{error}");
        assert!(
            error.to_string().matches(&NodeError::Protected.to_string()).count() == 2,
            "{error}"
        );
    });
}
