//! What a connected client learns of a node only by probing it, and leaves in the marker for the
//! next process: another node marker than the known one, and a node that may evict. No push reports
//! either of them.

use super::*;
use crate::support::Cut;
use redlatch::proto::NODE_MARKER;
use redlatch::{LockOptions, NodeError};

/// The longest ttl in the tests that wait for the end of a quarantine, which lasts for this time
/// and the drift.
const MAX_TTL: Duration = Duration::from_secs(8);

/// The longest ttl in the other tests: so long that a busy machine probes before the quarantine
/// ends.
const LONG: Duration = Duration::from_secs(60);

/// How long a client may take to notice a loss: many probe intervals.
const NOTICED_BY: Duration = Duration::from_secs(5);

fn guarded(urls: impl IntoIterator<Item = impl AsRef<str>>) -> Config {
    config(urls).max_ttl(MAX_TTL).restart_guard(RestartGuard::On).probe_interval(millis(200))
}

fn may_be_asked(client: &Client, node: usize) -> bool {
    matches!(client.nodes()[node], NodeState::Ready | NodeState::Quarantined(_))
}

fn is_quarantined(client: &Client, node: usize) -> bool {
    matches!(client.nodes()[node], NodeState::Quarantined(_))
}

/// Vouches for the nodes, so that clients trust them from now on.
fn vouch(config: Config) {
    drop(ready::vouched(config));
}

/// Writes a marker as if a client had met this process of the node in 1970, and an operator had
/// vouched for it then. Returns the marker.
fn mark_long_ago(node: &Node, database: &str) -> String {
    let (run_id, replid) = (node.info("run_id"), node.info("master_replid"));
    let marker = format!("1 {run_id} {replid} 1000000 vouched");
    let mut other = node.client();
    assert!(other.command(&["SELECT", database]).expect("a reply").is_ok());
    assert!(other.command(&["SET", NODE_MARKER, &marker]).expect("a reply").is_ok());
    marker
}

/// Whether a client that connects now has this node in quarantine.
#[track_caller]
fn next_process_distrusts(config: Config, node: usize) -> bool {
    let client = Client::connect(config).expect("a good configuration");
    drive_until(&client, 10 * SECOND, "it is connected", || may_be_asked(&client, node));
    is_quarantined(&client, node)
}

/// The holder has its lock on all nodes, and then nodes 0 and 1 forget it. A connected rival that
/// has had time for many probes must not get the lock meanwhile.
#[track_caller]
fn a_connected_rival_waits(fleet: &Fleet, config: &Config, forget: impl Fn(&Node)) {
    let (holder, rival) = (client(config.clone()), client(config.clone()));
    let held = holder.try_lock("a", MAX_TTL).expect("all nodes are trusted");
    forget(&fleet[0]);
    forget(&fleet[1]);
    let start = Instant::now();
    let noticed = || is_quarantined(&rival, 0) && is_quarantined(&rival, 1);
    while start.elapsed() < NOTICED_BY && !noticed() {
        rival.drive(millis(10)).expect("the poller works");
    }
    println!("noticed: {}, after {:?}", noticed(), start.elapsed());
    for node in [0, 1] {
        assert!(next_process_distrusts(config.clone(), node) || !noticed(), "node {node}");
    }
    let taken = rival.lock("a", LockOptions::new(MAX_TTL).wait(10 * MAX_TTL)).expect("it waits");
    assert!(held.remaining().is_zero(), "two hold the lock, one for {:?}", held.remaining());
    drop(taken);
}

#[test]
fn swap_of_databases_is_noticed_with_the_next_probe() {
    let fleet = Fleet::start(3);
    let config = guarded(fleet.urls());
    vouch(config.clone());
    let swap = |node: &Node| assert!(node.command(&["SWAPDB", "0", "1"]).is_ok());
    a_connected_rival_waits(&fleet, &config, swap);
}

/// Another application locks in the other database, which so has a marker of the same process.
#[test]
fn swap_with_a_database_that_was_marked_long_ago_is_noticed_too() {
    let fleet = Fleet::start(3);
    let config = guarded(fleet.urls());
    vouch(config.clone());
    fleet.iter().for_each(|node| drop(mark_long_ago(node, "1")));
    let swap = |node: &Node| assert!(node.command(&["SWAPDB", "0", "1"]).is_ok());
    a_connected_rival_waits(&fleet, &config, swap);
}

#[test]
fn flush_that_no_push_reports_is_noticed_with_the_next_probe() {
    let fleet = Fleet::start(3);
    for node in &fleet {
        let rules = ["on", ">pw", "~*", "+@all", "-client|tracking"];
        assert!(node.command(&[&["ACL", "SETUSER", "app"][..], &rules].concat()).is_ok());
    }
    let urls = fleet.urls().into_iter().map(|url| url.replace("redis://", "redis://app:pw@"));
    let config = guarded(urls);
    vouch(config.clone());
    let flush = |node: &Node| assert!(node.command(&["FLUSHALL"]).is_ok());
    a_connected_rival_waits(&fleet, &config, flush);
}

