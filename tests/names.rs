//! Names of nodes when a client starts: all are looked up at the same time, and a node whose name
//! is looked up late only joins later. With in-process masters, and a resolver of the test's own.
#![cfg(all(feature = "net", feature = "testing"))]
#![allow(clippy::disallowed_methods, reason = "tests measure on the clock of a bystander")]

#[path = "support/ready.rs"]
mod ready;

use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use redlatch::testing::tcp::Masters;
use redlatch::{Client, Config, NodeState, RestartGuard};

const TTL: Duration = Duration::from_secs(20);

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Three masters with names, and how long the look-up of each name takes.
fn slow_names(takes: [Duration; 3]) -> (Masters, Config) {
    let masters = Masters::start(3).expect("there are free ports");
    let addresses: Vec<SocketAddr> = masters.iter().map(|master| master.address()).collect();
    let urls = (0..3).map(|node| format!("redis://node{node}.example:{}", 1 + node));
    let config = Config::new(urls).expect("good addresses");
    let config = config.resolver(move |_, port| {
        let node = usize::from(port) - 1;
        sleep(takes[node]);
        Ok(vec![addresses[node]])
    });
    (masters, config.restart_guard(RestartGuard::Off).connect_timeout(millis(400)))
}

fn connect(config: Config) -> (Client, Duration) {
    let start = Instant::now();
    let client = Client::connect(config).expect("good settings");
    (client, start.elapsed())
}

#[test]
fn names_are_looked_up_at_the_same_time() {
    let (_masters, config) = slow_names([millis(1500); 3]);
    let (client, took) = connect(config.connect_timeout(millis(20_000)));
    assert!(took < millis(3000), "one after the other: {took:?}");
    ready::wait_ready(&client, 3);
}

#[test]
fn node_whose_name_is_found_late_joins_later() {
    let (masters, config) = slow_names([millis(0), millis(0), millis(3000)]);
    let (client, took) = connect(config.connect_timeout(millis(20_000)));
    assert!(took < millis(2000), "it waited for the late name: {took:?}");
    let error = client.nodes()[2];
    assert!(matches!(error, NodeState::Down(_)), "{error:?}");
    let guard = client.try_lock("a", TTL).expect("two of three are there");
    guard.release().expect("they answer");
    ready::wait_ready(&client, 3);
    let _guard = client.try_lock("b", TTL).expect("three are there");
    let start = Instant::now();
    while masters[2].get("b").is_none() {
        client.drive(millis(10)).expect("the poller works");
        assert!(start.elapsed() < millis(5000), "it is not asked");
    }
}

#[test]
fn a_resolver_that_hangs_keeps_connect_no_longer_than_the_connect_timeout() {
    let (_masters, config) = slow_names([millis(0), millis(6000), millis(6000)]);
    let (client, took) = connect(config);
    assert!(took < millis(4000), "{took:?}");
    let error = client.try_lock("a", TTL).expect_err("one of three is no quorum").to_string();
    assert_eq!(error.matches("its name is still being looked up").count(), 2, "{error}");
}

#[test]
fn a_resolver_that_panics_at_the_start_costs_that_node_alone() {
    let masters = Masters::start(3).expect("there are free ports");
    let urls = [masters[0].url(), masters[1].url(), "redis://node.example".into()];
    let config = Config::new(urls).expect("good addresses").restart_guard(RestartGuard::Off);
    let (client, _) = connect(config.resolver(|_, _| panic!("no name server")));
    drop(client.try_lock("a", TTL).expect("two of three are there"));
}
