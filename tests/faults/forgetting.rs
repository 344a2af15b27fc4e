//! What nodes forget while no client watches must not lead to two holders of one key.

use super::*;
use crate::support::Value;
use redlatch::proto::NODE_MARKER;
use redlatch::{Error, LockOptions};

/// The longest ttl here. A quarantine lasts for this time and the drift.
const MAX_TTL: Duration = millis(1_500);

fn guarded(fleet: &Fleet) -> Config {
    config(fleet.urls()).max_ttl(MAX_TTL).restart_guard(RestartGuard::On)
}

/// Vouches for these nodes, so that clients trust them from now on.
fn vouch(fleet: &Fleet) {
    vouch_with(guarded(fleet));
}

fn vouch_with(config: Config) {
    let client = ready::vouched(config);
    assert!(client.nodes().iter().all(|&it| it == NodeState::Ready));
}

fn plain_set(node: &Node, ttl: Duration) -> Value {
    node.command(&["SET", "a", "rival", "NX", "PX", &ttl.as_millis().to_string()])
}

/// The rival is a client of another library. Node 2 grants its SET, which is still in flight to
/// nodes 0 and 1. Node 2 restarts empty. The holder wins by nodes 0 and 1; node 2 grants the key,
/// too, but that grant does not count. Then node 0 falls silent, and its key expires. If nodes 1
/// and 2 could extend the holder's lock now, the holder and the rival would both have a majority.
#[test]
fn extend_is_not_won_by_a_node_that_forgot_a_rivals_key() {
    despite_stalls(millis(500), |_| extend_is_not_won_by_a_forgetful_node());
}

fn extend_is_not_won_by_a_forgetful_node() {
    let fleet = Fleet::start(3);
    vouch(&fleet);
    assert!(plain_set(&fleet[2], 4 * MAX_TTL).is_ok());
    fleet[2].restart();

    let client = client_with_quarantined(&fleet, 2);
    let mut guard = client.try_lock("a", MAX_TTL).expect("nodes 0 and 1 are a majority");
    drive_until(&client, SOON, "all have it", || fleet.values("a").len() == 3);
    fleet[0].stop();
    let deadline = guard.deadline();
    let error = guard.extend(MAX_TTL).expect_err("node 2 forgot the rival's key");
    println!("{error}");
    assert!(matches!(error, Error::Lost { .. } | Error::NoQuorum(_)), "{error}");
    assert!(guard.deadline() <= deadline);
    // Node 0 executes the rival's SET after the holder's key has expired there.
    fleet[0].cont();
    eventually(4 * MAX_TTL, "node 0 grants the rival its key", || {
        plain_set(&fleet[0], 4 * MAX_TTL).is_ok()
    });
    assert!(guard.check().is_err(), "two hold the lock");
}

/// A client that has exactly this node in quarantine.
fn client_with_quarantined(fleet: &Fleet, node: usize) -> Client {
    let client = Client::connect(guarded(fleet)).expect("a good configuration");
    drive_until(&client, SOON, "the nodes are connected", || {
        let node_states = client.nodes();
        node_states.iter().enumerate().all(|(index, state)| match state {
            NodeState::Ready => index != node,
            NodeState::Quarantined(_) => index == node,
            _ => false,
        })
    });
    client
}

#[test]
fn a_flush_while_no_client_was_connected_is_seen_by_the_next_one() {
    despite_stalls(millis(500), |_| flush_is_seen_by_the_next_client());
}

fn flush_is_seen_by_the_next_client() {
    let fleet = Fleet::start(3);
    vouch(&fleet);
    let lock = |wait| {
        let client = Client::connect(guarded(&fleet)).expect("a good configuration");
        client.lock("a", LockOptions::new(MAX_TTL).wait(wait)).map(|guard| guard.release().is_ok())
    };
    lock(Duration::ZERO).expect("an operator vouched for the nodes");
    // The nodes have been up so long that no client would quarantine them for their uptime.
    let is_old = |node: &Node| node.info("uptime_in_seconds").parse::<u64>().is_ok_and(|s| s >= 4);
    eventually(20 * SECOND, "they have been up for a while", || fleet.iter().all(is_old));
    fleet.command(&["FLUSHALL"]);
    // Two processes connect one after the other. The first one finds no marker and writes one; the
    // second one learns of the flush from that marker.
    let lately = "its node marker was written a short time ago: it was restarted or promoted, ";
    for why in ["its node marker is missing", lately] {
        let error = lock(Duration::ZERO).expect_err("the nodes forgot everything a moment ago");
        assert!(error.to_string().contains(why), "{error}");
    }
    lock(10 * MAX_TTL).expect("the quarantine ends");
    lock(Duration::ZERO).expect("and it is over for the next process, too");
}