#[test]
fn node_that_may_evict_from_now_on_is_rejected_and_quarantined_when_that_is_over() {
    let fleet = Fleet::start(3);
    let config = guarded(fleet.urls()).max_ttl(LONG);
    vouch(config.clone());
    let client = client(config.clone());
    let set = |name, value| assert!(fleet[0].command(&["CONFIG", "SET", name, value]).is_ok());
    set("maxmemory", "100mb");
    set("maxmemory-policy", "allkeys-lru");
    drive_until(&client, 5 * SECOND, "it is rejected", || {
        client.nodes()[0] == NodeState::Rejected(NodeError::Evicts)
    });
    set("maxmemory-policy", "noeviction");
    drive_until(&client, 20 * SECOND, "it is back", || may_be_asked(&client, 0));
    assert!(is_quarantined(&client, 0), "it may have evicted a lock");
    assert!(next_process_distrusts(config, 0));
}

#[test]
fn marker_of_a_later_version_is_neither_trusted_nor_overwritten() {
    let fleet = Fleet::start(3);
    let config = guarded(fleet.urls());
    vouch(config.clone());
    let later: Vec<String> =
        fleet.iter().map(|node| format!("2 {} x", node.info("run_id"))).collect();
    let is_old = |node: &Node| node.info("uptime_in_seconds").parse::<u64>().is_ok_and(|s| s >= 10);
    eventually(30 * SECOND, "they have been up for longer than any ttl", || {
        fleet.iter().all(is_old)
    });
    for (node, marker) in fleet.iter().zip(&later) {
        assert!(node.command(&["SET", NODE_MARKER, marker]).is_ok());
    }
    let client = Client::connect(config).expect("a good configuration");
    let error = client.try_lock("a", MAX_TTL).expect_err("nothing is known of what was forgotten");
    assert!(error.to_string().contains("later version"), "{error}");
    client.vouch().expect_err("the marker is not replaced");
    for (node, marker) in fleet.iter().zip(&later) {
        assert_eq!(node.get(NODE_MARKER).as_deref(), Some(marker.as_bytes()));
    }
    // On a node without a marker the client writes its own.
    assert!(fleet[0].command(&["FLUSHALL"]).is_ok());
    drive_until(&client, 5 * SECOND, "it is marked", || {
        fleet[0].get(NODE_MARKER).is_some_and(|marker| marker.starts_with(b"1 "))
    });
}

/// A spare server, whose marker a client wrote long ago, takes the address of a node that is gone.
/// The client that knew that node marks the spare server, so the next process distrusts it.
#[test]
fn spare_server_with_an_old_marker_of_its_own_is_distrusted_by_the_next_process() {
    let nodes = Proxied::start(4);
    let config = guarded(&nodes.urls()[..3]).max_ttl(LONG);
    vouch(config.clone());
    mark_long_ago(&nodes.fleet[3], "0");
    let client = client(config.clone());
    nodes.fleet[2].kill();
    nodes.proxies[2].lead_to(nodes.fleet[3].address());
    nodes.proxies[2].cut(Cut::Reset);
    drive_until(&client, 10 * SECOND, "the spare is met", || is_quarantined(&client, 2));
    assert!(next_process_distrusts(config, 2), "locks of the node that is gone may be live");
}

/// Nodes that write each command to disk before they answer.
fn persistent() -> Fleet {
    Fleet::with(3, &["--appendonly", "yes", "--appendfsync", "always"])
}

#[track_caller]
fn wait_loaded(node: &Node) {
    eventually(20 * SECOND, "its file is read", || node.info("loading") == "0");
}

/// A master is started from the files of another master, which contain that one's marker.
#[test]
fn persistent_node_with_the_data_of_another_one_is_not_trusted() {
    let fleet = persistent();
    let config = guarded(fleet.urls()).restart_guard(RestartGuard::Persistent).max_ttl(LONG);
    vouch(config.clone());
    fleet.iter().for_each(|node| drop(mark_long_ago(node, "0")));
    let client = client(config.clone());
    fleet[2].kill();
    let [from, to] = [1, 2].map(|node| fleet[node].directory().join("appendonlydir"));
    std::fs::remove_dir_all(&to).expect("it was made by the server");
    std::fs::create_dir(&to).expect("it is gone");
    for file in std::fs::read_dir(&from).expect("it was made by the server") {
        let file = file.expect("it can be listed");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("it can be copied");
    }
    fleet[2].restart();
    wait_loaded(&fleet[2]);
    assert_eq!(fleet[2].get(NODE_MARKER), fleet[1].get(NODE_MARKER), "it is a copy");
    // One new process meets the copied node before the client that knew the original node, and one
    // after it.
    assert!(next_process_distrusts(config.clone(), 2));
    drive_until(&client, 10 * SECOND, "it is back", || may_be_asked(&client, 2));
    assert!(is_quarantined(&client, 2));
    assert!(next_process_distrusts(config, 2));
}