#[test]
fn a_promotion_and_a_restart_long_ago_cost_the_next_process_nothing() {
    despite_stalls(millis(500), |_| old_promotion_costs_nothing());
}

fn old_promotion_costs_nothing() {
    let fleet = Fleet::start(3);
    let lock = |wait| {
        let client = Client::connect(guarded(&fleet)).expect("a good configuration");
        client.lock("a", LockOptions::new(MAX_TTL).wait(wait)).map(|guard| guard.release().is_ok())
    };
    for node in &fleet {
        assert!(node.command(&["REPLICAOF", "127.0.0.1", "1"]).is_ok());
        assert!(node.command(&["REPLICAOF", "NO", "ONE"]).is_ok());
    }
    assert!(lock(Duration::ZERO).is_err(), "just promoted");
    lock(10 * MAX_TTL).expect("the quarantine ends");
    // A node reports its promotion for as long as it runs.
    for node in &fleet {
        let info = node.command(&["INFO", "replication"]).text();
        assert!(!info.contains("second_repl_offset:-1"), "{info}");
    }
    // Without the marker, each new process would quarantine such a node for the whole time.
    eventually(4 * MAX_TTL, "a process trusts them at once", || lock(Duration::ZERO).is_ok());
    // A second promotion gives the node yet another replication id.
    for node in &fleet {
        assert!(node.command(&["REPLICAOF", "127.0.0.1", "1"]).is_ok());
        assert!(node.command(&["REPLICAOF", "NO", "ONE"]).is_ok());
    }
    let error = lock(Duration::ZERO).expect_err("just promoted again");
    assert!(error.to_string().contains("promoted"), "{error}");
}

#[test]
fn the_marker_is_written_by_the_script_of_a_real_server() {
    let fleet = Fleet::start(3);
    vouch(&fleet);
    for node in &fleet {
        let marker = node.get(NODE_MARKER).expect("it is there");
        let text = String::from_utf8(marker).expect("it is text");
        let words: Vec<&str> = text.split(' ').collect();
        let info = node.command(&["INFO"]).text();
        assert!(info.contains(&format!("run_id:{}", words[1])), "{text}");
        assert!(info.contains(&format!("master_replid:{}", words[2])), "{text}");
        assert_eq!((words[0], words[4], words.len()), ("1", "vouched", 5), "{text}");
        let time = node.command(&["TIME"]);
        let seconds: u64 = time.text_items()[0].parse().expect("a number");
        let since: u64 = words[3].parse().expect("a number");
        assert!(since / 1_000_000 <= seconds && seconds - since / 1_000_000 < 60, "{text}");
        assert_eq!(node.command(&["PTTL", NODE_MARKER]).int(), -1, "it has no ttl");
    }
}

/// The user may not write the marker, so the client judges the nodes by what they report.
#[test]
fn a_user_who_may_not_write_the_marker_does_without_it() {
    let fleet = Fleet::start(3);
    for node in &fleet {
        let rules = ["on", ">pw", "~a", "+@all"];
        assert!(node.command(&[&["ACL", "SETUSER", "app"][..], &rules].concat()).is_ok());
    }
    let urls = fleet.urls().into_iter().map(|url| url.replace("redis://", "redis://app:pw@"));
    let config = config(urls).max_ttl(MAX_TTL).restart_guard(RestartGuard::On);
    let client = Client::connect(config).expect("a good configuration");
    let guard = client.lock("a", LockOptions::new(MAX_TTL).wait(10 * MAX_TTL)).unwrap();
    drop(guard);
    for node in &fleet {
        assert_eq!(node.get(NODE_MARKER), None);
    }
    let error = client.vouch().expect_err("it is not written anywhere");
    assert!(matches!(error, Error::NoQuorum(_)), "{error}");
}

/// The nodes write each command to disk before they answer (`appendfsync always`).
#[test]
fn persistent_nodes_that_restart_with_their_marker_are_trusted_at_once() {
    let fleet = Fleet::with(3, &["--appendonly", "yes", "--appendfsync", "always"]);
    vouch(&fleet);
    let lock = |guard, wait| {
        let config = guarded(&fleet).restart_guard(guard).max_ttl(20 * MAX_TTL);
        let client = Client::connect(config).expect("a good configuration");
        client.lock("a", LockOptions::new(MAX_TTL).wait(wait)).map(|guard| guard.release().is_ok())
    };
    let persistent = RestartGuard::Persistent;
    lock(persistent, 10 * MAX_TTL).expect("an operator vouched for the nodes");
    // The quarantine that the marker records has to be over, because a restart does not shorten it.
    for node in &fleet {
        let marker = String::from_utf8(node.get(NODE_MARKER).expect("a marker")).expect("text");
        let mut words: Vec<&str> = marker.split(' ').collect();
        (words[3], words[4]) = ("1000000", "");
        let old = words.join(" ");
        assert!(node.command(&["SET", NODE_MARKER, old.trim_end()]).is_ok());
    }
    let known = client(guarded(&fleet).restart_guard(persistent).max_ttl(20 * MAX_TTL));
    for node in &fleet {
        node.restart();
        // The client that knew the node before its restart writes the marker for the new process.
        let run_id = node.info("run_id");
        drive_until(&known, 10 * SECOND, "the marker names the new process", || {
            let found = node.command(&["GET", NODE_MARKER]);
            matches!(found, Value::Bulk(marker) if marker[2..].starts_with(run_id.as_bytes()))
        });
        wait_ready(&known, 3);
        lock(persistent, SOON).expect("a rolling restart costs nothing");
    }
    // A client sends requests once two nodes are ready, so the test waits until the error gives
    // this reason for both.
    let is_refused = |guard, why: &str| {
        eventually(10 * SECOND, why, || {
            let error = lock(guard, Duration::ZERO).expect_err(why);
            error.to_string().matches(why).count() >= 2
        });
    };
    is_refused(RestartGuard::On, "started a short time ago");
    drop(known);
    fleet.iter().for_each(Node::restart);
    is_refused(persistent, "started a short time ago");
    for node in &fleet {
        eventually(10 * SECOND, "its file is read", || node.info("loading") == "0");
        assert!(node.command(&["DEL", NODE_MARKER]).int() == 1);
    }
    // The first client writes the markers anew, so a later client finds markers that were written a
    // short time ago.
    let why = "its node marker is missing";
    eventually(10 * SECOND, why, || {
        fleet.command(&["DEL", NODE_MARKER]);
        let error = lock(persistent, Duration::ZERO).expect_err(why);
        error.to_string().matches(why).count() >= 2
    });
}

/// A node reports a flush of any of its databases. If ours was not flushed, its marker stays, and
/// other processes still know the node by it.
#[test]
fn a_flush_of_another_database_leaves_the_marker_as_it_is() {
    let fleet = Fleet::start(3);
    vouch(&fleet);
    let before = fleet[0].get(NODE_MARKER);
    let client = Client::connect(guarded(&fleet)).expect("a good configuration");
    wait_ready(&client, 3);
    let mut other = fleet[0].client();
    assert!(other.command(&["SELECT", "7"]).expect("a reply").is_ok());
    assert!(other.command(&["FLUSHDB"]).expect("a reply").is_ok());
    drive_until(&client, SOON, "the flush is noticed", || {
        matches!(client.nodes()[0], NodeState::Quarantined(_))
    });
    // By now the node has answered the script that could have written the marker anew.
    client.drive(millis(100)).expect("the poller works");
    assert_eq!(fleet[0].get(NODE_MARKER), before);
    // FLUSHALL deletes the marker, and the client writes it anew at once, for the next process.
    assert!(fleet[0].command(&["FLUSHALL"]).is_ok());
    drive_until(&client, SOON, "the marker is written anew", || {
        fleet[0].get(NODE_MARKER).is_some_and(|marker| !marker.ends_with(b"vouched"))
    });
}

/// A replica that attaches changes the replication id of its master, as a backup by `redis-cli
/// --rdb` does. The client trusts the master all the same.
#[test]
fn a_replica_that_attaches_costs_no_quarantine() {
    let fleet = Fleet::start(4);
    let masters = fleet.urls()[..3].to_vec();
    let settings = || {
        let config = config(&masters).max_ttl(20 * MAX_TTL).restart_guard(RestartGuard::On);
        config.node_timeout(millis(200))
    };
    vouch_with(settings());
    let history = |node: &Node| node.info("master_replid");
    let before = history(&fleet[0]);
    let port = fleet[0].port().to_string();
    assert!(fleet[3].command(&["REPLICAOF", "127.0.0.1", &port]).is_ok());
    eventually(10 * SECOND, "the replica attaches", || history(&fleet[0]) != before);
    let client = Client::connect(settings()).expect("a good configuration");
    wait_ready(&client, 3);
}
